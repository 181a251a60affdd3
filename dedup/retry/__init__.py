"""Delayed retries of dead letters: run one session after the other until asked to stop."""

from dedup.retry.service import Retry, RetryServiceSettings

__all__ = ["Retry", "RetryServiceSettings"]
