"""
Encode the few AMQP 1.0 types that dedup writes itself; what users give goes through proton's codec.

Formats and constructors: AMQP 1.0, part 1, section 1.6.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from proton import Data, ProtonException

from dedup.errors import InvalidMessageError

NULL: Final = b"\x40"
_LENGTH = struct.Struct(">I")
_COMPOUND = struct.Struct(">BII")
_LONG = struct.Struct(">Bq")
_UINT = struct.Struct(">BI")
_LIST32, _MAP32 = 0xD0, 0xD1
#: Bytes that a list or map counts as its size beside its items: its count.
_COUNT_BYTES = 4


def text(value: str) -> bytes:
    """
    Encode a string.
    """
    return _variable(0xA1, 0xB1, value.encode())


def symbol(value: str) -> bytes:
    """
    Encode a symbol; *value* is ASCII.
    """
    return _variable(0xA3, 0xB3, value.encode("ascii"))


def binary(value: bytes) -> bytes:
    """
    Encode bytes.
    """
    return _variable(0xA0, 0xB0, value)


def long(value: int) -> bytes:
    """
    Encode a signed 64-bit integer, always in 9 bytes.
    """
    return _LONG.pack(0x81, value)


def uint(value: int) -> bytes:
    """
    Encode an unsigned 32-bit integer, always in 5 bytes.
    """
    return _UINT.pack(0x70, value)


def boolean(value: bool) -> bytes:
    """
    Encode a boolean.
    """
    return b"\x41" if value else b"\x42"


def compound_list(items: bytes, count: int) -> bytes:
    """
    Encode a list of *count* encoded *items*.
    """
    return _COMPOUND.pack(_LIST32, len(items) + _COUNT_BYTES, count) + items


def compound_map(entries: bytes, count: int) -> bytes:
    """
    Encode a map of *count* encoded keys and values, twice the number of its entries.
    """
    return _COMPOUND.pack(_MAP32, len(entries) + _COUNT_BYTES, count) + entries


def section(code: int, value: bytes) -> bytes:
    """
    Encode a section of a message: its descriptor and its encoded *value*.
    """
    return bytes((0x00, 0x53, code)) + value


def any_value(what: str, value: Any) -> bytes:
    """
    Encode a user's value with proton, which knows every type; *what* names it in the error.

    Raises:
        InvalidMessageError: AMQP 1.0 has no such type, or the value is out of its range.
    """
    data = Data()
    try:
        data.put_object(value)
        return bytes(data.encode())
    except (ProtonException, OverflowError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise InvalidMessageError(
            f"{what} cannot be encoded as AMQP 1.0: {type(value).__name__} ({error!r})"
        ) from error


def _variable(short: int, wide: int, data: bytes) -> bytes:
    size = len(data)
    return (bytes((short, size)) if size < 256 else bytes((wide,)) + _LENGTH.pack(size)) + data
