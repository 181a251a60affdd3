"""
Recovery, line by line: each witness that can be there or missing.

A Redis that goes backward is in test_recovery_rollback.py, what is believed of a killed channel in test_recovery_confirmed.py.
"""

from __future__ import annotations

from attrs import evolve

from dedup.core.bodies import CHUNK_BYTES
from dedup.core.message_ids import message_key
from dedup.core.publishers import forwarded
from dedup.core.records import Batch, Marker, State
from dedup.core.recovery import Recovered, newest_number
from tests.unit.remains import (
    BATCH,
    FIRST,
    FOUNDING,
    NEW,
    NOW_S,
    OLD,
    batch,
    found,
    last,
    marker,
    state,
)

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


# -- message ids and bodies -----------------------------------------------------------------------


def test_message_ids_are_replayed_like_publishers() -> None:
    """They are in the marker of the batch that forwarded them."""
    key = message_key(b"event")
    replayed = Marker(BATCH, Batch(OLD, 2, sequences={key: (1,)}))
    recovered = found(state(1, 3), marker(BATCH, 1, 3), replayed, message_id_keep_s=60.0)
    assert recovered.state.entries[key] == forwarded(NOW_S, 2)
    assert recovered.state.message_ids_uncertain_until_s == 0.0
    assert recovered.notices()[0].facts["publishers"] == 1


def test_after_a_rollback_an_unknown_id_proves_nothing_for_a_while() -> None:
    """Until the ids that were lost would have been forgotten."""
    recovered = found(None, marker(FOUNDING, 0), message_id_keep_s=60.0)
    assert recovered.state.message_ids_uncertain_until_s == NOW_S + 60.0
    again = found(evolve(recovered.state, writer=OLD), marker(FIRST, 1), message_id_keep_s=60.0)
    assert again.state.message_ids_uncertain_until_s == NOW_S + 60.0


def test_what_is_replayed_has_no_body_to_compare_with() -> None:
    """The marker does not tell; what Redis has under that number is of another message."""
    known = bytes(4) + b"1111" + b"2222" + bytes(CHUNK_BYTES - 12)
    left = state(1, 1, bodies={("p", 0): known})
    recovered = found(left, marker(BATCH, 1, 1), marker(BATCH, 2, 2), check_bodies=True)
    assert recovered.state.bodies == {("p", 0): bytes(4) + b"1111" + bytes(CHUNK_BYTES - 8)}


def test_without_the_setting_bodies_are_forgotten() -> None:
    """Nobody keeps them up to date."""
    assert found(state(1, 1, bodies={("p", 0): bytes(CHUNK_BYTES)})).state.bodies == {}
