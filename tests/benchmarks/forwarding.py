"""
Measure how fast one queue is drained into another: the shim, also while it tells the audit, RabbitMQ's own shovel, and the
loop everybody writes.

::

    python -m tests.benchmarks.forwarding [--messages 50000] [--rounds 5] [--rabbitmq 4.0] [--json]

Persistent 200-byte messages, classic to classic, one broker, on this machine. In each round every forwarder drains a full
queue of its own, in turn; the rate is taken over the middle 80 % of the messages. Ratios of one round are compared, and
their median is what counts: absolute rates say more about the machine. Nothing is asserted.

The shovel is ``amqp091``, ``on-confirm``, prefetch 1000. The loop takes one message at a time with prefetch 1000, publishes
it with a confirm and acknowledges it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pika

from dedup.amqp091 import properties, wire
from dedup.amqp091.administration import QueueType
from dedup.core import names
from dedup.core.identity import SEQUENCE_HEADER
from dedup.eventlog.collector import POLL_S, Collector, CollectorSettings
from dedup.eventlog.folder import Folder
from dedup.testing.servers import RabbitMQ, Redis
from tests.benchmarks import rounds
from tests.fault.guarded import declare

#: Drains the ingress of a queue into the queue for as long as the context lasts.
Forwarder = Callable[[str], AbstractContextManager[None]]

AUDITED = "shim, audited"
#: Takes what that one has told; rows, and so messages, a second.
COLLECTOR = "collector"
BODY = b"x" * 200
PREFETCH = 1000
_SURROUNDINGS = (names.ingress, names.ledger, names.audit, names.quarantine)
_SHIM = Path(__file__).parents[1] / "fault" / "shim_process.py"

_LOOP = """
import sys
import pika

url, source, target = sys.argv[1:]
channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
channel.confirm_delivery()
channel.basic_qos(prefetch_count=1000)
for method, properties, body in channel.consume(source):
    channel.basic_publish("", target, body, properties, mandatory=True)
    channel.basic_ack(method.delivery_tag)
