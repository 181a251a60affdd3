"""One Spark session for every test of the audit, one log with known faults, and what the audit says of it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.audit.world import World


def _unavailable() -> str:
    """Say what Spark needs and this machine lacks; empty: nothing."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'dedup[audit]'"
    from dedup.audit.session import java_found

    return (
        ""
        if java_found()
        else "Spark needs Java 17: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    )


#: For many small queries: little compilation, no generated code, few partitions, no plans as text, no web page.
SMALL: dict[str, bool | float | int | str | None] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_MISSING = _unavailable()
if importlib.util.find_spec("pyspark") is None:
    collect_ignore_glob = ["test_*.py"]  # they import it


@pytest.fixture(scope="session")
def java() -> None:
    """Skip on a laptop without Java, fail in CI."""
    if _MISSING and os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(_MISSING, pytrace=False)
    if _MISSING:
        pytest.skip(_MISSING)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session tuned for many small queries."""
    request.getfixturevalue("java")
    from pyspark.sql import SparkSession

    from dedup.audit import session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    SparkSession.builder.master("local[2]").config(
        map={**SMALL, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    ).getOrCreate().sparkContext.setLogLevel("OFF")
    found = session()
    yield found
    found.stop()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A small log with every kind of fault in it."""
    from tests.audit.world import make

    return make(
        tmp_path_factory.mktemp("world") / "events", events=12_000, publishers=30, queues=3, boost=40, seed=7
    )


@frozen
class Audited:
    """The audit of the world by the daily job: where its state is, and its answers as rows."""

    state: Path
    tables: dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="session")
def audited(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Run the daily job on the world and answer."""
    from dedup.audit import daily, results
    from tests.audit.tables import rows

    state = tmp_path_factory.mktemp("daily") / "state"
    assert len(daily(spark, str(world.path), str(state))) == 2
    found = results(spark, str(world.path), str(state))
    answers = {table.name: rows(frame, table) for table, frame in found.items()}
    spark.catalog.clearCache()
    return Audited(state, answers)
