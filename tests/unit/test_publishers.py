"""The bounded map of publishers: its limit, its draft, and what it no longer proves."""

from __future__ import annotations

from typing import Any

from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dedup.core.publishers import Changes, Entry, Publishers, remember
from dedup.core.window import UNCERTAIN, Verdict, Window
from dedup.core.window import judge as judge_window

NEW, DUPLICATE, TOO_OLD, UNADMITTED = Verdict.NEW, Verdict.DUPLICATE, Verdict.TOO_OLD, Verdict.UNADMITTED


def entry(last: int, seen_s: float = 0.0, **window: int) -> Entry:
    """Return a publisher that sent everything up to *last*."""
    return Entry(Window(last, 1, **window), seen_s)


def judged(publishers: Publishers, publisher: str, *sequences: int, now_s: float = 0.0) -> list[Verdict]:
    """Return the verdict on each of *sequences*, judged into the draft."""
    return [publishers.judge(publisher, sequence, now_s)[0] for sequence in sequences]


def test_each_publisher_has_a_window_of_its_own() -> None:
    """The same sequence of two publishers is two messages."""
    publishers = Publishers()
    assert judged(publishers, "a", 1, 1) == [NEW, DUPLICATE]
    assert judged(publishers, "b", 1) == [NEW]
    assert len(publishers) == 2


def test_settling_returns_what_changed() -> None:
    """The changes of a batch are what Redis has to be told, and only those."""
    publishers = Publishers({"a": entry(3), "b": entry(3)})
    judged(publishers, "a", 4, now_s=9.0)
    judged(publishers, "b", 3, now_s=9.0)
    assert publishers.settle(9.0, 1) == Changes({"a": entry(4, 9.0)})
    assert publishers.entries() == {"b": entry(3), "a": entry(4, 9.0)}
    assert publishers.settle(9.0, 1) == Changes({})


def test_an_abandoned_draft_was_never_judged() -> None:
    """What was not stored must not be remembered: its retry would be dropped and the message lost."""
    publishers = Publishers({"a": entry(3)})
    judged(publishers, "a", 4)
    judged(publishers, "b", 1)
    assert publishers.entries() == {"a": entry(3)}
    publishers.abandon()
    assert len(publishers) == 1
    assert judged(publishers, "a", 4) == [NEW]
    assert judged(publishers, "b", 1) == [NEW]


def test_a_full_map_admits_nobody() -> None:
    """A publisher that cannot be remembered is quarantined; those that are remembered go on."""
    publishers = Publishers({"a": entry(1), "b": entry(1)}, publishers_max=2, idle_s=10.0)
    assert judged(publishers, "c", 1, now_s=10.0) == [UNADMITTED]
    assert judged(publishers, "a", 2, now_s=10.0) == [NEW]
    assert publishers.settle(10.0, 1).evicted == ()


def test_drafted_publishers_count() -> None:
    """The limit holds within a batch too."""
    publishers = Publishers(publishers_max=2)
    assert [judged(publishers, name, 1)[0] for name in "abc"] == [NEW, NEW, UNADMITTED]


def test_the_publisher_idle_longest_makes_room() -> None:
    """One that has been silent for longer than the limit is forgotten, and that is told."""
    publishers = Publishers({"young": entry(1, 50.0), "old": entry(1, 0.0)}, publishers_max=2, idle_s=60.0)
    assert judged(publishers, "c", 1, now_s=61.0) == [NEW]
    assert judged(publishers, "d", 1, now_s=61.0) == [UNADMITTED]
    changes = publishers.settle(61.0, 1)
    assert changes.evicted == ("old",)
    assert set(publishers.entries()) == {"young", "c"}


def test_settling_makes_young() -> None:
    """A publisher that is heard again moves to the end of the queue for eviction."""
    publishers = Publishers({"a": entry(1, 0.0), "b": entry(1, 1.0)}, publishers_max=2, idle_s=10.0)
    judged(publishers, "a", 2, now_s=20.0)
    publishers.settle(20.0, 1)
    judged(publishers, "c", 1, now_s=20.0)
    assert publishers.settle(20.0, 1).evicted == ("b",)


