"""Publisher-side de-duplication for RabbitMQ: a retried publish reaches the queue once."""

from dedup.core.deaths import Death, DeathHistory
from dedup.core.identity import Receipt
from dedup.core.questions import ResumePoint, Standing, Status, Told
from dedup.errors import (
    BrokerUnavailableError,
    ClosedUnconfirmedError,
    ConfigError,
    DedupError,
    FencedError,
    InvalidIdentityError,
    InvalidMessageError,
    NoAnswerError,
    OutboxError,
    OutboxFullError,
    OutboxInUseError,
    OutboxUnavailableError,
    OutOfTurnError,
    PublisherAlreadyRegisteredError,
    PublisherClosedError,
    PublishError,
    PublishTimeoutError,
    ReceiptExpiredError,
    RegistryUnavailableError,
    ResumeUncertainError,
    ReturnedError,
    UnavailableError,
    WindowFullError,
)
from dedup.outbox.enqueue import Outbox
from dedup.publisher import Properties, Publisher
from dedup.stamper import Stamp, Stamper

__version__ = "0.1.0"

__all__ = [
    "BrokerUnavailableError",
    "ClosedUnconfirmedError",
    "ConfigError",
    "Death",
    "DeathHistory",
    "DedupError",
    "FencedError",
    "InvalidIdentityError",
    "InvalidMessageError",
    "NoAnswerError",
    "OutOfTurnError",
    "Outbox",
    "OutboxError",
    "OutboxFullError",
    "OutboxInUseError",
    "OutboxUnavailableError",
    "Properties",
    "PublishError",
    "PublishTimeoutError",
    "Publisher",
    "PublisherAlreadyRegisteredError",
    "PublisherClosedError",
    "Receipt",
    "ReceiptExpiredError",
    "RegistryUnavailableError",
    "ResumePoint",
    "ResumeUncertainError",
    "ReturnedError",
    "Stamp",
    "Stamper",
    "Standing",
    "Status",
    "Told",
    "UnavailableError",
    "WindowFullError",
]
