"""
Judge the shim: was anything dropped that was not a duplicate, did anything come through twice?

What has to be shown for "clean", and what shows it:

1. Every arrival is known: the offsets of each relay have no hole, and the next relay knew of no later one (`log_gaps`).
2. Every message that was dropped is stored: ``dropped & ~(forwarded | quarantined)`` is zero in every block (lost).
3. It was stored first: no drop comes before it (`findings`, false-drop).
4. Every message was forwarded once without a mark, and not after a marked copy: no more forwards than bits, and where there
   are more, the later ones are marked (`findings`, escaped).
5. The shim could know it: drops of what lies before the log are counted apart (unproven).

2 is found twice, by masks and by ordering copies; `checks` fails when the two disagree.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.cells import MASKS
from dedup.audit.schema import BLOCK_SIZE, VERDICT

#: Sequences left out at once that are taken for a new range, not for messages that never arrived. Range bases are clock
#: readings of 2^32 to the second, so two owners are farther apart unless they began within a quarter of a millisecond.
JUMP_MIN = 1 << 20

_KINDS = {"false_drops": "false-drop", "escaped": "escaped", "unproven": "unproven"}


def verdict(blocks: DataFrame, findings: DataFrame, log_gaps: DataFrame) -> DataFrame:
    """
    Judge the shim for each publisher of each queue.

    Args:
        blocks: What `cells.blocks` returns.
        findings: Rows as in `FINDINGS`, of the same log.
        log_gaps: Rows as in `LOG_GAPS`, of the same log.

    Returns:
        Rows as in `VERDICT`.
    """
    found = findings.groupBy("queue", "publisher").agg(
        *(F.count_if(F.col("kind") == kind).alias(name) for name, kind in _KINDS.items())
    )
    holes = (
        log_gaps.where(F.col("kind") != "beginning")
        .select("queue")
        .distinct()
        .withColumn("_hole", F.lit(True))
    )
    joined = (
        _summed(blocks)
        .join(found, ["queue", "publisher"], "left")
        .join(holes, "queue", "left")
        .fillna(0, list(_KINDS))
        .withColumn("log_complete", F.col("_hole").isNull())
    )
    wrong = F.col("lost") + F.col("false_drops") > 0
    conclusion = (
        F.when((F.col("escaped") > 0) | (F.col("log_complete") & wrong), "convicted")
        .when(~F.col("log_complete"), "incomplete")
        .when(F.col("unproven") > 0, "unproven")
        .otherwise("clean")
    )
    return VERDICT.shape(joined.withColumn("verdict", conclusion))


def never_stored(*, proven: bool) -> Column:
    """
    Return the mask of what was dropped and is nowhere.

    Args:
        proven: Above what the publisher had reached when the log begins, so it is lost; False: not above it.
    """
    orphaned = F.expr("dropped_mask & ~(forwarded_mask | quarantined_mask)")
    reached = F.least(
        F.greatest(F.col("known") - F.col("block") * BLOCK_SIZE, F.lit(-1)), F.lit(BLOCK_SIZE - 1)
    )
    before_log = F.call_function("shiftleft", F.lit(1).cast("bigint"), (reached + 1).cast("int")) - 1
    return orphaned.bitwiseAND(F.bitwise_not(before_log) if proven else before_log)


def _summed(blocks: DataFrame) -> DataFrame:
    """
    Add the blocks of each publisher up.
    """
    arrived = F.expr(" | ".join(name for name in MASKS if name != "unmarked_mask"))
    lowest = F.col("block") * BLOCK_SIZE + F.bit_count(F.expr("(_arrived & -_arrived) - 1"))
    highest = F.col("block") * BLOCK_SIZE + (F.length(F.bin("_arrived")) - 1)
    in_order = Window.partitionBy("queue", "publisher").orderBy("block")
    spread = (
        blocks.withColumn("_arrived", arrived)
        .withColumn("_lowest", lowest)
        .withColumn("_highest", highest)
        .withColumn("_between", F.col("_lowest") - F.lag("_highest").over(in_order) - 1)
        .withColumn("_jump", F.col("_between") > JUMP_MIN)
    )
    inside = F.col("_highest") - F.col("_lowest") + 1 - F.bit_count("_arrived")
    between = F.when(~F.col("_jump"), F.col("_between")).otherwise(0)
    quarantined_only = F.bit_count(F.expr("quarantined_mask & ~forwarded_mask"))
    return (
        spread.groupBy("queue", "publisher")
        .agg(
            *(F.sum(name).alias(name) for name in ("tracked", "forwarded", "marked", "dropped")),
            F.sum(F.bit_count("_arrived")).alias("messages"),
            F.sum(quarantined_only).alias("quarantined_only"),
            F.sum(F.bit_count(never_stored(proven=True))).alias("lost"),
            F.sum(inside + F.coalesce(between, F.lit(0))).alias("missing"),
            F.count_if("_jump").alias("jumps"),
        )
        .withColumn("duplicates", F.col("tracked") - F.col("messages"))
    )
