"""Two queues with a move between them on real servers: fill, move, kill, and hold what came against what went in."""

from __future__ import annotations

import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import pika

from dedup.amqp091.move_brokers import Brokers
from dedup.core import names
from dedup.core.identity import MARK_HEADER
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import PATIENCE_S
from tests.fault.guarded import Found
from tests.fault.move_process import MoveProcess


class Moves:
    """A source and a target, and the moves between them."""

    def __init__(
        self,
        rabbitmq: RabbitMQ,
        redis: Redis,
        *,
        source_type: str = "classic",
        target_type: str = "classic",
        into: RabbitMQ | None = None,
    ) -> None:
        self.rabbitmq = rabbitmq
        #: The broker of the target.
        self.into = into or rabbitmq
        self.redis = redis
        unique = uuid.uuid4().hex[:8]
        self.source, self.target = f"from-{unique}", f"to-{unique}"
        #: The two brokers, which may be one.
        self.brokers = Brokers(rabbitmq.url, "" if into is None else into.url)
        #: How the move goes.
        self.route = names.moving(self.source, self.target)
        self._types = source_type, target_type
        self._children: list[MoveProcess] = []

    def __enter__(self) -> Self:
        for queue, kind in zip((self.source, self.target), self._types, strict=True):
            arguments: dict[str, Any] = {"x-queue-type": kind}
            if kind == "quorum" and queue == self.source and self.rabbitmq.version >= "4":
                arguments["x-delivery-limit"] = -1
            with self.channel(self._of(queue)) as channel:
                channel.queue_declare(queue, durable=True, arguments=arguments)
        self.route = self.brokers.route(self.source, self.target)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()
        route = self.route
        for broker in {self.rabbitmq, self.into}:
            if broker.running:
                with suppress(pika.exceptions.AMQPError), self.channel(broker) as channel:
                    for queue in (self.source, self.target, route.ledger, names.trash(self.source)):
                        channel.queue_delete(queue)
                    for exchange in (*route.leading, route.strays):
                        channel.exchange_delete(exchange)

    def _of(self, queue: str) -> RabbitMQ:
        return self.rabbitmq if queue in (self.source, names.trash(self.source)) else self.into

    @contextmanager
    def channel(self, broker: RabbitMQ | None = None) -> Iterator[Any]:
        """An open channel in confirm mode, by default to the source's broker."""
        connection = pika.BlockingConnection(pika.URLParameters((broker or self.rabbitmq).url))
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel
        finally:
            if connection.is_open:
                connection.close()

    def fill(self, stamped: Iterable[str] = (), unstamped: Iterable[str] = (), **headers: Any) -> None:
        """Publish messages with a message id and without one to the source."""
        with self.channel() as channel:
            for body in stamped:
                properties = pika.BasicProperties(delivery_mode=2, message_id=body, headers=headers or None)
                channel.basic_publish("", self.source, body.encode(), properties)
            for body in unstamped:
                properties = pika.BasicProperties(delivery_mode=2, headers=headers or None)
                channel.basic_publish("", self.source, body.encode(), properties)

    def start(self, kill: tuple[str, str, int] | None = None, **settings: Any) -> MoveProcess:
        """Start a move that ends itself at *kill*."""
        child = MoveProcess(
            {
                "amqp": self.rabbitmq.url,
                "redis": self.redis.url,
                "management": self.rabbitmq.management_url,
                "source": self.source,
                "target": self.target,
                "to_amqp": self.brokers.target,
                "to_management": self.into.management_url,
                "kill": kill,
                **settings,
            }
        )
        self._children.append(child)
        return child

    def run_until_killed(self, kill: tuple[str, str, int], **settings: Any) -> None:
        """Run a move until it kills itself."""
        assert self.start(kill, **settings).wait() == -signal.SIGKILL, "it ended before it came to this step"

    def run(self, **settings: Any) -> dict[str, Any]:
        """Run a move until it is done and return what it did."""
        child = self.start(**settings)
        found = child.next_of("done")
        assert child.wait() == 0, child.notices[-5:]
        assert found is not None
        return found

    def depth(self, queue: str) -> int | None:
        """Return how many messages are ready in *queue*; None when there is none."""
        with suppress(pika.exceptions.ChannelClosedByBroker), self.channel(self._of(queue)) as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)
        return None

    def read(self, queue: str | None = None) -> Found:
        """Take everything out of *queue*, the target by default."""
        found = Found()
        queue = queue or self.target
        with self.channel(self._of(queue)) as channel:
            while True:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    return found
                marked = bool((properties.headers or {}).get(MARK_HEADER))
                (found.marked if marked else found.unmarked)[body.decode()] += 1
                found.copies.append((body.decode(), marked))

    def assert_each_once(self, went: Iterable[str], *, marks: bool = False) -> Found:
        """Read the target and fail on a loss, on an unmarked duplicate and, unless *marks*, on any mark."""
        found, wanted = self.read(), Counter(went)
        lost = wanted - (found.unmarked + found.marked)
        assert not lost, f"lost: {lost}"
        assert found.unmarked <= wanted, f"doubled without a mark: {found.unmarked - wanted}"
        if not marks:
            assert not found.marked, f"marked although no fault allows it: {found.marked}"
        return found

    def assert_waits_in_alarm(self, broker: RabbitMQ) -> None:
        """Fail unless a move forwards nothing while *broker* is in alarm, and goes on by itself afterwards."""
        bodies = [f"m{number}" for number in range(400)]
        self.fill(bodies)
        child = self.start(move={"rate_max": 20.0})
        child.wait_for("report")
        broker.set_alarm()
        try:
            child.wait_for("dedup.blocked")
            time.sleep(0.3)
            at = child.judged
            time.sleep(0.6)
            assert child.judged <= at + 4  # one batch may be on its way
            assert child.poll() is None
        finally:
            broker.clear_alarm()
        child.wait_for("dedup.unblocked")
        child.wait_for("report")
        child.stop()
        assert self.run(batch_max=100)["marked"] == 0
        self.assert_each_once(bodies)

    def read_trash(self, count: int) -> list[tuple[str, str]]:
        """Return body and reason of the first *count* messages in the trash."""
        return [(body, headers.get("dedup-reason", "")) for body, headers in self.trashed(count)]

    def trashed(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """Return body and headers of the first *count* messages in the trash, without the offset that the stream adds."""
        found: list[tuple[str, dict[str, Any]]] = []
        trash = names.trash(self.source)
        first = {"x-stream-offset": "first"}
        with self.channel() as channel:
            channel.basic_qos(prefetch_count=100)
            for method, properties, body in channel.consume(
                trash, arguments=first, inactivity_timeout=PATIENCE_S
            ):
                assert method is not None, f"only {found} come"
                headers = dict(properties.headers or {})
                headers.pop("x-stream-offset", None)
                found.append((body.decode(), headers))
                channel.basic_ack(method.delivery_tag)
                if len(found) == count:
                    break
        return found