def test_a_publisher_of_this_batch_is_not_evicted() -> None:
    """Idle or not, who has just been heard stays."""
    publishers = Publishers({"a": entry(1, 0.0)}, publishers_max=1, idle_s=10.0)
    assert judged(publishers, "a", 2, now_s=100.0) == [NEW]
    assert judged(publishers, "b", 1, now_s=100.0) == [UNADMITTED]
    assert publishers.settle(100.0, 1).evicted == ()


def test_an_evicted_publisher_that_returns_is_not_reported_gone() -> None:
    """Evicted and admitted again within one batch, it is written and not deleted."""
    publishers = Publishers({"a": entry(1, 0.0), "b": entry(1, 0.0)}, publishers_max=2, idle_s=10.0)
    judged(publishers, "c", 1, now_s=100.0)
    judged(publishers, "a", 5, now_s=100.0)
    changes = publishers.settle(100.0, 1)
    assert set(changes.entries) == {"a", "c"}
    assert changes.evicted == ("b",)


def test_an_eviction_outlives_an_abandoned_draft() -> None:
    """Memory has forgotten the publisher, so Redis has to be told with the next batch."""
    publishers = Publishers({"a": entry(1, 0.0)}, publishers_max=1, idle_s=10.0)
    judged(publishers, "b", 1, now_s=100.0)
    publishers.abandon()
    assert publishers.settle(100.0, 1).evicted == ("a",)


def test_what_is_within_reach_of_a_loss_is_uncertain() -> None:
    """NEW is not proven up to the sequence that the window says, and is from there on."""
    publishers = Publishers({"a": entry(3, uncertain_to=5)})
    assert [publishers.judge("a", n, 0.0) for n in (4, 5, 6)] == [(NEW, True), (NEW, True), (NEW, False)]


def test_after_a_loss_an_unknown_publisher_is_uncertain_for_one_window() -> None:
    """Who is not in a map that was lost may have been; the doubt is kept with its window."""
    publishers = Publishers(size=4, unknown_uncertain=True)
    assert [publishers.judge("a", n, 0.0) for n in (10, 14, 15)] == [(NEW, True), (NEW, True), (NEW, False)]
    assert publishers.settle(0.0, 1).entries["a"].window.uncertain_to == 14


def test_what_the_broker_delivers_again_does_not_end_uncertainty() -> None:
    """It may be old: only a first delivery tells where the publisher is by now."""
    publishers = Publishers(size=4, unknown_uncertain=True)
    for sequence in (10, 11):
        assert publishers.judge("a", sequence, 0.0, redelivered=True) == (NEW, True)
    assert publishers.settle(0.0, 1).entries["a"].window.uncertain_to == UNCERTAIN
    assert [publishers.judge("a", n, 0.0) for n in (13, 17, 18)] == [(NEW, True), (NEW, True), (NEW, False)]


def test_uncertainty_without_an_end_ends_one_window_after_the_first_delivery() -> None:
    """A publisher of a map that went back: what it sends again is at most one window old."""
    publishers = Publishers({"a": entry(3, uncertain_to=UNCERTAIN)}, size=4)
    assert publishers.judge("a", 3, 0.0) == (DUPLICATE, True)
    assert [publishers.judge("a", n, 0.0) for n in (4, 7, 8)] == [(NEW, True), (NEW, True), (NEW, False)]


def test_the_end_of_uncertainty_is_a_sequence() -> None:
    """It does not go above the highest there is."""
    publishers = Publishers({"a": entry(3, uncertain_to=UNCERTAIN)}, size=4)
    publishers.judge("a", UNCERTAIN - 1, 0.0)
    assert publishers.settle(0.0, 1).entries["a"].window.uncertain_to == UNCERTAIN


