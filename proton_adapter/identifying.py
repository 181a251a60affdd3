"""Tell messages without a stamp by their message id, or by an application property, with the keys that AMQP 0.9.1 gives them."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from dedup.core.message_ids import message_key
from proton_adapter import walk
from proton_adapter.sections import Scanned

#: The place of message-id in the list of properties (part 3, section 3.2.4).
_MESSAGE_ID: Final = 0
_TEXTS: Final = walk.STRINGS + walk.SYMBOLIC + walk.BINARIES
_NULL, _UUID = 0x40, 0x98
_BOOLEANS: Final = (0x41, 0x42, 0x56)
#: What AMQP 0.9.1 calls values of these encodings, whose bytes are the same there.
_KINDS: Final = {0x72: b"f", 0x82: b"d"}
_INTEGER, _BOOLEAN = b"l", b"t"


def key_of(raw: bytes, scanned: Scanned, header: str) -> str | None:
    """
    Return the key of a message's id; None when it has none: not set, empty, or null. Total where the sections could be read.

    The property counts as RabbitMQ would write it for a reader of AMQP 0.9.1: a number by its digits, a UUID as a URN. In an
    application property a number is one id whatever its type, and another one than the text that spells it; texts, symbols and
    binaries are one id if their bytes are the same. Values of other types are ids by their encoding.

    Args:
        header: The name of the application property that holds the id, or else of the message annotation, which RabbitMQ
            makes of a header of AMQP 0.9.1 whose name begins with ``x-``; empty: it is the property message-id.
    """
    places = {section.code: section for section in scanned.sections if section.code not in walk.BODY}
    if not header:
        fields = walk.fields(raw, places.get(walk.PROPERTIES))
        return _key_of_property(raw, fields[_MESSAGE_ID]) if fields else None
    for code, names in (
        (walk.APPLICATION_PROPERTIES, walk.STRINGS),
        (walk.ANNOTATIONS, walk.STRINGS + walk.SYMBOLIC),
    ):
        for name, value in walk.entries(raw, places.get(code), names):
            if name == header.encode():
                return _key_of_value(raw, value)
    return None


def _key_of_property(raw: bytes, at: int) -> str | None:
    text = walk.content(raw, at, _TEXTS)
    if text is None and (number := walk.integer(raw, at)) is not None:
        text = b"%d" % number
    if text is None and raw[at] == _UUID:
        text = UUID(bytes=raw[at + 1 : at + 17]).urn.encode()
    return message_key(text) if text else None


def _key_of_value(raw: bytes, at: int) -> str | None:
    code = raw[at]
    if code == _NULL:
        return None
    if (text := walk.content(raw, at, _TEXTS)) is not None:
        return message_key(text) if text else None
    if (number := walk.integer(raw, at)) is not None:
        return message_key(b"%d" % number, kind=_INTEGER)
    if code in _BOOLEANS:
        return message_key(bytes((walk.boolean(raw, at),)), kind=_BOOLEAN)
    kind = _KINDS.get(code) or b"amqp10 %d" % code
    return message_key(raw[at + 1 : walk.after(raw, at)], kind=kind)
