"""What benchmarks of rates share: their options, ways that are measured in turn round by round, and the medians that count."""

from __future__ import annotations

import argparse
import statistics
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Way -> what it did in each round; messages a second.
Rates = Mapping[str, Sequence[float]]


def parser(doc: str, *, messages: int) -> argparse.ArgumentParser:
    """
    Return a parser of the options that all of them have; *messages* is the default.
    """
    found = argparse.ArgumentParser(description=doc.partition("\n\n")[0].strip())
    found.add_argument("--messages", type=int, default=messages)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--rabbitmq", default="4.0", metavar="VERSION")
    found.add_argument("--json", action="store_true")
    return found


def take_turns(rounds: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """
    Measure each way once a round, in turn, and return the rates.

    What else the machine does then slows all of them down, and the ratios within a round hold.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    width = _width(ways)
    for number in range(rounds):
        for name, measure in ways.items():
            rates[name].append(measure())
            rate = f"{rates[name][-1]:9,.0f} messages/s"
            print(f"round {number + 1}: {name:{width}} {rate}", file=sys.stderr, flush=True)
    return rates


def ratio(rates: Rates, way: str, base: str) -> float:
    """
    Return the median of the ratios of each round.
    """
    return statistics.median(a / b for a, b in zip(rates[way], rates[base], strict=True))


def medians(rates: Rates) -> dict[str, float]:
    """
    Return the median rate of each way.
    """
    return {name: statistics.median(values) for name, values in rates.items()}


def show(rates: Rates, base: str = "") -> None:
    """
    Print a line for each way; what it is of *base* too, where that is given.
    """
    width = _width(rates)
    for name, median in medians(rates).items():
        of_base = f", {ratio(rates, name, base):.2f} of {base}" if base else ""
        print(f"{name:{width}} {median:9,.0f} messages/s (median of {len(rates[name])}){of_base}")


def into_new_queue(channel: Any, measure: Callable[[str], float]) -> float:
    """
    Return what *measure* says of a classic queue that is there for it alone.
    """
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    try:
        return measure(queue)
    finally:
        channel.queue_delete(queue)


def _width(names: Mapping[str, object]) -> int:
    return max(map(len, names))
