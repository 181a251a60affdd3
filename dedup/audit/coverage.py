"""
Prove what the event log holds: holes in it, and records that are there twice.

A relay numbers its arrivals from 1 without a hole, so the offsets of a token say by themselves whether something is
missing. They cannot say it of a token's end; the next relay does, which names the last arrival it knew to be told.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.cells import bit, block
from dedup.audit.schema import BLOCK_SIZE, COVERAGE, LOG_GAPS

_FULL = (1 << BLOCK_SIZE) - 1


def coverage(events: DataFrame) -> DataFrame:
    """
    Reduce arrivals to the record numbers that are there: rows as in `COVERAGE`.
    """
    grouped = events.groupBy("date", "queue", "token", block("offset").alias("block")).agg(
        F.count(F.lit(1)).alias("records"),
        F.bit_or(bit("offset")).alias("mask"),
        F.max("offset").alias("last"),
        F.max(F.when(_first(), F.col("before_token")).otherwise(0)).alias("before_token"),
        F.max(F.when(_first(), F.col("before_offset")).otherwise(0)).alias("before_offset"),
    )
    return COVERAGE.shape(grouped)


def _first() -> Column:
    """
    Tell of a row whether its relay told of it first: what came before is another relay's.
    """
    return F.col("before_token") != F.col("token")


def merged(coverage: DataFrame) -> DataFrame:
    """
    Merge coverage of any days and batches into one row for each block of 32 offsets.
    """
    return coverage.groupBy("queue", "token", "block").agg(
        F.sum("records").alias("records"),
        F.bit_or("mask").alias("mask"),
        F.max("last").alias("last"),
        F.max("before_token").alias("before_token"),
        F.max("before_offset").alias("before_offset"),
    )


def log_gaps(coverage: DataFrame) -> DataFrame:
    """
    Find what the log does not hold.

    Args:
        coverage: Rows as in `COVERAGE`, of any days and batches.

    Returns:
        Rows as in `LOG_GAPS`. Of the first token of each queue what lies before its first record is no hole: there the
        log, or the part of it that is looked at, begins.
    """
    whole = merged(coverage)
    found = _offset_gaps(whole).unionByName(_ends(whole))
    return LOG_GAPS.shape(found.withColumn("missing", F.col("last") - F.col("first") + 1))


def repeated(coverage: DataFrame) -> DataFrame:
    """
    Find where records were counted more than once: date and queue, each pair once.
    """
    counted = coverage.groupBy("date", "queue", "token", "block").agg(
        F.sum("records").alias("records"), F.bit_or("mask").alias("mask")
    )
    return counted.where(F.col("records") > F.bit_count("mask")).select("date", "queue").distinct()


def _offset_gaps(whole: DataFrame) -> DataFrame:
    """
    Find holes between the first and the last offset of each token, and what lies before the first.
    """
    runs = _runs(whole)
    in_order = Window.partitionBy("queue", "token").orderBy("first")
    before = F.coalesce(F.lag("last").over(in_order), F.lit(0))
    oldest = F.min("token").over(Window.partitionBy("queue"))
    return (
        runs.withColumn("_before", before)
        .withColumn("_oldest", oldest)
        .where(F.col("first") > F.col("_before") + 1)
        .select(
            "queue",
            F.when((F.col("_before") == 0) & (F.col("token") == F.col("_oldest")), "beginning")
            .otherwise("offsets")
            .alias("kind"),
            "token",
            (F.col("_before") + 1).alias("first"),
            (F.col("first") - 1).alias("last"),
        )
    )


def _runs(whole: DataFrame) -> DataFrame:
    """
    Turn masks into stretches of offsets that are there: a full block is one, others are taken bit by bit.

    Only the blocks at the ends of a token and beside a hole are not full, so there are few bits to take.
    """
    start = F.col("block") * BLOCK_SIZE
    full = F.col("mask") == _FULL
    bits = F.filter(F.sequence(F.lit(0), F.lit(BLOCK_SIZE - 1)), _is_set)
    ends = F.when(
        full, F.array(F.struct(start.alias("first"), (start + BLOCK_SIZE - 1).alias("last")))
    ).otherwise(F.transform(bits, lambda i: F.struct((start + i).alias("first"), (start + i).alias("last"))))
    return whole.select("queue", "token", F.explode(ends).alias("run")).select(
        "queue", "token", "run.first", "run.last"
    )


def _is_set(index: Column) -> Column:
    """
    Tell whether the bit *index* of the mask is set.
    """
    return F.getbit("mask", index) == 1


def _ends(whole: DataFrame) -> DataFrame:
    """
    Find ends of relays that are missing: what the next relay names as the last arrival before its own.

    What was before the oldest relay of a queue is no hole: there the log begins.
    """
    relays = whole.groupBy("queue", "token").agg(
        F.max("last").alias("last"),
        F.max("before_token").alias("before_token"),
        F.max("before_offset").alias("before_offset"),
    )
    named = relays.where(F.col("before_offset") > 0).select(
        "queue", F.col("before_token").alias("token"), F.col("before_offset").alias("named")
    )
    oldest = relays.groupBy("queue").agg(F.min("token").alias("oldest"))
    return (
        named.groupBy("queue", "token")
        .agg(F.max("named").alias("named"))
        .join(relays.select("queue", "token", "last"), ["queue", "token"], "left")
        .join(oldest, "queue")
        .withColumn("_known", F.coalesce("last", F.lit(0)))
        .where((F.col("named") > F.col("_known")) & (F.col("token") >= F.col("oldest")))
        .select(
            "queue",
            F.lit("end").alias("kind"),
            "token",
            (F.col("_known") + 1).alias("first"),
            F.col("named").alias("last"),
        )
    )
