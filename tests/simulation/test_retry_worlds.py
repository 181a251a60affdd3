"""
The production retrier in small worlds explored whole: killed, cut off, unheard and restarted at every step.

The mutants are the reason to believe the rest: each takes one safeguard away, and a world must notice.
"""

from __future__ import annotations

from typing import Any

import pytest

from dedup.core import retry_steps as steps
from dedup.core.retrier import Retrier
from dedup.core.retry_steps import Entry, Kept
from tests.simulation.exploring import explore
from tests.simulation.retry_world import World
from tests.simulation.retry_worlds import MORE, REST_EVERY, SMALL


@pytest.mark.parametrize("name", SMALL)
def test_in_every_state_each_letter_is_kept_and_none_is_doubled_unmarked(name: str) -> None:
    """Whatever ends a session at whatever step, each letter arrives, and only its first copy is unmarked."""
    explored = explore(SMALL[name](), rest_every=REST_EVERY)
    assert not explored.reason, explored
    assert explored.states > 30


_on_stored, _on_arrived, _on_published, _store, _forget = (
    Retrier._on_stored,
    Retrier._on_arrived,
    Retrier._on_published,
    World.store,
    Retrier._forget,
)


def _acks_before_it_stores(self: Retrier, event: steps.Arrived, now_s: float) -> list[Any]:
    return [steps.Ack([letter.tag for letter in event.letters]), *_on_arrived(self, event, now_s)]


def _acks_nothing_twice(self: Retrier, event: steps.Stored, now_s: float) -> list[Any]:
    return [effect for effect in _on_stored(self, event, now_s) if not isinstance(effect, steps.Ack)]


def _settles_before_it_publishes(self: Retrier, event: steps.Claimed, now_s: float) -> list[Any]:
    if not self._claiming:
        return []
    effects = _on_claimed(self, event, now_s)
    ids = [item.id for item in event.items]
    return [steps.Settle(ids, [], 0.0), *effects] if ids else effects


_on_claimed = Retrier._on_claimed


def _publishes_unmarked(self: Retrier, event: steps.Claimed, now_s: float) -> list[Any]:
    for item in event.items:
        item.marked = False
    return _on_claimed(self, event, now_s)


def _keeps_no_digest(self: World, session: str, number: int, entries: list[Entry]) -> tuple[Kept, ...] | None:
    kept = _store(self, session, number, entries)
    self.digests = {entry.letter.digest: entry.own for entry in entries}
    return kept


def _takes_twins_for_copies(
    self: World, session: str, number: int, entries: list[Entry]
) -> tuple[Kept, ...] | None:
    for entry in entries:
        entry.letter.stamped = True
    return _store(self, session, number, entries)


def _stores_what_was_stored(
    self: World, session: str, number: int, entries: list[Entry]
) -> tuple[Kept, ...] | None:
    known = self.known.get(session)
    if known is not None:
        self.known[session] = (0, known[1])
    for entry in entries:
        entry.own += 100
    return _store(self, session, number, entries)


def _recovers_the_living(self: World, name: str, *, heard: bool = True) -> None:
    if self.sessions[name].effects and isinstance(self.sessions[name].effects[0], steps.Sweep):
        for other in [other for other in self.known if other != name and self.claimed.get(other)]:
            self.recover(other)
            self.doubtful.clear()
    _perform(self, name, heard=heard)


def _forgets_at_once(self: Retrier, now_s: float) -> list[Any]:
    return _forget(self, now_s + 1000)


def _believes_its_acks(self: Retrier) -> list[Any]:
    if self._digests.probe():
        self._digests.probed(-1000.0)
    return []


_perform = World.perform


def _buries_and_acks_at_once(self: Retrier, event: steps.Stored, now_s: float) -> list[Any]:
    direct = [entry.letter.tag for entry in self._storing if entry.direct]
    effects = _on_stored(self, event, now_s)
    return [steps.Ack(direct), *effects] if direct else effects


MUTANTS: dict[str, tuple[Any, str, Any, str, str]] = {
    "an ack before the letter is stored": (
        Retrier,
        "_on_arrived",
        _acks_before_it_stores,
        "killed",
        "is lost",
    ),
    "a message deleted before its confirm": (
        Retrier,
        "_on_claimed",
        _settles_before_it_publishes,
        "killed",
        "is lost",
    ),
    "no mark on what was claimed before": (
        Retrier,
        "_on_claimed",
        _publishes_unmarked,
        "killed",
        "doubled without a mark",
    ),
    "no digest kept": (World, "store", _keeps_no_digest, "killed", "doubled without a mark"),
    "twins taken for copies": (World, "store", _takes_twins_for_copies, "twins, killed", "is lost"),
    "a batch written twice": (
        World,
        "store",
        _stores_what_was_stored,
        "answers are lost",
        "doubled without a mark",
    ),
    "the living taken for dead": (
        World,
        "perform",
        _recovers_the_living,
        "two sessions",
        "doubled without a mark",
    ),
    "a digest forgotten with its ack": (
        Retrier,
        "_forget",
        _forgets_at_once,
        "the broker restarts",
        "doubled without a mark",
    ),
    "an ack taken for arrived": (
        Retrier,
        "_probe",
        _believes_its_acks,
        "acks are long on their way",
        "doubled without a mark",
    ),
    "an ack before what passes the schedule is confirmed": (
        Retrier,
        "_on_stored",
        _buries_and_acks_at_once,
        "past the schedule, killed",
        "is lost",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard there is a story that ends badly, and its reason is the right one."""
    owner, attribute, function, world, reason = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, function)
    rest_every = REST_EVERY if reason == "is lost" else 0
    explored = explore((SMALL | MORE)[world](), rest_every=rest_every)
    assert reason in explored.reason, explored
    assert explored.story
