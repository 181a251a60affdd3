"""Count how late re-sends come and how far behind: is the window large enough?"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.schema import HISTOGRAMS

#: Buckets for each power of two: 2^2.
_DETAIL_SHIFT = 2


def histograms(events: DataFrame) -> DataFrame:
    """
    Count re-sends by latency (microseconds) and arrivals behind the last sequence by depth (sequences).

    Buckets are cut with shifts, not logarithms: every engine gives the same, also at powers of two.

    Returns:
        Rows as in `HISTOGRAMS`.
    """
    latency = F.unix_micros("arrived_at") - F.unix_micros("first_sent_at")
    measured = events.select(
        "date", "queue", "verdict", F.lit("retry-latency").alias("measure"), latency.alias("value")
    ).where((F.col("attempt") > 1) & F.col("first_sent_at").isNotNull())
    behind = events.select(
        "date", "queue", "verdict", F.lit("window-depth").alias("measure"), F.col("depth").alias("value")
    ).where(F.col("depth") >= 0)
    width = _bucket_width(F.col("value"))
    low = F.when(F.col("value") < 0, -1).otherwise(F.col("value") - F.col("value") % width)
    counted = (
        measured.unionByName(behind)
        .withColumn("low", low)
        .withColumn("high", F.when(F.col("value") < 0, -1).otherwise(F.col("low") + (width - 1)))
        .groupBy("date", "queue", "measure", "verdict", "low", "high")
        .agg(F.count(F.lit(1)).alias("events"))
    )
    return HISTOGRAMS.shape(counted)


def merged(histograms: DataFrame) -> DataFrame:
    """
    Merge histograms of any days and batches: rows as in `HISTOGRAMS`.
    """
    keys = [*HISTOGRAMS.key_names, "high"]
    counted = histograms.groupBy(*keys).agg(F.sum("events").alias("events"))
    return HISTOGRAMS.shape(counted)


def _bucket_width(value: Column) -> Column:
    """
    Return how many values share the bucket of *value*: 1 up to 7, then a quarter of its power of two.
    """
    digits = F.length(F.bin(F.greatest(value, F.lit(1)))) - 1 - _DETAIL_SHIFT
    return F.call_function("shiftleft", F.lit(1).cast("bigint"), F.greatest(digits, F.lit(0)))
