"""
Send what applications have enqueued, each message under a number that its row has before it is sent.

Theory of operation
-------------------
One session holds the outbox (a file lock, or the database's advisory lock) and one connection to the broker. Each turn is
one transaction: delete what the broker has confirmed, keep what it refused with the reason, and give numbers to what was
committed meanwhile. Then it reads and sends the numbered rows, the lowest first, as far as the `Gate` allows.

    a crash                          the next session
    before the numbers are committed gives other numbers: nothing was sent
    after that, sent or not          sends again under the same numbers; the shim drops what it had
    after the confirm                the same
    after the deletion               nothing

A session never mends itself: when the outbox or the registration fails it ends, and the next one begins as after a crash.
The connection to the broker is made again for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, frozen

from dedup.amqp091.endpoints import Endpoints
from dedup.core.identity import clock_base, validate_publisher_id
from dedup.core.registration import Registration
from dedup.core.sender import Sender
from dedup.core.sending import Message, SenderSettings
from dedup.core.window import WINDOW_SIZE
from dedup.errors import BrokerUnavailableError, DedupError
from dedup.outbox.gate import Gate
from dedup.outbox.messages import failure_of
from dedup.outbox.outlet import Outlet
from dedup.outbox.store import Failure, Store
from dedup.registrar import new_registration
from dedup.wire import Wire

#: Pause before the outbox is looked at again while nothing happens; it doubles from the first to the last; seconds.
_POLL_S_FIRST: Final = 0.02
_POLL_S_MAX: Final = 0.5


@frozen
class RelaySettings:
    """
    The limits of one relay.
    """

    window_size: int = WINDOW_SIZE
    buffer_bytes_max: int = 64 * 1024 * 1024
    body_bytes_max: int = 16 * 1024 * 1024
    confirm_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    #: Hold the publisher id at the broker, and get numbers from a registry; else they come from the clock.
    register: bool = True
    #: The broker's user, if publishers are bound to users.
    user_id: str | None = None
    #: End when everything is sent.
    until_empty: bool = False


@define
class Sent:
    """
    What a relay has done so far.
    """

    confirmed: int = 0
    failed: int = 0


class Relay:
    """
    One session.

    Args:
        store: Open, locked; the caller closes it.
        wire: What it sends over; the rows are encoded for it.
        url: The broker.
        publisher_id: Whose messages they are, for good.
        progress: Told after each transaction that changed something.

    Raises:
        OutboxError: the outbox belongs to another publisher id, or keeps messages of another protocol.
    """

    def __init__(
        self,
        store: Store,
        wire: Wire,
        url: str,
        publisher_id: str,
        settings: RelaySettings,
        *,
        progress: Callable[[Sent], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._publisher_id = validate_publisher_id(publisher_id)
        self._progress = progress
        self._span = span = settings.window_size // 2
        self._gate = Gate(span, settings.buffer_bytes_max)
        newest = store.bind(publisher_id, wire.name)
        self._outlet = Outlet(
            store,
            self._gate,
            wire,
            publisher_id,
            body_bytes_max=settings.body_bytes_max,
            fresh_above=newest,
            on_bad=self._on_failed,
        )
        #: New numbers are above it, and above all in the outbox; the registry's is known when the broker is.
        self._base = 0 if settings.register else clock_base(time.time_ns())
        self._registration: Registration | None = (
            new_registration(publisher_id, last=newest) if settings.register else None
        )
        self._news = threading.Condition()
        self._confirmed: list[int] = []
        self._failures: list[Failure] = []
        self._ended = False
        self._cause: BaseException | None = None
        self._thread = wire.thread(
            publisher_id,
            Endpoints(url, name=f"dedup outbox {publisher_id}"),
            Sender(
                SenderSettings(
                    publisher_id=publisher_id,
                    window_size=settings.window_size,
                    unconfirmed_max=span,
                    confirm_timeout_s=settings.confirm_timeout_s,
                    kept_max=0,
                )
            ),
            on_confirmed=self._on_confirmed,
            on_failed=self._on_failed,
            on_end=self._on_end,
            registration=self._registration,
            user_id=settings.user_id,
        )
        self.sent = Sent()

    def run(self, stopping: Callable[[], bool]) -> None:
        """
        Send until *stopping* says so, or until everything is sent if that is wanted.

        What is on its way when it stops stays numbered, for the next session.

        Raises:
            BrokerUnavailableError: no broker at first.
            OutboxUnavailableError: the database cannot be used now.
            OutboxError: it cannot be used at all.
            PublisherAlreadyRegisteredError, RegistryUnavailableError, FencedError: the publisher id cannot be held.
        """
        self._thread.start()
        try:
            self._thread.wait_opened(self._settings.connect_timeout_s, stopping)
            if self._registration is not None:
                self._base = self._registration.base
            pause_s = _POLL_S_FIRST
            while not stopping():
                busy = self._turn()
                if self._settings.until_empty and not busy and not len(self._gate):
                    return
                pause_s = _POLL_S_FIRST if busy else min(2 * pause_s, _POLL_S_MAX)
                with self._news:
                    self._news.wait_for(lambda: self._confirmed or self._failures or self._ended, pause_s)
                if self._ended:
                    raise self._cause or BrokerUnavailableError(self._thread.endpoints.describe())
            self._turn(claim=False)
        finally:
            self._thread.stop()

    # -- a turn -------------------------------------------------------------------------------

    def _turn(self, *, claim: bool = True) -> bool:
        """
        Write what has happened, read what may be sent, send it; return whether there was anything.
        """
        with self._news:
            confirmed, self._confirmed = self._confirmed, []
            failures, self._failures = self._failures, []
        claims = (
            claim and not self._outlet.waiting and len(self._gate) <= self._span and self._store.has_new()
        )
        claimed = 0
        if confirmed or failures or claims:
            with self._store.transaction():
                self._store.delete(confirmed)
                self._store.fail(failures)
                claimed = self._store.claim(self._base) if claims else 0
            self._leave(confirmed, failures)
        sent = self._feed() if claim else False
        return bool(confirmed or failures or claimed or sent)

    def _leave(self, confirmed: Sequence[int], failures: Sequence[Failure]) -> None:
        for sequence in (*confirmed, *(failure.sequence for failure in failures)):
            self._gate.leave(sequence)
        if confirmed or failures:
            self.sent.confirmed += len(confirmed)
            self.sent.failed += len(failures)
            self._progress(self.sent)

    def _feed(self) -> bool:
        """
        Read numbered rows when none is at hand, and hand on what the gate lets out; return whether there was anything.
        """
        read = not self._outlet.waiting and self._outlet.read()
        return self._outlet.hand_on(self._thread.post) or read

    # -- the publishing thread's side ---------------------------------------------------------

    def _on_confirmed(self, messages: Sequence[Message]) -> None:
        with self._news:
            self._confirmed += [message.sequence for message in messages]
            self._news.notify()

    def _on_failed(self, sequence: int, error: DedupError) -> None:
        failure = failure_of(sequence, error)
        if failure is not None:
            with self._news:
                self._failures.append(failure)
                self._news.notify()

    def _on_end(self, cause: BaseException | None) -> None:
        with self._news:
            self._ended, self._cause = True, cause
            self._news.notify()
