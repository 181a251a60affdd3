"""Recovery from a Redis that goes backward: emptied, restored from an older copy, or restarted without its last writes."""

from __future__ import annotations

from typing import Any

import pytest

from dedup.core.publishers import Entry
from dedup.core.records import Marker, State
from dedup.core.window import UNCERTAIN, Window
from tests.unit.remains import (
    BATCH,
    FIRST,
    FOUNDING,
    NEW,
    NOW_S,
    OLD,
    batch,
    found,
    is_uncertain,
    last,
    marker,
    state,
)


def test_a_redis_emptied_is_noticed_by_the_founding_marker() -> None:
    """Markers are gone with the broker's restart, state with Redis: only the persistent marker remembers."""
    recovered = found(None, marker(FOUNDING, 0))
    assert is_uncertain(recovered)
    assert recovered.rollback == "Redis holds nothing for this queue although it was guarded before"
    assert recovered.suspect


def test_a_redis_emptied_is_rebuilt_from_a_ledger_that_is_complete() -> None:
    """Every batch since the first marker is there: all is replayed and nothing is uncertain."""
    recovered = found(
        None, marker(FOUNDING, 0), marker(FIRST, 0), marker(BATCH, 1, 1, 2), marker(BATCH, 2, 3)
    )
    assert (recovered.rollback, last(recovered), recovered.replayed) == ("", 3, 2)
    assert recovered.suspect


def test_a_redis_emptied_with_markers_released_is_a_rollback() -> None:
    """What the released markers told is lost with Redis."""
    recovered = found(None, marker(FOUNDING, 3), marker(FIRST, 3), marker(BATCH, 4, 9))
    assert is_uncertain(recovered)
    assert last(recovered) == 9
    assert recovered.state.entries["p"].window.uncertain_to == UNCERTAIN


def test_an_older_copy_of_redis_is_noticed() -> None:
    """It is at batch 2, and the oldest marker left is that of batch 5: 3 and 4 are lost."""
    recovered = found(state(2, 3), marker(BATCH, 5, 8), marker(BATCH, 6, 9))
    assert recovered.rollback == "Redis is at batch 2, the ledger says it had reached 6"
    assert is_uncertain(recovered)


def test_an_older_copy_is_noticed_by_a_first_marker_too() -> None:
    """A first marker says what Redis had reached when it was written."""
    assert is_uncertain(found(state(2, 3), marker(FIRST, 5)))
    assert is_uncertain(found(state(2, 3), marker(FOUNDING, 5)))


def test_a_hole_between_the_markers_is_noticed() -> None:
    """Batch 3 is not in Redis and not in the ledger."""
    assert is_uncertain(found(state(2, 3), marker(BATCH, 4, 8), marker(FIRST, 2)))


def test_the_first_marker_of_a_relay_that_never_wrote_counts_for_nothing() -> None:
    """It may have begun after all that it should witness: the intent is in doubt, and no more."""
    recovered = found(state(1, 3, batch(2, 4)), marker(FOUNDING, 1), marker(FIRST, 2, token=7))
    assert recovered.rollback == ""
    assert recovered.state.doubt == {"p": frozenset({4})}
    assert is_uncertain(found(None, marker(FOUNDING, 0), marker(FIRST, 0, token=7)))


def test_an_intent_does_not_stand_for_its_batch() -> None:
    """Batch 2 was settled, its marker let go, and then Redis lost it: what the intent says of it is outdated."""
    recovered = found(state(1, 3, batch(2, 4)), marker(FOUNDING, 2), marker(FIRST, 2), marker(BATCH, 3, 5))
    assert is_uncertain(recovered)


def test_a_rollback_has_a_number_so_that_it_is_not_forgotten() -> None:
    """Redis may lose the very write that says it was rolled back; the ledger then says so once more."""
    first = found(state(1, 3), marker(FOUNDING, 1), redis_restarted=True)
    assert first.rollback
    assert first.state.batch == 2
    markers = [marker(kind, first.state.batch, token=NEW) for kind in (FOUNDING, FIRST)]
    assert is_uncertain(found(state(1, 3), *markers, redis_restarted=True))
    assert is_uncertain(found(None, *markers, redis_restarted=True))


