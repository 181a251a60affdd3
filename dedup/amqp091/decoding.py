"""
Decode a message's properties for people and for rare decisions; total, where pika's decoder raises or loses.

Everything in a message is a stranger's: what cannot be read ends the table, and is told. The bounds hold for any bytes;
RabbitMQ's own headers are far inside them.
"""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any, Final, NamedTuple

from dedup.amqp091.properties import HEADERS, INTEGERS, PROPERTIES, TABLE, TEXT, split

#: Values in all headers together, and tables within tables.
VALUES_MAX: Final = 10_000
DEPTH_MAX: Final = 32

#: Kinds of a fixed size.
_FIXED: Final = {
    ord(kind): struct.Struct(">" + code)
    for kind, code in (*INTEGERS.items(), ("f", "f"), ("d", "d"), ("t", "?"))
}
_LENGTH: Final = struct.Struct(">I")
_UNSIGNED: Final = struct.Struct(">Q")
_DECIMAL: Final = struct.Struct(">Bi")


class Decoded(NamedTuple):
    """
    What the properties of a message say.
    """

    #: By pika's names, those that are set; texts, and numbers for delivery mode, priority and timestamp.
    properties: dict[str, Any]
    headers: dict[str, Any]
    #: Why there may be more than this; None: this is all.
    fault: str | None = None


def decode(raw: bytes) -> Decoded:
    """
    Decode raw properties: flags and property list, as in a header frame.

    Text that is no UTF-8 stays bytes. A header that is there twice counts once, the first of them.
    """
    found, rest = split(raw)
    if rest == raw:
        found = {}  # what stands in for them is not theirs
    properties: dict[str, Any] = {}
    for flag, name, size in PROPERTIES:
        if size != TABLE and (value := found.get(flag)) is not None:
            properties[name] = _text(value[1:]) if size == TEXT else int.from_bytes(value, "big")
    fault = "properties that cannot be read" if rest else None
    if HEADERS not in found:
        return Decoded(properties, {}, fault)
    reader = _Reader(found[HEADERS])
    headers = reader.headers()
    return Decoded(properties, headers, reader.fault or fault)


def decode_value(field: bytes) -> Any:
    """
    Decode one header value, its kind first; None when it cannot be read.
    """
    reader = _Reader(field)
    try:
        return reader.value(0)
    except (IndexError, struct.error, _TooMuchError):
        return None


class _TooMuchError(Exception):
    """
    Ends a reading that is over its bounds.
    """


class _Reader:
    """
    Read values one after the other.
    """

    def __init__(self, data: bytes) -> None:
        self.fault: str | None = None
        self._data = data
        self._at = 0
        self._values = 0

    def headers(self) -> dict[str, Any]:
        """
        Read the table of all headers, up to where it cannot be read.
        """
        table: dict[str, Any] = {}
        try:
            self._fill(table, 0)
        except (IndexError, struct.error):
            self.fault = "a header that cannot be read"
        except _TooMuchError:
            self.fault = f"over {VALUES_MAX} header values, or over {DEPTH_MAX} tables in each other"
        return table

    def value(self, depth: int) -> Any:
        """
        Read one value, its kind first.
        """
        self._values += 1
        if self._values > VALUES_MAX or depth > DEPTH_MAX:
            raise _TooMuchError
        kind = self._data[self._at]
        self._at += 1
        if (fixed := _FIXED.get(kind)) is not None:
            return self._take(fixed)[0]
        match chr(kind):
            case "S":
                return _text(self._bytes())
            case "x":
                return self._bytes()
            case "F":
                table: dict[str, Any] = {}
                self._fill(table, depth + 1)
                return table
            case "A":
                return self._items(depth + 1)
            case "T":
                return _moment(self._take(_UNSIGNED)[0])
            case "D":
                decimals, number = self._take(_DECIMAL)
                return Decimal((number < 0, tuple(map(int, str(abs(number)))), -decimals))
            case "V":
                return None
        raise IndexError

    def _fill(self, table: dict[str, Any], depth: int) -> None:
        end = self._end()
        while self._at < end:
            size = self._data[self._at]
            name = self._data[self._at + 1 : self._at + 1 + size].decode(errors="backslashreplace")
            self._at += 1 + size
            table.setdefault(name, self.value(depth))
        if self._at != end:
            raise IndexError

    def _items(self, depth: int) -> list[Any]:
        end = self._end()
        items = []
        while self._at < end:
            items.append(self.value(depth))
        if self._at != end:
            raise IndexError
        return items

    def _end(self) -> int:
        """
        Read a length, and return where what has it ends.
        """
        (size,) = self._take(_LENGTH)
        end = self._at + int(size)
        if end > len(self._data):
            raise IndexError
        return end

    def _bytes(self) -> bytes:
        end = self._end()
        value = self._data[self._at : end]
        self._at = end
        return value

    def _take(self, what: struct.Struct) -> tuple[Any, ...]:
        values = what.unpack_from(self._data, self._at)
        self._at += what.size
        return values


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _moment(unix_s: int) -> dt.datetime | int:
    """
    Return a timestamp as such, as far as Python's calendar goes.
    """
    try:
        return dt.datetime.fromtimestamp(unix_s, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return unix_s
