"""Look at the state of a streaming job again and again: live rates of each queue."""

from __future__ import annotations

import datetime as dt
import sys
import time
from typing import Final, TextIO

from attrs import frozen
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.schema import CELLS
from dedup.audit.session import session
from dedup.audit.storage import read_state
from dedup.errors import ConfigError

_HEAD: Final = ("queue", "arrivals", "per second", "duplicates", "lately", "marked", "quarantined")


@frozen
class Seen:
    """
    What one queue had come to.
    """

    events: int
    duplicates: int
    marked: int
    quarantined: int


def watch(state_path: str, *, every_s: float, times: int | None = None) -> int:
    """
    Print what each queue has come to, and how fast it moves; for ever, or so many *times*.
    """
    spark = session()
    before: dict[str, Seen] = {}
    before_at = 0.0
    screen = _Screen(sys.stdout)
    number = 0
    while times is None or number < times:
        if number:
            time.sleep(every_s)
        number += 1
        at = time.monotonic()
        found = _look(spark, state_path)
        if found is None:
            screen.show([f"waiting for the first micro-batch in {state_path} ..."])
            continue
        screen.show(_table(found, before, at - before_at))
        before, before_at = found, at
    return 0


def _look(spark: SparkSession, state_path: str) -> dict[str, Seen] | None:
    """
    Add the cells of each queue up; None: there is nothing yet, or the job was replacing it just now.
    """
    try:
        cells = read_state(spark, state_path)[CELLS]
        quarantined = F.col("tracked") - F.col("forwarded") - F.col("dropped") + F.col("malformed")
        rows = (
            cells.groupBy("queue")
            .agg(
                F.sum("events").alias("events"),
                F.sum("duplicates").alias("duplicates"),
                F.sum("marked").alias("marked"),
                F.sum(quarantined).alias("quarantined"),
            )
            .orderBy(F.desc("events"), "queue")
            .collect()
        )
    except ConfigError:
        return None
    except PySparkException as error:
        if "FILE_NOT_EXIST" in str(error) or "FileNotFound" in str(error):
            return None
        raise
    return {row.queue: Seen(row.events, row.duplicates, row.marked, row.quarantined) for row in rows}


def _table(found: dict[str, Seen], before: dict[str, Seen], elapsed_s: float) -> list[str]:
    """
    Return the lines to show.
    """
    rows = [_HEAD]
    for queue, seen in found.items():
        old = before.get(queue, Seen(0, 0, 0, 0))
        new, doubled = seen.events - old.events, seen.duplicates - old.duplicates
        rows.append(
            (
                queue,
                f"{seen.events:,}",
                f"{new / elapsed_s:,.0f}" if before else "",
                f"{seen.duplicates / max(seen.events, 1):.2%}",
                f"{doubled / new:.2%}" if before and new else "",
                f"{seen.marked:,}",
                f"{seen.quarantined:,}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
    return [f"{dt.datetime.now(dt.UTC):%H:%M:%S} UTC", *lines]


class _Screen:
    """
    Lines that stay in place on a terminal, and follow each other elsewhere.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0

    def show(self, lines: list[str]) -> None:
        """
        Show *lines* instead of those before.
        """
        if self._stream.isatty() and self._height:
            self._stream.write(f"\x1b[{self._height}F\x1b[J")
        self._height = len(lines)
        print("\n".join(lines), file=self._stream, flush=True)
