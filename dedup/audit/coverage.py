"""
Prove what the event log holds: holes in it, and records that are there twice.

A relay numbers its arrivals from 1 without a hole, so the offsets of a token say by themselves whether something is
missing. They cannot say it of a token's end; batch numbers, which go on from one relay to the next, do.
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
        F.min("batch").alias("batch_min"),
        F.max("batch").alias("batch_max"),
    )
    return COVERAGE.shape(grouped)


def merged(coverage: DataFrame) -> DataFrame:
    """
    Merge coverage of any days and batches into one row for each block of 32 offsets.
    """
    return coverage.groupBy("queue", "token", "block").agg(
        F.sum("records").alias("records"),
        F.bit_or("mask").alias("mask"),
        F.min("batch_min").alias("batch_min"),
        F.max("batch_max").alias("batch_max"),
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
    found = _offset_gaps(whole).unionByName(_batch_gaps(whole))
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


def _batch_gaps(whole: DataFrame) -> DataFrame:
    """
    Find batches that are missing between one relay's records and the next one's.
    """
    relays = whole.groupBy("queue", "token").agg(
        F.min("batch_min").alias("batch_min"), F.max("batch_max").alias("batch_max")
    )
    before = F.lag("batch_max").over(Window.partitionBy("queue").orderBy("token"))
    return (
        relays.withColumn("_before", before)
        .where(F.col("batch_min") > F.col("_before") + 1)
        .select(
            "queue",
            F.lit("batches").alias("kind"),
            "token",
            (F.col("_before") + 1).alias("first"),
            (F.col("batch_min") - 1).alias("last"),
        )
    )
