"""The relay with the policy of a move in small worlds, each explored whole: nothing is lost, and nothing doubled unmarked."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from dedup.core import steps
from dedup.core.message_ids import KEY_SEQUENCE, message_key
from dedup.core.moving import Mover
from dedup.core.publishers import Changes, Publishers
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from dedup.core.window import Verdict
from tests.simulation.exploring import Explored, explore
from tests.simulation.mutants import LOST, UNMARKED, replaced
from tests.simulation.relay_world import Explorer

#: Each message is another one: a second copy of one would be one that somebody published twice.
WORLDS: dict[str, dict[str, Any]] = {
    "two kills": {"kills": 2, "batch_max": 1, "prefetch": 1},
    "a kill while much is in flight": {"messages": 3, "kills": 1, "batch_max": 2, "prefetch": 3},
    "a stop and a kill": {"kills": 1, "stops": 1, "prefetch": 2},
    "the broker restarts": {"kills": 1, "broker_restarts": 1, "batch_max": 1},
    "Redis restarts": {"kills": 1, "redis_regressions": 1, "batch_max": 1},
    "Redis is emptied": {"kills": 1, "redis_emptied": 1, "batch_max": 1},
    "a fence is lost": {"kills": 1, "lost_fences": 1, "batch_max": 1},
    "there is no queue": {"missing_queues": 1, "kills": 1, "batch_max": 1},
    "messages without an identity": {"untracked": 1, "kills": 1, "stops": 1},
    "messages without an identity, and an emptied Redis": {"untracked": 1, "kills": 1, "redis_emptied": 1, "batch_max": 1},
    "confirmed: a kill": {"exact": False, "kills": 1},
    "confirmed: the target refuses": {"exact": False, "kills": 1, "refusals": 1},
    "confirmed: it refuses until they are put aside": {"exact": False, "kills": 1, "refusals": 2, "aside_s": 0.0, "marking": ("kills", "refusals")},
    "surveyed: a kill": {"exact": False, "surveyed": True, "messages": 3, "kills": 1, "batch_max": 3, "prefetch": 3},
    "surveyed: another leader": {"exact": False, "surveyed": True, "kills": 1, "elections": 1},
    # No more is remembered than may come back.
    "what is remembered is full": {"messages": 3, "kills": 1, "batch_max": 1, "prefetch": 2, "ids_max": 2},
}  # fmt: skip


class MoveExplorer(Explorer):
    """
    A world whose relay moves: its messages are told by what they are.
    """

    def __init__(
        self,
        *,
        aside_s: float | None = None,
        source_witnessed: bool = True,
        ids_max: int | None = None,
        **settings: Any,
    ) -> None:
        def make_relay(settings: RelaySettings) -> Relay:
            moving = evolve(settings, moving=True, refused_aside_s=aside_s, source_witnessed=source_witnessed)
            return Relay(evolve(moving, message_ids_max=ids_max or 4 * self.prefetch, message_id_keep_s=1e9))

        super().__init__(copies=1, make_relay=make_relay, **settings)

    def _arrival(self, tag: int, m: int, redelivered: bool) -> steps.Arrival:
        if m in self.untracked:
            return steps.Arrival(tag, redelivered, None, None, payload=m)
        return steps.Arrival(tag, redelivered, message_key(b"%d" % m), KEY_SEQUENCE, payload=m)


def explored(name: str) -> Explored:
    """Visit every state of a world."""
    try:
        return explore(MoveExplorer(**WORLDS[name]), rest_every=50)
    except AssertionError as error:  # the relay or the world caught it itself
        return Explored(0, 0, 0.0, str(error) or "an assertion of the relay")


@pytest.mark.parametrize("name", WORLDS)
def test_in_every_state_of_a_world_nothing_is_lost_or_doubled(name: str) -> None:
    """Whatever fails after whichever step, the promise holds, and afterwards everything arrives."""
    found = explored(name)
    assert not found.reason, found
    assert found.states > 50
    print(f"{name}: {found.states} states in {found.seconds:.1f} s")


_judge = Mover._judge


def _take_redelivered_for_fresh(self: Mover, arrival: steps.Arrival, now_s: float, taken: Any) -> Any:
    return _judge(self, evolve(arrival, redelivered=False), now_s, taken)


def _drop_redelivered(self: Mover, arrival: steps.Arrival, now_s: float, taken: Any) -> Any:
    out = _judge(self, arrival, now_s, taken)
    if arrival.redelivered and arrival.sequence is not None:
        out.verdict = Verdict.DUPLICATE
    return out


def _never_mark(self: Mover, arrival: steps.Arrival, now_s: float, taken: Any) -> Any:
    out = _judge(self, arrival, now_s, taken)
    out.marked = False
    return out


_settle = Publishers.settle


def _number_all_batches_alike(self: Publishers, now_s: float, _: int) -> Changes:
    return _settle(self, now_s, 1)


MUTANTS: dict[str, tuple[type, str, Any, str, str]] = {
    "takes what is redelivered for a first delivery": (Mover, "_judge", _take_redelivered_for_fresh, "two kills", UNMARKED),
    "drops whatever is redelivered": (Mover, "_judge", _drop_redelivered, "two kills", LOST),
    "marks nothing": (Mover, "_judge", _never_mark, "messages without an identity", UNMARKED),
    "forgets other batches too": (Publishers, "settle", _number_all_batches_alike, "what is remembered is full", UNMARKED),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is a story that ends badly."""
    owner, attribute, mutant, world, reason = MUTANTS[name]
    replaced(owner, attribute, mutant)(monkeypatch)
    found = explored(world)
    assert reason in found.reason, found
