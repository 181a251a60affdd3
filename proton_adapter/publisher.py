"""Publish over AMQP 1.0 with the promises of :class:`dedup.Publisher`."""

from __future__ import annotations

from typing import Any

import dedup
from dedup.core import inputs
from dedup.errors import InvalidMessageError
from proton_adapter.publishing import AMQP10
from proton_adapter.stamping import Content

#: Exchange and routing key, each byte percent-encoded, and what is around them.
_ADDRESS_BYTES_MAX = 2 * 3 * inputs.NAME_BYTES_MAX + 32


class Publisher(dedup.Publisher):
    """
    Publish under one stable publisher id over AMQP 1.0; RabbitMQ 4 and newer.

    Everything is as with :class:`dedup.Publisher`: arguments, methods, promises and errors, but for three things.
    Properties are a :class:`proton_adapter.Properties`; messages are always durable; and an *outbox* keeps messages of this
    protocol: one that still has messages of the other is refused.
    """

    _wire = AMQP10

    def _content(self, body: object, properties: Any) -> Any:
        envelope = self._plain if properties is None else self._seal(properties)
        content = Content(envelope, inputs.check_body(body, self._body_bytes_max))
        limit = self._thread.message_bytes_max
        if limit and len(content.body) + envelope.size + _ADDRESS_BYTES_MAX > limit:
            raise InvalidMessageError(
                f"body and properties take {len(content.body) + envelope.size} bytes with the stamp, and the broker takes messages "
                f"of {limit} with their address; raise its max_message_size, or store the content elsewhere and send its name"
            )
        return content

    def __repr__(self) -> str:
        return super().__repr__().replace("dedup.", "proton_adapter.", 1)
