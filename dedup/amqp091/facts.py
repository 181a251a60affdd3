"""What the management API tells, as records: queues, who takes from them, exchanges and bindings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from dedup.amqp091.policies import Policies, Settings


@frozen
class QueueFacts:
    """
    What the broker holds about one queue.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    #: As it was declared, each with its "x-".
    arguments: Mapping[str, Any]
    #: What its arguments and the policies come to.
    settings: Settings
    node: str
    #: Ready and unacknowledged ones; None when it was not asked for.
    messages: int | None = None


@frozen
class QueueActivity:
    """
    Who takes from a queue, as the API knows it, up to five seconds late.
    """

    name: str
    consumers: int
    messages: int
    #: Since when nothing has happened in it, as the API words it; empty when it does not tell: quorum queues, a busy one.
    idle_since: str
    #: The queue that its dead letters go to, where the default exchange leads them; empty: none, or nobody can tell.
    dead_letters_to: str


@frozen
class ExchangeFacts:
    """
    What the broker holds about one exchange.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    settings: Settings
    #: Names of the queues and exchanges it leads to.
    destinations: Sequence[str]


@frozen
class Binding:
    """
    One binding of a queue to a named exchange.
    """

    source: str
    destination: str
    routing_key: str
    arguments: Mapping[str, Any]
    #: What the API calls it.
    key: str


def queue_of(found: Mapping[str, Any], policies: Policies) -> QueueFacts:
    """
    Return the queue that a row of the API tells of.
    """
    arguments = dict(found["arguments"] or {})
    return QueueFacts(
        found["name"],
        found["type"],
        found["durable"],
        found["auto_delete"],
        arguments,
        policies.settings(found["name"], f"{found['type']}_queues", arguments),
        found.get("node") or "",
    )


def activity_of(row: Mapping[str, Any], policies: Policies) -> QueueActivity:
    """
    Return what a row of the API tells of who takes from a queue.
    """
    arguments = row.get("arguments") or {}
    settings = policies.settings(row["name"], f"{row.get('type', 'classic')}_queues", arguments)
    exchange, key = settings.get("dead-letter-exchange"), settings.get("dead-letter-routing-key")
    direct = exchange is not None and exchange.value == "" and key is not None
    return QueueActivity(
        row["name"],
        # A queue that is new has no figures yet.
        int(row.get("consumers") or 0),
        int(row.get("messages") or 0),
        str(row.get("idle_since") or ""),
        str(key.value) if direct and key is not None else "",
    )
