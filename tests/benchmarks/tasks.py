"""
Measure what asyncio costs a publisher: ``dedup.aio`` against the publisher of threads, pipelined and one task a message.

::

    python -m tests.benchmarks.tasks [--messages 40000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages into a classic queue that nobody reads, one broker, on this machine. In each round every way publishes,
in turn, and the ratio of its rate to that of threads is taken; the median of the ratios is what counts. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable

import pika

from dedup import Publisher, aio
from dedup.testing.servers import RabbitMQ

BODY = b"x" * 200


def threads(url: str, queue: str, messages: int) -> float:
    """
    Return messages a second through ``dedup.Publisher.submit``, all of them confirmed.
    """
    with Publisher(url, "bench", base=0) as publisher:
        started = time.perf_counter()
        for _ in range(messages):
            publisher.submit(BODY, routing_key=queue)
        publisher.flush()
        return messages / (time.perf_counter() - started)


def awaited(url: str, queue: str, messages: int) -> float:
    """
    Return messages a second through ``dedup.aio.Publisher.submit``, all of them confirmed.
    """

    async def publish() -> float:
        async with aio.Publisher(url, "bench", base=0) as publisher:
            started = time.perf_counter()
            for _ in range(messages):
                await publisher.submit(BODY, routing_key=queue)
            await publisher.flush()
            return messages / (time.perf_counter() - started)

    return asyncio.run(publish())


def task_each(url: str, queue: str, messages: int) -> float:
    """
    Return messages a second where each is published by a task of its own that awaits its confirm.
    """

    async def publish() -> float:
        async with aio.Publisher(url, "bench", base=0) as publisher:
            started = time.perf_counter()
            await asyncio.gather(*(publisher.publish(BODY, routing_key=queue) for _ in range(messages)))
            return messages / (time.perf_counter() - started)

    return asyncio.run(publish())


WAYS: tuple[Callable[[str, str, int], float], ...] = (threads, awaited, task_each)


def main() -> None:
    """
    Run the rounds and print rates and their ratios.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0].strip())
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rabbitmq", default="4.0", metavar="VERSION")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {way.__name__: [] for way in WAYS}
    with RabbitMQ(options.rabbitmq) as rabbitmq:
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        channel = connection.channel()
        for number in range(options.rounds):
            for way in WAYS:
                queue = f"bench-{uuid.uuid4().hex[:8]}"
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
                rate = way(rabbitmq.url, queue, options.messages)
                channel.queue_delete(queue)
                rates[way.__name__].append(rate)
                print(
                    f"round {number + 1}: {way.__name__:9} {rate:9,.0f} messages/s",
                    file=sys.stderr,
                    flush=True,
                )
        connection.close()
    ratios = {
        name: statistics.median(rate / base for rate, base in zip(values, rates["threads"], strict=True))
        for name, values in rates.items()
    }
    if options.json:
        print(json.dumps({"rates": rates, "to_threads": ratios}))
        return
    for name, values in rates.items():
        print(
            f"{name:9} {statistics.median(values):9,.0f} messages/s, {ratios[name]:.2f} of threads "
            f"(medians of {options.rounds})"
        )


if __name__ == "__main__":
    main()
