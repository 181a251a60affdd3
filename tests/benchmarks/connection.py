"""
Measure the content path alone: messages a second, against the same work done through pika's own.

::

    python -m tests.benchmarks.connection [--messages 100000] [--amqp URL]

Nothing is asserted. Every variant begins with a full classic queue of persistent 200-byte messages.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawConnection
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.properties import scan
from dedup.testing.servers import RabbitMQ

BODY = b"x" * 200
SOURCE, TARGET = "bench.source", "bench.target"
PREFETCH, BATCH_MAX = 2000, 500

Done = Callable[[int], None]


def raw_consume(source: Any, target: Any, done: Done) -> None:
    """Take batches as they come, acknowledge each."""
    del target

    def deliver(batch: list[wire.Delivery]) -> None:
        raw.ack(batch[-1].tag)
        done(len(batch))

    raw = source.connection.attach(source, on_deliveries=deliver)
    source.basic_consume(SOURCE, on_message_callback=print)


def pika_consume(source: Any, target: Any, done: Done) -> None:
    """Take messages one by one, acknowledge every hundredth and all before it."""
    del target

    def message(_channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        if method.delivery_tag % 100 == 0:
            source.basic_ack(method.delivery_tag, multiple=True)
            done(100)

    source.basic_consume(SOURCE, on_message_callback=message)


def forwarder(send: Callable[[list[Any]], None], ack: Callable[[Any], None], done: Done) -> Any:
    """
    Return what to call with new messages and what to call on a commit: one transaction at a time, of what has arrived.
    """
    waiting: deque[Any] = deque()
    batch: list[Any] = []

    def work(more: list[Any]) -> None:
        waiting.extend(more)
        if not batch and waiting:
            batch.extend(waiting.popleft() for _ in range(min(BATCH_MAX, len(waiting))))
            send(batch)

    def committed(_: Any = None) -> None:
        ack(batch[-1])
        done(len(batch))
        batch.clear()
        work([])

    return work, committed


def raw_forward(source: Any, target: Any, done: Done) -> None:
    """Scan, forward in transactions of one write, acknowledge after the commit."""

    def send(batch: list[wire.Delivery]) -> None:
        frames = []
        for delivery in batch:
            scan(delivery.properties)
            frames.append(method)
            frames.append(wire.forward_frames(delivery, channel=out.number, frame_max=out.frame_max))
        frames.append(wire.commit_frame(out.number))
        out.send(frames)

    work, committed = forwarder(send, lambda last: raw.ack(last.tag), done)
    out = target.connection.attach(target, on_commit=committed)
    raw = source.connection.attach(source, on_deliveries=work)
    method = wire.publish_frame(out.number, b"", TARGET.encode())
    source.basic_consume(SOURCE, on_message_callback=print)


def pika_forward(source: Any, target: Any, done: Done) -> None:
    """Do the same through pika: its batches are as large, its messages come one by one."""

    def send(batch: list[Any]) -> None:
        for _, properties, body in batch:
            target.basic_publish("", TARGET, body, properties)
        target.tx_commit(callback=committed)

    work, committed = forwarder(send, lambda last: source.basic_ack(last[0], multiple=True), done)
    source.basic_consume(
        SOURCE, on_message_callback=lambda _, method, *rest: work([(method.delivery_tag, *rest)])
    )


def drive(url: str, messages: int, kind: type[pika.SelectConnection], variant: Callable[..., None]) -> float:
    """
    Run *variant* on two connections of *kind* that share a loop; return messages a second.
    """
    loop = IOLoop()
    channels: list[Any] = []
    left, begun = messages, 0.0

    def done(count: int) -> None:
        nonlocal left
        left -= count
        if left <= 0:
            loop.stop()

    def ready(_: Any) -> None:
        nonlocal begun
        begun = time.perf_counter()
        channels[0].basic_qos(prefetch_count=PREFETCH)
        variant(*channels, done)

    def opened(connection: Any) -> None:
        connection.channel(on_open_callback=collect)

    def collect(channel: Any) -> None:
        channels.append(channel)
        if len(channels) == 2:
            channel.tx_select(callback=ready)

    parameters = connection_parameters(url, name="benchmark")[0]
    connections = [kind(parameters, on_open_callback=opened, custom_ioloop=loop) for _ in range(2)]
    loop.start()
    rate = messages / (time.perf_counter() - begun)
    for connection in connections:
        connection.add_on_close_callback(
            lambda *_: all(each.is_closed for each in connections) and loop.stop()
        )
        connection.close()
    loop.start()
    return rate


def naive(url: str, messages: int) -> float:
    """
    Run the loop everybody writes first: consume, publish with a confirm, acknowledge.
    """
    with pika.BlockingConnection(connection_parameters(url, name="benchmark")[0]) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=PREFETCH)
        begun = time.perf_counter()
        for method, properties, body in channel.consume(SOURCE):
            channel.basic_publish("", TARGET, body, properties)
            channel.basic_ack(method.delivery_tag)
            messages -= 1
            if not messages:
                break
        return float(method.delivery_tag) / (time.perf_counter() - begun)


def fill(url: str, messages: int) -> None:
    """
    Make both queues new and fill the first.
    """
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for queue in (SOURCE, TARGET):
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
        channel.tx_select()
        for sequence in range(1, messages + 1):
            properties = pika.BasicProperties(
                headers={"dedup-sequence": 2**33 + sequence}, delivery_mode=2, app_id="orders-1"
            )
            channel.basic_publish("", SOURCE, BODY, properties)
            if sequence % 1000 == 0:
                channel.tx_commit()
        channel.tx_commit()


def main() -> None:
    """Print a line a variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--amqp", help="an AMQP URL; a private server by default")
    options = parser.parse_args()
    variants: list[tuple[str, int, Callable[[str, int], float]]] = [
        ("consume, raw", 1, lambda url, count: drive(url, count, RawConnection, raw_consume)),
        ("consume, pika", 1, lambda url, count: drive(url, count, pika.SelectConnection, pika_consume)),
        ("forward in transactions, raw", 1, lambda url, count: drive(url, count, RawConnection, raw_forward)),
        (
            "forward in transactions, pika",
            2,
            lambda url, count: drive(url, count, pika.SelectConnection, pika_forward),
        ),
        ("forward one by one, pika (naive)", 10, naive),
    ]
    with nullcontext() if options.amqp else RabbitMQ() as server:
        url = server.url if server else options.amqp
        for name, share, run in variants:
            count = options.messages // share
            fill(url, count)
            print(f"{name:34} {run(url, count):9,.0f} messages/s")


if __name__ == "__main__":
    main()
