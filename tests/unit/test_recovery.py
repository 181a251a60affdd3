"""Recovery, line by line: each witness that can be there or missing, and each way Redis goes backward."""

from __future__ import annotations

from typing import Any

import pytest

from dedup.core.publishers import Entry
from dedup.core.records import Batch, Marker, MarkerKind, State
from dedup.core.recovery import Recovered, newest_number, recover
from dedup.core.window import Window

#: The relay before, and the one that recovers.
OLD, NEW = 5, 9
NOW_S, IDLE_S, SIZE = 100.0, 50.0, 8

BATCH, FIRST, FOUNDING = MarkerKind.BATCH, MarkerKind.FIRST, MarkerKind.FOUNDING


def batch(number: int, *sequences: int, token: int = OLD, exact: bool = True) -> Batch:
    """Return a batch of publisher p."""
    return Batch(token, number, exact, {"p": sequences} if sequences else {})


def marker(kind: MarkerKind, number: int, *sequences: int, token: int = OLD, exact: bool = True) -> Marker:
    """Return a marker of the relay before."""
    return Marker(kind, batch(number, *sequences, token=token, exact=exact))


def state(number: int, last: int, intent: Batch | None = None, **facts: Any) -> State:
    """Return what the relay before left in Redis: everything up to *last* seen."""
    entries = {"p": Entry(Window(last, 1), 1.0)} if last else {}
    return State(number, OLD, entries, intent, **facts)


def found(
    left: State | None, *markers: Marker, redis_restarted: bool = False, trust_exact: bool = True
) -> Recovered:
    """Return what recovery makes of state and markers."""
    return recover(
        left,
        markers,
        token=NEW,
        redis_restarted=redis_restarted,
        trust_exact=trust_exact,
        size=SIZE,
        idle_s=IDLE_S,
        now_s=NOW_S,
    )


def last(recovered: Recovered) -> int:
    """Return the newest sequence remembered of p, 0 for none."""
    entry = recovered.state.entries.get("p")
    return entry.window.last if entry else 0


def is_uncertain(recovered: Recovered) -> bool:
    """Tell whether what p sends next is not proven to be new."""
    return bool(recovered.rollback) and recovered.state.unknown_uncertain_until_s == NOW_S + IDLE_S


# -- what became of the batches -------------------------------------------------------------------


def test_a_queue_never_guarded_starts_empty() -> None:
    """No state and no marker: nothing to settle, nothing to suspect."""
    assert found(None) == Recovered(State(writer=NEW), suspect=False, replayed=0, doubtful=0, rollback="")


def test_a_marker_newer_than_redis_is_replayed() -> None:
    """The relay died between forward and persist: the ledger repeats what Redis has not heard."""
    recovered = found(state(1, 3, batch(2, 4, 5)), marker(BATCH, 1, 3), marker(BATCH, 2, 4, 5))
    assert (recovered.state.batch, last(recovered), recovered.replayed) == (2, 5, 1)
    assert recovered.state.doubt == {}
    assert recovered.state.intent is None
    assert recovered.rollback == ""


def test_a_marker_redis_knows_already_changes_nothing() -> None:
    """The relay died between persist and ack."""
    recovered = found(state(2, 5), marker(BATCH, 2, 4, 5))
    assert (recovered.state.batch, last(recovered), recovered.replayed) == (2, 5, 0)


def test_an_intent_without_its_marker_was_not_forwarded_when_another_of_its_token_is_there() -> None:
    """The relay died between intent and forward: it is forgotten, and the redelivery is new and unmarked."""
    for witness in (marker(BATCH, 1, 3), marker(FIRST, 0)):
        recovered = found(state(1, 3, batch(2, 4)), witness)
        assert (last(recovered), recovered.state.doubt, recovered.doubtful) == (3, {}, 0)
        assert recovered.rollback == ""


def test_an_intent_without_any_marker_of_its_token_is_in_doubt() -> None:
    """The broker has restarted and forgot the markers: the batch may be in the target."""
    recovered = found(state(1, 3, batch(2, 4, 5)), marker(FOUNDING, 0))
    assert recovered.state.doubt == {"p": frozenset({4, 5})}
    assert (last(recovered), recovered.doubtful) == (3, 2)
    assert recovered.state.batch == 2
    assert recovered.rollback == ""


