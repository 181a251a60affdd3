"""The table in the guarantees is the one of the recorded runs, and runs are recorded as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.__main__ import JSON, PAGE
from tests.fault.cells import BY_NAME, CELLS
from tests.fault.guarded import BATCH_MAX
from tests.fault.matrix import Marks, Outcome, Shows
from tests.fault.record import EXAMPLES_MAX, Record, Tally, insert, table

_CELL = next(cell for cell in CELLS if cell.marks is Marks.NONE and cell.shows == {Shows.DOUBLED})


def test_the_page_has_the_table_of_the_recorded_runs() -> None:
    """Nobody writes a number by hand: ``python -m tests.fault --table`` makes the same page."""
    page = PAGE.read_text("utf-8")
    assert insert(page, table(Record.read(JSON), CELLS)) == page


def test_every_recorded_run_is_of_a_cell_and_kept_its_promise() -> None:
    """No row is of a cell that is no more, and none hides that something went wrong."""
    record = Record.read(JSON)
    assert record.tallies
    for (name, version), tally in record.tallies.items():
        cell = BY_NAME[name]
        assert (tally.lost, tally.duplicates, tally.failures) == (0, 0, 0), name
        assert tally.faults > 0, name
        assert record.shown(cell, version), name
        assert cell.marks_on(version).allow(tally.marked, faults=tally.faults, batch_max=BATCH_MAX), name


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    """What is read is what was written."""
    record = Record()
    record.of(_CELL, "4.0").add(_CELL, Outcome(faults=1, messages=7), 4)
    record.of(_CELL, "4.0").add_control(Outcome(faults=1, duplicates=2))
    record.write(tmp_path / "runs.json")
    assert Record.read(tmp_path / "runs.json").tallies == record.tallies
    assert Record.read(tmp_path / "none.json").tallies == {}


def test_runs_add_up() -> None:
    """Counts are sums, the most of one fault is a maximum, and what went wrong is kept in words, within bounds."""
    tally = Tally("a", "4.0")
    tally.add(_CELL, Outcome(faults=2, messages=5), 4)
    tally.add(_CELL, Outcome(faults=2, messages=5, marked=3), 4)
    assert (tally.faults, tally.messages, tally.marked, tally.marked_max) == (4, 10, 3, 1.5)
    assert tally.failures == 1
    assert "3 messages marked" in tally.examples[0]
    for _ in range(2 * EXAMPLES_MAX):
        tally.fail("again")
    assert len(tally.examples) == EXAMPLES_MAX


def test_a_control_must_show_what_its_cell_asks_for() -> None:
    """A fault that was merely felt proves nothing where duplicates are possible."""
    tally = Tally("a", "4.0")
    tally.add_control(Outcome(faults=1, felt=3))
    assert not tally.shown(_CELL)
    tally.add_control(Outcome(faults=1, duplicates=1))
    assert tally.shown(_CELL)


def test_a_line_is_the_sum_of_its_versions() -> None:
    """Steps and versions of one fault are one line; a cell that was not run has none."""
    record = Record()
    for version in ("4.0", "3.10"):
        record.of(_CELL, version).add(_CELL, Outcome(faults=5), 4)
        record.of(_CELL, version).add_control(Outcome(faults=1, duplicates=1))
    *_, line = table(record, CELLS).splitlines()
    assert table(record, CELLS).count("\n") == 3
    assert "| 3.10, 4.0 | 10 | 0 | 0 | 0 | none | struck 2: 2 doubled |" in line
    assert line.endswith(f"| `{_CELL.fault}` |")


def test_a_page_without_markers_is_refused() -> None:
    """The table goes between two comments; a page that lost them is not overwritten."""
    with pytest.raises(ValueError, match="faults: begin"):
        insert("# Guarantees\n", "| table |\n")
