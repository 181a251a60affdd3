"""Encode a message once, so that each send only puts its stamp in."""

from __future__ import annotations

import copy
import struct
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pika import BasicProperties

from dedup.amqp091 import wire
from dedup.amqp091.encoding import encode
from dedup.amqp091.properties import scan
from dedup.core.identity import (
    ATTEMPT_HEADER,
    FIRST_SENT_HEADER,
    PUBLISHER_HEADER,
    RECEIPT_HEADER,
    RESERVED_HEADERS,
    SEQUENCE_HEADER,
)
from dedup.core.numbering import Stamp
from dedup.core.sending import Message
from dedup.errors import InvalidMessageError

_PERSISTENT: Final = 2
#: The flags of what is encoded before the headers.
_BEFORE_HEADERS: Final = (1 << 15, 1 << 14)
_HEADERS: Final = 1 << 13
#: "More flags follow": no client writes it, and the sections of AMQP 1.0 begin with bytes that set it.
_MORE_FLAGS: Final = 1
_LENGTH = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">H")


def _number_header(name: str) -> struct.Struct:
    """
    Return what packs (length of the name, name, kind ``l``, value) of a signed 64-bit header.
    """
    return struct.Struct(f">B{len(name.encode())}scq")


_SEQUENCE, _ATTEMPT = SEQUENCE_HEADER.encode(), ATTEMPT_HEADER.encode()
_FIRST_SENT: Final = FIRST_SENT_HEADER.encode()
_PACK_SEQUENCE, _PACK_ATTEMPT = _number_header(SEQUENCE_HEADER).pack, _number_header(ATTEMPT_HEADER).pack
_PACK_FIRST_SENT: Final = _number_header(FIRST_SENT_HEADER).pack
#: Bytes a stamp adds at the most: sequence, attempt and time.
STAMP_BYTES_MAX = sum(
    _number_header(name).size for name in (SEQUENCE_HEADER, ATTEMPT_HEADER, FIRST_SENT_HEADER)
)


class Envelope(NamedTuple):
    """
    Encoded properties, cut open where the stamp goes: in front of the user's headers.
    """

    #: Flags, content type and content encoding.
    head: bytes
    #: The entries of the header table, without its length.
    table: bytes
    #: The properties behind the headers.
    tail: bytes

    @property
    def size(self) -> int:
        """
        Bytes of the properties with the largest stamp.
        """
        return len(self.head) + _LENGTH.size + STAMP_BYTES_MAX + len(self.table) + len(self.tail)

    @property
    def unstamped(self) -> bytes:
        """
        The raw properties without a stamp, to be kept until :func:`unseal`.
        """
        return b"".join((self.head, _LENGTH.pack(len(self.table)), self.table, self.tail))

    def stamp(self, sequence: int, attempt: int, age_s: float) -> bytes:
        """
        Return the raw properties of this send.

        Args:
            age_s: How long ago the first one was.
        """
        mark = _PACK_SEQUENCE(len(_SEQUENCE), _SEQUENCE, b"l", sequence)
        if attempt > 1:
            mark += _PACK_ATTEMPT(len(_ATTEMPT), _ATTEMPT, b"l", attempt)
            first_sent_ms = int((time.time() - age_s) * 1000)
            mark += _PACK_FIRST_SENT(len(_FIRST_SENT), _FIRST_SENT, b"l", first_sent_ms)
        return b"".join((self.head, _LENGTH.pack(len(mark) + len(self.table)), mark, self.table, self.tail))


class Content(NamedTuple):
    """
    What a message carries, for the sender to keep and for the driver to send.
    """

    envelope: Envelope
    body: bytes


def publish_frames(message: Message, *, channel: int, frame_max: int) -> tuple[bytes, bytes]:
    """
    Write one send of *message*, stamped: its method frame and its content.

    Raises:
        InvalidMessageError: its properties do not fit into one frame of this broker.
    """
    content: Content = message.content
    properties = content.envelope.stamp(
        message.sequence, message.attempts, message.sent_at - message.first_sent_at
    )
    place = message.exchange.encode(), message.routing_key.encode()
    return (
        wire.publish_frame(channel, *place, mandatory=True),
        wire.content_frames(properties, content.body, channel=channel, frame_max=frame_max),
    )


