"""
Measure AMQP 1.0 against proton alone: the publisher against a plain sender, the shim against a plain loop that receives and sends.

::

    python -m tests.benchmarks.amqp10 [--messages 20000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages, classic queues, one broker, on this machine. In each round every way runs once, in turn; the ratios of
one round are taken, and their median is what counts. Nothing is asserted. The sender and the loop are proton's ``MessagingHandler``:
they send as long as they have credit, and the loop accepts a message when its copy is accepted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.benchmarks.forwarding import BODY, Bench, run_child

_SENDER = """
import sys, time
from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

url, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Sender(MessagingHandler):
    sent = accepted = 0

    def on_start(self, event):
        connection = event.container.connect(url, allowed_mechs="PLAIN", reconnect=False)
        event.container.create_sender(connection, f"/queues/{queue}")

    def on_sendable(self, event):
        if not self.sent:
            self.started = time.perf_counter()
        while event.sender.credit and self.sent < count:
            event.sender.send(Message(body=b"x" * 200, inferred=True, durable=True))
            self.sent += 1

    def on_accepted(self, event):
        self.accepted += 1
        if self.accepted == count:
            print(count / (time.perf_counter() - self.started))
            event.connection.close()

Container(Sender()).run()
"""
_LOOP = """
import sys
from proton.handlers import MessagingHandler
from proton.reactor import Container

url, source, target = sys.argv[1:]

class Loop(MessagingHandler):
    def __init__(self):
        super().__init__(prefetch=1000, auto_accept=False)
        self.waiting, self.sent = [], {}

    def on_start(self, event):
        connection = event.container.connect(url, allowed_mechs="PLAIN", reconnect=False)
        event.container.create_receiver(connection, f"/queues/{source}")
        self.sender = event.container.create_sender(connection, f"/queues/{target}")

    def on_message(self, event):
        self.waiting.append((event.message, event.delivery))
        self.pump()

    def on_sendable(self, event):
        self.pump()

    def pump(self):
        while self.sender.credit and self.waiting:
            message, came = self.waiting.pop(0)
            self.sent[self.sender.send(message)] = came

    def on_accepted(self, event):
        self.accept(self.sent.pop(event.delivery))

Container(Loop()).run()
"""


def submit(url: str, queue: str, messages: int) -> float:
    """
    Return messages a second through the publisher of AMQP 1.0, all of them confirmed.
    """
    from proton_adapter import Publisher

    with Publisher(url, "bench", registration="local") as publisher:
        started = time.perf_counter()
        for _ in range(messages):
            publisher.submit(BODY, routing_key=queue)
        publisher.flush()
        return messages / (time.perf_counter() - started)


def sender(url: str, queue: str, messages: int) -> float:
    """
    Return messages a second through a plain sender, all of them accepted.
    """
    command = [sys.executable, "-c", _SENDER, url.removesuffix("/%2F"), queue, str(messages)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


PUBLISHING: tuple[Callable[[str, str, int], float], ...] = (submit, sender)


@contextmanager
def loop(bench: Bench, queue: str) -> Iterator[None]:
    """
    Run the plain loop.
    """
    url = bench.rabbitmq.url.removesuffix("/%2F")
    yield from run_child([sys.executable, "-c", _LOOP, url, names.ingress(queue), queue])


def run_round(bench: Bench, messages: int) -> dict[str, float]:
    """
    Return the rate of each way.
    """
    rates = {}
    for publish in PUBLISHING:
        queue = f"bench-{uuid.uuid4().hex[:8]}"
        bench.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
        rates[publish.__name__] = publish(bench.rabbitmq.url, queue, messages)
        bench.channel.queue_delete(queue)
    for name, forwarder in (
        ("shim", lambda queue: bench.shim(queue, protocol="amqp10", exact=False)),
        ("loop", lambda queue: loop(bench, queue)),
    ):
        rates[name] = bench.run(forwarder, f"bench-{uuid.uuid4().hex[:8]}", messages)
    return rates


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
    if importlib.util.find_spec("proton") is None:
        print("AMQP 1.0 is left out: python-qpid-proton is not installed", file=sys.stderr)
        return
    rounds = []
    with RabbitMQ(options.rabbitmq) as rabbitmq, Redis() as redis:
        bench = Bench(rabbitmq, redis, batch_max=500)
        for number in range(options.rounds):
            rounds.append(run_round(bench, options.messages))
            told = ", ".join(f"{name} {rate:,.0f}" for name, rate in rounds[-1].items())
            print(f"round {number + 1}: {told} messages/s", file=sys.stderr, flush=True)
        bench.connection.close()
    medians = {name: statistics.median(rates[name] for rates in rounds) for name in rounds[0]}
    ratios = {
        f"{ours}_to_{plain}": statistics.median(rates[ours] / rates[plain] for rates in rounds)
        for ours, plain in (("submit", "sender"), ("shim", "loop"))
    }
    if options.json:
        print(json.dumps({"rates": rounds, "medians": medians, **ratios}))
        return
    for name, median in medians.items():
        print(f"{name:7} {median:9,.0f} messages/s (median of {options.rounds})")
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
