"""Queues whose letters are retried: let messages die, run and kill services, hold what came back against what went in."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import pika
from attrs import define, field

from dedup.core.identity import MARK_HEADER
from dedup.store.schedule import RedisSchedule
from dedup.testing.servers import RabbitMQ, Redis
from tests import looking
from tests.fault.child import PATIENCE_S
from tests.fault.retry_process import RetryProcess


@define
class Came:
    """The copies that came back, in order: body, whether it is marked, its headers."""

    copies: list[tuple[str, bool, dict[str, Any]]] = field(factory=list)

    def unmarked(self) -> Counter[str]:
        """Body -> copies without a mark."""
        return Counter(body for body, marked, _ in self.copies if not marked)

    def all(self) -> Counter[str]:
        """Body -> copies."""
        return Counter(body for body, _, _ in self.copies)

    def marked(self) -> int:
        """How many copies are marked."""
        return sum(marked for _, marked, _ in self.copies)


class Retried:
    """A queue that dead-letters, and its dead-letter queue, on real servers."""

    def __init__(self, rabbitmq: RabbitMQ, redis: Redis, queue: str, *, kind: str = "classic") -> None:
        self.rabbitmq = rabbitmq
        self.redis = redis
        self.queue, self.dead_letter_queue = queue, f"{queue}.dlq"
        self._kind = kind
        self._children: list[RetryProcess] = []
        self.went: Counter[str] = Counter()

    def __enter__(self) -> Self:
        with self.channel() as channel:
            channel.queue_declare(
                self.dead_letter_queue, durable=True, arguments={"x-queue-type": self._kind}
            )
            self._declare(channel)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()
        if self.rabbitmq.running:
            with suppress(pika.exceptions.AMQPError), self.channel() as channel:
                for name in (
                    self.queue,
                    self.dead_letter_queue,
                    f"{self.queue}.dead",
                    f"{self.dead_letter_queue}.dead",
                ):
                    channel.queue_delete(name)

    def _declare(self, channel: Any) -> int:
        """Declare the queue as it is, or was; return how many messages are ready in it."""
        arguments = {
            "x-queue-type": self._kind,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.dead_letter_queue,
        }
        return int(channel.queue_declare(self.queue, durable=True, arguments=arguments).method.message_count)

    def channel(self) -> Any:
        """An open channel in confirm mode, as a context; its connection closes with it."""
        return looking.channel(self.rabbitmq)

    def run(self, **settings: Any) -> RetryProcess:
        """Start a service."""
        child = RetryProcess(
            {
                "amqp": self.rabbitmq.url,
                "redis": self.redis.url,
                "queue": self.dead_letter_queue,
                **settings,
            }
        )
        self._children.append(child)
        return child

    def die(self, stamped: Sequence[str] = (), unstamped: Sequence[str] = ()) -> None:
        """Publish messages to the queue and reject each; equal unstamped ones are twins."""
        with self.channel() as channel:
            for number, body in enumerate(stamped, 1):
                properties = pika.BasicProperties(
                    delivery_mode=2, app_id="p", headers={"dedup-sequence": number}
                )
                channel.basic_publish("", self.queue, body.encode(), properties)
            for body in unstamped:
                channel.basic_publish("", self.queue, body.encode(), pika.BasicProperties(delivery_mode=2))
            self.went.update([*stamped, *unstamped])
            left = len(stamped) + len(unstamped)
            for method, _, _ in channel.consume(self.queue, inactivity_timeout=PATIENCE_S):
                assert method is not None, "what was published does not come"
                channel.basic_nack(method.delivery_tag, requeue=False)
                left -= 1
                if not left:
                    break
            channel.cancel()

    def deliver(self, bodies: Sequence[str], first: int) -> None:
        """Publish letters with a history to the dead-letter queue: every second one stamped, from the number *first* on."""
        with self.channel() as channel:
            for number, body in enumerate(bodies, first):
                headers: dict[str, Any] = {
                    "x-death": [{"queue": self.queue, "reason": "rejected", "count": 1}]
                }
                if number % 2:
                    headers["dedup-sequence"] = number
                publisher = "p" if number % 2 else None
                properties = pika.BasicProperties(delivery_mode=2, app_id=publisher, headers=headers)
                channel.basic_publish("", self.dead_letter_queue, body.encode(), properties)
        self.went.update(bodies)

    def schedule(self) -> RedisSchedule:
        """The schedule, to look at."""
        return RedisSchedule(self.redis.url, vhost="/", queue=self.dead_letter_queue)

    def all_back(self, *services: RetryProcess) -> Came:
        """
        Wait until everything is back, end *services* in order, and take it.

        To count is not enough: marked copies may be there while the last letters are in the hands of a service, neither in the
        dead-letter queue nor in the schedule. What one has not stored when it ends goes back, and another one goes on with it.
        """
        came = Came()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._wait_until_nothing_waits(len(came.copies), deadline)
            for service in services:
                service.stop()
            for body, properties in looking.drain(self.rabbitmq, self.queue):
                headers = properties.headers or {}
                came.copies.append((body.decode(), bool(headers.get(MARK_HEADER)), headers))
            if not self._waits() and (came.all() >= self.went or time.monotonic() > deadline):
                return came
            services = (self.run(),)

    def _wait_until_nothing_waits(self, taken: int, deadline: float) -> None:
        with self.channel() as channel:
            while self._waits() or taken + self._declare(channel) < sum(self.went.values()):
                assert time.monotonic() < deadline, (self._waits(), taken, self.went)
                time.sleep(0.05)

    def _waits(self) -> int:
        """How many messages wait: in the dead-letter queue, or, where they go then, in the schedule."""
        waiting = looking.depth(self.rabbitmq, self.dead_letter_queue)
        return waiting + self.schedule().facts().messages

    def check(self, came: Came) -> None:
        """Nothing is lost, and nothing is doubled without a mark."""
        assert came.all() >= self.went, f"lost: {self.went - came.all()}"
        doubled = came.unmarked() - self.went
        copies = [copy for copy in came.copies if copy[0] in doubled]
        assert not doubled, f"doubled without a mark: {doubled}, of {len(came.copies)} copies these: {copies}"
        extra = sum((came.all() - self.went).values())
        assert extra <= came.marked()
        seen: Counter[str] = Counter()
        for body, marked, _ in came.copies:
            # Which one of twins is marked says nothing: nobody can tell them apart.
            alone = self.went[body] == 1
            assert marked or not alone or not seen[body], f"an unmarked copy of {body} behind another"
            seen[body] += 1