def test_markers_of_other_tokens_witness_nothing() -> None:
    """A marker that is younger than the broker's restart does not say that the intent's marker was never there."""
    recovered = found(state(1, 3, batch(2, 4)), marker(FIRST, 2, token=7))
    assert recovered.state.doubt == {"p": frozenset({4})}


def test_a_founding_marker_witnesses_nothing() -> None:
    """It is persistent: that it survived says nothing of those that are not."""
    recovered = found(state(1, 3, batch(2, 4)), marker(FOUNDING, 1))
    assert recovered.state.doubt == {"p": frozenset({4})}


def test_a_confirmed_intent_without_its_marker_is_in_doubt() -> None:
    """Without a transaction any part of it may be stored, whatever else is in the ledger."""
    recovered = found(state(1, 3, batch(2, 4, exact=False)), marker(BATCH, 1, 3, exact=False))
    assert recovered.state.doubt == {"p": frozenset({4})}


def test_a_confirmed_intent_with_its_marker_was_forwarded() -> None:
    """The marker follows when all of it is stored."""
    recovered = found(state(1, 3, batch(2, 4, exact=False)), marker(BATCH, 2, 4, exact=False))
    assert (last(recovered), recovered.state.doubt) == (4, {})


def test_a_batch_that_redis_lost_is_replayed_in_order() -> None:
    """Several writes are lost and all their markers are there: nothing is uncertain."""
    markers = (marker(FOUNDING, 1), marker(BATCH, 2, 4), marker(BATCH, 3, 5), marker(BATCH, 4, 6))
    recovered = found(state(1, 3), *markers, redis_restarted=True)
    assert (recovered.state.batch, last(recovered), recovered.replayed) == (4, 6, 3)
    assert recovered.rollback == ""


def test_doubt_stays_until_it_is_settled() -> None:
    """A second crash does not make a batch in doubt certain."""
    left = state(2, 3, doubt={"p": frozenset({4, 5})})
    assert found(left, marker(FIRST, 2)).state.doubt == {"p": frozenset({4, 5})}


def test_a_replayed_batch_ends_the_doubt_of_its_sequences() -> None:
    """They were forwarded, marked, and are seen now."""
    left = state(2, 3, batch(3, 4), doubt={"p": frozenset({4, 5}), "q": frozenset({1})})
    recovered = found(left, marker(BATCH, 3, 4))
    assert recovered.state.doubt == {"p": frozenset({5}), "q": frozenset({1})}
    assert last(recovered) == 4


def test_an_intent_adds_to_the_doubt_there_is() -> None:
    """Doubt of several broker restarts comes together."""
    recovered = found(state(2, 3, batch(3, 5), doubt={"p": frozenset({4})}), marker(FOUNDING, 2))
    assert recovered.state.doubt == {"p": frozenset({4, 5})}


def test_exact_markers_are_doubted_where_the_target_can_refuse() -> None:
    """After a partial commit the marker is there and the batch is not: it must not be taken as forwarded."""
    left = state(1, 3, batch(2, 4))
    recovered = found(left, marker(BATCH, 2, 4), trust_exact=False)
    assert (last(recovered), recovered.state.doubt, recovered.doubtful) == (3, {"p": frozenset({4})}, 1)


def test_confirmed_markers_are_believed_even_where_the_target_can_refuse() -> None:
    """They are written when everything was confirmed."""
    recovered = found(state(1, 3), marker(BATCH, 2, 4, exact=False), trust_exact=False)
    assert (last(recovered), recovered.state.doubt) == (4, {})


def test_numbers_go_on_above_all_that_were_settled() -> None:
    """A marker of the new relay must be newer than what Redis has."""
    assert newest_number(None) == 0
    assert newest_number(state(4, 0, batch(5, 1))) == 4
    assert newest_number(state(4, 0), [marker(FIRST, 2), marker(BATCH, 6)]) == 6
    assert found(state(4, 0, batch(5, 1)), marker(FIRST, 4)).state.batch == 4
    assert found(state(4, 0, batch(5, 1)), marker(FOUNDING, 4)).state.batch == 5


