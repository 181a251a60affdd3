"""Publish so that a retry is never a duplicate: thread-safe, blocking or pipelined."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from functools import partial
from ssl import SSLContext
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from dedup.amqp091.publishing import AMQP091, Content, Endpoints, Properties
from dedup.core import inputs
from dedup.core.failures import uncertain, unflushed
from dedup.core.identity import SEQUENCE_MAX, Receipt, clock_base, validate_publisher_id
from dedup.core.questions import ResumePoint, Standing, Status, Told
from dedup.core.sender import Sender
from dedup.core.window import WINDOW_SIZE
from dedup.errors import ConfigError, DedupError, InvalidMessageError, PublisherClosedError
from dedup.inquirer import Asked
from dedup.publisher.buffer import Publication, Room
from dedup.publisher.deadlines import deadline_of
from dedup.publisher.limits import Limits
from dedup.publisher.pipeline import Pipeline
from dedup.registrar import new_registration
from dedup.wire import Wire

_MIB = 1024 * 1024
#: A content header frame without its properties: type, channel, size, class, weight, body size and end marker.
_HEADER_FRAME_BYTES = 20


class Publisher:
    """
    Publish under one stable publisher id; every message is numbered, sent until confirmed, and sent again as itself.

    Every publish is mandatory and confirmed. Lost connections are made again for ever, host after host, and what was
    not confirmed goes first, oldest first. A thread owns the connection: heartbeats go on while the application works,
    and any number of threads may publish. Callbacks of futures run in that thread and must not block. A publisher that
    was not closed is closed when the interpreter exits.

    Args:
        url: ``amqp://`` or ``amqps://``; several hosts as a list, or separated by commas.
        publisher_id: stable name of this publisher; two publishers alive at once must not share it.
        confirm_timeout_s: silence about a message after which the connection counts as dead.
        connect_timeout_s: how long the constructor waits for a broker.
        close_timeout_s: how long :meth:`close` waits for confirms.
        unconfirmed_max: messages sent and not confirmed; half of the window at the most, which is the default.
        waiting_max: messages submitted beyond that; more make :meth:`submit` block.
        buffer_bytes_max: bytes of both; the same again may be kept of given-up messages, for :meth:`retry`.
        body_bytes_max: largest body; 16 MiB is what a current RabbitMQ takes by default.
        window_size: the window of the shim.
        ssl_context: replaces the one of ``amqps`` URLs.
        user_id: the broker's user, put into messages that name none; what ``bind_publisher_to_user`` needs.
        base: the first sequence is the one after it; then nothing is registered.
        registration: ``"broker"``, the default: hold the publisher id, and get a base from a registry, which every shim
            serves; ``"local"``: no lock, and a base from the clock.
        takeover: do not wait for whoever holds the publisher id; that one is fenced, except for messages with a *sequence* of the
            caller's own: nothing in those tells one owner from the other.
        outbox: an SQLite file on a local disk. Each message is in it before it is sent and until it is confirmed; what a
            killed process left goes first. *timeout* then ends only the wait: what is kept stays on its way.
        outbox_rows_max: messages in the outbox, failed ones included; more make :meth:`submit` block.
        outbox_bytes_max: bytes of them.
        receipts: called with a :class:`dedup.Told` when a shim drops a message as a duplicate or puts it into quarantine; in the
            publisher's thread, so it must not block. A hint that may get lost; needs the registration.

    Raises:
        BrokerUnavailableError: no host answered in time.
        PublisherAlreadyRegisteredError: another connection holds the publisher id.
        RegistryUnavailableError: no registry answered in time.
        ConfigError: a setting or a URL is wrong, or every host refused the login.
        InvalidIdentityError: not a publisher id.
        OutboxError: the outbox is in use, damaged, another publisher's, keeps messages of another protocol, or cannot be written.
    """

    #: What speaks the protocol; an adapter for another one brings its own.
    _wire: ClassVar[Wire] = AMQP091

    def __init__(
        self,
        url: str | Iterable[str],
        publisher_id: str,
        *,
        confirm_timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        close_timeout_s: float = 30.0,
        unconfirmed_max: int | None = None,
        waiting_max: int = 4096,
        buffer_bytes_max: int = 64 * _MIB,
        body_bytes_max: int = 16 * _MIB,
        window_size: int = WINDOW_SIZE,
        ssl_context: SSLContext | None = None,
        user_id: str | None = None,
        base: int | None = None,
        registration: Literal["broker", "local"] | None = None,
        takeover: bool = False,
        outbox: str | os.PathLike[str] | None = None,
        outbox_rows_max: int = 100_000,
        outbox_bytes_max: int = 1024 * _MIB,
        receipts: Callable[[Told], None] | None = None,
    ) -> None:
        self.publisher_id = validate_publisher_id(publisher_id)
        limits = Limits(
            window_size=window_size,
            unconfirmed_max=unconfirmed_max,
            confirm_timeout_s=confirm_timeout_s,
            connect_timeout_s=connect_timeout_s,
            close_timeout_s=close_timeout_s,
            waiting_max=waiting_max,
            buffer_bytes_max=buffer_bytes_max,
            body_bytes_max=body_bytes_max,
            outbox_rows_max=outbox_rows_max,
            outbox_bytes_max=outbox_bytes_max,
        )
        self._body_bytes_max = body_bytes_max
        wish = {} if receipts is None else {"wants_receipt": True}
        self._seal = partial(self._wire.seal, publisher_id=self.publisher_id, user_id=user_id, **wish)
        self._user_id = user_id
        self._plain = self._seal(None)
        registers = inputs.check_registration(registration, base, takeover=takeover)
        if receipts is not None and not callable(receipts):
            raise ConfigError(f"receipts is called with each dedup.Told, {type(receipts).__name__} cannot be")
        if receipts is not None and not registers:
            raise ConfigError(
                "receipts come to the queue of a registered publisher: leave base and registration out"
            )
        if base is not None:
            inputs.check_count("base", base, 0, SEQUENCE_MAX - 1)
        endpoints = Endpoints(url, name=f"dedup publisher {self.publisher_id}", ssl_context=ssl_context)
        self._pipeline = Pipeline(
            self._wire,
            self.publisher_id,
            limits,
            base=clock_base(time.time_ns()) if base is None else base,
            room=self._new_room(),
            outbox=outbox,
        )
        self._registration = (
            new_registration(self.publisher_id, takeover=takeover, last=self._pipeline.newest_kept)
            if registers
            else None
        )
        self._process = os.getpid()
        self._thread: Any = self._wire.thread(
            self.publisher_id,
            endpoints,
            Sender(limits.of_sender(self.publisher_id)),
            on_confirmed=self._pipeline.confirm,
            on_failed=self._pipeline.fail,
            on_end=self._pipeline.buffer.end,
            **(
                {"registration": self._registration, "user_id": user_id, "on_told": receipts}
                if self._registration
                else {}
            ),
        )
        self._pipeline.open(self._thread, self._registration)
        atexit.register(self.close)

    def publish(
        self,
        body: bytes | bytearray | memoryview,
        *,
        exchange: str = "",
        routing_key: str = "",
        queue: str | None = None,
        properties: Properties | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """
        Publish one message and wait until the broker has it.

        Args:
            body: bytes; text is for the caller to encode.
            exchange: where to publish; ``""`` is the default exchange, which leads to the queue named by *routing_key*.
            routing_key: at most 255 bytes of UTF-8, like *exchange*.
            queue: a guarded queue by its own name, instead of *exchange* and *routing_key*.
            properties: passed on untouched, delivery mode included; None makes a persistent message.
            timeout: seconds to wait in all, for room and for the confirm; None waits as long as it takes.
            sequence: the message's number when you number them yourself, for all of them: a row's id, a line's number. It names
                this message for ever. Numbers ascend; a lower one fills a gap, at most half a window below the highest.

        Raises:
            InvalidMessageError: it cannot be sent as it is; no sequence was used.
            PublishTimeoutError: no confirm in time; ``retry(error.receipt)`` is safe.
            ReturnedError: no queue took it.
            PublishError: the broker refused it.
            PublisherClosedError: the publisher is closed.
            OutboxFullError: the outbox has no room in time; nothing was kept or sent.
            OutboxUnavailableError: the outbox cannot be written (disk full, read-only); nothing was kept or sent.
        """
        self._check_caller("publish")
        deadline = deadline_of(timeout)
        future = self.submit(
            body,
            exchange=exchange,
            routing_key=routing_key,
            queue=queue,
            properties=properties,
            timeout=timeout,
            sequence=sequence,
        )
        return self._pipeline.result(future, deadline)

    def submit(
        self,
        body: bytes | bytearray | memoryview,
        *,
        exchange: str = "",
        routing_key: str = "",
        queue: str | None = None,
        properties: Properties | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
    ) -> Publication:
        """
        Publish one message without waiting for its confirm; arguments and errors are those of :meth:`publish`.

        Blocks only while the buffer is full. What is wrong with the message is raised here, its fate comes with the
        future, which cannot be cancelled. Messages go out in the order of their submits.
        """
        self._check_process()
        exchange, routing_key = inputs.check_place(exchange, routing_key, queue)
        content = self._content(body, properties)
        return self._pipeline.submit(
            exchange, routing_key, content, deadline=deadline_of(timeout), sequence=sequence
        )

    def keep(
        self,
        body: bytes | bytearray | memoryview,
        *,
        exchange: str = "",
        routing_key: str = "",
        queue: str | None = None,
        properties: Properties | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
    ) -> Publication:
        """
        Publish one message and wait until it is in the outbox, on disk; arguments and errors are those of :meth:`publish`.

        From then on it is delivered whatever becomes of this process or the broker; the future tells of the confirm.

        Raises:
            ConfigError: this publisher has no outbox.
            PublishTimeoutError: the disk is slow; the message is on its way into the outbox all the same.
        """
        self._check_caller("keep")
        self._pipeline.check_outbox()
        deadline = deadline_of(timeout)
        future = self.submit(
            body,
            exchange=exchange,
            routing_key=routing_key,
            queue=queue,
            properties=properties,
            timeout=timeout,
            sequence=sequence,
        )
        self._pipeline.wait_kept(future, deadline)
        return future

    def retry(self, receipt: Receipt, timeout: float | None = None) -> Receipt:
        """
        Send a given-up message again under its own sequence, and wait until the broker has it.

        The publisher keeps what it gave up, so the receipt of the error is enough.

        Raises:
            ReceiptExpiredError: it is too far behind the newest message, or no longer kept.
            InvalidMessageError: the receipt is another publisher's, or its message is still on its way.
            PublishError: as from :meth:`publish`.
        """
        self._check_caller("retry")
        deadline = deadline_of(timeout)
        return self._pipeline.result(self.resubmit(receipt, timeout), deadline)

    def resubmit(self, receipt: Receipt, timeout: float | None = None) -> Publication:
        """
        Send a given-up message again without waiting for its confirm; arguments and errors are those of :meth:`retry`.
        """
        self._check_process()
        inputs.check_receipt("retry", receipt, self.publisher_id)
        return self._pipeline.resubmit(receipt.sequence, deadline_of(timeout))

    def resume_point(
        self,
        *,
        exchange: str = "",
        routing_key: str = "",
        queue: str | None = None,
        queues: Iterable[str] | None = None,
        timeout: float = 30.0,
    ) -> ResumePoint:
        """
        Ask the queues behind a place how far this publisher has come, and wait for what they say.

        Waits for the fate of everything submitted before; then the question follows it, through the same queues. What is in front
        of it there is counted, so it may take as long as the shims need to get to it.

        Args:
            exchange, routing_key, queue: where the messages go, as for :meth:`publish`.
            queues: the guarded queues that must answer, by their own names. None: the first answer will do, and what comes right
                behind it; meant for one queue, as a publisher cannot know how many there are.
            timeout: seconds to wait in all.

        Raises:
            NoAnswerError: a shim did not answer in time.
            ReturnedError: no queue took the question.
            ResumeUncertainError: a shim has lost its state and cannot tell; its *point* has what is left.
            PublishTimeoutError: what was submitted before has no fate in time.
        """
        deadline = time.monotonic() + inputs.check_patience(timeout)
        self.flush(timeout)
        left = max(0.001, deadline - time.monotonic())
        found = self._inquire((exchange, routing_key, queue), 0, queues, left)
        point = ResumePoint(found, self._pipeline.newest_kept)
        if not all(standing.certain for standing in found.values()):
            raise uncertain(self.publisher_id, point)
        return point

    def status(
        self,
        receipt: Receipt,
        *,
        exchange: str = "",
        routing_key: str = "",
        queue: str | None = None,
        queues: Iterable[str] | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Status]:
        """
        Ask the queues behind a place what became of one message: guarded queue -> status.

        A message that is still on its way counts once it is in front of the question. Arguments and errors are those of
        :meth:`resume_point`; the receipt may be one that an earlier process has written down.
        """
        patience_s = inputs.check_patience(timeout)
        inputs.check_receipt("status", receipt, self.publisher_id)
        found = self._inquire((exchange, routing_key, queue), receipt.sequence, queues, patience_s)
        return {name: standing.status or Status.UNKNOWN for name, standing in found.items()}

    def flush(self, timeout: float | None = None) -> None:
        """
        Wait until every message submitted before has its fate; the futures say which.

        Raises:
            PublishTimeoutError: some have none yet and stay on their way; *unconfirmed* is their number and
                *receipt* names the oldest.
        """
        self._check_caller("flush")
        inputs.check_timeout(timeout)
        pending = self._pipeline.buffer.pending()
        _, unsettled = wait(pending.values(), timeout)
        if unsettled:
            oldest = min(sequence for sequence, future in pending.items() if future in unsettled)
            raise unflushed(Receipt(self.publisher_id, oldest, 0), len(unsettled), timeout)

    def close(self) -> None:
        """
        Wait for the confirms of what was submitted, at most *close_timeout_s*, and end the connection.

        The futures of what is unconfirmed then fail with ClosedUnconfirmedError. Closing twice does nothing.
        """
        if self._process != os.getpid():
            return
        self._check_caller("close")
        try:
            self._pipeline.close()
        finally:
            atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dedup.Publisher {self.publisher_id!r} {'closed' if self._pipeline.buffer.is_closed else 'open'}>"

    # -- what an adapter may do otherwise -----------------------------------------------------

    def _new_room(self) -> Room:
        """
        Return where callers wait for room in the buffer.
        """
        return Room()

    def _content(self, body: object, properties: Properties | None) -> Content:
        envelope = self._plain if properties is None else self._seal(properties)
        room = self._thread.frame_max - _HEADER_FRAME_BYTES
        if envelope.size > room:
            raise InvalidMessageError(
                f"properties and headers take {envelope.size} bytes with the stamp, the broker's frame-max leaves room for "
                f"{room}; move large headers into the body"
            )
        return Content(envelope, inputs.check_body(body, self._body_bytes_max))

    # -- the caller's side --------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise PublisherClosedError(
                f"this publisher belongs to process {self._process}, a fork cannot share its connection and its numbers; "
                "make one in this process, under its own publisher id"
            )

    def _check_caller(self, name: str) -> None:
        self._check_process()
        if self._pipeline.is_current:
            raise DedupError(
                f"{name}() in a future's callback would wait for itself; use submit(), or another thread"
            )

    def _inquire(
        self,
        place: tuple[object, object, object],
        sequence: int,
        queues: Iterable[str] | None,
        patience_s: float,
    ) -> dict[str, Standing]:
        self._check_caller("resume_point" if not sequence else "status")
        exchange, routing_key = inputs.check_place(*place)
        self._pipeline.buffer.check_open()
        asked = Asked(exchange, routing_key, sequence, patience_s, self._user_id)
        found: dict[str, Standing] = self._thread.asking.inquire(asked, inputs.check_queues(queues))
        return found
