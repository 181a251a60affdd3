"""What the publisher refuses, and how it says so; nothing here needs a broker."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.amqp091.properties import scan
from dedup.amqp091.publishing import Properties, seal
from dedup.core import inputs
from dedup.core.identity import RANGE_EPOCH_S, RANGE_SIZE, RESERVED_HEADERS, clock_base
from dedup.errors import ConfigError, InvalidIdentityError, InvalidMessageError
from dedup.publisher import Publisher

URL = "amqp://guest:secret@127.0.0.1:1/%2F"


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x"), b""])
def test_a_body_is_bytes_of_any_kind(body: Any) -> None:
    """What comes back is plain bytes that the caller cannot change any more."""
    checked = inputs.check_body(body, 10)
    assert type(checked) is bytes
    assert checked == bytes(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("text", r"\.encode\(\)"),
        (None, "NoneType"),
        (7, "int"),
        ([1], "list"),
        (b"12345678901", "11 bytes, body_bytes_max is 10"),
        (memoryview(bytearray(16)).cast("I"), "16 bytes"),
    ],
)
def test_any_other_body_is_refused(body: Any, message: str) -> None:
    """The error names the type or the size, and the way out."""
    with pytest.raises(InvalidMessageError, match=message):
        inputs.check_body(body, 10)


def test_a_place_is_named_once() -> None:
    """Exchange and routing key, or a guarded queue by its own name."""
    assert inputs.check_place("e", "k", None) == ("e", "k")
    assert inputs.check_place("fanout", "", None) == ("fanout", "")
    assert inputs.check_place("", "", "orders") == ("", "orders.dedup")


@pytest.mark.parametrize(
    ("exchange", "routing_key", "queue", "message"),
    [
        ("", "", None, "say where"),
        ("e", "", "orders", "not both"),
        ("", "k", "orders", "not both"),
        ("", "", "", "empty"),
        (b"e", "k", None, "exchange is a str, not bytes"),
        ("e", None, None, "routing_key is a str"),
        ("", "", 7, "queue is a str"),
        ("e" * 256, "k", None, "exchange has 256 bytes"),
        ("e", "é" * 128, None, "routing key has 256 bytes"),
        ("", "", "q" * 250, "routing key has 256 bytes"),
        ("e", "\ud800", None, "surrogate"),
    ],
)
def test_any_other_place_is_refused(exchange: Any, routing_key: Any, queue: Any, message: str) -> None:
    """Nothing that AMQP cannot carry, and nothing ambiguous."""
    with pytest.raises(InvalidMessageError, match=message):
        inputs.check_place(exchange, routing_key, queue)


@pytest.mark.parametrize(
    "timeout", [0, -1, float("nan"), float("inf"), 1e18, 10**400, True, "5", dt.timedelta(seconds=1)]
)
def test_a_timeout_is_a_positive_finite_number(timeout: Any) -> None:
    """Zero, NaN, infinity, more than any clock can add and other types are refused; None and numbers are not."""
    with pytest.raises(InvalidMessageError, match="timeout is a"):
        inputs.check_timeout(timeout)
    assert inputs.check_timeout(None) is None
    assert inputs.check_timeout(1) == 1.0


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"app_id": "x"}, "not dict"),
        (Properties(headers=[("a", 1)]), "headers are a dict"),
        (Properties(headers={7: 1}), "name is text"),
        (Properties(headers={"dedup-sequence": 1}), "'dedup-sequence' belongs to dedup"),
        (Properties(headers={"dedup-possible-duplicate": True}), "belongs to dedup"),
        (Properties(headers={"a": object()}), "headers.*'a'.* object"),
        (Properties(headers={"a": 2**64}), "'a'.*out of range"),
        (Properties(priority=256), "priority"),
        (Properties(message_id="m" * 256), "message_id"),
        (Properties(content_type=7), "content_type"),
    ],
)
def test_properties_that_cannot_be_sent_are_refused(properties: Any, message: str) -> None:
    """Reserved headers and what AMQP cannot carry, by name."""
    with pytest.raises(InvalidMessageError, match=message):
        seal(properties, "orders-1")


_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


_PROPERTIES = st.builds(
    Properties,
    content_type=st.none() | _TEXT,
    content_encoding=st.none() | _TEXT,
    headers=st.none()
    | st.dictionaries(
        _TEXT.filter(lambda name: name not in RESERVED_HEADERS),
        st.integers(-(2**63), 2**63 - 1) | _TEXT | st.floats(allow_nan=False, allow_infinity=False),
        max_size=4,
    ),
    app_id=st.none() | _TEXT,
    message_id=st.none() | _TEXT,
)


@given(sequence=st.integers(1, 2**63 - 1), attempt=st.integers(1, 2**31), given=_PROPERTIES)
def test_a_sealed_message_carries_its_stamp_and_nothing_is_lost(
    sequence: int, attempt: int, given: Properties
) -> None:
    """Whatever the user's properties are, the shim's scanner reads the stamp out of the encoded ones."""
    before = copy.deepcopy(given)
    envelope = seal(given, "orders-1")
    raw = envelope.stamp(sequence, attempt, 2.0)
    stamp = scan(raw)
    assert (stamp.publisher, stamp.sequence, stamp.attempt, stamp.fault) == (
        "orders-1",
        sequence,
        attempt,
        None,
    )
    assert (stamp.first_sent_ms > 0) == (attempt > 1), "only a re-send says when it was sent first"
    assert len(raw) <= envelope.size
    assert given == before
    for name in given.headers or ():
        assert name.encode() in raw


def test_changing_properties_after_a_submit_changes_nothing() -> None:
    """They are encoded at once: the same object may be used for the next message."""
    properties = Properties(headers={"a": 1})
    envelope = seal(properties, "orders-1")
    properties.headers["a"] = 2
    assert envelope.stamp(1, 1, 0.0) == seal(Properties(headers={"a": 1}), "orders-1").stamp(1, 1, 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confirm_timeout_s": 0}, "confirm_timeout_s"),
        ({"connect_timeout_s": "5"}, "connect_timeout_s"),
        ({"close_timeout_s": float("inf")}, "close_timeout_s"),
        ({"unconfirmed_max": 4097}, "unconfirmed_max is at least 1 and at most 4096"),
        ({"unconfirmed_max": 0}, "unconfirmed_max"),
        ({"waiting_max": 0}, "waiting_max"),
        ({"window_size": 1}, "window_size"),
        ({"window_size": 1_048_577}, "window_size is at least 2 and at most 1048576, not 1048577"),
        ({"body_bytes_max": 1.5}, "body_bytes_max is an int"),
        ({"buffer_bytes_max": True}, "buffer_bytes_max"),
        ({"base": -1}, "base"),
        ({"registration": "file"}, 'registration is "broker" or "local"'),
        ({"registration": "broker", "base": 1}, "a registry hands out the base"),
        ({"takeover": True, "base": 1}, "takeover=True is about the registration"),
        ({"takeover": "no"}, "takeover is True or False, not str"),
        ({"receipts": True}, "receipts is called with each dedup.Told"),
        ({"outbox": b"orders.db"}, "outbox is the path of a file"),
        (
            {"connect_timeout_s": 10**400},
            "connect_timeout_s is a positive number of seconds, at most a century",
        ),
        ({"url": None}, "an AMQP URL is text"),
        ({"url": ["amqp://a", 5]}, "an AMQP URL is text, not int"),
        ({"takeover": True, "registration": "local"}, "takeover=True is about the registration"),
        ({"url": "http://127.0.0.1"}, "amqp"),
        ({"url": []}, "no AMQP URL"),
        ({"ssl_context": object()}, "amqps"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_connects(settings: dict[str, Any], message: str) -> None:
    """The error names the setting; the password is in none of them."""
    with pytest.raises(ConfigError, match=message) as caught:
        Publisher(**{"url": URL, "publisher_id": "orders-1", **settings})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("publisher_id", ["", "x" * 201, "a\nb", None, b"orders"])
def test_a_wrong_publisher_id_is_refused(publisher_id: Any) -> None:
    """It ends up in headers, queue names and logs."""
    with pytest.raises(InvalidIdentityError):
        Publisher(URL, publisher_id)


def test_numbering_starts_where_the_clock_is() -> None:
    """In the range of its second, and further on the later in the second: owners in turn never share a sequence."""
    second = RANGE_EPOCH_S + 5
    assert clock_base(second * 10**9) == 5 * RANGE_SIZE
    assert clock_base(second * 10**9 + 10**9 // 2) == 5 * RANGE_SIZE + RANGE_SIZE // 2
    assert clock_base(second * 10**9 + 1000) - clock_base(second * 10**9) > 4000
    assert clock_base(0) == 0
