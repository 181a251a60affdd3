"""
Keep what a publisher sends in an outbox: a message is durable before it is sent, and deleted after it is confirmed.

Theory of operation
-------------------
One thread owns the store. It takes what was submitted, confirmed and given up meanwhile, writes all of it in one
transaction, and only then hands the messages on: many submits cost one fsync, and under load there are more of them in
each. Confirmed rows go with the next transaction, or on their own after a moment.

    submit -> put() -> [committed] -> gate -> sender -> settle() -> [deleted]
                                                    +-> fail()   -> [kept, with the reason]

A crash leaves the rows that were not deleted. The next start sends them again first, under their own numbers, in their
order; what the broker had is a duplicate to the shim, which drops it. For that the `Gate` keeps everything that is sent
within half a window of the oldest row.

A transaction that fails changes nothing. The messages that were to be kept by it fail with the reason, and were never
sent; what was confirmed or given up stays noted and goes with a later one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from dedup.core.sending import Message
from dedup.errors import DedupError, OutboxError, OutboxFullError, OutboxUnavailableError
from dedup.outbox.gate import Gate
from dedup.outbox.messages import failure_of, put_of
from dedup.outbox.outlet import Outlet, hand_on
from dedup.outbox.store import Failure, Store
from dedup.wire import Wire

_LOG = logging.getLogger("dedup.publisher")
#: Confirmed rows wait so long for a transaction to go with; seconds.
_LINGER_S: Final = 0.02
#: After a transaction that failed, deletions are tried again; seconds.
_PAUSE_S: Final = 0.5
#: Messages of one transaction.
_GROUP_MAX: Final = 4096


class Journal:
    """
    The outbox of one publisher.

    Args:
        store: Open, locked; the journal closes it.
        wire: What it sends over; the rows are encoded for it.
        publisher_id: Whose it is.
        span: Half of the window.
        rows_max, bytes_max: What the outbox may hold, failed messages included.
        buffer_bytes_max: Bytes of messages in the sender's hands.
        body_bytes_max: Larger ones that somebody put there are not sent.
        on_failed: Told of a message that could not be kept; called in the journal's thread.
        on_room: Told that rows are gone; called in the journal's thread.

    Raises:
        OutboxError: the outbox is another publisher's, keeps messages of another protocol, or cannot be used.
    """

    def __init__(
        self,
        store: Store,
        wire: Wire,
        publisher_id: str,
        *,
        span: int,
        rows_max: int,
        bytes_max: int,
        buffer_bytes_max: int,
        body_bytes_max: int,
        on_failed: Callable[[int, DedupError], None],
        on_room: Callable[[], None],
    ) -> None:
        self._store = store
        self._publisher_id = publisher_id
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._on_failed, self._on_room = on_failed, on_room
        self._post: Callable[[Message], None]
        self._gate = Gate(span, buffer_bytes_max)
        store.bind(publisher_id, wire.name)
        with store.transaction():
            while store.claim(0):  # what an operator lets be sent anew
                pass
        totals = store.totals()
        #: The highest number given so far; new ones are above it.
        self.newest = totals.newest
        #: What an earlier process left ends here.
        self._backlog_end = store.newest_numbered()
        self._outlet = Outlet(
            store,
            self._gate,
            wire,
            publisher_id,
            body_bytes_max=body_bytes_max,
            fresh_above=self._backlog_end,
            on_bad=self.fail,
        )
        #: Rows that are there or about to be, and their bytes; those of them that wait for no confirm any more.
        self._rows, self._failed_rows = totals.rows, totals.failed
        self._bytes = totals.bytes + totals.rows * wire.stamp_bytes_max
        self._failed: set[int] = set()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._puts: deque[Message] = deque()
        #: What is in the transaction of now.
        self._writing: list[Message] = []
        #: Everything up to here was written, or refused.
        self._answered = 0
        self._answer = threading.Condition(self._lock)
        self._settled: list[Message] = []
        self._failures: list[tuple[int, DedupError]] = []
        self._closing = self._failing = False
        self._broken: BaseException | None = None
        self._committed: deque[Message] = deque()
        self._thread = threading.Thread(target=self._run, name="dedup-outbox", daemon=True)

    # -- any thread ---------------------------------------------------------------------------

    @classmethod
    def open(cls, file: str | os.PathLike[str], wire: Wire, publisher_id: str, **options: Any) -> Self:
        """
        Return the journal of a file, which is made where there is none; it is this process' until it is closed.

        Raises:
            OutboxError: it is in use, cannot be written, is another publisher's or of another protocol, damaged, or something else.
            ConfigError: *file* is no path.
        """
        from dedup.outbox.sqlite import SQLiteStore, file_of  # noqa: PLC0415 only who has an outbox needs SQLite

        store = SQLiteStore.own(file_of(file))
        try:
            return cls(store, wire, publisher_id, **options)
        except BaseException:
            store.close()
            raise

    def start(self, post: Callable[[Message], None]) -> None:
        """
        Begin with what an earlier process left; *post* hands a message to the sender.
        """
        self._post = post
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """
        Whether the caller runs in this thread: it must not wait for it.
        """
        return threading.current_thread() is self._thread

    def put(self, message: Message) -> None:
        """
        Keep a new message, then hand it on; they come in the order of their numbers.
        """
        with self._lock:
            self._rows += 1
            self._bytes += message.size
            self.newest = message.sequence
            self._puts.append(message)
            self._work.notify()

    def wait_kept(self, sequence: int, timeout_s: float | None) -> bool:
        """
        Wait until a message that was put is committed, or refused; return False when the time is up before.
        """
        with self._lock:
            return self._answer.wait_for(
                lambda: self._answered >= sequence or self._broken is not None, timeout_s
            )

    def settle(self, messages: Sequence[Message]) -> None:
        """
        Forget messages that the broker has, soon.
        """
        with self._lock:
            self._settled += messages
            self._work.notify()

    def fail(self, sequence: int, error: DedupError) -> None:
        """
        Keep a message that was given up, with the reason; what a publisher that ends gives up stays to be sent.
        """
        with self._lock:
            self._failures.append((sequence, error))
            self._work.notify()

    def is_full(self, size: int) -> bool:
        """
        Say whether a message of this size has to wait.

        Raises:
            OutboxFullError: waiting does not help: nothing in the outbox is on its way.
            OutboxError: the outbox has failed for good.
        """
        with self._lock:
            if self._broken is not None:
                raise OutboxError(f"the outbox has failed: {self._broken}") from self._broken
            full = self._rows >= self._rows_max or self._bytes + size > self._bytes_max
            moving = self._rows - self._failed_rows
        if full and not moving:
            raise OutboxFullError(
                f"the outbox {self._store.name} is full of messages that failed; look at them with 'dedup outbox show', then "
                "retry or discard them, or raise outbox_rows_max or outbox_bytes_max"
            )
        return full

    def check_room(self, size: int) -> None:
        """
        Refuse a message that does not fit.

        Raises:
            OutboxFullError: it does not.
        """
        if self.is_full(size):
            raise OutboxFullError(
                f"the outbox {self._store.name} had no room in time: {self._rows} messages, {self._bytes} bytes; the message "
                "was not kept. Is the broker reachable? Raise outbox_rows_max or outbox_bytes_max to keep more"
            )

    def close(self, timeout_s: float) -> None:
        """
        Write what is still to be written, close the store, free the lock; the rest stays for the next start.
        """
        with self._lock:
            self._closing = True
            self._work.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        else:
            self._store.close()

    # -- the journal's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._turn()
            while self._puts or self._settled or self._failures:
                self._turn(last=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, callers must not hang
            _LOG.exception("outbox_thread_died publisher_id=%r", self._publisher_id)
            self._break(error)
        finally:
            self._store.close()

    def _wait(self) -> bool:
        """
        Wait for work; return False when it is time to end.
        """
        with self._lock:
            self._work.wait_for(
                lambda: self._closing or self._puts or self._settled or self._failures or self._has_backlog()
            )
            if not (self._puts or self._failures or self._holds_back() or self._closing):
                self._work.wait_for(lambda: self._puts or self._failures or self._closing, _LINGER_S)
            return not self._closing

    def _has_backlog(self) -> bool:
        """
        Say whether an earlier process left more than was read so far.
        """
        return not self._outlet.waiting and self._outlet.read_up_to < self._backlog_end

    def _holds_back(self) -> bool:
        return bool(self._outlet.waiting or self._committed) or self._has_backlog()

    def _turn(self, *, last: bool = False) -> None:
        with self._lock:
            puts = self._writing = [self._puts.popleft() for _ in range(min(len(self._puts), _GROUP_MAX))]
            settled, self._settled = self._settled, []
            failures, self._failures = self._failures, []
        try:
            self._write(puts, settled, failures)
        except OutboxError as error:
            self._refuse(puts, error)
            if not last:
                with self._lock:
                    self._settled = settled + self._settled
                    self._failures = failures + self._failures
                    self._pause()
        else:
            self._failing = False
            for message in puts:
                self._gate.enter(message.sequence)
                self._committed.append(message)
            self._answer_up_to(puts)
        self._writing = []
        if not last:
            self._feed()

    def _write(
        self, puts: list[Message], settled: list[Message], failures: list[tuple[int, DedupError]]
    ) -> None:
        """
        Write everything in one transaction, then count; when it fails nothing was written.
        """
        failed = [found for found in (failure_of(*one) for one in failures) if found is not None]
        if not (puts or settled or failed):
            return
        with self._store.transaction():
            self._store.delete(message.sequence for message in settled)
            self._store.fail(failed)
            if puts:
                self._store.put([put_of(message) for message in puts])
        self._leave(settled, failed)

    def _leave(self, settled: list[Message], failed: list[Failure]) -> None:
        with self._lock:
            for message in settled:
                if message.sequence in self._failed:  # its caller has retried it
                    self._failed.discard(message.sequence)
                    self._failed_rows -= 1
                elif message.sequence in self._gate:
                    self._gate.leave(message.sequence)
                else:  # confirmed, contradicted and confirmed again
                    continue
                self._rows -= 1
                self._bytes -= message.size
            for one in failed:
                if one.sequence in self._gate:
                    self._gate.leave(one.sequence)
                    self._failed.add(one.sequence)
                    self._failed_rows += 1
        if settled or failed:
            self._on_room()

    def _refuse(self, puts: list[Message], error: OutboxError) -> None:
        with self._lock:
            self._rows -= len(puts)
            self._bytes -= sum(message.size for message in puts)
        self._warn(error)
        for message in puts:
            self._on_failed(message.sequence, error)
        self._answer_up_to(puts)
        self._on_room()

    def _answer_up_to(self, puts: list[Message]) -> None:
        if puts:
            with self._lock:
                self._answered = puts[-1].sequence
                self._answer.notify_all()

    def _pause(self) -> None:
        """
        Do not try again at once what can only fail, with the lock held; new messages are answered all the same.
        """
        if self._settled or self._failures or self._has_backlog():
            self._work.wait_for(lambda: self._puts or self._closing, _PAUSE_S)

    def _feed(self) -> None:
        """
        Hand on what the gate lets out: first what an earlier process left, then what is new.
        """
        while self._outlet.waiting or self._has_backlog():
            if not self._outlet.waiting and not self._read_backlog():
                return
            self._outlet.hand_on(self._post)
            if self._outlet.waiting:
                return
        hand_on(self._committed, self._gate, self._post)

    def _read_backlog(self) -> bool:
        """
        Read more of what an earlier process left; return False when that cannot be done now.
        """
        try:
            if not self._outlet.read(self._backlog_end):
                self._outlet.read_up_to = self._backlog_end
        except OutboxUnavailableError as error:
            self._warn(error)
            with self._lock:
                self._pause()
            return False
        return True

    def _warn(self, error: OutboxError) -> None:
        """
        Tell once that the outbox cannot be used, until it can again.
        """
        if not self._failing:
            _LOG.warning("outbox_unavailable publisher_id=%r error=%r", self._publisher_id, str(error))
        self._failing = True

    def _break(self, error: BaseException) -> None:
        """
        Leave nobody waiting for a thread that is no more.
        """
        with self._lock:
            self._broken = error
            left, self._puts = [*self._committed, *self._writing, *self._puts], deque()
            self._answer.notify_all()
        for message in left:
            self._on_failed(message.sequence, OutboxError(f"the outbox has failed: {error}"))
