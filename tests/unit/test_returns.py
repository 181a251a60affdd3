"""Re-entries of a death: what they are known by, read from anything anybody may write, and carried on."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.amqp091.decoding import decode
from dedup.amqp091.identifying import return_of
from dedup.amqp091.properties import DELIVERY_MODE, HEADERS, fresh, header_value, join, scan
from dedup.core.deaths import Death, DeathHistory
from dedup.core.identity import RESERVED_HEADERS, RETURNS_HEADER, SEQUENCE_MAX
from dedup.core.message_ids import is_message_key, message_key, validate_name
from dedup.core.returns import RETURNS_MAX, UNKNOWN_S, counted, last_death_s, reentry

STAMP = ("p", 7)
ID = (message_key(b"event"), 1)


def test_every_part_of_a_name_and_the_count_make_another_key() -> None:
    """No two messages, and no two returns of one, are taken for each other; a key is none of a message id."""
    names = [("p", 1), ("p", 2), ("p 1", 2), ("1 p", 1), ("q", 1), ID]
    keys = {reentry(*name, returns).key for name in names for returns in range(13)}
    assert len(keys) == len(names) * 13
    for key in keys:
        assert is_message_key(key)
        assert validate_name(key) == key
    assert message_key(b"0 1 p") not in keys


@given(st.text(min_size=1), st.integers(1, SEQUENCE_MAX), st.integers(0, RETURNS_MAX))
def test_no_message_id_has_the_key_of_a_re_entry(publisher: str, sequence: int, returns: int) -> None:
    """Whatever kind of value it is."""
    name = b"%d %d %b" % (returns, sequence, publisher.encode(errors="replace"))
    key = reentry(publisher.encode(errors="replace").decode(), sequence, returns).key
    assert key not in {message_key(name), *(message_key(name, kind=bytes((kind,))) for kind in range(256))}


@pytest.mark.parametrize(
    ("number", "read"),
    [(None, None), (0, 0), (3, 3), (-1, None), (RETURNS_MAX - 1, RETURNS_MAX - 1), (RETURNS_MAX, None)],
)
def test_what_can_be_a_count(number: int | None, read: int | None) -> None:
    """What cannot, or could not be counted on, is none: such a message is forwarded each time."""
    assert counted(number) == read


def history(*deaths: Death, faults: tuple[str, ...] = ()) -> DeathHistory:
    """Return a history."""
    return DeathHistory(deaths, faults)


def test_the_last_death_is_the_one_in_the_target() -> None:
    """Whatever the reason; where one of them is not told, or something cannot be read, nobody knows."""
    deaths = [
        Death("orders.wait", "expired", last_ms=9_000),
        Death("orders", "rejected", 2, first_ms=3_000),
        Death("orders", "expired", last_ms=5_000),
    ]
    assert last_death_s(history(*deaths), "orders") == 5.0
    assert last_death_s(history(*deaths, Death("orders", "maxlen")), "orders") == UNKNOWN_S
    assert last_death_s(history(*deaths, faults=("junk",)), "orders") == UNKNOWN_S
    assert last_death_s(history(), "orders") == UNKNOWN_S


# -- in encoded properties ------------------------------------------------------------------------


def properties(*headers: bytes) -> bytes:
    """Return properties with encoded headers, and a user id nobody asks for."""
    table = b"".join(headers)
    return join({HEADERS: struct.pack(">I", len(table)) + table, DELIVERY_MODE: b"\x02"})


def returns_header(value: bytes) -> bytes:
    """Return an encoded header."""
    return bytes((len(RETURNS_HEADER),)) + RETURNS_HEADER.encode() + value


def test_each_return_is_counted_on_and_nothing_else_changes() -> None:
    """From no header at all; a stamp stays a stamp."""
    raw, keys = fresh([("dedup-sequence", 7), ("mine", "x")], app_id="p"), set()
    for returns in range(3):
        found = return_of(raw, STAMP, "orders")
        assert found is not None
        assert found[0].died_s == 0
        keys.add(found[0].key)
        raw = found[1]
        assert decode(raw).headers == {RETURNS_HEADER: returns + 1, "dedup-sequence": 7, "mine": "x"}
        assert scan(raw)[:2] == ("p", 7)
    assert len(keys) == 3


@pytest.mark.parametrize("kind", ["b", "B", "s", "u", "I", "i", "l"])
def test_a_count_may_be_of_any_size(kind: str) -> None:
    """AMQP 1.0 and clients in between choose their own."""
    code = {"b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q"}[kind]
    found = return_of(properties(returns_header(kind.encode() + struct.pack(">" + code, 2))), STAMP, "orders")
    assert found is not None
    assert found[0] == reentry(*STAMP, 2)
    assert decode(found[1]).headers == {RETURNS_HEADER: 3}


@pytest.mark.parametrize(
    "value",
    [
        b"S\x00\x00\x00\x011",
        b"V",
        b"t\x01",
        b"d" + struct.pack(">d", 1.0),
        b"l" + struct.pack(">q", -1),
        b"l" + struct.pack(">q", 2**62),
        b"F\x00\x00\x00\x00",
    ],
)
def test_a_count_that_cannot_be_is_no_count(value: bytes) -> None:
    """Nothing is known by it, and it stays as it is: a first count in its place might have been given before."""
    assert return_of(properties(returns_header(value)), STAMP, "orders") is None


@pytest.mark.parametrize(
    ("value", "died_s"), [(b"T\x00\x00\x00\x00\x00\x00\x00\x07", 7.0), (b"V", UNKNOWN_S)]
)
def test_of_a_message_id_it_is_told_when_it_died(value: bytes, died_s: float) -> None:
    """Its id may be there without the count."""
    entry = (
        b"\x05queueS\x00\x00\x00\x06orders\x06reasonS\x00\x00\x00\x08rejected\x05countI\x00\x00\x00\x01\x04time"
        + value
    )
    table = b"F" + struct.pack(">I", len(entry)) + entry
    raw = properties(b"\x07x-deathA" + struct.pack(">I", len(table)) + table)
    for target, told in (("orders", died_s), ("others", UNKNOWN_S)):
        found = return_of(raw, ID, target)
        assert found is not None
        assert found[0].died_s == told
    stamped = return_of(raw, STAMP, "orders")
    assert stamped is not None
    assert stamped[0].died_s == 0


@given(st.binary(max_size=80), st.sampled_from([STAMP, ID]))
def test_any_bytes_give_an_answer(raw: bytes, known_by: tuple[str, int]) -> None:
    """What comes out can be read and counts one more."""
    found = return_of(raw, known_by, "orders")
    if found is not None:
        value = header_value(found[1], RETURNS_HEADER.encode())
        assert value is not None
        assert struct.unpack(">q", value[1:])[0] >= 1


def test_the_header_is_ours() -> None:
    """The SDK refuses it in a user's headers."""
    assert RETURNS_HEADER in RESERVED_HEADERS


