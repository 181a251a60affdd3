"""
Gaps that are filled: numbers of the caller's own, of which some come below others that were submitted before.

Hypothesis drives the real sender in the world of sender_world.py, with fills beside everything that can go wrong there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, run_state_machine_as_test
from hypothesis.stateful import rule as step

from dedup.core import sending
from dedup.core.sender import Sender
from dedup.core.sending import Message, SenderSettings
from tests.simulation.sender_rules import BrokenRuleError, Scenario, faults, rule
from tests.simulation.sender_world import World, finish

QUICK = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SCENARIO = Scenario(
    messages=0,
    unroutable=frozenset({6, 14}),
    faults=faults(cut=2, nack=2, silence=1, swallow=1, block=1, contradict=1, kill=1),
    unconfirmed_max=2,
    window_size=8,
)
HALF = 4


class Filling(World):
    """A world whose caller numbers the messages, and goes back to fill gaps as :class:`dedup.core.numbers.Numbers` allows."""

    def submit_as(self, sequence: int) -> None:
        """Submit under a number of the caller's own; below the highest it goes first, like a re-send."""
        if sequence < self.next:
            self.retried.add(sequence)
        self.next = max(self.next, sequence + 1)
        self.fates.pop(sequence, None)
        self.waiting.add(sequence)
        self.tell(sending.Submitted([Message(sequence, "e", "k", sequence, 1)]))

    def _sent(self, message: Message) -> None:
        newest = max(self.attempts, default=0)
        rule(newest - message.sequence <= 2 * HALF - 1, "what is sent is inside the window of what was sent")
        if message.sequence > newest:
            due = [s for s in self.waiting & self.retried if s not in self.attempts and s < message.sequence]
            rule(not due, "a fill goes before anything new")
        super()._sent(message)


class Fills(RuleBasedStateMachine):
    """
    Callers that ascend with gaps and fill some, a link that breaks, a broker that refuses.
    """

    @initialize()
    def start(self) -> None:
        """Begin with nothing."""
        self.world = world_of(Sender)

    @step(jump=st.integers(1, 6))
    def ascend(self, jump: int) -> None:
        """Submit above everything before."""
        if self.world.sender is not None and self.world.next < 60:
            self.world.submit_as(self.world.next + jump - 1)

    @step(behind=st.integers(1, HALF))
    def fill(self, behind: int) -> None:
        """Submit below the highest, at most half a window."""
        world = self.world
        sequence = world.next - 1 - behind
        taken = sequence in world.waiting or world.fates.get(sequence) == "confirmed"
        if world.sender is not None and sequence >= 1 and not taken:
            world.submit_as(sequence)

    @step(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        """Let anything happen that can."""
        choices = list(self.world.choices())
        if choices:
            name, act = data.draw(st.sampled_from(choices), label="what")
            del name
            act(self.world)

    @invariant()
    def everything_ends(self) -> None:
        """What is submitted is somewhere; the rules are checked at each effect."""

    def teardown(self) -> None:
        """When faults stop, every caller is told."""
        if hasattr(self, "world"):
            finish(self.world)


def test_fills_keep_the_rules() -> None:
    """Oldest first, inside the window, each caller told once, whatever befalls the link."""
    run_state_machine_as_test(Fills, settings=QUICK)


class FillsLast(Sender):
    """Queues a fill behind what was submitted before it."""

    def _go_first(self, message: Message) -> None:
        self._waiting.append(message.sequence)


class FillsFirst(Sender):
    """Sends a fill at once, even before older ones that still wait for their first send: hypothesis found it here."""

    def _submitted(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.sequence < self._newest:
                self._admit(message)
                self._newest_sent = max(self._newest_sent, message.sequence)
                self._go_first(message)
            else:
                super()._submitted([message])


class ForgetsThatFillsAreOld(Sender):
    """Does not count a fill that is under way when it sends what is new."""

    def _oldest_sent(self, default: int) -> int:
        self._stragglers.clear()
        return default


def world_of(sender: Callable[[SenderSettings], Sender]) -> Filling:
    """Return a world with nothing in it."""
    world = Filling(SCENARIO, make_sender=sender, faults=SCENARIO.faults.copy())
    world.start()
    return world


def fill_while_others_wait(world: Filling) -> None:
    """Two are in flight and two wait; then comes one below what was sent."""
    world.submit_as(2)
    world.open()
    for sequence in (4, 5, 7, 3):
        world.submit_as(sequence)
    world.serve()
    world.serve()
    world.hear(2)


def fill_while_nothing_is_sent(world: Filling) -> None:
    """Many wait for a channel, and one more comes in between."""
    for sequence in (1, 2, 3, 4, 5, 7, 8, 10, 9):
        world.submit_as(sequence)
    world.open()


def fill_that_is_nacked(world: Filling) -> None:
    """It is under way when something far above it is submitted."""
    world.submit_as(2)
    world.open()
    world.submit_as(4)
    world.serve()
    world.serve()
    world.hear(2)
    world.submit_as(1)
    world.refuse()
    world.hear(1)
    world.submit_as(9)


STORIES: dict[type[Sender], tuple[Callable[[Filling], None], str]] = {
    FillsLast: (fill_while_others_wait, "before anything new"),
    FillsFirst: (fill_while_nothing_is_sent, "inside the window"),
    ForgetsThatFillsAreOld: (fill_that_is_nacked, "half a window"),
}


@pytest.mark.parametrize("mutant", STORIES, ids=lambda mutant: mutant.__name__)
def test_a_broken_sender_is_caught(mutant: type[Sender]) -> None:
    """Each story ends well with the real sender, and breaks a rule with the other."""
    story, broken = STORIES[mutant]
    world = world_of(Sender)
    story(world)
    finish(world)
    with pytest.raises(BrokenRuleError, match=broken):
        story(world_of(mutant))
