"""Every exception dedup raises, in one family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup.core.identity import Receipt
    from dedup.core.questions import ResumePoint


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


class RegistryUnavailableError(UnavailableError):
    """Raised when no registry answers: start a shim or ``dedup registry``, or publish with ``registration="local"``."""


class StoreLimitError(DedupError):
    """Raised when Redis takes no value as large as a message: raise its proto-max-bulk-len, or lower message_bytes_max."""


class StoreFencedError(DedupError):
    """Raised when Redis holds a newer fencing token: another relay owns this queue now and this one must stop."""


class LogUnavailableError(UnavailableError):
    """Raised when the audit's event log cannot be read or written: disk full, store out of reach, file torn."""


class RecordFormatError(DedupError):
    """Raised when a message in an audit queue is no record of the event log, or of another version."""


class RegistryFormatError(DedupError):
    """Raised when a message to or from the registry is not what it should be; it is answered with an error or dropped."""


class QuestionFormatError(DedupError):
    """Raised when what claims to be an answer or a receipt of a shim is none; it is dropped."""


class ResumeUncertainError(DedupError):
    """Raised when a shim has lost what it knew of a publisher: look into the queues before you resume; *point* has what is left."""

    point: ResumePoint


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


class NoAnswerError(DedupError, TimeoutError):
    """Raised when the shims do not answer a question in time: is there one for each queue? *queues* names the silent ones."""

    #: Guarded queues that were asked for and did not answer; empty when none was asked for by name.
    queues: tuple[str, ...]


class OutOfTurnError(DedupError):
    """Raised when a message is stamped before an older one that must be sent again; *oldest* is the one whose turn it is."""

    oldest: Receipt


class WindowFullError(OutOfTurnError):
    """Raised when a new number would be so far above the oldest unconfirmed one that a re-send of that may be quarantined."""


class PublisherClosedError(DedupError):
    """Raised when a closed publisher is asked to publish."""


class ClosedUnconfirmedError(PublishError, PublisherClosedError):
    """Raised for a message whose publisher was closed before the confirm: it may be stored or not."""


class PublisherAlreadyRegisteredError(DedupError):
    """Raised when another connection holds the publisher id: stop that publisher, use another id, or ``takeover=True``."""

    publisher_id: str
    #: Who registered it last, as the registry knows: host, process, since when; empty when it cannot tell.
    holder: str


class FencedError(PublisherClosedError):
    """Raised by a publisher whose id a newer owner has registered: make a new publisher, under another id if both stay."""

    #: The message that is given up; None where a closed publisher is asked for a new one.
    receipt: Receipt | None = None


class OutboxError(DedupError):
    """Raised when an outbox cannot be used as it is: damaged, another publisher's, of another version; nothing was changed."""


class OutboxInUseError(OutboxError):
    """Raised when another process works on the outbox: stop that one, or use another outbox and publisher id."""

    #: Its process id, on its machine or in its container; None when it cannot be known.
    pid: int | None


class OutboxFullError(OutboxError, TimeoutError):
    """Raised when an outbox has no room in time: the message was not kept, and no sequence was used."""


class OutboxUnavailableError(OutboxError, UnavailableError):
    """Raised when an outbox cannot be read or written now: disk full, read-only, database away; nothing half was written."""
