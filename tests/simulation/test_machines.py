"""
State machines that hypothesis drives: window, map, sender and relay against models that are too simple to be wrong.

The worlds beside this file take every order of few things; here many things happen, in orders that hypothesis looks for. The
mutants at the end show that each machine can fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dedup.core.identity import range_base
from dedup.core.publishers import Changes, Publishers
from dedup.core.sender import Sender
from dedup.core.window import Verdict, Window, judge
from tests.simulation.live_relay import LiveExplorer
from tests.simulation.sender_rules import BrokenRuleError, Scenario, faults
from tests.simulation.sender_world import World, finish

#: Enough that each mutant below is found, few enough for every run of the tests.
QUICK = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
#: A mutant is only to be caught, not to be told in its shortest form.
CATCHING = settings(QUICK, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)

WINDOW_SIZE = 8
PUBLISHERS_MAX = 3
IDLE_S = 10.0


class Windows(RuleBasedStateMachine):
    """
    A window, and the set of everything it has seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.window: Window | None = None
        self.seen: set[int] = set()
        #: Lowest sequence the window has ever been able to speak of: it opened there.
        self.opened = 0

    @rule(jump=st.integers(-2 * WINDOW_SIZE, 2 * WINDOW_SIZE))
    def near(self, jump: int) -> None:
        """Judge a sequence around the newest one."""
        self.judge(max(1, (max(self.seen) if self.seen else 1) + jump))

    @rule(owner=st.integers(0, 2), sequence=st.integers(1, 3 * WINDOW_SIZE))
    def anywhere(self, owner: int, sequence: int) -> None:
        """Judge a sequence of any owner's range."""
        self.judge((owner << 32) + sequence)

    def judge(self, sequence: int) -> None:
        before = self.window
        verdict, self.window = judge(before, sequence, WINDOW_SIZE)
        newest = max(self.seen, default=0)
        if newest < sequence:
            assert verdict is Verdict.NEW
            if newest == 0 or sequence - newest > WINDOW_SIZE:
                self.opened = max(1, range_base(sequence), sequence - WINDOW_SIZE + 1)
        elif sequence <= newest - WINDOW_SIZE or sequence < self.opened:
            assert verdict is Verdict.TOO_OLD
        else:
            assert verdict is (Verdict.DUPLICATE if sequence in self.seen else Verdict.NEW)
        if verdict is Verdict.NEW:
            self.seen.add(sequence)
        else:
            assert self.window is before

    @invariant()
    def it_is_small(self) -> None:
        """A window holds what it was told to, however far the sequences jump."""
        if self.window is not None:
            assert self.window.last == max(self.seen)
            assert self.window.missing.bit_length() < WINDOW_SIZE
            assert self.window.start <= self.window.last


