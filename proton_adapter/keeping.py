"""
Read back the sections that an outbox kept, which anybody may have written there.

What is kept are the sections before the body, of a message without address and stamp: header, message annotations, properties
and application properties (AMQP 1.0, part 3, section 3.2). They are cut open, not decoded, so what is not ours stays as it is.
:func:`unseal` is total: any bytes give an envelope or an error, in linear time. What it lets through is well-formed; whether the
broker wants it is for the broker to say.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from dedup.core.identity import PUBLISHER_HEADER, RECEIPT_HEADER, RESERVED_HEADERS
from dedup.errors import InvalidMessageError
from proton_adapter import encoding, walk
from proton_adapter.encoding import NULL
from proton_adapter.stamping import Envelope, seal
from proton_adapter.walk import ANNOTATIONS, APPLICATION_PROPERTIES, HEADER, PROPERTIES, Section, Unreadable

_UINTS, _ULONGS, _BOOLEANS = (0x43, 0x52, 0x70), (0x44, 0x53, 0x80), (0x41, 0x42, 0x56)
_TIMES, _UUIDS = (0x83,), (0x98,)
_IDS: Final = walk.STRINGS + walk.BINARIES + _ULONGS + _UUIDS
#: What each field may be beside null. Header: durable, priority, ttl, first-acquirer, delivery-count (section 3.2.1).
_HEADER_KINDS: Final = (_BOOLEANS, (0x50,), _UINTS, _BOOLEANS, _UINTS)
#: Properties: message-id, user-id, to, subject, reply-to, correlation-id, content-type, content-encoding, absolute-expiry-time,
#: creation-time, group-id, group-sequence, reply-to-group-id (section 3.2.4).
_PROPERTY_KINDS: Final = (
    *(_IDS, walk.BINARIES, walk.STRINGS, walk.STRINGS, walk.STRINGS, _IDS, walk.SYMBOLIC, walk.SYMBOLIC),
    *(_TIMES, _TIMES, walk.STRINGS, _UINTS, walk.STRINGS),
)
_CODECS: Final = dict.fromkeys(walk.STRINGS, "utf-8") | dict.fromkeys(walk.SYMBOLIC, "ascii")
_TO, _GROUP_ID = 2, 10
_SECTIONS: Final = (HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES)
_PUBLISHER: Final = PUBLISHER_HEADER.encode()
#: What a publisher puts in when it seals.
_SEALED: Final = frozenset({_PUBLISHER, RECEIPT_HEADER.encode()})
_RESERVED: Final = frozenset(name.encode() for name in RESERVED_HEADERS)


def unseal(raw: bytes, publisher_id: str, *, sealed: bool) -> Envelope:
    """
    Return the envelope of sections that were kept.

    Args:
        raw: What :attr:`Envelope.unstamped` or :func:`proton_adapter.stamping.unstamped` gave, or another client's encoded
            sections; nothing stands for a message without any.
        sealed: The publisher id is in them; else it is put in, and everything else stays as it is.

    Raises:
        InvalidMessageError: they cannot be read, or carry a name or an id that is not theirs to carry.
    """
    if not raw:
        return seal(None, publisher_id)
    try:
        return _cut(raw, publisher_id) if sealed else _cut(raw, None).named(publisher_id)
    except Unreadable as error:
        raise InvalidMessageError(
            f"the properties cannot be sent over AMQP 1.0 as they are: {error}"
        ) from None
    except (IndexError, struct.error):
        raise InvalidMessageError("the properties cannot be read as AMQP 1.0: they end too early") from None


def _cut(raw: bytes, publisher_id: str | None) -> Envelope:
    """
    Cut encoded sections open where publisher id, address and stamp go. What is sent is durable, whatever they say.

    Args:
        publisher_id: The id that is in them; None: there is none.
    """
    places = _sections(raw)
    _, priority, ttl, *_ = _fields(raw, places.get(HEADER), "header", _HEADER_KINDS)
    fields = _fields(raw, places.get(PROPERTIES), "properties", _PROPERTY_KINDS)
    annotations, section = places.get(ANNOTATIONS), places.get(APPLICATION_PROPERTIES)
    _entries(raw, annotations, "annotations", walk.SYMBOLIC, None)
    found = _entries(raw, section, "application properties", walk.STRINGS, walk.SIMPLE)
    if taken := found.keys() & _RESERVED - (frozenset() if publisher_id is None else _SEALED):
        raise Unreadable(f"application property {min(taken).decode()!r} belongs to dedup")
    named = found.get(_PUBLISHER)
    if publisher_id is not None:
        name = fields[_GROUP_ID] if named is None else raw[named : walk.after(raw, named)]
        if walk.content(name, 0, walk.STRINGS) != publisher_id.encode():
            raise Unreadable("they name another publisher")
    entries, count = b"", 0
    if section is not None:
        at, end, count = walk.items(raw, section.value)
        entries = raw[at:end]
    return Envelope(
        head=encoding.section(HEADER, encoding.compound_list(encoding.boolean(True) + priority + ttl, 3))
        + (b"" if annotations is None else raw[annotations.start : annotations.end]),
        before_address=b"".join(fields[:_TO]),
        after_address=b"".join(fields[_TO + 1 : _GROUP_ID]),
        group_id=fields[_GROUP_ID],
        # Beside a group id that is the publisher id, it is the message's own.
        group_sequence=None if publisher_id is not None and named is None else fields[_GROUP_ID + 1],
        tail=fields[_GROUP_ID + 2],
        entries=entries,
        entry_count=count,
    )


def _sections(raw: bytes) -> dict[int, Section]:
    """
    Return where each section is, if they are those that are kept, in their order.
    """
    found: dict[int, Section] = {}
    try:
        sections = list(walk.sections(raw))
    except (Unreadable, IndexError, struct.error):
        raise Unreadable("they are not encoded for AMQP 1.0; for 0.9.1, perhaps") from None
    for section in sections:
        if section.code not in _SECTIONS or section.code <= max(found, default=0):
            raise Unreadable(f"a section 0x{section.code:02x} has no place there")
        found[section.code] = section
    return found


def _fields(raw: bytes, section: Section | None, what: str, kinds: Sequence[Sequence[int]]) -> list[bytes]:
    """
    Return each field as it is encoded, as many as there are *kinds*.
    """
    places = walk.fields(raw, section)
    if len(places) > len(kinds):
        raise Unreadable(f"too many fields in the {what}")
    fields = []
    for number, (at, kind) in enumerate(zip(places, kinds, strict=False)):
        if raw[at] != NULL[0] and raw[at] not in kind:
            raise Unreadable(f"field {number} of the {what} is of the wrong type")
        _check_text(raw, at, what)
        fields.append(raw[at : walk.after(raw, at)])
    return fields + [NULL] * (len(kinds) - len(fields))


def _entries(
    raw: bytes, section: Section | None, what: str, keys: Sequence[int], values: frozenset[int] | None
) -> dict[bytes, int]:
    """
    Return the names in a map, and where the value of each is; both are of the types they may be, None: any value.
    """
    found: dict[bytes, int] = {}
    at = walk.items(raw, section.value)[0] if section is not None else 0
    for name, value in walk.entries(raw, section, keys):
        if raw[at] not in keys or name in found:
            raise Unreadable(f"a name in the {what} is of the wrong type, or twice there")
        if values is not None and raw[value] not in values:
            raise Unreadable(f"a value in the {what} is of a type that has no place there")
        _check_text(raw, at, what)
        _check_text(raw, value, what)
        found[name] = value
        at = walk.check(raw, value)
    return found


def _check_text(raw: bytes, at: int, what: str) -> None:
    if (codec := _CODECS.get(raw[at])) is None:
        return
    try:
        (walk.content(raw, at, (raw[at],)) or b"").decode(codec)
    except UnicodeDecodeError:
        raise Unreadable(f"a text in the {what} is not {codec.upper()}") from None
