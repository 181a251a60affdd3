"""Word what the caller of a message is told when it was not confirmed: what, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from dedup.core.identity import Receipt
from dedup.core.questions import ResumePoint
from dedup.core.sending import Message
from dedup.errors import (
    ClosedUnconfirmedError,
    DedupError,
    FencedError,
    NoAnswerError,
    PublishError,
    PublishTimeoutError,
    ReceiptExpiredError,
    ResumeUncertainError,
    ReturnedError,
)

#: Replies that return a message for want of a queue, or of a consumer (AMQP 0.9.1, section 1.5).
NOT_TAKEN_CODES = frozenset({312, 313})


def timed_out(message: Message, receipt: Receipt, hindrance: str) -> PublishTimeoutError:
    """
    Return the error of a message whose time was up; *hindrance* says what it waited for.
    """
    return PublishTimeoutError(
        f"no confirm for sequence {message.sequence} in time: {hindrance}; the message {_fate(receipt)}, "
        "publisher.retry(error.receipt) is safe",
        receipt=receipt,
    )


def returned(message: Message, receipt: Receipt, code: int, text: str) -> PublishError:
    """
    Return the error of a message that was given back: no queue took it, or it alone was refused.
    """
    if code not in NOT_TAKEN_CODES:
        return refused(message, receipt, code, text)
    return ReturnedError(
        f"sequence {message.sequence} was returned ({code} {text}): no queue is bound to exchange {message.exchange!r} "
        f"for routing key {message.routing_key!r}; declare or bind one, then publisher.retry(error.receipt)",
        receipt=receipt,
        code=code,
    )


def refused(message: Message, receipt: Receipt, code: int, text: str) -> PublishError:
    """
    Return the error of a message that the broker closed the channel for.
    """
    return PublishError(
        f"the broker refused sequence {message.sequence} to exchange {message.exchange!r}: {code} {text}; "
        "correct what it names, then publisher.retry(error.receipt)",
        receipt=receipt,
        code=code,
    )


def closed(receipt: Receipt, cause: DedupError | None = None) -> DedupError:
    """
    Return the error of a message whose publisher was closed before the confirm, by its caller or by *cause*.
    """
    if isinstance(cause, FencedError):
        return fenced(cause, receipt)
    return ClosedUnconfirmedError(
        f"the publisher was closed before sequence {receipt.sequence} was confirmed; the message {_fate(receipt)}",
        receipt=receipt,
    )


def fenced(cause: FencedError, receipt: Receipt | None = None) -> FencedError:
    """
    Return the error of a message, or of whoever asks for a new one, after *cause* has ended the publisher.
    """
    error = FencedError(str(cause), receipt=receipt)
    error.__cause__ = cause
    return error


def stays(receipt: Receipt) -> PublishTimeoutError:
    """
    Return the error of a wait that ends while the message stays in its outbox, and on its way.
    """
    return PublishTimeoutError(
        f"sequence {receipt.sequence} is not confirmed yet; it is in the outbox and stays on its way, also after a restart: do "
        "not publish it anew, publisher.retry(error.receipt) waits for it",
        receipt=receipt,
    )


def unflushed(oldest: Receipt, count: int, timeout_s: float | None) -> PublishTimeoutError:
    """
    Return the error of a flush that ends before *count* messages have their fate.
    """
    return PublishTimeoutError(
        f"{count} messages are not confirmed after {timeout_s or 0:g} s; they stay on their way",
        receipt=oldest,
        unconfirmed=count,
    )


def unanswered(silent: Sequence[str], timeout_s: float) -> NoAnswerError:
    """
    Return the error of a question that the shims of the queues *silent* (empty: of any queue) did not answer in time.
    """
    who = f"the shims of {', '.join(map(repr, silent))} do not answer" if silent else "no shim answers"
    return NoAnswerError(
        f"{who} within {timeout_s:g} s: the question waits behind every message in the ingress; start 'dedup shim' for each "
        "queue, or pass a longer timeout; a queue that is not guarded hands the question to its consumers as an empty message",
        queues=tuple(silent),
    )


def uncertain(publisher_id: str, point: ResumePoint) -> ResumeUncertainError:
    """
    Return the error of a publisher that asks how far it has come when a shim cannot tell; *point* is what the others say.
    """
    lost = sorted(name for name, standing in point.queues.items() if not standing.certain)
    return ResumeUncertainError(
        f"the shims of {', '.join(map(repr, lost))} have lost what they knew of publisher {publisher_id!r}, and more "
        "may have arrived than they know: look into the queue, or resume where you are sure that it has nothing more",
        point=point,
    )


def expired(receipt: Receipt, newest: int, span: int) -> ReceiptExpiredError:
    """
    Return the error of a retry that comes too late.
    """
    return ReceiptExpiredError(
        f"sequence {receipt.sequence} cannot be retried: the newest one sent is {newest}, and a given-up message is kept "
        f"while it is among the last {span} and within the memory set for it; check whether it arrived, or publish it anew",
        receipt=receipt,
    )


def _fate(receipt: Receipt) -> str:
    return "may be stored or not" if receipt.attempts else "was not sent"