class Map(RuleBasedStateMachine):
    """
    The bounded map, and plain sets: what is settled, and what the batch of now has judged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.map = Publishers(size=WINDOW_SIZE, publishers_max=PUBLISHERS_MAX, idle_s=IDLE_S)
        self.now_s = 1_000.0
        self.settled: dict[str, set[int]] = {}
        self.draft: dict[str, set[int]] = {}
        self.seen_s: dict[str, float] = {}
        #: What Redis would hold: each change applied as it was reported.
        self.redis: dict[str, Any] = {}

    @rule(publisher=st.sampled_from("abcde"), sequence=st.integers(1, WINDOW_SIZE))
    def judge(self, publisher: str, sequence: int) -> None:
        """Judge one message; a window holds all sequences there are, so every verdict is known."""
        known = self.settled.get(publisher, set()) | self.draft.get(publisher, set())
        verdict, uncertain = self.map.judge(publisher, sequence, self.now_s)
        assert not uncertain
        if publisher not in self.settled and publisher not in self.draft:
            in_use = set(self.settled) | set(self.draft)
            idle = [n for n in in_use - set(self.draft) if self.now_s - self.seen_s[n] > IDLE_S]
            if verdict is Verdict.UNADMITTED:
                assert len(in_use) >= PUBLISHERS_MAX
                assert not idle
                return
            if len(in_use) >= PUBLISHERS_MAX:
                (gone,) = set(self.settled) - set(self.map.entries())
                assert self.seen_s[gone] == min(self.seen_s[name] for name in idle)
                del self.settled[gone]
        assert verdict is (Verdict.DUPLICATE if sequence in known else Verdict.NEW)
        if verdict is Verdict.NEW:
            self.draft.setdefault(publisher, set()).add(sequence)

    @rule()
    def settle(self) -> None:
        """The batch is in the target."""
        changes = self.map.settle(self.now_s, 1)
        for name in changes.evicted:
            self.redis.pop(name, None)
        self.redis.update(changes.entries)
        for name, sequences in self.draft.items():
            self.settled[name] = self.settled.get(name, set()) | sequences
            self.seen_s[name] = self.now_s
        self.draft = {}
        assert self.redis == self.map.entries()

    @rule()
    def abandon(self) -> None:
        """The batch is not in the target."""
        self.map.abandon()
        self.draft = {}

    @rule(passed_s=st.sampled_from((1.0, IDLE_S + 1)))
    def pass_time(self, passed_s: float) -> None:
        """Publishers fall silent."""
        self.now_s += passed_s

    @invariant()
    def it_is_bounded(self) -> None:
        """No more publishers than it may hold, and exactly those of the model."""
        assert len(self.map) == len(set(self.settled) | set(self.draft)) <= PUBLISHERS_MAX
        assert set(self.map.entries()) == set(self.settled)


class SenderMachine(RuleBasedStateMachine):
    """
    A sender in a world that hypothesis chooses the choices of; the world has the rules.
    """

    make_sender: Callable[..., Sender] = Sender

    @initialize(
        bad=st.sampled_from((frozenset[int](), frozenset({4}))),
        unroutable=st.sampled_from((frozenset[int](), frozenset({2}))),
    )
    def begin(self, bad: frozenset[int], unroutable: frozenset[int]) -> None:
        """Begin with many messages, and many faults of every kind."""
        names = ("cut", "nack", "lie", "silence", "swallow", "block", "contradict", "kill", "forget")
        scenario = Scenario(
            messages=9, bad=bad, unroutable=unroutable, retries=3, faults=faults(**dict.fromkeys(names, 3))
        )
        self.world = World(
            scenario, make_sender=type(self).make_sender, faults=scenario.faults.copy(), retries=3
        )
        self.world.start()

    @rule(choice=st.integers(0, 11))
    def choose(self, choice: int) -> None:
        """Let one of the things happen that can."""
        choices = list(self.world.choices())
        if choices:
            choices[choice % len(choices)][1](self.world)

    def teardown(self) -> None:
        """Let the faults end: every caller must be told."""
        if hasattr(self, "world"):
            finish(self.world)


class RelayMachine(RuleBasedStateMachine):
    """
    A relay in a world that hypothesis chooses the choices of; the world has the oracle.
    """

    @initialize(exact=st.booleans(), batch_max=st.integers(1, 3), seed=st.integers(0, 99))
    def begin(self, exact: bool, batch_max: int, seed: int) -> None:
        """Begin with several publishers and faults of every kind."""
        self.relays = LiveExplorer(
            messages=6,
            copies=3,
            publishers=2,
            untracked=1,
            batch_max=batch_max,
            exact=exact,
            anchor_every_s=2.0,
            lost_writes=2,
            kills=3,
            broker_restarts=2,
            redis_regressions=2,
            redis_emptied=1,
            lost_replies=2,
            refusals=0 if exact else 2,
            partial_commits=1 if exact else 0,
            lost_fences=2,
            stops=1,
        )
        self.world = self.relays.start
        self.choose = random.Random(seed)

    @rule(count=st.integers(1, 25))
    def go_on(self, count: int) -> None:
        """Let what is not a fault happen, so many times."""
        for _ in range(count):
            self.step(self.choose.randrange(12), faulty=False)

    @rule(choice=st.integers(0, 11))
    def fail(self, choice: int) -> None:
        """Let something fail."""
        self.step(choice, faulty=True)

    def step(self, choice: int, *, faulty: bool) -> None:
        choices = self.relays.choices(self.world, faulty=faulty)
        if choices:
            self.world = self.relays.settle(choices[choice % len(choices)][1])
            assert not self.relays.wrong(self.world), self.relays.wrong(self.world)

    def teardown(self) -> None:
        """Let the faults end: everything must arrive."""
        if hasattr(self, "world"):
            reason = self.relays.stuck(self.world)
            assert not reason, reason


@pytest.mark.parametrize("machine", [Windows, Map, SenderMachine, RelayMachine])
def test_no_order_of_rules_breaks_it(machine: type[RuleBasedStateMachine]) -> None:
    """Whatever hypothesis makes happen, the real thing and its model agree."""
    run_state_machine_as_test(machine, settings=QUICK)


# -- mutants --------------------------------------------------------------------------------------


def highest_only(window: Window | None, sequence: int, size: int) -> tuple[Verdict, Window]:
    """
    Remember the highest sequence only.
    """
    verdict, judged = _judge_one(window, sequence, size)
    return verdict, evolve(judged, missing=0)


def recorded_at_once(self: Publishers, publisher: str, sequence: int, now_s: float) -> tuple[Verdict, bool]:
    """
    Take a message as settled when it is judged.
    """
    found = _judge(self, publisher, sequence, now_s)
    _settle(self, now_s, 1)
    return found


def never_evicts(self: Publishers, now_s: float, batch: int) -> Changes:
    """
    Keep from Redis what was evicted.
    """
    return evolve(_settle(self, now_s, batch), evicted=())


def forgets(self: Publishers, _now_s: float, _batch: int) -> Changes:
    """
    Do not record what was forwarded.
    """
    self.abandon()
    return Changes({})


class ForgetsNacks(Sender):
    """Never sends again what was nacked."""

    def _nack(self, *arguments: Any) -> None:
        super()._nack(*arguments)
        self._nacked.clear()


_judge_one, _judge, _settle = judge, Publishers.judge, Publishers.settle


def test_a_window_of_the_highest_sequence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the window can fail."""
    monkeypatch.setitem(globals(), "judge", highest_only)
    _caught(Windows)


@pytest.mark.parametrize(("name", "mutant"), [("judge", recorded_at_once), ("settle", never_evicts)])
def test_a_map_that_settles_wrongly_is_caught(
    name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of the map can fail."""
    monkeypatch.setattr(Publishers, name, mutant)
    _caught(Map)


def test_a_sender_that_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the sender can fail."""
    monkeypatch.setattr(SenderMachine, "make_sender", ForgetsNacks)
    _caught(SenderMachine)


def test_a_relay_that_records_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the relay can fail."""
    monkeypatch.setattr(Publishers, "settle", forgets)
    _caught(RelayMachine)


def _caught(machine: type[RuleBasedStateMachine]) -> None:
    with pytest.raises((AssertionError, BrokenRuleError)):
        run_state_machine_as_test(machine, settings=CATCHING)
