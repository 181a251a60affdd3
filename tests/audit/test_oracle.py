"""Random arrivals, judged by fifteen lines of plain Python and by the audit."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from typing import Any

import pytest
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from dedup.audit import answers, state_of
from dedup.audit.schema import EVENTS, FINDINGS, VERDICT
from tests.audit.tables import as_dicts, rows

_NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
#: Queues of one example: each is a log of its own, and one query answers for all.
_LOGS = 100


@frozen
class Arrival:
    """What the oracle needs to know of one arrival."""

    publisher: str
    sequence: int
    #: "out": to the target; "mark": to the target, marked; "drop"; "park": to quarantine.
    fate: str


def oracle(log: list[Arrival]) -> list[tuple[str, str, int, int]]:
    """Return kind, publisher, sequence and number of each arrival that was treated wrongly."""
    found = []
    seen: dict[tuple[str, int], list[str]] = {}
    for number, arrival in enumerate(log, 1):
        before = seen.setdefault((arrival.publisher, arrival.sequence), [])
        if arrival.fate == "out" and {"out", "mark"} & set(before):
            found.append(("escaped", arrival.publisher, arrival.sequence, number))
        if arrival.fate == "drop" and not before:
            found.append(("lost", arrival.publisher, arrival.sequence, number))
        before.append(arrival.fate)
    return sorted(
        (
            "false-drop" if kind == "lost" and set(seen[publisher, sequence]) != {"drop"} else kind,
            publisher,
            sequence,
            number,
        )
        for kind, publisher, sequence, number in found
    )


def events(log: list[Arrival], queue: str) -> list[tuple[Any, ...]]:
    """Return the rows a shim would write: one token, batches of three, the first arrival of a publisher unknown to it."""
    written = []
    last: dict[str, int] = {}
    for number, arrival in enumerate(log, 1):
        known = last.get(arrival.publisher)
        verdict = {"out": "new", "mark": "new", "drop": "duplicate", "park": "too-old"}[arrival.fate]
        row = {
            "queue": queue,
            "token": 7,
            "offset": number,
            "batch": (number + 2) // 3,
            "arrived_at": _NOON + dt.timedelta(minutes=number),
            "publisher": arrival.publisher,
            "sequence": arrival.sequence,
            "attempt": 1,
            "first_sent_at": None,
            "before_token": 7 if number > 3 else 0,
            "before_offset": (number - 1) // 3 * 3,
            "redelivered": False,
            "verdict": verdict,
            "reason": "too-old" if arrival.fate == "park" else "",
            # Each publisher was new to the shim when its first message, sequence 1 at the lowest, was stored.
            "depth": (known or 0) - arrival.sequence,
            "marked": arrival.fate == "mark",
            "forwarded": arrival.fate in ("out", "mark"),
            "bytes": 10,
            "message_id": None,
            "date": _NOON.date(),
        }
        last[arrival.publisher] = max(known or 0, arrival.sequence)
        written.append(tuple(row[column.name] for column in EVENTS.columns))
    return written


_ARRIVAL = st.builds(
    Arrival,
    st.sampled_from(["a", "b"]),
    st.sampled_from([1, 2, 3, 31, 32, 33, 2**32 - 1, 2**32, 2**63 - 2, 2**63 - 1]),
    st.sampled_from(["out", "out", "drop", "drop", "mark", "park"]),
)


#: Every history of one message with up to three copies, next to a message that is never wrong.
_HISTORIES = [
    [Arrival("a", 64, "out"), *(Arrival("a", 65, fate) for fate in fates)]
    for copies in (1, 2, 3)
    for fates in itertools.product(("out", "drop", "mark", "park"), repeat=copies)
]


@pytest.mark.long
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.lists(st.lists(_ARRIVAL, min_size=1, max_size=14), min_size=_LOGS, max_size=_LOGS))
def test_the_audit_agrees_with_the_oracle(spark: SparkSession, random: list[list[Arrival]]) -> None:
    """Whatever arrives in whatever order, the audit finds what the oracle finds, and nothing else."""
    logs = [*_HISTORIES, *random]
    found, verdicts = audit(spark, logs)
    wanted = {f"log-{index}": oracle(log) for index, log in enumerate(logs)}
    assert {queue: found.get(queue, []) for queue in wanted} == wanted
    for (queue, publisher), row in verdicts.items():
        kinds = Counter(kind for kind, name, *_ in wanted[queue] if name == publisher)
        counted = (row["lost"], row["false_drops"], row["escaped"])
        assert counted == (kinds["lost"], kinds["false-drop"], kinds["escaped"])
        assert row["verdict"] == ("convicted" if kinds else "clean")


@pytest.mark.parametrize(
    "fates", [("out",), ("drop",), ("drop", "out"), ("out", "out"), ("mark", "out"), ("out", "mark")]
)
def test_the_oracle_convicts(fates: tuple[str, ...]) -> None:
    """The oracle itself can tell right from wrong."""
    found = [kind for kind, *_ in oracle([Arrival("a", 1, fate) for fate in fates])]
    wrong = {
        ("drop",): "lost",
        ("drop", "out"): "false-drop",
        ("out", "out"): "escaped",
        ("mark", "out"): "escaped",
    }
    assert found == ([wrong[fates]] if fates in wrong else [])


def audit(
    spark: SparkSession, logs: list[list[Arrival]]
) -> tuple[dict[str, list[Any]], dict[Any, dict[str, Any]]]:
    """Audit *logs*, each as a queue of its own: findings by queue, and verdicts by queue and publisher."""
    written = [row for index, log in enumerate(logs) for row in events(log, f"log-{index}")]
    frame = spark.createDataFrame(written, EVENTS.schema).persist()
    tables = answers(frame, {table: found.persist() for table, found in state_of(frame).items()})
    found: dict[str, list[Any]] = {}
    for row in as_dicts(rows(tables[FINDINGS], FINDINGS), FINDINGS):
        found.setdefault(row["queue"], []).append(
            (row["kind"], row["publisher"], row["sequence"], row["offset"])
        )
    verdicts = {
        (row["queue"], row["publisher"]): row for row in as_dicts(rows(tables[VERDICT], VERDICT), VERDICT)
    }
    spark.catalog.clearCache()
    return {queue: sorted(wrong) for queue, wrong in found.items()}, verdicts
