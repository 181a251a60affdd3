"""
Measure what asyncio costs a publisher: ``dedup.aio`` against the publisher of threads, pipelined and one task a message.

::

    python -m tests.benchmarks.tasks [--messages 40000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages into a classic queue that nobody reads, one broker, on this machine. In each round every way publishes,
in turn, and the ratio of its rate to that of threads is taken; the median of the ratios is what counts. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial

import pika

from dedup import Publisher, aio
from dedup.testing.servers import RabbitMQ
from tests.benchmarks import rounds

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


WAYS: tuple[Callable[..., float], ...] = (threads, awaited, task_each)


def main() -> None:
    """
    Run the rounds and print rates and their ratios.
    """
    options = rounds.parser(__doc__, messages=40_000).parse_args()
    with (
        RabbitMQ(options.rabbitmq) as rabbitmq,
        pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection,
    ):
        into = partial(rounds.into_new_queue, connection.channel())
        ways = {
            way.__name__: partial(into, partial(way, rabbitmq.url, messages=options.messages)) for way in WAYS
        }
        rates = rounds.take_turns(options.rounds, ways)
    if options.json:
        ratios = {name: rounds.ratio(rates, name, "threads") for name in rates}
        print(json.dumps({"rates": rates, "to_threads": ratios}))
        return
    rounds.show(rates, base="threads")


if __name__ == "__main__":
    main()
