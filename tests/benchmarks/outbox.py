"""
Measure what an outbox costs a publisher: the same messages with one and without, pipelined and blocking.

::

    python -m tests.benchmarks.outbox [--messages 20000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages into a classic queue that nobody reads, one broker and one disk, on this machine. In each round every
way publishes, in turn, and the ratios of the rates are taken; their medians are what counts. A blocking publish waits for an
fsync of the outbox and for the broker; what an fsync takes here is printed too. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pika

from dedup import Publisher
from dedup.testing.servers import RabbitMQ

BODY = b"x" * 200
_THREADS = 16


def pipelined(publisher: Publisher, queue: str, messages: int) -> None:
    """
    Submit all, wait for all confirms.
    """
    for _ in range(messages):
        publisher.submit(BODY, routing_key=queue)
    publisher.flush()


def blocking(publisher: Publisher, queue: str, messages: int) -> None:
    """
    Wait for the confirm of each.
    """
    for _ in range(messages):
        publisher.publish(BODY, routing_key=queue)


def threads(publisher: Publisher, queue: str, messages: int) -> None:
    """
    Wait for the confirm of each, in many threads: they share transactions.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda _: publisher.publish(BODY, routing_key=queue), range(messages)):
            pass


#: Way, and which part of the messages keeps a round short.
WAYS: dict[str, tuple[Callable[[Publisher, str, int], None], int]] = {
    "pipelined": (pipelined, 1),
    "blocking": (blocking, 20),
    f"{_THREADS} threads": (threads, 5),
}


def rate(url: str, queue: str, way: str, messages: int, outbox: Path | None) -> float:
    """
    Return messages a second.
    """
    publish, part = WAYS[way]
    with Publisher(url, "bench", registration="local", outbox=outbox) as publisher:
        started = time.perf_counter()
        publish(publisher, queue, messages // part)
        return messages // part / (time.perf_counter() - started)


def fsync_s(directory: Path) -> float:
    """
    Return how long an fsync of 4 KiB takes; seconds.
    """
    taken = []
    with (directory / "probe").open("wb") as file:
        for _ in range(200):
            file.write(b"x" * 4096)
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    """
    Run the rounds and print rates and their ratios.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0].strip())
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rabbitmq", default="4.0", metavar="VERSION")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates: dict[str, dict[str, list[float]]] = {way: {"with": [], "without": []} for way in WAYS}
    with RabbitMQ(options.rabbitmq) as rabbitmq, tempfile.TemporaryDirectory() as directory:
        flush_s = fsync_s(Path(directory))
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        channel = connection.channel()
        for number in range(options.rounds):
            for way in WAYS:
                for kind in ("with", "without"):
                    queue = f"bench-{uuid.uuid4().hex[:8]}"
                    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
                    outbox = Path(directory) / f"{queue}.db" if kind == "with" else None
                    measured = rate(rabbitmq.url, queue, way, options.messages, outbox)
                    channel.queue_delete(queue)
                    rates[way][kind].append(measured)
                    print(
                        f"round {number + 1}: {way:10} {kind:7} {measured:9,.0f} messages/s",
                        file=sys.stderr,
                        flush=True,
                    )
        connection.close()
    ratios = {
        way: statistics.median(a / b for a, b in zip(found["with"], found["without"], strict=True))
        for way, found in rates.items()
    }
    if options.json:
        print(json.dumps({"rates": rates, "with_to_without": ratios, "fsync_s": flush_s}))
        return
    print(f"an fsync takes {flush_s * 1000:.2f} ms here")
    for way, found in rates.items():
        with_one, without = (statistics.median(found[kind]) for kind in ("with", "without"))
        print(
            f"{way:10} {with_one:9,.0f} messages/s with an outbox, {without:9,.0f} without: {ratios[way]:.2f} of it"
        )


if __name__ == "__main__":
    main()
