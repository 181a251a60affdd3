"""
Reduce arrivals to cells and cells to blocks: a bit for each sequence instead of a row.

Whether a message was lost or came through twice is a question about all copies of it. Asked for each message, that is a
group or a sort of every arrival. Here 32 neighbouring sequences share a row with four masks, and "what is in this set and
not in that" becomes an operation on integers. OR and addition do not care for order, so parts computed on different days
or machines merge exactly.

Only `bit_or`, `bit_count`, sums and minima of 64-bit integers are used: Spark aggregates those in generated code, in place,
in a hash table. `bitmap_construct_agg` or a minimum of structs would make it sort all arrivals instead.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from dedup.audit.schema import BLOCK_SHIFT, BLOCK_SIZE, CELLS
from dedup.core.event_log import RECOVERED
from dedup.core.identity import RANGE_SIZE
from dedup.core.window import Verdict

MASKS = ("forwarded_mask", "unmarked_mask", "dropped_mask", "quarantined_mask")
#: Verdicts that speak of a publisher's window.
_TRACKED = (Verdict.NEW, Verdict.DUPLICATE, Verdict.TOO_OLD, Verdict.UNADMITTED)
_RANGE_SHIFT = RANGE_SIZE.bit_length() - 1


def judged(verdict: Verdict) -> Column:
    """
    Tell of an arrival whether this was the verdict.
    """
    return F.col("verdict") == verdict.value


def tracked() -> Column:
    """
    Tell of an arrival whether it has a stamp and was judged by it.
    """
    return (
        F.col("publisher").isNotNull()
        & F.col("sequence").isNotNull()
        & F.col("verdict").isin([verdict.value for verdict in _TRACKED])
    )


def recovered() -> Column:
    """
    Tell of a row whether it stands for what a dead relay had forwarded, and not for an arrival.
    """
    return F.col("verdict") == RECOVERED


def dropped() -> Column:
    """
    Tell of an arrival whether it went nowhere: a duplicate that was not parked.
    """
    return judged(Verdict.DUPLICATE) & ~F.col("forwarded") & (F.coalesce("reason", F.lit("")) == "")


def bit(number: str) -> Column:
    """
    Return the bit of *number* in the mask of its block.
    """
    return F.expr(f"shiftleft(1L, CAST(`{number}` & {BLOCK_SIZE - 1} AS INT))")


def block(number: str) -> Column:
    """
    Return the block of *number*.
    """
    return F.shiftright(number, BLOCK_SHIFT)


def cells(events: DataFrame) -> DataFrame:
    """
    Reduce arrivals to cells.

    Args:
        events: Rows as in `EVENTS`. A record that is there twice is counted twice; masks do not mind.

    Returns:
        Rows as in `CELLS`.
    """
    last = F.col("sequence") + F.col("depth")
    lower_range = F.shiftright(last, _RANGE_SHIFT) > F.shiftright("sequence", _RANGE_SHIFT)
    duplicate, too_old = judged(Verdict.DUPLICATE), judged(Verdict.TOO_OLD)
    out, drop, mark = F.col("forwarded"), F.col("_dropped"), F.col("marked")

    def mask(condition: Column) -> Column:
        return F.bit_or(F.when(condition, F.col("_bit")).otherwise(F.lit(0)))

    prepared = (
        events.withColumn("_tracked", tracked())
        .withColumn("_dropped", F.col("_tracked") & dropped())
        .withColumn("_known", F.col("_tracked") | (recovered() & F.col("sequence").isNotNull()))
        .withColumn("_bit", F.when(F.col("_known"), bit("sequence")).otherwise(F.lit(0)))
    )
    grouped = prepared.groupBy(
        "date",
        F.date_trunc("hour", "arrived_at").alias("hour"),
        "queue",
        "publisher",
        F.when(F.col("_known"), block("sequence")).alias("block"),
    ).agg(
        F.count_if(~recovered()).alias("events"),
        F.sum("bytes").alias("bytes"),
        F.count_if(duplicate).alias("duplicates"),
        F.count_if(duplicate & (F.col("attempt") > 1)).alias("resent"),
        F.count_if(too_old).alias("too_old"),
        F.count_if(too_old & lower_range).alias("second_owner"),
        F.count_if(judged(Verdict.UNTRACKED)).alias("untracked"),
        F.count_if(judged(Verdict.MALFORMED)).alias("malformed"),
        F.count_if(judged(Verdict.UNADMITTED)).alias("unadmitted"),
        F.count_if(judged(Verdict.RETURNING)).alias("returning"),
        F.count_if("_tracked").alias("tracked"),
        F.count_if(F.col("_known") & out).alias("forwarded"),
        F.count_if(F.col("_tracked") & out & mark).alias("marked"),
        F.count_if("_dropped").alias("dropped"),
        mask(out).alias("forwarded_mask"),
        mask(out & ~mark).alias("unmarked_mask"),
        mask(drop).alias("dropped_mask"),
        mask(~out & ~drop).alias("quarantined_mask"),
        F.min(F.when(F.col("_tracked"), last)).alias("last_min"),
        F.min(F.when(F.col("depth").isNull() & judged(Verdict.NEW), F.col("sequence"))).alias("opened_min"),
    )
    return CELLS.shape(grouped)


def blocks(cells: DataFrame) -> DataFrame:
    """
    Merge cells of any days, hours and batches into one row for each block of 32 sequences.

    Args:
        cells: Rows as in `CELLS`; those without a block are left out.

    Returns:
        queue, publisher, block, tracked, forwarded, marked, dropped (arrivals), the four masks, and `known`: the last
        sequence the publisher had reached when the log begins, 0 when its whole life is in the log.
    """
    merged = (
        cells.where(F.col("block").isNotNull())
        .groupBy("queue", "publisher", "block")
        .agg(
            *(F.sum(name).alias(name) for name in ("tracked", "forwarded", "marked", "dropped")),
            *(F.bit_or(name).alias(name) for name in MASKS),
        )
    )
    return merged.join(_known(cells), ["queue", "publisher"])


def _known(cells: DataFrame) -> DataFrame:
    """
    Find what each publisher had reached when the log begins.

    The shim writes how far behind the last sequence an arrival was, so the lowest last sequence is the oldest thing the
    shim remembered, unless the publisher was unknown to it until an arrival in this log. A publisher that was evicted
    and came back is unknown at that moment too, but at a higher sequence than what it had reached before.
    """
    reached = cells.groupBy("queue", "publisher").agg(
        F.min("last_min").alias("last_min"), F.min("opened_min").alias("opened_min")
    )
    opened_here = F.col("opened_min").isNotNull() & (F.col("opened_min") <= F.col("last_min"))
    known = F.when(opened_here, F.lit(0)).otherwise(F.coalesce("last_min", F.lit(0)))
    return reached.select("queue", "publisher", known.alias("known"))
