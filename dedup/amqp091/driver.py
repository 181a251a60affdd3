"""
Drive one pure machine over two connections to one broker, from the first of them to the first failure.

Theory of operation
-------------------
Everything happens in the thread that calls :meth:`Driver.run`. Callbacks of the connections turn into
events of the machine; its effects are performed in order, one at a time. Calls to Redis are made in
place; when it cannot answer, the effect stays at the head of the line and is repeated with backoff
while the connections live on.

One connection publishes, another takes deliveries and acknowledges them: the broker stops reading from
a connection that publishes while it has an alarm, and acknowledgements must not wait.

Whatever goes wrong with either connection ends the session; both are cut, and the next session recovers.
There is no other way back.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import pika
from attrs import frozen
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError

from dedup.amqp091.failures import translate
from dedup.amqp091.links import Link
from dedup.core.backoff import delay_s
from dedup.errors import (
    BrokerUnavailableError,
    DedupError,
    PartialCommitError,
    StoreFencedError,
    StoreUnavailableError,
)

#: How often the machine is told that time passes; seconds.
TICK_S: Final = 0.1
#: How long an orderly close may take; seconds.
CLOSE_TIMEOUT_S: Final = 5.0
#: How often the loop is run to close the sockets of two connections, each of which may fail once on the way.
_ROUNDS_UNTIL_CUT: Final = 4
#: Longest pause before Redis is asked again; seconds.
STORE_PAUSE_S_MAX: Final = 5.0
#: How long it may go on failing when the session is to end; then it ends as if killed, which costs certainty and loses nothing; seconds.
STOP_PATIENCE_S: Final = 3.0
#: Of the failures of Redis in a row, one in so many is told.
_TOLD_EVERY: Final = 20
#: Replies that may be the fault of one message: precondition failed, frame, syntax, command and
#: unexpected-frame errors, internal error (AMQP 0.9.1, section 1.6).
_MESSAGE_CODES: Final = frozenset({406, 501, 502, 503, 505, 541})


class Outcome(Enum):
    """
    How a session ended.
    """

    STOPPED = "stopped"
    #: A connection was lost, or the broker took something away; try again.
    LOST = "lost"
    #: Another one has taken over.
    FENCED = "fenced"
    #: The broker closed the channel for something that was published.
    REFUSED = "refused"
    #: A commit was partial: this target needs confirms.
    PARTIAL = "partial"


@frozen
class Ended:
    """
    How a session ended, and why.
    """

    outcome: Outcome
    reason: str = ""
    #: It had settled something.
    progressed: bool = False
    error: BaseException | None = None


class Watching(Protocol):
    """
    Who is told what a session does; every callable is called in its thread.
    """

    @property
    def notice(self) -> Callable[[str, dict[str, Any]], None]:
        """Something an operator wants to know: the name of the log event, and its facts."""

    @property
    def step(self) -> Callable[[str, Any], None]:
        """Called with "before" or "after", and the effect: fault tests end the process here."""


class Driver(ABC):
    """
    One session of one machine; run() once.

    Args:
        parameters: pika's, for the one broker both connections go to.
        watching: Who is told.
    """

    #: How long Redis may go on failing until the session ends; seconds.
    store_patience_s: ClassVar[float] = float("inf")

    def __init__(self, parameters: pika.connection.Parameters, watching: Watching) -> None:
        self._parameters = parameters
        self._watching = watching
        self._loop = IOLoop()
        self._events: deque[Any] = deque()
        self._effects: deque[Any] = deque()
        self._pumping = False
        self._store_failures = 0
        self._store_failing_since_s = 0.0
        self._store_waits = False
        #: When somebody asked for the end; None: nobody has.
        self._stop_asked_s: float | None = None
        self._closing = False
        self._progressed = False
        self._ended: Ended | None = None

    # -- what each machine has of its own ---------------------------------------------------------

    @abstractmethod
    def _open(self) -> None:
        """
        Begin to connect.
        """

    @abstractmethod
    def _links(self) -> Sequence[Link | None]:
        """
        Return the connections there are, in the order in which they are closed; the last one publishes.
        """

    @abstractmethod
    def _handle(self, event: Any) -> Iterable[Any]:
        """
        Tell the machine *event*, and return its effects.
        """

    @abstractmethod
    def _perform(self, effect: Any) -> bool:
        """
        Perform *effect*; False when Redis has to be asked again later.
        """

    @abstractmethod
    def _asked(self, effect: Any) -> Any:
        """
        Ask Redis what *effect* says, and return the event that answers it; None: there is none.
        """

    @abstractmethod
    def _on_stop(self) -> None:
        """
        End in order, in the thread of the session.
        """

    @abstractmethod
    def _closed(self) -> Any:
        """
        Return the event that says that both connections are closed in order.
        """

    @abstractmethod
    def _ticked(self) -> Any:
        """
        Return the event that says that time passes; None while nobody cares.
        """

    @abstractmethod
    def _awaits_answer(self) -> bool:
        """
        Say whether the broker has not answered all that was published.
        """

    # -- from outside -----------------------------------------------------------------------------

    def run(self) -> Ended:
        """
        Go on until something ends it, and say what.
        """
        try:
            self._open()
            self._loop.call_later(TICK_S, self._tick)
            self._loop.activate_poller()
            while self._ended is None:
                self._loop.poll()
                self._loop.process_timeouts()
            return self._ended
        except (AMQPError, OSError, DedupError) as error:
            return self._ended or self._outcome(error)
        finally:
            self._cut()

    def stop(self) -> None:
        """
        Finish what is under way, settle and end; while Redis is away, end without in `STOP_PATIENCE_S`. From any thread.

        Not from a signal handler: pika's loop takes a lock here that the interrupted thread may hold.
        """
        # Now, not when the loop hears of it: a call to Redis that is not answered may keep it for seconds.
        self._stop_asked_s = time.monotonic()
        self._loop.add_callback_threadsafe(self._stop)

    def _stop(self) -> None:
        self._on_stop()
        if self._store_waits:
            self._store_again()

    # -- the pump ---------------------------------------------------------------------------------

    def _tell(self, event: Any) -> None:
        """
        Tell the machine *event*, and do what there is to do.
        """
        self._events.append(event)
        if not self._pumping:
            self._pump()

    def _pump(self) -> None:
        self._pumping = True
        try:
            while self._ended is None and (self._events or self._effects):
                while self._events:
                    self._effects.extend(self._handle(self._events.popleft()))
                if self._store_waits or not self._effects:
                    return
                effect = self._effects[0]
                self._watching.step("before", effect)
                if not self._perform(effect):
                    return
                self._watching.step("after", effect)
                self._effects.popleft()
        except (AMQPError, OSError, DedupError) as error:
            self._end(self._outcome(error))
        finally:
            self._pumping = False

    def _ask_store(self, effect: Any) -> bool:
        """
        Ask Redis; False when it cannot answer now.
        """
        try:
            answer = self._asked(effect)
        except StoreUnavailableError as error:
            if self._closing:
                raise  # the next session is only more careful than it need be
            self._put_off(error)
            return False
        if self._store_failures:
            self._watching.notice("dedup.store_back", {"failures": self._store_failures})
            self._store_failures = 0
        if answer is not None:
            self._events.append(answer)
        return True

    def _put_off(self, error: StoreUnavailableError) -> None:
        now_s = time.monotonic()
        if not self._store_failures:
            self._store_failing_since_s = now_s
        elif now_s - self._store_failing_since_s > self.store_patience_s:
            raise error
        pause_s_max = STORE_PAUSE_S_MAX
        if self._stop_asked_s is not None:
            if now_s - self._stop_asked_s > STOP_PATIENCE_S:
                raise error
            pause_s_max = STOP_PATIENCE_S
        if self._store_failures % _TOLD_EVERY == 0:
            facts = {"reason": str(error), "failures": self._store_failures}
            self._watching.notice("dedup.store_unavailable", facts)
        pause_s = delay_s(self._store_failures, random.random(), max_s=pause_s_max)
        self._store_failures += 1
        self._store_waits = True
        self._loop.call_later(pause_s, self._store_again)

    def _store_again(self) -> None:
        self._store_waits = False
        if self._ended is None:
            self._pump()

    def _tick(self) -> None:
        if self._ended is None:
            self._loop.call_later(TICK_S, self._tick)
            # While Redis is waited for, time would pile up.
            if not self._store_waits and (ticked := self._ticked()) is not None:
                self._tell(ticked)

    # -- the end ----------------------------------------------------------------------------------

    def _close(self) -> None:
        """
        Close in order, so that every acknowledgement is taken: first what takes deliveries, then what publishes.
        """
        self._closing = True
        self._loop.call_later(CLOSE_TIMEOUT_S, partial(self._end, self._close_timed_out()))
        closing = deque(link for link in self._links() if link is not None)

        def close_next() -> None:
            if closing:
                closing.popleft().close(close_next)
            else:
                self._tell(self._closed())

        close_next()

    def _close_timed_out(self) -> Ended:
        error = BrokerUnavailableError(f"the broker did not close in {CLOSE_TIMEOUT_S:.0f} s")
        return Ended(Outcome.LOST, str(error), self._progressed, error)

    def _on_failed(self, link: Link, error: BaseException) -> None:
        """
        End the session: one of its connections or channels is gone.
        """
        self._end(self._outcome(error, link))

    def _outcome(self, error: BaseException, link: Link | None = None) -> Ended:
        """
        Say what an error means for the sessions to come.
        """
        where = f"{self._parameters.host}:{self._parameters.port}" if link is None else link.where
        known = error if isinstance(error, DedupError) else translate(error, where=where)
        outcome = Outcome.LOST
        if isinstance(known, StoreFencedError):
            outcome = Outcome.FENCED
        elif isinstance(known, PartialCommitError):
            outcome = Outcome.PARTIAL
        elif (
            link is not None
            and link is self._links()[-1]
            and self._awaits_answer()
            and getattr(error, "reply_code", 0) in _MESSAGE_CODES
        ):
            outcome = Outcome.REFUSED
        return Ended(outcome, str(known), self._progressed, known)

    def _end(self, ended: Ended) -> None:
        if self._ended is None:
            self._ended = ended

    def _cut(self) -> None:
        """
        Free the connections and the loop, whatever state they are in.
        """
        for link in self._links():
            if link is not None:
                link.cut()
        # pika closes sockets in callbacks of the loop, and asserts when a connection is cut while it is being made. Then the
        # other callbacks still wait: a socket that stays open keeps the fence until the broker misses heartbeats.
        for _ in range(_ROUNDS_UNTIL_CUT):
            with suppress(Exception):
                self._loop.add_callback_threadsafe(lambda: None)
                self._loop.poll()
                self._loop.process_timeouts()
        with suppress(Exception):
            self._loop.deactivate_poller()
        self._loop.close()
