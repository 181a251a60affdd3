"""Read the questions of publishers, and write what a shim tells them: answers and receipts."""

from __future__ import annotations

from typing import Final, NamedTuple

from pika import BasicProperties

from dedup.amqp091.properties import CORRELATION_ID, REPLY_TO, Stamp, short_text
from dedup.amqp091.wire import Delivery
from dedup.core import steps
from dedup.core.in_band import encode_answer, encode_receipts, question_of
from dedup.core.questions import Question
from dedup.core.registry import lock_queue

_TRANSIENT: Final = 1


class Letter(NamedTuple):
    """
    What is published to the default exchange; nobody may listen any more.
    """

    routing_key: str
    properties: BasicProperties
    body: bytes


def question_in(stamp: Stamp, delivery: Delivery) -> tuple[Question | None, str]:
    """
    Return the question a delivery with the header ``dedup-ask`` asks, or why it is none, as a slug.
    """
    assert stamp.ask is not None
    assert stamp.publisher is not None
    return question_of(
        stamp.publisher,
        stamp.ask,
        body_bytes=delivery.body_size,
        reply_to=short_text(delivery.properties, REPLY_TO) or b"",
        correlation=short_text(delivery.properties, CORRELATION_ID) or b"",
    )


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
