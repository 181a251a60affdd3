"""
Count what shims do, for Prometheus: every metric is a row of one table.

Metrics are fed by the same records as the log. A publisher id is never a label: there are as many as
clients like to make up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import frozen
from prometheus_client import CollectorRegistry, Counter, Gauge

from dedup.core.steps import Report
from dedup.core.window import Verdict


@frozen
class Row:
    """
    One metric; all have the label "queue".
    """

    kind: type[Counter | Gauge]
    #: Without "dedup_" in front and, of a counter, "_total" behind.
    name: str
    about: str
    #: The values of its further label, all exported from the start; by that label's name.
    label: str = ""
    values: tuple[str, ...] = ()


#: How a session may end (dedup.amqp091.session.Outcome); written out, as drivers are not imported here.
OUTCOMES: Final = ("stopped", "lost", "fenced", "refused", "partial")

TABLE: Final = (
    Row(Counter, "messages", "Messages judged.", "verdict", tuple(verdict.value for verdict in Verdict)),
    Row(Counter, "forwarded", "Messages stored in the target."),
    Row(Counter, "quarantined", "Messages stored in the quarantine."),
    Row(Counter, "marked", "Messages that carry dedup-possible-duplicate."),
    Row(Counter, "batches", "Batches settled."),
    Row(Counter, "evicted_publishers", "Silent publishers forgotten to make room."),
    Row(Counter, "refused", "Messages that target or quarantine refused, to be published again."),
    Row(Counter, "sessions", "Sessions ended.", "outcome", OUTCOMES),
    Row(Counter, "replayed_batches", "Batches that the ledger knew and Redis did not."),
    Row(Counter, "doubtful", "Messages in doubt after a recovery: if they come again, they are marked."),
    Row(Counter, "rollbacks", "Recoveries that found Redis emptied, rolled back or maybe so."),
    Row(Counter, "store_unavailable", "Times Redis stopped answering; it is waited for."),
    Row(Counter, "store_behind", "Times Redis had lost writes and was written anew from memory."),
    Row(Gauge, "publishers", "Publishers remembered."),
    Row(Gauge, "waiting", "Deliveries taken that wait for the next batch."),
    Row(Gauge, "link_up", "Whether a server answers.", "link", ("broker", "store")),
    Row(Gauge, "active", "Whether this process forwards the queue."),
    Row(Gauge, "standby", "Whether this process waits to take over."),
    Row(Gauge, "exact", "Whether forwarding is exact, in transactions."),
    Row(Gauge, "blocked", "Whether an alarm of the broker holds forwarding up."),
)


class Metrics:
    """
    All metrics of one process.
    """

    def __init__(self) -> None:
        #: What is exported; nothing of other libraries is in it.
        self.registry = CollectorRegistry()
        self._metrics = {
            row.name: row.kind(
                f"dedup_{row.name}",
                row.about,
                ("queue", row.label) if row.label else ("queue",),
                registry=self.registry,
            )
            for row in TABLE
        }

    def of(self, queue: str) -> QueueMetrics:
        """
        Return the metrics of one queue, all of them exported from now on.
        """
        return QueueMetrics({row.name: self._children(row, queue) for row in TABLE})

    def _children(self, row: Row, queue: str) -> dict[str, Any]:
        metric = self._metrics[row.name]
        if not row.label:
            return {"": metric.labels(queue)}
        return {value: metric.labels(queue, value) for value in row.values}


class QueueMetrics:
    """
    The metrics of one queue; its shim's thread feeds them.

    Args:
        metrics: By row, then by the value of the row's label.
    """

    def __init__(self, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        self._metrics = metrics
        self._on: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "dedup.recovered": self._on_recovered,
            "dedup.session_ended": self._on_session_ended,
            "dedup.standby": lambda _: self._set("standby", 1),
            "dedup.forwarding": lambda facts: self._set("exact", facts["exact"]),
            "dedup.refused": lambda facts: self._add("refused", facts["messages"]),
            "dedup.rolled_back": lambda _: self._add("rollbacks", 1),
            "dedup.store_behind": lambda _: self._add("store_behind", 1),
            "dedup.store_unavailable": self._on_store_unavailable,
            "dedup.store_back": lambda _: self._set("link_up", 1, "store"),
            "dedup.blocked": lambda _: self._set("blocked", 1),
            "dedup.unblocked": lambda _: self._set("blocked", 0),
        }

    def report(self, report: Report) -> None:
        """
        Count one batch.
        """
        for verdict, count in report.verdicts.items():
            self._add("messages", count, verdict.value)
        self._add("batches", 1)
        self._add("forwarded", report.forwarded)
        self._add("quarantined", report.quarantined)
        self._add("marked", report.marked)
        self._add("evicted_publishers", len(report.evicted))
        self._set("publishers", report.publishers)
        self._set("waiting", report.waiting)

    def notice(self, name: str, facts: Mapping[str, Any]) -> None:
        """
        Count what an operator is told; a notice of another name changes nothing.
        """
        if handle := self._on.get(name):
            handle(facts)

    def _on_recovered(self, facts: Mapping[str, Any]) -> None:
        self._add("replayed_batches", facts["replayed"])
        self._add("doubtful", facts["doubtful"])
        self._set("active", 1)
        self._set("standby", 0)
        self._set("link_up", 1, "broker")
        self._set("link_up", 1, "store")

    def _on_session_ended(self, facts: Mapping[str, Any]) -> None:
        self._add("sessions", 1, facts["outcome"])
        self._set("link_up", 0, "broker")
        for name in ("active", "standby", "blocked"):
            self._set(name, 0)

    def _on_store_unavailable(self, facts: Mapping[str, Any]) -> None:
        self._add("store_unavailable", 0 if facts["failures"] else 1)
        self._set("link_up", 0, "store")

    def _add(self, name: str, count: float, value: str = "") -> None:
        self._metrics[name][value].inc(count)

    def _set(self, name: str, number: float, value: str = "") -> None:
        self._metrics[name][value].set(number)
