"""Run the whole fault matrix on real servers and write what came out: ``python -m tests.fault --help``."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import re
import sys
import threading
import time
from pathlib import Path

from dedup.testing.assembly import DEFAULT_VERSION, SUITES
from tests.fault.cells import CELLS
from tests.fault.lab import Lab, versions_of
from tests.fault.matrix import OVER_10, Cell
from tests.fault.record import Record, insert, table

ROOT = Path(__file__).parents[2]
JSON = ROOT / "docs/reference/faults.json"
PAGE = ROOT / "docs/guarantees.md"
_WIDTH = 100


def main(arguments: list[str] | None = None) -> int:
    """Run what *arguments* ask for; 1 when a promise was broken or a control showed nothing."""
    options = _parser().parse_args(arguments)
    versions = sorted(options.rabbitmq.split(","), key=lambda version: version != DEFAULT_VERSION)
    if unknown := set(versions) - set(SUITES):
        sys.exit(f"RabbitMQ {', '.join(sorted(unknown))} is not one of {', '.join(SUITES)}")
    cells = [cell for cell in CELLS if re.search(options.only, cell.name)]
    record = Record.read(options.json)
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    if not options.table:
        _check_installed(cells)
        if not options.resume:
            for cell in cells:
                for version in versions:
                    record.tallies.pop((cell.name, version), None)
        _run(cells, versions, record, options)
    if options.table or options.json == JSON:
        PAGE.write_text(insert(PAGE.read_text("utf-8"), table(record, CELLS)), "utf-8")
    return _verdict(cells, record)


def _check_installed(cells: list[Cell]) -> None:
    if any(cell.layout in OVER_10 for cell in cells) and importlib.util.find_spec("proton") is None:
        sys.exit(
            "python-qpid-proton is missing, which needs a C compiler: pip install 'dedup[amqp10]', or leave AMQP 1.0 out with "
            "--only '^(?!.*amqp10)'"
        )


def _run(cells: list[Cell], versions: list[str], record: Record, options: argparse.Namespace) -> None:
    # Publishers tell of each connection they lose; here that is what they are for.
    logging.getLogger("dedup").setLevel(logging.CRITICAL)
    started = time.monotonic()
    done = 0
    total = sum(len(versions_of(cell, versions)) for cell in cells)
    lock = threading.Lock()

    def progress(what: str) -> None:
        with lock:
            elapsed_s = time.monotonic() - started
            line = f"{elapsed_s:6.0f} s  {done}/{total}  {what}"
            # Told before each run: what was run until now is kept, whoever ends this.
            record.write(options.json)
            print(f"\r{line:<{_WIDTH}}"[: _WIDTH + 1], end="", file=sys.stderr, flush=True)

    def on_done() -> None:
        nonlocal done
        done += 1

    for version in versions:
        chosen = [
            cell
            for cell in cells
            if version in versions_of(cell, versions)
            and (record.of(cell, version).faults < options.times or not record.shown(cell, version))
        ]
        if chosen:
            with Lab(version, record, workers=options.workers, progress=progress) as lab:
                lab.run(chosen, options.times, on_done)
    record.write(options.json)
    print(file=sys.stderr)


def _verdict(cells: list[Cell], record: Record) -> int:
    """Print what went wrong, and say whether anything did."""
    names = {cell.name: cell for cell in cells}
    tallies = [tally for tally in record.tallies.values() if tally.cell in names]
    wrong = 0
    for tally in tallies:
        problems = list(tally.examples)
        if not record.shown(names[tally.cell], tally.version):
            problems.append(f"the control shows nothing: {tally.control}")
        for problem in problems:
            wrong += 1
            print(f"{tally.cell} on {tally.version}: {problem}")
    struck = sum(tally.faults for tally in tallies)
    print(
        f"{len(tallies)} cells, {struck} faults, {sum(tally.messages for tally in tallies)} messages, {wrong} problems"
    )
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("--times", type=int, default=50, help="how often each fault strikes (50)")
    parser.add_argument("--rabbitmq", default=",".join(SUITES), help="versions, separated by commas (all)")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="cells whose name matches this expression"
    )
    parser.add_argument(
        "--json", type=Path, default=JSON, help="where results go; the page is written with the default"
    )
    parser.add_argument("--resume", action="store_true", help="go on with what --json holds")
    parser.add_argument("--workers", type=int, default=3, help="scenes side by side (3)")
    parser.add_argument("--list", action="store_true", help="only name the cells")
    parser.add_argument("--table", action="store_true", help="only write the page anew")
    return parser


if __name__ == "__main__":
    sys.exit(main())
