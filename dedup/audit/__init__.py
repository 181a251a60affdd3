"""The audit: Spark measures the duplicates of a log of arrivals and checks the shim that wrote it."""

from dedup.audit.jobs import answers, daily, results, state_of, stream
from dedup.audit.session import session

__all__ = ["answers", "daily", "results", "session", "state_of", "stream"]
