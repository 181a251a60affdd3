"""
Drive one relay over two connections to one broker, from taking the fence to the first failure.

As :mod:`dedup.amqp091.driver` says. The connection that publishes has one channel for that, which also holds
the fence: an exclusive consumer on the ledger, which the broker gives to one channel at a time. Until it is
free this session is a standby.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pika
from attrs import define

from dedup.amqp091.driver import Driver, Ended, Outcome
from dedup.amqp091.links import ForwardingLink, IngressLink, Link
from dedup.core import steps
from dedup.core.names import Route
from dedup.core.phase import Phase
from dedup.core.relay import Relay
from dedup.ports import Store


@define
class Observer:
    """
    Who is told what a session does; every callable is called in its thread.
    """

    report: Callable[[steps.Report], None] = lambda _: None
    notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None
    #: "before" or "after", and the effect: fault tests end the process here.
    step: Callable[[str, steps.Effect], None] = lambda _when, _effect: None


class Session(Driver):
    """
    One session of one relay; run() once.

    Args:
        route: What it takes from and publishes to.
        parameters: pika's, for the one broker both connections go to.
        relay: A new machine.
        store: Its state.
        prefetch: Deliveries the broker may send ahead.
        survey: Reads who leads the target; see steps.Survey.
        observer: Who is told.
    """

    #: Whether batches can be forwarded in transactions.
    can_be_exact: ClassVar[bool] = True

    def __init__(
        self,
        route: Route,
        *,
        parameters: pika.connection.Parameters,
        relay: Relay,
        store: Store,
        prefetch: int,
        survey: Callable[[], steps.Surveyed],
        observer: Observer,
    ) -> None:
        super().__init__(parameters, observer)
        self._route = route
        self._relay = relay
        self._store = store
        self._prefetch = prefetch
        self._survey = survey
        self._observer = observer
        self._forwarding: ForwardingLink | None = None
        self._ingress: Any = None

    # -- the connections, which another protocol replaces ------------------------------------------

    def _open_forwarding(self) -> ForwardingLink:
        return ForwardingLink(
            self._parameters,
            self._loop,
            self._route,
            tell=self._tell,
            on_failed=self._on_failed,
            exact=self._relay.settings.exact,
            notice=self._observer.notice,
        )

    def _open_ingress(self) -> Any:
        return IngressLink(
            self._parameters,
            self._loop,
            self._route,
            tell=self._tell,
            on_failed=self._on_failed,
            prefetch=self._prefetch,
            settings=self._relay.settings,
        )

    # -- what a relay has of its own --------------------------------------------------------------

    def _open(self) -> None:
        self._forwarding = self._open_forwarding()

    def _links(self) -> Sequence[Link | None]:
        return self._ingress, self._forwarding

    def _handle(self, event: steps.Event) -> list[steps.Effect]:
        return self._relay.handle(event, time.time())

    def _on_stop(self) -> None:
        if self._holds_fence():
            self._tell(steps.StopRequested())
        else:
            self._end(Ended(Outcome.STOPPED))

    def _closed(self) -> steps.Event:
        return steps.Closed()

    def _ticked(self) -> steps.Event | None:
        return steps.Ticked() if self._holds_fence() else None

    def _awaits_answer(self) -> bool:
        return self._relay.phase is Phase.FORWARDING

    def _holds_fence(self) -> bool:
        return self._forwarding is not None and self._forwarding.holds_fence

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
                self._ingress = self._open_ingress()
            case steps.Ack(tag):
                assert self._ingress is not None
                self._ingress.ack(tag)
            case steps.Answer() | steps.Receipts():
                self._forwarding.inform(effect)
            case steps.Close():
                self._close()
            case steps.End(reason, partial):
                outcome = Outcome.PARTIAL if partial else Outcome.LOST if reason else Outcome.STOPPED
                self._end(Ended(outcome, reason, self._progressed))
        return True

    def _asked(self, effect: steps.ClaimState | steps.Save | steps.Replace) -> steps.Event:
        match effect:
            case steps.ClaimState(token_min):
                claim = self._store.claim(token_min)
                return steps.Claimed(claim.token, claim.state, claim.restarted)
            case steps.Save():
                return steps.Saved() if self._store.save(effect) else steps.StoreBehind()
            case steps.Replace(token, state):
                self._store.replace(token, state)
                return steps.Saved()

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
