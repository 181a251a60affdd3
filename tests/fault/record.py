"""Keep what the runs of the matrix came to, and write it as JSON and as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import attrs
from attrs import Factory, define

from tests.fault.cells import CELLS
from tests.fault.matrix import Cell, Marks, Outcome, Shows, broken

#: What went wrong is kept this often in each tally.
EXAMPLES_MAX = 5
_HEAD = (
    "| fault | forwarding | RabbitMQ | struck | lost | doubled unmarked | marked; at most by one fault | marks allowed | "
    "the same with a plain loop | cell |"
)
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


@define
class Tally:
    """What all runs of one cell on one version came to."""

    cell: str
    version: str
    #: How often the fault struck.
    faults: int = 0
    messages: int = 0
    lost: int = 0
    duplicates: int = 0
    marked: int = 0
    #: The most that one run left marked, for each of its faults.
    marked_max: float = 0.0
    quarantined: int = 0
    #: How often a promise was broken, and some times in words.
    failures: int = 0
    examples: list[str] = Factory(list)
    #: The control: what the same fault did to a plain loop.
    control: dict[str, int] = Factory(dict)

    def add(self, cell: Cell, outcome: Outcome, batch_max: int) -> None:
        """Add one run."""
        self.faults += outcome.faults
        self.messages += outcome.messages
        self.lost += outcome.lost
        self.duplicates += outcome.duplicates
        self.marked += outcome.marked
        self.marked_max = max(self.marked_max, round(outcome.marked / max(1, outcome.faults), 2))
        self.quarantined += outcome.quarantined
        if wrong := broken(cell, outcome, self.version, batch_max):
            self.fail("; ".join(wrong))

    def fail(self, what: str) -> None:
        """Note a run that broke a promise or did not come to its end."""
        self.failures += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(what)

    def add_control(self, outcome: Outcome) -> None:
        """Add one run of the control."""
        for name, count in (
            ("faults", outcome.faults),
            (Shows.DOUBLED.name, outcome.duplicates),
            (Shows.LOST.name, outcome.lost),
            (Shows.DISORDERED.name, outcome.disordered),
            (Shows.FELT.name, outcome.felt),
        ):
            self.control[name] = self.control.get(name, 0) + count

    def shown(self, cell: Cell) -> bool:
        """Tell whether the control has shown what it must."""
        return any(self.control.get(shows.name) for shows in cell.shows)


class Record:
    """All tallies, by cell and version, as they stand in a file."""

    def __init__(self, tallies: Iterable[Tally] = ()) -> None:
        self.tallies = {(tally.cell, tally.version): tally for tally in tallies}

    @classmethod
    def read(cls, file: Path) -> Record:
        """Read *file*; one that is not there is an empty record."""
        if not file.exists():
            return cls()
        return cls(Tally(**fields) for fields in json.loads(file.read_text("utf-8"))["runs"])

    def write(self, file: Path) -> None:
        """Write everything that was run to *file*, in one piece."""
        ran = [self.tallies[key] for key in sorted(self.tallies)]
        runs = [attrs.asdict(tally) for tally in ran if tally.faults or tally.failures]
        lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
        draft = file.with_suffix(".draft")
        draft.write_text(f'{{"runs": [\n{lines}\n]}}\n', "utf-8")
        draft.replace(file)

    def of(self, cell: Cell, version: str) -> Tally:
        """Return the tally of one cell on one version, a new one at first."""
        return self.tallies.setdefault((cell.name, version), Tally(cell.name, version))

    def shown(self, cell: Cell, version: str) -> bool:
        """
        Tell whether a control has shown what *cell* asks for.

        A plain loop has none of the shim's steps, so one control speaks for all cells of a fault and layout.
        """
        same = (
            self.tallies.get((other.name, version))
            for other in CELLS
            if (other.fault, other.layout) == (cell.fault, cell.layout)
        )
        return any(tally is not None and tally.shown(cell) for tally in same)


def table(record: Record, cells: Iterable[Cell]) -> str:
    """
    Return one line for each fault and kind of forwarding, all its steps together, and all versions that promise the same.

    A number is the sum of runs that took place; what has not been run has no line.
    """
    lines = [
        _HEAD,
        re.sub(r"[^|]+", "---", _HEAD),
    ]
    for (fault, layout), found in _grouped(cells):
        names = {cell.name for cell in found}
        tallies = [
            tally for (name, _), tally in sorted(record.tallies.items()) if name in names and tally.faults
        ]
        first = found[0]
        steps = f" ({len(found)} steps or ways)" if len(found) > 1 else ""
        # Where a version promises more than another one, each has a line of its own.
        for allowed in Marks:
            alike = [tally for tally in tallies if first.marks_on(tally.version) is allowed]
            if alike:
                lines.append(_line(f"{first.what}{steps}", layout, allowed, alike, fault))
    return "\n".join(lines) + "\n"


def _line(what: str, layout: str, allowed: Marks, tallies: list[Tally], fault: str) -> str:
    """Return one line of the table, the sum of *tallies*."""
    versions = ", ".join(sorted({tally.version for tally in tallies}, key=_number))
    marked = sum(tally.marked for tally in tallies)
    most = max(tally.marked_max for tally in tallies)
    columns = (
        what,
        layout,
        versions,
        f"{sum(tally.faults for tally in tallies):,}",
        sum(tally.lost for tally in tallies),
        sum(tally.duplicates for tally in tallies),
        f"{marked}; {most:g}" if marked else "0",
        allowed.value,
        _control(tallies),
        f"`{fault}`",
    )
    return "| " + " | ".join(map(str, columns)) + " |"


def insert(page: str, text: str) -> str:
    """
    Return *page* with *text* between its two marker comments.

    Raises:
        ValueError: a marker is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}{END}{after}"


def _grouped(cells: Iterable[Cell]) -> Iterable[tuple[tuple[str, str], list[Cell]]]:
    lines: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        lines.setdefault((cell.fault, cell.layout.name), []).append(cell)
    by_fault = groupby(lines.items(), key=lambda line: line[0][0])
    return [line for _, group in by_fault for line in group]


def _control(tallies: list[Tally]) -> str:
    """Word what the controls showed: the gravest thing first."""
    sums = {
        key: sum(tally.control.get(key, 0) for tally in tallies) for key in ("faults", *Shows.__members__)
    }
    said = [
        f"{sums[shows.name]} {shows.value}" for shows in Shows if sums[shows.name] and shows is not Shows.FELT
    ]
    if not said:
        said = [f"{sums[Shows.FELT.name]} failures felt, none doubled or lost"]
    return f"struck {sums['faults']}: {', '.join(said)}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
