"""
Read and change a message's properties in their encoded form, so that what is not ours passes byte for byte.

Raw properties are what a content header carries behind class, weight and body size: 16 property flags, then the
properties that are set, in the order of their flags. Headers are one of them: a table of (name, kind, value) that
states its own length. :func:`scan` and :func:`amend` are total: any bytes give an answer, in linear time and without
recursion (a nested table states its length and is stepped over), because any user of the broker can write them.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from dedup.core.identity import (
    ASK_HEADER,
    ATTEMPT_HEADER,
    FIRST_SENT_HEADER,
    MARK_HEADER,
    PUBLISHER_HEADER,
    PUBLISHER_ID_BYTES_MAX,
    REASON_HEADER,
    RECEIPT_HEADER,
    SEQUENCE_HEADER,
    SEQUENCE_MAX,
    UNREADABLE_HEADER,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 1 << 15, 1 << 14, 1 << 13, 1 << 12
CORRELATION_ID: Final = 1 << 10
MESSAGE_ID, TIMESTAMP, USER_ID, APP_ID = 1 << 7, 1 << 6, 1 << 4, 1 << 3
REPLY_TO: Final = 1 << 9
EXPIRATION = 1 << 8
#: "More flags follow": no client or broker writes it. RabbitMQ reads the list as if it were not set, and so does amend.
_MORE_FLAGS: Final = 1
#: Size of a property that is a short string, and of the headers.
TEXT, TABLE = 0, -1
#: Every property in wire order: its flag, pika's name for it, and its size in bytes.
PROPERTIES: Final = tuple(
    (1 << bit, name, {"headers": TABLE, "delivery_mode": 1, "priority": 1, "timestamp": 8}.get(name, TEXT))
    for bit, name in zip(range(15, 1, -1), (
        "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
        "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
    ), strict=True)
)  # fmt: skip

#: Bytes of a field value by its kind, kind byte included; 0 is no kind, -1 is "a length in four bytes, then that many".
_SIZES: Final = tuple(
    next((size for kinds, size in ((b"V", 1), (b"tbB", 2), (b"suU", 3), (b"Iif", 5), (b"D", 6), (b"lLdT", 9), (b"SxAF", -1)) if kind in kinds), 0)
    for kind in range(256)
)  # fmt: skip
#: Every integer kind, and what :mod:`struct` calls it. RabbitMQ reads ``L`` as signed too.
INTEGERS: Final = {"b": "b", "B": "B", "s": "h", "U": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q"}
_INTEGER_READERS: Final[dict[int, Callable[[bytes, int], tuple[int]]]] = {
    ord(kind): struct.Struct(">" + code).unpack_from for kind, code in INTEGERS.items()
}
_length = struct.Struct(">I").unpack_from
_flags = struct.Struct(">H").unpack_from

_SEQUENCE, _PUBLISHER, _ATTEMPT = SEQUENCE_HEADER.encode(), PUBLISHER_HEADER.encode(), ATTEMPT_HEADER.encode()
_FIRST_SENT: Final = FIRST_SENT_HEADER.encode()
_DEATHS: Final = b"x-death"
_STAMP: Final = {
    _SEQUENCE: "sequence",
    _PUBLISHER: "publisher",
    _ATTEMPT: "attempt",
    _FIRST_SENT: "first-sent",
}
_RESERVED: Final = frozenset({MARK_HEADER.encode(), REASON_HEADER.encode()})
_ASK, _RECEIPT = ASK_HEADER.encode(), RECEIPT_HEADER.encode()
_NOTICED: Final = frozenset({*_STAMP, *_RESERVED, _DEATHS, _ASK, _RECEIPT})

#: Headers that only the shim may set; a message that comes in with them loses them.
SHIM_HEADERS: Final = frozenset({MARK_HEADER, REASON_HEADER})
HeaderValue = bool | int | str | bytes


class Stamp(NamedTuple):
    """
    What a message's properties say about who published it.

    Publisher and sequence are both set, or neither: then the message is unstamped, or *fault* says what is wrong with it. A
    question has a publisher only.
    """

    publisher: str | None
    sequence: int | None
    attempt: int = 1
    #: When it was sent first, by the publisher's clock; unix milliseconds, 0: it does not say.
    first_sent_ms: int = 0
    #: Why the properties or the stamp cannot be trusted, as a slug: ``sequence-kind``, ``headers-truncated``, ...
    fault: str | None = None
    #: The properties must be amended before they are forwarded: they carry a header that only the shim may set, or a
    #: user id, which the broker would compare with the shim's own (406).
    reserved: bool = False
    #: Where the value of ``x-death`` is in the raw properties, kind byte first.
    deaths: slice | None = None
    #: The user id: RabbitMQ lets a message in only if it is the publisher's own, or absent.
    user: bytes | None = None
    #: What the header ``dedup-ask`` says: this is a question.
    ask: bytes | None = None
    #: The publisher wants to be told what becomes of it.
    wants_receipt: bool = False


def scan(raw: bytes) -> Stamp:
    """
    Read the stamp; total.

    A message without a sequence, or without an id, is unstamped whatever else it holds: an ``app_id`` alone belongs to
    somebody else and is not judged. ``dedup-publisher`` goes before ``app_id``.
    """
    found: dict[bytes, int] = {}
    try:
        app_id, user, fault = _scan_list(raw, found)
        reserved = user is not None or not _RESERVED.isdisjoint(found)
        deaths = slice(found[_DEATHS], _after(raw, found[_DEATHS])) if _DEATHS in found else None
    except (IndexError, struct.error):
        return Stamp(None, None, fault="properties-truncated", reserved=True)
    if fault:
        return Stamp(None, None, 1, 0, fault, reserved, deaths, user)
    at, named = found.get(_SEQUENCE), found.get(_PUBLISHER)
    if _ASK in found:
        return _scan_question(
            raw, found, app_id, Stamp(None, None, reserved=reserved, deaths=deaths, user=user)
        )
    if at is None or (app_id is None and named is None):
        return Stamp(None, None, 1, 0, None, reserved, deaths, user)
    sequence, fault = _read_number(raw, at, "sequence")
    attempt, first_sent_ms = 1, 0
    if not fault and _ATTEMPT in found:
        attempt, fault = _read_number(raw, found[_ATTEMPT], "attempt")
    if not fault and _FIRST_SENT in found:
        first_sent_ms, fault = _read_number(raw, found[_FIRST_SENT], "first-sent")
    if not fault and named is not None:
        app_id, fault = _read_text(raw, named, "publisher")
    if not fault and app_id is not None:
        publisher, fault = _read_publisher(app_id)
    if fault:
        return Stamp(None, None, 1, 0, fault, reserved, deaths, user)
    wants_receipt = _RECEIPT in found and raw[found[_RECEIPT]] == ord("t") and raw[found[_RECEIPT] + 1] != 0
    return Stamp(
        publisher, sequence, attempt, first_sent_ms, None, reserved, deaths, user, wants_receipt=wants_receipt
    )


def _scan_question(raw: bytes, found: dict[bytes, int], app_id: bytes | None, stamp: Stamp) -> Stamp:
    """
    Complete the *stamp* of a question, or say what is wrong with it.
    """
    if _SEQUENCE in found:
        return stamp._replace(fault="ask-with-sequence")
    ask, fault = _read_text(raw, found[_ASK], "ask")
    if not fault and _PUBLISHER in found:
        app_id, fault = _read_text(raw, found[_PUBLISHER], "publisher")
    publisher = None
    if not fault:
        publisher, fault = _read_publisher(app_id or b"")
    return stamp._replace(fault=fault) if fault else stamp._replace(publisher=publisher, ask=ask)


def _scan_list(raw: bytes, found: dict[bytes, int]) -> tuple[bytes | None, bytes | None, str | None]:
    """
    Walk the property list; note in *found* where header values of interest are; return app_id, user id and a fault.
    """
    (flags,) = _flags(raw)
    fault = "properties-flags" if flags & _MORE_FLAGS else None
    app_id = user = None
    at = 2
    for flag, size in _set_properties(flags):
        if not size:
            end = at + 1 + raw[at]
            if flag == APP_ID:
                app_id = raw[at + 1 : end]
            elif flag == USER_ID:
                user = raw[at + 1 : end]
            at = end
        elif size > 0:
            at += size
        else:
            end = at + 4 + _length(raw, at)[0]
            fault = _scan_table(raw, at + 4, end, found) or fault
            at = end
    if at != len(raw):
        fault = fault or ("properties-truncated" if at > len(raw) else "properties-trailing")
    return app_id, user, fault


@functools.cache
def _set_properties(flags: int) -> tuple[tuple[int, int], ...]:
    # At most 2^16 small tuples, and a handful in practice.
    return tuple((flag, size) for flag, _, size in PROPERTIES if flags & flag)


def _scan_table(raw: bytes, at: int, end: int, found: dict[bytes, int]) -> str | None:
    """
    Walk the headers from *at* to *end*; note in *found* where the values of interest are; return a fault.
    """
    if end > len(raw):
        return "headers-truncated"
    fault = None
    try:
        while at < end:
            value = at + 1 + raw[at]
            name = raw[at + 1 : value]
            size = _SIZES[raw[value]]
            if not size:
                return "headers-kind"
            at = value + size if size > 0 else value + 5 + _length(raw, value + 1)[0]
            if name in _NOTICED:
                if name in found and name in _STAMP:
                    fault = _STAMP[name] + "-repeated"
                found.setdefault(name, value)
    except (IndexError, struct.error):
        return "headers-truncated"
    return fault if at == end else "headers-truncated"


def _after(raw: bytes, value: int) -> int:
    size = _SIZES[raw[value]]
    return value + size if size > 0 else value + 5 + int(_length(raw, value + 1)[0])


def _read_number(raw: bytes, value: int, what: str) -> tuple[int, str | None]:
    read = _INTEGER_READERS.get(raw[value])
    if read is None:
        return 0, what + "-kind"
    (number,) = read(raw, value + 1)
    return number, None if 1 <= number <= SEQUENCE_MAX else what + "-range"


def _read_text(raw: bytes, value: int, what: str) -> tuple[bytes, str | None]:
    if raw[value] != ord("S"):
        return b"", what + "-kind"
    return raw[value + 5 : _after(raw, value)], None


def _read_publisher(name: bytes) -> tuple[str | None, str | None]:
    """
    Read a publisher id as :func:`dedup.core.identity.validate_publisher_id` would, with a slug for an error.
    """
    if not name:
        return None, "publisher-empty"
    if len(name) > PUBLISHER_ID_BYTES_MAX:
        return None, "publisher-long"
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None, "publisher-utf8"
    if not text.isprintable() and any(character < " " or character == "\x7f" for character in text):
        return None, "publisher-control"
    return text, None


def read_integer(value: bytes) -> int | None:
    """
    Return the integer in an encoded value, kind byte first; None when it is of another kind.
    """
    read = _INTEGER_READERS.get(value[0])
    return None if read is None else read(value, 1)[0]


def short_text(raw: bytes, wanted: int) -> bytes | None:
    """
    Return the short string whose flag is *wanted*; None when it is not set, or *raw* cannot be read.
    """
    return split(raw)[0].get(wanted, b"")[1:] or None


def header_value(raw: bytes, name: bytes) -> bytes | None:
    """
    Return the encoded value of the first header called *name*, kind byte first; None: there is none that can be read.
    """
    table = split(raw)[0].get(HEADERS, b"")
    return next((table[value:end] for found, value, end in _entries(table) if found == name), None)


def in_order(raw: bytes) -> bytes:
    """
    Return the properties with the headers sorted by name, those of one name as they were; total.

    So RabbitMQ 3.10 leaves them when it adds one, the count of deliveries of a quorum queue for instance.
    """
    properties, rest = split(raw)
    if table := properties.get(HEADERS):
        entries = list(_entries(table))
        ends = [4, *(end for _, _, end in entries)]
        places = sorted(range(len(entries)), key=lambda place: entries[place][0])
        properties[HEADERS] = b"".join(
            [table[:4], *(table[ends[place] : ends[place + 1]] for place in places), table[ends[-1] :]]
        )
    return join(properties) + rest


def amend(
    raw: bytes,
    *,
    headers: Sequence[tuple[str, HeaderValue]] = (),
    app_id: str | None = None,
    drop: frozenset[str] = SHIM_HEADERS,
    drop_user_id: bool = True,
) -> bytes:
    """
    Put *headers* in front of the table and set *app_id*; take headers of the same names, *drop* and the user id out.

    Everything else stays byte for byte. Total: what cannot be read is kept as it is in one binary header
    :data:`UNREADABLE_HEADER`, so that brokers and consumers can read the rest (they would refuse it for ever
    otherwise); if that may have hidden the delivery mode, the message is made persistent.
    """
    properties, unreadable = split(raw)
    gone = {name.encode() for name in drop}.union(name.encode() for name, _ in headers)
    table, rest = _filter(properties.get(HEADERS, b""), gone)
    entries = [_header(name, value) for name, value in headers]
    if unreadable or rest:
        entries.append(_header(UNREADABLE_HEADER, rest + unreadable))
    table = b"".join((*entries, table))
    if table or HEADERS in properties:
        properties[HEADERS] = struct.pack(">I", len(table)) + table
    if drop_user_id:
        properties.pop(USER_ID, None)
    if app_id is not None:
        properties[APP_ID] = _short(app_id)
    return join(properties)


def fresh(headers: Sequence[tuple[str, HeaderValue]] = (), *, app_id: str | None = None) -> bytes:
    """
    Make persistent properties with nothing but *headers* and *app_id*.
    """
    return amend(join({DELIVERY_MODE: b"\x02"}), headers=headers, app_id=app_id)


def join(properties: dict[int, bytes]) -> bytes:
    """
    Write the flags and values of *properties*, encoded values by their flag.
    """
    order = sorted(properties, reverse=True)
    return struct.pack(">H", sum(order)) + b"".join([properties[flag] for flag in order])


def split(raw: bytes) -> tuple[dict[int, bytes], bytes]:
    """
    Return the encoded properties by flag, and what follows them, or what replaces them when the list cannot be read.

    A table that claims more than there is takes all that is left.
    """
    properties: dict[int, bytes] = {}
    at = 2
    try:
        for flag, size in _set_properties(_flags(raw)[0]):
            end = at + (size if size > 0 else 1 + raw[at] if not size else 4 + _length(raw, at)[0])
            if end > len(raw):
                if flag == HEADERS:
                    return properties | {HEADERS: raw[at:], DELIVERY_MODE: b"\x02"}, b""
                break
            properties[flag] = raw[at:end]
            at = end
        else:
            return properties, raw[at:]
    except (IndexError, struct.error):
        pass
    return {DELIVERY_MODE: b"\x02"}, raw


def _filter(table: bytes, gone: set[bytes]) -> tuple[bytes, bytes]:
    """
    Return the entries of *table*, length first, without the names in *gone*; and the rest from where it is unreadable.
    """
    kept = []
    at = start = 4
    for name, _, end in _entries(table):
        if name in gone:
            kept.append(table[start:at])
            start = end
        at = end
    return b"".join((*kept, table[start:at])), table[at:]


def _entries(table: bytes) -> Iterator[tuple[bytes, int, int]]:
    """
    Yield each header of *table*, length first, that can be read: its name, where its value begins, and where it ends.
    """
    at = 4
    try:
        while at < len(table):
            value = at + 1 + table[at]
            if not _SIZES[table[value]] or (end := _after(table, value)) > len(table):
                return
            yield table[at + 1 : value], value, end
            at = end
    except (IndexError, struct.error):
        return


def _header(name: str, value: HeaderValue) -> bytes:
    if isinstance(value, bool):
        field = struct.pack(">cB", b"t", value)
    elif isinstance(value, int):
        field = struct.pack(">cq", b"l", value)
    else:
        kind, content = (b"S", value.encode()) if isinstance(value, str) else (b"x", value)
        field = struct.pack(">cI", kind, len(content)) + content
    return _short(name) + field


def _short(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("B", len(encoded)) + encoded
