"""Look into queues, over either protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
from proton import Described, Message, symbol
from proton.reactor import Filter
from proton.utils import BlockingConnection

from dedup.core.identity import Receipt
from dedup.testing.proxy import FaultProxy
from dedup.testing.servers import RabbitMQ

Found = list[tuple[bytes, Any]]


@contextmanager
def channel(broker: RabbitMQ) -> Iterator[Any]:
    """Yield a channel of AMQP 0.9.1, to declare and to look."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def drain(broker: RabbitMQ, queue: str) -> Found:
    """Take everything out of *queue* over 0.9.1: (body, properties) in order."""
    messages: Found = []
    with channel(broker) as opened:
        while True:
            method, properties, body = opened.basic_get(queue, auto_ack=True)
            if method is None:
                return messages
            messages.append((body, properties))


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


def read_stream(broker: RabbitMQ, stream: str, count: int) -> Found:
    """Read the first *count* messages of *stream* over 0.9.1, and whatever follows at once."""
    messages: Found = []
    with channel(broker) as opened:
        opened.basic_qos(prefetch_count=100)
        consumer = opened.consume(stream, arguments={"x-stream-offset": "first"}, inactivity_timeout=0.5)
        until = time.monotonic() + 10
        for method, properties, body in consumer:
            if method is None and (len(messages) >= count or time.monotonic() > until):
                return messages
            if method is not None:
                opened.basic_ack(method.delivery_tag)
                messages.append((body, properties))
    return messages


def over(link: FaultProxy) -> str:
    """Return the URL of a broker behind *link*."""
    return f"amqp://guest:guest@127.0.0.1:{link.port}/%2F"


def sequences(messages: Found) -> list[int]:
    """Return the sequences of *messages* in order."""
    return [properties.headers["dedup-sequence"] for _, properties in messages]


def check_copies(messages: Found, receipts: list[Receipt]) -> None:
    """Everything confirmed is there, and copies are the same message with a higher attempt."""
    assert {receipt.sequence for receipt in receipts} <= set(sequences(messages))
    bodies: dict[int, bytes] = {}
    attempts = set()
    for body, properties in messages:
        sequence = properties.headers["dedup-sequence"]
        assert bodies.setdefault(sequence, body) == body
        attempt = (sequence, properties.headers.get("dedup-attempt", 1))
        assert attempt not in attempts
        attempts.add(attempt)


def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
