"""Messages without a stamp on real servers: told by their id, whatever it is, through kills and restarts."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest

from dedup.amqp091 import properties
from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded

Make = Callable[..., Guarded]

BY_ID: dict[str, Any] = {"by_message_id": True}
BY_HEADER = BY_ID | {"message_id_header": "x-deduplication-header"}


@pytest.fixture
def make(rabbitmq: RabbitMQ, private_redis: Callable[..., Redis], queue_name: str) -> Iterator[Make]:
    """Return a maker of guarded queues with a Redis of their own."""
    with ExitStack() as stack:
        redis = private_redis(appendfsync="always")
        yield lambda **options: stack.enter_context(Guarded(rabbitmq, redis, queue_name, **options))


def publish(guarded: Guarded, ids: list[str], **more: Any) -> None:
    """Publish one event for each of *ids*, with confirms; its body is its id."""
    with guarded.channel() as channel:
        channel.confirm_delivery()
        for name in ids:
            sent = pika.BasicProperties(message_id=name, delivery_mode=2, **more)
            channel.basic_publish("", names.ingress(guarded.queue), name.encode(), sent, mandatory=True)


@pytest.mark.parametrize(
    ("exact", "kills"),
    [
        (True, [("after", "Save", 2), ("before", "Forward", 3), ("after", "Forward", 2), ("before", "Ack", 3)]),
        (False, [("after", "Save", 3), ("after", "Forward", 2)]),
    ],
    ids=["exact", "confirmed"],
)  # fmt: skip
def test_an_event_of_several_publishers_is_forwarded_once(
    make: Make, exact: bool, kills: list[tuple[str, str, int]]
) -> None:
    """Each publishes all events, in its own order; the shim is killed in between, and Redis too."""
    guarded = make(exact=exact)
    events = [f"event-{number}" for number in range(40)]
    publish(guarded, events)
    publish(guarded, events[::-1])
    for number, kill in enumerate(kills):
        child = guarded.start_shim(kill, relay=BY_ID)
        assert child.wait(60) < 0
        if number == 1:
            guarded.redis.kill()
            guarded.redis.start()
    publish(guarded, events)
    guarded.run_until_drained(relay=BY_ID)
    guarded.assert_each_once(events, marks=not exact)


def test_without_the_setting_every_copy_passes(make: Make) -> None:
    """The control: it is the ids that hold the copies back."""
    guarded = make()
    publish(guarded, ["event", "event"])
    guarded.run_until_drained()
    assert guarded.read().unmarked == {"event": 2}


def test_publishers_for_the_deduplication_plugin_need_no_change(make: Make) -> None:
    """They set the plugin's header; what has none passes, and stamped messages are judged by their stamp."""
    guarded = make()
    header = {"x-deduplication-header": "a"}
    publish(guarded, ["first", "second"], headers=header)
    publish(guarded, ["number", "number again"], headers={"x-deduplication-header": 7})
    publish(guarded, ["without", "without"])
    guarded.publish([("stamped", 1), ("stamped", 1)])
    guarded.run_until_drained(relay=BY_HEADER)
    assert guarded.read().unmarked == {"first": 1, "number": 1, "without": 2, "stamped": 1}


def test_what_has_no_id_can_be_quarantined(make: Make) -> None:
    """An empty id is none."""
    guarded = make()
    guarded.publish([("without", None)])
    publish(guarded, [""])
    guarded.run_until_drained(relay=BY_ID | {"quarantine_untracked": True})
    assert guarded.read(names.quarantine(guarded.queue)).reasons == {"without": "untracked", "": "untracked"}


def _id_property(text: bytes) -> bytes:
    return properties.join(
        {properties.DELIVERY_MODE: b"\x02", properties.MESSAGE_ID: bytes((len(text),)) + text}
    )


def _id_header(value: bytes) -> bytes:
    table = b"\x16x-deduplication-header" + value
    return properties.join(
        {properties.DELIVERY_MODE: b"\x02", properties.HEADERS: struct.pack(">I", len(table)) + table}
    )


