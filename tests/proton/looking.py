"""Send and receive over AMQP 1.0 with proton's own client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from proton import Described, Message, symbol
from proton.reactor import Filter
from proton.utils import BlockingConnection

from dedup.testing.servers import RabbitMQ


@contextmanager
def connected(broker: RabbitMQ) -> Iterator[Any]:
    """Yield a connection of proton's own client."""
    connection = BlockingConnection(
        f"127.0.0.1:{broker.port}", user="guest", password="guest", allowed_mechs="PLAIN", timeout=20
    )
    try:
        yield connection
    finally:
        connection.close()


def send(broker: RabbitMQ, queue: str, *messages: Message) -> None:
    """Send with proton's own client."""
    with connected(broker) as connection:
        sender = connection.create_sender(f"/queues/{queue}")
        for message in messages:
            sender.send(message)


def receive(broker: RabbitMQ, queue: str, count: int, *, options: Any = None) -> list[Message]:
    """Take *count* messages out of *queue* over 1.0, with proton's own client."""
    with connected(broker) as connection:
        receiver = connection.create_receiver(f"/queues/{queue}", credit=count, options=options)
        messages = []
        for _ in range(count):
            messages.append(receiver.receive(timeout=10))
            receiver.accept()
        return messages


def from_the_start() -> Any:
    """Return the option of a receiver that reads a stream from its first message."""
    name = symbol("rabbitmq:stream-offset-spec")
    return Filter({name: Described(name, "first")})
