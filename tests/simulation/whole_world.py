"""
The whole way of a message in one small world: production senders, the broker between, and the production relay.

The publishers' side is a world of :mod:`tests.simulation.sender_world`, the shim's one of
:mod:`tests.simulation.relay_world`; what the broker stores for a sender lies in the ingress of the relay, and a broker that
restarts cuts both. So every copy comes from a sender that missed a confirm, heard a false one, or was killed and went on.

The oracle: what a sender reports confirmed is stored (its own rules); nothing stored is lost, and nothing is doubled without
a mark (the relay's); first copies enter the target in the order in which they entered the ingress; and a publisher that was
never nacked and never refused a message finds them there in the order of its sequences. One thing is allowed that a world of
the relay alone forbids: a copy from an earlier owner of the id lies below the window of the later one, and is quarantined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.simulation.live_relay import LiveExplorer
from tests.simulation.relay_state import World
from tests.simulation.relay_world import Explorer
from tests.simulation.sender_rules import Scenario
from tests.simulation.sender_states import Senders
from tests.simulation.sender_world import RANGE

#: Faults after which the broker may have stored a later message of a batch and not an earlier one.
REORDERING_EXACT = ("broker_restarts", "partial_commits", "refusals")
REORDERING_CONFIRMED = (*REORDERING_EXACT, "kills", "lost_fences")
#: Faults after which a sender sends an older message behind a newer one.
OUT_OF_TURN = ("nack", "lie", "contradict")
#: Sequences the relay's window holds: a sender of it may be half as far ahead.
WINDOW_SIZE = 4


class Whole(NamedTuple):
    """
    One state of everything.
    """

    #: Numbers of the publishers' worlds.
    publishers: tuple[int, ...]
    shim: World
    #: Messages, in the order in which they entered the ingress for the first time.
    entered: tuple[int, ...] = ()
    broken: str = ""


class Guarded(Explorer):
    """
    A relay world whose messages come from outside, of owners with ranges of their own.
    """

    #: Sequences of one owner of a publisher id.
    span: int

    def wrong(self, world: World) -> str:
        """
        Say what is wrong with *world*, or nothing; quarantined copies of an earlier owner's messages are not.
        """
        earlier = {m for m, _ in world.target if m < self.messages - self.span * self.publishers}
        if earlier:
            world = world._replace(quarantine=tuple(m for m in world.quarantine if m not in earlier))
        return super().wrong(world)

    def _sequence(self, message: int) -> int:
        owner, index = divmod(message // self.publishers, self.span)
        return owner * RANGE + index + 1


class LiveGuarded(Guarded, LiveExplorer):
    """
    The same for one way through it.
    """


class WholeExplorer:
    """
    The rules of one whole world, for :mod:`tests.simulation.exploring`.

    Args:
        senders: The publishers' side; each publisher has one like it.
        scenario: What it was made of.
        publishers: How many there are.
        guarded: The relay's side, Guarded or LiveGuarded.
        relay: Settings and faults of the relay's side.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        senders: Senders | None = None,
        publishers: int = 1,
        guarded: type[Guarded] = Guarded,
        **relay: Any,
    ) -> None:
        self.senders = senders or Senders(scenario)
        self.in_turn = not any(scenario.faults[fault] for fault in OUT_OF_TURN) and not (
            scenario.retries or scenario.bad
        )
        owners = 1 + scenario.faults["forget"]
        messages = scenario.messages * owners * publishers
        # Messages of a publisher follow each other in the numbers of the relay's world, owners one after the other.
        self.shim = guarded(messages=messages, copies=0, publishers=publishers, **relay)
        self.shim.span = scenario.messages
        self.reordering = REORDERING_EXACT if self.shim.exact else REORDERING_CONFIRMED
        self.start = Whole((self.senders.start,) * publishers, self.shim.start)

    # -- what may happen --------------------------------------------------------------------------

    def successors(self, whole: Whole) -> Iterator[tuple[str, Whole]]:
        """
        Yield every next state and what led to it.
        """
        # Only a delivery looks into the ingress: see Explorer._publishes.
        if not whole.shim.pending or whole.shim.faults.broker_restarts:
            yield from self._published(whole)
        yield from self._relayed(whole, self.shim.successors(whole.shim))

    def choices(self, whole: Whole, *, faulty: bool) -> list[tuple[str, Whole]]:
        """
        Return what may happen next on one way: faults, or everything else.
        """
        assert isinstance(self.shim, LiveGuarded)
        shim = self.shim.choices(whole.shim, faulty=faulty)
        return [*self._published(whole, faulty=faulty), *self._relayed(whole, shim)]

    def settle(self, whole: Whole) -> Whole:
        """
        Tell the relay what it has not heard on the way to *whole*.
        """
        assert isinstance(self.shim, LiveGuarded)
        return whole._replace(shim=self.shim.settle(whole.shim))

    def _published(self, whole: Whole, *, faulty: bool | None = None) -> Iterator[tuple[str, Whole]]:
        """
        Let a publisher or its broker do one thing; a fault, none, or either.
        """
        for p, number in enumerate(whole.publishers):
            for step in self.senders.steps(number):
                if faulty is None or faulty == step.is_fault:
                    numbers = (*whole.publishers[:p], step.following, *whole.publishers[p + 1 :])
                    following = self._stored(whole._replace(publishers=numbers), p, step.stored)
                    yield f"publisher {p}: {step.name}", following

    def _relayed(self, whole: Whole, choices: Iterable[tuple[str, World]]) -> Iterator[tuple[str, Whole]]:
        """
        Let the relay or its servers do one thing.
        """
        before = whole.shim
        for name, shim in choices:
            following = whole._replace(shim=shim)
            if shim.target != before.target:
                following = following._replace(broken=self._disordered(whole, shim))
            if shim.faults.broker_restarts != before.faults.broker_restarts:
                following = following._replace(publishers=tuple(map(self.senders.cut, whole.publishers)))
            yield name, following

    def _stored(self, whole: Whole, publisher: int, sequences: Iterable[int]) -> Whole:
        """
        Put what the broker stored for *publisher* into the ingress.
        """
        for sequence in sequences:
            shim, m = whole.shim, self._message(publisher, sequence)
            sent = (*shim.sent[:m], shim.sent[m] + 1, *shim.sent[m + 1 :])
            shim = shim._replace(sent=sent, ingress=(*shim.ingress, (m, False)))
            entered = whole.entered if m in whole.entered else (*whole.entered, m)
            whole = whole._replace(shim=shim, entered=entered)
        return whole

    def _message(self, publisher: int, sequence: int) -> int:
        owner, index = divmod(sequence, RANGE)
        return (owner * self.shim.span + index - 1) * len(self.start.publishers) + publisher

    # -- what must never be -----------------------------------------------------------------------

    def _disordered(self, whole: Whole, shim: World) -> str:
        """
        Say which first copy has entered the target before one that came before it, or nothing.
        """
        if self.shim.happened(shim, *self.reordering):
            return ""
        before = {m for m, _ in whole.shim.target}
        forward = self.shim.catalog[whole.shim.pending[0]]
        new = [
            out.arrival.payload
            for out in forward.outgoing
            if out.arrival.payload not in before and not out.reason
        ]
        count = len(whole.publishers)
        for p in range(count):
            entered = [m for m in whole.entered if m % count == p and m not in shim.quarantine]
            due = [m for m in (sorted(entered) if self.in_turn else entered) if m not in before]
            arrived = [m for m in new if m % count == p]
            if arrived != due[: len(arrived)]:
                return f"messages {arrived} enter the target in another order than the ingress, where {due} are due"
        return ""

    def wrong(self, whole: Whole) -> str:
        """
        Say what is wrong with *whole*, or nothing.
        """
        broken = (self.senders.wrong(number) for number in whole.publishers)
        return whole.broken or next(filter(None, broken), "") or self.shim.wrong(whole.shim)

    def stuck(self, whole: Whole) -> str:
        """
        Say what is wrong with *whole* after the faults have ended and everything has had its time, or nothing.
        """
        for p, number in enumerate(whole.publishers):
            reason, stored = self.senders.finished(number)
            if reason:
                return reason
            whole = self._stored(whole, p, stored)
        return self.shim.stuck(whole.shim)
