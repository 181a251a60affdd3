"""
Measure how fast one process publishes with confirms: the SDK's ``submit`` against pika's ``BlockingChannel``.

::

    python -m tests.benchmarks.publishing [--messages 40000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages into a classic queue that nobody reads, one broker, on this machine. In each round both publish,
in turn, and the ratio of their rates is taken; the median of the ratios is what counts. Nothing is asserted.
"""

from __future__ import annotations

import json
import time
from functools import partial

import pika

from dedup import Publisher
from dedup.testing.servers import RabbitMQ
from tests.benchmarks import rounds

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
    options = rounds.parser(__doc__, messages=40_000).parse_args()
    with (
        RabbitMQ(options.rabbitmq) as rabbitmq,
        pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection,
    ):
        url, into = rabbitmq.url, partial(rounds.into_new_queue, connection.channel())
        # The blocking channel waits for each confirm: a tenth of the messages keeps the rounds short.
        ways = {
            "submit": lambda: into(lambda queue: submit(url, queue, options.messages)),
            "blocking": lambda: into(lambda queue: blocking(url, queue, options.messages // 10)),
        }
        rates = rounds.take_turns(options.rounds, ways)
    ratio = rounds.ratio(rates, "submit", "blocking")
    if options.json:
        print(json.dumps({"rates": rates, "submit_to_blocking": ratio}))
        return
    rounds.show(rates)
    print(f"submit / blocking: {ratio:.1f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
