"""
Let messages die in every way there is, on real queues, and say what their histories tell: the table of the how-to.

``python -m tests.integration.deaths`` prints it for every RabbitMQ that can be had here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pika
from attrs import define, field

from dedup import DeathHistory
from dedup.core.deaths import BROKER_HEADERS
from dedup.core.identity import DEATHS_HEADER
from dedup.testing.servers import RabbitMQ

PATIENCE_S = 20.0
#: How long nothing must come before a message counts as dropped; a cycle of these tests takes a few milliseconds.
GONE_S = 0.7
ALL = ("classic", "quorum")
VERSIONS = ("3.10", "4.0", "4.3")


@define
class Ways:
    """
    Queues of one type on one broker, and what happens to a message in them.
    """

    channel: Any
    kind: str
    _run: str = field(factory=lambda: uuid.uuid4().hex[:8])
    _declared: list[str] = field(factory=list)

    def name(self, letter: str) -> str:
        """Return the name of queue A, B, ..."""
        return f"{letter}-{self._run}"

    def queue(self, letter: str, to: str = "", *, kind: str = "", **arguments: Any) -> None:
        """Declare a queue that dead-letters to another one; other arguments without x-."""
        wanted: dict[str, Any] = {"x-queue-type": kind or self.kind}
        if to:
            wanted |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.name(to)}
        wanted |= {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.channel.queue_declare(self.name(letter), durable=True, arguments=wanted)
        self._declared.append(self.name(letter))

    def publish(self, letter: str, headers: Mapping[str, Any] | None = None, **properties: Any) -> None:
        """Publish to a queue, confirmed."""
        made = pika.BasicProperties(headers=dict(headers or {}), delivery_mode=2, **properties)
        self.channel.basic_publish("", self.name(letter), b"body", made)

    def take(self, letter: str, timeout_s: float = PATIENCE_S) -> tuple[Any, dict[str, Any]]:
        """Take the one message of a queue, unsettled: its delivery tag and headers; (None, {}) when none comes."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            method, properties, _ = self.channel.basic_get(self.name(letter))
            if method is not None:
                return method.delivery_tag, dict(properties.headers or {})
            time.sleep(0.01)
        return None, {}

    def take_from_stream(self, letter: str) -> dict[str, Any] | None:
        """Take the first message of a stream: its headers; None when none comes."""
        self.channel.basic_qos(prefetch_count=1)
        consumer = self.channel.consume(
            self.name(letter), arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE_S
        )
        method, properties, _ = next(consumer)
        if method is not None:
            self.channel.basic_ack(method.delivery_tag)
        self.channel.cancel()
        return None if method is None else dict(properties.headers or {})

    def reject(self, letter: str) -> dict[str, Any]:
        """Take the message of a queue and let it die there; return the headers it had."""
        tag, headers = self.take(letter)
        assert tag is not None, f"nothing came into {letter}"
        self.channel.basic_reject(tag, requeue=False)
        return headers

    def history(self, headers: Mapping[str, Any]) -> DeathHistory:
        """Return the history that headers tell, with the names of the queues as in the scenario."""
        return DeathHistory.read(headers)

    def told(self, headers: Mapping[str, Any]) -> str:
        """Return a history for people: entries newest first, queue reason count, and what else is in it."""
        history = self.history(headers)
        assert not history.faults, history.faults
        parts = []
        for death in history.deaths:
            keys = "+".join(key.replace(f"-{self._run}", "") for key in death.routing_keys)
            ttl = "" if death.original_expiration_ms is None else f" ttl {death.original_expiration_ms}"
            parts.append(
                f"{death.queue.removesuffix(f'-{self._run}')} {death.reason} {death.count} ({death.exchange}/{keys}{ttl})"
            )
        return ", ".join(parts) or "nothing"

    def delete(self) -> None:
        """Delete the queues."""
        for name in self._declared:
            self.channel.queue_delete(name)


def rejected(ways: Ways) -> str:
    """A consumer rejects it."""
    ways.queue("A", "D")
    ways.queue("D")
    ways.publish("A")
    ways.reject("A")
    return ways.told(ways.take("D")[1])


def expired(ways: Ways) -> str:
    """It is published with a time to live of 1 ms."""
    ways.queue("A", "D")
    ways.queue("D")
    ways.publish("A", expiration="1")
    return ways.told(ways.take("D")[1])


def pushed_out(ways: Ways) -> str:
    """It is the oldest of a full queue."""
    ways.queue("A", "D", max_length=1)
    ways.queue("D")
    ways.publish("A")
    ways.publish("A")
    return ways.told(ways.take("D")[1])


def delivered_too_often(ways: Ways) -> str:
    """It comes back to a quorum queue over the limit."""
    ways.queue("A", "D", delivery_limit=1)
    ways.queue("D")
    ways.publish("A")
    for _ in range(8):
        connection = pika.BlockingConnection(ways.channel.connection._impl.params)
        try:  # 4.3 counts what a lost channel leaves, not what is given back
            method, _, _ = connection.channel().basic_get(ways.name("A"))
        finally:
            connection.close()
        if method is None and (found := ways.take("D", 0.1)[1]):
            return ways.told(found)
    return ways.told(ways.take("D")[1])


def copied(ways: Ways) -> str:
    """It was published with two more routing keys in CC, and is rejected."""
    ways.queue("A", "D")
    ways.queue("D")
    ways.publish("A", {"CC": ["one", "two"]})
    ways.reject("A")
    return ways.told(ways.take("D")[1])


