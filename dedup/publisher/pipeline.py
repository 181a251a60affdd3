"""
Lead messages from their callers to the sender: numbered, kept in the outbox where there is one, handed on in order.

::

    submit -> [room in the buffer] -> number -> (outbox) -> the sender's thread -> confirm() or fail() -> the future
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any

from dedup.core import sending
from dedup.core.failures import stays
from dedup.core.identity import Receipt
from dedup.core.numbers import Numbers
from dedup.core.registration import Registration
from dedup.core.sending import Message
from dedup.errors import (
    ConfigError,
    DedupError,
    InvalidMessageError,
    OutboxError,
)
from dedup.outbox.journal import Journal
from dedup.publisher.buffer import Buffer, Publication, Room
from dedup.publisher.deadlines import left_s
from dedup.publisher.limits import Limits
from dedup.wire import Wire


class Pipeline:
    """
    The way of one publisher's messages.

    Args:
        wire: what they are sent over.
        publisher_id: whose they are.
        limits: of the publisher.
        base: where numbers begin, unless a registry says otherwise.
        room: where callers wait for room in the buffer.
        outbox: the file of the outbox; None: there is none.

    Raises:
        OutboxError: the outbox is in use, damaged, another publisher's, keeps messages of another protocol, or cannot be written.
    """

    def __init__(
        self,
        wire: Wire,
        publisher_id: str,
        limits: Limits,
        *,
        base: int,
        room: Room,
        outbox: str | os.PathLike[str] | None,
    ) -> None:
        self._publisher_id = publisher_id
        self._limits = limits
        self.buffer = Buffer(publisher_id, limits.pending_max, limits.buffer_bytes_max, room)
        self.journal = (
            None
            if outbox is None
            else Journal.open(
                outbox,
                wire,
                publisher_id,
                span=limits.span,
                rows_max=limits.outbox_rows_max,
                bytes_max=limits.outbox_bytes_max,
                buffer_bytes_max=limits.buffer_bytes_max,
                body_bytes_max=limits.body_bytes_max,
                on_failed=self.buffer.fail,
                on_room=self.buffer.tell_of_room,
            )
        )
        self._numbers = Numbers(limits.span, newest=self.newest_kept, fills=self.journal is None)
        self._numbers.begin(base)
        self._thread: Any = None
        #: With an outbox: the messages confirmed last, and how often each was sent, for callers whose time was up before.
        self._confirmed: OrderedDict[int, int] = OrderedDict()

    @property
    def newest_kept(self) -> int:
        """
        The highest number that the outbox has had; 0 when there is none.
        """
        return self.journal.newest if self.journal else 0

    @property
    def is_current(self) -> bool:
        """
        Whether the caller runs in a thread of this pipeline: it must not wait for it.
        """
        return bool(self._thread.is_current) or (self.journal is not None and self.journal.is_current)

    # -- the callers' side --------------------------------------------------------------------

    def open(self, thread: Any, registration: Registration | None) -> None:
        """
        Connect the sender's thread, and let messages through.

        Raises:
            BrokerUnavailableError: no host answered in time.
            PublisherAlreadyRegisteredError, RegistryUnavailableError: the publisher id cannot be held.
            ConfigError: every host refused the login.
        """
        self._thread = thread
        thread.start()
        try:
            thread.wait_opened(self._limits.connect_timeout_s)
            if registration is not None:
                self._numbers.begin(registration.base)
            if self.journal is not None:
                self.journal.start(thread.post)
        except BaseException:
            self.buffer.close()
            thread.stop()
            if self.journal is not None:
                self.journal.close(0.0)
            raise

    def submit(
        self,
        exchange: str,
        routing_key: str,
        content: Any,
        *,
        deadline: float | None,
        sequence: int | None,
    ) -> Publication:
        """
        Number a message and send it on its way, once there is room; errors are those of :meth:`Publisher.submit`.
        """
        size = len(content.body) + content.envelope.size
        future = Publication(size=size)
        with self.buffer.lock:
            self.buffer.check_open()
            if self._is_full(size):
                self._make_room(size, deadline)
            sequence = future.sequence = self._numbers.take(sequence, self.buffer)
            self.buffer.add(future)
            if self.journal is None:
                self._thread.post(Message(sequence, exchange, routing_key, content, size, deadline))
            else:
                self.journal.put(Message(sequence, exchange, routing_key, content, size))
        return future

    def resubmit(self, sequence: int, deadline: float | None) -> Publication:
        """
        Send a given-up message again; errors are those of :meth:`Publisher.resubmit`.
        """
        future = Publication(sequence)
        with self.buffer.lock:
            self.buffer.check_open()
            under_way = self.buffer.get(sequence)
            if under_way is not None and self.journal is not None:
                return under_way
            if under_way is not None:
                raise InvalidMessageError(f"sequence {sequence} is still on its way; wait for its future")
            if (attempts := self._confirmed.get(sequence)) is not None:
                future.set_result(Receipt(self._publisher_id, sequence, attempts))
                return future
            self.buffer.add(future)
            self._thread.post(sending.RetryAsked(sequence, None if self.journal else deadline))
        return future

    def result(self, future: Publication, deadline: float | None) -> Receipt:
        """
        Wait for the fate of a message; one that is in an outbox stays on its way when the time is up.
        """
        if self.journal is None or deadline is None:
            return future.result()
        try:
            return future.result(left_s(deadline))
        except TimeoutError:
            if future.done():
                return future.result()
            raise stays(Receipt(self._publisher_id, future.sequence, 0)) from None

    def check_outbox(self) -> None:
        """
        Refuse what only an outbox can do.

        Raises:
            ConfigError: there is none.
        """
        if self.journal is None:
            raise ConfigError("keep() needs an outbox: Publisher(..., outbox='orders.db')")

    def wait_kept(self, future: Publication, deadline: float | None) -> None:
        """
        Wait until a message is in the outbox, on disk; errors are those of :meth:`Publisher.keep`.
        """
        assert self.journal is not None
        if not self.journal.wait_kept(future.sequence, left_s(deadline)):
            raise stays(Receipt(self._publisher_id, future.sequence, 0))
        if future.done() and isinstance(error := future.exception(), OutboxError):
            raise error

    def close(self) -> None:
        """
        Wait for what is on its way, as long as the limits say, and end the threads.
        """
        self.buffer.close()
        try:
            # Also while another caller does: ending the thread under it would cut its wait short.
            wait(self.buffer.pending().values(), self._limits.close_timeout_s)
        finally:
            self._thread.stop()
            if self.journal is not None:
                self.journal.close(self._limits.close_timeout_s)

    def _is_full(self, size: int) -> bool:
        return (self.journal is not None and self.journal.is_full(size)) or self.buffer.is_full(size)

    def _make_room(self, size: int, deadline: float | None) -> None:
        buffer = self.buffer
        if not self.is_current:
            buffer.room.wait(lambda: buffer.is_closed or not self._is_full(size), deadline)
        buffer.check_open()
        if self.journal is not None:
            self.journal.check_room(size)

    # -- the thread's side --------------------------------------------------------------------

    def confirm(self, messages: Sequence[Message]) -> None:
        """
        Hear of messages that the broker has.
        """
        if self.journal is not None:
            self.journal.settle(messages)
            # Before they leave the buffer, so that resubmit() finds each in one of the two.
            self._confirmed.update((message.sequence, message.attempts) for message in messages)
            while len(self._confirmed) > self._limits.span:
                self._confirmed.popitem(last=False)
        self.buffer.confirm(messages)

    def fail(self, sequence: int, error: DedupError) -> None:
        """
        Hear of a message that was given up.
        """
        if self.journal is not None:
            self.journal.fail(sequence, error)
        self.buffer.fail(sequence, error)
