"""One message for each property and type of AMQP 0.9.1 and of 1.0, and what a message says that has arrived."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import UUID

import proton
from attrs import frozen
from proton import Array, Data, Message, symbol

from dedup.amqp091.decoding import decode
from dedup.amqp091.properties import join

#: What a message says: where -> its type and value.
Facts = dict[str, tuple[str, Any]]


@frozen
class Row:
    """
    One thing that a message may carry.
    """

    name: str
    #: Encodes the message of a number: raw properties and body, or a message of proton.
    make: Callable[[int], Any]
    value: Any = None


# -- what is written over 0.9.1 -------------------------------------------------------------------

_TYPES_OLD: Final = {
    "t": "bool", "b": "int8", "B": "uint8", "s": "int16", "u": "uint16", "I": "int32", "i": "uint32", "l": "int64", "f": "float",
    "d": "double", "D": "decimal", "S": "long string", "x": "bytes", "T": "timestamp", "V": "void", "A": "list", "F": "table",
}  # fmt: skip
_LIST: Final = b"\0\0\0\x05I\0\0\0\x07"
_TABLE: Final = b"\0\0\0\x07\x01kI\0\0\0\x07"


def _old(sequence: int, flag: int = 0, encoded: bytes = b"", header: bytes = b"") -> tuple[bytes, bytes]:
    """A message of 0.9.1 with one more property, or one more header."""
    entries = b"\x0ededup-sequencel" + sequence.to_bytes(8, "big") + header
    given = {1 << 13: len(entries).to_bytes(4, "big") + entries, 1 << 12: b"\x02", 1 << 3: b"\x01p"}
    return join({**given, **({flag: encoded} if flag else {})}), b"body"


def decimal(sequence: int) -> tuple[bytes, bytes]:
    """Return raw properties with a header that is a decimal, which RabbitMQ cannot translate to 1.0, and a body."""
    return _old(sequence, header=b"\x01vD\x02\0\0\0\x96")


def _property(name: str, flag: int, encoded: bytes, value: Any) -> Row:
    return Row(f"`{name}`", partial(_old, flag=1 << flag, encoded=encoded), value)


def _header(kind: str, encoded: bytes, value: Any, name: bytes = b"v", about: str = "") -> Row:
    field = bytes((len(name),)) + name + kind.encode() + encoded
    return Row(f"header, {_TYPES_OLD[kind]}{about}", partial(_old, header=field), value)


OLD: Final = (
    Row("nothing", _old),
    _property("content_type", 15, b"\x0atext/plain", "text/plain"),
    _property("content_encoding", 14, b"\x04gzip", "gzip"),
    Row("`delivery_mode` 1", partial(_old, flag=1 << 12, encoded=b"\x01"), 1),
    _property("priority", 11, b"\x05", 5),
    _property("correlation_id", 10, b"\x02c1", "c1"),
    _property("reply_to", 9, b"\x07answers", "answers"),
    _property("expiration", 8, b"\x073600000", "3600000"),
    _property("message_id", 7, b"\x02m1", "m1"),
    _property("timestamp", 6, (1_700_000_000).to_bytes(8, "big"), 1_700_000_000),
    _property("type", 5, b"\x05order", "order"),
    _property("user_id", 4, b"\x05guest", "guest"),
    _header("t", b"\x01", True),
    _header("b", b"\xf9", -7),
    _header("B", b"\x07", 7),
    _header("s", b"\xff\xf9", -7),
    _header("u", b"\x00\x07", 7),
    _header("I", b"\0\0\0\x07", 7),
    _header("i", b"\0\0\0\x07", 7),
    _header("l", b"\0\0\0\x01\0\0\0\x07", 2**32 + 7),
    _header("f", b"\x3f\xc0\0\0", 1.5),
    _header("d", b"\x3f\xf8\0\0\0\0\0\0", 1.5),
    _header("D", b"\x02\0\0\0\x96", "1.50"),
    _header("S", b"\0\0\0\x04text", "text"),
    _header("x", b"\0\0\0\x02\x00\xff", b"\x00\xff"),
    _header("T", (1_700_000_000).to_bytes(8, "big"), 1_700_000_000),
    _header("V", b"", None),
    _header("A", _LIST, [7]),
    _header("F", _TABLE, {"k": 7}),
    _header("S", b"\0\0\0\x04text", "text", b"x-v", ", named `x-...`"),
    _header("A", _LIST, [7], b"x-v", ", named `x-...`"),
)

# -- what is written over 1.0 ---------------------------------------------------------------------

_NAMES_NEW: Final = {
    "bool": "boolean", "int": "long", "int32": "int", "str": "string", "float": "double", "float32": "float", "bytes": "binary",
    "memoryview": "binary", "NoneType": "null", "UUID": "uuid", "dict": "map", "AnnotationDict": "map", "Array": "array",
}  # fmt: skip
_FIELDS: Final = (
    "durable", "priority", "ttl", "id", "user_id", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "expiry_time", "creation_time", "group_sequence", "reply_to_group_id",
)  # fmt: skip
_SHOWN: Final = {"id": "message-id", "expiry_time": "absolute-expiry-time"}


def _type(value: Any) -> str:
    name = type(value).__name__
    return _NAMES_NEW.get(name, name)


def _new(sequence: int, **more: Any) -> Message:
    """A message of 1.0 with something more in it."""
    message = Message(body=b"body", inferred=True, durable=True, group_id="p")
    for name, value in more.items():
        setattr(message, name, value)
    message.properties = {"dedup-sequence": sequence, **more.get("properties", {})}
    return message


def _field(name: str, value: Any, about: str = "") -> Row:
    return Row(f"{_field_shown(name)}{about}", partial(_new, **{name: value}), value)


def _field_shown(name: str) -> str:
    return f"`{_SHOWN.get(name, name.replace('_', '-'))}`"


def _app(value: Any) -> Row:
    return Row(f"application property, {_type(value)}", partial(_new, properties={"v": value}), value)


def _annotation(value: Any) -> Row:
    made = partial(_new, annotations={symbol("x-opt-v"): value})
    return Row(f"annotation `x-opt-...`, {_type(value)}", made, value)


def _body(about: str, value: Any, *, inferred: bool) -> Row:
    return Row(f"body, {about}", partial(_new, body=value, inferred=inferred), value)


_UUID: Final = UUID(int=9)
_MS: Final = 1_700_000_000_123
NEW: Final = (
    Row("nothing", _new),
    _field("durable", False, " false"),
    _field("priority", 5),  # above the default: a queue that goes by it must not leave it for the end
    _field("ttl", 3600.0),
    _field("id", "m1", ", string"),
    _field("id", proton.ulong(2**64 - 1), ", ulong"),
    _field("id", _UUID, ", uuid"),
    _field("id", b"\x00\xff", ", binary"),
    _field("user_id", b"guest"),
    _field("subject", "a subject"),
    _field("reply_to", "/queues/answers"),
    _field("correlation_id", "c1", ", string"),
    _field("correlation_id", _UUID, ", uuid"),
    _field("content_type", "text/plain"),
    _field("content_encoding", "gzip"),
    _field("expiry_time", 4_000_000_000.0),
    _field("creation_time", _MS / 1000),
    _field("group_sequence", 7),
    _field("reply_to_group_id", "others"),
    _app(None),
    _app(True),
    _app(proton.ubyte(7)),
    _app(proton.byte(-7)),
    _app(proton.ushort(7)),
    _app(proton.short(-7)),
    _app(proton.uint(7)),
    _app(proton.int32(7)),
    _app(proton.ulong(7)),
    Row("application property, ulong above 2^63", partial(_new, properties={"v": proton.ulong(2**64 - 1)}), 2**64 - 1),
    _app(2**32 + 7),
    _app(proton.float32(1.5)),
    _app(1.5),
    _app(proton.decimal64(0x31C0000000000096)),
    _app(proton.char("c")),
    _app(proton.timestamp(_MS)),
    _app(_UUID),
    _app(b"\x00\xff"),
    _app("text"),
    _app(symbol("text")),
    _annotation("text"),
    _annotation([proton.int32(7)]),
    _annotation({"k": proton.int32(7)}),
    _annotation(Array(proton.UNDESCRIBED, Data.INT, 7)),
    _body("amqp-value string", "text", inferred=False),
    _body("amqp-value map", {"k": proton.int32(7)}, inferred=False),
    _body("amqp-sequence", ["text"], inferred=True),
)  # fmt: skip
ROWS: Final = {"old": OLD, "new": NEW}


# -- what is read ---------------------------------------------------------------------------------

#: What brokers add, and what every message of these has.
_NOT_TOLD: Final = re.compile(
    r"(dedup-sequence|dedup-possible-duplicate|x-stream-offset|x-exchange|x-routing-key|x-opt-.*-count|x-.*-count)$"
)


def told_old(raw: bytes, body: bytes) -> tuple[int, Facts]:
    """Return the number of a message of 0.9.1, and what it says."""
    read = decode(raw)
    facts: Facts = {f"`{name}`": ("", value) for name, value in read.properties.items() if name != "app_id"}
    for name, value in read.headers.items():
        if not _NOT_TOLD.match(name):
            tag = chr(raw[raw.index(bytes((len(name),)) + name.encode()) + 1 + len(name)])
            facts[f"header {name}"] = (_TYPES_OLD[tag], value)
    facts["body"] = ("", body)
    return int(read.headers["dedup-sequence"]), facts


def told_new(message: Message) -> tuple[int, Facts]:
    """Return the number of a message of 1.0, and what it says."""
    facts: Facts = {}
    for name in _FIELDS:
        if (value := getattr(message, name)) not in (None, 0, "", b""):
            typed = name in ("id", "correlation_id")
            facts[_field_shown(name)] = (_type(value) if typed else "", _plain(value))
    for kind, given in (("annotation", message.annotations), ("application property", message.properties)):
        for name, value in (given or {}).items():
            if not _NOT_TOLD.match(name):
                facts[f"{kind} {name}"] = (_type(value), _plain(value))
    facts["body"] = ("" if message.inferred else _type(message.body), _plain(message.body))
    return int(message.properties["dedup-sequence"]), facts


def _plain(value: Any) -> Any:
    if isinstance(value, Array):
        return list(value.elements)
    return bytes(value) if isinstance(value, memoryview) else value
