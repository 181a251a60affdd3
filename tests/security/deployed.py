"""A guarded queue as an operator runs it: the topology of ``guard``, and ``dedup shim`` as a process with settings of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypeVar

import pika

from dedup.amqp091.connection import RawConnection
from dedup.amqp091.topology import guard, unguard
from dedup.amqp091.wire import Delivery
from dedup.core import names
from dedup.testing.servers import RabbitMQ
from tests import looking
from tests.looking import PATIENCE_S, until

_PROGRAM = (sys.executable, "-m", "dedup.cli")

T = TypeVar("T")


def dedup(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*_PROGRAM, *arguments],
        env=_environment(variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEDUP_")}
    return {**kept, **{f"DEDUP_{name.upper()}": value for name, value in variables.items()}}


class ShimRun:
    """
    A ``dedup shim`` that runs, set up by environment variables, logging JSON into a file.
    """

    def __init__(self, log: Path, **variables: str) -> None:
        self._log = log
        environment = _environment({"log_format": "json", **variables})
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [*_PROGRAM, "shim"], env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        """All it has written."""
        return self._log.read_text()

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    def heard(self, event: str) -> dict[str, Any]:
        """Wait for an event of this name, and return it."""

        def find() -> dict[str, Any] | None:
            found = next((told for told in self.events if told["event"] == event), None)
            assert found or self.process.poll() is None, f"the shim has ended before {event}:\n{self.output}"
            return found

        return until(find)

    def stop(self) -> None:
        """Stop it in order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.output


class Deployed:
    """
    One guarded queue on real servers; gone with the context.

    Args:
        rabbitmq: Where; the topology is made as its default user.
        redis: URL of the state, as the shim is told.
        log: File that the shims log to.
    """

    def __init__(self, rabbitmq: RabbitMQ, redis: str, queue: str, log: Path) -> None:
        self.rabbitmq = rabbitmq
        self.queue = queue
        self._redis = redis
        self._log = log

    def __enter__(self) -> Self:
        guard(self.rabbitmq.url, self.queue, declare="classic")
        return self

    def __exit__(self, *_: object) -> None:
        unguard(self.rabbitmq.url, self.queue, bindings="drop", force=True)
        with self.channel() as channel:
            channel.queue_delete(self.queue)

    def channel(self, url: str = "") -> AbstractContextManager[Any]:
        """Open a channel."""
        return looking.channel(url or self.rabbitmq)

    def shim(self, **variables: str) -> ShimRun:
        """Start a shim; *variables* are its settings."""
        settings = {
            "amqp": self.rabbitmq.url,
            "redis": self._redis,
            "management": self.rabbitmq.management_url,
            "queues": self.queue,
        }
        return ShimRun(self._log, **{**settings, **variables})

    def drain(self, **variables: str) -> list[dict[str, Any]]:
        """Run a shim until the ingress is empty, stop it in order, and return what it logged."""
        with self.shim(**variables) as running:
            running.heard("dedup.recovered")
            until(lambda: not self.depth(names.ingress(self.queue)))
            running.stop()
            events = running.events
        # What it had taken and not judged when it was stopped is back.
        return events + self.drain(**variables) if self.depth(names.ingress(self.queue)) else events

    def depth(self, queue: str) -> int:
        """Return how many messages are ready in *queue*."""
        return looking.depth(self.rabbitmq, queue)

    def publish(
        self, body: bytes, sequence: int | None = None, *, publisher: str = "honest", url: str = ""
    ) -> None:
        """Publish one message to the ingress, confirmed."""
        headers = {} if sequence is None else {"dedup-sequence": sequence}
        properties = pika.BasicProperties(app_id=publisher, headers=headers, delivery_mode=2)
        with self.channel(url) as channel:
            channel.basic_publish("", names.ingress(self.queue), body, properties, mandatory=True)

    def take(self, queue: str) -> list[Delivery]:
        """Take everything out of *queue*, undecoded: pika cannot read what hostile messages carry."""
        expected, found = self.depth(queue), list[Delivery]()
        if not expected:
            return found

        def on_open(connection: Any) -> None:
            connection.channel(on_open_callback=on_channel)

        def on_channel(channel: Any) -> None:
            connection.attach(channel, on_deliveries=on_deliveries)
            channel.basic_consume(queue, on_message_callback=lambda *_: None, auto_ack=True)

        def on_deliveries(deliveries: list[Delivery]) -> None:
            found.extend(deliveries)
            if len(found) >= expected:
                connection.close()

        connection: Any = RawConnection(
            pika.URLParameters(self.rabbitmq.url),
            on_open_callback=on_open,
            on_close_callback=lambda *_: connection.ioloop.stop(),
        )
        connection.ioloop.start()
        connection.ioloop.close()
        return found
