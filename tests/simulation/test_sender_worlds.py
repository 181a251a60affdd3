"""Every small world of the sender, and the proof that a broken sender does not pass."""

from __future__ import annotations

import re
from typing import Any

import pytest
from attrs import evolve

from dedup.core import failures, sending
from dedup.core.sender import Sender
from dedup.core.sending import Message, Place, SenderSettings
from tests.simulation.exploring import explore
from tests.simulation.sender_rules import Scenario, faults
from tests.simulation.sender_states import Senders

SCENARIOS = {
    "two cuts and a nack": Scenario(messages=2, faults=faults(cut=2, nack=1)),
    "three messages, cut and nack": Scenario(messages=3, faults=faults(cut=1, nack=1)),
    "nacks that contradict acks": Scenario(messages=3, faults=faults(nack=2, contradict=2)),
    "a silent broker": Scenario(messages=2, faults=faults(silence=2, swallow=1, cut=1)),
    "a blocking broker": Scenario(messages=2, faults=faults(block=2, cut=1, silence=1)),
    "a bound of one": Scenario(messages=3, faults=faults(cut=1, nack=1), unconfirmed_max=1, window_size=2),
    "a small window": Scenario(messages=4, faults=faults(nack=2), unconfirmed_max=2, window_size=4),
    "an unroutable message": Scenario(
        messages=3, unroutable=frozenset({2}), retries=1, faults=faults(cut=1, nack=1)
    ),
    "a bad message": Scenario(messages=3, bad=frozenset({2}), retries=1, faults=faults(cut=1)),
    "two bad messages": Scenario(messages=3, bad=frozenset({1, 3}), faults=faults(cut=1, nack=1)),
    "a hasty caller who retries": Scenario(
        messages=2, hasty=frozenset({1}), retries=1, faults=faults(cut=1, nack=1)
    ),
    "hasty and unroutable": Scenario(
        messages=2, hasty=frozenset({1}), unroutable=frozenset({1}), retries=1, faults=faults(cut=1)
    ),
    "hasty and bad": Scenario(
        messages=2, hasty=frozenset({1}), bad=frozenset({1}), retries=1, faults=faults(cut=1)
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order_of_events_keeps_the_rules(name: str) -> None:
    """In each state of the world the rules hold, and a fair broker can finish from there."""
    explored = explore(Senders(SCENARIOS[name]), rest_every=1)
    assert not explored.reason, explored
    assert explored.states > 100


class Renumbers(Sender):
    """Gives a message a new sequence when it sends it again."""

    def _publish(self, message: Message, batch: list[Message], now: float) -> None:
        super()._publish(message, batch, now)
        if message.attempts > 1:
            batch[-1] = evolve(message, sequence=message.sequence + 100)


class ForgetsAttempts(Sender):
    """Says 1 at each send."""

    def _publish(self, message: Message, batch: list[Message], now: float) -> None:
        message.attempts = 0
        super()._publish(message, batch, now)


class IgnoresReturns(Sender):
    """Believes the ack that follows a return."""

    def _returned(self, event: sending.Returned) -> None:
        pass


class BelievesAcksOfReturned(Sender):
    """Reports the return, then takes the ack behind it for a late confirm when the caller retries."""

    def _returned(self, event: sending.Returned) -> None:
        message = self._live.get(event.sequence)
        if message is not None:
            self._give_up(message, failures.returned(message, self._receipt(message), 312, ""))


class TrustsContradictedAcks(Sender):
    """Reports what an ack of many said, though a nack in the same read took it back."""

    def _confirms(self, event: sending.Confirms, now: float) -> None:
        acked = max((tag for tag, multiple, ack in event.confirms if multiple and ack), default=0)
        believed = [confirm for confirm in event.confirms if confirm[2] or confirm[0] > acked]
        super()._confirms(sending.Confirms(believed), now)


class NewBeforeOld(Sender):
    """Sends what is new first after a loss."""

    def _fill(self, now: float) -> None:
        if self._link.is_open and not self._link.blocked and not self._in_flight:
            batch: list[Message] = []
            self._fill_new(batch, self._limit, now)
            if batch:
                self._effects.append(sending.Send(batch))
        super()._fill(now)


class NewestFirst(Sender):
    """Sends again in the wrong order."""

    def _lost(self, *args: Any, **kwargs: Any) -> None:
        super()._lost(*args, **kwargs)
        self._resend.sort(reverse=True)


class ForgetsOnLoss(Sender):
    """Never sends again what was in flight."""

    def _lost(self, *args: Any, **kwargs: Any) -> None:
        super()._lost(*args, **kwargs)
        self._resend.clear()


class ForgetsNacks(Sender):
    """Never sends again what was nacked."""

    def _nack(self, message: Message, event: sending.Confirms, now: float) -> None:
        super()._nack(message, event, now)
        self._nacked.clear()


class NeverMissesConfirms(Sender):
    """Waits for ever for a broker that is silent."""

    def _confirm_limit(self) -> float | None:
        return None


class BlamesTheOldest(Sender):
    """Fails the oldest message in flight for a refusal, without proof."""

    def _refused(self, event: sending.Refused, now: float) -> None:
        oldest = self._in_flight.smallest
        super()._refused(event, now)
        if oldest and oldest[1].place is Place.RESEND:
            self._give_up(oldest[1], failures.refused(oldest[1], self._receipt(oldest[1]), 406, ""))


class NeverBlames(Sender):
    """Sends a message the broker refuses again and again."""

    def _refused(self, event: sending.Refused, now: float) -> None:
        self._lost(event.text, 0.0, now, at_once=True)


class SendsWhileBlocked(Sender):
    """Does not listen to alarms."""

    def _fill(self, now: float) -> None:
        self._link.blocked = ""
        super()._fill(now)


class IgnoresTheBound(Sender):
    """Sends everything at once."""

    def __init__(self, settings: SenderSettings) -> None:
        super().__init__(settings)
        self._settings = evolve(settings, unconfirmed_max=1000)
        self._limit = 1000


class IgnoresTheWindow(Sender):
    """Lets new messages push a nacked one out of the window."""

    def _oldest_sent(self, default: int) -> int:
        return default


class RetriesAsNew(Sender):
    """Takes a retry for a success."""

    def _retry(self, event: sending.RetryAsked) -> None:
        kept = self._given_up.get(event.sequence)
        if kept:
            kept.place = Place.CONFIRMED_LATE
        super()._retry(event)


MUTANTS = {
    Renumbers: ("two cuts and a nack", "a sequence never changes"),
    ForgetsAttempts: ("two cuts and a nack", "next attempt"),
    IgnoresReturns: ("an unroutable message", "confirmed is stored"),
    BelievesAcksOfReturned: ("an unroutable message", "confirmed is stored"),
    TrustsContradictedAcks: ("nacks that contradict acks", "confirmed is stored"),
    NewBeforeOld: ("two cuts and a nack", "nothing new before"),
    NewestFirst: ("two cuts and a nack", "oldest goes first"),
    ForgetsOnLoss: ("two cuts and a nack", "nothing new before|everything settles"),
    ForgetsNacks: ("two cuts and a nack", "everything settles"),
    NeverMissesConfirms: ("a silent broker", "everything settles"),
    BlamesTheOldest: ("a bad message", "no innocent message"),
    NeverBlames: ("a bad message", "everything settles"),
    SendsWhileBlocked: ("a blocking broker", "not blocked"),
    IgnoresTheBound: ("a bound of one", "the bound holds"),
    IgnoresTheWindow: ("a small window", "half a window"),
    RetriesAsNew: ("a hasty caller who retries", "confirmed is stored"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_sender_is_caught(mutant: type[Sender]) -> None:
    """Each known way to get it wrong breaks a rule in some order of events: the worlds can fail."""
    scenario, broken = MUTANTS[mutant]
    explored = explore(Senders(SCENARIOS[scenario], mutant), rest_every=1)
    assert re.search(broken, explored.reason), explored
