"""
Name each message the shim treated wrongly, with the offsets that show it.

Masks know what happened to a message and not in which order. So they point: to blocks in which something was dropped and
never stored, or forwarded more often than there are messages; `early_drops` points to messages whose drop came first. All
arrivals of those few messages are then fetched from the log and put in order.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.cells import block, dropped, recovered, tracked
from dedup.audit.schema import EARLY_DROPS, FINDINGS

_MESSAGE = ("queue", "publisher", "sequence")


def early_drops(events: DataFrame) -> DataFrame:
    """
    Find messages that were dropped before any copy was stored, in target or quarantine, as far as *events* tell.

    All false drops are among them, however the log is cut into days and batches: the first drop of such a message comes
    before its first stored copy, so its part of the log holds no stored copy ahead of it. The rest are drops whose
    message was stored in an earlier part; `findings` tells them apart.

    The message's hash stands for its three columns in the join: Spark filters the larger side by a Bloom filter for a
    single column only. Messages that share a hash are told apart afterwards.

    Returns:
        Rows as in `EARLY_DROPS`.
    """
    judged = events.where(tracked() | recovered()).select(
        "date",
        *_MESSAGE,
        F.xxhash64("date", *_MESSAGE).alias("_hash"),
        F.when(dropped(), "drop").otherwise("store").alias("_fate"),
        F.struct("token", "offset").alias("_place"),
    )
    suspects = events.where(tracked() & dropped()).select(F.xxhash64("date", *_MESSAGE).alias("_hash"))
    first = (
        judged.join(suspects, "_hash", "left_semi")
        .groupBy("date", *_MESSAGE)
        .agg(
            F.min(F.when(F.col("_fate") == "drop", F.col("_place"))).alias("_drop"),
            F.min(F.when(F.col("_fate") == "store", F.col("_place"))).alias("_store"),
        )
    )
    early = F.col("_drop").isNotNull() & (F.col("_store").isNull() | (F.col("_drop") < F.col("_store")))
    return EARLY_DROPS.shape(first.where(early))


def findings(events: DataFrame, blocks: DataFrame, early_drops: DataFrame) -> DataFrame:
    """
    Decide on every message that blocks and early drops point to.

    Args:
        events: All arrivals, rows as in `EVENTS`; only those of the messages in question leave the scan.
        blocks: What `cells.blocks` makes of their cells.
        early_drops: Rows as in `EARLY_DROPS`, of the same arrivals.

    Returns:
        Rows as in `FINDINGS`.
    """
    in_question = (
        blocks.where(_suspicious())
        .select("queue", "publisher", "block")
        .unionByName(early_drops.select("queue", "publisher", block("sequence").alias("block")))
        .distinct()
        .join(blocks.select("queue", "publisher", "block", "known"), ["queue", "publisher", "block"])
    )
    copies = (
        events.where(tracked() | recovered())
        .withColumn("block", block("sequence"))
        .join(F.broadcast(in_question), ["queue", "publisher", "block"])
        .dropDuplicates(["queue", "token", "offset"])
    )
    return FINDINGS.shape(_decide(copies))


def _suspicious() -> Column:
    """
    Tell of a block whether a message in it may be lost or have come through twice.
    """
    stored = F.col("forwarded_mask").bitwiseOR(F.col("quarantined_mask"))
    never_stored = F.col("dropped_mask").bitwiseAND(F.bitwise_not(stored)) != 0
    return never_stored | (F.col("forwarded") > F.bit_count("forwarded_mask"))


def _decide(copies: DataFrame) -> DataFrame:
    """
    Put the copies of each message in order and keep those that are wrong, with the kind of finding.
    """
    message = Window.partitionBy(*_MESSAGE)
    before = message.orderBy("token", "offset").rowsBetween(Window.unboundedPreceding, -1)
    drop, out = F.col("_dropped"), F.col("forwarded")
    ordered = (
        copies.withColumn("_dropped", dropped())
        .withColumn("_forwards_before", F.count_if(out).over(before))
        .withColumn("_drops_before", F.count_if(drop).over(before))
        .withColumn("_stores_before", F.count_if(~drop).over(before))
        .withColumn("_store", F.min(F.when(~drop, F.struct("token", "offset"))).over(message))
        .withColumn("copies", F.count(F.lit(1)).over(message))
    )
    first_drop = drop & (F.col("_drops_before") == 0) & (F.col("_stores_before") == 0)
    kind = (
        F.when(out & ~F.col("marked") & ~recovered() & (F.col("_forwards_before") > 0), "escaped")
        .when(first_drop & (F.col("sequence") <= F.col("known")), "unproven")
        .when(first_drop & F.col("_store").isNull(), "lost")
        .when(first_drop, "false-drop")
    )
    return (
        ordered.withColumn("kind", kind)
        .where(F.col("kind").isNotNull())
        .withColumn("stored_token", F.col("_store.token"))
        .withColumn("stored_offset", F.col("_store.offset"))
    )