def test_a_restart_of_redis_is_covered_by_a_complete_ledger() -> None:
    """Its last second may be lost, and every batch of that second has its marker."""
    recovered = found(state(3, 6), marker(BATCH, 3, 6), redis_restarted=True)
    assert recovered.rollback == ""


@pytest.mark.parametrize(
    ("markers", "facts"),
    [
        ((), {}),
        ((marker(FOUNDING, 3),), {}),
        ((marker(FIRST, 3, token=7),), {}),
        ((marker(BATCH, 3, 6),), {"trust_exact": False}),
    ],
    ids=["no marker", "founding only", "a relay that never wrote", "not to be trusted"],
)
def test_a_restart_of_redis_without_a_complete_ledger_is_a_rollback(
    markers: tuple[Marker, ...], facts: dict[str, Any]
) -> None:
    """Nobody can tell what the last second held."""
    recovered = found(state(3, 6), *markers, redis_restarted=True, **facts)
    assert recovered.rollback.startswith("Redis has restarted")
    assert is_uncertain(recovered)
    assert recovered.state.entries["p"].window.uncertain_to == UNCERTAIN


def test_a_state_of_an_older_writer_went_back() -> None:
    """A relay leaves a founding marker when its state is in Redis: one of a relay before it is older, whatever its numbers say."""
    recovered = found(state(3, 6), marker(FOUNDING, 3, token=7))
    assert recovered.rollback.startswith("Redis has restarted or went back")
    assert is_uncertain(recovered)
    assert found(state(3, 6), marker(FIRST, 3, token=7)).rollback == "", "it may never have written"
    assert found(state(3, 6), marker(FOUNDING, 3, token=7), marker(FIRST, 3, token=7)).rollback == ""


def test_a_clean_end_survives_a_restart_of_redis() -> None:
    """The last thing the relay wrote is there, so nothing after it is lost."""
    recovered = found(state(3, 6, clean=True), marker(FOUNDING, 3), redis_restarted=True)
    assert recovered.rollback == ""


def test_a_clean_end_that_somebody_worked_after_is_none() -> None:
    """Redis has lost everything the relay after it wrote; its founding marker tells."""
    left = state(3, 6, clean=True)
    assert is_uncertain(found(left, marker(FOUNDING, 3, token=7), redis_restarted=True))
    later = marker(BATCH, 4, 7, token=7)
    assert is_uncertain(found(left, marker(FOUNDING, 3), later, redis_restarted=True, trust_exact=False))
    assert found(left, marker(FIRST, 3), marker(FOUNDING, 3, token=7)).suspect
    began_only = marker(FIRST, 3, token=7)
    assert found(left, marker(FOUNDING, 3), began_only, redis_restarted=True).rollback == ""


def test_uncertainty_is_never_narrowed() -> None:
    """A second rollback begins it anew, a recovery without one leaves it."""
    entry = Entry(Window(6, 1, uncertain_to=30), 1.0)
    left = State(3, OLD, {"p": entry}, unknown_uncertain_until_s=120.0)
    again = found(left, redis_restarted=True)
    assert again.state.entries["p"].window.uncertain_to == UNCERTAIN
    calm = found(left, marker(FIRST, 3))
    assert calm.rollback == ""
    assert calm.state.entries["p"] == entry
    assert calm.state.unknown_uncertain_until_s == 120.0


def test_a_window_opened_by_a_replay_is_uncertain_while_unknown_publishers_are() -> None:
    """Its publisher may have been in the map that was lost: below what the marker says nothing is proven."""
    left = State(1, OLD, {}, unknown_uncertain_until_s=NOW_S + 1)
    assert found(left, marker(BATCH, 2, 7)).state.entries["p"].window.uncertain_to == UNCERTAIN
    known = state(1, 6, unknown_uncertain_until_s=NOW_S + 1)
    assert found(known, marker(BATCH, 2, 7)).state.entries["p"].window.uncertain_to == 0
    over = State(1, OLD, {}, unknown_uncertain_until_s=NOW_S)
    assert found(over, marker(BATCH, 2, 7)).state.entries["p"].window.uncertain_to == 0
