"""Run shims as a process: a thread for each queue, signals, log, metrics and health."""

from dedup.service.logs import configure as configure_logs
from dedup.service.workers import Service

__all__ = ["Service", "configure_logs"]
