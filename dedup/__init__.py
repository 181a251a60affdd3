"""Publisher-side de-duplication for RabbitMQ: a retried publish reaches the queue once."""

from dedup.core.identity import Receipt
from dedup.errors import (
    BrokerUnavailableError,
    ClosedUnconfirmedError,
    ConfigError,
    DedupError,
    InvalidIdentityError,
    InvalidMessageError,
    PublisherClosedError,
    PublishError,
    PublishTimeoutError,
    ReceiptExpiredError,
    ReturnedError,
    UnavailableError,
)
from dedup.publisher import Properties, Publisher

__version__ = "0.1.0"

__all__ = [
    "BrokerUnavailableError",
    "ClosedUnconfirmedError",
    "ConfigError",
    "DedupError",
    "InvalidIdentityError",
    "InvalidMessageError",
    "Properties",
    "PublishError",
    "PublishTimeoutError",
    "Publisher",
    "PublisherClosedError",
    "Receipt",
    "ReceiptExpiredError",
    "ReturnedError",
    "UnavailableError",
]
