"""Real shims on real servers, killed with SIGKILL, and the audit of what they told: sound ones are clean, broken ones convicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dedup.audit.jobs import results
from dedup.audit.schema import FINDINGS, LOG_GAPS, RATES, VERDICT
from dedup.eventlog.collector import Collector, CollectorSettings
from dedup.eventlog.folder import Folder
from dedup.testing.servers import RabbitMQ, Redis
from tests.audit.tables import as_dicts, rows
from tests.fault.guarded import Guarded
from tests.fault.shim_process import BROKEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = range(1, 41)
#: Published a second time.
TWICE = tuple(MESSAGES[::5])
#: A shim is killed before or after its n-th effect of this name, then the next one.
KILLS = (("after", "Save", 2), ("before", "Forward", 2), ("after", "Forward", 2), ("before", "Ack", 1))


def publish(guarded: Guarded, messages: tuple[int, ...]) -> None:
    """Publish some messages, and those of TWICE among them once more."""
    again = [number for number in messages if number in TWICE]
    guarded.publish([(str(number), number) for number in (*messages, *again)])


def audit(spark: SparkSession, guarded: Guarded, log: Path) -> dict[str, list[dict[str, Any]]]:
    """Collect what was told, and return the answers."""
    Collector(Folder(str(log)), CollectorSettings(until_empty=True)).run(
        guarded.rabbitmq.url, [guarded.queue], lambda: False
    )
    found = results(spark, str(log))
    answers = {
        table.name: as_dicts(rows(found[table], table), table)
        for table in (FINDINGS, LOG_GAPS, RATES, VERDICT)
    }
    spark.catalog.clearCache()
    return answers


@pytest.mark.parametrize("kind", ["classic", pytest.param("quorum", marks=pytest.mark.long)])
def test_shims_that_are_killed_are_found_clean(
    spark: SparkSession,
    rabbitmq: RabbitMQ,
    redis_server: Redis,
    queue_name: str,
    tmp_path: Path,
    *,
    kind: Any,
) -> None:
    """Nothing lost, nothing escaped, no hole; every message of the target is in the log, and every copy that was dropped."""
    with Guarded(rabbitmq, redis_server, queue_name, target_type=kind, exact=kind == "classic") as guarded:
        portion = len(MESSAGES) // len(KILLS)
        for index, kill in enumerate(KILLS):
            publish(guarded, tuple(MESSAGES[index * portion : (index + 1) * portion]))
            child = guarded.start_shim(kill, audit=True)
            child.wait(60)
        guarded.run_until_drained(audit=True)
        answers = audit(spark, guarded, tmp_path / "log")
        found = guarded.assert_each_once(map(str, MESSAGES), marks=kind == "quorum")
    assert [row["verdict"] for row in answers["verdict"]] == ["clean"]
    assert answers["findings"] == []
    assert answers["log_gaps"] == []
    (judged,) = answers["verdict"]
    assert judged["messages"] == len(MESSAGES)
    assert judged["marked"] == sum(found.marked.values())
    assert judged["duplicates"] >= len(TWICE)


@pytest.mark.parametrize(
    ("broken", "kind", "sequences"),
    [
        ("copies pass", "escaped", TWICE),
        ("every seventh is dropped", "lost", tuple(number for number in MESSAGES if number % 7 == 0)),
    ],
)
def test_a_shim_without_a_safeguard_is_convicted(
    spark: SparkSession,
    rabbitmq: RabbitMQ,
    redis_server: Redis,
    queue_name: str,
    tmp_path: Path,
    *,
    broken: str,
    kind: str,
    sequences: tuple[int, ...],
) -> None:
    """Each message that it let through twice or dropped is named, and no other: a shim that lets copies pass is the control."""
    assert broken in BROKEN
    with Guarded(rabbitmq, redis_server, queue_name) as guarded:
        publish(guarded, tuple(MESSAGES))
        guarded.run_until_drained(audit=True, broken=broken)
        answers = audit(spark, guarded, tmp_path / "log")
    assert [row["verdict"] for row in answers["verdict"]] == ["convicted"]
    assert [(row["kind"], row["sequence"]) for row in answers["findings"]] == [
        (kind, sequence) for sequence in sequences
    ]
