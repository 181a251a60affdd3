"""Every exception dedup raises, in one family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup.core.identity import Receipt


class DedupError(Exception):
    """
    Base of everything dedup raises; catch it to catch them all.

    The docstring of each subclass is its default message; facts are attributes.
    """

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        text = message or " ".join((type(self).__doc__ or "").split())
        super().__init__(text)
        for name, value in facts.items():
            setattr(self, name, value)


class ConfigError(DedupError, ValueError):
    """Raised when a setting is missing, contradictory or out of range; the message names the setting and the fix."""


class InvalidMessageError(DedupError, ValueError):
    """Raised when a message cannot be published as it is; nothing was sent and no sequence was used."""


class InvalidIdentityError(DedupError, ValueError):
    """Raised when a publisher id or a sequence is outside what the wire allows (DESIGN section 3)."""


class UnavailableError(DedupError):
    """Raised when a server cannot be reached; the one branch of errors that is worth trying again."""


class BrokerUnavailableError(UnavailableError):
    """Raised when no AMQP broker of the given URLs can be reached."""


class StoreUnavailableError(UnavailableError):
    """Raised when Redis cannot answer: down, loading, read-only, out of memory or timed out."""


class StoreFencedError(DedupError):
    """Raised when Redis holds a newer fencing token: another relay owns this queue now and this one must stop."""


class LogUnavailableError(UnavailableError):
    """Raised when the audit's event log cannot be read or written: disk full, store out of reach, file torn."""


class RecordFormatError(DedupError):
    """Raised when a message in an audit queue is no record of the event log, or of another version."""


class StateFormatError(DedupError):
    """Raised when the state found in Redis was written by an unknown version; nothing was changed."""


class TopologyError(DedupError):
    """Raised when a queue, exchange or binding is missing or would lose messages; the message names the fix."""


class PartialCommitError(DedupError):
    """Raised when the broker refused part of a transaction (406 partial tx completion): the batch is in doubt."""


class PublishError(DedupError):
    """Raised when a message is not known to be stored; *receipt* makes a retry safe."""

    receipt: Receipt


class PublishTimeoutError(PublishError, TimeoutError):
    """Raised when no confirm came in time: the message may be stored or not; ``publisher.retry(receipt)`` is safe."""


class ReturnedError(PublishError):
    """Raised when the broker returned the message because no queue was bound for its exchange and routing key."""


class ReceiptExpiredError(PublishError):
    """Raised when a receipt is too far behind the newest sequence for a retry to be told from a duplicate."""


class PublisherClosedError(DedupError):
    """Raised when a closed publisher is asked to publish."""


class ClosedUnconfirmedError(PublishError, PublisherClosedError):
    """Raised for a message whose publisher was closed before the confirm: it may be stored or not."""
