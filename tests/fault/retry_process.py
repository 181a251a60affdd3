"""
A retry service as a process of its own, which kills or freezes itself at a named step if it is told to.

Its settings: amqp, redis, queue; kill [when, effect, n] or null, signal as of a shim process; the others as those of a service.
"""

from __future__ import annotations

import signal
from typing import Any

from dedup.core import retry_steps as steps
from dedup.core.retry_settings import RetrySettings
from dedup.core.schedule import Backoff
from dedup.retry import Retry, RetryServiceSettings
from dedup.service.signals import ended_by_signals
from dedup.store.schedule import ScheduleLimits
from tests.fault.child import Child, Tell, trap_of


def run(settings: dict[str, Any], tell: Tell) -> None:
    """Run one retry service as *settings* say, until SIGTERM."""
    trap = trap_of(settings)

    def step(when: str, effect: steps.Effect) -> None:
        trap.step(when, type(effect).__name__)

    retry = Retry(
        RetryServiceSettings(
            settings["amqp"],
            settings["redis"],
            RetrySettings(
                settings["queue"],
                Backoff(tuple(settings.get("delays_s", (0.1,))), settings.get("attempts_max", 3)),
                batch_max=settings.get("batch_max", 4),
                keep_s=settings.get("keep_s", 30.0),
                sweep_s=settings.get("sweep_s", 0.1),
                poll_s=0.02,
                rate_max=settings.get("rate_max", 5000.0),
                message_bytes_max=settings.get("message_bytes_max", 1_000_000),
            ),
            ScheduleLimits(settings.get("messages_max", 10_000)),
            sync=settings.get("sync", "server"),
        ),
        notice=tell,
        obituary=lambda obituary: tell("obituary", obituary.facts()),
        step=step,
    )
    with ended_by_signals(lambda _: retry.stop(), (signal.SIGTERM,)):
        tell("started", {})
        retry.run()


class RetryProcess(Child):
    """A retry service in a process of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(run, settings)
