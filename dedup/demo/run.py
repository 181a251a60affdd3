"""Run the demo: publish through a link that fails, kill shims, then let everything come to rest and count."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from pathlib import Path

from attrs import evolve

from dedup.amqp091.consuming import PlainConsumer
from dedup.core import names
from dedup.core.identity import MARK_HEADER
from dedup.demo.auditing import audited
from dedup.demo.outcome import Outcome, Progress, Wishes
from dedup.demo.plan import KILLS, Act, Fault, plan
from dedup.demo.producers import Producer, produce
from dedup.demo.shims import DemoError, Shims
from dedup.demo.stage import Stage, stage
from dedup.errors import DedupError, PublishTimeoutError
from dedup.testing.proxy import TO_CLIENT, TO_SERVER

#: Beyond the time that was asked for, publishing may take this long; seconds.
PUBLISH_GRACE_S = 60.0
#: How long confirms may take to come once the link is whole, and the ingress to run empty; seconds.
REST_TIMEOUT_S = 60.0
#: A kill that finds nobody forwarding comes later by this, again and again; seconds.
KILL_DELAY_S = 0.2
_TICK_S = 0.05


Watch = Callable[[Progress], None]


def run(wishes: Wishes, directory: Path, watch: Watch) -> Outcome:
    """
    Run once.

    Args:
        directory: For data and logs; the caller removes it.
        watch: Called many times a second.

    Raises:
        DedupError: the run could not be made, or came to no end in its time.
    """
    progress = Progress(wishes)
    watch(progress)
    with stage(directory, wishes.rabbitmq, with_dedup=wishes.with_dedup) as scene:
        began = time.monotonic()
        progress.servers = f"RabbitMQ {scene.rabbitmq.version}, Redis {scene.redis.version}".rstrip()
        _Run(scene, progress, directory, watch).perform()
        seconds = time.monotonic() - began
        inspection = scene.inspection
        audit, missing = None, ""
        if wishes.report is not None and inspection is not None:
            progress.doing = "auditing the shims' event log with Spark"
            watch(progress)
            try:
                audit = audited(scene.rabbitmq.url, scene.queue, directory / "log", wishes.report)
            except DedupError as error:
                missing = str(error)
        return Outcome(
            account=progress.oracle.account(),
            wishes=wishes,
            faults=progress.faults,
            exact=inspection is not None and inspection.exact_possible,
            forwarding=inspection.reason if inspection is not None else "there is no shim",
            seconds=seconds,
            servers=progress.servers,
            audit=audit,
            audit_missing=missing,
        )


class _Run:
    """
    One run on its stage.
    """

    def __init__(self, scene: Stage, progress: Progress, directory: Path, watch: Watch) -> None:
        self._scene = scene
        self._progress = progress
        self._watch = watch
        self._shims = Shims(
            scene.shim_settings(audit=progress.wishes.report is not None), directory, scene.in_batch
        )
        oracle = progress.oracle
        self._consumer = PlainConsumer(
            scene.rabbitmq.url,
            {
                scene.queue: lambda body, headers: oracle.deliver(_name(body), marked=MARK_HEADER in headers),
                scene.witness: lambda body, _: oracle.arrive(_name(body)),
                names.quarantine(scene.queue): lambda body, _: oracle.quarantine(_name(body)),
            },
        )

    def perform(self) -> None:
        """
        Publish under faults, let it come to rest, and read what is left.
        """
        with ExitStack() as stack:
            stack.callback(self._shims.end)
            if self._scene.inspection is not None:
                self._shims.start()
            stack.callback(self._consumer.leave)
            self._consumer.start()
            with self._producers() as producers:
                self._publish(producers)
                self._tell("the faults are over: waiting for the last confirms")
                self._confirm(producers)
            if self._scene.inspection is not None:
                self._tell("waiting for the shim to forward the rest")
                self._drain()
            self._tell("counting")
            if not self._consumer.finish(REST_TIMEOUT_S):
                raise DemoError(f"the consumer still finds messages after {REST_TIMEOUT_S:g} s")
            self._tell("")

    @contextmanager
    def _producers(self) -> Iterator[list[Producer]]:
        wishes = self._progress.wishes
        self._tell("connecting the publishers")
        with ExitStack() as stack:
            producers = []
            for producer in produce(
                self._scene.publisher_url,
                self._scene.exchange,
                publishers=wishes.publishers,
                messages=wishes.messages,
                seconds=wishes.seconds,
                oracle=self._progress.oracle,
                registered=self._scene.inspection is not None,
            ):
                stack.callback(producer.end)
                producers.append(producer)
            yield producers

    # -- publishing under faults ------------------------------------------------------------------

    def _publish(self, producers: list[Producer]) -> None:
        wishes = self._progress.wishes
        acts = plan(wishes.seed, wishes.seconds)
        if not wishes.with_dedup:
            acts = [act for act in acts if act.fault not in KILLS]
        began = time.monotonic()
        self._tell("publishing")
        for producer in producers:
            producer.start()
        while not all(producer.is_done for producer in producers):
            self._progress.elapsed_s = time.monotonic() - began
            if self._progress.elapsed_s > wishes.seconds + PUBLISH_GRACE_S:
                raise self._stuck(
                    "the publishers cannot hand over their messages", wishes.seconds + PUBLISH_GRACE_S
                )
            while acts and acts[0].at_s <= self._progress.elapsed_s:
                act = acts.pop(0)
                if act.fault in KILLS and not self._shims.forwarding:
                    # On a slow machine the shims before it were killed faster than others could start.
                    insort(acts, evolve(act, at_s=act.at_s + KILL_DELAY_S), key=attrgetter("at_s"))
                else:
                    self._act(act)
            self._check(producers)
            self._watch(self._progress)
            time.sleep(_TICK_S)
        self._scene.link.cut()
        self._scene.link.heal()
        self._check(producers)

    def _act(self, act: Act) -> None:
        link, faults = self._scene.link, self._progress.faults
        match act.fault:
            case Fault.KILL:
                self._shims.kill()
            case Fault.KILL_IN_BATCH:
                self._shims.kill(hunt=True)
            case Fault.KILL_ALL:
                self._shims.kill(standby=True)
            case Fault.SWALLOW:
                link.drop(TO_CLIENT)
                faults.swallowed += 1
            case Fault.RESTORE:
                link.cut()
                link.heal()
                faults.resets += 1
            case Fault.RESET:
                link.cut()
                faults.resets += 1
            case Fault.TEAR:
                link.cut_after(act.bytes_left, TO_SERVER)
                faults.resets += 1
        faults.kills, faults.kills_in_batch = self._shims.kills, self._shims.kills_in_batch
        self._tell(act.fault.value)

    # -- coming to rest ---------------------------------------------------------------------------

    def _confirm(self, producers: list[Producer]) -> None:
        deadline = time.monotonic() + REST_TIMEOUT_S
        for producer in producers:
            try:
                producer.flush(max(0.0, deadline - time.monotonic()))
            except PublishTimeoutError as error:
                raise self._stuck(f"{producer.name}: {error}", REST_TIMEOUT_S) from error
        self._check(producers)

    def _drain(self) -> None:
        """
        Wait until the ingress is empty and nothing of it is in the hands of a shim.

        Only a shim that has stopped in order holds nothing: what it had not acknowledged is back in the ingress then.
        """
        oracle = self._progress.oracle
        deadline = time.monotonic() + REST_TIMEOUT_S
        patience = time.monotonic() + REST_TIMEOUT_S / 6
        while True:
            self._shims.start()
            while self._scene.waiting() or (oracle.unsettled() and time.monotonic() < patience):
                self._check([])
                if time.monotonic() > deadline:
                    raise self._stuck(f"{self._scene.waiting()} messages wait in the ingress", REST_TIMEOUT_S)
                self._watch(self._progress)
                time.sleep(4 * _TICK_S)
            self._shims.stop()
            if not self._scene.waiting():
                return

    def _check(self, producers: list[Producer]) -> None:
        self._consumer.check()
        if self._scene.inspection is not None:
            self._shims.check()
        for producer in producers:
            if producer.failure is not None:
                raise DemoError(f"publisher {producer.name} failed: {producer.failure}") from producer.failure

    def _stuck(self, what: str, seconds: float) -> DemoError:
        return DemoError(f"the run is stuck: {what}, after {seconds:g} s{self._shims.log_tail()}")

    def _tell(self, doing: str) -> None:
        self._progress.doing = doing
        self._watch(self._progress)


def _name(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")
