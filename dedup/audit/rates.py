"""Say how many duplicates there are, from whom, when and why; all of it from cells, without another look at the log."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit.schema import CAUSES, COUNTS, RATES


def rates(cells: DataFrame) -> DataFrame:
    """
    Add cells up for each publisher, queue and hour: rows as in `RATES`.
    """
    summed = cells.groupBy("date", "hour", "queue", "publisher").agg(
        *(F.sum(column.name).alias(column.name) for column in COUNTS)
    )
    share = F.col("duplicates") / F.col("events")
    return RATES.shape(summed.withColumn("duplicate_share", share))


def causes(rates: DataFrame) -> DataFrame:
    """
    Say where arrivals come from that are not simply first: rows as in `CAUSES`, from rows as in `RATES`.
    """
    copies = F.col("duplicates") - F.col("resent")
    # A duplicate without a publisher id was told by its message id.
    stamped = F.col("publisher").isNotNull()
    summed = rates.groupBy("date", "queue", "publisher").agg(
        F.sum("resent").alias("publisher-retry"),
        F.sum(F.when(stamped, copies).otherwise(0)).alias("broker-redelivery"),
        F.sum(F.when(~stamped, copies).otherwise(0)).alias("same-message-id"),
        F.sum("second_owner").alias("second-owner"),
        F.sum(F.col("too_old") - F.col("second_owner")).alias("late"),
        F.sum("returning").alias("dead-letter"),
    )
    keys, named = summed.columns[:3], summed.columns[3:]
    listed = summed.unpivot(
        [F.col(k) for k in keys], [F.col(f"`{name}`") for name in named], "cause", "events"
    )
    return CAUSES.shape(listed.where(F.col("events") > 0))
