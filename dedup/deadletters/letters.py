"""Read what is in a queue of the dead, and choose among it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from dedup.amqp091.decoding import decode
from dedup.amqp091.wire import Delivery
from dedup.core.deaths import DeathHistory
from dedup.core.identity import REASON_HEADER
from dedup.core.obituaries import read_note


@frozen
class Letter:
    """
    One message in a queue of the dead.
    """

    #: From 1, as the queue had them when it was looked at.
    position: int
    #: Why it was given up; "" when it came here some other way.
    reason: str
    #: How often it was tried, and when it was given up in unix milliseconds; None when nothing tells.
    attempts: int | None
    at_ms: int | None
    history: DeathHistory
    #: Bytes of its body.
    size: int
    redelivered: bool
    exchange: str
    routing_key: str
    #: As AMQP has them, by pika's names.
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]
    #: Why there may be more than these.
    fault: str | None

    @classmethod
    def of(cls, delivery: Delivery, position: int) -> Letter:
        """
        Read a delivery; total.
        """
        properties, headers, fault = decode(delivery.properties)
        note = read_note(headers)
        reason = headers.get(REASON_HEADER)
        return cls(
            position,
            reason if isinstance(reason, str) else "",
            None if note is None else note.attempts,
            None if note is None else note.at_ms,
            DeathHistory.read(headers),
            delivery.body_size,
            delivery.redelivered,
            delivery.exchange.decode(errors="backslashreplace"),
            delivery.routing_key.decode(errors="backslashreplace"),
            properties,
            headers,
            fault,
        )

    def text(self, name: str) -> str:
        """
        Return a property as text; "" when it is not set.
        """
        value = self.properties.get(name)
        return "" if value is None else value if isinstance(value, str) else repr(value)


@frozen
class Selection:
    """
    Which letters are meant: those that fit all of it.
    """

    reason: str = ""
    message_id: str = ""
    position: int | None = None
    #: Given up before; unix milliseconds. What nothing is known of does not fit.
    before_ms: int | None = None
    #: So many at the most.
    limit: int | None = None

    @property
    def filters(self) -> bool:
        """
        Say whether some letters may not fit.
        """
        return bool(self.reason or self.message_id or self.before_ms is not None or self.position is not None)

    def fits(self, letter: Letter) -> bool:
        """
        Say whether *letter* is meant.
        """
        return (
            self.reason in ("", letter.reason)
            and self.message_id in ("", letter.text("message_id"))
            and self.position in (None, letter.position)
            and (self.before_ms is None or (letter.at_ms is not None and letter.at_ms < self.before_ms))
        )
