"""Hold the totals against thresholds: the few numbers that decide whether somebody is woken."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.schema import CHECKS

#: Highest value that passes; a name that is not here is for information, unless a threshold is given.
THRESHOLDS: Final[Mapping[str, float]] = {
    "lost": 0,
    "false_drops": 0,
    "escaped": 0,
    "log_holes": 0,
    "uncounted": 0,
    "disagreement": 0,
}
#: What every check counts; shares are 0 to 1, the rest are arrivals or messages.
NAMES: Final[Mapping[str, str]] = {
    "lost": "Messages lost, in queues whose log is complete.",
    "false_drops": "Messages falsely dropped and repaired by a retry, in queues whose log is complete.",
    "escaped": "Unmarked copies forwarded after another copy.",
    "unproven": "Drops of messages from before the log.",
    "log_holes": "Arrivals missing in the log.",
    "uncounted": "Difference between the arrivals counted and the records in the log: 0, or the audit itself is wrong.",
    "disagreement": "Difference between the losses found by masks and by ordering copies: 0, or the audit itself is wrong.",
    "duplicate_share": "Share of arrivals judged `duplicate`.",
    "marked_share": "Share of arrivals forwarded with a mark.",
    "late": "Arrivals too old for the window, from the publisher's own range: is the window too small?",
    "second_owner": "Arrivals from an older owner of a publisher id.",
    "unadmitted": "Arrivals of publishers that found the map full.",
    "malformed": "Arrivals with a stamp that cannot be right.",
}
#: A zero of these proves nothing while the log has a hole.
_NEED_THE_LOG: Final = ("lost", "false_drops", "escaped", "log_holes")


def checks(
    verdict: DataFrame,
    findings: DataFrame,
    rates: DataFrame,
    log_gaps: DataFrame,
    coverage: DataFrame,
    *,
    thresholds: Mapping[str, float] = THRESHOLDS,
) -> DataFrame:
    """
    Hold the totals against thresholds.

    Args:
        verdict: Rows as in `VERDICT`; *findings*, *rates*, *log_gaps* and *coverage* are of the same log.
        thresholds: Highest value that passes, by the names of `NAMES`.

    Returns:
        Rows as in `CHECKS`, one for each of `NAMES`.
    """
    complete = F.col("log_complete")
    totals = [
        verdict.agg(
            _total(F.when(complete, F.col("lost"))).alias("lost"),
            _total(F.when(complete, F.col("false_drops"))).alias("false_drops"),
            _total("escaped").alias("escaped"),
            _total("unproven").alias("unproven"),
            _total("lost").alias("_lost"),
        ),
        findings.agg(F.count_if(F.col("kind") == "lost").alias("_lost_in_order")),
        log_gaps.agg(_total(F.when(F.col("kind") != "beginning", F.col("missing"))).alias("log_holes")),
        rates.agg(
            _total("events").alias("_events"),
            _share("duplicates").alias("duplicate_share"),
            _share("marked").alias("marked_share"),
            _total(F.col("too_old") - F.col("second_owner")).alias("late"),
            *(_total(name).alias(name) for name in ("second_owner", "unadmitted", "malformed")),
        ),
        _records(coverage),
    ]
    row = (
        reduce(DataFrame.crossJoin, totals)
        .withColumn("uncounted", F.abs(F.col("_events") - F.col("_records")))
        .withColumn("disagreement", F.abs(F.col("_lost") - F.col("_lost_in_order")))
    )
    values = [F.col(name).cast("double").alias(name) for name in NAMES]
    named = row.select(F.col("log_holes").alias("_holes"), *values).unpivot(
        "_holes", [F.col(name) for name in NAMES], "name", "value"
    )
    limits = F.create_map(*(F.lit(part) for item in thresholds.items() for part in (item[0], float(item[1]))))
    judged = named.withColumn("threshold", limits[F.col("name")])
    blind = (F.col("_holes") > 0) & F.col("name").isin(list(_NEED_THE_LOG))
    passed = F.col("threshold").isNull() | (F.col("value") <= F.col("threshold"))
    holes = F.col("name") == "log_holes"
    status = (
        F.when(passed & ~blind, "pass")
        .when(holes & ~passed, "incomplete")
        .when(~passed, "fail")
        .otherwise("incomplete")
    )
    return CHECKS.shape(judged.withColumn("status", status))


def _total(column: Column | str) -> Column:
    """
    Add up; nothing at all is 0.
    """
    return F.coalesce(F.sum(column), F.lit(0))


def _share(name: str) -> Column:
    """
    Return the share of arrivals, 0 when there are none.
    """
    return F.coalesce(F.sum(name) / F.sum("events"), F.lit(0.0))


def _records(coverage: DataFrame) -> DataFrame:
    """
    Count the records of the log, each once.
    """
    merged = coverage.groupBy("queue", "token", "block").agg(F.bit_or("mask").alias("mask"))
    return merged.agg(_total(F.bit_count("mask")).alias("_records"))
