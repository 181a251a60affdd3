"""What an outbox keeps of AMQP 1.0 comes back to the byte; what anybody else has written there is judged, and never raises otherwise."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import UNDESCRIBED, Array, Data, Described, symbol, ulong

import dedup
from dedup.amqp091 import stamping as amqp091
from dedup.errors import InvalidMessageError
from proton_adapter import Properties, encoding
from proton_adapter.encoding import NULL, compound_list, compound_map, section, text
from proton_adapter.keeping import unseal
from proton_adapter.sections import scan
from proton_adapter.stamping import STAMP_BYTES_MAX, Envelope, seal, unstamped

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x72, 0x73, 0x74
WHEN = datetime(2026, 5, 17, 12, 30, tzinfo=UTC)


def list_in_lists(depth: int) -> Any:
    """Return a list in a list in a list ..."""
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


GIVEN = [
    None,
    Properties(),
    Properties(group_id="billing"),
    Properties(group_id="billing", group_sequence=7),
    Properties(group_id="orders-1"),
    Properties(
        message_id=UUID(int=7),
        correlation_id=2**64 - 1,
        user_id="guest",
        subject="ü",
        reply_to="/queues/q",
        content_type="text/plain",
        content_encoding="gzip",
        absolute_expiry_time=WHEN,
        creation_time=WHEN,
        reply_to_group_id="others",
        priority=3,
        ttl_s=3600.5,
        annotations={
            "x-list": [1, [symbol("s"), {"deep": None}]],
            "x-deep": list_in_lists(100),
            "x-described": Described(symbol("d"), {"a": [1]}),
            "x-array": Array(UNDESCRIBED, Data.INT, 1, 2),
        },
        application_properties={
            "a": 1,
            "b": ulong(7),
            "c": b"\x00",
            "d": None,
            "e": True,
            "ü": "ö",
            "f": 1.5,
        },
    ),
]


@pytest.mark.parametrize("wants_receipt", [False, True])
@pytest.mark.parametrize("properties", GIVEN)
def test_what_was_sealed_comes_back(properties: Properties | None, *, wants_receipt: bool) -> None:
    """The envelope after a restart is the one before, so each send is the same to the byte."""
    envelope = seal(properties, "orders-1", "guest", wants_receipt=wants_receipt)
    assert unseal(envelope.unstamped, "orders-1", sealed=True) == envelope
    assert envelope.size == len(envelope.unstamped) + STAMP_BYTES_MAX
    stamped = envelope.stamp("", 2**62, 2, 0.0)
    assert len(stamped) <= envelope.size + len(text("")) - len(NULL)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (Properties(annotations={"x-a": list_in_lists(101)}), "'x-a' cannot be sent: a value is nested more"),
        (Properties(annotations={"x-a": Described(Described(1, 2), 3)}), "a descriptor is described"),
        (Properties(annotations={"x-a": Array(symbol("d"), Data.INT, 1)}), "an array of what is no simple"),
        (Properties(application_properties={"a": [1]}), "'a' is a list; AMQP 1.0 has simple types"),
        (Properties(application_properties={"a": Described(1, 2)}), "'a' is a Described"),
        (Properties(application_properties={"a": Array(UNDESCRIBED, Data.INT, 1)}), "'a' is a Array"),
    ],
)
def test_what_could_not_be_read_back_is_not_taken(properties: Properties, reason: str) -> None:
    """A message that an outbox would keep, and then not send again, is refused when it is published."""
    with pytest.raises(InvalidMessageError, match=reason):
        seal(properties, "orders-1")


@pytest.mark.parametrize("properties", GIVEN)
def test_what_an_application_enqueued_is_sent_as_a_publisher_would(properties: Properties | None) -> None:
    """The publisher id that was not known then goes where it always goes."""
    assert unseal(unstamped(properties), "orders-1", sealed=False) == seal(properties, "orders-1")


def test_another_clients_sections_are_taken() -> None:
    """Descriptors by name, short lists, no header: legal too; what is sent is durable whatever they say."""
    named = b"\x00" + encoding.symbol("amqp:properties:list") + b"\xc0\x04\x01" + text("m")
    fleeting = section(HEADER, compound_list(encoding.boolean(False) + b"\x50\x05", 2))
    envelope = unseal(fleeting + named, "orders-1", sealed=False)
    assert envelope == seal(Properties(message_id="m", priority=5), "orders-1")
    assert unseal(named, "orders-1", sealed=False) == seal(Properties(message_id="m"), "orders-1")


def listed(place: int, value: bytes) -> bytes:
    """Return properties with one field."""
    return section(PROPERTIES, compound_list(NULL * place + value, place + 1))


def annotated(value: bytes) -> bytes:
    """Return message annotations with one value."""
    return section(ANNOTATIONS, compound_map(encoding.symbol("x-a") + value, 2))


def named(name: bytes, value: bytes = NULL) -> bytes:
    """Return application properties with one entry."""
    return section(APPLICATION_PROPERTIES, compound_map(name + value, 2))


def nested(depth: int) -> bytes:
    """Return a list in a list in a list ..."""
    around = len(compound_list(b"", 0))
    sizes = range(around * (depth - 1) + len(NULL), 0, -around)
    return b"".join(compound_list(b"", 1)[:1] + struct.pack(">II", size + 4, 1) for size in sizes) + NULL


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff\xff\xff", "not encoded for AMQP 1.0; for 0.9.1, perhaps"),
        (amqp091.seal(None, "orders-1").unstamped, "for 0.9.1, perhaps"),
        (amqp091.unstamped(dedup.Properties(type="t")), "for 0.9.1, perhaps"),
        (amqp091.unstamped(dedup.Properties(message_id="m")), "for 0.9.1, perhaps"),
        (b"\x00", "not encoded for AMQP 1.0"),
        (section(HEADER, NULL), "sections-kind"),
        (b"\x00\x53\x74\xd1\xff\xff\xff\xff\x00\x00\x00\x02", "not encoded for AMQP 1.0"),
        (b"\x00\x53\x74\xd1\x00\x00\x00\x06\x00\x00\x00\x02\xa1\x09", "end too early"),
        (b"\x00\x53\x74\xd1\x00\x00\x00\x04\xff\xff\xff\xfe", "sections-truncated"),
        (b"\x00\x53\x99\x45", "not encoded for AMQP 1.0"),
        (section(0x71, compound_map(b"", 0)), "section 0x71 has no place"),
        (section(0x75, encoding.binary(b"x")), "section 0x75 has no place"),
        (section(0x78, compound_map(b"", 0)), "section 0x78 has no place"),
        (section(HEADER, b"\x45") * 2, "section 0x70 has no place"),
        (named(text("a")) + section(HEADER, b"\x45"), "section 0x70 has no place"),
        (section(HEADER, compound_list(NULL + text("x"), 2)), "field 1 of the header is of the wrong type"),
        (section(HEADER, compound_list(NULL * 6, 6)), "too many fields in the header"),
        (section(PROPERTIES, compound_list(NULL * 14, 14)), "sections-kind"),
        (listed(3, b"\x43"), "field 3 of the properties is of the wrong type"),
        (listed(6, encoding.symbol("a").replace(b"a", b"\xff")), "not ASCII"),
        (listed(3, b"\xa1\x02\xff\xfe"), "not UTF-8"),
        (named(b"\xa1\x02\xff\xfe"), "not UTF-8"),
        (named(encoding.symbol("a")), "name in the application properties is of the wrong type"),
        (named(NULL), "name in the application properties is of the wrong type"),
        (section(APPLICATION_PROPERTIES, compound_map((text("a") + NULL) * 2, 4)), "or twice there"),
        (named(text("a"), compound_list(b"", 0)), "type that has no place there"),
        (named(text("a"), b"\x5f\x01"), "type that has no place there"),
        (named(text("dedup-sequence"), encoding.long(7)), "'dedup-sequence' belongs to dedup"),
        (named(text("dedup-attempt"), encoding.long(7)), "'dedup-attempt' belongs to dedup"),
        (named(text("dedup-ask"), text("x")), "'dedup-ask' belongs to dedup"),
        (named(text("dedup-possible-duplicate"), encoding.boolean(True)), "belongs to dedup"),
        (named(text("dedup-publisher"), text("orders-1")), "'dedup-publisher' belongs to dedup"),
        (annotated(b"\x5f\x01"), "unknown type 0x5f"),
        (annotated(compound_list(b"\x5f\x01", 1)), "unknown type 0x5f"),
        (annotated(compound_list(NULL, 9)), "does not hold what it says"),
        (annotated(compound_map(NULL, 1)), "does not hold what it says"),
        (annotated(b"\xe0\x05\x01" + compound_list(b"", 0)), "an array of what is no simple type"),
        (annotated(nested(101)), "more than 100 deep"),
        (annotated(b"\x00" * 2000 + NULL * 2001), "a descriptor is described"),
    ],
)
def test_what_cannot_be_sent_is_said(raw: bytes, reason: str) -> None:
    """Each with its own reason, before a broker sees it; what is nested without end costs no stack."""
    with pytest.raises(InvalidMessageError, match=reason):
        unseal(raw, "orders-1", sealed=False)


@pytest.mark.parametrize(
    "envelope",
    [
        seal(None, "orders-2"),
        seal(Properties(group_id="x"), "orders-2"),
        seal(Properties(group_id="orders-1"), "orders-2"),
    ],
)
def test_a_row_cannot_speak_for_another_publisher(envelope: Envelope) -> None:
    """Neither by its group id nor by the application property; nor does one speak for nobody."""
    with pytest.raises(InvalidMessageError, match="name another publisher"):
        unseal(envelope.unstamped, "orders-1", sealed=True)
    with pytest.raises(InvalidMessageError, match="name another publisher"):
        unseal(unstamped(Properties(subject="s")), "orders-1", sealed=True)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_row_that_is_stamped_already_is_refused(*, sealed: bool) -> None:
    """It would have two numbers."""
    stamped = seal(None, "orders-1").stamp("/queues/q", 7, 1, 0.0)
    with pytest.raises(InvalidMessageError, match="'dedup-sequence' belongs to dedup"):
        unseal(stamped, "orders-1", sealed=sealed)


def test_a_megabyte_of_nesting_ends_in_no_time() -> None:
    """Whatever is in it is stepped over, or refused at a depth."""
    with pytest.raises(InvalidMessageError, match="100 deep"):
        unseal(annotated(nested(100_000)), "orders-1", sealed=False)


_KEPT = [seal(one, "orders-1").unstamped for one in GIVEN] + [unstamped(one) for one in GIVEN]


@given(st.data())
def test_any_bytes_give_an_envelope_that_can_be_read_or_an_error(data: st.DataObject) -> None:
    """What is let through is a message of this publisher when it is stamped: the shim can judge it."""
    raw = bytearray(data.draw(st.sampled_from(_KEPT)))
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            place = data.draw(st.integers(0, len(raw) - 1))
            raw[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    for sealed in (True, False):
        with suppress(InvalidMessageError):
            envelope = unseal(bytes(raw), "orders-1", sealed=sealed)
            found = scan(envelope.stamp("/queues/q", 9, 2, 0.0))
            assert (found.publisher, found.sequence, found.attempt, found.fault) == ("orders-1", 9, 2, "")