def _stamped(app_id: bytes) -> bytes:
    table = b"\x0ededup-sequencel" + struct.pack(">q", 1)
    return properties.join(
        {
            properties.HEADERS: struct.pack(">I", len(table)) + table,
            properties.DELIVERY_MODE: b"\x02",
            properties.APP_ID: bytes((len(app_id),)) + app_id,
        }
    )


#: name -> (raw properties, settings).
HOSTILE: dict[str, tuple[bytes, dict[str, Any]]] = {
    "255 bytes": (_id_property(b"x" * 255), BY_ID),
    "not UTF-8": (_id_property(b"\xff\xfe"), BY_ID),
    "binary": (_id_property(bytes(range(32))), BY_ID),
    "looks like a key": (_id_property(b"\x7fa"), BY_ID),
    "looks like the digest of one": (_id_property(b"\x7f\x7f" + b"A" * 43), BY_ID),
    "JSON and Lua": (_id_property(b"\"]}\\' ]]--"), BY_ID),
    "a long text": (_id_header(b"S" + struct.pack(">I", 70_000) + b"x" * 70_000), BY_HEADER),
    "bytes": (_id_header(b"x\x00\x00\x00\x02\x00\xff"), BY_HEADER),
    "a float": (_id_header(b"d" + struct.pack(">d", 1.5)), BY_HEADER),
    "a boolean": (_id_header(b"t\x01"), BY_HEADER),
    "a timestamp": (_id_header(b"T" + struct.pack(">Q", 2**63)), BY_HEADER),
    "a table": (_id_header(b"F\x00\x00\x00\x06\x01ab\x01\x00V"), BY_HEADER),
    "an array": (_id_header(b"A\x00\x00\x00\x02b\x07"), BY_HEADER),
}


@pytest.mark.parametrize("settings", [BY_ID, BY_HEADER], ids=["property", "header"])
def test_an_id_may_be_anything(make: Make, settings: dict[str, Any]) -> None:
    """Each is forwarded once, known to the next shim, and the messages behind it get through."""
    guarded = make()
    hostile = [(raw, name.encode()) for name, (raw, wanted) in HOSTILE.items() if wanted is settings]
    for _ in range(2):
        guarded.publish_raw(hostile * 2)
        guarded.publish([("behind", None)])
        guarded.run_until_drained(relay=settings)
    with guarded.channel() as channel:
        # pika cannot decode all of them.
        assert channel.queue_purge(guarded.queue).method.message_count == len(hostile) + 2
        assert channel.queue_purge(names.quarantine(guarded.queue)).method.message_count == 0


def test_nobody_publishes_under_the_key_of_an_id(make: Make) -> None:
    """A publisher id that looks like one is no publisher id: it takes no event's place."""
    guarded = make()
    guarded.publish_raw([(_stamped(b"\x7fevent"), b"forged")])
    publish(guarded, ["event"])
    guarded.run_until_drained(relay=BY_ID)
    assert guarded.read().unmarked == {"event": 1}
    assert guarded.read(names.quarantine(guarded.queue)).reasons == {"forged": "publisher-control"}


def test_another_body_under_the_same_number_is_quarantined(make: Make) -> None:
    """Also by a shim that comes after the one that forwarded the first, which was killed."""
    guarded = make()
    settings = {"check_bodies": True}
    guarded.publish([("one", 1), ("two", 2), ("other", 1), ("one", 1)])
    # Before that it would have forgotten the bodies with its batch.
    assert guarded.start_shim(("after", "Ack", 1), relay=settings).wait(60) < 0
    guarded.publish([("late", 2), ("two", 2), ("three", 3)])
    guarded.run_until_drained(relay=settings)
    guarded.assert_each_once(["one", "two", "three"])
    found = guarded.read(names.quarantine(guarded.queue))
    assert found.reasons == {"other": "conflict", "late": "conflict"}
    guarded.publish([("dropped", 1)])
    guarded.run_until_drained()
    assert guarded.read(names.quarantine(guarded.queue)).order == [], (
        "without the setting nothing is compared"
    )
