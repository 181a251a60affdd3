"""Messages without a stamp behind shims of both protocols: told by their message id, or by a header of choice, and by the same one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message, char, symbol, timestamp, ubyte, ulong

from dedup.core import names
from dedup.core.message_ids import message_key
from dedup.testing.servers import RabbitMQ
from proton_adapter.identifying import key_of
from proton_adapter.sections import scan
from tests.fault.guarded import Guarded
from tests.proton.looking import send

Make = Callable[..., Guarded]

HEADER = "x-deduplication-header"
BY_ID: dict[str, Any] = {"by_message_id": True}
BY_HEADER = BY_ID | {"message_id_header": HEADER}
_UUID = UUID(int=9)
#: The same id, as publishers of 0.9.1 and of 1.0 write it.
IDS: list[tuple[str, Any]] = [("event", "event"), ("7", ulong(7)), (_UUID.urn, _UUID)]
VALUES: list[tuple[Any, Any]] = [
    ("event", "event"), ("symbol", symbol("symbol")), (7, 7), (8, ubyte(8)), (2**40, ulong(2**40)), (True, True),
]  # fmt: skip


def _key(header: str = "", **fields: Any) -> str | None:
    raw = bytes(Message(durable=True, **fields).encode())
    return key_of(raw, scan(raw), header)


@pytest.mark.parametrize("value", [1, ubyte(1), ulong(1)], ids=["long", "ubyte", "ulong"])
def test_a_number_is_one_id_whatever_its_type(value: Any) -> None:
    """And another one than the text that spells it; as the property it is that text, which is all that 0.9.1 has there."""
    assert _key(HEADER, properties={HEADER: value}) == message_key(b"1", kind=b"l")
    assert _key(HEADER, properties={HEADER: "1"}) == message_key(b"1")
    assert _key(id=ulong(1)) == _key(id="1") == message_key(b"1")


def test_what_is_not_set_or_empty_is_no_id() -> None:
    """Null and empty texts among them; a property of another name is none, and an annotation counts where no property does."""
    assert _key() is _key(id="") is _key(id=b"") is None
    assert _key(HEADER, id="set") is None
    assert _key(HEADER, properties={HEADER: None}) is _key(HEADER, properties={HEADER: ""}) is None
    assert _key(HEADER, annotations={symbol(HEADER): "noted"}) == message_key(b"noted")
    both = {"properties": {HEADER: "set"}, "annotations": {symbol(HEADER): "noted"}}
    assert _key(HEADER, **both) == message_key(b"set")


@pytest.mark.parametrize(
    ("one", "other"), [(True, False), (1.5, 2.5), (char("a"), char("b")), (timestamp(1), 1), ([1], [2]), ("1", 1)]
)  # fmt: skip
def test_different_values_are_different_ids(one: Any, other: Any) -> None:
    """Whatever their type."""
    keys = {_key(HEADER, properties={HEADER: value}) for value in (one, other)}
    assert len(keys) == 2
    assert None not in keys


@given(st.binary(max_size=60), st.sampled_from(["", "h"]))
def test_any_sections_give_an_answer(tail: bytes, header: str) -> None:
    """Whatever somebody writes: where the sections can be read there is a key, or none."""
    raw = bytes(Message(id="m", properties={"h": 1}, durable=True).encode()) + tail
    if not (scanned := scan(raw)).fault:
        assert key_of(raw, scanned, header) in (message_key(b"m"), message_key(b"1", kind=b"l"))


def _publish(guarded: Guarded, broker: RabbitMQ, by_header: bool) -> int:
    """Publish each id over both protocols; return how many there are."""
    ingress = names.ingress(guarded.queue)
    ids = VALUES if by_header else IDS
    with guarded.channel() as channel:
        channel.confirm_delivery()
        for number, (old, _) in enumerate(ids):
            given_id: dict[str, Any] = {"headers": {HEADER: old}} if by_header else {"message_id": old}
            properties = pika.BasicProperties(delivery_mode=2, **given_id)
            channel.basic_publish("", ingress, b"%d" % number, properties, mandatory=True)
    for number, (_, new) in enumerate(ids):
        given_id = {"properties": {HEADER: new}} if by_header else {"id": new}
        send(broker, ingress, Message(body=b"%d" % number, inferred=True, durable=True, **given_id))
    return len(ids)


@pytest.mark.each_version("long")
@pytest.mark.parametrize("by_header", [False, True], ids=["property", "header"])
@pytest.mark.parametrize("protocols", [("amqp091", "amqp10"), ("amqp10", "amqp091")], ids="-then-".join)
def test_either_shim_knows_the_ids_that_the_other_has_forwarded(
    make: Make, broker: RabbitMQ, protocols: tuple[str, str], by_header: bool
) -> None:
    """Each id comes over both protocols, before the one shim and before the other: it is in the target once, without a mark."""
    guarded = make()
    settings = BY_HEADER if by_header else BY_ID
    for protocol in protocols:
        count = _publish(guarded, broker, by_header)
        guarded.run_until_drained(protocol=protocol, relay=settings)
    guarded.assert_each_once([str(number) for number in range(count)])


def test_without_the_setting_every_copy_passes(make: Make, broker: RabbitMQ) -> None:
    """The control: it is the ids that hold the copies back."""
    guarded = make()
    count = _publish(guarded, broker, by_header=False)
    guarded.run_until_drained(protocol="amqp10")
    assert guarded.read().unmarked == {str(number): 2 for number in range(count)}


def test_what_has_no_id_can_be_quarantined_and_a_stamp_goes_before_an_id(
    make: Make, broker: RabbitMQ
) -> None:
    """As behind a shim of 0.9.1."""
    guarded = make()
    ingress = names.ingress(guarded.queue)
    send(broker, ingress, Message(body=b"without", inferred=True, durable=True))
    guarded.publish([("one", 1), ("two", 2)])
    guarded.run_until_drained(protocol="amqp10", relay=BY_ID | {"quarantine_untracked": True})
    guarded.assert_each_once(["one", "two"])
    assert guarded.read(names.quarantine(guarded.queue)).reasons == {"without": "untracked"}


def test_ids_survive_a_kill(make: Make) -> None:
    """What is known of them is in Redis with its batch: at most the batch of the kill comes marked."""
    guarded = make()
    events = [f"event-{number}" for number in range(20)]
    for _ in range(2):
        with guarded.channel() as channel:
            channel.confirm_delivery()
            for event in events:
                properties = pika.BasicProperties(message_id=event, delivery_mode=2)
                channel.basic_publish("", names.ingress(guarded.queue), event.encode(), properties)
    for kill in (("after", "Forward", 2), ("before", "Save", 3)):
        assert guarded.start_shim(kill, protocol="amqp10", relay=BY_ID).wait() < 0
    guarded.run_until_drained(protocol="amqp10", relay=BY_ID)
    found = guarded.assert_each_once(events, marks=True)
    assert sum(found.marked.values()) <= 2 * guarded.batch_max
