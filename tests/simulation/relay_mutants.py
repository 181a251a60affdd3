"""Mutants of the relay: order of effects, ledger, recovery, fence, judgement and the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve

from dedup.core import recovery, steps
from dedup.core.judge import Judge, Judged
from dedup.core.ledger import Ledger
from dedup.core.phase import Phase
from dedup.core.publishers import Changes, Entry, Publishers
from dedup.core.records import Batch, Marker, MarkerKind, State
from dedup.core.relay import Relay
from tests.simulation.mutants import (
    LOST,
    UNALLOWED,
    UNMARKED,
    Mutant,
    knowing,
    reading,
    recovering,
    replaced,
)
from tests.simulation.relay_state import Redis
from tests.simulation.store_rules import write_as_the_store

_save = Relay._save
_anchor = Relay._anchor
_on_saved = Relay._on_saved
_on_claimed = Relay._on_claimed
_on_closed = Relay._on_closed
_settle = Judge.settle
_judge_init = Judge.__init__
_release = Ledger.release


def _nothing(_: pytest.MonkeyPatch) -> None:
    """The store is the mutant."""


def _no_intent(self: Relay) -> steps.Effect:
    save = _save(self)
    assert isinstance(save, steps.Save)
    return evolve(save, intent=None)


def _intent_without_sequences(self: Relay) -> steps.Effect:
    save = _save(self)
    assert isinstance(save, steps.Save)
    return save if save.intent is None else evolve(save, intent=evolve(save.intent, sequences={}))


def _persist_before_forward(self: Relay) -> steps.Effect:
    save = _save(self)
    assert isinstance(save, steps.Save)
    draft = {name: Entry(window, 0.0) for name, window in self.judge.publishers._draft.items()}
    return evolve(save, changes=Changes({**save.changes.entries, **draft}))


def _ack_before_forward(self: Relay, event: steps.Saved, now_s: float) -> list[steps.Effect]:
    if self.phase is Phase.SAVING and self._current is not None:
        self._ackable = self._current.last_tag
    return _on_saved(self, event, now_s)


def _no_founding_marker(self: Relay, now_s: float) -> list[steps.Effect]:
    anchor, *rest = _anchor(self, now_s)
    assert isinstance(anchor, steps.Anchor)
    kept = tuple(marker for marker in anchor.markers if marker.kind is not MarkerKind.FOUNDING)
    return [evolve(anchor, markers=kept), *rest]


def _behind_is_fine(self: Relay, _: steps.StoreBehind, now_s: float) -> list[steps.Effect]:
    return self._on_saved(steps.Saved(), now_s)


def _never_restarted(self: Relay, event: steps.Claimed, now_s: float) -> list[steps.Effect]:
    return _on_claimed(self, evolve(event, restarted=False), now_s)


def _always_clean(self: Relay, event: steps.Closed, now_s: float) -> list[steps.Effect]:
    self._clean, self.judge.suspect = True, False
    return _on_closed(self, event, now_s)


def _released_at_once(self: Ledger, now_s: float) -> tuple[int, ...]:
    self._keep_s, self._own_tag = 0.0, 0
    return _release(self, now_s)


def _thrown_away(self: Ledger, tag: int, _payload: object) -> None:
    self._held[tag] = None


def _released_with_sending(self: Relay, now_s: float) -> list[steps.Effect]:
    anchor, *rest = _anchor(self, now_s)
    assert isinstance(anchor, steps.Anchor)
    return [evolve(anchor, release=(*anchor.release, *self.ledger.release_strays())), *rest]


def _left(_self: Relay, _event: steps.StrayArrived, _now_s: float) -> list[steps.Effect]:
    return []


def _without(kind: MarkerKind) -> Callable[[Sequence[Marker]], Sequence[Marker]]:
    return lambda markers: [marker for marker in markers if marker.kind is not kind]


def _any_witness(markers: Sequence[Marker], _intent: Batch) -> bool:
    return any(marker.kind is not MarkerKind.FOUNDING for marker in markers)


def _without_doubt(state: State | None) -> State | None:
    return state and evolve(state, doubt={})


def _confirms_taken_for_transactions(
    state: State | None, markers: Sequence[Marker], facts: dict[str, Any]
) -> tuple[State | None, Sequence[Marker], dict[str, Any]]:
    if state is not None and state.intent is not None:
        state = evolve(state, intent=evolve(state.intent, exact=True))
    return state, _without(MarkerKind.INTENT)(markers), facts


def _written_by_the_newest(
    state: State | None, markers: Sequence[Marker], facts: dict[str, Any]
) -> tuple[State | None, Sequence[Marker], dict[str, Any]]:
    if state is not None and not state.clean:
        tokens = [marker.batch.token for marker in markers if marker.kind is not MarkerKind.FIRST]
        state = evolve(state, writer=max([state.writer, *tokens]))
    return state, markers, facts


def _forgotten(self: Publishers, _now_s: float, _batch: int) -> Changes:
    self._draft = {}
    return Changes({})


def _refused_is_recorded(self: Judge, batch: Judged, now_s: float) -> Changes:
    batch.remaining = ()
    return _settle(self, batch, now_s)


def _not_doubted(self: Judge, _batch: Judged) -> None:
    self.publishers.abandon()


def _never_suspect(self: Judge, *arguments: Any, suspect: bool) -> None:
    _judge_init(self, *arguments, suspect=suspect and False)


def _no_fence(
    redis: Redis, state: State | None, effect: steps.Save | steps.Replace, revision: int
) -> tuple[str, State | None]:
    return write_as_the_store(redis._replace(token=effect.token), state, effect, revision)


def _adding_store(
    redis: Redis, state: State | None, effect: steps.Save | steps.Replace, revision: int
) -> tuple[str, State | None]:
    if redis.revision == revision + 1:  # does not see that this write was here before
        assert state is not None
        return "saved", evolve(state, batch=state.batch + 1)
    return write_as_the_store(redis, state, effect, revision)


#: One message, one at a time.
ONE: dict[str, Any] = {"messages": 1, "batch_max": 1}
#: Several messages, one after the other.
IN_TURN: dict[str, Any] = {"copies": 1, "batch_max": 1, "prefetch": 1}

MUTANTS = {
    # intent, persist, ack
    "no intent": Mutant(
        replaced(Relay, "_save", _no_intent), {"messages": 1, "broker_restarts": 1}, UNMARKED
    ),
    "an intent without sequences": Mutant(
        replaced(Relay, "_save", _intent_without_sequences),
        {**ONE, "exact": False, "broker_restarts": 1},
        UNMARKED,
    ),
    "the windows persisted before the forward": Mutant(
        replaced(Relay, "_save", _persist_before_forward), {"copies": 1, "kills": 1}, LOST
    ),
    "an ack before the forward": Mutant(
        replaced(Relay, "_on_saved", _ack_before_forward), {"messages": 1, "copies": 1, "kills": 1}, LOST
    ),
    # ledger
    "the ledger not read": Mutant(reading(lambda _: ()), {"messages": 1, "kills": 1}, UNALLOWED),
    "first markers not read": Mutant(
        reading(_without(MarkerKind.FIRST)), {"messages": 1, "kills": 1}, UNALLOWED
    ),
    "any marker a witness, whatever its token": Mutant(
        replaced(recovery, "_witnessed", _any_witness),
        {**ONE, "copies": 1, "broker_restarts": 1, "kills": 1},
        UNMARKED,
    ),
    "the redo log ignored": Mutant(
        replaced(recovery, "remember", lambda *_: None), {"messages": 1, "kills": 1}, UNMARKED
    ),
    "markers released at once": Mutant(
        replaced(Ledger, "release", _released_at_once),
        {**IN_TURN, "messages": 3, "kills": 1, "redis_regressions": 1, "lost_writes": 2},
        UNALLOWED,
    ),
    "no founding marker": Mutant(
        replaced(Relay, "_anchor", _no_founding_marker),
        {**ONE, "broker_restarts": 1, "redis_emptied": 1},
        UNMARKED,
    ),
    # what found no queue
    "strays taken for junk": Mutant(
        replaced(Ledger, "add_stray", _thrown_away),
        {"messages": 1, "copies": 1, "missing_queues": 1, "broker_restarts": 1, "batch_max": 1},
        LOST,
    ),
    "strays released with being sent on": Mutant(
        replaced(Relay, "_anchor", _released_with_sending),
        {"messages": 1, "copies": 1, "missing_queues": 1, "broker_restarts": 1, "batch_max": 1},
        LOST,
    ),
    "strays left where they are": Mutant(
        replaced(Relay, "_on_stray", _left),
        {"messages": 1, "missing_queues": 1, "batch_max": 1},
        "stay in the ledger",
        1,
    ),
    # doubt
    "doubt not sticky": Mutant(knowing(_without_doubt), {**ONE, "broker_restarts": 1, "kills": 1}, UNMARKED),
    "confirmed forwards taken for transactions": Mutant(
        recovering(_confirms_taken_for_transactions), {"exact": False, "messages": 1, "kills": 1}, UNMARKED
    ),
    "the marker of a partial commit believed": Mutant(
        recovering(lambda state, markers, facts: (state, markers, {**facts, "trust_exact": True})),
        {"messages": 1, "copies": 1, "partial_commits": 1, "kills": 1},
        LOST,
    ),
    "transactions doubted by whoever uses confirms": Mutant(
        recovering(lambda state, markers, facts: (state, markers, {**facts, "trust_exact": False})),
        {"messages": 1, "kills": 1, "in_turns": True},
        "marked although no fault allows it",
    ),
    "no doubt after a partial commit": Mutant(
        replaced(Judge, "doubt_all", _not_doubted), {"messages": 1, "partial_commits": 1}, UNMARKED
    ),
    # judgement
    "the windows not updated": Mutant(replaced(Publishers, "settle", _forgotten), {"messages": 1}, UNMARKED),
    "refused messages recorded": Mutant(
        replaced(Judge, "settle", _refused_is_recorded),
        {"exact": False, "messages": 1, "copies": 1, "refusals": 1, "stops": 1},
        LOST,
    ),
    "always clean": Mutant(
        replaced(Relay, "_on_closed", _always_clean),
        {**ONE, "untracked": 1, "copies": 1, "kills": 1, "stops": 1},
        UNMARKED,
    ),
    "redelivered messages believed": Mutant(
        replaced(Judge, "__init__", _never_suspect),
        {**ONE, "untracked": 1, "copies": 1, "kills": 1},
        UNMARKED,
    ),
    # a Redis that goes backward
    "a store that is behind ignored": Mutant(
        replaced(Relay, "_on_store_behind", _behind_is_fine),
        {**IN_TURN, "messages": 4, "kills": 1, "redis_regressions": 1},
        UNALLOWED,
    ),
    "a restart of Redis ignored": Mutant(
        replaced(Relay, "_on_claimed", _never_restarted),
        {**ONE, "broker_restarts": 1, "redis_regressions": 1},
        UNMARKED,
    ),
    "windows believed after a rollback": Mutant(
        replaced(recovery, "_uncertain", lambda entry: entry),
        {**IN_TURN, "broker_restarts": 1, "redis_regressions": 1},
        UNMARKED,
    ),
    "a state of an older writer taken for the newest": Mutant(
        recovering(_written_by_the_newest),
        {**ONE, "copies": 1, "lost_fences": 1, "redis_emptied": 1, "broker_restarts": 1},
        UNMARKED,
    ),
    # the store
    "the fence ignored by the store": Mutant(
        _nothing, {**IN_TURN, "messages": 4, "lost_fences": 1, "kills": 1, "write": _no_fence}, UNALLOWED
    ),
    "a store that writes twice": Mutant(
        _nothing, {"messages": 1, "lost_replies": 1, "write": _adding_store}, "a repeated write"
    ),
}
