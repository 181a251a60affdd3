"""Small logs with one fault each, and checks with one number wrong: no verdict passes because it cannot fail."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.audit import answers, state_of
from dedup.audit.cells import blocks, cells
from dedup.audit.checks import NAMES, THRESHOLDS, checks
from dedup.audit.coverage import log_gaps
from dedup.audit.findings import findings
from dedup.audit.rates import causes, rates
from dedup.audit.schema import (
    CELLS,
    CHECKS,
    COVERAGE,
    EARLY_DROPS,
    EVENTS,
    FINDINGS,
    LOG_GAPS,
    RATES,
    VERDICT,
)
from tests.audit.tables import as_dicts, rows

_NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def arrival(offset: int, sequence: int, **other: Any) -> dict[str, Any]:
    """Return one arrival: forwarded, in order, unless *other* says otherwise."""
    return {
        "queue": "orders",
        "token": 5,
        "offset": offset,
        "batch": offset,
        "arrived_at": _NOON + dt.timedelta(seconds=offset),
        "before_token": 5 if offset > 1 else 0,
        "before_offset": offset - 1,
        "publisher": "shop",
        "sequence": sequence,
        "attempt": 1,
        "first_sent_at": None,
        "redelivered": False,
        "verdict": "new",
        "reason": "",
        "depth": -1,
        "marked": False,
        "forwarded": True,
        "bytes": 10,
        "message_id": None,
        "date": _NOON.date(),
    } | other


def drop(offset: int, sequence: int, **other: Any) -> dict[str, Any]:
    """Return one arrival that was dropped as a duplicate."""
    return arrival(offset, sequence, verdict="duplicate", forwarded=False, attempt=2, depth=0) | other


def recovered(offset: int, sequence: int) -> dict[str, Any]:
    """Return one row that stands for what a dead relay had forwarded."""
    return arrival(offset, sequence, verdict="recovered", depth=None, bytes=0)


def by_id(offset: int, **other: Any) -> dict[str, Any]:
    """Return one arrival of an event that is told by its message id."""
    return arrival(offset, 1, publisher=None, message_id="event", depth=None) | {"sequence": None} | other


def following(offset: int, sequence: int, known: int) -> dict[str, Any]:
    """Return the first arrival of the next relay, which knew of so many rows of the one before."""
    return arrival(offset, sequence, token=6, before_token=5 if known else 0, before_offset=known)


#: Without a fault: three messages, the last one sent twice.
CLEAN = [arrival(1, 11), arrival(2, 12), arrival(3, 13), drop(4, 13)]


def frame(spark: SparkSession, arrivals: list[dict[str, Any]]) -> DataFrame:
    """Make a log of *arrivals*."""
    names = [column.name for column in EVENTS.columns]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in arrivals], EVENTS.schema)


def judge(events: DataFrame) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Audit *events* and return findings, log gaps and verdicts by queue."""
    found = answers(events, state_of(events))
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for table in (FINDINGS, LOG_GAPS, VERDICT):
        for row in as_dicts(rows(found[table], table), table):
            tables.setdefault(row["queue"], {}).setdefault(table.name, []).append(row)
    events.sparkSession.catalog.clearCache()
    return tables


