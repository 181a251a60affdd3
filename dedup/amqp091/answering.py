"""Read the questions of publishers, and write what a shim tells them: answers and receipts."""

from __future__ import annotations

from typing import Final, NamedTuple

from pika import BasicProperties

from dedup.amqp091.properties import CORRELATION_ID, REPLY_TO, Stamp, short_text
from dedup.amqp091.wire import Delivery
from dedup.core import steps
from dedup.core.questions import (
    CORRELATION_BYTES_MAX,
    Question,
    encode_answer,
    encode_receipts,
    read_ask,
)
from dedup.core.registry import lock_queue
from dedup.core.reply_address import is_reply_address

_TRANSIENT: Final = 1


class Letter(NamedTuple):
    """
    What is published to the default exchange; nobody may listen any more.
    """

    routing_key: str
    properties: BasicProperties
    body: bytes


def question_of(stamp: Stamp, delivery: Delivery) -> tuple[Question | None, str]:
    """
    Return the question a delivery with the header ``dedup-ask`` asks, or why it is none, as a slug.

    A question has no body, so that nothing is lost when it is dropped; and its answer goes back to the channel it came from,
    so that nobody can have a shim write into a queue of his choice.
    """
    assert stamp.ask is not None
    assert stamp.publisher is not None
    reply_to = short_text(delivery.properties, REPLY_TO) or b""
    correlation = short_text(delivery.properties, CORRELATION_ID) or b""
    sequence = read_ask(stamp.ask)
    if sequence is None:
        return None, "ask-unknown"
    if delivery.body_size:
        return None, "ask-with-body"
    if not is_reply_address(reply_to):
        return None, "ask-reply-to"
    if len(correlation) > CORRELATION_BYTES_MAX or not correlation.isascii():
        return None, "ask-correlation"
    return Question(stamp.publisher, sequence, reply_to.decode(), correlation), ""


def answered(queue: str, effect: steps.Answer) -> Letter:
    """
    Return the answer of the shim of *queue*.
    """
    question = effect.question
    properties = BasicProperties(delivery_mode=_TRANSIENT, correlation_id=question.correlation.decode())
    return Letter(question.reply_to, properties, encode_answer(queue, effect.standing))


def receipts(queue: str, effect: steps.Receipts) -> Letter:
    """
    Return receipts of the shim of *queue*: they go to the queue that a registered publisher holds.
    """
    properties = BasicProperties(delivery_mode=_TRANSIENT)
    return Letter(lock_queue(effect.publisher), properties, encode_receipts(queue, effect.told))