# -- over AMQP 1.0 --------------------------------------------------------------------------------


def test_sections_are_read_and_counted_on() -> None:
    """The application property, of any size; what cannot be is no count."""
    proton = pytest.importorskip("proton")
    relaying = pytest.importorskip("proton_adapter.relaying")
    sections = pytest.importorskip("proton_adapter.sections")

    def read(value: Any) -> int | None:
        given = {} if value is None else {RETURNS_HEADER: value}
        raw = bytes(proton.Message(body=b"m", properties={"mine": 1, **given}).encode())
        return relaying.returns_of(raw, sections.scan(raw))  # type: ignore[no-any-return]

    assert [read(value) for value in (None, 2, proton.ubyte(3), proton.ulong(4))] == [0, 2, 3, 4]
    assert [read(value) for value in (-1, "1", 1.0, proton.ulong(2**64 - 1))] == [None] * 4
    raw = bytes(proton.Message(body=b"m", properties={"mine": 1, RETURNS_HEADER: 1}).encode())
    message = proton.Message()
    message.decode(sections.amend(raw, sections.scan(raw), [(RETURNS_HEADER, 2)]))
    assert message.properties == {RETURNS_HEADER: 2, "mine": 1}


def test_a_history_over_amqp_1_0_tells_when_a_message_died() -> None:
    """The broker's: an array of maps. Whatever else is there, deep or long, nobody knows."""
    proton = pytest.importorskip("proton")
    relaying = pytest.importorskip("proton_adapter.relaying")

    def told(value: Any) -> float:
        data = proton.Data()
        data.put_object(value)
        return relaying.died_in("orders", data.encode())  # type: ignore[no-any-return]

    def death(queue: str, last_ms: int) -> dict[str, Any]:
        times = {"first-time": proton.timestamp(1_000), "last-time": proton.timestamp(last_ms)}
        return {"queue": queue, "reason": proton.symbol("rejected"), "count": proton.ulong(2), **times}

    deaths = [death("wait", 9_000), death("orders", 5_500)]
    assert told(proton.Array(proton.UNDESCRIBED, proton.Data.MAP, *deaths)) == 5.5
    assert told(deaths) == 5.5
    for junk in (
        [],
        "orders",
        {"queue": "orders"},
        ["orders"],
        [death("orders", 5_500), "junk"],
        deaths * 100,
    ):
        assert told(junk) == UNKNOWN_S
    nested = b"\x45"
    while len(nested) < 240:
        nested = bytes((0xC0, len(nested) + 1, 1)) + nested
    while len(nested) < 4_000:
        nested = b"\xd0" + struct.pack(">II", len(nested) + 4, 1) + nested
    for raw in (nested, b"", b"\xff", b"\x00", nested[:100]):
        assert relaying.died_in("orders", raw) == UNKNOWN_S
