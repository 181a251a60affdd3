"""A few strikes of the faults of the matrix: promises are kept, and a plain loop in the shim's place shows that the faults are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from dedup.testing.cluster import RabbitMQCluster
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.cells import CELLS
from tests.fault.guarded import BATCH_MAX
from tests.fault.lab import run_in_cluster, run_scene
from tests.fault.matrix import CONFIRMED, OVER_091, Cell, Marks, Outcome, Reach, broken
from tests.fault.promises import (
    check_a_broken_promise_is_seen,
    check_broker_fault_is_real,
    check_fault_is_real,
    check_promises,
    check_together,
)
from tests.fault.scene import Scene

#: Those of AMQP 1.0, which needs a library that may be missing, are in tests/proton.
_QUICK = [cell for cell in CELLS if cell.quick and cell.layout in OVER_091]
_ALONE = [cell for cell in _QUICK if cell.reach in (Reach.SCENE, Reach.REDIS)]
_STRUCK_TOGETHER = sorted({cell.fault for cell in _QUICK if cell.reach is Reach.BROKER})
_IN_CLUSTER = [cell for cell in CELLS if cell.reach is Reach.CLUSTER]
#: Their controls wait for heartbeats to be missed; `make fault` has the patience.
_SLOW_CONTROLS = ("publisher-half-open", "shim-half-open")
#: The first cell of each fault stands for the controls of all.
_CONTROLS = [
    cell
    for cell in {cell.fault: cell for cell in reversed(_ALONE)}.values()
    if cell.fault not in _SLOW_CONTROLS
][::-1]

by_name = pytest.mark.parametrize("cell", _ALONE, ids=lambda cell: cell.name)


@pytest.fixture(scope="module")
def own_rabbitmq(rabbitmq_version: str | None) -> Iterator[RabbitMQ]:
    """A broker of this module's own: it is killed and restarted."""
    with RabbitMQ(rabbitmq_version) as server:
        yield server


@by_name
def test_promises_are_kept(cell: Cell, rabbitmq: RabbitMQ, own_redis: Redis) -> None:
    """Nothing is lost, nothing doubled without a mark, and no more marked than this fault may cost."""
    check_promises(cell, rabbitmq, own_redis)


@pytest.mark.parametrize("cell", _CONTROLS, ids=lambda cell: cell.fault)
def test_faults_are_real(cell: Cell, rabbitmq: RabbitMQ, own_redis: Redis) -> None:
    """The same fault doubles or loses messages of a plain loop, or at least makes it fail."""
    check_fault_is_real(cell, rabbitmq, own_redis)


@pytest.mark.parametrize("fault", _STRUCK_TOGETHER)
def test_faults_of_the_whole_broker(own_rabbitmq: RabbitMQ, own_redis: Redis, fault: str) -> None:
    """Several guarded queues are struck at once, and each keeps its promises."""
    check_together(_struck_by(fault), own_rabbitmq, own_redis)


@pytest.mark.parametrize("fault", _STRUCK_TOGETHER)
def test_faults_of_the_whole_broker_are_real(own_rabbitmq: RabbitMQ, own_redis: Redis, fault: str) -> None:
    """Plain loops do not get through them unharmed."""
    check_broker_fault_is_real(_struck_by(fault), own_rabbitmq, own_redis)


@pytest.mark.long
@pytest.mark.parametrize("cell", _IN_CLUSTER, ids=lambda cell: cell.name)
def test_faults_of_single_nodes(rabbitmq_cluster: RabbitMQCluster, redis_server: Redis, cell: Cell) -> None:
    """In a cluster the node that leads the target dies with the shim, and another shim on another node keeps the promises."""
    outcome = run_in_cluster(cell, rabbitmq_cluster, redis_server)
    assert not broken(cell, outcome, rabbitmq_cluster.version, BATCH_MAX)


@pytest.mark.parametrize("layout", OVER_091, ids=lambda layout: layout.name)
def test_no_fault_no_mark(rabbitmq: RabbitMQ, redis_server: Redis, layout: object) -> None:
    """Without a fault nothing is marked, whatever the forwarding: marks are not there to hide behind."""
    (cell,) = (c for c in CELLS if c.fault == "shims-side-by-side" and c.layout is layout)

    def nothing(scene: Scene) -> None:
        scene.in_flow(40)
        scene.struck()

    assert not broken(
        cell, run_scene(_with(cell, nothing), rabbitmq, redis_server), rabbitmq.version, BATCH_MAX
    )


def test_a_broken_promise_is_seen(rabbitmq: RabbitMQ, redis_server: Redis) -> None:
    """With a plain loop in the shim's place, what is asserted everywhere here fails: these tests can fail."""
    cell = next(c for c in CELLS if c.fault == "shim-killed" and c.layout is CONFIRMED)
    check_a_broken_promise_is_seen(cell, rabbitmq, redis_server)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"faults": 0}, "never struck"),
        ({"lost": 1}, "1 messages lost"),
        ({"duplicates": 2}, "2 messages doubled"),
        ({"unexpected": 1}, "nobody sent"),
        ({"disordered": 1}, "out of order"),
        ({"marked": BATCH_MAX + 1}, "marked by 1 faults"),
    ],
)
def test_every_promise_can_be_broken(wrong: dict[str, Any], words: str) -> None:
    """Each thing that may go wrong is found, and named."""
    cell = next(c for c in CELLS if c.marks is Marks.BATCH and c.ordered)
    good = Outcome(faults=1)
    assert broken(cell, good, "4.0.5", BATCH_MAX) == []
    (found,) = broken(cell, attrs.evolve(good, **wrong), "4.0.5", BATCH_MAX)
    assert words in found


def _struck_by(fault: str) -> list[Cell]:
    return [cell for cell in CELLS if cell.fault == fault and cell.layout in OVER_091]


def _with(cell: Cell, inject: Callable[[Scene], None]) -> Cell:
    return attrs.evolve(cell, inject=inject)
