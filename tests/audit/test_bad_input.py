"""What lies in the folder and is no log, or half of one: a sentence that names the file, or the right answer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit import daily, results
from dedup.audit.command import main
from dedup.audit.failures import sentence
from dedup.audit.schema import EVENTS, FINDINGS, VERDICT
from tests.audit.tables import as_dicts, rows
from tests.audit.test_controls import CLEAN, arrival, frame

Spoil = Callable[[SparkSession, Path], None]


def torn(_: SparkSession, folder: Path) -> None:
    """Cut the end off a file, where Parquet keeps its index."""
    (file,) = folder.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    file.with_name(f".{file.name}.crc").unlink()


def foreign(spark: SparkSession, folder: Path) -> None:
    """Add a file of somebody else."""
    added(spark, folder, "id AS customer")


def of_other_types(spark: SparkSession, folder: Path) -> None:
    """Add a file whose columns have the right names."""
    added(spark, folder, "'x' AS token", "id AS offset", "id AS batch")


def added(spark: SparkSession, folder: Path, *columns: str) -> None:
    """Write a file of three rows into the log."""
    spark.range(3).selectExpr(*columns).coalesce(1).write.parquet(str(folder.parents[2] / "foreign"))
    (file,) = (folder.parents[2] / "foreign").glob("*.parquet")
    file.rename(folder / "other.parquet")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (torn, r"cannot read \S+\.parquet: it is torn"),
        (foreign, r"other\.parquet is no part of an event log: it has rows and no arrivals"),
        (of_other_types, r"other\.parquet is no part of an event log: its column token is of another type"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Spoil, message: str
) -> None:
    """Nothing is audited that may be wrong, and nobody has to read a stack trace."""
    events = tmp_path / "events"
    frame(spark, CLEAN).coalesce(1).write.partitionBy("date", "queue").parquet(str(events))
    spoil(spark, next(events.glob("date=*/queue=*")))
    assert main(["daily", str(events), str(tmp_path / "state")]) == 3
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.search(f"^error: .*{message}", told)


def test_an_empty_folder_has_no_days(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing has happened yet, and that is no error."""
    (tmp_path / "empty").mkdir()
    assert daily(spark, str(tmp_path / "empty"), str(tmp_path / "state")) == []


@pytest.mark.long
def test_what_is_unusual_is_audited_all_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """
    Files from before a column was added, and a publisher with nine tenths of the traffic, whose one loss is found.

    Beside them lie notes, unfinished files and empty ones: they are left alone.
    """
    events = tmp_path / "events"
    added_later = ("depth", "first_sent_at", "message_id")
    assert all(column.nullable for column in EVENTS.columns if column.name in added_later)
    old = frame(spark, CLEAN).drop(*added_later)
    old.coalesce(1).write.partitionBy("date", "queue").parquet(str(events))
    folder = next(events.glob("date=*/queue=*"))
    (folder / "notes.txt").write_text("ours")
    (folder / "_unfinished.parquet").write_text("PAR1 to come")
    (folder / ".hidden.parquet").write_text("PAR1 to come")
    (folder / "killed.parquet").touch()
    skewed(spark).write.mode("append").partitionBy("date", "queue").parquet(str(events))

    found = results(spark, str(events))
    (finding,) = as_dicts(rows(found[FINDINGS], FINDINGS), FINDINGS)
    assert [finding[name] for name in ("kind", "queue", "publisher", "sequence")] == [
        "lost",
        "skewed",
        "large",
        _LOST,
    ]
    verdicts = as_dicts(rows(found[VERDICT], VERDICT), VERDICT)
    spark.catalog.clearCache()
    assert [(row["tracked"], row["verdict"]) for row in verdicts if row["queue"] == "orders"] == [
        (4, "clean")
    ]
    assert max(row["tracked"] for row in verdicts) == 0.9 * _MANY


_MANY = 20_000
_LOST = 7_778


def skewed(spark: SparkSession) -> DataFrame:
    """Return a log in which nine of ten arrivals are one publisher's, and one of them is dropped for nothing."""
    (template,) = frame(spark, [arrival(1, 1, queue="skewed")]).collect()
    lost = F.col("id") == _LOST
    own = {
        **dict.fromkeys(("offset", "batch", "sequence"), F.col("id")),
        "publisher": F.when(F.col("id") % 10 == 0, F.concat(F.lit("small-"), F.col("id") % 70)).otherwise(
            "large"
        ),
        "verdict": F.when(lost, "duplicate").otherwise("new"),
        "forwarded": ~lost,
    }
    columns = {column.name: own.get(column.name, F.lit(template[column.name])) for column in EVENTS.columns}
    numbers = spark.range(1, _MANY + 1)
    return EVENTS.shape(numbers.select(*(value.alias(name) for name, value in columns.items())))


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ('org.apache...: No FileSystem for scheme "gs"', "cannot read gs:// here"),
        ("Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "hadoop-aws"),
        ("something else", None),
    ],
)
def test_spark_without_a_file_system_says_what_is_missing(told: str, message: str | None) -> None:
    """What is not known is left to Spark's own words."""
    found = sentence(RuntimeError(told))
    assert found is None if message is None else found and message in found


def test_an_old_java_is_named(tmp_path: Path) -> None:
    """Spark itself only says that something exited."""
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho UnsupportedClassVersionError >&2\nexit 1\n")
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "dedup.audit", "daily", "events", "state"],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3
    assert f"error: Spark does not start with the Java at {tmp_path}: it needs 17 or newer" in done.stderr
    assert "Traceback" not in done.stderr
