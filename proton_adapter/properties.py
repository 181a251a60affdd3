"""Describe a message as AMQP 1.0 does: its properties, its annotations and its application properties."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from attrs import Factory, frozen

#: What a message may be named by (AMQP 1.0, part 3, section 3.2.11); an int is an unsigned 64-bit one.
MessageId = str | bytes | int | UUID


@frozen(kw_only=True)
class Properties:
    """
    What a message says beside its body; None and empty ones are left out.

    A value of an annotation or application property has the type proton gives it: a Python int is a 64-bit ``long``, and
    ``proton.ulong(7)``, ``proton.symbol("x")`` and their like say more. Messages are always durable, and the address
    (``to``) is where :meth:`Publisher.publish` sends them. Where *group_id* is given, the publisher id travels in the
    application property ``dedup-publisher`` instead, and *group_sequence* is yours too.
    """

    message_id: MessageId | None = None
    correlation_id: MessageId | None = None
    #: RabbitMQ refuses any but the login's.
    user_id: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    #: With a time zone; AMQP keeps milliseconds.
    absolute_expiry_time: datetime | None = None
    #: With a time zone; AMQP keeps milliseconds.
    creation_time: datetime | None = None
    group_id: str | None = None
    #: 0 to 2^32 - 1; only beside a *group_id* of one's own.
    group_sequence: int | None = None
    reply_to_group_id: str | None = None
    #: 0 to 255.
    priority: int | None = None
    #: Seconds after which the message may be dropped; AMQP keeps milliseconds.
    ttl_s: float | None = None
    #: Message annotations; RabbitMQ wants names that begin with ``x-``.
    annotations: Mapping[str, Any] = Factory(dict)
    #: Application properties: names to text, bytes, numbers, booleans, times, UUIDs or None.
    application_properties: Mapping[str, Any] = Factory(dict)
