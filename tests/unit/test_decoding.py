"""Properties decoded for people: as pika does where it can, and where it cannot."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import BasicProperties

from dedup.amqp091.decoding import DEPTH_MAX, VALUES_MAX, decode, decode_value
from dedup.amqp091.encoding import encode
from dedup.amqp091.properties import HEADERS, join
from dedup.core.deaths import DeathHistory

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES
    | st.binary(max_size=20)
    | st.integers(0, 2**37).map(lambda unix_s: dt.datetime.fromtimestamp(unix_s, dt.UTC)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=15,
)


def headers(table: bytes, length: int | None = None) -> bytes:
    """Raw properties with a table of headers, the length as given."""
    size = len(table) if length is None else length
    return join({HEADERS: struct.pack(">I", size) + table})


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_was_encoded_is_what_is_decoded(table: dict[str, Any]) -> None:
    """Every kind of value, in any depth; a float stays one."""
    decoded = decode(encode(BasicProperties(headers=table)))
    assert decoded.headers == table
    assert decoded.fault is None


def test_every_property() -> None:
    """By pika's names."""
    made = BasicProperties(
        content_type="a/b", content_encoding="gzip", delivery_mode=2, priority=7, correlation_id="c", reply_to="r",
        expiration="1", message_id="m", timestamp=5, type="t", user_id="u", app_id="a", cluster_id="x",
    )  # fmt: skip
    assert decode(encode(made)).properties == {
        name: value for name, value in vars(made).items() if value is not None
    }


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
        (b"D\x01\xff\xff\xff\xff", Decimal("-0.1")),
        (b"f\x3f\x80\x00\x00", 1.0),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"T\x7f" + b"\xff" * 7, 2**63 - 1),
        (b"Z", None),
        (b"S\x00\x00\x00\x09x", None),
        (b"A\x00\x00\x00\x03tt", None),
        (b"", None),
    ],
)
def test_one_value(value: bytes, read: object) -> None:
    """Kinds that our encoder does not write, and values that end too early."""
    assert decode_value(value) == read


def test_what_cannot_be_read_ends_the_table_and_is_told() -> None:
    """What comes before it is kept."""
    good = b"\x01at\x01"
    for broken in (b"\x01bZ", b"\x01bS\x00\x00\xff\xff", b"\x09b", b"\x01bA\x00\x00\x00\x05t\x01"):
        assert decode(headers(good + broken)) == ({}, {"a": True}, "a header that cannot be read")
    assert decode(headers(good, 99)).fault
    assert decode(b"\xff") == ({}, {}, "properties that cannot be read")


def test_bounds() -> None:
    """A table of any size and depth costs what its bounds cost."""
    flat = b"".join(b"\x04%04xt\x01" % number for number in range(20_000))
    decoded = decode(headers(flat))
    assert len(decoded.headers) == VALUES_MAX
    assert str(VALUES_MAX) in str(decoded.fault)
    deep = b"V"
    for _ in range(DEPTH_MAX + 5):
        deep = b"A" + struct.pack(">I", len(deep)) + deep
    assert str(DEPTH_MAX) in str(decode(headers(b"\x01a" + deep)).fault)
    assert decode_value(deep) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    """Not as properties, not as a table, not as a value; and a death history comes of it."""
    decode(raw)
    decode_value(raw)
    DeathHistory.read(decode(headers(raw)).headers)


def test_deaths_are_read_as_pika_reads_them() -> None:
    """One history, whoever decoded it."""
    death = {"queue": "q", "reason": "expired", "count": 2, "time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "exchange": "", "routing-keys": ["k"], "original-expiration": "5"}  # fmt: skip
    raw = encode(BasicProperties(headers={"x-death": [death]}))
    ours = DeathHistory.read(decode(raw).headers)
    assert ours == DeathHistory.read({"x-death": [death]})
    assert not ours.faults