# -- Redis goes backward --------------------------------------------------------------------------


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
    assert recovered.state.entries["p"].window.uncertain_to == 9 + SIZE


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
        ((marker(BATCH, 3, 6, exact=False),), {}),
        ((marker(BATCH, 3, 6),), {"trust_exact": False}),
    ],
    ids=["no marker", "founding only", "a relay that never wrote", "confirmed", "not to be trusted"],
)
def test_a_restart_of_redis_without_a_complete_ledger_is_a_rollback(
    markers: tuple[Marker, ...], facts: dict[str, bool]
) -> None:
    """Nobody can tell what the last second held."""
    recovered = found(state(3, 6), *markers, redis_restarted=True, **facts)
    assert recovered.rollback.startswith("Redis has restarted")
    assert is_uncertain(recovered)
    assert recovered.state.entries["p"].window.uncertain_to == 6 + SIZE


def test_a_clean_end_survives_a_restart_of_redis() -> None:
    """The last thing the relay wrote is there, so nothing after it is lost."""
    recovered = found(state(3, 6, clean=True), marker(FOUNDING, 3), redis_restarted=True)
    assert recovered.rollback == ""


def test_a_clean_end_that_somebody_worked_after_is_none() -> None:
    """Redis has lost everything the relay after it wrote; its founding marker tells."""
    left = state(3, 6, clean=True)
    assert is_uncertain(found(left, marker(FOUNDING, 3, token=7), redis_restarted=True))
    later = marker(BATCH, 4, 7, token=7, exact=False)
    assert is_uncertain(found(left, marker(FOUNDING, 3), later, redis_restarted=True))
    assert found(left, marker(FIRST, 3), marker(FOUNDING, 3, token=7)).suspect
    began_only = marker(FIRST, 3, token=7)
    assert found(left, marker(FOUNDING, 3), began_only, redis_restarted=True).rollback == ""


def test_uncertainty_is_never_narrowed() -> None:
    """A second rollback moves it up, a recovery without one leaves it."""
    entry = Entry(Window(6, 1, uncertain_to=30), 1.0)
    left = State(3, OLD, {"p": entry}, unknown_uncertain_until_s=120.0)
    again = found(left, redis_restarted=True)
    assert again.state.entries["p"].window.uncertain_to == 30
    calm = found(left, marker(FIRST, 3))
    assert calm.rollback == ""
    assert calm.state.entries["p"] == entry
    assert calm.state.unknown_uncertain_until_s == 120.0


def test_a_window_opened_by_a_replay_is_uncertain_while_unknown_publishers_are() -> None:
    """Its publisher may have been in the map that was lost: below what the marker says nothing is proven."""
    left = State(1, OLD, {}, unknown_uncertain_until_s=NOW_S + 1)
    assert found(left, marker(BATCH, 2, 7)).state.entries["p"].window.uncertain_to == 7 + SIZE
    known = state(1, 6, unknown_uncertain_until_s=NOW_S + 1)
    assert found(known, marker(BATCH, 2, 7)).state.entries["p"].window.uncertain_to == 0
    over = State(1, OLD, {}, unknown_uncertain_until_s=NOW_S)
    assert found(over, marker(BATCH, 2, 7)).state.entries["p"].window.uncertain_to == 0


# -- messages without a sequence ------------------------------------------------------------------


def test_only_a_clean_end_with_its_witness_frees_of_suspicion() -> None:
    """Then everything was acknowledged and the broker, which forgets that when it restarts, has not."""
    assert not found(state(3, 6, clean=True), marker(FOUNDING, 3), marker(BATCH, 3, 6)).suspect
    assert found(state(3, 6, clean=True), marker(FOUNDING, 3)).suspect
    assert found(state(3, 6, clean=True), marker(FIRST, 3, token=7)).suspect
    assert found(state(3, 6), marker(BATCH, 3, 6)).suspect
    assert found(None, marker(FIRST, 0)).suspect


def test_what_is_written_is_neither_clean_nor_intended() -> None:
    """The new relay owns it, and has settled nothing yet."""
    written = found(state(3, 6, batch(4, 7), clean=True), marker(BATCH, 3, 6)).state
    assert (written.writer, written.intent, written.clean) == (NEW, None, False)
