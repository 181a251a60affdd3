"""Encode a message once, so that each send only puts its address and its stamp in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from proton import timestamp, ulong

from dedup.core import inputs
from dedup.core.identity import (
    ATTEMPT_HEADER,
    FIRST_SENT_HEADER,
    PUBLISHER_HEADER,
    RECEIPT_HEADER,
    RESERVED_HEADERS,
    SEQUENCE_HEADER,
)
from dedup.core.sending import Message
from dedup.errors import InvalidMessageError
from proton_adapter import encoding, walk
from proton_adapter.addresses import target_address
from proton_adapter.encoding import NULL
from proton_adapter.properties import MessageId, Properties

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA = 0x70, 0x72, 0x73, 0x74, 0x75
_SEQUENCE, _ATTEMPT = encoding.text(SEQUENCE_HEADER), encoding.text(ATTEMPT_HEADER)
_FIRST_SENT, _PUBLISHER = encoding.text(FIRST_SENT_HEADER), encoding.text(PUBLISHER_HEADER)
_RECEIPT: Final = encoding.text(RECEIPT_HEADER)
_LONG_BYTES, _UINT_BYTES = 9, 5
#: Bytes a stamp adds at the most: sequence, attempt and time, and the number in place of a null; the address comes on top.
STAMP_BYTES_MAX: Final = len(_SEQUENCE + _ATTEMPT + _FIRST_SENT) + 3 * _LONG_BYTES + _UINT_BYTES - len(NULL)
#: What is around the fields and the entries, and the null in place of an address.
_FRAME_BYTES: Final = len(
    encoding.section(PROPERTIES, encoding.compound_list(NULL, 1))
    + encoding.section(APPLICATION_PROPERTIES, encoding.compound_map(b"", 0))
)
_ULONG_MAX, _UINT_MAX, _UBYTE_MAX = 2**64 - 1, 2**32 - 1, 255
#: Fields of the properties section up to and with group-sequence (AMQP 1.0, part 3, section 3.2.4); one more follows.
_FIELDS: Final = 13


class Envelope(NamedTuple):
    """
    Encoded sections, cut open where address and stamp go.
    """

    #: Header and message annotations, whole.
    head: bytes
    #: Properties before the address: message-id and user-id.
    before_address: bytes
    #: Properties from subject to creation-time.
    after_address: bytes
    group_id: bytes
    #: A group-sequence of the user's own; None puts the message's own number there.
    group_sequence: bytes | None
    #: The property after it: reply-to-group-id.
    tail: bytes
    #: The user's entries of the application properties, and how many keys and values they are.
    entries: bytes
    entry_count: int

    @property
    def size(self) -> int:
        """
        Bytes of the sections with the largest stamp, without the address and the body.
        """
        fields = len(self.before_address) + len(self.after_address) + len(self.group_id) + len(self.tail)
        fields += len(self.group_sequence or NULL)
        return STAMP_BYTES_MAX + _FRAME_BYTES + len(self.head) + fields + len(self.entries)

    @property
    def unstamped(self) -> bytes:
        """
        The encoded sections without address and stamp, to be kept until :func:`proton_adapter.keeping.unseal`.
        """
        return self._join(NULL, self.group_sequence or NULL, b"", 0)

    def named(self, publisher_id: str) -> Envelope:
        """
        Return the same with the publisher id in it: as group id, or in an application property where the user has one.
        """
        if self.group_id == NULL:
            return self._replace(group_id=encoding.text(publisher_id), group_sequence=None)
        return self._replace(
            entries=_PUBLISHER + encoding.text(publisher_id) + self.entries, entry_count=self.entry_count + 2
        )

    def stamp(self, address: str, sequence: int, attempt: int, age_s: float) -> bytes:
        """
        Return the encoded sections before the body of this send.

        Args:
            age_s: How long ago the first one was.
        """
        group_sequence = self.group_sequence
        if group_sequence is None:
            group_sequence = encoding.uint(sequence & _UINT_MAX)
        entries, count = _SEQUENCE + encoding.long(sequence), 2
        if attempt > 1:
            first_sent_ms = int((time.time() - age_s) * 1000)
            entries += _ATTEMPT + encoding.long(attempt) + _FIRST_SENT + encoding.long(first_sent_ms)
            count += 4
        return self._join(encoding.text(address), group_sequence, entries, count)

    def _join(self, address: bytes, group_sequence: bytes, entries: bytes, count: int) -> bytes:
        fields = b"".join(
            (self.before_address, address, self.after_address, self.group_id, group_sequence, self.tail)
        )
        entries, count = entries + self.entries, count + self.entry_count
        return b"".join(
            (
                self.head,
                encoding.section(PROPERTIES, encoding.compound_list(fields, _FIELDS)),
                encoding.section(APPLICATION_PROPERTIES, encoding.compound_map(entries, count)),
            )
        )


class Content(NamedTuple):
    """
    What a message carries, for the sender to keep and for the driver to send.
    """

    envelope: Envelope
    body: bytes


def encode(message: Message) -> bytes:
    """
    Encode one send of *message*, stamped.
    """
    content: Content = message.content
    sections = content.envelope.stamp(
        target_address(message.exchange, message.routing_key),
        message.sequence,
        message.attempts,
        message.sent_at - message.first_sent_at,
    )
    return sections + encoding.section(DATA, encoding.binary(content.body))


def seal(
    properties: Properties | None,
    publisher_id: str,
    user_id: str | None = None,
    *,
    wants_receipt: bool = False,
) -> Envelope:
    """
    Encode *properties* with the publisher id in them; whatever the caller does to them later changes nothing.

    The id goes into ``group-id``, or into an application property where the caller's own ``group-id`` is taken.

    Args:
        properties: None for a message without any.
        publisher_id: valid.
        user_id: the broker's user, for properties that name none; RabbitMQ refuses another one's.
        wants_receipt: the shim is to tell what becomes of it.

    Raises:
        InvalidMessageError: not properties, a reserved name, or a value AMQP 1.0 cannot carry.
    """
    return _unnamed(properties, user_id, wants_receipt=wants_receipt).named(publisher_id)


def unstamped(properties: Properties | None) -> bytes:
    """
    Encode *properties* for somebody who will send them under a publisher id that is not known yet; None gives nothing.

    Raises:
        InvalidMessageError: not properties, a reserved name, or a value AMQP 1.0 cannot carry.
    """
    return b"" if properties is None else _unnamed(properties, None).unstamped


def _unnamed(properties: Properties | None, user_id: str | None, *, wants_receipt: bool = False) -> Envelope:
    if properties is None:
        properties = Properties()
    elif not isinstance(properties, Properties):
        raise InvalidMessageError(
            f"properties are a proton_adapter.Properties, not {type(properties).__name__}"
        )
    entries, count = _application_properties(properties.application_properties)
    if wants_receipt:
        entries, count = _RECEIPT + encoding.boolean(True) + entries, count + 2
    if properties.group_id is None and properties.group_sequence is not None:
        raise InvalidMessageError("group_sequence belongs to dedup unless group_id is yours too; remove it")
    user = properties.user_id if properties.user_id is not None else user_id
    return Envelope(
        head=_header(properties) + _annotations(properties.annotations),
        before_address=_message_id("message_id", properties.message_id)
        + (NULL if user is None else encoding.binary(_text("user_id", user).encode())),
        after_address=b"".join(
            (
                _string("subject", properties.subject),
                _string("reply_to", properties.reply_to),
                _message_id("correlation_id", properties.correlation_id),
                _symbol("content_type", properties.content_type),
                _symbol("content_encoding", properties.content_encoding),
                _time("absolute_expiry_time", properties.absolute_expiry_time),
                _time("creation_time", properties.creation_time),
            )
        ),
        group_id=_string("group_id", properties.group_id),
        group_sequence=_uint("group_sequence", properties.group_sequence),
        tail=_string("reply_to_group_id", properties.reply_to_group_id),
        entries=entries,
        entry_count=count,
    )


def _header(properties: Properties) -> bytes:
    priority, ttl_ms = NULL, NULL
    if properties.priority is not None:
        priority = bytes((0x50, _integer("priority", properties.priority, _UBYTE_MAX)))
    if properties.ttl_s is not None:
        ttl_s = inputs.check_seconds("ttl_s", properties.ttl_s, InvalidMessageError)
        ttl_ms = _uint("ttl_s in milliseconds", round(ttl_s * 1000))
    return encoding.section(HEADER, encoding.compound_list(encoding.boolean(True) + priority + ttl_ms, 3))


def _annotations(annotations: Mapping[str, Any]) -> bytes:
    entries = b"".join(
        _symbol("the name of an annotation", name) + _annotation(name, value)
        for name, value in _items("annotations", annotations)
    )
    return (
        encoding.section(ANNOTATIONS, encoding.compound_map(entries, 2 * len(annotations)))
        if entries
        else b""
    )


def _annotation(name: str, value: Any) -> bytes:
    encoded = encoding.any_value(f"annotation {name!r}", value)
    try:
        walk.check(encoded, 0)  # else an outbox would keep what it will not send again
    except walk.Unreadable as error:
        raise InvalidMessageError(f"annotation {name!r} cannot be sent: {error}") from None
    return encoded


def _application_properties(given: Mapping[str, Any]) -> tuple[bytes, int]:
    parts = []
    for name, value in _items("application_properties", given):
        if name in RESERVED_HEADERS:
            raise InvalidMessageError(
                f"application property {name!r} belongs to dedup; remove it, or rename yours"
            )
        encoded = encoding.any_value(f"application property {name!r}", value)
        if encoded[0] not in walk.SIMPLE:
            raise InvalidMessageError(
                f"application property {name!r} is a {type(value).__name__}; AMQP 1.0 has simple types there only: "
                "use an annotation, or the body"
            )
        parts += [_string("", name), encoded]
    return b"".join(parts), len(parts)


def _items(what: str, given: Any) -> list[tuple[str, Any]]:
    if not isinstance(given, Mapping):
        raise InvalidMessageError(f"{what} are a dict, not {type(given).__name__}")
    for name in given:
        _text(f"a name in {what}", name)
    return list(given.items())


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidMessageError(f"{what} is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"{what} has a lone surrogate, which UTF-8 cannot hold") from error
    return value


def _string(what: str, value: Any) -> bytes:
    return NULL if value is None else encoding.text(_text(what, value))


def _symbol(what: str, value: Any) -> bytes:
    if value is None:
        return NULL
    if not _text(what, value).isascii():
        raise InvalidMessageError(f"{what} is ASCII in AMQP 1.0")
    return encoding.symbol(value)


def _message_id(what: str, value: MessageId | None) -> bytes:
    if isinstance(value, str):
        return _string(what, value)
    if isinstance(value, int):
        return encoding.any_value(what, ulong(_integer(what, value, _ULONG_MAX)))
    if value is not None and not isinstance(value, bytes | UUID):
        raise InvalidMessageError(f"{what} is text, bytes, a number or a UUID, not {type(value).__name__}")
    return encoding.any_value(what, value)


def _time(what: str, value: Any) -> bytes:
    if value is None:
        return NULL
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidMessageError(f"{what} is a datetime with a time zone")
    return encoding.any_value(what, timestamp(round(value.timestamp() * 1000)))


def _uint(what: str, value: Any) -> bytes:
    return NULL if value is None else encoding.uint(_integer(what, value, _UINT_MAX))


def _integer(what: str, value: Any, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise InvalidMessageError(f"{what} is an int from 0 to {high}")
    return value
