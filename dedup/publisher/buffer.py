"""Hold what has no fate yet: who waits for each message, and for room beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from dedup.core.failures import closed, fenced
from dedup.core.identity import Receipt
from dedup.core.sending import Message
from dedup.errors import DedupError, FencedError, PublisherClosedError
from dedup.publisher.deadlines import left_s


class Publication(Future[Receipt]):
    """
    The future of one message: its number, and the bytes it holds meanwhile. It cannot be cancelled.
    """

    sequence: int
    size: int

    def __init__(self, sequence: int = 0, size: int = 0) -> None:
        super().__init__()
        self.sequence, self.size = sequence, size
        self.set_running_or_notify_cancel()


class Room:
    """
    Where callers wait for room in a buffer; one for other callers than threads waits, and tells, otherwise.
    """

    def __init__(self) -> None:
        #: Guards the buffer; held when :meth:`wait` and :meth:`tell` are called.
        self.lock = threading.Lock()
        self._news = threading.Condition(self.lock)

    def wait(self, is_over: Callable[[], bool], deadline: float | None) -> None:
        """
        Wait until there is room, or will never be, or the time is up: then the sender gives the message up, with a receipt
        like any other.
        """
        self._news.wait_for(is_over, left_s(deadline))

    def tell(self) -> None:
        """
        Tell whoever waits that there may be room now, or will never be.
        """
        self._news.notify_all()


class Buffer:
    """
    The messages of one publisher that have no fate yet, as the futures of their callers.

    Args:
        publisher_id: for the receipts.
        count_max: messages in it.
        bytes_max: bytes of them; a larger message has it for itself.
        room: where callers wait.
    """

    def __init__(self, publisher_id: str, count_max: int, bytes_max: int, room: Room) -> None:
        #: Held while a message is let in, numbered and handed on: they go out in that order.
        self.lock = room.lock
        self.room = room
        #: Nothing is let in any more.
        self.is_closed = False
        self._ended: BaseException | None = None
        self._publisher_id = publisher_id
        self._count_max, self._bytes_max = count_max, bytes_max
        self._futures: dict[int, Publication] = {}
        self._bytes = 0

    def check_open(self) -> None:
        """
        Refuse messages when nobody would send them.

        Raises:
            PublisherClosedError: it was closed, or its thread has died.
            FencedError: a newer owner of the publisher id has ended it.
        """
        if isinstance(self._ended, FencedError):
            raise fenced(self._ended)
        if self.is_closed:
            raise PublisherClosedError("this publisher is closed; make a new one") from self._ended

    # -- with the lock held -------------------------------------------------------------------

    def is_full(self, size: int) -> bool:
        """
        Say whether a message of this size has to wait.
        """
        if not self._futures:
            return False
        return len(self._futures) >= self._count_max or self._bytes + size > self._bytes_max

    def add(self, future: Publication) -> None:
        """
        Let a message in, under its number.
        """
        self._futures[future.sequence] = future
        self._bytes += future.size

    def get(self, sequence: int) -> Publication | None:
        """
        Return the future of a message that is on its way; None when it is not.
        """
        return self._futures.get(sequence)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._futures

    # -- without it ---------------------------------------------------------------------------

    def pending(self) -> dict[int, Publication]:
        """
        Return what is in it now, by number.
        """
        with self.lock:
            return dict(self._futures)

    def close(self) -> None:
        """
        Let nothing in any more.
        """
        with self.lock:
            self.is_closed = True
            self.room.tell()

    def tell_of_room(self) -> None:
        """
        Tell that there is room beside the buffer: in the outbox.
        """
        with self.lock:
            self.room.tell()

    def confirm(self, messages: Sequence[Message]) -> None:
        """
        Tell the callers of messages that the broker has them.
        """
        settled = []
        with self.lock:
            for message in messages:
                future = self._take(message.sequence)
                if future is not None:
                    settled.append((future, message))
            self.room.tell()
        for future, message in settled:
            future.set_result(Receipt(self._publisher_id, message.sequence, message.attempts))

    def fail(self, sequence: int, error: DedupError) -> None:
        """
        Tell the caller of a message that it is given up.
        """
        with self.lock:
            future = self._take(sequence)
            self.room.tell()
        if future is not None:
            future.set_exception(error)

    def end(self, cause: BaseException | None) -> None:
        """
        Leave nobody waiting for a thread that is no more; *cause* is what ended it, unless it was stopped.
        """
        with self.lock:
            self._ended, self.is_closed = cause, True
            left, self._futures = self._futures, {}
            self._bytes = 0
            self.room.tell()
        for sequence, future in left.items():
            error = closed(
                Receipt(self._publisher_id, sequence, 1), cause if isinstance(cause, DedupError) else None
            )
            error.__cause__ = cause
            future.set_exception(error)

    def _take(self, sequence: int) -> Publication | None:
        future = self._futures.pop(sequence, None)
        if future is not None:
            self._bytes -= future.size
        return future
