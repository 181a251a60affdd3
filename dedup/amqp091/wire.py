"""
Write and read the content path of AMQP 0.9.1: publish, deliver, return, confirm; pure, and nothing is decoded twice.

A frame is ``type (1) channel (2) size (4) payload 0xCE``. A message is a method frame, one header frame (body size and
raw properties) and as many body frames as the body needs, so a message forwarded as it came costs one method frame:
the rest is the very bytes that were received. Exchanges and routing keys stay bytes, because a broker takes any bytes
there and a message that is passed on must not fail for its name.
"""

from __future__ import annotations

import functools
import struct
from typing import Final, NamedTuple

from attrs import define

from dedup.errors import InvalidMessageError

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
#: Bytes of a frame around its payload: type, channel and size before it, the end marker behind it.
FRAME_OVERHEAD: Final = 8
#: RabbitMQ takes frames this much larger than frame-max (off by the overhead, as some clients are), and delivers them so.
FRAME_SLACK: Final = FRAME_OVERHEAD
#: Bytes of a header frame's payload before the properties: class, weight, body size.
HEADER_OVERHEAD: Final = 12

#: Class and method of what is read and written here, as the 32 bits that open a method frame's payload.
PUBLISH: Final = 60 << 16 | 40
RETURN: Final = 60 << 16 | 50
DELIVER: Final = 60 << 16 | 60
ACK: Final = 60 << 16 | 80
NACK: Final = 60 << 16 | 120
COMMIT: Final = 90 << 16 | 20
COMMIT_OK: Final = 90 << 16 | 21

_FRAME = struct.Struct(">BHI")
_ACK = struct.Struct(">BHIIQBB")
_CONFIRM = struct.Struct(">QB")
_CONTENT_HEAD = struct.Struct(">BHIHHQ")
_NAME_BYTES_MAX = 255


@define
class Delivery:
    """
    One message the broker delivered, its content as it came from the socket.

    *content* is the header frame and the body frames verbatim: behind a publish method frame of the same channel number
    it is the same message again.
    """

    #: Acknowledges the message, on the channel it came from and on no other.
    tag: int
    #: What the broker flags: maybe delivered before.
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    #: Property flags and property list, undecoded; see :mod:`dedup.amqp091.properties`.
    properties: bytes
    body_size: int
    content: bytes

    @property
    def body(self) -> bytes:
        """
        Join the body frames' payloads.
        """
        return body_of(self.content, self.body_size)

    @property
    def channel(self) -> int:
        """
        Return the channel number that *content* is framed for.
        """
        return self.content[1] << 8 | self.content[2]


class Returned(NamedTuple):
    """One mandatory message that no queue took, given back by the broker."""

    reply_code: int
    reply_text: str
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes


def body_of(content: bytes, body_size: int) -> bytes:
    """
    Join the payloads of the body frames behind the header frame in *content*.
    """
    if not body_size:
        return b""
    position = FRAME_OVERHEAD + _FRAME.unpack_from(content)[2]
    if len(content) - position == body_size + FRAME_OVERHEAD:
        return content[position + 7 : -1]
    pieces = []
    while position < len(content):
        size: int = _FRAME.unpack_from(content, position)[2]
        pieces.append(content[position + 7 : position + 7 + size])
        position += FRAME_OVERHEAD + size
    return b"".join(pieces)


@functools.lru_cache(maxsize=4096)
def publish_frame(channel: int, exchange: bytes, routing_key: bytes, mandatory: bool = False) -> bytes:
    """
    Write the method frame of ``basic.publish``; cached, since most messages go the way of the one before.

    Raises:
        InvalidMessageError: a name over the 255 bytes that AMQP can carry.
    """
    for what, name in (("exchange", exchange), ("routing key", routing_key)):
        if len(name) > _NAME_BYTES_MAX:
            raise InvalidMessageError(
                f"the {what} has {len(name)} bytes, AMQP carries at most {_NAME_BYTES_MAX}; shorten it"
            )
    arguments = b"%c%s%c%s" % (len(exchange), exchange, len(routing_key), routing_key)
    payload = struct.pack(">IH", PUBLISH, 0) + arguments + (b"\x01" if mandatory else b"\x00")
    return _frame(METHOD, channel, payload)


def ack_frame(channel: int, tag: int, *, multiple: bool = True) -> bytes:
    """
    Write ``basic.ack``: of everything up to *tag*, or of *tag* alone.
    """
    return _ACK.pack(METHOD, channel, 13, ACK, tag, multiple, FRAME_END)


