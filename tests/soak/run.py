"""Run a soak: publishers, shims and servers under the faults of a plan, everything that happens written into a history."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define, frozen

from dedup.amqp091.consuming import OnMessage, PlainConsumer
from dedup.core import names
from dedup.core.identity import MARK_HEADER, REASON_HEADER
from dedup.demo.stage import Stage, stage, through
from dedup.testing.process import address
from dedup.testing.proxy import FaultProxy
from tests.soak.breaking import Breaker, SoakShims
from tests.soak.history import FORMAT, History
from tests.soak.plan import Fault, Step, plan
from tests.soak.producers import Producers, SoakError, Stretch

#: How long confirms may take to come once all is healed, the ingress to run empty, and the rest to be read; seconds.
REST_TIMEOUT_S: Final = 180.0
#: So that a frozen shim is taken for dead within a few seconds.
HEARTBEAT_S: Final = 2
_TICK_S: Final = 0.05
#: What a shim's log says of each line, and a history does not.
_LOG_FACTS: Final = frozenset({"event", "timestamp", "level", "queue"})


@frozen
class Wishes:
    """
    What a soak is asked to be.
    """

    messages: int
    publishers: int
    faults: int
    seed: int
    forwarding: str
    marking: bool
    #: None takes the default version.
    rabbitmq: str | None = None


@define
class Progress:
    """
    Where a soak stands, for whoever watches.
    """

    faults: int = 0
    doing: str = "starting RabbitMQ and Redis"
    #: Events so far.
    events: Counter[str] = Factory(Counter)


Watch = Callable[[Progress], None]


@define
class Logs:
    """
    What the shims log, as events of the history.
    """

    directory: Path
    history: History
    _read: dict[Path, int] = Factory(dict)

    def follow(self) -> None:
        """
        Write what was logged since the last time.
        """
        for path in sorted(self.directory.glob("shim-*.log")):
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                whole, _, _ = log.read().rpartition(b"\n")
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                for line in whole.split(b"\n"):
                    self._write(path.stem, line)

    def _write(self, shim: str, line: bytes) -> None:
        try:
            told = json.loads(line)
            what = str(told["event"])
        except (ValueError, KeyError, TypeError):
            what, told = "not a log line", {"text": line.decode(errors="replace")}
        facts = {key: value for key, value in told.items() if key not in _LOG_FACTS}
        self.history.write("shim", shim=shim, what=what, facts=facts)


def run(wishes: Wishes, history: History, directory: Path, watch: Watch) -> None:
    """
    Run once and write the history, but for its last line.

    Args:
        directory: For data and logs; the caller removes it.
        watch: Called many times a second.

    Raises:
        DedupError: the run could not be made, or came to no end in its time.
    """
    progress = Progress(events=history.counts)
    watch(progress)
    with stage(directory, wishes.rabbitmq, with_dedup=True) as scene, ExitStack() as stack:
        history.write(
            "begin",
            format=FORMAT,
            seed=wishes.seed,
            messages=wishes.messages,
            publishers=wishes.publishers,
            faults=wishes.faults,
            forwarding=wishes.forwarding,
            marking=wishes.marking,
            servers=f"RabbitMQ {scene.rabbitmq.version}, Redis {scene.redis.version}",
        )
        shim_link, store_link = (
            stack.enter_context(FaultProxy(port, host))
            for host, port in (address(scene.rabbitmq.url), address(scene.redis.url))
        )
        logs = Logs(directory / "shims", history)
        logs.directory.mkdir()
        stack.callback(logs.follow)
        settings = {
            **scene.shim_settings(audit=False),
            "DEDUP_AMQP": f"{through(shim_link, scene.rabbitmq.url)}?heartbeat={HEARTBEAT_S}",
            "DEDUP_REDIS": through(store_link, scene.redis.url),
            "DEDUP_FORWARDING": wishes.forwarding,
        }
        shims = SoakShims(settings, logs.directory, scene.in_batch)
        stack.callback(shims.end)
        consumer = PlainConsumer(scene.rabbitmq.url, _readers(scene, history))
        stack.callback(consumer.leave)
        producers = stack.enter_context(
            Producers(
                scene.publisher_url, scene.exchange, wishes.publishers, directory / "publishers", history
            )
        )
        breaker = Breaker(scene, shims, producers, shim_link, store_link)
        _Soak(wishes, history, progress, watch, logs, consumer, breaker).perform()


def _readers(scene: Stage, history: History) -> Mapping[str, OnMessage]:
    """
    Return what notes the messages of each queue.
    """

    def on_read(body: bytes, headers: Mapping[str, Any]) -> None:
        history.write("read", message=_name(body), marked=MARK_HEADER in headers)

    def on_arrived(body: bytes, _: Mapping[str, Any]) -> None:
        history.write("arrived", message=_name(body))

    def on_quarantined(body: bytes, headers: Mapping[str, Any]) -> None:
        history.write("quarantined", message=_name(body), reason=str(headers.get(REASON_HEADER, "")))

    return {scene.queue: on_read, scene.witness: on_arrived, names.quarantine(scene.queue): on_quarantined}


@define
class _Soak:
    """
    One run on its scene.
    """

    _wishes: Wishes
    _history: History
    _progress: Progress
    _watch: Watch
    _logs: Logs
    _consumer: PlainConsumer
    _breaker: Breaker

    @property
    def _shims(self) -> SoakShims:
        return self._breaker.shims

    @property
    def _producers(self) -> Producers:
        return self._breaker.producers

    def perform(self) -> None:
        """
        Publish under faults, let it come to rest, and read what is left.
        """
        self._shims.start()
        if not self._wishes.marking:
            self._consumer.start()
        self._wait_for_a_shim()
        each = self._wishes.messages / self._wishes.publishers
        for step in self._plan():
            done = self._progress.faults
            self._step(step, each * done / self._wishes.faults)
        self._tell("all is healed: waiting for the last confirms")
        self._producers.finish(REST_TIMEOUT_S)
        self._tell("waiting for the shims to forward the rest")
        self._drain()
        self._tell("reading what is left")
        if self._wishes.marking:
            # What a consumer has acknowledged may come again after a crash of the broker, which is nobody's
            # duplicate here; so nothing is consumed before the last one.
            self._consumer.start()
        if not self._consumer.finish(REST_TIMEOUT_S):
            raise SoakError(f"the consumer still finds messages after {REST_TIMEOUT_S:g} s")

    def _plan(self) -> list[Step]:
        wishes = self._wishes
        return list(plan(wishes.seed, wishes.faults, forwarding=wishes.forwarding, marking=wishes.marking))

    def _wait_for_a_shim(self) -> None:
        deadline = time.monotonic() + REST_TIMEOUT_S
        while self._shims.forwarding is None:
            if time.monotonic() > deadline:
                raise SoakError(f"no shim forwards{self._shims.log_tail()}")
            self._tick()

    # -- under faults -----------------------------------------------------------------------------

    def _step(self, step: Step, first: float) -> None:
        each = self._wishes.messages / self._wishes.publishers / self._wishes.faults
        began = time.monotonic()
        last = first + each * len(step.faults)
        if step.burst_at_s is None:
            self._producers.go(Stretch(first, last, began, step.seconds))
        else:
            self._producers.go(Stretch(first, last, began + step.burst_at_s, 0.0))
        acts = [(fault.begins_s, self._begin, fault) for fault in step.faults]
        acts += [(fault.ends_s, self._end, fault) for fault in step.faults]
        for at_s, act, fault in sorted(acts, key=itemgetter(0)):
            self._wait_until(began + at_s)
            act(fault)
        self._wait_until(began + step.seconds)

    def _begin(self, fault: Fault) -> None:
        self._progress.doing = fault.kind
        self._logs.follow()  # what was said before the fault comes before it
        self._history.write("fault", number=fault.number, kind=fault.kind)
        self._breaker.begin(fault)

    def _end(self, fault: Fault) -> None:
        facts = self._breaker.end(fault)
        self._history.write("healed", number=fault.number, facts=facts)
        self._progress.faults += 1

    def _wait_until(self, due: float) -> None:
        self._tick()
        while time.monotonic() < due:
            self._tick()

    # -- coming to rest ---------------------------------------------------------------------------

    def _drain(self) -> None:
        """
        Wait until the ingress is empty and nothing of it is in the hands of a shim.

        Only a shim that has stopped in order holds nothing: what it had not acknowledged is back in the ingress then.
        """
        deadline = time.monotonic() + REST_TIMEOUT_S
        while True:
            self._shims.start()
            self._wait_for_a_shim()
            while self._breaker.scene.waiting():
                if time.monotonic() > deadline:
                    raise SoakError(f"messages wait in the ingress{self._shims.log_tail()}")
                self._wait_until(time.monotonic() + 4 * _TICK_S)
            self._shims.stop()
            if not self._breaker.scene.waiting():
                return

    def _tick(self) -> None:
        self._consumer.check()
        self._shims.check()
        self._producers.check()
        self._logs.follow()
        self._watch(self._progress)
        time.sleep(_TICK_S)

    def _tell(self, doing: str) -> None:
        self._progress.doing = doing
        self._watch(self._progress)


def _name(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")
