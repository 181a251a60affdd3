"""Run cells of the matrix on real servers, several at a time."""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Self

from dedup.testing.cluster import RabbitMQCluster
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.cluster_faults import ClusterScene
from tests.fault.guarded import BATCH_MAX
from tests.fault.matrix import Cell, Outcome, Reach
from tests.fault.record import Record, Tally
from tests.fault.scene import Scene

#: A control that shows nothing by chance is repeated this often.
CONTROLS_MAX = 5
#: Failures after which a cell is given up.
FAILURES_MAX = 3
#: Scenes of one cell that a fault of the broker strikes at once.
COPIES = 2

Progress = Callable[[str], None]


def run_scene(
    cell: Cell,
    rabbitmq: RabbitMQ,
    redis: Redis,
    *,
    times: int = 1,
    control: bool = False,
    together: threading.Barrier | None = None,
) -> Outcome:
    """Run *cell* once."""
    with Scene(cell, rabbitmq, redis, _queue(cell), times=times, control=control, together=together) as scene:
        return scene.run()


def run_in_cluster(cell: Cell, cluster: RabbitMQCluster, redis: Redis, *, control: bool = False) -> Outcome:
    """Run *cell* once in a cluster of three nodes, of which some may be down at first and afterwards."""
    with ClusterScene(cell, cluster, redis, _queue(cell), control=control) as scene:
        return scene.run()


def run_together(
    cells: Sequence[Cell], rabbitmq: RabbitMQ, redis: Redis, *, control: bool = False
) -> list[Outcome | str]:
    """
    Run *cells* side by side on one broker, whose faults strike all of them at once.

    Returns:
        For each what it came to; or, in words, how it went wrong; nothing where it only waited for one that went wrong.
    """
    barrier = threading.Barrier(len(cells))

    def run(cell: Cell) -> Outcome | str:
        try:
            return run_scene(cell, rabbitmq, redis, control=control, together=barrier)
        except threading.BrokenBarrierError:
            return ""
        except Exception:  # noqa: BLE001 - whatever it is, it is a failure of this cell
            return _last_lines()

    with ThreadPoolExecutor(len(cells)) as pool:
        return list(pool.map(run, cells))


