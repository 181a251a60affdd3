"""Read a dead letter without decoding more than its deaths, and write it as it goes on: retried, or given up."""

from __future__ import annotations

import functools
import hashlib
import random
import time
from collections.abc import Callable
from typing import Final

from dedup.amqp091.decoding import decode
from dedup.amqp091.properties import (
    EXPIRATION,
    HEADERS,
    MESSAGE_ID,
    HeaderValue,
    amend,
    fresh,
    header_value,
    in_order,
    join,
    read_integer,
    scan,
    short_text,
    split,
)
from dedup.amqp091.wire import Delivery
from dedup.core.deaths import BROKER_HEADERS, DeathHistory
from dedup.core.identity import DEATHS_HEADER, MARK_HEADER, REASON_HEADER, RETRY_HEADER
from dedup.core.obituaries import REPLACED_HEADERS, Obituary, Reason
from dedup.core.retry_steps import Item, Letter
from dedup.core.schedule import ATTEMPTS_MAX
from dedup.ports import DeadLetter

#: What a broker adds to a delivery: it differs from one delivery of a message to the next.
_OF_DELIVERIES: Final = frozenset({"x-delivery-count", "x-acquired-count"})
#: Not to be published again: told anew, of the delivery, or leading to other queues than the one it died in.
_NOT_RETRIED: Final = (
    BROKER_HEADERS | _OF_DELIVERIES | {"CC", "BCC", DEATHS_HEADER, RETRY_HEADER, REASON_HEADER}
)
_NOT_BURIED: Final = REPLACED_HEADERS | _OF_DELIVERIES | {"CC", "BCC"}
#: Where a history is, and how long one may be to be remembered.
_HISTORIES: Final = (b"x-death", DEATHS_HEADER.encode())
_REMEMBERED_BYTES_MAX: Final = 1024
#: Bytes of a message in the schedule beside properties and body, about.
_OVERHEAD: Final = 128


def letter_of(delivery: Delivery, jitter: Callable[[], float] = random.random) -> Letter:
    """
    Read one delivery from a dead-letter queue; total.
    """
    raw, body = delivery.properties, delivery.body
    stamp = scan(raw)
    stable = amend(raw, drop=_OF_DELIVERIES, drop_user_id=False) if _counted(raw) else raw
    digest = hashlib.blake2b(digest_size=16)
    for part in (delivery.exchange, delivery.routing_key, in_order(stable)):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    digest.update(body)
    return Letter(
        delivery.tag,
        digest.digest(),
        stamp.publisher is not None,
        history_of(raw),
        _retries(raw),
        len(raw) + len(body) + _OVERHEAD,
        jitter(),
        DeadLetter(delivery.exchange, delivery.routing_key, raw, body),
    )


def history_of(raw: bytes) -> DeathHistory:
    """
    Read the deaths in encoded properties; total.
    """
    values = [(name, header_value(raw, name)) for name in _HISTORIES]
    table = b"".join([bytes([len(name)]) + name + value for name, value in values if value is not None])
    return _remembered(table) if len(table) <= _REMEMBERED_BYTES_MAX else _read(table)


def _read(table: bytes) -> DeathHistory:
    raw = join({HEADERS: len(table).to_bytes(4, "big") + table})
    return DeathHistory.read(decode(raw).headers)


#: What dies in the same second in the same queue has the same history, byte for byte.
_remembered = functools.lru_cache(maxsize=1024)(_read)


def retried(item: Item) -> bytes:
    """
    Return the properties of *item* on its way back to the queue it died in.
    """
    letter: DeadLetter = item.payload
    headers: list[tuple[str, HeaderValue]] = [
        (RETRY_HEADER, item.attempt),
        (DEATHS_HEADER, history_of(letter.properties).encode()),
    ]
    if item.marked:
        headers.append((MARK_HEADER, True))
    return amend(letter.properties, headers=headers, drop=_NOT_RETRIED)


def obituary_of(item: Item, dead_letter_queue: str) -> Obituary:
    """
    Return what is known of an *item* that is given up.
    """
    assert item.reason is not None
    letter: DeadLetter = item.payload
    stamp = scan(letter.properties)
    name = short_text(letter.properties, MESSAGE_ID)
    return Obituary(
        queue=item.queue or dead_letter_queue,
        reason=item.reason,
        history=history_of(letter.properties),
        attempts=item.attempt + 1,
        at_ms=int(time.time() * 1000),
        size=len(letter.body),
        message_id=None if name is None else name.decode(errors="replace"),
        publisher_id=stamp.publisher,
        sequence=stamp.sequence,
    )


def buried(item: Item, obituary: Obituary, *, bare: bool = False) -> bytes:
    """
    Return the properties of *item* in the queue of the dead.

    Args:
        bare: Without its own: they are too large, or the broker closes channels for them.
    """
    headers: list[tuple[str, HeaderValue]] = [*obituary.stamp()]
    if item.marked:
        headers.append((MARK_HEADER, True))
    if bare or item.reason is Reason.REFUSED:
        return fresh(headers)
    return amend(lasting(item.payload.properties), headers=headers, drop=_NOT_BURIED)


def lasting(raw: bytes) -> bytes:
    """
    Return properties without a time to live: nothing may expire on the way, and a broker takes it from what dies too.
    """
    properties, rest = split(raw)
    if rest or properties.pop(EXPIRATION, None) is None:
        return raw
    return join(properties)


def _counted(raw: bytes) -> bool:
    return b"x-delivery-count" in raw or b"x-acquired-count" in raw


def _retries(raw: bytes) -> int | None:
    """
    Return how often a message was retried; None when what it says cannot be.
    """
    value = header_value(raw, RETRY_HEADER.encode())
    if value is None:
        return 0
    count = read_integer(value)
    return count if count is not None and 0 <= count <= ATTEMPTS_MAX else None
