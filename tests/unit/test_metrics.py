"""Every metric is exported from the start and fed by what a shim reports."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dedup.amqp091.driver import Outcome
from dedup.core.steps import Report
from dedup.core.window import Verdict
from dedup.metrics import DIED_IN_MAX, OUTCOMES, TABLE, Metrics, QueueMetrics


@pytest.fixture
def metrics() -> Metrics:
    """Metrics of a process."""
    return Metrics()


@pytest.fixture
def orders(metrics: Metrics) -> QueueMetrics:
    """Those of its queue "orders"."""
    return metrics.of("orders")


def exported(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return what Prometheus reads: (name, label values but the queue's) -> number."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                assert sample.labels.pop("queue", "orders") == "orders"
                found[sample.name, *sample.labels.values()] = sample.value
    return found


def changed(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return what is not zero."""
    return {key: value for key, value in exported(metrics).items() if value}


@pytest.mark.usefixtures("orders")
def test_everything_is_there_from_the_start(metrics: Metrics) -> None:
    """A rate needs a zero to start from: every combination of labels is exported before anything happened."""
    found = exported(metrics)

    assert set(found.values()) == {0.0}
    assert len(found) == sum(len(row.values) or 1 for row in TABLE)
    assert {key[1:] for key in found if key[0] == "dedup_messages_total"} == {(v.value,) for v in Verdict}


def test_requests_to_the_registry_are_counted(metrics: Metrics) -> None:
    """By what became of them, and whether the process serves it at all."""
    for outcome in ("register", "register", "renew", "dropped"):
        metrics.of_registry.count(outcome)
    metrics.of_registry.notice("dedup.registry_serving", {})
    assert changed(metrics) == {
        ("dedup_registry_requests_total", "register"): 2,
        ("dedup_registry_requests_total", "renew"): 1,
        ("dedup_registry_requests_total", "dropped"): 1,
        ("dedup_registry_serving",): 1,
    }
    metrics.of_registry.notice("dedup.unavailable", {})
    assert ("dedup_registry_serving",) not in changed(metrics)


def test_outcomes_are_those_of_sessions() -> None:
    """The table knows every way a session can end."""
    assert {outcome.value for outcome in Outcome} == {*OUTCOMES}


def test_no_metric_has_a_publisher_as_label() -> None:
    """Labels are few: the queue and at most one with a fixed set of values."""
    assert {row.label for row in TABLE} == {"", "verdict", "outcome", "link", "reason"}
    assert all(bool(row.label) == bool(row.values) for row in TABLE)
    assert all(row.about.endswith(".") for row in TABLE)


def test_reports_add_up(metrics: Metrics, orders: QueueMetrics) -> None:
    """Two batches are counted as their sum."""
    report = Report(
        {Verdict.NEW: 3, Verdict.DUPLICATE: 2, Verdict.TOO_OLD: 1},
        forwarded=3,
        quarantined=1,
        marked=2,
        evicted=("a", "b"),
    )
    orders.report(report)
    orders.report(report)

    assert changed(metrics) == {
        ("dedup_messages_total", "new"): 6,
        ("dedup_messages_total", "duplicate"): 4,
        ("dedup_messages_total", "too-old"): 2,
        ("dedup_batches_total",): 2,
        ("dedup_forwarded_total",): 6,
        ("dedup_quarantined_total",): 2,
        ("dedup_marked_total",): 4,
        ("dedup_evicted_publishers_total",): 4,
    }
    assert "publisher=" not in generate_latest(metrics.registry).decode()


def test_a_session_comes_and_goes(metrics: Metrics, orders: QueueMetrics) -> None:
    """Gauges follow the state; a lost session leaves none of them up but the store's."""
    orders.notice("dedup.forwarding", {"exact": True, "reason": ""})
    orders.notice("dedup.standby", {"queue": "orders"})
    assert changed(metrics) == {("dedup_exact",): 1, ("dedup_standby",): 1}

    orders.notice("dedup.recovered", {"replayed": 2, "doubtful": 3})
    assert changed(metrics) == {
        ("dedup_exact",): 1,
        ("dedup_active",): 1,
        ("dedup_link_up", "broker"): 1,
        ("dedup_link_up", "store"): 1,
        ("dedup_replayed_batches_total",): 2,
        ("dedup_doubtful_total",): 3,
    }

    orders.notice("dedup.blocked", {"reason": "memory"})
    assert changed(metrics)["dedup_blocked",] == 1
    orders.notice("dedup.session_ended", {"outcome": "lost", "reason": ""})
    left = changed(metrics)
    assert left["dedup_sessions_total", "lost"] == 1
    assert not {("dedup_active",), ("dedup_blocked",), ("dedup_link_up", "broker")} & left.keys()
    assert left["dedup_link_up", "store"] == 1


@pytest.mark.parametrize(
    ("name", "facts", "expected"),
    [
        ("dedup.refused", {"messages": 4, "retry_in_s": 1}, {("dedup_refused_total",): 4}),
        ("dedup.rolled_back", {"cause": ""}, {("dedup_rollbacks_total",): 1}),
        ("dedup.store_behind", {"batch": 1}, {("dedup_store_behind_total",): 1}),
        ("dedup.store_unavailable", {"failures": 0}, {("dedup_store_unavailable_total",): 1}),
        ("dedup.store_unavailable", {"failures": 20}, {}),
        ("dedup.store_back", {"failures": 1}, {("dedup_link_up", "store"): 1}),
        ("dedup.warning", {"text": ""}, {}),
        ("dedup.never_heard_of", {}, {}),
    ],
)
def test_notices(
    metrics: Metrics,
    orders: QueueMetrics,
    name: str,
    facts: dict[str, Any],
    expected: dict[tuple[str, ...], float],
) -> None:
    """Each notice changes its own metric; one that nobody counts changes none."""
    orders.notice(name, facts)

    assert changed(metrics) == expected


def test_obituaries_are_counted_by_the_queue_a_message_died_in() -> None:
    """Not by the dead-letter queue it was taken from; and no history can make up more labels than there may be."""
    metrics = Metrics()
    of = metrics.of("orders.dlq")
    for queue in ("orders", "orders", "invoices"):
        of.notice("dedup.obituary", {"queue": queue, "reason": "cycle"})

    def count(queue: str) -> float | None:
        return metrics.registry.get_sample_value(
            "dedup_obituaries_total", {"queue": queue, "reason": "cycle"}
        )

    assert (count("orders"), count("invoices"), count("orders.dlq")) == (2, 1, 0)
    for number in range(DIED_IN_MAX + 10):
        of.notice("dedup.obituary", {"queue": f"made-up-{number}", "reason": "cycle"})
    assert count("made-up-0") == 1
    assert count(f"made-up-{DIED_IN_MAX}") is None
    assert count("other") == 12
