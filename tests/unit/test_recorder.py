"""What a relay tells the audit is numbered without a hole, and says what came before."""

from __future__ import annotations

from dedup.core.recorder import Recorder
from dedup.core.records import BEGINNING, Belief, Leadership, Position, State
from dedup.core.steps import Arrival, Outgoing, Record
from dedup.core.window import Verdict

ROWS = [
    Outgoing(Arrival(n, redelivered=False, publisher="shop", sequence=n), Verdict.NEW) for n in range(1, 4)
]


def begun(state: State | None = None) -> Recorder:
    """Return the recorder of a relay with token 7."""
    recorder = Recorder(on=True)
    recorder.begin(state or State(writer=7))
    return recorder


def recorded(recorder: Recorder, batch: int = 1) -> Record:
    """Return the record of a batch of three."""
    record = recorder.record(batch, 1.0, ROWS)
    assert record is not None
    return record


def test_rows_are_numbered_without_a_hole() -> None:
    """The next record goes on where the one before ended, and names its last row."""
    recorder = begun()
    first = recorded(recorder)
    assert (first.offset, first.before, first.end) == (1, BEGINNING, Position(7, 3))
    recorder.stored()
    second = recorded(recorder, batch=2)
    assert (second.offset, second.before, second.end) == (4, Position(7, 3), Position(7, 6))


def test_what_was_not_stored_is_told_with_the_same_numbers() -> None:
    """A batch that is published again has one record."""
    recorder = begun()
    assert recorded(recorder) == recorded(recorder)
    assert recorder.position == BEGINNING


def test_the_next_relay_names_the_last_row_of_the_one_before() -> None:
    """Its own numbers begin at one; the end of the one before is proven by it."""
    record = recorded(begun(State(writer=7, logged=Position(5, 120))))
    assert (record.token, record.offset, record.before) == (7, 1, Position(5, 120))


def test_what_markers_prove_is_told_once() -> None:
    """It comes ahead of the first record's rows, until that is stored."""
    belief = Belief({"shop": (8, 9)}, Leadership("a", 1, 1))
    recorder = begun(State(writer=7, believed=belief))
    for _ in range(2):
        record = recorded(recorder)
        assert list(record.recovered) == [("shop", 8), ("shop", 9)]
        assert record.end == Position(7, 5)
    recorder.stored()
    assert recorded(recorder, batch=2).recovered == ()


def test_nothing_is_told_of_nothing() -> None:
    """A batch of which nothing was stored has no record, and does not use up numbers."""
    recorder = begun()
    recorded(recorder)
    assert recorder.record(1, 1.0, []) is None
    recorder.stored()
    assert recorder.position == BEGINNING


def test_without_an_audit_nothing_is_told() -> None:
    """Off is off."""
    recorder = Recorder(on=False)
    recorder.begin(State(writer=7))
    assert recorder.record(1, 1.0, ROWS) is None
