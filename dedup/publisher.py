"""Publish so that a retry is never a duplicate: thread-safe, blocking or pipelined."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from ssl import SSLContext
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from dedup.amqp091.asking import Asked
from dedup.amqp091.publishing import Content, Endpoints, Properties, PublishingThread, seal
from dedup.amqp091.registering import new_registration
from dedup.core import inputs, sending
from dedup.core.failures import closed, fenced, stays, unflushed
from dedup.core.identity import SEQUENCE_MAX, Receipt, clock_base, validate_publisher_id
from dedup.core.numbers import Numbers
from dedup.core.questions import ResumePoint, Standing, Status, Told
from dedup.core.sender import Sender
from dedup.core.sending import Message, SenderSettings
from dedup.core.window import WINDOW_SIZE
from dedup.errors import (
    BrokerUnavailableError,
    ConfigError,
    DedupError,
    FencedError,
    InvalidMessageError,
    OutboxError,
    PublisherAlreadyRegisteredError,
    PublisherClosedError,
    RegistryUnavailableError,
    ResumeUncertainError,
)
from dedup.outbox.journal import Journal

__all__ = ["Properties", "Publication", "Publisher"]

_MIB = 1024 * 1024
#: A content header frame without its properties: type, channel, size, class, weight, body size and end marker.
_HEADER_FRAME_BYTES = 20


class Publication(Future[Receipt]):
    """
    The future of one message: its number, and the bytes it holds meanwhile.
    """

    sequence: int = 0
    size: int = 0


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
        takeover: do not wait for whoever holds the publisher id; that one is fenced.
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
        OutboxError: the outbox is in use, damaged, another publisher's, or cannot be written.
    """

    #: What speaks the protocol; an adapter for another one brings its own.
    _thread_type: ClassVar[Callable[..., Any]] = PublishingThread
    _encode: ClassVar[Callable[..., Any]] = staticmethod(seal)
    #: How publisher ids are registered by default; an adapter that cannot says "local".
    _registers: ClassVar[Literal["local"] | None] = None

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
        half = inputs.check_count("window_size", window_size, 2) // 2
        settings = SenderSettings(
            publisher_id=self.publisher_id,
            window_size=window_size,
            unconfirmed_max=half
            if unconfirmed_max is None
            else inputs.check_count("unconfirmed_max", unconfirmed_max, 1, half),
            confirm_timeout_s=inputs.check_seconds("confirm_timeout_s", confirm_timeout_s),
            kept_max=half + inputs.check_count("waiting_max", waiting_max, 1),
            kept_bytes_max=inputs.check_count("buffer_bytes_max", buffer_bytes_max, 1),
        )
        self._close_timeout_s = inputs.check_seconds("close_timeout_s", close_timeout_s)
        inputs.check_seconds("connect_timeout_s", connect_timeout_s)
        self._body_bytes_max = inputs.check_count("body_bytes_max", body_bytes_max, 1)
        self._pending_max = settings.unconfirmed_max + waiting_max
        self._buffer_bytes_max = buffer_bytes_max
        wish = {} if receipts is None else {"wants_receipt": True}
        self._seal = partial(self._encode, publisher_id=self.publisher_id, user_id=user_id, **wish)
        self._user_id = user_id
        self._plain = self._seal(None)
        self._lock = threading.Lock()
        #: Signalled when messages were settled, or no more will be.
        self._room = threading.Condition(self._lock)
        self._futures: dict[int, Publication] = {}
        self._bytes = 0
        inputs.check_count("outbox_rows_max", outbox_rows_max, 1)
        inputs.check_count("outbox_bytes_max", outbox_bytes_max, 1)
        registers = inputs.check_registration(registration or self._registers, base, takeover=takeover)
        if receipts is not None and not registers:
            raise ConfigError(
                "receipts come to the queue of a registered publisher: leave base and registration out"
            )
        begin = (
            clock_base(time.time_ns())
            if base is None
            else inputs.check_count("base", base, 0, SEQUENCE_MAX - 1)
        )
        endpoints = Endpoints(url, name=f"dedup publisher {self.publisher_id}", ssl_context=ssl_context)
        if outbox is not None and self._encode is not seal:
            raise ConfigError("an outbox keeps messages of AMQP 0.9.1 only; leave it out here")
        self._journal = (
            None
            if outbox is None
            else Journal.open(
                outbox,
                self.publisher_id,
                span=half,
                rows_max=outbox_rows_max,
                bytes_max=outbox_bytes_max,
                buffer_bytes_max=buffer_bytes_max,
                body_bytes_max=body_bytes_max,
                on_failed=self._give_up,
                on_room=self._tell_of_room,
            )
        )
        kept = self._journal.newest if self._journal else 0
        self._numbers = Numbers(half, newest=kept, fills=self._journal is None)
        self._numbers.begin(begin)
        self._registration = (
            new_registration(self.publisher_id, takeover=takeover, last=kept) if registers else None
        )
        self._closing = False
        self._ended: BaseException | None = None
        self._process = os.getpid()
        self._thread = self._thread_type(
            self.publisher_id,
            endpoints,
            Sender(settings),
            on_confirmed=self._on_confirmed,
            on_failed=self._on_failed,
            on_end=self._on_end,
            **(
                {"registration": self._registration, "user_id": user_id, "on_told": receipts}
                if self._registration
                else {}
            ),
        )
        try:
            self._connect(connect_timeout_s)
        except BaseException:
            if self._journal is not None:
                self._journal.close(0.0)
            raise
        if self._journal is not None:
            self._journal.start(self._thread.post)

    def _connect(self, timeout_s: float) -> None:
        self._thread.start()
        try:
            self._thread.first_opened.result(timeout_s)
        except BaseException as error:
            failures, known = (
                list(self._thread.endpoints.failures.values()),
                self._thread.endpoints.describe(),
            )
            self._closing = True
            self._thread.stop()
            if isinstance(error, TimeoutError):
                for failure in failures:
                    if isinstance(failure, RegistryUnavailableError | PublisherAlreadyRegisteredError):
                        raise failure from error
                raise BrokerUnavailableError(
                    f"no broker within {timeout_s:g} s: {known}; "
                    "check that it runs and that host and port are right"
                ) from error
            raise
        if self._registration is not None:
            self._numbers.begin(self._registration.base)
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
        deadline = _deadline(timeout)
        future = self.submit(
            body,
            exchange=exchange,
            routing_key=routing_key,
            queue=queue,
            properties=properties,
            timeout=timeout,
            sequence=sequence,
        )
        return self._result(future, deadline)

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
        size = len(content.body) + content.envelope.size
        deadline = _deadline(timeout)
        future = Publication()
        future.size = size
        future.set_running_or_notify_cancel()
        with self._lock:
            self._check_open()
            if self._is_full(size):
                self._wait_for_room(size, deadline)
                self._check_open()
                if self._journal is not None:
                    self._journal.check_room(size)
            sequence = future.sequence = self._numbers.take(sequence, self._futures)
            self._futures[sequence] = future
            self._bytes += size
            if self._journal is None:
                self._thread.post(Message(sequence, exchange, routing_key, content, size, deadline))
            else:
                self._journal.put(Message(sequence, exchange, routing_key, content, size))
        return future

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
        self._check_outbox()
        deadline = _deadline(timeout)
        future = self.submit(
            body,
            exchange=exchange,
            routing_key=routing_key,
            queue=queue,
            properties=properties,
            timeout=timeout,
            sequence=sequence,
        )
        return self._wait_kept(future, deadline)

    def _wait_kept(self, future: Publication, deadline: float | None) -> Publication:
        assert self._journal is not None
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._journal.wait_kept(future.sequence, left):
            raise stays(Receipt(self.publisher_id, future.sequence, 0))
        if future.done() and isinstance(error := future.exception(), OutboxError):
            raise error
        return future

    def _result(self, future: Publication, deadline: float | None) -> Receipt:
        """
        Wait for the fate of a message; one that is in an outbox stays on its way when the time is up.
        """
        if self._journal is None or deadline is None:
            return future.result()
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            if future.done():
                return future.result()
            raise stays(Receipt(self.publisher_id, future.sequence, 0)) from None

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
        deadline = _deadline(timeout)
        return self._result(self.resubmit(receipt, timeout), deadline)

    def resubmit(self, receipt: Receipt, timeout: float | None = None) -> Publication:
        """
        Send a given-up message again without waiting for its confirm; arguments and errors are those of :meth:`retry`.
        """
        self._check_process()
        self._check_receipt(receipt, "retry")
        deadline = _deadline(timeout)
        future = Publication()
        future.sequence = receipt.sequence
        future.set_running_or_notify_cancel()
        with self._lock:
            self._check_open()
            if receipt.sequence in self._futures:
                if self._journal is not None:
                    return self._futures[receipt.sequence]
                raise InvalidMessageError(
                    f"sequence {receipt.sequence} is still on its way; wait for its future"
                )
            self._futures[receipt.sequence] = future
            self._thread.post(sending.RetryAsked(receipt.sequence, None if self._journal else deadline))
        return future

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
        found = self._inquire(
            (exchange, routing_key, queue), 0, queues, max(0.001, deadline - time.monotonic())
        )
        point = ResumePoint(found, self._journal.newest if self._journal else 0)
        lost = sorted(name for name, standing in found.items() if not standing.certain)
        if lost:
            raise ResumeUncertainError(
                f"the shims of {', '.join(map(repr, lost))} have lost what they knew of publisher {self.publisher_id!r}, and more "
                "may have arrived than they know: look into the queue, or resume where you are sure that it has nothing more",
                point=point,
            )
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
        self._check_receipt(receipt, "status")
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
        with self._lock:
            pending = dict(self._futures)
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
        with self._lock:
            first, self._closing = not self._closing, True
            pending = list(self._futures.values())
            self._room.notify_all()
        try:
            if first:
                wait(pending, self._close_timeout_s)
        finally:
            self._thread.stop()
            if self._journal is not None:
                self._journal.close(self._close_timeout_s)
            atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dedup.Publisher {self.publisher_id!r} {'closed' if self._closing else 'open'}>"

    # -- the caller's side --------------------------------------------------------------------

    def _content(self, body: object, properties: Properties | None) -> Content:
        envelope = self._plain if properties is None else self._seal(properties)
        room = self._thread.frame_max - _HEADER_FRAME_BYTES
        if envelope.size > room:
            raise InvalidMessageError(
                f"properties and headers take {envelope.size} bytes with the stamp, the broker's frame-max leaves room for "
                f"{room}; move large headers into the body"
            )
        return Content(envelope, inputs.check_body(body, self._body_bytes_max))

    def _is_full(self, size: int) -> bool:
        if self._journal is not None and self._journal.is_full(size):
            return True
        if not self._futures:
            return False
        return len(self._futures) >= self._pending_max or self._bytes + size > self._buffer_bytes_max

    def _wait_for_room(self, size: int, deadline: float | None) -> None:
        """
        Wait until the message fits or its time is up: then the sender gives it up, with a receipt like any other.
        """
        if self._is_own_thread():
            return
        self._room.wait_for(
            lambda: self._closing or not self._is_full(size),
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        )

    def _check_open(self) -> None:
        if isinstance(self._ended, FencedError):
            raise fenced(self._ended)
        if self._closing:
            raise PublisherClosedError("this publisher is closed; make a new one") from self._ended

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise PublisherClosedError(
                f"this publisher belongs to process {self._process}, a fork cannot share its connection and its numbers; "
                "make one in this process, under its own publisher id"
            )

    def _check_caller(self, name: str) -> None:
        self._check_process()
        if self._is_own_thread():
            raise DedupError(
                f"{name}() in a future's callback would wait for itself; use submit(), or another thread"
            )

    def _check_receipt(self, receipt: object, name: str) -> None:
        if not isinstance(receipt, Receipt):
            raise InvalidMessageError(
                f"{name}() takes a receipt, as of a result or an error, not {type(receipt).__name__}"
            )
        if receipt.publisher_id != self.publisher_id:
            raise InvalidMessageError(
                f"the receipt belongs to publisher {receipt.publisher_id!r}, this is {self.publisher_id!r}"
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
        asking = getattr(self._thread, "asking", None)
        if asking is None:
            raise ConfigError("questions are asked over AMQP 0.9.1 only: use a dedup.Publisher for them")
        with self._lock:
            self._check_open()
        asked = Asked(exchange, routing_key, sequence, patience_s, self._user_id)
        found: dict[str, Standing] = asking.inquire(asked, inputs.check_queues(queues))
        return found

    def _check_outbox(self) -> None:
        if self._journal is None:
            raise ConfigError("keep() needs an outbox: Publisher(..., outbox='orders.db')")

    def _is_own_thread(self) -> bool:
        return bool(self._thread.is_current) or (self._journal is not None and self._journal.is_current)

    # -- the threads' side --------------------------------------------------------------------

    def _on_confirmed(self, messages: Sequence[Message]) -> None:
        if self._journal is not None:
            self._journal.settle(messages)
        settled = []
        with self._lock:
            for message in messages:
                future = self._futures.pop(message.sequence, None)
                if future is not None:
                    self._bytes -= future.size
                    settled.append((future, message))
            self._room.notify_all()
        for future, message in settled:
            future.set_result(Receipt(self.publisher_id, message.sequence, message.attempts))

    def _on_failed(self, sequence: int, error: DedupError) -> None:
        if self._journal is not None:
            self._journal.fail(sequence, error)
        self._give_up(sequence, error)

    def _tell_of_room(self) -> None:
        with self._lock:
            self._room.notify_all()

    def _give_up(self, sequence: int, error: DedupError) -> None:
        with self._lock:
            future = self._futures.pop(sequence, None)
            if future is not None:
                self._bytes -= future.size
            self._room.notify_all()
        if future is not None:
            future.set_exception(error)

    def _on_end(self, cause: BaseException | None) -> None:
        """
        Leave nobody waiting for a thread that is no more.
        """
        with self._lock:
            self._closing, self._ended = True, cause
            left, self._futures = self._futures, {}
            self._bytes = 0
            self._room.notify_all()
        for sequence, future in left.items():
            error = closed(
                Receipt(self.publisher_id, sequence, 1), cause if isinstance(cause, DedupError) else None
            )
            error.__cause__ = cause
            future.set_exception(error)


def _deadline(timeout: float | None) -> float | None:
    seconds = inputs.check_timeout(timeout)
    return None if seconds is None else time.monotonic() + seconds
