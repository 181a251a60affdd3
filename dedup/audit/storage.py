"""
Read the event log, keep the state; paths go to Spark as they are: folders, s3a://, hdfs://, abfss://.

State is one folder for each table, with a partition for each part of the log: ``part=date-2026-01-31`` from the daily job,
``part=batch-17`` from the streaming job. Writing a part replaces that part and no other, so doing it again changes nothing.
Each part has one empty row, so that a part without findings replaces one with findings.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructType

from dedup.audit.schema import COVERAGE, EVENTS, STATE, Table
from dedup.errors import ConfigError

_PART: Final = "part"
#: What the files of the log are called; others that lie there are left alone.
FILES: Final = "*.parquet"
#: Begins the message about a file that is no part of an event log.
FOREIGN: Final = "foreign file: "


def read_events(
    spark: SparkSession,
    path: str,
    *,
    first: dt.date | None = None,
    last: dt.date | None = None,
    queues: Collection[str] = (),
) -> DataFrame:
    """
    Read the event log: rows as in `EVENTS`.

    Args:
        path: The folder that holds ``date=.../queue=.../``.
        first: First day, UTC; None: from the beginning. *last* is included.
        queues: Queues to look at; empty: all.

    Raises:
        ConfigError: there is nothing at *path*.
    """
    try:
        found = spark.read.schema(EVENTS.schema).option("pathGlobFilter", FILES).parquet(path)
    except AnalysisException as error:
        raise _nothing_there(
            error, f"there is no event log at {path}: give the folder that holds date=..."
        ) from error
    return _part_of(EVENTS.shape(of_a_shim(found)), first, last, queues)


def of_a_shim(found: DataFrame) -> DataFrame:
    """
    Let the run fail when it comes to a file that has rows and no arrivals, naming the file.

    Spark reads null for a column that a file lacks. The columns that number an arrival are never null, and every job reads
    them; columns that are added to the log later are nullable, so that older files stay readable.
    """
    numbered = F.col("token").isNotNull() & F.col("offset").isNotNull() & F.col("batch").isNotNull()
    foreign = F.raise_error(F.concat(F.lit(FOREIGN), F.col("_metadata.file_path")))
    return found.withColumn("token", F.when(numbered, F.col("token")).otherwise(foreign.cast("bigint")))


def read_state(
    spark: SparkSession,
    path: str,
    *,
    first: dt.date | None = None,
    last: dt.date | None = None,
    queues: Collection[str] = (),
) -> dict[Table, DataFrame]:
    """
    Read what the jobs have kept, by table; arguments as in `read_events`.

    Raises:
        ConfigError: there is no state at *path*.
    """
    return {table: _part_of(table.shape(_stored(spark, path, table)), first, last, queues) for table in STATE}


def refuse_mixture(spark: SparkSession, path: str, kind: str) -> None:
    """
    Raise when the state at *path* has parts that are not of this *kind*: days and micro-batches would count all twice.

    Raises:
        ConfigError: it has.
    """
    try:
        stored = _stored(spark, path, COVERAGE)
    except ConfigError:
        return  # nothing there yet
    if not stored.where(F.substring_index(_PART, "-", 1) != kind).isEmpty():
        raise ConfigError(
            f"the state at {path} was written by another kind of job than this one ({kind}); give each its own folder"
        )


def write_state(state: Mapping[Table, DataFrame], path: str, parts: Sequence[str], part: Column) -> None:
    """
    Write parts of the state over what was there of these parts.

    Args:
        state: One frame for each table of `STATE`.
        parts: The parts these rows are of: ``date-...`` or ``batch-...``.
        part: The part of a row.
    """
    spark = next(iter(state.values())).sparkSession
    index = F.get(F.array(*(F.lit(name) for name in parts)), F.col("id").cast("int"))
    for table, frame in state.items():
        empty = spark.range(0, len(parts), 1, numPartitions=1).select(
            index.alias(_PART), *(F.lit(None).cast(c.kind.value).alias(c.name) for c in table.columns)
        )
        (
            frame.withColumn(_PART, part)
            .unionByName(empty)
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(_PART)
            .parquet(f"{path}/{table.name}")
        )


def _stored(spark: SparkSession, path: str, table: Table) -> DataFrame:
    """
    Read one table of the state, with the part of each row and without the empty rows.
    """
    schema = StructType(list(table.schema.fields)).add(_PART, StringType())
    for field in schema:
        field.nullable = True
    try:
        found = spark.read.schema(schema).parquet(f"{path}/{table.name}")
    except AnalysisException as error:
        raise _nothing_there(
            error, f"there is no state at {path}: run the daily or the stream job first"
        ) from error
    return found.where(F.col("date").isNotNull())


def _part_of(
    frame: DataFrame, first: dt.date | None, last: dt.date | None, queues: Collection[str]
) -> DataFrame:
    """
    Keep the days from *first* to *last* and the *queues*.
    """
    if first is not None:
        frame = frame.where(F.col("date") >= F.lit(first))
    if last is not None:
        frame = frame.where(F.col("date") <= F.lit(last))
    if queues:
        frame = frame.where(F.col("queue").isin(list(queues)))
    return frame


def _nothing_there(error: AnalysisException, message: str) -> Exception:
    """
    Say *message* when Spark found no path, and what Spark says otherwise.
    """
    return ConfigError(message) if error.getCondition() == "PATH_NOT_FOUND" else error
