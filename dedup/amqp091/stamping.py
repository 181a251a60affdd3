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
from dedup.core.identity import (
    ATTEMPT_HEADER,
    FIRST_SENT_HEADER,
    PUBLISHER_HEADER,
    RESERVED_HEADERS,
    SEQUENCE_HEADER,
)
from dedup.core.sending import Message
from dedup.errors import InvalidMessageError

_PERSISTENT: Final = 2
#: The flags of what is encoded before the headers.
_BEFORE_HEADERS: Final = (1 << 15, 1 << 14)
_LENGTH = struct.Struct(">I")


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


def seal(properties: BasicProperties | None, publisher_id: str, user_id: str | None = None) -> Envelope:
    """
    Encode *properties* with the publisher id in them; whatever the caller does to them later changes nothing.

    The id goes into ``app_id``, or into a header where the caller's own ``app_id`` is taken.

    Args:
        properties: None for a persistent message without any.
        publisher_id: valid.
        user_id: the broker's user, for properties that name none; RabbitMQ refuses another one's (406).

    Raises:
        InvalidMessageError: not properties, a reserved header, or a value AMQP 0.9.1 cannot carry.
    """
    if properties is None:
        properties = BasicProperties(delivery_mode=_PERSISTENT)
    elif not isinstance(properties, BasicProperties):
        raise InvalidMessageError(
            f"properties are a dedup.Properties (pika.BasicProperties), not {type(properties).__name__}"
        )
    headers = {} if properties.headers is None else properties.headers
    _check_headers(headers)
    sealed = copy.copy(properties)
    if sealed.user_id is None:
        sealed.user_id = user_id
    if sealed.app_id is None:
        sealed.app_id = publisher_id
        sealed.headers = dict(headers)
    else:
        sealed.headers = {PUBLISHER_HEADER: publisher_id, **headers}
    return _cut(encode(sealed))


def _cut(raw: bytes) -> Envelope:
    """
    Cut raw properties open at their header table, which is there even when it is empty.
    """
    flags = int.from_bytes(raw[:2], "big")
    at = 2
    for flag in _BEFORE_HEADERS:
        at += 1 + raw[at] if flags & flag else 0
    table = at + _LENGTH.size
    end = table + _LENGTH.unpack_from(raw, at)[0]
    return Envelope(raw[:at], raw[table:end], raw[end:])


def _check_headers(headers: Any) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidMessageError(f"headers are a dict, not {type(headers).__name__}")
    for name in headers:
        if not isinstance(name, str):
            raise InvalidMessageError(f"a header's name is text, not {type(name).__name__}")
        if name in RESERVED_HEADERS:
            raise InvalidMessageError(f"header {name!r} belongs to dedup; remove it, or rename yours")
