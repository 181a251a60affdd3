"""A guarded queue under test: publish to it, run and kill its shim, read what came out, hold it against what went in."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self

import pika
from attrs import define, field

from dedup.amqp091 import wire
from dedup.amqp091.administration import QueueType, TargetType
from dedup.amqp091.topology import guard
from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests import looking
from tests.fault import shim_process
from tests.fault.child import PATIENCE_S, Child

#: Small, so that a few messages make several batches.
BATCH_MAX = 4


@define
class Found:
    """What was read from a queue: body -> how often, unmarked and marked."""

    unmarked: Counter[str] = field(factory=Counter)
    marked: Counter[str] = field(factory=Counter)
    #: Every copy in order: its body, and whether it is marked.
    copies: list[tuple[str, bool]] = field(factory=list)
    reasons: dict[str, str] = field(factory=dict)

    @property
    def order(self) -> list[str]:
        """The bodies in order."""
        return [body for body, _ in self.copies]


class ShimProcess(Child):
    """
    A shim in a process of its own.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(shim_process.run, settings)


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
        target_type: TargetType = "classic",
        ingress_type: QueueType = "classic",
        exact: bool = True,
    ) -> None:
        self.rabbitmq = rabbitmq
        self.redis = redis
        self.queue = queue
        self.exact = exact
        self.amqp_url = rabbitmq.url
        self.redis_url = redis.url
        self.batch_max = BATCH_MAX
        self._target_type = target_type
        self._ingress_type = ingress_type
        self._children: list[ShimProcess] = []

    def __enter__(self) -> Self:
        self.build()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()
        if not self.rabbitmq.running:
            return
        with suppress(pika.exceptions.AMQPError), self.channel() as channel:
            for name in (names.ingress, names.ledger, names.audit, names.quarantine):
                channel.queue_delete(name(self.queue))
            channel.queue_delete(self.queue)
            channel.exchange_delete(names.forward_exchange(self.queue))
            channel.exchange_delete(names.quarantine_exchange(self.queue))
            channel.exchange_delete(names.strays_exchange(self.queue))

    def build(self) -> None:
        """Declare the target and, as a user would, guard it; what is there stays."""
        guard(self.rabbitmq.url, self.queue, declare=self._target_type, kind=self._ingress_type)

    def channel(self) -> Any:
        """Return an open channel as a context; its connection closes with it."""
        return looking.channel(self.rabbitmq, confirms=False)

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

    def publish_raw(self, messages: Iterable[tuple[bytes, bytes]], queue: str | None = None) -> None:
        """
        Publish (raw properties, body) as they are, to the ingress by default.

        pika would refuse to encode what an attacker sends.
        """
        connection = pika.BlockingConnection(pika.URLParameters(self.rabbitmq.url))
        try:
            channel = connection.channel()
            for raw, body in messages:
                frames = wire.publish_frame(
                    channel.channel_number, b"", (queue or names.ingress(self.queue)).encode()
                )
                frames += wire.content_frames(raw, body, channel=channel.channel_number, frame_max=131072)
                connection._impl._adapter_emit_data(frames)
                connection._flush_output()
            connection.process_data_events(0.2)
        finally:
            connection.close()

    # -- the shim ---------------------------------------------------------------------------------

    def start_shim(self, kill: tuple[str, str, int] | None = None, **options: Any) -> ShimProcess:
        """Start a shim that ends itself at *kill*."""
        settings = {
            "amqp": self.amqp_url,
            "redis": self.redis_url,
            "queue": self.queue,
            "exact": self.exact,
            "batch_max": self.batch_max,
            "management": self.rabbitmq.management_url,
            "target_type": self._target_type,
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
        return self.stop(child, **options)

    def wait_drained(self, child: Child) -> None:
        """
        Wait until nothing is left in the ingress but what *child* is about to acknowledge.

        What it has only found believed is not acknowledged before that is proven; what else it has not acknowledged shows when
        it has stopped.
        """
        deadline = time.monotonic() + PATIENCE_S
        ingress = names.ingress(self.queue)
        while time.monotonic() < deadline:
            with suppress(pika.exceptions.AMQPError), self.channel() as channel:
                while time.monotonic() < deadline:
                    assert child.poll() is None, f"the shim has ended with {child.poll()}"
                    waiting = channel.queue_declare(ingress, passive=True).method.message_count
                    if not waiting and not child.believes:
                        return
                    time.sleep(0.02)
            time.sleep(0.05)
        raise AssertionError(f"the ingress does not drain; the shim told last {child.notices[-5:]}")

    def stop(self, child: Child, **options: Any) -> list[dict[str, Any]]:
        """Stop a shim in order; if anything is back in the ingress then, another one with *options* goes on."""
        notices = child.stop()
        if self.depth(names.ingress(self.queue)):
            return notices + self.run_until_drained(**options)
        return notices

    # -- what came out ----------------------------------------------------------------------------

    def depth(self, queue: str) -> int:
        """Return how many messages are ready in *queue*."""
        return looking.depth(self.rabbitmq, queue)

    def read(self, queue: str | None = None) -> Found:
        """Take everything out of *queue*, the target by default."""
        found = Found()
        for body, properties in looking.drain(self.rabbitmq, queue or self.queue):
            text = body.decode()
            headers = properties.headers or {}
            marked = bool(headers.get("dedup-possible-duplicate"))
            (found.marked if marked else found.unmarked)[text] += 1
            found.copies.append((text, marked))
            found.reasons[text] = headers.get("dedup-reason", "")
        return found

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


def declare(channel: Any, queue: str, target_type: str) -> None:
    """Build what surrounds a guarded queue."""
    classic = {"x-queue-type": "classic"}
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": target_type})
    channel.queue_declare(
        names.ingress(queue), durable=True, arguments={**classic, "x-single-active-consumer": True}
    )
    channel.queue_declare(names.ledger(queue), durable=True, arguments=classic)
    channel.queue_declare(names.audit(queue), durable=True, arguments=classic)
    channel.queue_declare(names.quarantine(queue), durable=True, arguments=classic)
    channel.exchange_declare(names.strays_exchange(queue), "fanout", durable=True)
    channel.queue_bind(names.ledger(queue), names.strays_exchange(queue))
    to_ledger = {"alternate-exchange": names.strays_exchange(queue)}
    channel.exchange_declare(names.quarantine_exchange(queue), "fanout", durable=True, arguments=to_ledger)
    channel.exchange_declare(
        names.forward_exchange(queue),
        "fanout",
        durable=True,
        arguments={"alternate-exchange": names.quarantine_exchange(queue)},
    )
    channel.queue_bind(queue, names.forward_exchange(queue))
    channel.queue_bind(names.quarantine(queue), names.quarantine_exchange(queue))