_LOST = drop(5, 14, depth=-1)
_TORN = [row for row in CLEAN if row["offset"] != 2]
_BEFORE = [arrival(n, n) for n in (40, 41)]
#: A log, and what is to be said of it: verdict, findings (kind, offset), holes (kind, token, first, last).
SCENARIOS: dict[str, tuple[list[dict[str, Any]], str, list[Any], list[Any]]] = {
    "clean": (CLEAN, "clean", [], []),
    "lost": ([*CLEAN, _LOST], "convicted", [("lost", 5)], []),
    "repaired": ([*CLEAN, _LOST, arrival(6, 14, attempt=3)], "convicted", [("false-drop", 5)], []),
    "escaped": ([*CLEAN, arrival(5, 13, attempt=3)], "convicted", [("escaped", 5)], []),
    "marked copy": ([*CLEAN, arrival(5, 13, marked=True)], "clean", [], []),
    "dead letter": ([*CLEAN, arrival(5, 13, verdict="returning", depth=None)], "clean", [], []),
    # What is dropped may be all that the log has of it: the first copy came before.
    "copies of a dead letter": (
        [
            *CLEAN,
            arrival(5, 13, verdict="returning", depth=None),
            arrival(6, 13, verdict="returning", depth=None, forwarded=False),
            arrival(7, 90, verdict="returning", depth=None, forwarded=False),
        ],
        "clean",
        [],
        [],
    ),
    "refused by the broker": (
        [*CLEAN, arrival(5, 14, forwarded=False, reason="refused-by-broker"), drop(6, 14)],
        "clean",
        [],
        [],
    ),
    "conflict": ([*CLEAN, drop(5, 13, reason="conflict")], "clean", [], []),
    # Its first copy came before the log, it was forgotten and came again, and a dead relay had forwarded it.
    "told by its message id": (
        [
            *CLEAN,
            by_id(5, verdict="duplicate", forwarded=False),
            by_id(6),
            by_id(7),
            by_id(8, verdict="recovered"),
        ],
        "clean",
        [],
        [],
    ),
    "parked": ([*CLEAN, drop(5, 13, reason="duplicate")], "clean", [], []),
    # The copy that was stored may be in the hole, so a drop convicts nobody; a second copy in the target does.
    "hole": (_TORN, "incomplete", [], [("offsets", 5, 2, 2)]),
    "lost beside a hole": ([*_TORN, _LOST], "incomplete", [("lost", 5)], [("offsets", 5, 2, 2)]),
    "escaped beside a hole": (
        [*_TORN, arrival(5, 13)],
        "convicted",
        [("escaped", 5)],
        [("offsets", 5, 2, 2)],
    ),
    # What a dead relay had forwarded, and could not tell: told by the next one, perhaps beside a row of its own.
    "recovered": ([*CLEAN, recovered(5, 14), drop(6, 14)], "clean", [], []),
    "recovered beside its own row": ([*CLEAN, recovered(5, 13), drop(6, 13)], "clean", [], []),
    "recovered, and forwarded again": (
        [*CLEAN, recovered(5, 14), arrival(6, 14, attempt=2)],
        "convicted",
        [("escaped", 6)],
        [],
    ),
    "recovered after the drop": (
        [*CLEAN, drop(5, 14, depth=-1), recovered(6, 14)],
        "convicted",
        [("false-drop", 5)],
        [],
    ),
    # The first relay may begin anywhere, a later one at 1; and each names the last arrival before its own.
    "log begins late": (_BEFORE, "clean", [], [("beginning", 5, 1, 39)]),
    "next relay": ([*CLEAN, following(1, 14, 4)], "clean", [], []),
    "next relay knew of less": ([*CLEAN, following(1, 14, 2)], "clean", [], []),
    "next relay knew of nothing": ([*CLEAN, following(1, 14, 0)], "clean", [], []),
    "next relay begins late": (
        [*CLEAN, arrival(3, 16, token=6, before_token=6)],
        "incomplete",
        [],
        [("offsets", 6, 1, 2)],
    ),
    "relay ends early": (
        [*CLEAN, following(1, 14, 6)],
        "incomplete",
        [],
        [("end", 5, 5, 6)],
    ),
    # The publisher had reached 20 when the log begins: drops up to there prove nothing, those above do.
    "drop of what came before": ([arrival(1, 21), drop(2, 20, depth=1)], "unproven", [("unproven", 2)], []),
    "drop of what did not": ([arrival(1, 21), drop(2, 22, depth=-1)], "convicted", [("lost", 2)], []),
    "publisher new to the shim": (
        [arrival(1, 21, depth=None), drop(2, 20, depth=1)],
        "convicted",
        [("lost", 2)],
        [],
    ),
    # Known up to 20, forgotten, and back at 31 as a new publisher: what came before the log is still unknown.
    "publisher forgotten and back": (
        [arrival(1, 21), drop(2, 20, depth=1), arrival(3, 31, depth=None)],
        "unproven",
        [("unproven", 2)],
        [],
    ),
    # What decides is the order of the offsets: the shim's clock went back, and the publisher's is ahead of it.
    "clocks jump": (
        [
            arrival(1, 11, arrived_at=_NOON + dt.timedelta(days=3650)),
            arrival(2, 12, arrived_at=_NOON - dt.timedelta(hours=11)),
            drop(
                3, 11, arrived_at=_NOON - dt.timedelta(hours=11), first_sent_at=_NOON + dt.timedelta(days=1)
            ),
        ],
        "clean",
        [],
        [],
    ),
    "last of all sequences": ([arrival(1, 2**63 - 1), drop(2, 2**63 - 1)], "clean", [], []),
}


