"""Word what the caller of a message is told when it was not confirmed: what, why, and what to do."""

from __future__ import annotations

from dedup.core.identity import Receipt
from dedup.core.sending import Message
from dedup.errors import (
    ClosedUnconfirmedError,
    PublishError,
    PublishTimeoutError,
    ReceiptExpiredError,
    ReturnedError,
)


def timed_out(message: Message, receipt: Receipt, hindrance: str) -> PublishTimeoutError:
    """
    Return the error of a message whose time was up; *hindrance* says what it waited for.
    """
    return PublishTimeoutError(
        f"no confirm for sequence {message.sequence} in time: {hindrance}; the message {_fate(receipt)}, "
        "publisher.retry(error.receipt) is safe",
        receipt=receipt,
    )


def returned(message: Message, receipt: Receipt, code: int, text: str) -> ReturnedError:
    """
    Return the error of a message that no queue took.
    """
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


def closed(receipt: Receipt) -> ClosedUnconfirmedError:
    """
    Return the error of a message whose publisher was closed before the confirm.
    """
    return ClosedUnconfirmedError(
        f"the publisher was closed before sequence {receipt.sequence} was confirmed; the message {_fate(receipt)}",
        receipt=receipt,
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
