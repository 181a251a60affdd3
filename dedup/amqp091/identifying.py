"""Tell messages without a stamp by their message id, or a header set for a like purpose, and returning ones by their count."""

from __future__ import annotations

from typing import Final

from dedup.amqp091.dead_letters import history_of
from dedup.amqp091.properties import MESSAGE_ID, amend, header_value, read_integer, short_text
from dedup.core.identity import RETURNS_HEADER
from dedup.core.message_ids import is_message_key, message_key
from dedup.core.returns import Reentry, counted, last_death_s, reentry

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


def return_of(raw: bytes, known_by: tuple[str, int], target: str) -> tuple[Reentry, bytes] | None:
    """
    Return what tells copies of a message's way back from its next one, and the properties that it goes on with; total.

    Args:
        raw: The encoded properties.
        known_by: Publisher id, or the key of a message id, and the sequence.
        target: The queue it died in.

    Returns:
        None when the count that it carries cannot be: it goes on as it is.
    """
    value = header_value(raw, RETURNS_HEADER.encode())
    returns = 0 if value is None else counted(read_integer(value))
    if returns is None:
        return None
    # A message id may be a property: whoever takes headers off a message leaves it.
    died_s = last_death_s(history_of(raw), target) if is_message_key(known_by[0]) else 0.0
    changed = amend(raw, headers=[(RETURNS_HEADER, returns + 1)])
    return reentry(*known_by, returns, died_s=died_s), changed
