"""Queues whose letters are retried: let messages die, run and kill services, hold what came back against what went in."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import pika
from attrs import define, field

from dedup.core.identity import MARK_HEADER
from dedup.store.schedule import RedisSchedule
from dedup.testing.servers import RabbitMQ, Redis
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
            arguments = {
                "x-queue-type": self._kind,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": self.dead_letter_queue,
            }
            channel.queue_declare(self.queue, durable=True, arguments=arguments)
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

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """An open channel in confirm mode."""
        connection = pika.BlockingConnection(pika.URLParameters(self.rabbitmq.url))
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel
        finally:
            if connection.is_open:
                connection.close()

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

    def schedule(self) -> RedisSchedule:
        """The schedule, to look at."""
        return RedisSchedule(self.redis.url, vhost="/", queue=self.dead_letter_queue)

    def wait_until_all_are_back(self, queue: str | None = None) -> Came:
        """Wait until nothing is on the way any more, and take what came back."""
        deadline = time.monotonic() + PATIENCE_S
        schedule = self.schedule()
        with self.channel() as channel:
            while True:
                facts = schedule.facts()
                waiting = channel.queue_declare(self.dead_letter_queue, passive=True).method.message_count
                back = channel.queue_declare(
                    queue or self.queue,
                    passive=queue is not None,
                    durable=True,
                    arguments=None if queue else self._arguments(),
                ).method
                if not facts.messages and not waiting and back.message_count >= sum(self.went.values()):
                    break
                assert time.monotonic() < deadline, (facts, waiting, back.message_count, self.went)
                time.sleep(0.05)
            came = Came()
            while True:
                method, properties, body = channel.basic_get(queue or self.queue, auto_ack=True)
                if method is None:
                    return came
                headers = properties.headers or {}
                came.copies.append((body.decode(), bool(headers.get(MARK_HEADER)), headers))

    def _arguments(self) -> dict[str, str]:
        return {
            "x-queue-type": self._kind,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.dead_letter_queue,
        }

    def check(self, came: Came) -> None:
        """Nothing is lost, and nothing is doubled without a mark."""
        assert came.all() >= self.went, f"lost: {self.went - came.all()}"
        assert came.unmarked() <= self.went, f"doubled without a mark: {came.unmarked() - self.went}"
        extra = sum((came.all() - self.went).values())
        assert extra <= came.marked()
        seen: Counter[str] = Counter()
        for body, marked, _ in came.copies:
            # Which one of twins is marked says nothing: nobody can tell them apart.
            alone = self.went[body] == 1
            assert marked or not alone or not seen[body], f"an unmarked copy of {body} behind another"
            seen[body] += 1
