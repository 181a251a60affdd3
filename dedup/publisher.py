"""Publish so that a retry is never a duplicate: thread-safe, blocking or pipelined."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from ssl import SSLContext
from types import TracebackType
from typing import Self

from dedup.amqp091.publishing import Content, Endpoints, Properties, PublishingThread, seal
from dedup.core import inputs, sending
from dedup.core.failures import closed
from dedup.core.identity import SEQUENCE_MAX, Receipt, clock_base, validate_publisher_id
from dedup.core.sender import Sender
from dedup.core.sending import Message, SenderSettings
from dedup.core.window import WINDOW_SIZE
from dedup.errors import (
    BrokerUnavailableError,
    DedupError,
    InvalidMessageError,
    PublisherClosedError,
    PublishTimeoutError,
)

__all__ = ["Properties", "Publisher"]

_MIB = 1024 * 1024
#: A content header frame without its properties: type, channel, size, class, weight, body size and end marker.
_HEADER_FRAME_BYTES = 20


class _Publication(Future[Receipt]):
    """
    The future of one message, and the bytes it holds meanwhile.
    """

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
        base: the first sequence is the one after it; taken from the clock by default.

    Raises:
        BrokerUnavailableError: no host answered in time.
        ConfigError: a setting or a URL is wrong, or every host refused the login.
        InvalidIdentityError: not a publisher id.
    """

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
        self._seal = partial(seal, publisher_id=self.publisher_id, user_id=user_id)
        self._plain = self._seal(None)
        self._lock = threading.Lock()
        #: Signalled when messages were settled, or no more will be.
        self._room = threading.Condition(self._lock)
        self._futures: dict[int, _Publication] = {}
        self._bytes = 0
        self._next = 1 + (
            clock_base(time.time_ns())
            if base is None
            else inputs.check_count("base", base, 0, SEQUENCE_MAX - 1)
        )
        self._closing = False
        self._ended: BaseException | None = None
        self._process = os.getpid()
        self._thread = PublishingThread(
            self.publisher_id,
            Endpoints(url, name=f"dedup publisher {self.publisher_id}", ssl_context=ssl_context),
            Sender(settings),
            on_confirmed=self._on_confirmed,
            on_failed=self._on_failed,
            on_end=self._on_end,
        )
        self._connect(connect_timeout_s)

    def _connect(self, timeout_s: float) -> None:
        self._thread.start()
        try:
            self._thread.first_opened.result(timeout_s)
        except BaseException as error:
            self._closing = True
            self._thread.stop()
            if isinstance(error, TimeoutError):
                raise BrokerUnavailableError(
                    f"no broker within {timeout_s:g} s: {self._thread.endpoints.describe()}; "
                    "check that it runs and that host and port are right"
                ) from error
            raise
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

        Raises:
            InvalidMessageError: it cannot be sent as it is; no sequence was used.
            PublishTimeoutError: no confirm in time; ``retry(error.receipt)`` is safe.
            ReturnedError: no queue took it.
            PublishError: the broker refused it.
            PublisherClosedError: the publisher is closed.
        """
        self._check_caller("publish")
        return self.submit(
            body,
            exchange=exchange,
            routing_key=routing_key,
            queue=queue,
            properties=properties,
            timeout=timeout,
        ).result()

    def submit(
        self,
        body: bytes | bytearray | memoryview,
        *,
        exchange: str = "",
        routing_key: str = "",
        queue: str | None = None,
        properties: Properties | None = None,
        timeout: float | None = None,
    ) -> Future[Receipt]:
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
        future = _Publication()
        future.size = size
        future.set_running_or_notify_cancel()
        with self._lock:
            self._check_open()
            if self._is_full(size):
                self._wait_for_room(size, deadline)
                self._check_open()
            sequence = self._next
            self._next = sequence + 1
            self._futures[sequence] = future
            self._bytes += size
            self._thread.post(Message(sequence, exchange, routing_key, content, size, deadline))
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
        if not isinstance(receipt, Receipt):
            raise InvalidMessageError(f"retry() takes the receipt of an error, not {type(receipt).__name__}")
        if receipt.publisher_id != self.publisher_id:
            raise InvalidMessageError(
                f"the receipt belongs to publisher {receipt.publisher_id!r}, this is {self.publisher_id!r}"
            )
        deadline = _deadline(timeout)
        future = _Publication()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._check_open()
            if receipt.sequence in self._futures:
                raise InvalidMessageError(
                    f"sequence {receipt.sequence} is still on its way; wait for its future"
                )
            self._futures[receipt.sequence] = future
            self._thread.post(sending.RetryAsked(receipt.sequence, deadline))
        return future.result()

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
            raise PublishTimeoutError(
                f"{len(unsettled)} messages are not confirmed after {timeout:g} s; they stay on their way",
                receipt=Receipt(self.publisher_id, oldest, 0),
                unconfirmed=len(unsettled),
            )

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
        if not self._futures:
            return False
        return len(self._futures) >= self._pending_max or self._bytes + size > self._buffer_bytes_max

    def _wait_for_room(self, size: int, deadline: float | None) -> None:
        """
        Wait until the message fits or its time is up: then the sender gives it up, with a receipt like any other.
        """
        if self._thread.is_current:
            return
        self._room.wait_for(
            lambda: self._closing or not self._is_full(size),
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        )

    def _check_open(self) -> None:
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
        if self._thread.is_current:
            raise DedupError(
                f"{name}() in a future's callback would wait for itself; use submit(), or another thread"
            )

    # -- the thread's side --------------------------------------------------------------------

    def _on_confirmed(self, messages: Sequence[Message]) -> None:
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
            error = closed(Receipt(self.publisher_id, sequence, 1))
            error.__cause__ = cause
            future.set_exception(error)


def _deadline(timeout: float | None) -> float | None:
    seconds = inputs.check_timeout(timeout)
    return None if seconds is None else time.monotonic() + seconds