def test_each_scenario_gets_its_verdict(spark: SparkSession) -> None:
    """One wrong arrival among right ones is enough, and none is made up."""
    found = judge(
        frame(spark, [row | {"queue": name} for name, (log, *_) in SCENARIOS.items() for row in log])
    )
    told = {
        name: (
            [row["verdict"] for row in tables["verdict"]],
            [(row["kind"], row["offset"]) for row in tables.get("findings", [])],
            [(row["kind"], row["token"], row["first"], row["last"]) for row in tables.get("log_gaps", [])],
        )
        for name, tables in found.items()
    }
    assert told == {name: ([verdict], wrong, holes) for name, (_, verdict, wrong, holes) in SCENARIOS.items()}


@pytest.mark.long
def test_without_early_drops_or_coverage_faults_would_pass(spark: SparkSession) -> None:
    """Masks see no order, and holes are found in the coverage alone: both parts of the state are needed."""
    events = frame(
        spark, [row | {"queue": name} for name in ("repaired", "hole") for row in SCENARIOS[name][0]]
    )
    state = state_of(events)
    assert [row.queue for row in state[EARLY_DROPS].collect()] == ["repaired"]
    merged = blocks(state[CELLS])
    assert findings(events, merged, state[EARLY_DROPS]).count() == 1
    assert findings(events, merged, state[EARLY_DROPS].where(F.lit(False))).count() == 0
    assert [row.queue for row in log_gaps(state[COVERAGE]).collect()] == ["hole"]


def test_a_duplicate_by_message_id_has_a_cause_of_its_own(spark: SparkSession) -> None:
    """Nobody is told that the broker delivered it again."""
    events = frame(spark, [*CLEAN, by_id(5), by_id(6, verdict="duplicate", forwarded=False)])
    found = {row.cause: row.events for row in causes(rates(cells(events))).collect()}
    assert found == {"publisher-retry": 1, "same-message-id": 1}


_BLIND = ("lost", "false_drops", "escaped", "log_holes")


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ({}, {}),
        ({"lost": 1, "found": 1}, {"lost": "fail"}),
        ({"false_drops": 1}, {"false_drops": "fail"}),
        ({"escaped": 1}, {"escaped": "fail"}),
        ({"unproven": 1}, {}),
        ({"holes": 3}, dict.fromkeys(_BLIND, "incomplete")),
        ({"holes": 3, "escaped": 1}, dict.fromkeys(_BLIND, "incomplete") | {"escaped": "fail"}),
        ({"events": 9}, {"uncounted": "fail"}),
        ({"lost": 1}, {"lost": "fail", "disagreement": "fail"}),
        ({"duplicates": 4}, {"duplicate_share": "fail"}),
    ],
)
def test_each_check_can_fail(spark: SparkSession, fault: dict[str, int], failing: dict[str, str]) -> None:
    """Ten arrivals and one number wrong: the check that is about it fails; two of them check the audit itself."""
    number = {"events": 10, "duplicates": 1, "lost": 0, "found": 0, "holes": 0} | fault
    judged = dict.fromkeys((c.name for c in VERDICT.columns), 0) | {
        "log_complete": not number["holes"],
        **{name: number.get(name, 0) for name in ("lost", "false_drops", "escaped", "unproven")},
    }
    checked = checks(
        one(spark, judged),
        one(spark, {"kind": "lost"}).where(F.lit(bool(number["found"]))),
        one(spark, dict.fromkeys((c.name for c in RATES.columns), 0) | number),
        one(spark, {"kind": "offsets", "missing": number["holes"]}).where(F.col("missing") > 0),
        one(spark, {"queue": "q", "token": 1, "block": 0, "mask": (1 << 10) - 1}),
        thresholds={**THRESHOLDS, "duplicate_share": 0.3},
    )
    found = as_dicts(rows(checked, CHECKS), CHECKS)
    assert [row["name"] for row in found] == sorted(NAMES)
    assert {row["name"]: row["status"] for row in found if row["status"] != "pass"} == failing


def one(spark: SparkSession, row: dict[str, Any]) -> DataFrame:
    """Return a frame of one row."""
    return spark.range(1).select(*(F.lit(value).alias(name) for name, value in row.items()))


def test_every_threshold_is_of_a_check() -> None:
    """No threshold is for nothing."""
    assert set(THRESHOLDS) < set(NAMES)
