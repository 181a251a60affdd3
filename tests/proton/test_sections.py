"""The scanner of encoded sections: proton's encoder and decoder on one side, hostile bytes on the other."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proton import Array, Data, Message, char, symbol, timestamp, ubyte, uint, ulong

from dedup.core import sending
from dedup.core.identity import SEQUENCE_MAX
from proton_adapter import encoding, stamping
from proton_adapter.properties import Properties
from proton_adapter.sections import Scanned, amend, letter, scan, strip

_names = st.text(min_size=1, max_size=20)
_simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1).map(ulong),
    st.integers(0, 2**32 - 1).map(uint),
    st.integers(0, 255).map(ubyte),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.uuids(),
    st.integers(0, 2**40).map(timestamp),
    st.sampled_from("aü€").map(char),
    st.sampled_from(["a", "b-c"]).map(symbol),
)
_nested = st.recursive(
    _simple,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message that proton can write."""
    message = Message(
        body=draw(_nested | st.binary(max_size=300)),
        inferred=draw(st.booleans()),
        durable=draw(st.booleans()),
        priority=draw(st.integers(0, 9)),
    )
    message.first_acquirer = draw(st.booleans())
    message.delivery_count = draw(st.integers(0, 3))
    if draw(st.booleans()):
        message.id = draw(st.one_of(st.text(max_size=300), st.uuids(), st.integers(0, 2**64 - 1).map(ulong)))
        message.subject = draw(st.text(max_size=5))
        message.group_id = draw(st.none() | _names)
        message.group_sequence = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        message.user_id = draw(st.binary(min_size=1, max_size=300))
    if draw(st.booleans()):
        message.annotations = draw(
            st.dictionaries(st.sampled_from(["x-a", "x-b"]).map(symbol), _nested, max_size=2)
        )
    if draw(st.booleans()):
        message.properties = draw(st.dictionaries(_names, _simple, max_size=4))
    return message


def _decoded(raw: bytes) -> Message:
    message = Message()
    message.decode(raw)
    return message


def _told(message: Message) -> dict[str, Any]:
    names = (
        "id user_id address subject reply_to correlation_id content_type content_encoding expiry_time creation_time group_id "
        "group_sequence reply_to_group_id durable priority ttl first_acquirer delivery_count annotations properties body"
    )
    return {name: _plain(getattr(message, name)) for name in names.split()}


