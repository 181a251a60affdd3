"""Recovery of a batch that was forwarded with confirms: what markers of its parts prove, and under which leader."""

from __future__ import annotations

import pytest

from dedup.core.records import Batch, Belief, Leadership, Marker, MarkerKind, Parts, by_publisher
from tests.unit.remains import (
    BATCH,
    FIRST,
    FOUNDING,
    OLD,
    found,
    last,
    marker,
    state,
)

LEADER, LATER = Leadership("rabbit@a", 3, 70), Leadership("rabbit@a", 3, 90)
ELECTED = Leadership("rabbit@b", 4, 91)


def parted(number: int, *sequences: int, token: int = OLD, every: int = 1) -> Batch:
    """Return an intent of publisher p whose markers of parts prove something."""
    order = [("p", sequence) for sequence in sequences]
    return Batch(token, number, False, by_publisher(order), Parts(order, every, LEADER))


def part(number: int, count: int, token: int = OLD) -> Marker:
    """Return the marker behind the first *count* of a batch."""
    return Marker(MarkerKind.PART, Batch(token, number, False), count)


def intended(intent: Batch) -> Marker:
    """Return the marker that goes ahead of a confirmed batch."""
    return Marker(MarkerKind.INTENT, intent)


def test_markers_of_parts_are_believed_and_one_part_is_doubted() -> None:
    """In the windows, named in the state; behind the next part there is nothing."""
    intent = parted(2, 4, 5, 6, 7)
    recovered = found(state(1, 3, intent), intended(intent), part(2, 1), part(2, 2), leadership=LATER)
    assert recovered.state.believed == Belief({"p": (4, 5)}, LATER)
    assert recovered.state.doubt == {"p": frozenset({6})}
    assert (last(recovered), recovered.doubtful, recovered.state.batch) == (5, 1, 2)
    assert recovered.notices()[0].facts["believed"] == 2


@pytest.mark.parametrize("leadership", [None, ELECTED], ids=["nobody", "another"])
def test_markers_of_parts_under_another_leader_prove_nothing(leadership: Leadership | None) -> None:
    """What was handed to the old one may be lost or there."""
    recovered = found(state(1, 3, parted(2, 4, 5)), part(2, 2), leadership=leadership)
    assert recovered.state.believed is None
    assert recovered.state.doubt == {"p": frozenset({4, 5})}
    assert last(recovered) == 3


def test_what_is_believed_stays_so_under_the_same_leader() -> None:
    """A relay that dies before it has a confirm leaves it to the next."""
    left = state(2, 5, believed=Belief({"p": (4, 5)}, LEADER))
    recovered = found(left, marker(FIRST, 2), leadership=LATER)
    assert recovered.state.believed == Belief({"p": (4, 5)}, LATER)
    assert (recovered.state.doubt, recovered.doubtful) == ({}, 0)


@pytest.mark.parametrize("leadership", [None, ELECTED], ids=["nobody", "another"])
def test_what_is_believed_falls_into_doubt_under_another_leader(leadership: Leadership | None) -> None:
    """The windows keep it, and doubt weighs more."""
    left = state(2, 5, believed=Belief({"p": (4, 5)}, LEADER), doubt={"p": frozenset({9})})
    recovered = found(left, marker(FIRST, 2), leadership=leadership)
    assert recovered.state.believed is None
    assert recovered.state.doubt == {"p": frozenset({4, 5, 9})}
    assert (last(recovered), recovered.doubtful) == (5, 2)


def test_beliefs_of_several_relays_come_together() -> None:
    """One believed something, forwarded more, and died without a confirm."""
    intent = parted(3, 8, 9)
    left = state(2, 5, intent, believed=Belief({"p": (4, 5), "q": (1,)}, LEADER))
    recovered = found(left, intended(intent), part(3, 1), leadership=LATER)
    assert recovered.state.believed == Belief({"p": (4, 5, 8), "q": (1,)}, LATER)
    assert recovered.state.doubt == {"p": frozenset({9})}


def test_doubt_that_was_forwarded_and_marked_is_believed() -> None:
    """Its marked copy is there."""
    intent = parted(3, 4)
    left = state(2, 3, intent, doubt={"p": frozenset({4, 7})})
    recovered = found(left, intended(intent), part(3, 1), leadership=LATER)
    assert recovered.state.doubt == {"p": frozenset({7})}
    assert recovered.state.believed == Belief({"p": (4,)}, LATER)


def test_a_batch_whose_marker_is_there_needs_no_belief() -> None:
    """Everything of it was confirmed."""
    intent = parted(2, 4, 5)
    markers = (intended(intent), part(2, 1), part(2, 2), marker(BATCH, 2, 4, 5, exact=False))
    recovered = found(state(1, 3, intent), *markers, leadership=LATER)
    assert (recovered.state.believed, recovered.state.doubt, last(recovered)) == (None, {}, 5)


def test_an_intent_that_redis_has_lost_is_in_the_ledger() -> None:
    """It is judged as if Redis had it, and nothing else is uncertain."""
    intent = parted(3, 6, 7)
    markers = (
        marker(FOUNDING, 1),
        marker(FIRST, 1),
        intended(parted(2, 4)),
        marker(BATCH, 2, 4, exact=False),
        intended(intent),
        part(3, 1),
    )
    recovered = found(state(1, 3), *markers, redis_restarted=True, leadership=LATER)
    assert recovered.rollback == ""
    assert recovered.state.believed == Belief({"p": (6,)}, LATER)
    assert recovered.state.doubt == {"p": frozenset({7})}
    assert (recovered.state.batch, recovered.replayed) == (3, 1)


def test_an_intent_that_redis_has_settled_is_history() -> None:
    """Its markers lie in the ledger until they are old enough."""
    recovered = found(state(2, 5), intended(parted(2, 4, 5)), part(2, 1), leadership=LATER)
    assert (recovered.state.believed, recovered.state.doubt) == (None, {})


def test_confirmed_markers_cover_a_restart_of_redis() -> None:
    """Intents lie in the ledger too, so as long as the broker lives nothing is forgotten."""
    markers = (marker(FOUNDING, 3), marker(FIRST, 3, exact=False), marker(BATCH, 3, 6, exact=False))
    assert found(state(3, 6), *markers, redis_restarted=True, trust_exact=False).rollback == ""
    assert found(state(3, 6), marker(FOUNDING, 3), redis_restarted=True, trust_exact=False).rollback
