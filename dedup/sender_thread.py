"""
Drive a sender in a thread of its own, whatever the protocol.

The thread turns what its connection hears and what the callers ask into events of the machine, once per turn of the loop, and
does what the machine says. A protocol's driver is a subclass: how to wait, to connect, to send and to end.
"""

from __future__ import annotations

import abc
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from dedup.core import sending
from dedup.core.in_band import decode_receipts
from dedup.core.questions import Told
from dedup.core.registration import Registration
from dedup.core.sender import Sender
from dedup.core.sending import Effect, Event, Message
from dedup.errors import (
    BrokerUnavailableError,
    DedupError,
    PublisherAlreadyRegisteredError,
    QuestionFormatError,
    RegistryUnavailableError,
)

if TYPE_CHECKING:
    from dedup.registrar import Registrar, Timers

    R = TypeVar("R", bound=Registrar)

_LOG = logging.getLogger("dedup.publisher")
#: Time a broker gets to answer an orderly close; seconds.
CLOSE_TIMEOUT_S = 1.0
#: How often whoever waits for a broker looks whether that is still wanted; seconds.
_LOOK_S = 0.5


class SenderThread(abc.ABC):
    """
    Own the connection of one sender, in a thread.

    Args:
        publisher_id: named in every log line.
        endpoints: where to connect.
        sender: the machine; nobody else touches it.
        on_confirmed: told of messages the broker has; called in the thread.
        on_failed: told of a sequence and its error; called in the thread.
        on_end: called once, last, with what ended the thread, or None when it was stopped.
        on_told: told what shims say of messages; called in the thread.
        registration: holds the publisher id on each connection before it publishes; None: numbers are the caller's own.
        user_id: the broker's user, for the registry.
    """

    def __init__(
        self,
        publisher_id: str,
        endpoints: Any,
        sender: Sender,
        *,
        on_confirmed: Callable[[Sequence[Message]], None],
        on_failed: Callable[[int, DedupError], None],
        on_end: Callable[[BaseException | None], None],
        on_told: Callable[[Told], None] | None = None,
        registration: Registration | None = None,
        user_id: str | None = None,
    ) -> None:
        self.endpoints = endpoints
        #: Done when the first channel is open, or failed when none can be.
        self.first_opened: Future[None] = Future()
        self._publisher_id = publisher_id
        self._sender = sender
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._on_end = on_end
        self._on_told = on_told
        self._registration = registration
        self._user_id = user_id
        self._registrar: Registrar | None = None
        self._posted: deque[Message | Event] = deque()
        #: A wake-up is under way: whoever posts next need not send another.
        self._awake = False
        self._events: deque[Event] = deque()
        #: What failed in this turn, for one line in the log.
        self._failures: list[sending.Failed] = []
        #: What ended it, unless stop() did.
        self._cause: BaseException | None = None
        #: When the end is near: no answer is awaited after this.
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="dedup-publisher", daemon=True)

    # -- any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """
        Begin to connect.
        """
        self._thread.start()

    def wait_opened(self, timeout_s: float, stopping: Callable[[], bool] = lambda: False) -> None:
        """
        Wait for the first channel, until *stopping* says that nobody needs it any more.

        Raises:
            BrokerUnavailableError: no host answered in time.
            PublisherAlreadyRegisteredError, RegistryUnavailableError: the publisher id cannot be held.
            ConfigError: every host refused the login.
        """
        end = time.monotonic() + timeout_s
        while (left_s := end - time.monotonic()) > 0 and not stopping():
            if wait((self.first_opened,), min(left_s, _LOOK_S)).done:
                break
        if stopping():
            return
        try:
            self.first_opened.result(0)
        except TimeoutError as error:
            for failure in list(self.endpoints.failures.values()):
                if isinstance(failure, RegistryUnavailableError | PublisherAlreadyRegisteredError):
                    raise failure from error
            raise BrokerUnavailableError(
                f"no broker within {timeout_s:g} s: {self.endpoints.describe()}; "
                "check that it runs and that host and port are right"
            ) from error

    def post(self, item: Message | Event) -> None:
        """
        Hand over a new message or an event; messages go out in the order of their posts.
        """
        self._posted.append(item)
        if not self._awake:
            self._awake = True
            self._wake()

    def stop(self) -> None:
        """
        Fail what is unconfirmed, close the connection and wait for the end, in bounded time.
        """
        self.post(sending.Stopped())
        self._thread.join(2 * CLOSE_TIMEOUT_S)

    @property
    def is_current(self) -> bool:
        """
        Whether the caller runs in this thread: it must not wait for it.
        """
        return threading.current_thread() is self._thread

    # -- holding the publisher id ---------------------------------------------------------------

    def _hold_by(self, registrar: Callable[..., R], timers: Timers) -> R | None:
        """
        Have each connection hold the publisher id before it publishes, if that is wanted; return what does.
        """
        if self._registration is None:
            return None
        held = registrar(
            self._publisher_id,
            self._registration,
            timers,
            user_id=self._user_id,
            on_ready=self._open_channel,
            on_retry=self._lose,
            on_end=self._end,
            on_receipts=self._on_receipts,
        )
        self._registrar = held
        return held

    def _prepare(self, connection: Any) -> None:
        """
        Hold the publisher id on *connection*, then open what publishes.
        """
        if self._registrar is None or self._registrar.is_ready:
            self._open_channel(connection)
        else:
            self._registrar.begin(connection)

    # -- what a protocol's driver does ----------------------------------------------------------

    @abc.abstractmethod
    def _wake(self) -> None:
        """End :meth:`_wait`; called in any thread."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Make ready to wait; called first in the thread."""

    @abc.abstractmethod
    def _wait(self, until: float | None) -> None:
        """Wait for the connection, a wake-up or a time of the monotonic clock, and queue what happened as events."""

    @abc.abstractmethod
    def _send(self, messages: Sequence[Message]) -> None:
        """Publish these in this order; nothing when the channel is gone: its loss is queued, or on its way."""

    @abc.abstractmethod
    def _open(self) -> None:
        """Open a channel: on the connection if it lives, else on one to the next host."""

    @abc.abstractmethod
    def _open_channel(self, connection: Any) -> None:
        """Open what publishes on *connection*, which holds the publisher id."""

    @abc.abstractmethod
    def _abandon(self) -> None:
        """Have nothing more to do with the connection there is."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Begin to end the connection in order."""

    @property
    @abc.abstractmethod
    def _is_closed(self) -> bool:
        """Whether there is no connection, or it has ended."""

    @abc.abstractmethod
    def _release(self) -> None:
        """Free sockets and descriptors, whatever state they are in."""

    # -- the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._begin()
            self._turn()
            while not self._is_over():
                self._wait(self._until())
                self._turn()
        except BaseException as error:  # noqa: BLE001 - whatever it is, callers must not hang
            _LOG.exception("publisher_thread_died publisher_id=%r", self._publisher_id)
            self._cause = error
        finally:
            if not self.first_opened.done():
                self.first_opened.set_exception(
                    self._cause or BrokerUnavailableError(self.endpoints.describe())
                )
            self._on_end(self._cause)
            try:
                self._release()
            except Exception:  # noqa: BLE001 - the thread is ending; nobody waits for it
                _LOG.warning("publisher_release_failed publisher_id=%r", self._publisher_id, exc_info=True)

    def _is_over(self) -> bool:
        return self._stop_at is not None and (self._is_closed or time.monotonic() >= self._stop_at)

    def _until(self) -> float | None:
        times = [time for time in (self._sender.wake_at(), self._stop_at) if time is not None]
        return min(times, default=None)

    def _turn(self) -> None:
        """
        Tell the machine everything that happened, and do what it says.
        """
        now = time.monotonic()
        self._take_posted()
        self._events.append(sending.Tick())
        while self._events:
            for effect in self._sender.handle(self._events.popleft(), now):
                self._perform(effect)
        if self._failures:
            failures, self._failures = self._failures, []
            first = failures[0]
            self._log(
                logging.WARNING,
                "messages_failed",
                count=len(failures),
                sequence=first.sequence,
                error=str(first.error),
            )

    def _take_posted(self) -> None:
        self._awake = False
        messages: list[Message] = []
        while self._posted:
            item = self._posted.popleft()
            if isinstance(item, Message):
                messages.append(item)
                continue
            if messages:
                self._events.append(sending.Submitted(messages))
                messages = []
            self._events.append(item)
            if isinstance(item, sending.Stopped):
                self._start_closing()
        if messages:
            self._events.append(sending.Submitted(messages))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case sending.Send():
                self._send(effect.messages)
            case sending.Confirmed():
                self._on_confirmed(effect.messages)
            case sending.Failed():
                self._failures.append(effect)
                self._on_failed(effect.sequence, effect.error)
            case sending.Open():
                self._open()
            case sending.Drop():
                self._log(logging.WARNING, "connection_dropped", reason=effect.reason)
                self._abandon()
            case sending.Notice():
                self._log(logging.WARNING, effect.name, **effect.facts)

    # -- what drivers tell ----------------------------------------------------------------------

    def _opened(self) -> None:
        """
        Tell that the channel asked for is there.
        """
        self.endpoints.failures.clear()
        self._log(logging.INFO, "connected")
        self._events.append(sending.Opened())
        if not self.first_opened.done():
            self.first_opened.set_result(None)

    def _refuse(self, code: int, text: str) -> None:
        """
        Tell that the broker closed the channel for something it was sent.
        """
        self._log(logging.WARNING, "refused", code=code, reason=text)
        self._events.append(sending.Refused(code, text, random.random()))

    def _lose(self, error: BaseException) -> None:
        """
        Tell that the connection is gone, or could not be made.
        """
        reason = self.endpoints.fail(error)
        if self._stop_at is None:
            self._log(logging.WARNING, "connection_lost", reason=reason)
        self._events.append(sending.Lost(reason, random.random()))
        hopeless = self.endpoints.hopeless()
        if hopeless and not self.first_opened.done():
            self.first_opened.set_exception(hopeless)

    def _end(self, error: DedupError) -> None:
        """
        Fail everything with *error*, close and end the thread.
        """
        self._log(logging.ERROR, "registration_ended", error=str(error))
        self._cause = error
        if not self.first_opened.done():
            self.first_opened.set_exception(error)
        self._events.append(sending.Stopped(error))
        self._start_closing()

    def _start_closing(self) -> None:
        self._stop_at = time.monotonic() + CLOSE_TIMEOUT_S
        self._close()

    def _blocked(self, reason: str) -> None:
        """
        Tell that the broker takes no publishes for now.
        """
        self._log(logging.WARNING, "blocked", reason=reason)
        self._events.append(sending.Blocked(reason))

    def _unblocked(self) -> None:
        """
        Tell that it takes them again.
        """
        self._log(logging.INFO, "unblocked")
        self._events.append(sending.Unblocked())

    def _on_receipts(self, body: bytes) -> None:
        """
        Hand receipts on; what else somebody writes into the publisher's queue means nothing.
        """
        if self._on_told is None:
            return
        try:
            for told in decode_receipts(body, self._publisher_id):
                self._on_told(told)
        except QuestionFormatError as error:
            self._log(logging.WARNING, "receipts_dropped", reason=str(error))
        except Exception:  # noqa: BLE001 - the caller's own; messages must go on
            _LOG.exception("publisher_receipts_callback_failed publisher_id=%r", self._publisher_id)

    def _log(self, level: int, event: str, **facts: Any) -> None:
        if _LOG.isEnabledFor(level):
            fields = "".join(f" {name}={value!r}" for name, value in facts.items())
            host = self.endpoints.name()
            _LOG.log(level, "publisher_%s publisher_id=%r host=%s%s", event, self._publisher_id, host, fields)
