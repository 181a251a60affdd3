"""Encode what an application gives as properties; what cannot be sent is refused with the fix, before anything is."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pika.compat import long
from pika.data import encode_value
from pika.exceptions import AMQPError

from dedup.amqp091.properties import PROPERTIES, TABLE, TEXT, join
from dedup.errors import InvalidMessageError

if TYPE_CHECKING:
    import pika

_SHORT_TEXT_BYTES_MAX: Final = 255
_DEPTH_MAX: Final = 100


def encode(properties: pika.BasicProperties | None) -> bytes:
    """
    Return *properties* as raw bytes; None gives the empty list.

    Header values are what pika encodes (text, bytes, bool, int, Decimal, datetime, None, dict, list) and float.

    Raises:
        InvalidMessageError: a value that AMQP cannot carry; the message names it and the fix.
    """
    if properties is None:
        return b"\x00\x00"
    try:
        return b"".join(properties.encode())
    except (
        AMQPError,
        struct.error,
        ArithmeticError,
        AssertionError,
        AttributeError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        return _encode(properties)


def _encode(properties: pika.BasicProperties) -> bytes:
    """
    Encode what pika could not: either it holds floats, or the reason is found and told here.
    """
    encoded: dict[int, bytes] = {}
    for flag, name, size in PROPERTIES:
        value = getattr(properties, name)
        if value is None:
            continue
        if size == TABLE:
            encoded[flag] = _table(value, name, 0)
        elif size == TEXT:
            encoded[flag] = _short(value, f"property {name}")
        else:
            encoded[flag] = _number(value, size, name)
    return join(encoded)


def _number(value: Any, size: int, name: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "; pass int(moment.timestamp())" if isinstance(value, dt.datetime) else ""
        raise InvalidMessageError(f"property {name} is an int, not {type(value).__name__}{hint}")
    if not 0 <= value < 1 << 8 * size:
        raise InvalidMessageError(f"property {name} is between 0 and {(1 << 8 * size) - 1}, not {value}")
    return value.to_bytes(size, "big")


def _short(value: Any, what: str) -> bytes:
    data = _utf8(value, what)
    if len(data) > _SHORT_TEXT_BYTES_MAX:
        raise InvalidMessageError(
            f"{what} has {len(data)} bytes, AMQP carries at most {_SHORT_TEXT_BYTES_MAX}; shorten it"
        )
    return bytes((len(data),)) + data


def _utf8(value: Any, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise InvalidMessageError(f"{what} is text, not {type(value).__name__}; pass str(...) of it")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(
            f"{what} has a lone surrogate, which UTF-8 cannot hold; pass bytes instead"
        ) from error


def _table(table: Any, path: str, depth: int) -> bytes:
    if not isinstance(table, Mapping):
        raise InvalidMessageError(f"{path} is a dict, not {type(table).__name__}")
    entries = b"".join(
        [
            _short(name, f"a name in {path}") + _field(value, f"{path}[{name!r:.60}]", depth)
            for name, value in table.items()
        ]
    )
    return struct.pack(">I", len(entries)) + entries


def _field(value: Any, path: str, depth: int) -> bytes:
    """
    Encode one header value, its kind first; *path* says where it is.
    """
    if depth > _DEPTH_MAX:
        raise InvalidMessageError(
            f"{path:.200}... is nested over {_DEPTH_MAX} deep; flatten it or put it into the body"
        )
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidMessageError(
                f"{path} is {value}: RabbitMQ closes the connection of who sends it; pass it as text"
            )
        return struct.pack(">cd", b"d", value)
    if isinstance(value, str):
        text = _utf8(value, path)
        return struct.pack(">cI", b"S", len(text)) + text
    if isinstance(value, Mapping):
        return b"F" + _table(value, path, depth + 1)
    if isinstance(value, list | tuple):
        items = b"".join([_field(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)])
        return struct.pack(">cI", b"A", len(items)) + items
    if not isinstance(value, bytes | int | long | decimal.Decimal | dt.datetime | None):
        raise InvalidMessageError(
            f"{path} is {type(value).__name__}, which AMQP headers cannot hold; pass text, bytes, bool, int, float, Decimal, "
            "datetime, None, dict or list"
        )
    pieces: list[bytes] = []
    try:
        encode_value(pieces, value)
    except (struct.error, ArithmeticError, TypeError, ValueError) as error:
        raise InvalidMessageError(
            f"{path}, a {type(value).__name__}, is out of range for its AMQP type; pass it as text"
        ) from error
    return b"".join(pieces)
