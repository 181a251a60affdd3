"""
Keep the shims of one process running, and its registry, and end them in order.

Each queue has a thread of its own. A shim waits out what may pass by itself; while its servers cannot be
reached from the start, it is started again with backoff. An error that only a person can mend ends the
whole process, so that whoever supervises it takes notice.

The first SIGTERM or SIGINT lets each shim finish its batch, so that nothing is in doubt; the second ends
the process at once, which costs nothing but that certainty.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import structlog

from dedup.amqp091.inspection import inspect
from dedup.amqp091.leadership import survey
from dedup.amqp091.parameters import connection_parameters
from dedup.config import Settings
from dedup.core.backoff import delay_s
from dedup.core.registry import REGISTRY
from dedup.core.steps import Report
from dedup.errors import ConfigError, DedupError, UnavailableError
from dedup.metrics import Metrics, QueueMetrics, RegistryMetrics
from dedup.ports import MoveFacts, ScheduleFacts
from dedup.service.endpoint import endpoint
from dedup.service.registry import make_registry
from dedup.service.signals import ended_by_signals
from dedup.service.systemd import notify
from dedup.shim import Shim

#: Longest pause before a shim that could not reach its servers is started again; seconds.
RESTART_S_MAX: Final = 15.0
#: How late a signal may be heard; seconds.
SIGNALS_EVERY_S: Final = 0.2
#: How long a shim that has nothing in hand may take to end: it may wait for a server that says nothing; seconds.
IDLE_GRACE_S: Final = 2.0
#: What an operator should look at; everything else is told as information.
_WARNINGS: Final = frozenset(
    {
        "dedup.warning",
        "dedup.rolled_back",
        "dedup.store_unavailable",
        "dedup.store_behind",
        "dedup.refused",
        "dedup.blocked",
        "dedup.unavailable",
        "dedup.unreadable",
        "dedup.webhook_failed",
        "dedup.schedule_full",
        "dedup.schedule_damaged",
        "dedup.retry_refused",
        "dedup.retry_recovered",
        "dedup.registry_dropped",
        "dedup.registry_store_unavailable",
    }
)
#: The level of an obituary by its severity.
_URGENCY: Final = {"page": "error", "notify": "warning", "silent": "info"}
#: What a notice says about the state of a queue.
_STATES: Final = {
    "dedup.recovered": "forwarding",
    "dedup.standby": "standing by",
    "dedup.session_ended": "between sessions",
    "dedup.store_unavailable": "waiting for Redis",
    "dedup.store_back": "forwarding",
    "dedup.unavailable": "waiting for its servers",
    "dedup.registry_serving": "serving",
    "dedup.retrying": "retrying",
}
#: What that means, and what to do.
_READABLE: Final = "password and messages can be read on the way; use amqps://, rediss:// and https://"
_READY: Final = frozenset({"forwarding", "standing by", "serving", "retrying"})
_ENDED: Final = frozenset({"stopped", "failed"})
#: Nothing is in hand, and a thread that is left behind does no harm.
_IDLE: Final = frozenset({"starting", "between sessions", "waiting for its servers"})


def _level(name: str, facts: Mapping[str, Any]) -> str:
    """
    Return how loud a notice is told: a method of the log.
    """
    if name == "dedup.obituary":
        return _URGENCY[facts["severity"]]
    lost = name == "dedup.session_ended" and facts["outcome"] != "stopped"
    return "warning" if lost or name in _WARNINGS else "info"


class Running(Protocol):
    """
    What a worker keeps running: a shim.
    """

    def run(self) -> None:
        """
        Forward until stop().
        """

    def stop(self) -> None:
        """
        Finish and return from run(); from any thread, before it too.
        """


#: Makes a shim from a queue, and whom to tell reports and notices.
Make = Callable[
    [str, Callable[[Report | ScheduleFacts | MoveFacts], None], Callable[[str, dict[str, Any]], None]],
    Running,
]


class Worker:
    """
    The thread of one queue.
    """

    def __init__(
        self, queue: str, make: Make, metrics: QueueMetrics | RegistryMetrics, on_change: Callable[[], None]
    ) -> None:
        self.queue = queue
        self.state = "starting"
        #: What ended it, unless stop() did.
        self.error: BaseException | None = None
        self._make = make
        self._metrics = metrics
        self._on_change = on_change
        self._log = structlog.get_logger("dedup").bind(queue=queue)
        self._stopping = threading.Event()
        self._shim: Running | None = None
        # A daemon: a shim that waits for a server must not outlive the second signal.
        self._thread = threading.Thread(target=self._run, name=f"shim {queue}", daemon=True)

    def start(self) -> None:
        """
        Begin to forward.
        """
        self._thread.start()

    def stop(self) -> None:
        """
        Let the shim finish; from any thread.
        """
        self._stopping.set()
        shim = self._shim
        if shim is not None:
            shim.stop()

    def join(self) -> None:
        """
        Wait for the end; but not for long, once it is wanted, for a shim that has nothing in hand.

        Not in one wait: a signal that the system gives to another thread does not interrupt it.
        """
        idle_s = 0.0
        while self._thread.is_alive() and idle_s < IDLE_GRACE_S:
            self._thread.join(SIGNALS_EVERY_S)
            idle_s = idle_s + SIGNALS_EVERY_S if self._stopping.is_set() and self.state in _IDLE else 0.0

    @property
    def alive(self) -> bool:
        """
        Say whether the thread runs.
        """
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """
        Say whether the queue is forwarded, here or by the one this stands by for.
        """
        return self.state in _READY

    def notice(self, name: str, facts: Mapping[str, Any]) -> None:
        """
        Log and count what happened.
        """
        # An obituary names the queue a message died in, and not the one that is worked on.
        getattr(self._log, _level(name, facts))(name, **facts)
        self._metrics.notice(name, facts)
        if name in _STATES:
            self._change(_STATES[name])

    def report(self, report: Report | ScheduleFacts | MoveFacts) -> None:
        """
        Count a batch; name the publishers that were forgotten. Of a retry service or a move, show what waits.
        """
        match report, self._metrics:
            case ScheduleFacts(), QueueMetrics() as metrics:
                metrics.schedule(report)
            case MoveFacts(), QueueMetrics() as metrics:
                metrics.source(report)
            case Report(), metrics:
                metrics.report(report)
                if report.evicted:
                    self._log.info("dedup.publishers_evicted", publishers=list(report.evicted))

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                try:
                    self._run_once()
                    break
                except UnavailableError as error:
                    pause_s = delay_s(failures, random.random(), max_s=RESTART_S_MAX)
                    failures += 1
                    self.notice("dedup.unavailable", {"reason": str(error), "retry_in_s": round(pause_s, 1)})
                    self._stopping.wait(pause_s)
        except DedupError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 nobody else hears what ends a thread
            self._log.critical("dedup.failed", exc_info=True)
            self.error = error
        finally:
            self._change("stopped" if self.error is None else "failed")

    def _run_once(self) -> None:
        self._shim = self._make(self.queue, self.report, self.notice)
        if self._stopping.is_set():
            # stop() may have come before the shim was there to hear it.
            self._shim.stop()
        self._shim.run()

    def _change(self, state: str) -> None:
        self.state = state
        self._on_change()


class Service:
    """
    All shims of one process, and its registry.

    The registry is no part of the shims' health: they forward whether publishers can register or not.

    Args:
        settings: amqp, redis and queues are needed; without shims only the first two.
        make: Makes the shim of a queue.
        shims: False: serve the registry and nothing else.

    Raises:
        ConfigError: something needed is not set.
    """

    def __init__(self, settings: Settings, make: Make | None = None, *, shims: bool = True) -> None:
        settings.require("amqp", "redis", *(("queues",) if shims else ()))
        self._settings = settings
        self._metrics = Metrics()
        make = make or partial(_make_shim, settings)
        counts = self._metrics.of_registry
        self._registry = Worker(
            REGISTRY,
            partial(make_registry, settings, counts),
            counts,
            self._on_registry_change if shims else self._on_change,
        )
        queues = settings.queues if shims else ()
        self._workers = [Worker(queue, make, self._metrics.of(queue), self._on_change) for queue in queues]
        if not shims:
            self._workers.append(self._registry)
        self._serves_beside = shims and settings.registry == "on"
        self._stopping = False
        self._was_ready = False
        self._log = structlog.get_logger("dedup")

    def run(self) -> None:
        """
        Forward until a signal or an error that only a person can mend; call it in the main thread.

        Raises:
            ConfigError: what that error was.
        """
        registry = self._metrics.registry
        with endpoint(self._settings.listen, registry, live=self._live, ready=self._ready) as listening:
            self._log.info("dedup.started", queues=list(self._settings.queues), listen=listening or None)
            for url in self._settings.readable_on_the_way():
                self._log.warning(
                    "dedup.warning", text=f"{url} leads to another machine without TLS: {_READABLE}"
                )
            with ended_by_signals(self._on_signal):
                for worker in self._workers:
                    worker.start()
                if self._serves_beside:
                    self._registry.start()
                for worker in self._workers:
                    worker.join()
                if self._serves_beside:
                    self._registry.stop()
                    self._registry.join()
        self._log.info("dedup.stopped")
        for worker in self._workers:
            if isinstance(worker.error, DedupError):
                raise ConfigError(f"{worker.queue}: {worker.error}") from worker.error
            if worker.error is not None:
                sys.exit(1)  # it was logged, with its traceback

    def stop(self) -> None:
        """
        Let every shim finish; from any thread.
        """
        self._stopping = True
        notify("STOPPING=1")
        for worker in self._workers:
            worker.stop()
        self._registry.stop()

    def _on_registry_change(self) -> None:
        """
        Say why publishers cannot register here, if only a person can mend it.
        """
        if isinstance(self._registry.error, DedupError):
            reason = f"this process does not serve the registry: {self._registry.error}"
            self._log.warning(
                "dedup.warning", text=f'{reason}; or set registry = "off" and run "dedup registry"'
            )

    def _on_change(self) -> None:
        """
        Tell systemd when all is ready; end everything when one queue has ended.
        """
        if not self._was_ready and all(worker.ready for worker in self._workers):
            self._was_ready = True
            notify("READY=1")
        if not self._stopping and any(worker.state in _ENDED for worker in self._workers):
            self.stop()

    def _live(self) -> tuple[bool, Mapping[str, str]]:
        return all(worker.alive for worker in self._workers), self._states()

    def _ready(self) -> tuple[bool, Mapping[str, str]]:
        return not self._stopping and all(worker.ready for worker in self._workers), self._states()

    def _states(self) -> Mapping[str, str]:
        return {worker.queue: worker.state for worker in self._workers}

    def _on_signal(self, number: signal.Signals) -> None:
        self._log.info("dedup.stopping", signal=number.name)
        self.stop()


def _make_shim(
    settings: Settings,
    queue: str,
    report: Callable[[Report], None],
    notice: Callable[[str, dict[str, Any]], None],
) -> Running:
    management = settings.management_api()
    look = partial(
        inspect,
        settings.amqp,
        queue,
        management=management,
        management_needed=settings.forwarding == "exact",
        audit=settings.audit == "events",
    )
    vhost = str(connection_parameters(settings.amqp, name="dedup")[0].virtual_host)
    leads = None if management is None else partial(survey, management, vhost, queue)
    return Shim(settings.shim(queue), inspect=look, survey=leads, report=report, notice=notice)
