"""Retry the letters of one dead-letter queue: run one session after the other until asked to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from attrs import evolve, field, frozen

from dedup.amqp091.administration import administration
from dedup.amqp091.driver import Ended, Outcome
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.retry_session import RetryObserver, RetrySession
from dedup.core import retry_steps as steps
from dedup.core.backoff import delay_s
from dedup.core.obituaries import Obituary
from dedup.core.retrier import Retrier
from dedup.core.retry_settings import RetrySettings
from dedup.errors import ConfigError, StateFormatError, TopologyError
from dedup.ports import ScheduleFacts
from dedup.store.client import KEY_PREFIX
from dedup.store.schedule import RedisSchedule, ScheduleLimits, Sync

#: Heartbeat where the URL says nothing; seconds. Digests outlive their acks by three of them.
HEARTBEAT_S = 10
#: Longest pause between two sessions; seconds.
PAUSE_S_MAX = 10.0
#: Sessions that the broker ends by closing the channel on a publish before batches shrink to one message, and before
#: that message is given up.
REFUSALS_UNTIL_SINGLE = 1
REFUSALS_UNTIL_BURIED = 3


@frozen
class RetryServiceSettings:
    """
    What one retry service is told to do; one serves one dead-letter queue.
    """

    #: ``amqp://`` or ``amqps://``; several hosts of one cluster separated by commas.
    amqp: str = field(repr=False)
    #: ``redis://``, ``rediss://`` or ``unix://``.
    redis: str = field(repr=False)
    retry: RetrySettings
    limits: ScheduleLimits = field(factory=ScheduleLimits)
    sync: Sync = "server"
    #: Deliveries the broker may send ahead; None: two batches.
    prefetch: int | None = None
    redis_prefix: str = KEY_PREFIX


class Retry:
    """
    The retries of one dead-letter queue.

    Args:
        settings: What to do.
        notice, obituary, facts: Told what happens; called in the thread of run().
        step: Called around each effect, for fault tests.
    """

    def __init__(
        self,
        settings: RetryServiceSettings,
        *,
        notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None,
        obituary: Callable[[Obituary], None] = lambda _: None,
        facts: Callable[[ScheduleFacts], None] = lambda _: None,
        step: Callable[[str, steps.Effect], None] = lambda _when, _effect: None,
    ) -> None:
        self.settings = settings
        self.queue = settings.retry.dead_letter_queue
        self._notice = notice
        self._observer = RetryObserver(self._on_notice, obituary, facts, step)
        self._parameters = connection_parameters(
            settings.amqp, name=f"dedup retry {self.queue}", heartbeat_s=HEARTBEAT_S
        )
        self.schedule = RedisSchedule(
            settings.redis,
            vhost=str(self._parameters[0].virtual_host),
            queue=self.queue,
            limits=settings.limits,
            prefix=settings.redis_prefix,
            sync=settings.sync,
            on_lost=lambda messages: self._notice("dedup.schedule_damaged", {"lost": messages}),
        )
        self._stopping = threading.Event()
        self._session: RetrySession | None = None
        #: Sessions in a row that ended because the broker closed the channel on a publish.
        self._refusals = 0
        #: Messages a careful session has left before the next one may go at full speed.
        self._careful = 0
        #: Sessions in a row that did nothing.
        self._failures = 0

    def run(self) -> None:
        """
        Retry until stop().

        The first look must succeed, for a person is watching; what goes wrong later is told and waited for.

        Raises:
            ConfigError: at the first look, a setting cannot work; the message names it.
            TopologyError: at the first look, there is no such queue.
            UnavailableError: at the first look, broker or Redis cannot be reached.
            StateFormatError: a message in Redis was written by another version.
        """
        for warning in self.schedule.check():
            self._notice("dedup.warning", {"text": warning})
        with administration(self.settings.amqp) as broker:
            if broker.count(self.queue) is None:
                raise TopologyError(
                    f"there is no queue {self.queue!r}; declare it, durable, and let queues dead-letter into it: "
                    "'dedup retry guide QUEUE' shows how"
                )
        try:
            while not self._stopping.is_set():
                self._after(self._run_session())
        finally:
            self.schedule.close()

    def stop(self) -> None:
        """
        Finish what is under way and end; from any thread, but not from a signal handler.
        """
        self._stopping.set()
        session = self._session
        if session is not None:
            session.stop()

    def _run_session(self) -> Ended:
        retry = self.settings.retry
        self._careful = retry.batch_max
        session = RetrySession(
            self._parameters[self._failures % len(self._parameters)],
            Retrier(
                evolve(
                    retry,
                    message_bytes_max=min(retry.message_bytes_max, self.schedule.message_bytes_max()),
                    batch_max=1 if self._refusals >= REFUSALS_UNTIL_SINGLE else retry.batch_max,
                    bury_first=self._refusals >= REFUSALS_UNTIL_BURIED,
                )
            ),
            self.schedule,
            prefetch=self.settings.prefetch or 2 * retry.batch_max,
            observer=self._observer,
        )
        self._session = session
        if self._stopping.is_set():
            # stop() may have come before the session was there to hear it.
            session.stop()
        ended = session.run()
        self._session = None
        return ended

    def _on_notice(self, name: str, facts: dict[str, Any]) -> None:
        """
        Pass a notice on; end a careful session when it is past the message the broker refused.
        """
        self._notice(name, facts)
        if name == "dedup.retried" and self._refusals and self._session is not None:
            self._careful -= facts["messages"]
            if self._careful <= 0:
                self._refusals = 0
                self._session.stop()

    def _after(self, ended: Ended) -> None:
        """
        Draw the conclusions of a session.
        """
        self._notice("dedup.session_ended", {"outcome": ended.outcome.value, "reason": ended.reason})
        if ended.outcome is Outcome.STOPPED:
            return
        if isinstance(ended.error, StateFormatError | ConfigError):
            raise ended.error
        if ended.outcome is Outcome.REFUSED:
            self._refusals += 1
        self._failures = 0 if ended.progressed else self._failures + 1
        if self._failures:
            self._stopping.wait(delay_s(self._failures - 1, random.random(), max_s=PAUSE_S_MAX))
