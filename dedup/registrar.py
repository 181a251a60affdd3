"""
Register a publisher id, whatever the protocol: perform what a :class:`dedup.core.registration.Registration` decides.

The clock, the timers and the reading of what comes are the same everywhere. A protocol's driver is a subclass: how to declare the
exclusive queue, and how to ask the registry.
"""

from __future__ import annotations

import abc
import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from dedup.core import registration as steps
from dedup.core.in_band import is_receipts
from dedup.core.registration import HELD_GRACE_S, Registration
from dedup.core.registry import Request, decode_answer, lock_queue
from dedup.errors import DedupError, RegistryFormatError

#: How long a registry may take to answer; seconds. Requests live no longer than that.
ANSWER_TIMEOUT_S: Final = 2.0
#: How often an owner asks whether it is still the newest, on average; seconds. A newer one tells it at once, as a rule.
RENEW_EVERY_S: Final = 600.0
#: The same, as long as another connection has the lock, for which a newer one's word would be.
UNLOCKED_EVERY_S: Final = 5.0
#: Of the exclusive queue; what is in it are hints and receipts, and a holder that does not read must cost little.
LOCK_ARGUMENTS: Final = {"x-queue-type": "classic", "x-max-length": 1_000}


class Timers(Protocol):
    """
    What calls back later, in the connection's thread; pika's loops do.
    """

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Any:
        """Call *callback* after so many seconds; return what cancels that."""

    def remove_timeout(self, timeout: Any, /) -> None:
        """Forget a call that was not made."""


def describe_holder() -> str:
    """
    Say who this process is, for whoever finds its publisher id taken.
    """
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"process {os.getpid()} on {socket.gethostname()}, since {since}"


def new_registration(
    publisher_id: str, *, takeover: bool = False, last: int = 0, held_grace_s: float = HELD_GRACE_S
) -> Registration:
    """
    Return the registration of a new owner: nobody else has its nonce.
    """
    return Registration(
        publisher_id,
        uuid.uuid4().hex,
        describe_holder(),
        takeover=takeover,
        last=last,
        held_grace_s=held_grace_s,
    )


class Registrar(abc.ABC):
    """
    Hold a publisher id on one connection after the other; everything is called in the connection's thread.

    Args:
        publisher_id: valid.
        registration: the machine.
        timers: of the connections' loop.
        on_ready: told that the connection may publish.
        on_retry: told why this try failed; begin() again after a pause.
        on_end: told why nothing more may be published.
        on_receipts: given the message in which a shim tells what became of messages.
    """

    def __init__(
        self,
        publisher_id: str,
        registration: Registration,
        timers: Timers,
        *,
        on_ready: Callable[[Any], None],
        on_retry: Callable[[DedupError], None],
        on_end: Callable[[DedupError], None],
        on_receipts: Callable[[bytes], None] | None = None,
    ) -> None:
        self._lock_queue = lock_queue(publisher_id)
        self._registration = registration
        self._on_ready = on_ready
        self._on_retry = on_retry
        self._on_end = on_end
        self._on_receipts = on_receipts
        self._connection: Any = None
        self._timers = timers
        self._pending: list[Any] = []
        #: This connection may publish.
        self.is_ready = False

    def begin(self, connection: Any) -> None:
        """
        Try to hold the id on *connection*, new or not.
        """
        self._connection = connection
        self._tell(steps.Connected())

    def end(self) -> None:
        """
        Take note that the connection is gone.
        """
        self._connection = None
        self.is_ready = False
        for timer in self._pending:
            self._timers.remove_timeout(timer)
        self._pending.clear()
        self._forget_link()
        self._tell(steps.Disconnected())

    # -- what a protocol's driver does ----------------------------------------------------------

    @abc.abstractmethod
    def _lock(self) -> None:
        """Declare the exclusive queue and listen to it; Locked, Held or Barred follows."""

    @abc.abstractmethod
    def _request(self, request: Request) -> None:
        """Send *request* to the registry; what comes back goes to :meth:`_hear_registry`."""

    @abc.abstractmethod
    def _forget_link(self) -> None:
        """Have nothing more to do with whatever the connection that is gone had open."""

    # -- the machine --------------------------------------------------------------------------

    def _tell(self, event: steps.Event) -> None:
        for effect in self._registration.handle(event, time.monotonic()):
            match effect:
                case steps.Lock():
                    self._lock()
                case steps.Ask(request):
                    self._request(request)
                    self._later(ANSWER_TIMEOUT_S, partial(self._on_silence, request.id))
                case steps.Ready():
                    self._ready()
                case steps.Retry(error):
                    self._on_retry(error)
                case steps.End(error):
                    self._on_end(error)

    def _ready(self) -> None:
        assert self._connection is not None
        self.is_ready = True
        self._look_again()
        self._on_ready(self._connection)

    def _look_again(self) -> None:
        """
        Have the registry asked now and then, each owner at times of its own.
        """
        every_s = RENEW_EVERY_S if self._registration.is_locked else UNLOCKED_EVERY_S
        self._later(every_s * random.uniform(0.75, 1.25), self._on_time_to_look)

    def _on_time_to_look(self) -> None:
        self._look_again()
        self._tell(steps.Nudged())

    def _on_silence(self, asked: int) -> None:
        self._tell(steps.Unanswered(f"none within {ANSWER_TIMEOUT_S:g} s", asked))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        timer: list[Any] = []

        def run() -> None:
            self._pending.remove(timer[0])
            act()

        timer.append(self._timers.call_later(seconds, run))
        self._pending.append(timer[0])

    # -- what comes ---------------------------------------------------------------------------

    def _hear_registry(self, body: bytes) -> None:
        """
        Take an answer of the registry.
        """
        try:
            answer = decode_answer(body)
        except RegistryFormatError as error:
            self._tell(steps.Unanswered(f"not understood: {error}"))
        else:
            self._tell(steps.Answered(answer))

    def _hear_lock(self, body: bytes) -> None:
        """
        Take a hint or receipts from the lock's queue; anybody can write there, so what is neither means nothing.
        """
        if is_receipts(body):
            if self._on_receipts is not None:
                self._on_receipts(body)
            return
        try:
            answer = decode_answer(body)
        except RegistryFormatError:
            return
        self._tell(steps.Told(answer.record.owner))