def chained(ways: Ways) -> str:
    """It is rejected in A, and expires in B."""
    ways.queue("A", "B")
    ways.queue("B", "D", message_ttl=1)
    ways.queue("D")
    ways.publish("A")
    ways.reject("A")
    return ways.told(ways.take("D")[1])


def rejected_in_a_cycle(ways: Ways) -> str:
    """It is rejected in A, waits in B, comes back to A: three times."""
    ways.queue("A", "B")
    ways.queue("B", "A", message_ttl=1)
    ways.publish("A")
    for _ in range(3):
        headers = ways.reject("A")
        assert not ways.history(headers).cycles_into(ways.name("A"))
    return ways.told(ways.take("A")[1])


def going_round_by_itself(ways: Ways) -> str:
    """It expires in A and in B, which lead to each other."""
    ways.queue("A", "B", message_ttl=1)
    ways.queue("B", "A", message_ttl=500)
    ways.publish("A")
    tag, headers = ways.take("B")
    assert tag is not None
    # What would come next: B's entry on top of what it has.
    own = {"queue": ways.name("B"), "reason": "expired", "count": 1}
    coming = DeathHistory.of([own]).after(ways.history(headers))
    ways.channel.basic_reject(tag, requeue=True)
    told = f"{ways.told(headers)}, then dropped"
    tag, _ = ways.take("A", GONE_S)
    assert coming.cycles_into(ways.name("A")) is (tag is None), coming
    return told if tag is None else "comes round"


def republished_as_it_is(ways: Ways) -> str:
    """It is rejected, published again by a client with the headers it had, and rejected again."""
    ways.queue("A", "D")
    ways.queue("D")
    ways.publish("A")
    ways.reject("A")
    ways.publish("A", ways.take("D")[1])
    ways.reject("A")
    return ways.told(ways.take("D")[1])


def republished_with_our_header(ways: Ways) -> str:
    """It is rejected, published again with dedup-deaths in the place of the broker's headers, and rejected again."""
    ways.queue("A", "D")
    ways.queue("D")
    ways.publish("A")
    ways.reject("A")
    headers = ways.take("D")[1]
    kept = {name: value for name, value in headers.items() if name not in BROKER_HEADERS}
    ways.publish("A", {**kept, DEATHS_HEADER: DeathHistory.read(headers).encode()})
    ways.reject("A")
    return ways.told(ways.take("D")[1])


def into_a_stream(ways: Ways) -> str:
    """It is rejected, and the dead letters are a stream."""
    ways.queue("A", "D")
    ways.queue("D", kind="stream")
    ways.publish("A")
    ways.reject("A")
    headers = ways.take_from_stream("D")
    return "the message is lost" if headers is None else ways.told(headers)


def into_a_stream_at_least_once(ways: Ways) -> str:
    """The same, with dead-lettering that waits for a confirm."""
    ways.queue("A", "D", dead_letter_strategy="at-least-once", overflow="reject-publish")
    ways.queue("D", kind="stream")
    ways.publish("A")
    ways.reject("A")
    headers = ways.take_from_stream("D")
    return "the message is lost" if headers is None else ways.told(headers)


#: What is in the table, with the types of queue it is tried on.
SCENARIOS: Mapping[str, tuple[Callable[[Ways], str], tuple[str, ...]]] = {
    "rejected": (rejected, ALL),
    "expired": (expired, ALL),
    "pushed out of a full queue": (pushed_out, ALL),
    "delivered too often": (delivered_too_often, ("quorum",)),
    "rejected, published with CC": (copied, ALL),
    "rejected in A, expired in B": (chained, ALL),
    "rejected in A three times, waiting in B": (rejected_in_a_cycle, ALL),
    "expiring in A and B, round and round": (going_round_by_itself, ALL),
    "rejected, republished as it is, rejected": (republished_as_it_is, ALL),
    "rejected, republished with `dedup-deaths`, rejected": (republished_with_our_header, ALL),
    "rejected, dead-lettered into a stream": (into_a_stream, ALL),
    "the same, at least once": (into_a_stream_at_least_once, ("quorum",)),
}


@contextmanager
def ways(url: str, kind: str) -> Iterator[Ways]:
    """Give queues of one type, deleted at the end."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    made = Ways(channel, kind)
    try:
        yield made
    finally:
        with suppress(Exception):
            made.delete()
        connection.close()


def observed(url: str) -> Iterator[tuple[str, str, str]]:
    """Yield each scenario, type of queue, and what the history told."""
    for title, (scenario, kinds) in SCENARIOS.items():
        for kind in kinds:
            with ways(url, kind) as tried:
                yield title, kind, scenario(tried)


def table() -> str:
    """Return the table of all versions as Markdown; a cell that says nothing is as the one before it."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for version in VERSIONS:
        with RabbitMQ(version) as broker:
            for title, kind, told in observed(broker.url):
                found.setdefault((title, kind), {})[version] = told
    lines = ["| what happens | in | RabbitMQ | newest first: queue, reason, count (exchange/routing keys) |", "|---|---|---|---|"]  # fmt: skip
    for title in SCENARIOS:
        cells: dict[str, list[str]] = {}
        for (other, kind), by_version in found.items():
            if other == title:
                for version, told in by_version.items():
                    cells.setdefault(told, []).append(f"{kind} {version}")
        for told, where in cells.items():
            kinds = sorted({place.split()[0] for place in where})
            versions = sorted({place.split()[1] for place in where}, key=VERSIONS.index)
            assert len(where) == len(kinds) * len(versions), where
            lines.append(f"| {title} | {', '.join(kinds)} | {', '.join(versions)} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
