"""Hostile messages through a real broker and a real shim: each ends where it must, and the next good one gets through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from dedup.amqp091 import wire
from dedup.amqp091.properties import amend, scan
from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.hostile.catalogue import (
    FORWARDED,
    FRAME_MAX,
    FRAME_REST,
    REFUSED,
    Case,
    catalogue,
    entry,
    long,
    raw,
    sequence,
)
from tests.security.deployed import Deployed

CASES = catalogue()
_REASON = "dedup-reason"


class Sender:
    """
    Publishes raw properties, one message at a time, and tells what the broker thinks of each.
    """

    def __init__(self, url: str, exchange: str, queue: str) -> None:
        self._url, self._exchange, self._queue = url, exchange, queue
        self._connection: Any = None
        self._channel: Any = None

    def takes(self, case: Case) -> bool:
        """Publish, and say whether the broker goes on talking."""
        if self._connection is None or not self._connection.is_open:
            self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
        number = self._channel.channel_number
        frames = wire.publish_frame(number, self._exchange.encode(), case.routing_key)
        frame_max = max(FRAME_MAX, len(case.raw) + FRAME_REST)
        frames += wire.content_frames(case.raw, case.body, channel=number, frame_max=frame_max)
        try:
            self._connection._impl._adapter_emit_data(frames)
            self._channel.queue_declare(self._queue, passive=True)  # answered after what was sent before
        except AMQPError:
            return False
        return True

    def close(self) -> None:
        """Close the connection, if the broker has not."""
        if self._connection is not None and self._connection.is_open:
            self._connection.close()


@contextmanager
def _mirrored(deployed: Deployed) -> Iterator[tuple[Sender, str]]:
    """Give a sender to the ingress, and a queue that gets the same: what a message looks like without a shim."""
    exchange, mirror = f"{deployed.queue}.hostile", f"{deployed.queue}.mirror"
    with deployed.channel() as channel:
        channel.exchange_declare(exchange, "fanout", durable=True)
        channel.queue_declare(mirror, durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_bind(mirror, exchange)
        channel.queue_bind(names.ingress(deployed.queue), exchange)
    sender = Sender(deployed.rabbitmq.url, exchange, mirror)
    try:
        yield sender, mirror
    finally:
        sender.close()
        with deployed.channel() as channel:
            channel.exchange_delete(exchange)
            channel.queue_delete(mirror)


def _run_catalogue(rabbitmq: RabbitMQ, redis: Redis, queue: str, log: Path) -> None:
    """Publish every case with a good message behind it, forward them all, and hold each against what must become of it."""
    wrong: list[str] = []
    with Deployed(rabbitmq, redis.url, queue, log) as deployed, _mirrored(deployed) as (sender, mirror):
        for number, case in enumerate(CASES, 1):
            taken = sender.takes(case)
            if taken == (case.expected_on(rabbitmq.version) == REFUSED):
                wrong.append(f"{case.name}: the broker {'takes' if taken else 'refuses'} it")
            assert sender.takes(_good(number))
        plain = {delivery.body: delivery for delivery in deployed.take(mirror)}
        events = deployed.drain(batch_max="50")
        target = {delivery.body: delivery for delivery in deployed.take(queue)}
        kept = {delivery.body: delivery for delivery in deployed.take(names.quarantine(queue))}
    ended = [event for event in events if event["event"] == "dedup.session_ended"]
    assert {event["outcome"] for event in ended} == {"stopped"}, ended
    for number, case in enumerate(CASES, 1):
        wrong += _differences(case, case.expected_on(rabbitmq.version), plain, target, kept)
        if _good(number).body not in target:
            wrong.append(f"{case.name}: the good message behind it is missing")
    assert not wrong, "\n".join(wrong)


def _good(number: int) -> Case:
    """Return the good message behind the hostile one of this number."""
    return Case("good", raw(sequence(number), b"honest"), body=b"good %d" % number)


def _differences(
    case: Case,
    expected: str,
    plain: dict[bytes, wire.Delivery],
    target: dict[bytes, wire.Delivery],
    kept: dict[bytes, wire.Delivery],
) -> Iterator[str]:
    """Yield what is not as it must be with one case."""
    places = [place for place, found in (("target", target), ("quarantine", kept)) if case.body in found]
    if expected == REFUSED:
        if places:
            yield f"{case.name}: refused, and yet in {places}"
        return
    if places != (["target"] if expected == FORWARDED else ["quarantine"]):
        yield f"{case.name}: is in {places}, must be {expected}"
        return
    before, after = plain[case.body], {**target, **kept}[case.body]
    if after.routing_key != before.routing_key:
        yield f"{case.name}: the routing key {before.routing_key!r} became {after.routing_key!r}"
    if expected == "properties-too-large":
        wanted = amend(b"\x10\x00\x02", headers=[(_REASON, expected)])
    else:
        changed = expected != FORWARDED or scan(before.properties).reserved
        # The broker may sort headers: what is put in front may end up anywhere, so it is taken out again.
        wanted = amend(before.properties) if changed else before.properties
    found = after.properties
    if expected not in (FORWARDED, "properties-too-large"):
        if entry(_REASON.encode(), long(b"S", expected.encode())) not in found:
            yield f"{case.name}: the reason is not {expected}: {found[:200]!r}"
        found = amend(found)
    if found != wanted:
        yield f"{case.name}: {wanted[:200]!r} became {found[:200]!r}"


def test_the_catalogue_is_one() -> None:
    """Over two hundred messages that the broker takes, each told apart by its body."""
    assert sum(case.expected != REFUSED for case in CASES) >= 200
    assert len({case.body for case in CASES}) == len({case.name for case in CASES}) == len(CASES)


@pytest.mark.integration
def test_hostile_messages_end_where_they_must(
    rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, tmp_path: Path
) -> None:
    """In one session, without a restart: target or quarantine with its reason, every other byte as without a shim."""
    _run_catalogue(rabbitmq, redis_server, queue_name, tmp_path / "log")


@pytest.mark.long
@pytest.mark.integration
def test_hostile_messages_end_where_they_must_on_an_old_broker(
    private_rabbitmq: Callable[..., RabbitMQ], redis_server: Redis, queue_name: str, tmp_path: Path
) -> None:
    """The same on RabbitMQ 3.10, which passes properties on without reading them twice."""
    _run_catalogue(private_rabbitmq("3.10"), redis_server, queue_name, tmp_path / "log")
