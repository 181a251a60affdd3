"""What a relay tells the audit, and when: nothing is settled of which it has not told."""

from __future__ import annotations

from typing import Any

from dedup.core import steps
from dedup.core.phase import Phase
from dedup.core.records import BEGINNING, Batch, Marker, MarkerKind, Position, State
from dedup.core.steps import Record
from dedup.core.window import Verdict
from tests.unit.relay_bench import ANCHORED, BELIEVING, LEADER, SAVED, TOKEN, Bench, kinds


def bench(state: State | None = None, *held: Marker, **settings: Any) -> Bench:
    """Return a relay at work that tells the audit."""
    return Bench(state, *held, audit=True, **settings).start()


def told(working: Bench) -> Record:
    """Return the record of the last Forward."""
    record = working.last(steps.Forward).record
    assert record is not None
    return record


def rows(record: Record) -> list[tuple[int | None, Verdict, int | None]]:
    """Return sequence, verdict and depth of each row."""
    return [(out.arrival.sequence, out.verdict, out.depth) for out in record.rows]


def test_every_arrival_of_a_batch_has_a_row() -> None:
    """Duplicates too, with how far each lay behind."""
    working = bench()
    working.arrive(5, 6, 5)
    working.tell(SAVED)
    assert rows(told(working)) == [
        (5, Verdict.NEW, None),
        (6, Verdict.NEW, -1),
        (5, Verdict.DUPLICATE, 1),
    ]


def test_duplicates_alone_are_a_batch_of_their_own() -> None:
    """They are told as safely as anything else: nothing is acknowledged before."""
    working = bench()
    working.arrive(1)
    working.tell(SAVED)
    working.forwarded()
    working.tell(SAVED)
    assert kinds(working.arrive(1)) == [steps.Save]
    assert kinds(working.tell(SAVED)) == [steps.Forward]
    assert working.last(steps.Forward).outgoing == []
    assert rows(told(working)) == [(1, Verdict.DUPLICATE, 0)]
    assert kinds(working.forwarded()) == [steps.Save]
    assert working.tell(SAVED) == [steps.Ack(2)]


def test_without_an_audit_duplicates_alone_are_acknowledged_at_once() -> None:
    """No record, no marker, no write."""
    working = Bench().start()
    working.arrive(1)
    working.tell(SAVED)
    assert working.last(steps.Forward).record is None
    working.forwarded()
    working.tell(SAVED)
    assert kinds(working.arrive(1)) == [steps.Ack]


def test_redis_and_the_marker_know_the_last_row() -> None:
    """So the next relay says what came before its first, whichever of them is left."""
    working = bench()
    working.arrive(1, 2)
    working.tell(SAVED)
    end = Position(TOKEN, 2)
    assert told(working).end == end
    assert working.last(steps.Forward).marker.batch.logged == end
    assert working.last(steps.Save).logged == BEGINNING
    working.forwarded()
    assert working.last(steps.Save).logged == end


def test_the_next_relay_goes_on_from_redis_or_from_a_newer_marker() -> None:
    """What was told and not yet saved is known by the marker of the same transaction."""
    state = State(1, 5, logged=Position(5, 40))
    first = Marker(MarkerKind.FIRST, Batch(5, 1))
    newer = Marker(MarkerKind.BATCH, Batch(5, 2, logged=Position(5, 43)))
    for held, before in (((first,), Position(5, 40)), ((first, newer), Position(5, 43))):
        working = bench(state, *held)
        working.arrive(1)
        working.tell(SAVED)
        assert told(working).before == before


def test_what_markers_prove_is_told_with_the_first_batch() -> None:
    """A dead relay forwarded it and could not tell."""
    working = Bench(BELIEVING, leadership=LEADER, exact=False, audit=True).start()
    working.arrive(3)
    working.tell(SAVED)
    assert list(told(working).recovered) == [("p", 1), ("p", 2)]


def test_of_a_batch_that_is_given_up_the_stored_part_is_told_before_it_is_settled() -> None:
    """The target took the first and refused the second, again and again."""
    working = bench(exact=False, refusals_max=1)
    working.arrive(1, 2)
    working.tell(SAVED)
    effects = working.tell(steps.Refused([1]))
    anchor = working.last(steps.Anchor)
    assert kinds(effects) == [steps.Anchor]
    assert working.relay.phase is Phase.RECORDING
    assert anchor.markers == ()
    assert anchor.record is not None
    assert [out.arrival.sequence for out in anchor.record.rows] == [1]
    assert kinds(working.tell(ANCHORED)) == [steps.Save]
    assert working.last(steps.Save).logged == Position(TOKEN, 1)


def test_of_a_batch_that_was_refused_as_a_whole_nothing_is_told() -> None:
    """It comes again, and has its rows then."""
    working = bench(exact=False, refusals_max=1)
    working.arrive(1)
    working.tell(SAVED)
    assert kinds(working.tell(steps.Refused([0]))) == [steps.Save]
    assert working.last(steps.Save).logged == BEGINNING