"""


class Bench:
    """
    One broker and one Redis, and what drains a queue on them.
    """

    def __init__(
        self, rabbitmq: RabbitMQ, redis: Redis, batch_max: int, target_type: QueueType = "classic"
    ) -> None:
        self.rabbitmq = rabbitmq
        self.redis = redis
        self.batch_max = batch_max
        self.target_type = target_type
        self.connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        self.channel = self.connection.channel()

    def run(
        self, forwarder: Forwarder, queue: str, messages: int, after: Callable[[str], None] | None = None
    ) -> float:
        """
        Return messages a second from the ingress of *queue* into *queue*; do *after* before the queues are deleted.
        """
        declare(self.channel, queue, self.target_type)
        self.fill(names.ingress(queue), messages)
        with forwarder(queue):
            rate = self.measure(queue, messages)
        if after is not None:
            after(queue)
        for name in (queue, *(of(queue) for of in _SURROUNDINGS)):
            self.channel.queue_delete(name)
        return rate

    def turn(self, forwarder: Forwarder, messages: int, after: Callable[[str], None] | None = None) -> float:
        """
        Do the same with a queue that nobody has heard of: Redis remembers what went through another one.
        """
        return self.run(forwarder, f"bench-{uuid.uuid4().hex[:8]}", messages, after)

    def fill(self, queue: str, messages: int) -> None:
        """
        Publish stamped messages, as fast as it goes, and wait until the broker has them.
        """
        channel = self.connection.channel()
        number = channel.channel_number
        publish = wire.publish_frame(number, b"", queue.encode())
        for start in range(1, messages + 1, 1000):
            frames = []
            for sequence in range(start, min(start + 1000, messages + 1)):
                raw = properties.fresh([(SEQUENCE_HEADER, sequence)], app_id="bench")
                frames += [publish, wire.content_frames(raw, BODY, channel=number, frame_max=131_072)]
            self.connection._impl._adapter_emit_data(b"".join(frames))
            self.connection._flush_output()
        while self.depth(queue) < messages:
            self.connection.process_data_events(0.05)
        channel.close()

    def depth(self, queue: str) -> int:
        """
        Return how many messages are ready.
        """
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def measure(self, queue: str, messages: int) -> float:
        """
        Return the rate over the middle 80 %, from samples of the depth.
        """
        low, high = messages // 10, messages * 9 // 10
        first: tuple[float, int] | None = None
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            depth, now = self.depth(queue), time.monotonic()
            if first is None and depth >= low:
                first = (now, depth)
            if depth >= high and first is not None and depth > first[1]:
                return (depth - first[1]) / (now - first[0])
            self.connection.sleep(0.02)
        raise SystemExit(f"{queue} was not drained in 300 s")

    def collect(self, rates: list[float], queue: str) -> None:
        """
        Collect what the shim told the audit, and add rows a second to *rates*.
        """
        rows = 0

        def notice(_: str, facts: dict[str, Any]) -> None:
            nonlocal rows
            rows += facts["rows"]

        with TemporaryDirectory() as log:
            began = time.monotonic()
            collector = Collector(Folder(log), CollectorSettings(until_empty=True), notice=notice)
            collector.run(self.rabbitmq.url, [queue], lambda: False)
            # It ends when nothing has come for a moment; that moment is not work.
            rates.append(rows / (time.monotonic() - began - POLL_S))

    # -- the forwarders ---------------------------------------------------------------------------

    @contextmanager
    def shim(self, queue: str, **more: Any) -> Iterator[None]:
        """
        Run the shim with its state in Redis: exact forwarding into a classic queue, else with confirms.
        """
        options = {
            "amqp": self.rabbitmq.url,
            "redis": self.redis.url,
            "queue": queue,
            "exact": self.target_type == "classic",
            "target_type": self.target_type,
            "batch_max": self.batch_max,
            "kill": None,
            **more,
        }
        yield from run_child([sys.executable, str(_SHIM), json.dumps(options)])

    @contextmanager
    def loop(self, queue: str) -> Iterator[None]:
        """
        Run the loop everybody writes.
        """
        yield from run_child([sys.executable, "-c", _LOOP, self.rabbitmq.url, names.ingress(queue), queue])

    @contextmanager
    def shovel(self, queue: str) -> Iterator[None]:
        """
        Run RabbitMQ's own shovel inside the broker.
        """
        url = self.rabbitmq.url
        definition = {
            "src-protocol": "amqp091",
            "src-uri": url,
            "src-queue": names.ingress(queue),
            "src-prefetch-count": PREFETCH,
            "dest-protocol": "amqp091",
            "dest-uri": url,
            "dest-queue": queue,
            "ack-mode": "on-confirm",
        }
        self.rabbitmq.ctl("set_parameter", "shovel", queue, json.dumps(definition))
        try:
            yield
        finally:
            self.rabbitmq.ctl("clear_parameter", "shovel", queue)


def run_child(command: list[str]) -> Iterator[None]:
    """
    Run *command* as long as the context lasts.
    """
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def main() -> None:
    """
    Run the rounds and print rates and ratios.
    """
    parser = rounds.parser(__doc__, messages=50_000)
    parser.add_argument("--batch-max", type=int, default=500)
    options = parser.parse_args()
    plugins = ("rabbitmq_management", "rabbitmq_shovel")
    collected: list[float] = []
    with RabbitMQ(options.rabbitmq, plugins=plugins) as rabbitmq, Redis() as redis:
        bench = Bench(rabbitmq, redis, options.batch_max)
        audited = partial(bench.shim, audit=True)
        ways = {
            "shim": partial(bench.turn, bench.shim, options.messages),
            AUDITED: partial(bench.turn, audited, options.messages, partial(bench.collect, collected)),
            "shovel": partial(bench.turn, bench.shovel, options.messages),
            # It is slow: a tenth of the messages keeps the rounds short.
            "loop": partial(bench.turn, bench.loop, options.messages // 10),
        }
        rates = rounds.take_turns(options.rounds, ways) | {COLLECTOR: collected}
        bench.connection.close()
    ratios = {other: rounds.ratio(rates, "shim", other) for other in (AUDITED, COLLECTOR, "shovel", "loop")}
    if options.json:
        print(json.dumps({"rates": rates, "medians": rounds.medians(rates), "shim_to": ratios}))
        return
    rounds.show(rates)
    for other, ratio in ratios.items():
        print(f"shim / {other}: {ratio:.2f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