class Lab:
    """
    One version's broker, and as many Redis servers as run side by side; a context manager.

    Args:
        version: Of RabbitMQ, as `RabbitMQ` takes it.
        record: Gets what comes out.
        workers: How many scenes run side by side.
        progress: Told what is being run.
    """

    def __init__(self, version: str, record: Record, *, workers: int, progress: Progress) -> None:
        self.version = version
        self._record = record
        self._workers = workers
        self._progress = progress
        self._rabbitmq = RabbitMQ(version)
        self._cluster: RabbitMQCluster | None = None
        self._idle: SimpleQueue[Redis] = SimpleQueue()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._rabbitmq)
        for _ in range(max(self._workers, 1)):
            self._idle.put(self._stack.enter_context(Redis()))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, cells: Sequence[Cell], times: int, on_done: Callable[[], None]) -> None:
        """
        Let the fault of each cell strike *times* times in all, and show its control.

        Args:
            on_done: Called after each cell, one call at a time.
        """
        lock = threading.Lock()

        def run_one(cell: Cell) -> None:
            self._run_cell(cell, times)
            with lock:
                on_done()

        alone = [cell for cell in cells if cell.reach in (Reach.SCENE, Reach.REDIS)]
        with ThreadPoolExecutor(self._workers) as pool:
            list(pool.map(run_one, alone))
        by_fault: dict[str, list[Cell]] = {}
        for cell in cells:
            if cell.reach is Reach.BROKER:
                by_fault.setdefault(cell.fault, []).append(cell)
        for struck in by_fault.values():
            self._run_together(struck, times)
            on_done()
        in_cluster = [cell for cell in cells if cell.reach is Reach.CLUSTER]
        if in_cluster:
            with RabbitMQCluster(self.version) as self._cluster:
                for cell in in_cluster:
                    run_one(cell)

    # -- alone ------------------------------------------------------------------------------------

    def _run_cell(self, cell: Cell, times: int) -> None:
        tally = self._record.of(cell, self.version)
        with self._redis() as redis:
            for _ in range(CONTROLS_MAX):
                if not self._record.shown(cell, self.version):
                    self._attempt(cell, tally, redis, times=min(times, 5), control=True)
            while tally.faults < times and tally.failures < FAILURES_MAX:
                self._progress(f"{self.version} {cell.name} {tally.faults}/{times}")
                self._attempt(cell, tally, redis, times=times - tally.faults, control=False)

    def _attempt(self, cell: Cell, tally: Tally, redis: Redis, *, times: int, control: bool) -> None:
        try:
            if cell.reach is Reach.CLUSTER:
                assert self._cluster is not None
                outcome = run_in_cluster(cell, self._cluster, redis, control=control)
            else:
                outcome = run_scene(cell, self._rabbitmq, redis, times=times, control=control)
        except Exception:  # noqa: BLE001 - whatever it is, it is a failure of this cell and no other
            self._restore(redis)
            tally.fail(f"{'control' if control else 'run'} did not end: {_last_lines()}")
        else:
            self._add(cell, tally, outcome, control=control)

    def _add(self, cell: Cell, tally: Tally, outcome: Outcome, *, control: bool) -> None:
        if control:
            tally.add_control(outcome)
        else:
            tally.add(cell, outcome, BATCH_MAX)

    @contextmanager
    def _redis(self) -> Iterator[Redis]:
        redis = self._idle.get()
        try:
            yield redis
        finally:
            self._idle.put(redis)

    def _restore(self, *servers: Redis) -> None:
        """Bring servers back that a run left frozen, dead, full or refusing."""
        self._rabbitmq.ensure_running()
        for redis in servers:
            redis.ensure_running()
            redis.empty()

    # -- together ---------------------------------------------------------------------------------

    def _run_together(self, cells: Sequence[Cell], times: int) -> None:
        """Strike the broker while scenes of all *cells* run on it."""
        tallies = [self._record.of(cell, self.version) for cell in cells]
        for _ in range(CONTROLS_MAX):
            if not all(self._record.shown(cell, self.version) for cell in cells):
                self._strike(cells, 1, control=True)
        while min(tally.faults for tally in tallies) < times:
            if any(tally.failures >= FAILURES_MAX for tally in tallies):
                return
            left = times - min(tally.faults for tally in tallies)
            self._progress(f"{self.version} {cells[0].fault} {times - left}/{times}")
            self._strike(cells, min(COPIES, left), control=False)

    def _strike(self, cells: Sequence[Cell], copies: int, *, control: bool) -> None:
        scenes = [cell for cell in cells for _ in range(copies)]
        with self._redis() as redis:
            outcomes = run_together(scenes, self._rabbitmq, redis, control=control)
        if any(isinstance(outcome, str) for outcome in outcomes):
            self._rabbitmq.kill()
            self._rabbitmq.start()
        for cell, outcome in zip(scenes, outcomes, strict=True):
            tally = self._record.of(cell, self.version)
            if isinstance(outcome, Outcome):
                self._add(cell, tally, outcome, control=control)
            elif outcome:
                tally.fail(f"{'control' if control else 'run'} did not end: {outcome}")


def versions_of(cell: Cell, versions: Iterable[str]) -> list[str]:
    """Return on which of *versions* a cell is run: faults of Redis alone, and of a cluster, on the first that it runs on."""
    found = [version for version in versions if cell.runs_on(version)]
    return found[:1] if cell.reach in (Reach.REDIS, Reach.CLUSTER) else found


def _queue(cell: Cell) -> str:
    """Return a name nobody else uses."""
    return f"{cell.fault}-{cell.layout.name}-{uuid.uuid4().hex[:8]}"


def _last_lines() -> str:
    return " ".join(traceback.format_exc(limit=-3).split())[-600:]
