"""Days, micro-batches, repetitions and real executors: the same log gives the same tables."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from dedup.audit import daily, results, stream
from dedup.audit.schema import CELLS
from dedup.audit.storage import read_state
from dedup.audit.watch import watch
from dedup.errors import ConfigError
from tests.audit.conftest import SMALL, Audited
from tests.audit.tables import rows
from tests.audit.world import World

_DAYS = (dt.date(2026, 1, 1), dt.date(2026, 1, 2))


def kept(spark: SparkSession, state: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of the state; no table of it is empty, so no comparison is between two empty ones."""
    found = {table.name: rows(frame, table) for table, frame in read_state(spark, str(state)).items()}
    assert all(found.values())
    return found


def answered(spark: SparkSession, events: Path, state: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of the answers."""
    found = results(spark, str(events), str(state))
    tables = {table.name: rows(frame, table) for table, frame in found.items()}
    spark.catalog.clearCache()
    return tables


def parts(state: Path) -> set[str]:
    """Return the parts of the state that are there."""
    return {path.name for path in (state / "cells").glob("part=*")}


@pytest.mark.long
def test_a_stream_gives_the_tables_of_the_daily_job(
    spark: SparkSession, world: World, audited: Audited, tmp_path: Path
) -> None:
    """Files in another order, a micro-batch again after a crash, files again after a compaction: not a row differs."""
    files = sorted(world.path.rglob("*.parquet"), key=lambda file: file.name + file.parent.name)
    events, state = tmp_path / "events", tmp_path / "state"
    for age, file in enumerate(reversed(files)):  # a stream takes the oldest file first
        copy = events / file.relative_to(world.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        os.utime(copy, (1_767_000_000 + age, 1_767_000_000 + age))
    half = (len(files) + 1) // 2
    stream(spark, str(events), str(state), files_max=half).awaitTermination()
    assert parts(state) == {"part=batch-0", "part=batch-1"}

    before = kept(spark, state)
    (state / "_checkpoint/commits/1").unlink()  # it was killed between the write and the commit
    (state / "_checkpoint/commits/.1.crc").unlink(missing_ok=True)
    stream(spark, str(events), str(state), files_max=half).awaitTermination()
    assert kept(spark, state) == before

    for file in events.glob("*/queue=damaged/*.parquet"):
        file.rename(file.with_name("compacted.parquet"))
    stream(spark, str(events), str(state)).awaitTermination()
    assert parts(state) == {"part=batch-0", "part=batch-1", "part=batch-2"}
    assert len(kept(spark, state)["coverage"]) > len(before["coverage"])
    assert answered(spark, events, state) == audited.tables


@pytest.mark.long
def test_a_day_again_changes_nothing(
    spark: SparkSession, world: World, audited: Audited, tmp_path: Path
) -> None:
    """Day by day, in the wrong order and one of them twice, is one run over both; a day that became empty is emptied."""
    events, state = tmp_path / "events", tmp_path / "state"
    shutil.copytree(world.path, events)
    for day in (_DAYS[1], _DAYS[0], _DAYS[1]):
        assert daily(spark, str(events), str(state), first=day, last=day) == [day]
    whole = kept(spark, state)
    assert whole == kept(spark, audited.state)

    shutil.rmtree(events / "date=2026-01-01")
    assert daily(spark, str(events), str(state), first=_DAYS[0], last=_DAYS[0]) == [_DAYS[0]]
    assert kept(spark, state) == {
        table: [row for row in found if row[0] == "2026-01-02"] for table, found in whole.items()
    }
    assert daily(spark, str(events), str(state), first=_DAYS[1], last=_DAYS[0]) == []


@pytest.mark.long
def test_a_state_belongs_to_one_kind_of_job(spark: SparkSession, world: World, audited: Audited) -> None:
    """Days and micro-batches in one folder would count everything twice: refused before anything is written."""
    with pytest.raises(ConfigError, match=r"another kind of job than this one \(batch\)"):
        stream(spark, str(world.path), str(audited.state))
    assert parts(audited.state) == {"part=date-2026-01-01", "part=date-2026-01-02"}


def test_watching_shows_each_queue(
    spark: SparkSession, audited: Audited, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Totals at the first look, rates from the second on; before the first micro-batch it waits."""
    assert watch(str(tmp_path / "nothing"), every_s=0.01, times=1) == 0
    assert capsys.readouterr().out.startswith("waiting for the first micro-batch in")
    assert watch(str(audited.state), every_s=0.01, times=2) == 0
    first, second = capsys.readouterr().out.split(" UTC\n")[1:]
    known = read_state(spark, str(audited.state))[CELLS].groupBy("queue").agg({"events": "sum"}).collect()
    for queue, events in known:
        (line,) = (line for line in first.splitlines() if line.startswith(queue))
        assert line.split()[1] == f"{events:,}"
        assert len(line.split()) == 5
        (line,) = (line for line in second.splitlines() if line.startswith(queue))
        assert line.split()[2] == "0"


@pytest.mark.long
def test_real_executors_compute_the_same(
    spark: SparkSession, world: World, audited: Audited, tmp_path: Path
) -> None:
    """spark-submit on a cluster of two executor processes, with the package as it is shipped to one, gives the same state."""
    state = tmp_path / "state"
    package = Path(shutil.make_archive(str(tmp_path / "dedup"), "zip", Path(__file__).parents[2], "dedup"))
    home = Path(pyspark.__file__).parent
    settings = {
        **SMALL,
        "spark.sql.shuffle.partitions": 2,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{tmp_path}",
        "spark.eventLog.compress": "false",
    }
    done = subprocess.run(
        [
            home / "bin/spark-submit",
            *("--master", "local-cluster[2,1,1024]", "--py-files", package),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            *(Path(__file__).parents[2] / "dedup/audit/__main__.py", "daily", world.path, state),
            *("--from", "2026-01-02", "--to", "2026-01-02"),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "reduced 1 day: 2026-01-02" in done.stdout
    told = "".join(log.read_text() for log in tmp_path.rglob("events_*"))
    assert told.count("SparkListenerExecutorAdded") >= 2
    whole = kept(spark, audited.state)
    assert kept(spark, state) == {
        table: [row for row in found if row[0] == "2026-01-02"] for table, found in whole.items()
    }


def test_without_a_log_or_a_state_the_message_says_so(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """A wrong path is a sentence about that path."""
    with pytest.raises(ConfigError, match="no event log at"):
        daily(spark, str(tmp_path / "nothing"), str(tmp_path / "state"))
    with pytest.raises(ConfigError, match="run the daily or the stream job first"):
        results(spark, str(world.path), str(tmp_path / "state"))
