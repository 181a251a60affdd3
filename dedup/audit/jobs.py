"""Run the audit: reduce days or micro-batches of the log to state, and state to answers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from dedup.audit import coverage as log
from dedup.audit.cells import blocks, cells
from dedup.audit.checks import THRESHOLDS, checks
from dedup.audit.findings import early_drops, findings
from dedup.audit.histograms import histograms
from dedup.audit.histograms import merged as merged_histograms
from dedup.audit.rates import causes, rates
from dedup.audit.schema import (
    CAUSES,
    CELLS,
    CHECKS,
    COVERAGE,
    EARLY_DROPS,
    EVENTS,
    FINDINGS,
    HISTOGRAMS,
    LOG_GAPS,
    RATES,
    VERDICT,
    Table,
)
from dedup.audit.session import suit_partitions
from dedup.audit.storage import FILES, of_a_shim, read_events, read_state, refuse_mixture, write_state
from dedup.audit.verdict import verdict

#: Files of the log one micro-batch takes at most, so that a long backlog is worked off piece by piece.
FILES_MAX = 1000


def state_of(events: DataFrame) -> dict[Table, DataFrame]:
    """
    Reduce arrivals to all that is kept of them, by table.
    """
    return {
        CELLS: cells(events),
        COVERAGE: log.coverage(events),
        EARLY_DROPS: early_drops(events),
        HISTOGRAMS: histograms(events),
    }


def daily(
    spark: SparkSession,
    events_path: str,
    state_path: str,
    *,
    first: dt.date | None = None,
    last: dt.date | None = None,
) -> list[dt.date]:
    """
    Reduce days of the log to state. Run again, it gives the same; a day that has become empty is emptied.

    Args:
        first: First day, UTC; None: the first there is. *last* is included.

    Returns:
        The days.

    Raises:
        ConfigError: there is no log at *events_path*, or the state is that of a stream.
    """
    refuse_mixture(spark, state_path, "date")
    events = read_events(spark, events_path, first=first, last=last)
    days = {row.date for row in events.select("date").distinct().collect()}
    if first is not None and last is not None:
        days.update(first + dt.timedelta(days=n) for n in range((last - first).days + 1))
    if days:
        parts = [f"date-{day.isoformat()}" for day in sorted(days)]
        write_state(
            state_of(events), state_path, parts, F.concat(F.lit("date-"), F.col("date").cast("string"))
        )
    return sorted(days)


def stream(
    spark: SparkSession,
    events_path: str,
    state_path: str,
    *,
    every_s: float | None = None,
    files_max: int = FILES_MAX,
) -> StreamingQuery:
    """
    Reduce files of the log to state as they come, one part for each micro-batch.

    A micro-batch that is repeated after a crash has the same number and the same files, so it replaces what it had
    written. The checkpoint lies inside the state: they are only right together.

    Args:
        every_s: Seconds between micro-batches; None: take what is there, in micro-batches, and end.
        files_max: Files one micro-batch takes at most.

    Returns:
        The running query.

    Raises:
        ConfigError: the state is that of the daily job.
    """
    refuse_mixture(spark, state_path, "batch")
    suit_partitions(spark)

    def reduce_batch(batch: DataFrame, number: int) -> None:
        part = f"batch-{number}"
        write_state(state_of(batch), state_path, [part], F.lit(part))

    arriving = (
        spark.readStream.schema(EVENTS.schema)
        .option("maxFilesPerTrigger", files_max)
        .option("pathGlobFilter", FILES)
        .parquet(events_path)
    )
    writer = (
        EVENTS.shape(of_a_shim(arriving))
        .writeStream.foreachBatch(reduce_batch)
        .option("checkpointLocation", f"{state_path}/_checkpoint")
    )
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def results(
    spark: SparkSession,
    events_path: str,
    state_path: str | None = None,
    *,
    first: dt.date | None = None,
    last: dt.date | None = None,
    queues: Collection[str] = (),
    thresholds: Mapping[str, float] = THRESHOLDS,
) -> dict[Table, DataFrame]:
    """
    Answer from the state, and from those arrivals of the log that it points to.

    Args:
        state_path: Where the daily or the streaming job keeps the state; None: reduce the log now, and keep nothing.
        first: First day, UTC; None: the first there is. *last* is included.
        queues: Queues to look at; empty: all.
        thresholds: As in `checks`.

    Returns:
        One frame for each table of `RESULTS`. What several of them need is cached; ``spark.catalog.clearCache()`` frees it.
    """
    events = read_events(spark, events_path, first=first, last=last, queues=queues)
    if state_path is None:
        state = {table: frame.persist() for table, frame in state_of(events).items()}
    else:
        state = read_state(spark, state_path, first=first, last=last, queues=queues)
    return answers(events, state, thresholds)


def answers(
    events: DataFrame, state: Mapping[Table, DataFrame], thresholds: Mapping[str, float] = THRESHOLDS
) -> dict[Table, DataFrame]:
    """
    Answer from the *state* of *events*, by table of `RESULTS`.
    """
    coverage = state[COVERAGE]
    found, measured = _counted_once(events, state)
    merged = blocks(found).persist()
    gaps = log.log_gaps(coverage).persist()
    wrong = findings(events, merged, state[EARLY_DROPS]).persist()
    judged = verdict(merged, wrong, gaps).persist()
    by_hour = rates(found).persist()
    return {
        LOG_GAPS: gaps,
        RATES: by_hour,
        CAUSES: causes(by_hour),
        HISTOGRAMS: merged_histograms(measured),
        VERDICT: judged,
        FINDINGS: wrong,
        CHECKS: checks(judged, wrong, by_hour, gaps, coverage, thresholds=thresholds),
    }


def _counted_once(events: DataFrame, state: Mapping[Table, DataFrame]) -> tuple[DataFrame, DataFrame]:
    """
    Return cells and histograms in which each record counts once.

    Records are there twice when a collector was killed at the wrong moment, or when a stream took both the small files
    and the large one they were compacted into. Where that happened, the state of the day and queue is computed anew.
    """
    found, measured = state[CELLS], state[HISTOGRAMS]
    where = ["date", "queue"]
    twice = log.repeated(state[COVERAGE]).persist()
    if twice.isEmpty():
        return found, measured
    once = events.join(F.broadcast(twice), where, "left_semi").dropDuplicates(EVENTS.key_names)
    return (
        found.join(F.broadcast(twice), where, "left_anti").unionByName(cells(once)),
        measured.join(F.broadcast(twice), where, "left_anti").unionByName(histograms(once)),
    )
