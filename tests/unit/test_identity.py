"""Names of publishers and messages: what the wire allows, and where ranges begin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.identity import (
    ATTEMPT_HEADER,
    MARK_HEADER,
    PUBLISHER_HEADER,
    PUBLISHER_ID_BYTES_MAX,
    REASON_HEADER,
    RESERVED_HEADERS,
    SEQUENCE_HEADER,
    Receipt,
    range_base,
    unwrap_serial,
    validate_publisher_id,
    validate_sequence,
)
from dedup.errors import InvalidIdentityError


@pytest.mark.parametrize("name", ["orders-1", " ", "a" * 200, "é" * 100, "€" * 66, "💡" * 50, "a:b/c{d}"])
def test_a_publisher_id_is_any_text_of_200_bytes(name: str) -> None:
    """The limit counts bytes of UTF-8, and nothing printable is refused."""
    assert validate_publisher_id(name) == name


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (None, "is text, not NoneType"),
        (7, "is text, not int"),
        (b"orders", "is text, not bytes"),
        ("", "must not be empty"),
        ("a" * 201, "at most 200 bytes of UTF-8, this one has 201"),
        ("é" * 101, "this one has 202"),
        ("\ud800", "lone surrogate"),
        ("a\nb", "control characters"),
        ("a\x00", "control characters"),
        ("\x7f", "control characters"),
    ],
)
def test_anything_else_names_no_publisher(name: Any, complaint: str) -> None:
    """The error says what is wrong with it."""
    with pytest.raises(InvalidIdentityError, match=complaint):
        validate_publisher_id(name)


@pytest.mark.parametrize("sequence", [1, 2**32, 2**53 + 1, 2**63 - 1])
def test_a_sequence_is_a_positive_63_bit_integer(sequence: int) -> None:
    """Both ends belong to it."""
    assert validate_sequence(sequence) == sequence


@pytest.mark.parametrize("sequence", [0, -1, 2**63, 2**64, True, 1.0, "1", None, b"\x01"])
def test_anything_else_numbers_no_message(sequence: Any) -> None:
    """A bool is not a number here, and zero is not a sequence."""
    with pytest.raises(InvalidIdentityError, match="a sequence is"):
        validate_sequence(sequence)


@pytest.mark.parametrize(
    ("sequence", "base"),
    [(1, 0), (2**32 - 1, 0), (2**32, 2**32), (2**32 + 1, 2**32), (2**63 - 1, 2**63 - 2**32)],
)
def test_a_range_begins_at_a_multiple_of_its_size(sequence: int, base: int) -> None:
    """The upper 31 bits name the range."""
    assert range_base(sequence) == base


@given(st.text(max_size=250))
def test_validation_is_total(name: str) -> None:
    """Any text is either returned as it is or refused with the family's own error."""
    try:
        assert validate_publisher_id(name) == name
    except InvalidIdentityError:
        return
    assert 0 < len(name.encode()) <= PUBLISHER_ID_BYTES_MAX


def test_a_receipt_carries_a_legal_sequence() -> None:
    """A receipt that could not be retried with cannot be made."""
    assert Receipt("orders-1", 7).attempts == 1
    with pytest.raises(InvalidIdentityError):
        Receipt("orders-1", 0)


def test_the_headers_are_reserved() -> None:
    """None of them collides with a name RabbitMQ rewrites: that starts with x-."""
    assert {SEQUENCE_HEADER, PUBLISHER_HEADER, ATTEMPT_HEADER, MARK_HEADER, REASON_HEADER} <= RESERVED_HEADERS
    assert all(name.startswith("dedup-") for name in RESERVED_HEADERS)


@given(st.integers(2**31, 2**40), st.integers(-(2**31) + 1, 2**31 - 1))
def test_a_serial_is_unwrapped_to_the_nearest_number(last: int, distance: int) -> None:
    """As long as it is less than half of the circle away, whichever way and over however many wraps."""
    sequence = last + distance
    assert unwrap_serial(sequence % 2**32, last) == sequence


@pytest.mark.parametrize(
    ("serial", "last", "sequence"),
    [
        (1, 0, 2**32 + 1),
        (0, 0, 2**32),
        (2**32 - 1, 0, 2**33 - 1),
        (0, 2**33 - 1, 2**33),
        (5, 2**33 - 1, 2**33 + 5),
        (2**32 - 1, 2**33, 2**33 - 1),
        (2**31, 2**33, 2**33 - 2**31),
        (2**32 - 1, 1, 2**32 - 1),
    ],
)
def test_serials_wrap_as_rfc_1982_says(serial: int, last: int, sequence: int) -> None:
    """The first of a publisher, the wrap and what comes late behind it; exactly half of the circle away counts as behind."""
    assert unwrap_serial(serial, last) == sequence
