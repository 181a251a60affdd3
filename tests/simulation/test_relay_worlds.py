"""
The production relay in small worlds, each explored whole, and in long random ones.

The mutants at the end are the reason to believe the rest: each takes one safeguard away, and a world must notice.
SIMULATION_SEEDS in the environment sets how many long ways are taken; one of them is repeated with
``pytest tests/simulation/test_relay_worlds.py -k "long_way and 17"``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve, frozen

from dedup.core import recovery, relay, steps
from dedup.core.judge import Judge, Judged
from dedup.core.ledger import Ledger
from dedup.core.publishers import Changes, Entry, Publishers
from dedup.core.records import Marker, MarkerKind, State
from dedup.core.relay import Phase, Relay
from tests.simulation.relay_world import Explorer, Redis, explore, wander, write_as_the_store

#: From one state in so many, the world must come to rest with everything where it belongs.
REST_EVERY = 50
#: A long way takes so many steps.
STEPS = 400

WORLDS: dict[str, dict[str, Any]] = {
    # exact forwarding
    "two kills": {"kills": 2, "batch_max": 1, "prefetch": 2},
    "a kill while much is in flight": {"kills": 1},
    "three kills of one message": {"messages": 1, "copies": 3, "kills": 3, "batch_max": 1},
    "three messages in batches": {"messages": 3, "copies": 1, "kills": 1, "prefetch": 2},
    "a stop and a kill": {"kills": 1, "stops": 1, "prefetch": 2},
    "the broker restarts": {"broker_restarts": 1, "prefetch": 2},
    "the broker restarts twice": {"messages": 1, "kills": 1, "broker_restarts": 2, "batch_max": 1},
    "Redis restarts": {"kills": 1, "redis_regressions": 1, "batch_max": 1},
    "Redis restarts and loses two writes": {
        "messages": 3,
        "copies": 1,
        "kills": 1,
        "redis_regressions": 1,
        "lost_writes": 2,
        "batch_max": 1,
        "prefetch": 1,
    },
    "Redis restarts and loses what two relays wrote": {
        "copies": 1,
        "kills": 2,
        "redis_regressions": 1,
        "lost_writes": 3,
        "batch_max": 1,
        "prefetch": 1,
    },
    "Redis restarts twice": {"messages": 1, "copies": 3, "kills": 2, "redis_regressions": 2, "batch_max": 1},
    "Redis restarts and is emptied, the relay lives": {
        "redis_regressions": 1,
        "redis_emptied": 1,
        "batch_max": 1,
        "marking": (),
    },
    "Redis is emptied": {"kills": 1, "redis_emptied": 1, "prefetch": 2},
    "Redis is emptied and the relay killed twice": {
        "messages": 1,
        "copies": 3,
        "kills": 2,
        "redis_emptied": 1,
        "batch_max": 1,
    },
    "Redis is emptied and the broker restarts": {
        "messages": 1,
        "redis_emptied": 1,
        "broker_restarts": 1,
        "batch_max": 1,
    },
    "answers of Redis are lost": {"kills": 1, "lost_replies": 2, "prefetch": 2},
    "a fence is lost": {"kills": 1, "lost_fences": 1, "batch_max": 1, "prefetch": 1},
    "a fence is lost and Redis restarts": {
        "messages": 1,
        "kills": 1,
        "lost_fences": 1,
        "redis_regressions": 1,
        "batch_max": 1,
    },
    "a commit is partial": {"copies": 1, "kills": 2, "partial_commits": 1},
    "a transaction returns messages": {"copies": 1, "refusals": 2, "stops": 1, "batch_max": 2},
    "the ledger is rewritten all the time": {"kills": 1, "anchor_every_s": 1.0, "prefetch": 2},
    "the ledger is rewritten while servers restart": {
        "messages": 1,
        "copies": 2,
        "kills": 1,
        "broker_restarts": 1,
        "redis_regressions": 1,
        "anchor_every_s": 1.0,
        "batch_max": 1,
    },
    "everything at once": {
        "messages": 1,
        "kills": 1,
        "broker_restarts": 1,
        "redis_regressions": 1,
        "lost_replies": 1,
        "batch_max": 1,
    },
    "Redis restarts twice while the ledger is rewritten": {
        "kills": 1,
        "redis_regressions": 2,
        "anchor_every_s": 1.0,
        "batch_max": 1,
        "prefetch": 1,
    },
    "Redis is emptied, the broker restarts, and a replay opens a window": {
        "kills": 1,
        "redis_emptied": 1,
        "broker_restarts": 1,
        "copies": 2,
        "batch_max": 1,
        "prefetch": 1,
    },
    "Redis forgets that it had been rolled back": {
        "messages": 1,
        "copies": 1,
        "kills": 1,
        "redis_emptied": 1,
        "redis_regressions": 1,
        "broker_restarts": 1,
        "batch_max": 1,
        "prefetch": 1,
    },
    "Redis forgets all that was done since a clean stop, the broker restarts": {
        "messages": 1,
        "copies": 1,
        "stops": 1,
        "broker_restarts": 1,
        "redis_regressions": 1,
        "lost_writes": 4,
        "batch_max": 1,
    },
    "untracked messages": {"untracked": 1, "copies": 1, "kills": 1, "stops": 1},
    "untracked messages and an emptied Redis": {
        "messages": 1,
        "untracked": 1,
        "kills": 1,
        "redis_emptied": 1,
        "batch_max": 1,
    },
    "untracked messages and servers that restart": {
        "messages": 1,
        "untracked": 1,
        "copies": 1,
        "stops": 1,
        "broker_restarts": 1,
        "redis_regressions": 1,
        "batch_max": 1,
    },
    # confirmed forwarding
    "confirmed: a kill": {"exact": False, "kills": 1, "prefetch": 2},
    "confirmed: three kills of one message": {"exact": False, "messages": 1, "kills": 3, "batch_max": 1},
    "confirmed: the target refuses": {"exact": False, "copies": 1, "kills": 1, "refusals": 2, "stops": 1},
    "confirmed: the target refuses retried messages": {
        "exact": False,
        "messages": 1,
        "kills": 1,
        "refusals": 2,
        "stops": 1,
        "batch_max": 1,
    },
    "confirmed: the broker restarts": {
        "exact": False,
        "messages": 1,
        "kills": 1,
        "broker_restarts": 1,
        "refusals": 1,
        "batch_max": 1,
    },
    "confirmed: Redis loses everything": {
        "exact": False,
        "messages": 1,
        "kills": 1,
        "redis_regressions": 1,
        "redis_emptied": 1,
        "batch_max": 1,
    },
    "confirmed: Redis restarts, the relay lives": {
        "exact": False,
        "redis_regressions": 2,
        "lost_replies": 1,
        "batch_max": 1,
        "marking": (),
    },
    "confirmed: a fence is lost": {
        "exact": False,
        "messages": 1,
        "kills": 1,
        "lost_fences": 1,
        "redis_regressions": 1,
        "batch_max": 1,
    },
    "confirmed: Redis forgets all that was done since a clean stop": {
        "exact": False,
        "messages": 1,
        "copies": 1,
        "kills": 1,
        "stops": 1,
        "redis_regressions": 1,
        "lost_writes": 4,
        "batch_max": 1,
    },
    "confirmed: untracked messages": {
        "exact": False,
        "untracked": 1,
        "copies": 1,
        "kills": 1,
        "stops": 1,
        "redis_regressions": 1,
        "batch_max": 1,
    },
}


def told(story: Sequence[str], reason: str) -> str:
    """
    Return what went wrong and the way there, a line a step.
    """
    return "\n  ".join([reason, *story])


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_in_every_state_of_a_world_nothing_is_lost_or_doubled(world: dict[str, Any]) -> None:
    """Whatever fails after whichever step, the promise holds, and afterwards everything arrives."""
    _, story, reason = explore(Explorer(**world), rest_every=REST_EVERY)
    assert not story, told(story, reason)


@pytest.mark.xfail(strict=True, reason="the marker of a transaction also speaks of messages it has returned")
def test_a_kill_right_after_a_transaction_returned_a_message() -> None:
    """A message that neither the target nor its alternate exchange took is not in the target, whatever the marker says."""
    world = Explorer(messages=1, copies=1, batch_max=1, kills=1, refusals=1)
    _, story, reason = explore(world)
    assert not story, told(story, reason)


SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_long_way_of_random_faults_ends_well(seed: int) -> None:
    """Many messages of three publishers, faults of every kind at random: safe at every step, and in the end all is there."""
    exact = seed % 2 == 0
    world = Explorer(
        messages=6 + seed % 3,
        copies=3,
        publishers=3,
        untracked=seed % 3,
        batch_max=1 + seed % 3,
        exact=exact,
        anchor_every_s=(2.0, 5.0, 1e9)[seed % 3],
        kills=4,
        broker_restarts=2 if seed % 5 else 0,
        redis_regressions=3,
        lost_writes=1 + seed % 2 * 2,
        redis_emptied=1 if seed % 7 == 0 else 0,
        lost_replies=5,
        refusals=0 if exact else 5,
        partial_commits=seed % 4 // 3,
        lost_fences=2,
        stops=2,
    )
    story, reason = wander(world, seed, STEPS)
    assert not reason, told(story, reason)


def test_a_long_way_is_the_same_every_time() -> None:
    """A seed tells the whole story, so a failure can be repeated."""
    ways = [
        wander(Explorer(messages=3, publishers=3, kills=3, broker_restarts=1), 7, STEPS) for _ in range(2)
    ]
    assert ways[0] == ways[1]
    assert any("KILL" in step for step in ways[0][0])


# -- mutants --------------------------------------------------------------------------------------


@frozen
class Mutant:
    """
    One safeguard taken away, and the world that must notice.
    """

    patch: Callable[[pytest.MonkeyPatch], None]
    world: dict[str, Any]
    #: Part of what the world has to say.
    reason: str


def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """
    Return the patch that puts *function* in the place of a method or function.
    """
    function.__name__ = name  # relays are pickled, their handlers by name
    return lambda patch: patch.setattr(owner, name, function)


def recovering(change: Callable[..., tuple[State | None, Sequence[Marker], dict[str, Any]]]) -> Any:
    """
    Return the patch that lets recovery see what *change* makes of state, markers and the rest.
    """
    real = recovery.recover

    def recover(state: State | None, markers: Sequence[Marker], **facts: Any) -> recovery.Recovered:
        changed_state, changed_markers, changed_facts = change(state, markers, facts)
        return real(changed_state, changed_markers, **changed_facts)

    return replaced(relay, "recover", recover)


def _nothing(_: pytest.MonkeyPatch) -> None:
    """The store is the mutant."""


def _believed_exact(state: State | None) -> State | None:
    if state is None or state.intent is None:
        return state
    return evolve(state, intent=evolve(state.intent, exact=True))


def _no_intent(self: Relay) -> steps.Effect:
    save = _save(self)
    assert isinstance(save, steps.Save)
    return evolve(save, intent=None)


def _persist_before_forward(self: Relay) -> steps.Effect:
    save = _save(self)
    assert isinstance(save, steps.Save)
    draft = {name: Entry(window, 0.0) for name, window in self.judge.publishers._draft.items()}
    return evolve(save, changes=Changes({**save.changes.entries, **draft}))


def _ack_before_forward(self: Relay, event: steps.Saved, now_s: float) -> list[steps.Effect]:
    if self.phase is Phase.SAVING and self._current is not None:
        self._ackable = self._current.last_tag
    return _on_saved(self, event, now_s)


def _forward_before_intent(self: Relay) -> steps.Effect:
    save = _save(self)
    assert isinstance(save, steps.Save)
    return save if save.intent is None else evolve(save, intent=evolve(save.intent, sequences={}))


def _any_witness(markers: Sequence[Marker], _state: State) -> bool:
    return any(marker.kind is not MarkerKind.FOUNDING for marker in markers)


def _forgotten(self: Publishers, _now_s: float) -> Changes:
    self._draft = {}
    return Changes({})


def _refused_is_recorded(self: Judge, batch: Judged, now_s: float) -> Changes:
    batch.remaining = ()
    return _settle(self, batch, now_s)


def _not_doubted(self: Judge, _batch: Judged) -> None:
    self.publishers.abandon()


def _released_at_once(self: Ledger, now_s: float) -> tuple[int, ...]:
    self._keep_s, self._own_tag = 0.0, 0
    return _release(self, now_s)


def _anchor_with(*kinds: MarkerKind) -> Callable[..., list[steps.Effect]]:
    def _anchor(self: Relay, now_s: float) -> list[steps.Effect]:
        anchor, *rest = _real_anchor(self, now_s)
        assert isinstance(anchor, steps.Anchor)
        kept = tuple(marker for marker in anchor.markers if marker.kind in kinds)
        return [evolve(anchor, markers=kept), *rest]

    return _anchor


def _behind_is_fine(self: Relay, _: steps.StoreBehind, now_s: float) -> list[steps.Effect]:
    return self._on_saved(steps.Saved(), now_s)


def _never_restarted(self: Relay, event: steps.Claimed, now_s: float) -> list[steps.Effect]:
    return _on_claimed(self, evolve(event, restarted=False), now_s)


def _always_clean(self: Relay, event: steps.Closed, now_s: float) -> list[steps.Effect]:
    self._clean, self.judge.suspect = True, False
    return _on_closed(self, event, now_s)


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


_save = Relay._save
_on_saved = Relay._on_saved
_on_claimed = Relay._on_claimed
_on_closed = Relay._on_closed
_real_anchor = Relay._anchor
_settle = Judge.settle
_judge_init = Judge.__init__
_release = Ledger.release

UNMARKED, UNALLOWED, LOST = "doubled without a mark", "although no fault allows it", "is lost"

MUTANTS = {
    "no intent": Mutant(
        replaced(Relay, "_save", _no_intent), {"messages": 1, "broker_restarts": 1}, UNMARKED
    ),
    "an intent without sequences": Mutant(
        replaced(Relay, "_save", _forward_before_intent),
        {"exact": False, "messages": 1, "kills": 1},
        UNMARKED,
    ),
    "the windows persisted before the forward": Mutant(
        replaced(Relay, "_save", _persist_before_forward), {"copies": 1, "kills": 1}, LOST
    ),
    "an ack before the forward": Mutant(
        replaced(Relay, "_on_saved", _ack_before_forward), {"messages": 1, "copies": 1, "kills": 1}, LOST
    ),
    "the ledger not read": Mutant(
        recovering(lambda state, _markers, facts: (state, (), facts)), {"messages": 1, "kills": 1}, UNALLOWED
    ),
    "first markers not read": Mutant(
        recovering(
            lambda state, markers, facts: (
                state,
                [m for m in markers if m.kind is not MarkerKind.FIRST],
                facts,
            )
        ),
        {"messages": 1, "kills": 1},
        UNALLOWED,
    ),
    "any marker a witness": Mutant(
        replaced(recovery, "_settled_by", _any_witness),
        {"messages": 1, "broker_restarts": 1, "kills": 1, "batch_max": 1},
        UNMARKED,
    ),
    "the redo log ignored": Mutant(
        replaced(recovery, "remember", lambda *_: None), {"messages": 1, "kills": 1}, UNMARKED
    ),
    "doubt not sticky": Mutant(
        recovering(lambda state, markers, facts: (state and evolve(state, doubt={}), markers, facts)),
        {"messages": 1, "broker_restarts": 1, "kills": 1, "batch_max": 1},
        UNMARKED,
    ),
    "confirmed forwards believed": Mutant(
        recovering(lambda state, markers, facts: (_believed_exact(state), markers, facts)),
        {"exact": False, "messages": 1, "kills": 1},
        UNMARKED,
    ),
    "an exact marker believed after a partial commit": Mutant(
        recovering(lambda state, markers, facts: (state, markers, {**facts, "trust_exact": True})),
        {"messages": 1, "copies": 1, "partial_commits": 1, "kills": 1},
        LOST,
    ),
    "no doubt after a partial commit": Mutant(
        replaced(Judge, "doubt_all", _not_doubted), {"messages": 1, "partial_commits": 1}, UNMARKED
    ),
    "the windows not updated": Mutant(replaced(Publishers, "settle", _forgotten), {"messages": 1}, UNMARKED),
    "refused messages recorded": Mutant(
        replaced(Judge, "settle", _refused_is_recorded),
        {"exact": False, "messages": 1, "copies": 1, "refusals": 1, "stops": 1},
        LOST,
    ),
    "markers released at once": Mutant(
        replaced(Ledger, "release", _released_at_once),
        {"messages": 3, "copies": 1, "batch_max": 1, "kills": 1, "redis_regressions": 1, "lost_writes": 2},
        UNALLOWED,
    ),
    "no founding marker": Mutant(
        replaced(Relay, "_anchor", _anchor_with(MarkerKind.FIRST)),
        {"messages": 1, "broker_restarts": 1, "redis_emptied": 1, "batch_max": 1},
        UNMARKED,
    ),
    "a store that is behind ignored": Mutant(
        replaced(Relay, "_on_store_behind", _behind_is_fine),
        {"messages": 4, "copies": 1, "batch_max": 1, "prefetch": 1, "kills": 1, "redis_regressions": 1},
        UNALLOWED,
    ),
    "a restart of Redis ignored": Mutant(
        replaced(Relay, "_on_claimed", _never_restarted),
        {"messages": 1, "broker_restarts": 1, "redis_regressions": 1, "batch_max": 1},
        UNMARKED,
    ),
    "windows believed after a rollback": Mutant(
        replaced(recovery, "_uncertain", lambda entry, _size: entry),
        {"messages": 3, "copies": 1, "batch_max": 1, "broker_restarts": 1, "redis_regressions": 1},
        UNMARKED,
    ),
    "the fence ignored by the store": Mutant(
        _nothing,
        {
            "messages": 4,
            "copies": 1,
            "batch_max": 1,
            "prefetch": 1,
            "lost_fences": 1,
            "kills": 1,
            "write": _no_fence,
        },
        UNALLOWED,
    ),
    "a store that writes twice": Mutant(
        _nothing, {"messages": 1, "lost_replies": 1, "write": _adding_store}, "a repeated write"
    ),
    "always clean": Mutant(
        replaced(Relay, "_on_closed", _always_clean),
        {"messages": 1, "untracked": 1, "copies": 1, "kills": 1, "stops": 1, "batch_max": 1},
        UNMARKED,
    ),
    "redelivered messages believed": Mutant(
        replaced(Judge, "__init__", _never_suspect),
        {"messages": 1, "untracked": 1, "copies": 1, "kills": 1, "batch_max": 1},
        UNMARKED,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the safeguard the world is right; without it there is a story that ends badly."""
    mutant = MUTANTS[name]
    _, story, reason = explore(Explorer(**{**mutant.world, "write": None}), rest_every=REST_EVERY)
    assert not story, told(story, reason)
    mutant.patch(monkeypatch)
    try:
        states, story, reason = explore(Explorer(**mutant.world), rest_every=REST_EVERY)
    except AssertionError as error:  # the relay or the world caught it itself
        states, story, reason = 0, [], str(error) or "an assertion of the relay"
    assert reason, f"nobody noticed in {states} states"
    assert mutant.reason in reason, told(story, reason)
    print(f"caught {name}:", told(story, reason))
