"""Turn rows into messages and messages into rows."""

from __future__ import annotations

from dedup.core import inputs
from dedup.core.sending import Message
from dedup.errors import DedupError, InvalidMessageError, PublisherClosedError, PublishError, ReturnedError
from dedup.outbox.store import Failure, Put, Row
from dedup.wire import Wire


def put_of(message: Message) -> Put:
    """
    Return what is kept of a message.
    """
    content = message.content
    return Put(
        message.sequence, message.exchange, message.routing_key, content.envelope.unstamped, content.body
    )


def message_of(
    row: Row, wire: Wire, publisher_id: str, body_bytes_max: int, *, fresh: bool = False
) -> Message:
    """
    Return the message of a row.

    Args:
        fresh: It was not sent before; else its first send here counts as the second.

    Raises:
        InvalidMessageError: the row, which anybody may have written, is none that can be sent.
    """
    if row.body is None and row.body_size > body_bytes_max:
        raise InvalidMessageError(f"the body has {row.body_size} bytes, at most {body_bytes_max} are sent")
    body = inputs.check_body(row.body, body_bytes_max)
    if not isinstance(row.properties, bytes):
        raise InvalidMessageError(f"the properties are bytes, not {type(row.properties).__name__}")
    exchange, routing_key = inputs.check_place(row.exchange, row.routing_key, None)
    envelope = wire.unseal(row.properties, publisher_id, sealed=row.sealed)
    size, content = len(body) + envelope.size, wire.content(envelope, body)
    return Message(row.sequence, exchange, routing_key, content, size, attempts=0 if fresh else 1)


def failure_of(sequence: int, error: DedupError) -> Failure | None:
    """
    Return what becomes of a message whose sender reports *error*: None means that it stays, to be sent again.

    A publisher that ends says nothing about the message. One that cannot be sent, or that the broker returned at its first
    send, was never stored.
    """
    if isinstance(error, PublisherClosedError):
        return None
    attempts = error.receipt.attempts if isinstance(error, PublishError) else 0
    never = isinstance(error, InvalidMessageError) or (isinstance(error, ReturnedError) and attempts <= 1)
    return Failure(sequence, str(error), maybe_stored=not never)