def _plain(value: Any) -> Any:
    """Make what proton read comparable: it gives bytes as views of its own memory."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


@given(messages())
def test_what_proton_writes_is_read(message: Message) -> None:
    """No fault, the sections in one piece, and user id and redelivery as proton reads them."""
    raw = bytes(message.encode())
    scanned = scan(raw)
    assert scanned.fault == ""
    assert b"".join(raw[section.start : section.end] for section in scanned.sections) == raw
    read = _decoded(raw)
    assert (scanned.user or b"") == (read.user_id or b"")
    assert scanned.redelivered == (not read.first_acquirer or read.delivery_count > 0)


@given(messages())
def test_what_is_amended_differs_in_nothing_else(message: Message) -> None:
    """The mark and the reason are there, the user id is not, and proton reads the rest as before."""
    raw = bytes(message.encode())
    changed = amend(raw, scan(raw), [("dedup-possible-duplicate", True), ("dedup-reason", "too-old")])
    before, after = _told(_decoded(raw)), _told(_decoded(changed))
    before["user_id"] = after["user_id"] = None
    expected = {
        "dedup-possible-duplicate": True,
        "dedup-reason": "too-old",
        **(before.pop("properties") or {}),
    }
    assert after.pop("properties") == expected
    assert after == before
    again = amend(changed, scan(changed), [("dedup-possible-duplicate", True), ("dedup-reason", "too-old")])
    assert again == changed


@given(messages())
def test_a_message_without_anything_of_ours_is_amended_into_itself(message: Message) -> None:
    """Every section byte for byte."""
    message.user_id = b""
    message.properties = message.properties or {"a": 1}
    raw = bytes(message.encode())
    scanned = scan(raw)
    changed = amend(raw, scanned)
    kept = [
        raw[section.start : section.end] for section in scanned.sections if section.code not in (0x73, 0x74)
    ]
    assert all(part in changed for part in kept)
    assert _told(_decoded(changed)) | {"user_id": None} == _told(_decoded(raw)) | {"user_id": None}


@given(st.binary(max_size=200) | messages().map(lambda message: bytes(message.encode())), st.data())
@example(b"\x00" * 1000, None)
@example(b"\x00\x53\x74\xc1\x01\x00", None)
@example(b"\x00\x53\x74\xd1\x00\x00\x00\x04\xff\xff\xff\xff", None)
@example(b"\x00\x53\x73\x40", None)
def test_any_bytes_give_an_answer(raw: bytes, data: st.DataObject | None) -> None:
    """Cut short, changed or made up: an answer, and one that can be sent on."""
    if data is not None and raw:
        changed = bytearray(raw)
        for _ in range(data.draw(st.integers(0, 3))):
            changed[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        raw = bytes(changed[: data.draw(st.integers(0, len(raw)))])
    scanned = scan(raw)
    assert isinstance(scanned, Scanned)
    assert (scanned.publisher is None) == (scanned.sequence is None and scanned.ask is None)
    for result in (
        amend(raw, scanned, [("dedup-reason", "x")]),
        strip(raw, scanned, [("dedup-reason", "x")]),
    ):
        assert scan(result).sections
        assert b"dedup-reason" in result
    if not scanned.sections:
        assert raw in amend(raw, scanned, [])


def test_descriptors_of_descriptors_cost_linear_time_and_no_stack() -> None:
    """A megabyte of nothing but constructors of described values."""
    assert scan(b"\x00\x53\x77" + b"\x00" * 1_000_000).fault == "sections-truncated"
    deep = b"\x40"
    for _ in range(2000):
        deep = encoding.compound_list(deep, 1)
    assert scan(b"\x00\x53\x77" + deep).fault == ""


@given(
    st.integers(1, SEQUENCE_MAX),
    st.integers(1, 2**31),
    st.booleans(),
    st.dictionaries(_names, _simple, max_size=3),
    st.binary(max_size=300),
)
def test_what_the_publisher_writes_is_read(
    sequence: int, attempt: int, own_group: bool, more: dict[str, Any], body: bytes
) -> None:
    """Publisher, sequence, attempt and time of what the SDK sends; and proton reads the rest."""
    properties = Properties(
        message_id="m", group_id="theirs" if own_group else None, application_properties=more, priority=4
    )
    message = sending.Message(
        sequence, "", "q", stamping.Content(stamping.seal(properties, "orders-1", "guest"), body), 0
    )
    message.attempts, message.sent_at, message.first_sent_at = attempt, 20.0, 10.0
    raw = stamping.encode(message)
    scanned = scan(raw)
    assert (scanned.publisher, scanned.sequence, scanned.attempt) == ("orders-1", sequence, attempt)
    assert (scanned.first_sent_ms > 0) == (attempt > 1)
    assert (scanned.user, scanned.reserved, scanned.fault) == (b"guest", True, "")
    read = _decoded(raw)
    assert (read.body, read.durable, read.priority, read.id, read.address) == (
        body,
        True,
        4,
        "m",
        "/queues/q",
    )
    assert read.group_id == ("theirs" if own_group else "orders-1")
    assert read.group_sequence == (0 if own_group else sequence & 0xFFFFFFFF)
    assert read.properties is not None
    assert _plain({name: value for name, value in read.properties.items() if name in more}) == more
    assert len(raw) <= stamping.seal(properties, "orders-1", "guest").size + len("/queues/q") + len(body) + 16


def test_a_message_may_ask_for_a_receipt() -> None:
    """What the SDK writes, the shim reads."""
    for wanted in (True, False):
        content = stamping.Content(stamping.seal(None, "p", wants_receipt=wanted), b"x")
        message = sending.Message(1, "", "q", content, 0)
        message.attempts = 1
        assert scan(stamping.encode(message)).wants_receipt == wanted


def _with(**properties: Any) -> bytes:
    names = {
        "group_id": "p",
        "properties": {name.replace("_", "-"): value for name, value in properties.items()},
    }
    message = Message(body=b"x", inferred=True)
    for name, value in names.items():
        setattr(message, name, value)
    return bytes(message.encode())


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (_with(dedup_sequence="7"), "sequence-kind"),
        (_with(dedup_sequence=True), "sequence-kind"),
        (_with(dedup_sequence=1.0), "sequence-kind"),
        (_with(dedup_sequence=0), "sequence-range"),
        (_with(dedup_sequence=-5), "sequence-range"),
        (_with(dedup_sequence=ulong(2**63)), "sequence-range"),
        (_with(dedup_sequence=1, dedup_publisher=b"p"), "publisher-kind"),
        (_with(dedup_sequence=1, dedup_publisher="x" * 201), "publisher-long"),
        (_with(dedup_sequence=1, dedup_publisher=""), "publisher-empty"),
        (_with(dedup_sequence=1, dedup_publisher="a\x00"), "publisher-control"),
        (_with(dedup_sequence=1, dedup_attempt="2"), "attempt-kind"),
        (_with(dedup_sequence=1).replace(b"\xa1\x01p", b"\xa1\x01\xff"), "publisher-utf8"),
        (b"", ""),
        (b"\x40", "sections-kind"),
        (b"\x00\x53\x79\x40", "sections-kind"),
        (2 * (b"\x00\x53\x74" + encoding.compound_map(b"", 0)), "sections-repeated"),
        (
            b"\x00\x53\x73" + encoding.compound_list(b"\x40" * 10 + b"\xa1\x01p", 11) + b"\x00\x53\x74"
            + encoding.compound_map(2 * (encoding.text("dedup-sequence") + encoding.long(1)), 4),
            "sequence-repeated",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(raw: bytes, fault: str) -> None:
    """As over AMQP 0.9.1: quarantine gets a slug."""
    assert scan(raw) == scan(raw)._replace(fault=fault, publisher=None, sequence=None)


@pytest.mark.parametrize("kind", [int, uint, ulong, ubyte])
def test_a_sequence_may_be_any_integer(kind: type[int]) -> None:
    """Other languages have other integers."""
    assert scan(_with(dedup_sequence=kind(200))).sequence == 200


def test_sections_may_have_symbolic_descriptors() -> None:
    """The specification allows both ways to name a section."""
    value = encoding.compound_map(encoding.text("dedup-sequence") + encoding.long(7), 2)
    raw = b"\x00\x53\x73" + encoding.compound_list(b"\x40" * 10 + b"\xa1\x01p", 11)
    raw += b"\x00" + encoding.symbol("amqp:application-properties:map") + value
    assert (scan(raw).publisher, scan(raw).sequence) == ("p", 7)


def test_marks_that_come_in_are_taken_off() -> None:
    """Only the shim may say that a message is a possible duplicate."""
    raw = _with(dedup_sequence=1, dedup_possible_duplicate=True, dedup_reason="forged", other=2)
    scanned = scan(raw)
    assert scanned.reserved
    assert _decoded(amend(raw, scanned)).properties == {"dedup-sequence": 1, "other": 2}


def test_a_message_stripped_keeps_its_body() -> None:
    """All sections of it; and it is durable."""
    raw = _with(dedup_sequence=1, poison=uuid.UUID(int=7))
    message = _decoded(strip(raw, scan(raw), [("dedup-reason", "refused")]))
    assert (message.body, message.durable, message.properties) == (b"x", True, {"dedup-reason": "refused"})
    assert (message.group_id, message.id) == (None, None)


def test_arrays_and_odd_keys_are_stepped_over() -> None:
    """What is of no interest may be of any type."""
    message = Message(body=b"x", inferred=True)
    message.annotations = {symbol("x-array"): Array(symbol("d"), Data.LONG, 1, 2)}
    raw = bytes(message.encode())
    assert scan(raw).fault == ""


@pytest.mark.parametrize("sequence", [0, 1, 2**32 - 1])
def test_a_group_of_jms_is_seen(sequence: int) -> None:
    """group-id and group-sequence without a sequence of ours."""
    message = Message(body=b"x", inferred=True, group_id="jms", group_sequence=sequence)
    assert scan(bytes(message.encode())).group == (("jms", sequence) if sequence else None)


@pytest.mark.parametrize("correlation", ["id", None, 7, b"bytes"])
@pytest.mark.parametrize("body", [b"", b"x" * 300, "text"])
def test_an_answer_is_read(correlation: Any, body: Any) -> None:
    """The correlation id if it is text, and the body if it is data."""
    message = Message(body=body, inferred=isinstance(body, bytes))
    if correlation is not None:
        message.correlation_id = ulong(correlation) if isinstance(correlation, int) else correlation
    told = b"id" if correlation == "id" else b""
    assert letter(bytes(message.encode())) == (told, body if isinstance(body, bytes) else b"")


@given(st.binary(max_size=200))
@example(b"\x00\x53\x75\xa0\xff")
@example(b"\x00" * 200)
def test_whatever_comes_as_an_answer_is_read(junk: bytes) -> None:
    """Anybody can write into the queue of a lock."""
    assert all(isinstance(part, bytes) for part in letter(junk))
