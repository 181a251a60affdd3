"""Tell messages without a stamp by their message id, or by a header that their publishers set for a like purpose."""

from __future__ import annotations

from typing import Final

from dedup.amqp091.properties import MESSAGE_ID, header_value, read_integer, short_text
from dedup.core.message_ids import message_key

#: Texts, as publishers' libraries take them: one of bytes and one of characters are the same id.
_TEXTS: Final = b"Sx"
_INTEGER: Final = b"l"
_NOTHING: Final = b"V"


def key_of(raw: bytes, header: str) -> str | None:
    """
    Return the key of a message's id; None when it has none: not set, empty, or a header of no value. Total.

    A number is one id whatever its size on the wire, and another one than the text that spells it. Values of other types
    (floats, tables, arrays, ...) are ids by their bytes.

    Args:
        raw: The encoded properties.
        header: The name of the header that holds the id; empty: it is the property message-id.
    """
    if not header:
        text = short_text(raw, MESSAGE_ID)
        return None if text is None else message_key(text)
    value = header_value(raw, header.encode())
    if value is None or value[:1] == _NOTHING:
        return None
    if value[0] in _TEXTS:
        return message_key(value[5:]) if len(value) > 5 else None
    if (number := read_integer(value)) is not None:
        return message_key(b"%d" % number, kind=_INTEGER)
    return message_key(value[1:], kind=value[:1])
