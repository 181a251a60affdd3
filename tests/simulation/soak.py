"""
Take many long ways through worlds of faults: ``python -m tests.simulation.soak --seeds 10000``.

Each seed is one world and one way: first safety at every step, then liveness: the faults end, and everything must arrive.
A seed that fails fails always; ``--seed`` replays it and tells its story.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter

from tests.simulation.long_ways import Way, way

SEEDS = 1_000_000
#: Seeds a process takes at a time.
CHUNK = 250
#: Seconds between two lines of progress.
REPORT_EVERY_S = 10.0


def failures_of(seeds: range) -> list[Way]:
    """
    Take the way of each seed and return those that ended badly.
    """
    return [taken for taken in map(way, seeds) if taken.reason]


def soak(seeds: range, processes: int) -> Iterator[tuple[int, list[Way]]]:
    """
    Take the way of each seed; yield how many are done, and the new failures.
    """
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    done = 0
    with ProcessPoolExecutor(processes) as pool:
        for chunk, failures in zip(chunks, pool.map(failures_of, chunks), strict=True):
            done += len(chunk)
            yield done, failures


def replay(seed: int) -> str:
    """
    Return the command that tells the story of *seed*.
    """
    return f"{os.path.basename(sys.executable)} -m tests.simulation.soak --seed {seed}"  # noqa: PTH119


def main(arguments: list[str] | None = None) -> int:
    """
    Run from the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="how many ways to take (default: %(default)s)"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="take the way of this one and tell its story")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON, progress on stderr")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        taken = way(given.seed)
        print(
            json.dumps({"seed": taken.seed, "reason": taken.reason, "story": taken.story})
            if given.json
            else taken
        )
        return 1 if taken.reason else 0

    began = reported = perf_counter()
    failures: list[Way] = []
    for done, found in soak(range(given.first, given.first + given.seeds), given.processes):
        failures += found
        for failure in found:
            print(
                f"seed {failure.seed}: {failure.reason}; {replay(failure.seed)}", file=sys.stderr, flush=True
            )
        if perf_counter() - reported >= REPORT_EVERY_S or done == given.seeds:
            reported = perf_counter()
            rate = done / (reported - began)
            progress = f"{done:,} of {given.seeds:,} seeds, {rate:.0f}/s, {len(failures)} failures"
            print(progress, file=sys.stderr if given.json else sys.stdout, flush=True)
    if given.json:
        result = {
            "seeds": given.seeds,
            "first": given.first,
            "seconds": round(perf_counter() - began, 1),
            "failures": [{"seed": f.seed, "reason": f.reason, "replay": replay(f.seed)} for f in failures],
        }
        print(json.dumps(result))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
