"""A guarded queue whose messages die in it and come back: let one die, copy what comes back, and lead it by several ways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pika

from dedup.amqp091.conversation import Line, conversation
from dedup.amqp091.topology import guard
from dedup.core import names
from dedup.testing.servers import RabbitMQ
from tests.fault.guarded import Guarded

#: A queue to take dead letters from by hand, on their way back.
ASIDE = "{}.aside"
PATIENCE_S = 30.0


class Returning(Guarded):
    """
    A guarded queue whose dead letters come back, by default straight to its ingress.
    """

    def __init__(
        self, *args: Any, aside: bool = False, dead: dict[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        to = ASIDE.format(self.queue) if aside else names.ingress(self.queue)
        self._dead = dead or {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}

    def build(self) -> None:
        """Declare a target that dead-letters, and guard it."""
        with self.channel() as channel:
            kind = {"x-queue-type": self._target_type}
            channel.queue_declare(self.queue, durable=True, arguments=kind | self._dead)
            channel.queue_declare(ASIDE.format(self.queue), durable=True)
        guard(self.rabbitmq.url, self.queue, kind=self._ingress_type)

    def __exit__(self, *told: object) -> None:
        if self.rabbitmq.running:
            with self.channel() as channel:
                channel.queue_delete(ASIDE.format(self.queue))
        super().__exit__(*told)

    def send(self, body: str, queue: str = "", **properties: Any) -> None:
        """Publish one message, to the ingress by default."""
        with self.channel() as channel:
            channel.confirm_delivery()
            made = pika.BasicProperties(delivery_mode=2, **properties)
            channel.basic_publish("", queue or names.ingress(self.queue), body.encode(), made, mandatory=True)

    def take(self, *, keep: bool = False) -> dict[str, Any]:
        """Wait for a message in the target, take it and return its headers; it dies unless it is to be kept."""
        deadline = time.monotonic() + PATIENCE_S
        with self.channel() as channel:
            while True:
                method, properties, _ = channel.basic_get(self.queue)
                if method is not None:
                    break
                assert time.monotonic() < deadline, "nothing came"
                time.sleep(0.01)
            settle = channel.basic_ack if keep else channel.basic_reject
            settle(method.delivery_tag, **({} if keep else {"requeue": False}))
        return dict(properties.headers or {})

    def copy_back(self, copies: int) -> None:
        """Take the dead letter from aside and publish it to the ingress so many times, byte for byte."""
        with conversation(self.rabbitmq.url, name="copies") as talk:
            line = Line(talk, confirmed=True)
            line.consume(ASIDE.format(self.queue), prefetch=1)
            delivery = line.take(PATIENCE_S)
            assert delivery is not None
            for _ in range(copies):
                line.publish(names.ingress(self.queue), delivery.properties, delivery.body)
            assert set(line.settle().values()) <= {""}
            line.ack(delivery.tag)
            line.count(self.queue)  # the acknowledgement has arrived when this is answered


@contextmanager
def exchange(guarded_by: RabbitMQ, name: str, queues: dict[str, dict[str, Any]]) -> Iterator[Any]:
    """Declare a fanout exchange that leads to these queues, with their arguments; yield a channel."""
    with closing(pika.BlockingConnection(pika.URLParameters(guarded_by.url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare(name, "fanout")
        for queue, arguments in queues.items():
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, name)
        try:
            yield channel
        finally:
            with suppress(pika.exceptions.AMQPError):
                for queue in queues:
                    channel.queue_delete(queue)
                channel.exchange_delete(name)
