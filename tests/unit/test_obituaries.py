"""Obituaries: what is told, to whom, and what a message carries of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.choices import Choice, choose
from dedup.core.deaths import Death, DeathHistory
from dedup.core.identity import DEATHS_HEADER, OBITUARY_HEADER, REASON_HEADER, RESERVED_HEADERS
from dedup.core.obituaries import (
    REPLACED_HEADERS,
    Note,
    Obituary,
    Reason,
    Severity,
    read_note,
    severity,
    severity_rules,
)
from dedup.deadletters.reporting import Obituaries
from dedup.errors import ConfigError

HISTORY = DeathHistory(
    (
        Death("retry", "expired", 2, 3_000, 9_000),
        Death("orders", "rejected", 3, 1_000, 8_000, "shop", ("new",)),
    )
)


def obituary(**changes: Any) -> Obituary:
    """One about a message of the queue "orders"."""
    facts: dict[str, Any] = {
        "queue": "orders",
        "reason": Reason.ATTEMPTS,
        "history": HISTORY,
        "attempts": 3,
        "at_ms": 10_000,
        "size": 5,
        "message_id": "m-1",
    }
    return Obituary(**(facts | changes))


def test_what_is_told() -> None:
    """Fields for a log line; nothing of the body or the headers."""
    assert obituary(headers={"secret": "x"}).facts() == {
        "queue": "orders",
        "reason": "attempts-exhausted",
        "dead_queue": "orders.dead",
        "attempts": 3,
        "deaths": 5,
        "first_death_ms": 1_000,
        "last_death_ms": 9_000,
        "exchange": "shop",
        "message_id": "m-1",
        "publisher_id": None,
        "sequence": None,
        "bytes": 5,
    }
    assert "secret" not in repr(obituary(headers={"secret": "x"}))
    assert obituary(history=DeathHistory()).facts()["first_death_ms"] is None


def test_what_the_message_carries() -> None:
    """Reason, history and a note, under names that are ours; what they replace is to be taken out."""
    stamp = dict(obituary().stamp())
    assert stamp == {
        REASON_HEADER: "attempts-exhausted",
        DEATHS_HEADER: HISTORY.encode(),
        OBITUARY_HEADER: '[1,"orders",3,10000]',
    }
    assert stamp.keys() <= RESERVED_HEADERS
    assert stamp.keys() <= REPLACED_HEADERS
    assert {"x-death", "x-opt-deaths"} <= REPLACED_HEADERS
    assert read_note(stamp) == Note("orders", 3, 10_000)


@pytest.mark.parametrize(
    "value",
    [None, 1, "", "[", "[2]", '[1,"q",1]', "[1,2,3,4]", '[1,"q",true,4]', '[1,"q",1,-4]', '[1,"q",1,1e3]', "[" * 2000, "x" * 9999, f'[1,"q",{"9" * 1900},1]'],
)  # fmt: skip
def test_a_note_that_is_none(value: object) -> None:
    """Anybody can write the header."""
    assert read_note({OBITUARY_HEADER: value}) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=255), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))  # fmt: skip
def test_a_note_is_read_as_it_was_written(queue: str, attempts: int, at_ms: int) -> None:
    """Whatever the queue is called."""
    stamp = dict(obituary(queue=queue, attempts=attempts, at_ms=at_ms).stamp())
    assert read_note(stamp) == Note(queue, attempts, at_ms)
    assert read_note({OBITUARY_HEADER: stamp[OBITUARY_HEADER].encode()}) == Note(queue, attempts, at_ms)


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([], Severity.NOTIFY),
        (["silent"], Severity.SILENT),
        (["page queue=orders"], Severity.PAGE),
        (["page queue=order"], Severity.NOTIFY),
        (["page queue=ord*", "silent"], Severity.PAGE),
        (["silent", "page queue=ord*"], Severity.SILENT),
        (["page exchange=shop"], Severity.PAGE),
        (["page exchange=shop queue=invoices"], Severity.NOTIFY),
        (["silent header.tenant=test-*"], Severity.SILENT),
        (["silent header.tenant=live-*"], Severity.NOTIFY),
        (["silent header.missing=*"], Severity.NOTIFY),
        (["page header.number=17 header.flag=true"], Severity.PAGE),
        (["page 'header.big corp=a b'"], Severity.PAGE),
        (["page header.raw=bytes"], Severity.PAGE),
        (["page header.table=*"], Severity.NOTIFY),
    ],
)
def test_the_first_rule_that_fits_decides(rules: list[str], found: Severity) -> None:
    """By queue, exchange and headers, all of a rule; without any, somebody is notified."""
    headers = {"tenant": "test-1", "number": 17, "flag": True, "big corp": "a b", "raw": b"bytes", "table": {}}  # fmt: skip
    assert severity(severity_rules(rules), obituary(headers=headers)) is found


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("", "chooses nothing"),
        ("'page", "quotes in pairs"),
        ("wake queue=orders", "'wake' is no severity"),
        ("page orders", "is none of queue=PATTERN"),
        ("page header.=x", "is none of queue=PATTERN"),
        ("page size=1", "is none of queue=PATTERN"),
    ],
)
def test_a_rule_that_is_none(rule: str, complaint: str) -> None:
    """It is refused, and the message says how one is written."""
    with pytest.raises(ConfigError, match=complaint):
        severity_rules([rule])


def test_nothing_fits() -> None:
    """Then nothing is chosen."""
    assert choose([Choice("x", queue="a")], "b", "", {}) is None


class Heard:
    """A webhook that remembers."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []

    def send(self, facts: dict[str, Any]) -> None:
        self.facts.append(facts)


def test_everything_is_logged_and_the_silent_is_not_sent() -> None:
    """The webhook hears what concerns somebody."""
    logged: list[tuple[str, dict[str, Any]]] = []
    webhook = Heard()
    obituaries = Obituaries(
        severity_rules(["silent queue=tests", "page queue=orders"]),
        notice=lambda name, facts: logged.append((name, facts)),
        webhook=webhook,
    )
    assert obituaries.report(obituary()) is Severity.PAGE
    assert obituaries.report(obituary(queue="tests")) is Severity.SILENT
    assert obituaries.report(obituary(queue="other")) is Severity.NOTIFY
    assert [(name, facts["queue"], facts["severity"]) for name, facts in logged] == [
        ("dedup.obituary", "orders", "page"),
        ("dedup.obituary", "tests", "silent"),
        ("dedup.obituary", "other", "notify"),
    ]
    assert [facts["queue"] for facts in webhook.facts] == ["orders", "other"]
