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

from dedup.core.obituaries import Reason
from dedup.core.registry import Act, Refusal
from dedup.core.steps import Report
from dedup.core.window import Verdict
from dedup.ports import MoveFacts, ScheduleFacts


@frozen
class Row:
    """
    One metric.
    """

    kind: type[Counter | Gauge]
    #: Without "dedup_" in front and, of a counter, "_total" behind.
    name: str
    about: str
    #: The values of its further label, all exported from the start; by that label's name.
    label: str = ""
    values: tuple[str, ...] = ()
    #: Whether it has the label "queue" too.
    of_queue: bool = True


#: How a session may end (dedup.amqp091.session.Outcome); written out, as drivers are not imported here.
OUTCOMES: Final = ("stopped", "lost", "fenced", "refused", "partial")
#: What becomes of a request to the registry.
REGISTRY_OUTCOMES: Final = (
    *(act.value for act in Act),
    *(refusal.value for refusal in Refusal),
    "dropped",
)

#: Queues that obituaries are counted by; those of any more are counted together, as "other".
DIED_IN_MAX: Final = 1_000

TABLE: Final = (
    Row(Counter, "messages", "Messages judged.", "verdict", tuple(verdict.value for verdict in Verdict)),
    Row(Counter, "forwarded", "Messages stored in the target."),
    Row(Counter, "quarantined", "Messages stored in the quarantine."),
    Row(Counter, "marked", "Messages that carry dedup-possible-duplicate."),
    Row(Counter, "conflicts", "Messages with the sequence of another one and a different body."),
    Row(Counter, "questions", "Questions of publishers answered; they are no messages."),
    Row(Counter, "batches", "Batches settled."),
    Row(Counter, "evicted_publishers", "Silent publishers forgotten to make room."),
    Row(Counter, "forgotten_message_ids", "Message ids forgotten before their time to make room."),
    Row(Counter, "refused", "Messages that target or quarantine refused, to be published again."),
    Row(Counter, "sessions", "Sessions ended.", "outcome", OUTCOMES),
    Row(Counter, "replayed_batches", "Batches that the ledger knew and Redis did not."),
    Row(Counter, "doubtful", "Messages in doubt after a recovery: if they come again, they are marked."),
    Row(Counter, "rollbacks", "Recoveries that found Redis emptied, rolled back or maybe so."),
    Row(Counter, "store_unavailable", "Times Redis stopped answering; it is waited for."),
    Row(Counter, "store_behind", "Times Redis had lost writes and was written anew from memory."),
    Row(
        Counter,
        "registry_requests",
        "Requests to the registry.",
        "outcome",
        REGISTRY_OUTCOMES,
        of_queue=False,
    ),
    Row(Gauge, "registry_serving", "Whether this process serves the registry.", of_queue=False),
    Row(Counter, "scheduled", "Dead letters written into the schedule."),
    Row(Counter, "rescheduled", "Dead letters delivered again that the schedule had already."),
    Row(Counter, "retried", "Messages sent back to the queue they died in."),
    Row(Counter, "retry_refused", "Messages that a queue refused, to be sent back later."),
    Row(
        Counter,
        "retry_recovered",
        "Messages that a dead retry process had claimed: they are sent back marked.",
    ),
    Row(Counter, "obituaries", "Messages given up.", "reason", tuple(reason.value for reason in Reason)),
    Row(Gauge, "move_backlog", "Messages that wait in the source of a move."),
    Row(Gauge, "move_in_flight", "Messages that a move has in its hands, not acknowledged yet."),
    Row(Gauge, "move_skipped", "Messages that do not meet the filter of a move, held until its end."),
    Row(Gauge, "schedule_messages", "Messages in the schedule."),
    Row(Gauge, "schedule_bytes", "Bytes in the schedule."),
    Row(Gauge, "schedule_overdue", "Messages that are due and not sent back yet."),
    Row(Gauge, "schedule_late_seconds", "How long the oldest of them has been due."),
    Row(Gauge, "schedule_full", "Whether dead letters stay where they are, because the schedule is full."),
    Row(Gauge, "publishers", "Publishers remembered."),
    Row(Gauge, "message_ids", "Message ids remembered."),
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
                [name for name in ("queue" if row.of_queue else "", row.label) if name],
                registry=self.registry,
            )
            for row in TABLE
        }
        self._died_in: set[str] = set()
        requests = self._metrics["registry_requests"]
        #: The metrics of the registry.
        self.of_registry = RegistryMetrics(
            {outcome: requests.labels(outcome) for outcome in REGISTRY_OUTCOMES},
            self._metrics["registry_serving"],
        )

    def of(self, queue: str) -> QueueMetrics:
        """
        Return the metrics of one queue, all of them exported from now on.
        """
        return QueueMetrics(
            {row.name: self._children(row, queue) for row in TABLE if row.of_queue}, self._count_obituary
        )

    def _count_obituary(self, queue: str, reason: str) -> None:
        """
        Count under the queue the message died in; its history names it, and anybody may have written that.
        """
        if len(self._died_in) < DIED_IN_MAX:
            self._died_in.add(queue)
        self._metrics["obituaries"].labels(queue if queue in self._died_in else "other", reason).inc()

    def _children(self, row: Row, queue: str) -> dict[str, Any]:
        metric = self._metrics[row.name]
        if not row.label:
            return {"": metric.labels(queue)}
        return {value: metric.labels(queue, value) for value in row.values}


