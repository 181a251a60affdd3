"""Take from the answers what a person reads first: few numbers, however large the log is."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import reduce
from itertools import accumulate
from typing import Any, Final

from attrs import frozen
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.cells import judged, recovered
from dedup.audit.schema import CAUSES, CHECKS, FINDINGS, HISTOGRAMS, LOG_GAPS, RATES, VERDICT, Table
from dedup.audit.verdict import JUMP_MIN
from dedup.core.window import WINDOW_SIZE, Verdict

#: Rows of each list that are shown; their number is always told.
FINDINGS_MAX: Final = 100
GAPS_MAX: Final = 50
QUEUES_MAX: Final = 100
OFFENDERS_MAX: Final = 12
#: Queues with a line of their own; the rest share one.
LINES_MAX: Final = 6
#: What the queues without a line of their own are called together.
OTHERS: Final = "… other queues"
_HOUR_S: Final = 3600
#: Logs shorter than this are looked at once more, for steps finer than an hour; seconds.
_FINE_BELOW_S: Final = 12 * _HOUR_S
#: Steps of a short log, about; and hours of a long one until days are taken.
_STEPS: Final = 60
_HOURS_MAX: Final = 24 * 14
_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900)
#: What a verdict may be, rising.
GRAVITY: Final = ("clean", "unproven", "incomplete", "convicted")


@frozen
class Standing:
    """
    One queue: its traffic, and the verdict on the shim in front of it.
    """

    queue: str
    events: int
    duplicates: int
    marked: int
    quarantined: int
    lost: int
    false_drops: int
    escaped: int
    unproven: int
    #: Arrivals that are missing in the log.
    holes: int
    verdict: str


@frozen
class Step:
    """
    One queue for one step of time.
    """

    at: dt.datetime
    queue: str
    events: int
    duplicates: int
    marked: int


@frozen
class Offender:
    """
    One cause of one publisher's duplicates.
    """

    queue: str
    publisher: str
    cause: str
    events: int
    #: Of all causes shown, which the list is ordered by.
    total: int


@frozen
class Cause:
    """
    How much of one queue's duplicates comes from one cause.
    """

    queue: str
    cause: str
    events: int


@frozen
class Curve:
    """
    How many arrivals of one queue are up to a value.
    """

    #: `retry-latency`, microseconds, or `window-depth`, sequences: as in the table of histograms.
    measure: str
    queue: str
    total: int
    #: Highest value of a bucket, and the share of arrivals in it and those below, 0 to 1.
    points: tuple[tuple[int, float], ...]


@frozen
class Summary:
    """
    What a report says.
    """

    #: `clean`, `unproven`, `incomplete`, `convicted`, the gravest of all queues; `empty`: there were no arrivals.
    verdict: str
    events: int
    #: Begin of the first and end of the last step.
    begins: dt.datetime | None
    ends: dt.datetime | None
    step_s: int
    window_size: int
    standings: tuple[Standing, ...]
    queues: int
    steps: tuple[Step, ...]
    offenders: tuple[Offender, ...]
    causes: tuple[Cause, ...]
    curves: tuple[Curve, ...]
    findings: tuple[Mapping[str, Any], ...]
    findings_total: int
    gaps: tuple[Mapping[str, Any], ...]
    gaps_total: int
    checks: tuple[Mapping[str, Any], ...]

    def check(self, name: str) -> float:
        """
        Return the value of one check.
        """
        return float(next(row["value"] for row in self.checks if row["name"] == name))


def summarise(
    tables: Mapping[Table, DataFrame], events: DataFrame, *, window_size: int = WINDOW_SIZE
) -> Summary:
    """
    Collect what a report says: some rows for each queue, and otherwise no more than the limits above.

    Args:
        tables: What `jobs.answers` returns.
        events: The log they are of; looked at only if it is short, for finer steps.
        window_size: Sequences the shim's window holds, to be drawn beside the depths.
    """
    standings = _standings(tables)
    by_size = sorted(standings, key=lambda standing: -standing.events)
    own_line = [standing.queue for standing in by_size[:LINES_MAX]]
    steps, step_s = _steps(tables[RATES], events, own_line)
    findings, findings_total = _listed(tables[FINDINGS], FINDINGS, FINDINGS_MAX)
    holes = tables[LOG_GAPS].where(F.col("kind") != "beginning")
    gaps, gaps_total = _listed(holes, LOG_GAPS, GAPS_MAX)
    return Summary(
        verdict=standings[0].verdict if standings else "empty",
        events=sum(standing.events for standing in standings),
        begins=min((step.at for step in steps), default=None),
        ends=max((step.at + dt.timedelta(seconds=step_s) for step in steps), default=None),
        step_s=step_s,
        window_size=window_size,
        standings=tuple(standings[:QUEUES_MAX]),
        queues=len(standings),
        steps=steps,
        offenders=_offenders(tables[CAUSES]),
        causes=_causes(tables[CAUSES], own_line),
        curves=_curves(tables[HISTOGRAMS], own_line),
        findings=findings,
        findings_total=findings_total,
        gaps=gaps,
        gaps_total=gaps_total,
        checks=tuple(row.asDict() for row in tables[CHECKS].collect()),
    )


def _standings(tables: Mapping[Table, DataFrame]) -> list[Standing]:
    """
    Add everything up for each queue; the gravest verdict first, then the most arrivals.
    """
    quarantined = F.col("tracked") - F.col("forwarded") - F.col("dropped")
    traffic = (
        tables[RATES]
        .groupBy("queue")
        .agg(
            *(F.sum(name).alias(name) for name in ("events", "duplicates", "marked")),
            F.sum(quarantined + F.col("malformed")).alias("quarantined"),
        )
    )
    gravity = reduce(
        lambda chain, level: chain.when(F.col("verdict") == GRAVITY[level], level),
        range(1, len(GRAVITY)),
        F.when(F.col("verdict") == GRAVITY[0], 0),
    )
    wrong = ("lost", "false_drops", "escaped", "unproven")
    judgements = (
        tables[VERDICT]
        .groupBy("queue")
        .agg(*(F.sum(name).alias(name) for name in wrong), F.max(gravity).alias("gravity"))
    )
    holes = (
        tables[LOG_GAPS]
        .where(F.col("kind") != "beginning")
        .groupBy("queue")
        .agg(F.sum("missing").alias("holes"))
    )
    rows = traffic.join(judgements, "queue", "left").join(holes, "queue", "left").fillna(0).collect()
    found = []
    for row in rows:
        values = row.asDict()
        # A queue without a tracked arrival has no verdict of its own, and a hole all the same.
        level = max(values.pop("gravity"), GRAVITY.index("incomplete") if row.holes else 0)
        found.append(Standing(verdict=GRAVITY[level], **values))
    return sorted(found, key=lambda s: (-GRAVITY.index(s.verdict), -s.events, s.queue))


def _steps(rates: DataFrame, events: DataFrame, own_line: Collection[str]) -> tuple[tuple[Step, ...], int]:
    """
    Count over time: hours from the rates; days of a long log; of a short one steps of its own, with another look at the log.

    Returns:
        The steps, and their length in seconds.
    """
    first, last = rates.agg(F.unix_seconds(F.min("hour")), F.unix_seconds(F.max("hour"))).collect()[0]
    if first is None:
        return (), _HOUR_S
    at = F.unix_seconds("hour")
    counted = (F.sum("events"), F.sum("duplicates"), F.sum("marked"))
    width_s = _HOUR_S if last - first <= _HOURS_MAX * _HOUR_S else 24 * _HOUR_S
    if last - first < _FINE_BELOW_S:
        first, last = events.agg(
            F.unix_seconds(F.min("arrived_at")), F.unix_seconds(F.max("arrived_at"))
        ).collect()[0]
        events = events.where(~recovered())
        width_s = next((w for w in _WIDTHS_S if (last - first) / w <= _STEPS), _HOUR_S)
        if width_s < _HOUR_S:
            rates, at = events, F.unix_seconds("arrived_at")
            counted = (
                F.count(F.lit(1)),
                F.count_if(judged(Verdict.DUPLICATE)),
                F.count_if(F.col("marked") & F.col("forwarded")),
            )
    begin = at - at % width_s
    names = ("events", "duplicates", "marked")
    rows = (
        rates.groupBy(begin.alias("at"), _line(own_line).alias("queue"))
        .agg(*(count.alias(name) for count, name in zip(counted, names, strict=True)))
        .collect()
    )
    steps = (Step(dt.datetime.fromtimestamp(row.at, dt.UTC), *row[1:]) for row in rows)
    return tuple(sorted(steps, key=lambda step: (step.at, step.queue))), width_s


def _offenders(causes: DataFrame) -> tuple[Offender, ...]:
    """
    Return the publishers with the most arrivals that are not simply first, by cause.
    """
    known = causes.where(F.col("publisher").isNotNull())
    totals = known.groupBy("queue", "publisher").agg(F.sum("events").alias("total"))
    top = totals.orderBy(F.desc("total"), "queue", "publisher").limit(OFFENDERS_MAX)
    rows = (
        known.join(F.broadcast(top), ["queue", "publisher"])
        .groupBy("queue", "publisher", "total", "cause")
        .agg(F.sum("events").alias("events"))
        .collect()
    )
    found = (Offender(row.queue, row.publisher, row.cause, row.events, row.total) for row in rows)
    return tuple(sorted(found, key=lambda o: (-o.total, o.queue, o.publisher, o.cause)))


def _causes(causes: DataFrame, own_line: Collection[str]) -> tuple[Cause, ...]:
    """
    Add the causes of each queue up.
    """
    summed = causes.groupBy(_line(own_line).alias("queue"), "cause").agg(F.sum("events").alias("events"))
    return tuple(Cause(*row) for row in summed.orderBy("queue", "cause").collect())


def _curves(histograms: DataFrame, own_line: Collection[str]) -> tuple[Curve, ...]:
    """
    Add the buckets of each queue up, from the lowest on.

    What comes from a lower range is an older owner's, and says nothing about the window.
    """
    own_range = (F.col("measure") != "window-depth") | (F.col("high") <= JUMP_MIN)
    rows = (
        histograms.where(own_range)
        .groupBy("measure", _line(own_line).alias("queue"), "high")
        .agg(F.sum("events").alias("events"))
        .collect()
    )
    buckets: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        buckets[row.measure, row.queue].append((row.high, row.events))
    found = []
    for (measure, queue), counted in sorted(buckets.items()):
        counted.sort()
        sums = list(accumulate(events for _, events in counted))
        points = tuple((high, total / sums[-1]) for (high, _), total in zip(counted, sums, strict=True))
        found.append(Curve(measure, queue, sums[-1], points))
    return tuple(found)


def _line(own_line: Collection[str]) -> Column:
    """
    Return the name of the line a row belongs to.
    """
    return F.when(F.col("queue").isin(list(own_line)), F.col("queue")).otherwise(OTHERS)


def _listed(frame: DataFrame, table: Table, limit: int) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """
    Return the first rows in the order of their key, and how many rows there are.
    """
    rows = table.readable(frame.orderBy(*table.key_names).limit(limit)).collect()
    total = len(rows) if len(rows) < limit else frame.count()
    return tuple(row.asDict() for row in rows), total
