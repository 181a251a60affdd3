"""
Measure AMQP 1.0 against proton alone: the publisher against a plain sender, the shim against a plain loop that receives and sends.

::

    python -m tests.benchmarks.amqp10 [--messages 20000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages, classic queues, one broker, on this machine. In each round every way runs once, in turn; the ratios of
one round are taken, and their median is what counts. Nothing is asserted. The sender and the loop are proton's ``MessagingHandler``:
they send as long as they have credit, and the loop accepts a message when its copy is accepted.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.benchmarks import rounds
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


@contextmanager
def loop(bench: Bench, queue: str) -> Iterator[None]:
    """
    Run the plain loop.
    """
    url = bench.rabbitmq.url.removesuffix("/%2F")
    yield from run_child([sys.executable, "-c", _LOOP, url, names.ingress(queue), queue])


def main() -> None:
    """
    Run the rounds and print rates and their ratios.
    """
    options = rounds.parser(__doc__, messages=20_000).parse_args()
    if importlib.util.find_spec("proton") is None:
        print("AMQP 1.0 is left out: python-qpid-proton is not installed", file=sys.stderr)
        return
    with RabbitMQ(options.rabbitmq) as rabbitmq, Redis() as redis:
        bench = Bench(rabbitmq, redis, batch_max=500)
        into = partial(rounds.into_new_queue, bench.channel)
        shim = partial(bench.shim, protocol="amqp10", exact=False)
        ways = {
            "submit": partial(into, partial(submit, rabbitmq.url, messages=options.messages)),
            "sender": partial(into, partial(sender, rabbitmq.url, messages=options.messages)),
            "shim": partial(bench.turn, shim, options.messages),
            "loop": partial(bench.turn, partial(loop, bench), options.messages),
        }
        rates = rounds.take_turns(options.rounds, ways)
        bench.connection.close()
    ratios = {
        f"{ours}_to_{plain}": rounds.ratio(rates, ours, plain)
        for ours, plain in (("submit", "sender"), ("shim", "loop"))
    }
    if options.json:
        print(json.dumps({"rates": rates, "medians": rounds.medians(rates), **ratios}))
        return
    rounds.show(rates)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
