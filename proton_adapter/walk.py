"""
Walk through the encoded values of a message, in linear time: each states its own length. Only :func:`check` looks into what is
nested, and no deeper than a limit.

What does not fit raises: :class:`Unreadable` with a slug, or IndexError or struct.error where the bytes end too early. Encodings:
AMQP 1.0, part 1, section 1.6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x72, 0x73, 0x74
DATA, VALUE, FOOTER = 0x75, 0x77, 0x78
BODY: Final = range(DATA, VALUE + 1)
#: Sections by their symbolic descriptor, which is as good as the number.
_SYMBOLS: Final = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": 0x71,
    b"amqp:message-annotations:map": ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION_PROPERTIES,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": 0x76,
    b"amqp:amqp-value:*": VALUE,
    b"amqp:footer:map": FOOTER,
}
#: Constructors of integers: their format behind the constructor, or their value when they have none (part 1, section 1.6).
_INTEGERS: Final[dict[int, struct.Struct]] = {
    code: struct.Struct(">" + kind)
    for code, kind in {
        0x50: "B",
        0x51: "b",
        0x52: "B",
        0x53: "B",
        0x54: "b",
        0x55: "b",
        0x60: "H",
        0x61: "h",
        0x70: "I",
        0x71: "i",
        0x80: "Q",
        0x81: "q",
    }.items()
}
_ZEROS: Final = (0x43, 0x44)
_TRUE, _BOOLEAN = 0x41, 0x56
_DESCRIBED: Final = 0
_LISTS, _MAPS = (0x45, 0xC0, 0xD0), (0xC1, 0xD1)
#: Where an array has the encoding of its items.
_ARRAYS: Final = {0xE0: 3, 0xF0: 9}
STRINGS, SYMBOLIC, BINARIES = (0xA1, 0xB1), (0xA3, 0xB3), (0xA0, 0xB0)
#: Encodings of values that hold no others.
SIMPLE: Final = frozenset(
    {0x40, *range(0x41, 0x45), *range(0x50, 0x57), 0x60, 0x61, *range(0x70, 0x75), *range(0x80, 0x85), 0x94, 0x98}
    | {*STRINGS, *SYMBOLIC, *BINARIES}
)  # fmt: skip
_length = struct.Struct(">I").unpack_from


#: Fields of the longest list, the properties (part 3, section 3.2.4).
_FIELDS_MAX: Final = 13
#: How deep a value is nested that :func:`check` lets pass; no broker and no client minds.
DEPTH_MAX: Final = 100


class Unreadable(Exception):  # noqa: N818 - it never leaves this package
    """
    What is wrong with the sections, as a slug.
    """


class Section(NamedTuple):
    """
    Where one section is.
    """

    code: int
    start: int
    #: Where its value begins, behind the descriptor.
    value: int
    end: int


def sections(raw: bytes) -> Iterator[Section]:
    """
    Yield the sections of a message.
    """
    at = 0
    while at < len(raw):
        if raw[at] != 0:
            raise Unreadable("sections-kind")
        value = after(raw, at + 1)
        code = integer(raw, at + 1)
        if code is None:
            code = _SYMBOLS.get(content(raw, at + 1, SYMBOLIC) or b"")
        if code is None or not HEADER <= code <= FOOTER:
            raise Unreadable("sections-kind")
        end = after(raw, value)
        yield Section(code, at, value, end)
        at = end


def after(raw: bytes, at: int) -> int:
    """
    Return where the value at *at* ends.

    Raises:
        IndexError, struct.error: not in *raw*.
    """
    pending = 1
    while pending:
        code = raw[at]
        at += 1
        if code == 0:
            pending += 1  # a descriptor, and the value it describes
            continue
        width = code >> 4
        if width < 4:
            raise Unreadable("sections-kind")
        if width < 0xA:
            at += (0, 1, 2, 4, 8, 16)[width - 4]
        elif width % 2 == 0:
            at += 1 + raw[at]
        else:
            at += 4 + int(_length(raw, at)[0])
        pending -= 1
    if at > len(raw):
        raise IndexError(at)
    return at


def check(raw: bytes, at: int, depth: int = 0) -> int:
    """
    Return where the value at *at* ends, if it is one of AMQP 1.0 with all that is in it, and not nested without end.
    """
    if depth > DEPTH_MAX:
        raise Unreadable(f"a value is nested more than {DEPTH_MAX} deep")
    code, end = raw[at], after(raw, at)
    if code == _DESCRIBED:
        if raw[at + 1] == _DESCRIBED:  # RabbitMQ takes exponential time for a chain of them
            raise Unreadable("a descriptor is described")
        return check(raw, check(raw, at + 1, depth + 1), depth + 1)
    if code in _LISTS or code in _MAPS:
        item, _, count = items(raw, at)
        is_odd = code in _MAPS and count % 2
        while item < end and count:
            item, count = check(raw, item, depth + 1), count - 1
        if item != end or count or is_odd:
            raise Unreadable("a list or map does not hold what it says")
    elif code in _ARRAYS:
        if raw[at + _ARRAYS[code]] not in SIMPLE:
            raise Unreadable("an array of what is no simple type")
    elif code not in SIMPLE:
        raise Unreadable(f"a value of the unknown type 0x{code:02x}")
    return end


def items(raw: bytes, at: int) -> tuple[int, int, int]:
    """
    Return where the items of the list or map at *at* begin and end, and how many they say they are.
    """
    code, end = raw[at], after(raw, at)
    if code == _LISTS[0]:
        return at + 1, end, 0
    if code >> 4 == 0xC:
        return at + 3, end, raw[at + 2]
    return at + 9, end, int(_length(raw, at + 5)[0])


def fields(raw: bytes, section: Section | None) -> list[int]:
    """
    Return where each field of a list begins.
    """
    if section is None:
        return []
    if raw[section.value] not in _LISTS:
        raise Unreadable("sections-kind")
    at, end, count = items(raw, section.value)
    if count > _FIELDS_MAX:
        raise Unreadable("sections-kind")
    places = []
    for _ in range(count):
        places.append(at)
        at = after(raw, at)
    if at != end:
        raise Unreadable("sections-truncated")
    return places


def entries(raw: bytes, section: Section | None, keys: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """
    Yield the name of each entry of a map, and where its value begins; a key of another kind has no name.
    """
    if section is None:
        return
    if raw[section.value] not in _MAPS:
        raise Unreadable("sections-kind")
    at, end, count = items(raw, section.value)
    if count % 2:
        raise Unreadable("sections-kind")
    while at < end:
        value = after(raw, at)
        yield content(raw, at, keys) or b"", value
        at = after(raw, value)
        count -= 2
    if at != end or count:
        raise Unreadable("sections-truncated")


def content(raw: bytes, at: int, kinds: Sequence[int]) -> bytes | None:
    """
    Return the bytes of the text or binary at *at*; None when it is of none of these *kinds*.
    """
    if raw[at] not in kinds:
        return None
    return raw[at + (2 if raw[at] >> 4 == 0xA else 5) : after(raw, at)]


def variable(raw: bytes, fields: Sequence[int], index: int, kinds: Sequence[int]) -> bytes | None:
    """
    Return the bytes of a field of a list; None when it is not there, or of none of these *kinds*.
    """
    return content(raw, fields[index], kinds) if len(fields) > index else None


def integer(raw: bytes, at: int) -> int | None:
    """
    Return the integer at *at*, whatever its size; None when it is of another kind.
    """
    code = raw[at]
    if code in _ZEROS:
        return 0
    kind = _INTEGERS.get(code)
    return None if kind is None else int(kind.unpack_from(raw, at + 1)[0])


def boolean(raw: bytes, at: int) -> bool:
    """
    Say whether the value at *at* is the boolean true.
    """
    return raw[at] == _TRUE or (raw[at] == _BOOLEAN and raw[at + 1] == 1)
