"""
Measure how fast one process publishes with confirms: the SDK's ``submit`` against pika's ``BlockingChannel``.

::

    python -m tests.benchmarks.publishing [--messages 40000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages into a classic queue that nobody reads, one broker, on this machine. In each round both publish,
in turn, and the ratio of their rates is taken; the median of the ratios is what counts. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid

import pika

from dedup import Publisher
from dedup.testing.servers import RabbitMQ

BODY = b"x" * 200


def submit(url: str, queue: str, messages: int) -> float:
    """
    Return messages a second through the SDK, all of them confirmed.
    """
    with Publisher(url, "bench", registration="local") as publisher:
        started = time.perf_counter()
        for _ in range(messages):
            publisher.submit(BODY, routing_key=queue)
        publisher.flush()
        return messages / (time.perf_counter() - started)


def blocking(url: str, queue: str, messages: int) -> float:
    """
    Return messages a second through pika's blocking channel in confirm mode.
    """
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2)
    started = time.perf_counter()
    for _ in range(messages):
        channel.basic_publish("", queue, BODY, properties, mandatory=True)
    rate = messages / (time.perf_counter() - started)
    connection.close()
    return rate


def main() -> None:
    """
    Run the rounds and print rates and their ratio.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0].strip())
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rabbitmq", default="4.0", metavar="VERSION")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {"submit": [], "blocking": []}
    with RabbitMQ(options.rabbitmq) as rabbitmq:
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        channel = connection.channel()
        for number in range(options.rounds):
            # The blocking channel waits for each confirm: a tenth of the messages keeps the rounds short.
            for name, publish, messages in (
                ("submit", submit, options.messages),
                ("blocking", blocking, options.messages // 10),
            ):
                queue = f"bench-{uuid.uuid4().hex[:8]}"
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
                rate = publish(rabbitmq.url, queue, messages)
                channel.queue_delete(queue)
                rates[name].append(rate)
                print(f"round {number + 1}: {name:9} {rate:9,.0f} messages/s", file=sys.stderr, flush=True)
        connection.close()
    ratio = statistics.median(a / b for a, b in zip(rates["submit"], rates["blocking"], strict=True))
    if options.json:
        print(json.dumps({"rates": rates, "submit_to_blocking": ratio}))
        return
    for name, values in rates.items():
        print(f"{name:9} {statistics.median(values):9,.0f} messages/s (median of {options.rounds})")
    print(f"submit / blocking: {ratio:.1f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