class RegistryMetrics:
    """
    The metrics of the registry; its thread feeds them.

    Args:
        requests: By outcome.
        serving: Whether it is served.
    """

    def __init__(self, requests: Mapping[str, Any], serving: Any) -> None:
        self._requests = requests
        self._serving = serving

    def count(self, outcome: str) -> None:
        """
        Count one request.
        """
        self._requests[outcome].inc()

    def report(self, report: Report) -> None:
        """
        Take no report: a registry moves no messages.
        """

    def notice(self, name: str, facts: Mapping[str, Any]) -> None:
        """
        Take note of what an operator is told; a notice of another name changes nothing.
        """
        if name in ("dedup.registry_serving", "dedup.unavailable"):
            self._serving.set(name == "dedup.registry_serving")


class QueueMetrics:
    """
    The metrics of one queue; its shim's thread feeds them.

    Args:
        metrics: By row, then by the value of the row's label.
        count_obituary: Told the queue a message died in, and why it was given up.
    """

    def __init__(
        self, metrics: Mapping[str, Mapping[str, Any]], count_obituary: Callable[[str, str], None]
    ) -> None:
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
            "dedup.obituary": lambda facts: count_obituary(facts["queue"], facts["reason"]),
            "dedup.scheduled": self._on_scheduled,
            "dedup.retrying": lambda _: self._set("active", 1),
            "dedup.retried": self._on_retried,
            "dedup.retry_refused": lambda facts: self._add("retry_refused", facts["messages"]),
            "dedup.retry_recovered": lambda facts: self._add("retry_recovered", facts["doubtful"]),
            "dedup.schedule_full": lambda _: self._set("schedule_full", 1),
            "dedup.schedule_has_room": lambda _: self._set("schedule_full", 0),
            "dedup.blocked": lambda _: self._set("blocked", 1),
            "dedup.unblocked": lambda _: self._set("blocked", 0),
        }

    def report(self, report: Report) -> None:
        """
        Count one batch.
        """
        for verdict, count in report.verdicts.items():
            self._add("messages", count, verdict.value)
        self._add("conflicts", report.conflicts)
        self._add("questions", report.questions)
        self._add("batches", 1)
        self._add("forwarded", report.forwarded)
        self._add("quarantined", report.quarantined)
        self._add("marked", report.marked)
        self._add("evicted_publishers", len(report.evicted))
        self._add("forgotten_message_ids", report.message_ids_forgotten)
        self._set("publishers", report.publishers)
        self._set("message_ids", report.message_ids)
        self._set("waiting", report.waiting)

    def source(self, facts: MoveFacts) -> None:
        """
        Tell how much of the source of a move is left, and how much is under way.
        """
        self._set("move_backlog", facts.backlog)
        self._set("move_in_flight", facts.in_flight)
        self._set("move_skipped", facts.skipped)

    def schedule(self, facts: ScheduleFacts) -> None:
        """
        Tell how full the schedule of a dead-letter queue is, and how late.
        """
        self._set("schedule_messages", facts.messages)
        self._set("schedule_bytes", facts.bytes)
        self._set("schedule_overdue", facts.overdue)
        self._set("schedule_late_seconds", facts.late_s)

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

    def _on_scheduled(self, facts: Mapping[str, Any]) -> None:
        self._add("scheduled", facts["scheduled"] + facts["marked"])
        self._add("rescheduled", facts["known"])

    def _on_retried(self, facts: Mapping[str, Any]) -> None:
        self._add("retried", facts["messages"])
        self._add("marked", facts["marked"])

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
