"""What an application gives as properties is encoded, or refused with the fix."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.compat import long

from dedup.amqp091.encoding import _encode, encode
from dedup.amqp091.properties import scan
from dedup.errors import InvalidMessageError

Properties = pika.BasicProperties


def test_no_properties_are_an_empty_list() -> None:
    """Two bytes of flags, none of them set."""
    assert encode(None) == encode(Properties()) == b"\x00\x00"


def test_floats_are_carried() -> None:
    """They are what pika refuses; nested ones and tuples too."""
    raw = encode(Properties(headers={"a": 1.5, "b": [2.5, {"c": (3.5,)}]}))
    assert raw.count(b"d" + struct.pack(">d", 1.5)) == 1
    assert raw.count(b"d" + struct.pack(">d", 2.5)) == 1
    assert raw.count(b"A\x00\x00\x00\x09d" + struct.pack(">d", 3.5)) == 1
    assert scan(raw).fault is None


_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 9).map(long),
        st.text("a\u00e9\U0001f407", max_size=9),
        st.binary(max_size=9),
        st.decimals(-1000, 1000, places=2),
        st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2100, 1, 1)),  # noqa: DTZ001 - AMQP's are naive UTC
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
    max_leaves=6,
)
_short = st.none() | st.text("a\u00e9", max_size=20)


@given(
    st.fixed_dictionaries(
        {
            "headers": st.none() | st.dictionaries(st.text("abc", max_size=5), _values, max_size=5),
            **dict.fromkeys(
                ("content_type", "reply_to", "expiration", "message_id", "type", "app_id", "cluster_id"),
                _short,
            ),
            "delivery_mode": st.none() | st.integers(1, 2),
            "priority": st.none() | st.integers(0, 255),
            "timestamp": st.none() | st.integers(0, 2**64 - 1),
        }
    )
)
def test_what_pika_can_encode_is_encoded_the_same(values: dict[str, Any]) -> None:
    """Also by the way that is taken when pika gives up."""
    properties = Properties(**values)
    assert _encode(properties) == b"".join(properties.encode()) == encode(properties)


loop: list[Any] = []
loop.append(loop)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"expiration": 60000}, "property expiration is text, not int"),
        ({"app_id": "x" * 256}, "property app_id has 256 bytes"),
        ({"app_id": "\ud800"}, "property app_id has a lone surrogate"),
        ({"priority": 300}, "property priority is between 0 and 255"),
        ({"timestamp": dt.datetime.now(dt.UTC)}, r"property timestamp is an int, not datetime; pass int\("),
        ({"headers": [1]}, "headers is a dict, not list"),
        ({"headers": {5: 1}}, "a name in headers is text, not int"),
        ({"headers": {"x" * 256: 1}}, "a name in headers has 256 bytes"),
        ({"headers": {"a": {"b": [1, object()]}}}, r"headers\['a'\]\['b'\]\[1\] is object"),
        ({"headers": {"a": 2**63}}, r"headers\['a'\], a int, is out of range"),
        ({"headers": {"a": decimal.Decimal("NaN")}}, r"headers\['a'\], a Decimal, is out of range"),
        ({"headers": {"a": decimal.Decimal("1e400")}}, r"headers\['a'\], a Decimal, is out of range"),
        (
            {"headers": {"a": dt.datetime(1960, 1, 1, tzinfo=dt.UTC)}},
            r"headers\['a'\], a datetime, is out of range",
        ),
        ({"headers": {"a": float("nan")}}, r"headers\['a'\] is nan"),
        ({"headers": {"a": "\ud800"}}, r"headers\['a'\] has a lone surrogate"),
        ({"headers": {"a": loop}}, "nested over 100 deep"),
    ],
)
def test_what_amqp_cannot_carry_is_named_with_the_fix(values: dict[str, Any], message: str) -> None:
    """The path leads to the value, however deep it is; the value itself may be secret and is not shown."""
    with pytest.raises(InvalidMessageError, match=message):
        encode(Properties(**values))