def test_while_state_is_lost_a_range_never_seen_is_uncertain_anew() -> None:
    """A later owner of the publisher id may have been in the map that was lost; otherwise it may not."""
    for lost in (True, False):
        publishers = Publishers({"a": entry(3, uncertain_to=5)}, size=4, unknown_uncertain=lost)
        assert publishers.judge("a", 100, 0.0) == (NEW, lost)
        assert publishers.settle(0.0, 1).entries["a"].window.uncertain_to == (104 if lost else 5)


def test_replayed_markers_count_as_seen() -> None:
    """Recovery records what the ledger says was forwarded, known publisher or not."""
    entries = {"a": entry(3, 1.0)}
    remember(entries, {"a": (4, 6), "b": (9,), "c": ()}, 1, 4, 2.0)
    assert entries["a"] == Entry(Window(6, 1, missing=0b1), 2.0)
    assert entries["b"].window == judge_window(None, 9, 4)[1]
    assert set(entries) == {"a", "b"}


@define
class _Known:
    """The plain model of one publisher: every sequence it sent, when, and where its window was opened."""

    seen: set[int]
    floor: int
    seen_s: float


class PublishersMachine(RuleBasedStateMachine):
    """Judge, settle, abandon and wait in any order, against sets."""

    @initialize(
        size=st.integers(1, 12), publishers_max=st.integers(1, 3), idle_s=st.sampled_from([0.0, 2.0, 50.0])
    )
    def start(self, size: int, publishers_max: int, idle_s: float) -> None:
        self.size, self.max, self.idle_s = size, publishers_max, idle_s
        self.publishers = Publishers(size=size, publishers_max=publishers_max, idle_s=idle_s)
        self.settled: dict[str, _Known] = {}
        self.draft: dict[str, _Known] = {}
        self.evicted: set[str] = set()
        self.now_s = 0.0

    @rule(publisher=st.sampled_from("abcde"), sequence=st.integers(1, 40))
    def judge(self, publisher: str, sequence: int) -> None:
        verdict, uncertain = self.publishers.judge(publisher, sequence, self.now_s)
        assert not uncertain
        known = self.draft.get(publisher) or self.settled.get(publisher)
        if known is None:
            if len(self.settled.keys() | self.draft.keys()) >= self.max:
                idle = [name for name, k in self.settled.items() if self.now_s - k.seen_s > self.idle_s]
                idle = [name for name in idle if name not in self.draft]
                if not idle:
                    assert verdict is UNADMITTED
                    return
                gone = self.settled.keys() - self.publishers.entries().keys()
                assert len(gone) == 1
                assert gone <= set(idle)
                for name in gone:
                    del self.settled[name]
                    self.evicted.add(name)
            known = _Known(set(), max(1, sequence - self.size + 1), self.now_s)
        known = _Known(set(known.seen), known.floor, known.seen_s)
        last = max(known.seen, default=0)
        if known.seen and sequence - last > self.size:
            known.floor = sequence - self.size + 1
        if sequence in known.seen and sequence > last - self.size and sequence >= known.floor:
            assert verdict is DUPLICATE
            return
        if known.seen and (sequence <= last - self.size or sequence < known.floor):
            assert verdict is TOO_OLD
            return
        assert verdict is NEW
        known.seen.add(sequence)
        self.draft[publisher] = known

    @rule()
    def settle(self) -> None:
        changes = self.publishers.settle(self.now_s, 1)
        assert set(changes.entries) == set(self.draft)
        assert set(changes.evicted) == self.evicted - self.draft.keys()
        for name, known in self.draft.items():
            known.seen_s = self.now_s
            self.settled[name] = known
        self.draft, self.evicted = {}, set()

    @rule()
    def abandon(self) -> None:
        self.publishers.abandon()
        self.draft = {}

    @rule(seconds=st.sampled_from([0.5, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def the_map_is_bounded_and_settled_only(self) -> None:
        entries: dict[str, Any] = self.publishers.entries()
        assert {name: e.window.last for name, e in entries.items()} == {
            name: max(known.seen) for name, known in self.settled.items()
        }
        assert len(self.publishers) == len(self.settled.keys() | self.draft.keys()) <= self.max


PublishersMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPublishersAgainstSets = PublishersMachine.TestCase
