"""
Drive one relay over two connections to one broker, from taking the fence to the first failure.

Theory of operation
-------------------
Everything happens in the thread that calls :meth:`Session.run`. Callbacks of the connections turn
into events of the relay; the relay's effects are performed in order, one at a time. Calls to the
store are made in place; when it cannot answer, the effect stays at the head of the line and is
repeated with backoff while the connections live on.

The *forwarding* connection has one channel that publishes and holds the fence: an exclusive
consumer on the ledger, which the broker gives to one channel at a time. Until it is free this
session is a standby. A second connection takes deliveries and acknowledges them: the broker stops
reading from a connection that publishes while it has an alarm, and acknowledgements must not wait.

Whatever goes wrong with either connection ends the session; both are cut, and the next session
recovers. There is no other way back.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import pika
from attrs import define, frozen
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError

from dedup.amqp091.failures import translate
from dedup.amqp091.links import ForwardingLink, IngressLink, Link
from dedup.core import steps
from dedup.core.backoff import delay_s
from dedup.core.phase import Phase
from dedup.core.relay import Relay
from dedup.errors import (
    BrokerUnavailableError,
    DedupError,
    PartialCommitError,
    StoreFencedError,
    StoreUnavailableError,
)
from dedup.ports import Store

#: How often the relay is told that time passes; seconds.
TICK_S = 0.1
#: How long an orderly close may take; seconds.
CLOSE_TIMEOUT_S = 5.0
#: How often the loop is run to close the sockets of two connections, each of which may fail once on the way.
_ROUNDS_UNTIL_CUT = 4
#: Longest pause before the store is asked again; seconds.
STORE_PAUSE_S_MAX = 5.0
#: Replies that may be the fault of one message: precondition failed, frame, syntax, command and
#: unexpected-frame errors, internal error (AMQP 0.9.1, section 1.6).
_MESSAGE_CODES = frozenset({406, 501, 502, 503, 505, 541})


class Outcome(Enum):
    """
    How a session ended.
    """

    STOPPED = "stopped"
    #: A connection was lost, or the broker took something away; try again.
    LOST = "lost"
    #: Another shim has taken over.
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
    #: It had settled at least one batch.
    progressed: bool = False
    error: BaseException | None = None


@define
class Observer:
    """
    Who is told what a session does; every callable is called in its thread.
    """

    report: Callable[[steps.Report], None] = lambda _: None
    notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None
    #: "before" or "after", and the effect: fault tests end the process here.
    step: Callable[[str, steps.Effect], None] = lambda _when, _effect: None


class Session:
    """
    One session of one relay; run() once.

    Args:
        parameters: pika's, for the one broker both connections go to.
        queue: The guarded queue's own name.
        relay: A new machine.
        store: Its state.
        prefetch: Deliveries the broker may send ahead.
        survey: Reads who leads the target; see steps.Survey.
        observer: Who is told.
    """

    def __init__(
        self,
        parameters: pika.connection.Parameters,
        queue: str,
        relay: Relay,
        store: Store,
        *,
        prefetch: int,
        survey: Callable[[], steps.Surveyed],
        observer: Observer,
    ) -> None:
        self._parameters = parameters
        self._queue = queue
        self._relay = relay
        self._store = store
        self._prefetch = prefetch
        self._survey = survey
        self._observer = observer
        self._loop = IOLoop()
        self._forwarding: ForwardingLink | None = None
        self._ingress: IngressLink | None = None
        self._events: deque[steps.Event] = deque()
        self._effects: deque[steps.Effect] = deque()
        self._pumping = False
        self._store_failures = 0
        self._store_waits = False
        self._closing = False
        self._progressed = False
        self._ended: Ended | None = None

    # -- from outside -----------------------------------------------------------------------------

    def run(self) -> Ended:
        """
        Forward until something ends it, and say what.
        """
        try:
            self._forwarding = ForwardingLink(
                self._parameters,
                self._loop,
                self._queue,
                tell=self._tell,
                on_failed=self._on_failed,
                exact=self._relay.settings.exact,
                notice=self._observer.notice,
            )
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
        Finish the batch, settle and end; may be called from a signal handler or another thread.
        """
        self._loop.add_callback_threadsafe(self._on_stop)

    def _on_stop(self) -> None:
        if self._forwarding is None or not self._forwarding.holds_fence:
            self._end(Ended(Outcome.STOPPED))
        else:
            self._tell(steps.StopRequested())

    # -- the pump ---------------------------------------------------------------------------------

    def _tell(self, event: steps.Event) -> None:
        """
        Tell the relay *event*, and do what there is to do.
        """
        self._events.append(event)
        if not self._pumping:
            self._pump()

    def _pump(self) -> None:
        self._pumping = True
        try:
            while self._ended is None and (self._events or self._effects):
                while self._events:
                    self._effects.extend(self._relay.handle(self._events.popleft(), time.time()))
                if self._store_waits or not self._effects:
                    return
                effect = self._effects[0]
                self._observer.step("before", effect)
                if not self._perform(effect):
                    return
                self._observer.step("after", effect)
                self._effects.popleft()
        except (AMQPError, OSError, DedupError) as error:
            self._end(self._outcome(error))
        finally:
            self._pumping = False

    def _perform(self, effect: steps.Effect) -> bool:
        """
        Perform *effect*; False when the store has to be asked again later.
        """
        assert self._forwarding is not None
        match effect:
            case steps.Report():
                self._progressed = True
                self._observer.report(effect)
            case steps.Notice(name, facts):
                self._observer.notice(name, dict(facts))
            case steps.ClaimState() | steps.Save() | steps.Replace():
                return self._ask_store(effect)
            case steps.Survey():
                self._events.append(self._survey())
            case steps.Anchor():
                self._forwarding.forwarder.anchor(effect)
            case steps.Forward():
                self._forwarding.forwarder.forward(effect)
            case steps.Consume():
                self._ingress = IngressLink(
                    self._parameters,
                    self._loop,
                    self._queue,
                    tell=self._tell,
                    on_failed=self._on_failed,
                    prefetch=self._prefetch,
                    binding=self._relay.settings.bind_publisher_to_user,
                )
            case steps.Ack(tag):
                assert self._ingress is not None
                self._ingress.ack(tag)
            case steps.Close():
                self._close()
            case steps.End(reason, partial):
                outcome = Outcome.PARTIAL if partial else Outcome.LOST if reason else Outcome.STOPPED
                self._end(Ended(outcome, reason, self._progressed))
        return True

    def _ask_store(self, effect: steps.ClaimState | steps.Save | steps.Replace) -> bool:
        try:
            self._events.append(self._stored(effect))
        except StoreUnavailableError as error:
            if self._closing:
                raise  # not marked clean: the next session is only more careful than it need be
            pause_s = delay_s(self._store_failures, random.random(), max_s=STORE_PAUSE_S_MAX)
            if self._store_failures % 20 == 0:
                self._observer.notice(
                    "dedup.store_unavailable", {"reason": str(error), "failures": self._store_failures}
                )
            self._store_failures += 1
            self._store_waits = True
            self._loop.call_later(pause_s, self._store_again)
            return False
        if self._store_failures:
            self._observer.notice("dedup.store_back", {"failures": self._store_failures})
            self._store_failures = 0
        return True

    def _stored(self, effect: steps.ClaimState | steps.Save | steps.Replace) -> steps.Event:
        match effect:
            case steps.ClaimState(token_min):
                claim = self._store.claim(token_min)
                return steps.Claimed(claim.token, claim.state, claim.restarted)
            case steps.Save():
                return steps.Saved() if self._store.save(effect) else steps.StoreBehind()
            case steps.Replace(token, state):
                self._store.replace(token, state)
                return steps.Saved()

    def _store_again(self) -> None:
        self._store_waits = False
        if self._ended is None:
            self._pump()

    def _tick(self) -> None:
        if self._ended is None:
            self._loop.call_later(TICK_S, self._tick)
            if self._forwarding is not None and self._forwarding.holds_fence:
                self._tell(steps.Ticked())

    # -- the end ----------------------------------------------------------------------------------

    def _close(self) -> None:
        """
        Close in order, so that every acknowledgement is taken: first the source, then the fence.
        """
        self._closing = True
        self._loop.call_later(CLOSE_TIMEOUT_S, partial(self._end, self._close_timed_out()))
        if self._ingress is not None:
            self._ingress.close(self._close_forwarding)
        else:
            self._close_forwarding()

    def _close_forwarding(self) -> None:
        assert self._forwarding is not None
        self._forwarding.close(partial(self._tell, steps.Closed()))

    def _close_timed_out(self) -> Ended:
        error = BrokerUnavailableError(f"the broker did not close in {CLOSE_TIMEOUT_S:.0f} s")
        return Ended(Outcome.LOST, str(error), self._progressed, error)

    def _on_failed(self, link: Link, error: BaseException) -> None:
        """
        End the session: one of its connections or channels is gone.
        """
        ended = self._outcome(error, link)
        if ended.outcome is Outcome.PARTIAL:
            # The relay must leave a record that the marker of this batch is not to be believed.
            self._tell(steps.CommitPartial())
            if self._relay.phase is Phase.FAILING:
                return
        self._end(ended)

    def _outcome(self, error: BaseException, link: Link | None = None) -> Ended:
        """
        Say what an error means for the sessions to come.
        """
        host = f"{self._parameters.host}:{self._parameters.port}"
        known = error if isinstance(error, DedupError) else translate(error, where=host)
        if isinstance(known, StoreFencedError):
            outcome = Outcome.FENCED
        elif isinstance(known, PartialCommitError):
            outcome = Outcome.PARTIAL
        elif (
            link is self._forwarding
            and self._relay.phase is Phase.FORWARDING
            and getattr(error, "reply_code", 0) in _MESSAGE_CODES
        ):
            outcome = Outcome.REFUSED
        else:
            outcome = Outcome.LOST
        return Ended(outcome, str(known), self._progressed, known)

    def _end(self, ended: Ended) -> None:
        if self._ended is None:
            self._ended = ended

    def _cut(self) -> None:
        """
        Free both connections and the loop, whatever state they are in.
        """
        for link in (self._forwarding, self._ingress):
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
