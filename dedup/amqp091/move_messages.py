"""What a move reads in a message: what stands for it, where it goes back to, and what a filter looks at."""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from dedup.amqp091.dead_letters import history_of
from dedup.amqp091.decoding import decode
from dedup.amqp091.properties import MESSAGE_ID, Stamp, amend, header_value, short_text
from dedup.amqp091.wire import Delivery
from dedup.core.deaths import BROKER_HEADERS
from dedup.core.filters import Seen
from dedup.core.identity import DEATHS_HEADER
from dedup.core.message_ids import KEY_PREFIX

_DIED_IN: Final = (b"x-first-death-queue", b"x-last-death-queue")
_DIGEST_BYTES: Final = 16
_DIGEST_PREFIX: Final = 2 * KEY_PREFIX
#: The lengths of the parts, which go before them: no two messages have the same bytes.
_LENGTHS: Final = struct.Struct(">5I")


def identity_key(delivery: Delivery, stamp: Stamp) -> str | None:
    """
    Return what stands for a message that has an identity, the same each time it is delivered; None when it has none. Total.

    It is a digest of the stamp, or else of the message id, of how the message came, where it died, and its body. Nothing else of
    the headers: a quorum queue counts deliveries there, and RabbitMQ then writes all of them anew, some of another type.
    """
    raw = delivery.properties
    if stamp.publisher is not None:
        identity = b"stamp %d %b" % (stamp.sequence or 0, stamp.publisher.encode())
    elif (text := short_text(raw, MESSAGE_ID)) is not None:
        identity = b"id " + text
    else:
        return None
    exchange, routing_key, first, last = delivery.exchange, delivery.routing_key, b"", b""
    if _DIED_IN[0] in raw:
        # One message that died in two queues is two messages.
        first, last = (header_value(raw, name) or b"" for name in _DIED_IN)
    lengths = _LENGTHS.pack(len(identity), len(exchange), len(routing_key), len(first), len(last))
    digest = blake2b(lengths + identity + exchange + routing_key + first + last, digest_size=_DIGEST_BYTES)
    digest.update(delivery.body)
    return _DIGEST_PREFIX + digest.hexdigest()


def to_origin(raw: bytes, find: Callable[[str], bytes]) -> tuple[bytes, bytes | None]:
    """
    Return the exchange that leads to the queue a message died in first, and the properties it goes there with.
    """
    history = history_of(raw)
    exchange = find(history.deaths[-1].queue) if history.deaths else b""
    if not exchange:
        return b"", None
    return exchange, amend(raw, headers=[(DEATHS_HEADER, history.encode())], drop=BROKER_HEADERS)


def seen_of(raw: bytes) -> Seen:
    """
    Return what a filter looks at in encoded properties; total.
    """
    decoded = decode(raw)
    timestamp = decoded.properties.get("timestamp")
    return Seen(decoded.headers, history_of(raw), None if timestamp is None else timestamp * 1000)
