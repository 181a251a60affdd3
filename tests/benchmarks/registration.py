"""
Measure registration: how fast publishers register, and what each costs broker and Redis.

::

    python -m tests.benchmarks.registration [--publishers 10000] [--connections 50] [--rabbitmq 4.0] [--json]

One registry, one broker, one Redis. Every publisher has a channel, its exclusive queue and a range, as in the SDK, and its peer the same
channel and queue without a range: so the difference is the registry's price. To have ten thousand of them in one process many share a
connection. What a connection costs is not in the figures: that is mostly the buffers which the system gives its socket.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import redis as driver
from attrs import define, field
from pika.adapters.select_connection import IOLoop

from dedup.amqp091.connection import RawConnection
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.registering import Registering
from dedup.core.registry import lock_queue
from dedup.errors import DedupError
from dedup.registrar import LOCK_ARGUMENTS, new_registration
from dedup.store.registry import RedisRegistry
from dedup.testing.registry import serving
from dedup.testing.servers import RabbitMQ, Redis

#: Registrations under way at once.
WIDTH = 100
#: How long the broker has before its memory is read: buffers of a handshake go again.
_REST_S = 5.0


@define
class Crowd:
    """
    Many publishers over some connections, in one loop.
    """

    url: str
    loop: IOLoop = field(factory=IOLoop)
    connections: list[Any] = field(factory=list)
    seconds: list[float] = field(factory=list)
    retries: int = 0
    #: What must not be collected.
    kept: list[Any] = field(factory=list)

    def connect(self, count: int) -> None:
        """Open *count* connections more."""
        (parameters, *_) = connection_parameters(self.url, name="bench")
        wanted = len(self.connections) + count
        for _ in range(count):
            RawConnection(
                parameters,
                on_open_callback=self.connections.append,
                on_open_error_callback=_fail,
                custom_ioloop=self.loop,
            )
        self.until(lambda: len(self.connections) == wanted)

    def until(self, done: Callable[[], bool]) -> None:
        """Let the connections work."""
        while not done():
            self.loop.poll()
            self.loop.process_timeouts()

    def run(self, names: list[str], begin: Callable[[str, RawConnection, Callable[[], None]], None]) -> float:
        """Begin with each name, WIDTH at once; return how many a second were done."""
        waiting = deque(enumerate(names))
        done = 0

        def next_one() -> None:
            if not waiting:
                return
            index, name = waiting.popleft()
            began = time.monotonic()
            begin(name, self.connections[index % len(self.connections)], partial(finished, began))

        def finished(began: float) -> None:
            nonlocal done
            done += 1
            if done % 1000 == 0:
                print(f"{done} of {len(names)}", file=sys.stderr, flush=True)
            self.seconds.append(time.monotonic() - began)
            next_one()

        self.seconds.clear()
        started = time.monotonic()
        for _ in range(WIDTH):
            next_one()
        self.until(lambda: done == len(names))
        return len(names) / (time.monotonic() - started)

    def register(self, name: str, connection: RawConnection, done: Callable[[], None]) -> None:
        """Register as the SDK does."""
        holder: list[Registering] = []

        def again(error: DedupError) -> None:
            self.retries += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            self.loop.call_later(0.1, lambda: holder[0].begin(connection))

        def end(error: DedupError) -> None:
            raise error

        registering = Registering(
            name,
            new_registration(name),
            self.loop,
            user_id=None,
            on_ready=lambda _: done(),
            on_retry=again,
            on_end=end,
        )
        holder.append(registering)
        self.kept.append(registering)
        registering.begin(connection)

    def lock(self, name: str, connection: RawConnection, done: Callable[[], None]) -> None:
        """Take the lock alone: a channel and its exclusive queue with a consumer."""

        def opened(channel: Any) -> None:
            self.kept.append(channel)
            channel.queue_declare(
                lock_queue(name),
                exclusive=True,
                arguments=LOCK_ARGUMENTS,
                callback=partial(declared, channel),
            )

        def declared(channel: Any, _: Any) -> None:
            channel.basic_consume(lock_queue(name), lambda *_: None, auto_ack=True, callback=lambda _: done())

        connection.channel(on_open_callback=opened)

    def close(self) -> None:
        """Cut everything; the broker forgets all of it."""
        for connection in self.connections:
            connection.abort()
        self.until(lambda: all(connection.is_closed for connection in self.connections))
        self.connections.clear()
        self.kept.clear()


def _fail(_: object, error: BaseException) -> None:
    raise error


def wait_until_forgotten(rabbitmq: RabbitMQ) -> None:
    """Wait until the broker has deleted the exclusive queues of connections that are gone."""
    while (
        rabbitmq.evaluate("length([Q || Q <- rabbit_amqqueue:list(), amqqueue:is_exclusive(Q)]).").strip()
        != "0"
    ):
        time.sleep(1.0)


def broker_bytes(rabbitmq: RabbitMQ) -> int:
    """Return what the broker's processes, queues and tables take, after a moment of rest and a collection."""
    time.sleep(_REST_S)
    rabbitmq.evaluate("[garbage_collect(P) || P <- processes()], ok.")
    return int(rabbitmq.evaluate("erlang:memory(total).").strip().splitlines()[-1])


def measure(rabbitmq: RabbitMQ, redis: Redis, publishers: int, connections: int) -> dict[str, float]:
    """Register *publishers*, and return rates and bytes."""
    crowd = Crowd(rabbitmq.url)
    crowd.loop.activate_poller()
    found: dict[str, float] = {}
    with closing(driver.Redis.from_url(redis.url)) as client:
        client.flushall()
        registry = RedisRegistry(redis.url, vhost="/")
        registry.open()
        time.sleep(1.1)  # a registry that has just forgotten everything waits for the next second
        for kind, begin in (("lock alone", crowd.lock), ("registration", crowd.register)):
            crowd.connect(connections)
            empty, used = broker_bytes(rabbitmq), int(client.info("memory")["used_memory"])
            names = [f"shop-{number:05}" for number in range(publishers)]
            with serving(rabbitmq.url, RedisRegistry(redis.url, vhost="/")):
                found[f"{kind}: a second"] = crowd.run(names, begin)
                found[f"{kind}: median seconds"] = statistics.median(crowd.seconds)
                found[f"{kind}: 99th percentile seconds"] = statistics.quantiles(crowd.seconds, n=100)[98]
            found[f"{kind}: broker bytes each"] = (broker_bytes(rabbitmq) - empty) / publishers
            found[f"{kind}: Redis bytes each"] = (
                int(client.info("memory")["used_memory"]) - used
            ) / publishers
            crowd.close()
            wait_until_forgotten(rabbitmq)
        registry.close()
    found["asked again"] = crowd.retries
    found["ratio"] = found["registration: a second"] / found["lock alone: a second"]
    return found


def main() -> None:
    """
    Print rates, memory and the ratio.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0].strip())
    parser.add_argument("--publishers", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--rabbitmq", default="4.0", metavar="VERSION")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with RabbitMQ(options.rabbitmq) as rabbitmq, Redis() as redis:
        found = measure(rabbitmq, redis, options.publishers, options.connections)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:40} {value:12,.3f}" if value < 100 else f"{name:40} {value:12,.0f}")


if __name__ == "__main__":
    main()