def seal(
    properties: BasicProperties | None,
    publisher_id: str,
    user_id: str | None = None,
    *,
    wants_receipt: bool = False,
) -> Envelope:
    """
    Encode *properties* with the publisher id in them; whatever the caller does to them later changes nothing.

    The id goes into ``app_id``, or into a header where the caller's own ``app_id`` is taken.

    Args:
        properties: None for a persistent message without any.
        publisher_id: valid.
        user_id: the broker's user, for properties that name none; RabbitMQ refuses another one's (406).
        wants_receipt: the shim is to tell what becomes of it.

    Raises:
        InvalidMessageError: not properties, a reserved header, or a value AMQP 0.9.1 cannot carry.
    """
    sealed = _named(properties, publisher_id)
    if sealed.user_id is None:
        sealed.user_id = user_id
    if wants_receipt:
        sealed.headers[RECEIPT_HEADER] = True
    return _cut(encode(sealed))


def stamped(properties: BasicProperties | None, stamp: Stamp) -> BasicProperties:
    """
    Return a copy of *properties* with *stamp* in them, for a client that encodes them itself; as :func:`seal`.
    """
    copied = _named(properties, stamp.publisher_id)
    copied.headers = {**copied.headers, **stamp.headers}
    return copied


def _named(properties: BasicProperties | None, publisher_id: str) -> BasicProperties:
    """
    Return a copy of *properties* that names the publisher, with a dict of headers of its own.
    """
    if properties is None:
        properties = BasicProperties(delivery_mode=_PERSISTENT)
    elif not isinstance(properties, BasicProperties):
        raise InvalidMessageError(
            f"properties are a dedup.Properties (pika.BasicProperties), not {type(properties).__name__}"
        )
    headers = {} if properties.headers is None else properties.headers
    _check_headers(headers)
    named = copy.copy(properties)
    if named.app_id is None:
        named.app_id = publisher_id
        named.headers = dict(headers)
    else:
        named.headers = {PUBLISHER_HEADER: publisher_id, **headers}
    return named


def unstamped(properties: BasicProperties | None) -> bytes:
    """
    Encode *properties* for somebody who will send them under a publisher id that is not known yet; None gives nothing.

    Raises:
        InvalidMessageError: not properties, a reserved header, or a value AMQP 0.9.1 cannot carry.
    """
    if properties is None:
        return b""
    seal(properties, "")
    return encode(properties)


def unseal(raw: bytes, publisher_id: str, *, sealed: bool) -> Envelope:
    """
    Return the envelope of raw properties that were kept.

    Args:
        raw: What :attr:`Envelope.unstamped` or :func:`unstamped` gave, or another client's encoded properties; nothing
            stands for a persistent message without any.
        sealed: The publisher id is in them; else it goes into a header, and everything else stays as it is.

    Raises:
        InvalidMessageError: they cannot be read, or carry a header or an id that is not theirs to carry.
    """
    if not raw:
        return seal(None, publisher_id)
    try:
        if _FLAGS.unpack_from(raw)[0] & _MORE_FLAGS:
            raise InvalidMessageError("the properties are not encoded for AMQP 0.9.1; for 1.0, perhaps")
        envelope = _cut(raw)
    except (IndexError, struct.error):
        raise InvalidMessageError("the properties cannot be read: they end too early") from None
    if not sealed:
        name, text = PUBLISHER_HEADER.encode(), publisher_id.encode()
        entry = bytes((len(name),)) + name + b"S" + _LENGTH.pack(len(text)) + text
        envelope = envelope._replace(table=entry + envelope.table)
    found = scan(envelope.stamp(1, 2, 0.0))
    if (found.publisher, found.sequence, found.fault) != (publisher_id, 1, None):
        raise InvalidMessageError(
            f"the properties cannot be sent as they are: {found.fault or 'they name another publisher'}"
        )
    return envelope


def _cut(raw: bytes) -> Envelope:
    """
    Cut raw properties open at their header table; where they have none, one that is empty goes there.
    """
    (flags,) = _FLAGS.unpack_from(raw)
    at = 2
    for flag in _BEFORE_HEADERS:
        at += 1 + raw[at] if flags & flag else 0
    if not flags & _HEADERS:
        return Envelope((flags | _HEADERS).to_bytes(2, "big") + raw[2:at], b"", raw[at:])
    table = at + _LENGTH.size
    end = table + _LENGTH.unpack_from(raw, at)[0]
    if end > len(raw):
        raise IndexError(end)
    return Envelope(raw[:at], raw[table:end], raw[end:])


def _check_headers(headers: Any) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidMessageError(f"headers are a dict, not {type(headers).__name__}")
    for name in headers:
        if not isinstance(name, str):
            raise InvalidMessageError(f"a header's name is text, not {type(name).__name__}")
        if name in RESERVED_HEADERS:
            raise InvalidMessageError(f"header {name!r} belongs to dedup; remove it, or rename yours")