def nack_frame(channel: int, tag: int, *, multiple: bool = False, requeue: bool = True) -> bytes:
    """
    Write ``basic.nack``: give back, or with *requeue* off dead-letter, everything up to *tag* or *tag* alone.
    """
    return _ACK.pack(METHOD, channel, 13, NACK, tag, multiple | requeue << 1, FRAME_END)


def commit_frame(channel: int) -> bytes:
    """
    Write ``tx.commit``, to ride at the end of the write that carries the batch.
    """
    return _frame(METHOD, channel, struct.pack(">I", COMMIT))


def content_frames(properties: bytes, body: bytes, *, channel: int, frame_max: int) -> bytes:
    """
    Write the header frame and the body frames of one message.

    Args:
        properties: property flags and list, encoded.
        body: of any size; it is cut into frames.
        channel: number of the channel to send it on.
        frame_max: largest frame in bytes that was negotiated; 0 for no limit.

    Raises:
        InvalidMessageError: the properties do not fit into one frame; they cannot be split, and the broker would
            close the whole connection.
    """
    size = HEADER_OVERHEAD + len(properties)
    if frame_max and size + FRAME_OVERHEAD > frame_max:
        raise InvalidMessageError(
            f"properties and headers take {len(properties)} bytes, the broker's frame-max of {frame_max} leaves room for "
            f"{frame_max - FRAME_OVERHEAD - HEADER_OVERHEAD}; move large headers into the body"
        )
    head = _CONTENT_HEAD.pack(HEADER, channel, size, 60, 0, len(body))
    room = frame_max - FRAME_OVERHEAD if frame_max else len(body)
    if len(body) <= room:
        if not body:
            return b"%b%b\xce" % (head, properties)
        return b"%b%b\xce%b%b\xce" % (head, properties, _FRAME.pack(BODY, channel, len(body)), body)
    pieces = [head, properties, b"\xce"]
    for start in range(0, len(body), room):
        part = body[start : start + room]
        pieces += (_FRAME.pack(BODY, channel, len(part)), part, b"\xce")
    return b"".join(pieces)


def forward_frames(
    delivery: Delivery, *, channel: int, frame_max: int, properties: bytes | None = None
) -> bytes:
    """
    Return the content of *delivery* framed for *channel*: verbatim where it can be, with other *properties* if given.

    Raises:
        InvalidMessageError: the new properties do not fit into one frame.
    """
    if properties is None:
        content = delivery.content
        fits = (
            not frame_max or len(content) <= frame_max or _largest_frame(content) <= frame_max + FRAME_SLACK
        )
        if fits and delivery.channel == channel:
            return content
        properties = delivery.properties
    return content_frames(properties, delivery.body, channel=channel, frame_max=frame_max)


def _largest_frame(content: bytes) -> int:
    largest = position = 0
    while position < len(content):
        size: int = FRAME_OVERHEAD + _FRAME.unpack_from(content, position)[2]
        largest = max(largest, size)
        position += size
    return largest


def parse_delivery(method: bytes, properties: bytes, body_size: int, content: bytes) -> Delivery:
    """
    Read a ``basic.deliver`` method payload, class and method first, into a :class:`Delivery` with its content.

    Raises:
        IndexError, struct.error: the payload is cut short.
    """
    position = 5 + method[4]
    tag, redelivered = _CONFIRM.unpack_from(method, position)
    exchange, position = _short(method, position + 9)
    routing_key, _ = _short(method, position)
    return Delivery(tag, bool(redelivered & 1), exchange, routing_key, properties, body_size, content)


def parse_return(method: bytes, properties: bytes, body: bytes) -> Returned:
    """
    Read a ``basic.return`` method payload, class and method first.

    Raises:
        IndexError, struct.error: the payload is cut short.
    """
    (code,) = struct.unpack_from(">H", method, 4)
    text, position = _short(method, 6)
    exchange, position = _short(method, position)
    routing_key, _ = _short(method, position)
    return Returned(code, text.decode("utf-8", "replace"), exchange, routing_key, properties, body)


def parse_confirm(method: bytes) -> tuple[int, bool]:
    """
    Read tag and *multiple* of a ``basic.ack`` or ``basic.nack`` method payload, class and method first.

    Raises:
        struct.error: the payload is cut short.
    """
    tag, bits = _CONFIRM.unpack_from(method, 4)
    return tag, bool(bits & 1)


def _short(payload: bytes, position: int) -> tuple[bytes, int]:
    end = position + 1 + payload[position]
    if end > len(payload):
        raise IndexError("short string beyond the end of the method")
    return payload[position + 1 : end], end


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_FRAME.pack(kind, channel, len(payload)), payload)
