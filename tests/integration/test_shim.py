"""The shim as a process on real servers: what is forwarded, quarantined and dropped, stopping, standing by, other clients."""

from __future__ import annotations

import asyncio
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest

from dedup.amqp091 import properties, wire
from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded

Make = Callable[..., Guarded]


@pytest.fixture
def make(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Make]:
    """Return a maker of guarded queues that are cleaned up."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Guarded(rabbitmq, redis_server, queue_name, **options))


def _headers(table: bytes) -> bytes:
    """Return raw properties: app_id "p", persistent, with this header table."""
    return properties.join(
        {
            properties.HEADERS: struct.pack(">I", len(table)) + table,
            properties.DELIVERY_MODE: b"\x02",
            properties.APP_ID: b"\x01p",
        }
    )


def _entry(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def _number(value: int) -> bytes:
    return b"l" + struct.pack(">q", value)


def _nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        inner = _entry(b"t", b"F" + struct.pack(">I", len(table)) + table)
        table = inner
    return b"F" + struct.pack(">I", len(table)) + table


_SEQUENCE = b"dedup-sequence"

#: name -> (raw properties, where it must end, reason).
HOSTILE: dict[str, tuple[bytes, str, str]] = {
    "no properties": (b"\x00\x00", "target", ""),
    "an id, no sequence": (_headers(b""), "target", ""),
    "text sequence": (_headers(_entry(_SEQUENCE, b"S\x00\x00\x00\x017")), "quarantine", "sequence-kind"),
    "sequence 0": (_headers(_entry(_SEQUENCE, _number(0))), "quarantine", "sequence-range"),
    "negative sequence": (_headers(_entry(_SEQUENCE, _number(-5))), "quarantine", "sequence-range"),
    "sequence above 2^63": (
        _headers(_entry(_SEQUENCE, b"L" + b"\xff" * 8)),
        "quarantine",
        "sequence-range",
    ),
    "boolean sequence": (_headers(_entry(_SEQUENCE, b"t\x01")), "quarantine", "sequence-kind"),
    "float sequence": (
        _headers(_entry(_SEQUENCE, b"d" + struct.pack(">d", 1.0))),
        "quarantine",
        "sequence-kind",
    ),
    "publisher of 255 bytes": (
        properties.join(
            {
                properties.HEADERS: struct.pack(">I", 24) + _entry(_SEQUENCE, _number(1)),
                properties.APP_ID: b"\xff" + b"x" * 255,
            }
        ),
        "quarantine",
        "publisher-long",
    ),
    "publisher not UTF-8": (
        properties.join(
            {
                properties.HEADERS: struct.pack(">I", 24) + _entry(_SEQUENCE, _number(1)),
                properties.APP_ID: b"\x02\xff\xfe",
            }
        ),
        "quarantine",
        "publisher-utf8",
    ),
    "nested 2000 deep": (
        _headers(_entry(_SEQUENCE, _number(1001)) + _entry(b"deep", _nested(2000))),
        "target",
        "",
    ),
    "a timestamp of milliseconds": (
        _headers(
            _entry(_SEQUENCE, _number(1002)) + _entry(b"at", b"T" + struct.pack(">Q", 1_700_000_000_123))
        ),
        "target",
        "",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_messages_end_where_they_belong(make: Make, name: str) -> None:
    """Each goes to the target or to quarantine with its reason, and the good message behind it gets through."""
    raw, where, reason = HOSTILE[name]
    guarded = make()
    guarded.publish_raw([(raw, b"hostile")])
    guarded.publish([("good", 7)], publisher="honest")
    guarded.run_until_drained()
    bodies = {"target": _raw_bodies(guarded, guarded.queue), "quarantine": {}}
    bodies["quarantine"] = _raw_bodies(guarded, names.quarantine(guarded.queue))
    assert b"good" in bodies["target"]
    assert set(bodies[where]) - {b"good"} == {b"hostile"}
    if reason:
        assert _reason(bodies[where][b"hostile"]) == reason


def test_spoofed_marks_are_taken_off(make: Make) -> None:
    """A publisher cannot mark its own messages, nor give a reason; its other headers pass."""
    guarded = make()
    with guarded.channel() as channel:
        headers = {"dedup-sequence": 1, "dedup-possible-duplicate": True, "dedup-reason": "none", "mine": 5}
        sent = pika.BasicProperties(app_id="p", headers=headers, user_id="guest", correlation_id="c")
        channel.basic_publish("", names.ingress(guarded.queue), b"m", sent)
    guarded.run_until_drained()
    with guarded.channel() as channel:
        _, received, _ = channel.basic_get(guarded.queue, auto_ack=True)
    assert received.headers == {"dedup-sequence": 1, "mine": 5}
    assert (received.correlation_id, received.user_id) == ("c", None)


def test_messages_pass_byte_for_byte(make: Make) -> None:
    """Properties of every kind, also what pika cannot read, arrive as they do without a shim."""
    table = (
        _entry(_SEQUENCE, _number(1))
        + _entry(b"double", b"d" + struct.pack(">d", 1.5))
        + _entry(b"unsigned", b"i" + struct.pack(">I", 4_000_000_000))
        + _entry(b"binary", b"x" + struct.pack(">I", 3) + b"\x00\xff\x01")
        + _entry(b"deep", _nested(50))
    )
    guarded = make()
    direct = f"{guarded.queue}.direct"
    with guarded.channel() as channel:
        channel.queue_declare(direct, durable=True, arguments={"x-queue-type": "classic"})
    for queue in (direct, names.ingress(guarded.queue)):
        guarded.publish_raw([(_headers(table), b"x" * 300_000)], queue)
    guarded.run_until_drained()
    # RabbitMQ 4 sorts the headers of any message; what counts is that the shim adds nothing to that.
    assert _raw_bodies(guarded, guarded.queue) == _raw_bodies(guarded, direct)


def test_unstamped_messages_pass(make: Make) -> None:
    """What carries no stamp is forwarded as often as it is published."""
    guarded = make()
    guarded.publish([("plain", None), ("plain", None)])
    guarded.run_until_drained()
    assert guarded.read().unmarked == {"plain": 2}


def test_stopping_in_order_leaves_nothing_in_doubt(make: Make) -> None:
    """SIGTERM in full flow: the next shim has nothing to replay or doubt, and nothing is marked, unstamped neither."""
    guarded = make(exact=False, target_type="quorum")
    guarded.publish([(f"m{number}", number) for number in range(1, 1501)])
    guarded.publish([(f"u{number}", None) for number in range(1500)])
    for _ in range(4):
        child = guarded.start_shim(batch_max=20)
        child.wait_for("report")
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    notices = guarded.run_until_drained(batch_max=500)
    recovered = next(n for n in notices if n["event"] == "dedup.recovered")
    assert (recovered["replayed"], recovered["doubtful"]) == (0, 0)
    bodies = [f"m{n}" for n in range(1, 1501)] + [f"u{n}" for n in range(1500)]
    guarded.assert_each_once(bodies)


def test_a_standby_takes_over(make: Make) -> None:
    """A second shim waits for the fence and goes on when the first one is killed."""
    guarded = make()
    first = guarded.start_shim()
    first.wait_for("dedup.recovered")
    second = guarded.start_shim()
    second.wait_for("dedup.standby")
    guarded.publish([(f"m{number}", number) for number in range(1, 101)])
    guarded.wait_drained(first)
    first.kill()
    guarded.publish([(f"m{number}", number) for number in range(51, 151)])
    second.wait_for("dedup.recovered")
    guarded.wait_drained(second)
    guarded.stop(second)
    guarded.assert_each_once([f"m{number}" for number in range(1, 151)])


def test_a_second_signal_ends_nothing_early_when_idle(make: Make) -> None:
    """An idle shim stops at once on SIGTERM."""
    guarded = make()
    child = guarded.start_shim()
    child.wait_for("dedup.recovered")
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0


def test_another_client_is_enough(make: Make) -> None:
    """aio-pika with nothing but app_id and the header publishes with duplicates and reads each message once."""
    aio_pika = pytest.importorskip("aio_pika")
    guarded = make()

    async def publish() -> None:
        connection = await aio_pika.connect(guarded.amqp_url)
        async with connection:
            channel = await connection.channel()
            for number in [1, 2, 3, 2, 4, 1, 5, 5, 3]:
                message = aio_pika.Message(
                    f"order {number}".encode(),
                    app_id="shop",
                    headers={"dedup-sequence": number},
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                await channel.default_exchange.publish(message, names.ingress(guarded.queue))

    async def read() -> list[str]:
        bodies = []
        connection = await aio_pika.connect(guarded.amqp_url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.get_queue(guarded.queue)
            while (message := await queue.get(fail=False)) is not None:
                bodies.append(message.body.decode())
                await message.ack()
        return bodies

    asyncio.run(publish())
    guarded.run_until_drained()
    assert asyncio.run(read()) == [f"order {number}" for number in range(1, 6)]


def _raw_bodies(guarded: Guarded, queue: str) -> dict[bytes, bytes]:
    """Take everything out of *queue* with its raw properties, which pika could not decode."""
    from dedup.amqp091.connection import RawConnection

    found: dict[bytes, bytes] = {}
    expected = guarded.depth(queue)
    if not expected:
        return found

    def on_open(connection: Any) -> None:
        connection.channel(on_open_callback=on_channel)

    def on_channel(channel: Any) -> None:
        connection.attach(channel, on_deliveries=on_deliveries)
        channel.basic_consume(queue, on_message_callback=lambda *_: None, auto_ack=True)

    def on_deliveries(deliveries: list[wire.Delivery]) -> None:
        found.update({delivery.body: delivery.properties for delivery in deliveries})
        if len(found) == expected:
            connection.close()

    connection: Any = RawConnection(
        pika.URLParameters(guarded.amqp_url),
        on_open_callback=on_open,
        on_close_callback=lambda *_: connection.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    return found


def _reason(raw: bytes) -> str:
    """Return the value of the dedup-reason header, which is the first one."""
    marker = b"\x0cdedup-reasonS"
    start = raw.index(marker) + len(marker)
    (length,) = struct.unpack_from(">I", raw, start)
    return raw[start + 4 : start + 4 + length].decode()
