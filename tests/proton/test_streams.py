"""A guarded queue that is a stream, behind shims of both protocols: messages once, and the histories of dead ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import pika
import pytest
from proton import Message

from dedup import DeathHistory
from dedup.amqp091.inspection import inspect
from dedup.amqp091.management import Management
from dedup.core import names
from dedup.testing.servers import RabbitMQ
from tests.fault.guarded import Guarded
from tests.looking import channel, read_stream, until
from tests.proton.looking import from_the_start, receive, send

Make = Callable[..., Guarded]
PROTOCOLS = pytest.mark.parametrize("protocol", ["amqp091", "amqp10"])


@PROTOCOLS
@pytest.mark.each_version("long")
def test_each_message_is_in_the_stream_once(make: Make, broker: RabbitMQ, protocol: str) -> None:
    """A stream is guarded like any queue; what comes twice is there once, in order, over restarts of the shim."""
    guarded = make(target_type="stream", exact=False)
    looked = inspect(broker.url, guarded.queue, management=Management(broker.management_url, amqp=broker.url))
    assert (looked.target_type, looked.exact_possible, looked.warnings) == ("stream", False, ())
    assert "is a stream queue" in looked.reason
    guarded.publish([(str(n), n) for n in (1, 2, 2, 3, 1)])
    guarded.run_until_drained(protocol=protocol)
    guarded.publish([(str(n), n) for n in (3, 4, 4)])
    guarded.run_until_drained(protocol=protocol)
    found = read_stream(broker, guarded.queue, 4)
    assert [(body, properties.headers["dedup-sequence"]) for body, properties in found] == [
        (b"%d" % n, n) for n in (1, 2, 3, 4)
    ]
    assert guarded.depth(names.quarantine(guarded.queue)) == 0


@PROTOCOLS
def test_a_shim_killed_over_a_stream_doubles_nothing_unmarked(
    make: Make, broker: RabbitMQ, protocol: str
) -> None:
    """Streams are forwarded into with confirms: what the kill leaves open comes marked, at most its batch."""
    guarded = make(target_type="stream", exact=False)
    bodies = [b"%d" % n for n in range(1, 21)]
    guarded.publish([(body.decode(), n + 1) for n, body in enumerate(bodies)])
    killed = guarded.start_shim(("after", "Forward", 2), protocol=protocol)
    assert killed.wait() < 0
    guarded.run_until_drained(protocol=protocol)
    found = read_stream(broker, guarded.queue, len(bodies))
    marked = [body for body, properties in found if properties.headers.get("dedup-possible-duplicate")]
    unmarked = [body for body, properties in found if not properties.headers.get("dedup-possible-duplicate")]
    assert {*marked, *unmarked} == {*bodies}
    assert len(unmarked) == len({*unmarked})
    assert len(marked) <= guarded.batch_max


def _let_die(broker: RabbitMQ, guarded: Guarded) -> str:
    """Let messages of both protocols be rejected in one queue and expire in another one, on the way to the ingress."""
    first, second = f"{guarded.queue}.first", f"{guarded.queue}.second"
    with channel(broker) as opened:
        for queue, to, more in (
            (first, second, {}),
            (second, names.ingress(guarded.queue), {"x-message-ttl": 1}),
        ):
            opened.queue_declare(
                queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to, **more}
            )
        stamp = {"dedup-sequence": 1}
        opened.basic_publish("", first, b"old", pika.BasicProperties(app_id="p", headers=stamp))
        new = Message(
            body=b"new", inferred=True, durable=True, group_id="p", properties={"dedup-sequence": 2}
        )
        send(broker, first, new)
        for _ in range(2):
            until(lambda: opened.queue_declare(first, passive=True).method.message_count > 0)
            method, _, _ = opened.basic_get(first)
            opened.basic_reject(method.delivery_tag, requeue=False)
        until(lambda: guarded.depth(names.ingress(guarded.queue)) == 2)
        for queue in (first, second):
            opened.queue_delete(queue)
    return guarded.queue


@PROTOCOLS
@pytest.mark.each_version("long")
def test_death_histories_reach_readers_of_a_stream(make: Make, broker: RabbitMQ, protocol: str) -> None:
    """
    Behind a shim of 1.0 they are whole for readers of both protocols.

    A shim of 0.9.1 publishes them as a header that is a list, which readers of 0.9.1 are not given from a stream: it warns of
    that. They still see where a message died first and last.
    """
    guarded = make(target_type="stream", exact=False)
    stream = _let_die(broker, guarded)
    told = guarded.run_until_drained(protocol=protocol)
    assert any("is a stream" in notice.get("text", "") for notice in told) == (protocol == "amqp091")
    old = [DeathHistory.read(properties.headers) for _, properties in read_stream(broker, stream, 2)]
    new = [
        DeathHistory.read(message.annotations, message.properties)
        for message in receive(broker, stream, 2, options=from_the_start())
    ]
    keys = [(f"{stream}.second", "expired"), (f"{stream}.first", "rejected")]
    assert [[death.key for death in history.deaths] for history in (*old, *new)] == 4 * [keys]
    whole = new if protocol == "amqp091" else [*old, *new]
    now_ms = time.time() * 1000
    for history in whole:
        assert [death.routing_keys for death in history.deaths] == [
            (f"{stream}.second",),
            (f"{stream}.first",),
        ]
        assert all(death.first_ms is not None and death.first_ms <= now_ms for death in history.deaths)
    if protocol == "amqp091":
        assert all(not death.routing_keys for history in old for death in history.deaths)
