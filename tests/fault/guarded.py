"""A guarded queue under test: publish to it, run and kill its shim, read what came out, hold it against what went in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pika
from attrs import define, field

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis

_CHILD = Path(__file__).parent / "shim_process.py"
#: Nothing here takes this long unless it hangs; seconds.
PATIENCE_S = 60.0


@define
class Found:
    """What was read from a queue: body -> how often, unmarked and marked."""

    unmarked: Counter[str] = field(factory=Counter)
    marked: Counter[str] = field(factory=Counter)
    order: list[str] = field(factory=list)
    reasons: dict[str, str] = field(factory=dict)


class ShimProcess(subprocess.Popen[str]):
    """
    A shim in a process of its own, and what it has told so far.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(
            [sys.executable, str(_CHILD), json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )
        self.notices: list[dict[str, Any]] = []

    def wait_for(self, event: str) -> dict[str, Any]:
        """Read notices up to one of this name."""
        while True:
            notice = self._read()
            assert notice, f"the shim has ended before {event}"
            if notice["event"] == event:
                return notice

    def stop(self) -> list[dict[str, Any]]:
        """Stop it in order and return all it has told."""
        self.send_signal(signal.SIGTERM)
        while self._read():
            pass
        assert self.wait(PATIENCE_S) == 0, self.notices
        return self.notices

    def _read(self) -> dict[str, Any] | None:
        assert self.stdout is not None
        line = self.stdout.readline()
        if not line:
            return None
        self.notices.append(json.loads(line))
        return self.notices[-1]


class Guarded:
    """
    One guarded queue on real servers.
    """

    def __init__(
        self,
        rabbitmq: RabbitMQ,
        redis: Redis,
        queue: str,
        *,
        target_type: str = "classic",
        exact: bool = True,
    ) -> None:
        self.rabbitmq = rabbitmq
        self.redis = redis
        self.queue = queue
        self.exact = exact
        self.amqp_url = rabbitmq.url
        self.redis_url = redis.url
        self.batch_max = 4
        self._target_type = target_type
        self._children: list[ShimProcess] = []

    def __enter__(self) -> Self:
        with self.channel() as channel:
            declare(channel, self.queue, self._target_type)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

    def channel(self) -> Any:
        """Return an open channel as a context; its connection closes with it."""
        return _Channel(self.rabbitmq.url)

    # -- what goes in -----------------------------------------------------------------------------

    def publish(self, bodies: Iterable[tuple[str, int | None]], publisher: str = "p") -> None:
        """Publish (body, sequence) straight to the ingress, confirmed; None: without a stamp."""
        with self.channel() as channel:
            channel.confirm_delivery()
            for body, sequence in bodies:
                headers = {} if sequence is None else {"dedup-sequence": sequence}
                channel.basic_publish(
                    "",
                    names.ingress(self.queue),
                    body.encode(),
                    pika.BasicProperties(app_id=publisher, headers=headers, delivery_mode=2),
                    mandatory=True,
                )

    # -- the shim ---------------------------------------------------------------------------------

    def start_shim(self, kill: tuple[str, str, int] | None = None, **options: Any) -> ShimProcess:
        """Start a shim that ends itself at *kill*."""
        settings = {
            "amqp": self.amqp_url,
            "redis": self.redis_url,
            "queue": self.queue,
            "exact": self.exact,
            "batch_max": self.batch_max,
            "kill": kill,
            **options,
        }
        child = ShimProcess(settings)
        self._children.append(child)
        return child

    def run_until_killed(self, kill: tuple[str, str, int], patience_s: float = PATIENCE_S) -> None:
        """Run a shim until it kills itself."""
        child = self.start_shim(kill)
        assert child.wait(patience_s) == -signal.SIGKILL, "the shim ended before it came to this step"

    def run_until_drained(self, **options: Any) -> list[dict[str, Any]]:
        """Run a shim until the ingress is empty, stop it in order, and return what it told."""
        child = self.start_shim(**options)
        child.wait_for("dedup.recovered")
        self.wait_drained(child)
        return self.stop(child)

    def wait_drained(self, child: ShimProcess) -> None:
        """Wait until nothing waits in the ingress and nothing is unacknowledged."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert child.poll() is None, f"the shim has ended with {child.returncode}"
            # Only the management's counts see deliveries that are not acknowledged; stopping shows them too.
            if self.depth(names.ingress(self.queue)) == 0:
                return
            time.sleep(0.05)
        raise AssertionError("the ingress does not drain")

    def stop(self, child: ShimProcess) -> list[dict[str, Any]]:
        """Stop a shim in order; what it had not acknowledged is back in the ingress then, so expect none."""
        notices = child.stop()
        if self.depth(names.ingress(self.queue)):
            return notices + self.run_until_drained()
        return notices

    # -- what came out ----------------------------------------------------------------------------

    def depth(self, queue: str) -> int:
        """Return how many messages are ready in *queue*."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def read(self, queue: str | None = None) -> Found:
        """Take everything out of *queue*, the target by default."""
        found = Found()
        with self.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(queue or self.queue, auto_ack=True)
                if method is None:
                    return found
                text = body.decode()
                headers = properties.headers or {}
                (found.marked if headers.get("dedup-possible-duplicate") else found.unmarked)[text] += 1
                found.order.append(text)
                found.reasons[text] = headers.get("dedup-reason", "")

    def assert_each_once(self, bodies: Iterable[str], *, marks: bool = False) -> Found:
        """Read the target and fail on a loss, on an unmarked duplicate and, unless *marks*, on any mark."""
        found = self.read()
        wanted = set(bodies)
        lost = wanted - set(found.unmarked) - set(found.marked)
        assert not lost, f"lost: {sorted(lost)[:10]} and {max(0, len(lost) - 10)} more"
        doubled = {body: count for body, count in found.unmarked.items() if count > 1}
        assert not doubled, f"doubled without a mark: {doubled}"
        assert set(found.order) <= wanted, f"unexpected: {set(found.order) - wanted}"
        if not marks:
            assert not found.marked, f"marked although no fault allows it: {found.marked}"
        return found


class _Channel:
    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Any:
        self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
        return self._connection.channel()

    def __exit__(self, *_: object) -> None:
        with suppress(pika.exceptions.AMQPError):
            self._connection.close()


def declare(channel: Any, queue: str, target_type: str) -> None:
    """Build what surrounds a guarded queue."""
    classic = {"x-queue-type": "classic"}
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": target_type})
    channel.queue_declare(
        names.ingress(queue), durable=True, arguments={**classic, "x-single-active-consumer": True}
    )
    channel.queue_declare(names.ledger(queue), durable=True, arguments=classic)
    channel.queue_declare(names.quarantine(queue), durable=True, arguments=classic)
    channel.exchange_declare(names.quarantine_exchange(queue), "fanout", durable=True)
    channel.exchange_declare(
        names.forward_exchange(queue),
        "fanout",
        durable=True,
        arguments={"alternate-exchange": names.quarantine_exchange(queue)},
    )
    channel.queue_bind(queue, names.forward_exchange(queue))
    channel.queue_bind(names.quarantine(queue), names.quarantine_exchange(queue))
