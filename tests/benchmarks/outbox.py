"""
Measure what an outbox costs a publisher: the same messages with one and without, pipelined and blocking.

::

    python -m tests.benchmarks.outbox [--messages 20000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages into a classic queue that nobody reads, one broker and one disk, on this machine. In each round every
way publishes, in turn, and the ratios of the rates are taken; their medians are what counts. A blocking publish waits for an
fsync of the outbox and for the broker; what an fsync takes here is printed too. Nothing is asserted.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pika

from dedup import Publisher
from dedup.testing.servers import RabbitMQ
from tests.benchmarks import rounds

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


def rate(url: str, way: str, messages: int, outboxes: Path | None, queue: str) -> float:
    """
    Return messages a second; an outbox is a new file in the folder *outboxes*.
    """
    publish, part = WAYS[way]
    outbox = outboxes and outboxes / f"{queue}.db"
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
    options = rounds.parser(__doc__, messages=20_000).parse_args()
    with (
        RabbitMQ(options.rabbitmq) as rabbitmq,
        tempfile.TemporaryDirectory() as directory,
        pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection,
    ):
        flush_s = fsync_s(Path(directory))
        into = partial(rounds.into_new_queue, connection.channel())
        ways = {
            f"{way}, {kind}": partial(into, partial(rate, rabbitmq.url, way, options.messages, outboxes))
            for way in WAYS
            for kind, outboxes in (("with", Path(directory)), ("without", None))
        }
        rates = rounds.take_turns(options.rounds, ways)
    ratios = {way: rounds.ratio(rates, f"{way}, with", f"{way}, without") for way in WAYS}
    if options.json:
        print(json.dumps({"rates": rates, "with_to_without": ratios, "fsync_s": flush_s}))
        return
    print(f"an fsync takes {flush_s * 1000:.2f} ms here")
    rounds.show(rates)
    for way, found in ratios.items():
        print(f"{way}, with / without an outbox: {found:.2f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
