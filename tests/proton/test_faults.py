"""The faults of the matrix that strike confirmed forwarding, put to a shim of AMQP 1.0."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.cells import CELLS
from tests.fault.guarded import BATCH_MAX
from tests.fault.lab import run_scene
from tests.fault.matrix import CONFIRMED, Cell, Layout, Reach, broken

AMQP10 = Layout("amqp10", exact=False, ingress="classic", target="classic", protocol="amqp10")
#: They wait until the broker misses heartbeats, for which it has a setting of its own over AMQP 1.0: test_relay.py has such a one.
_WAIT_FOR_HEARTBEATS = ("shim-frozen", "shim-half-open")
#: One of each kind for every run.
_QUICK = ("shim-killed/after-Forward-1", "shim-cut-off/both", "target-full")


def _cells() -> Iterator[object]:
    for cell in CELLS:
        if (
            cell.layout is CONFIRMED
            and cell.reach in (Reach.SCENE, Reach.REDIS)
            and cell.fault not in _WAIT_FOR_HEARTBEATS
        ):
            name = cell.name.removesuffix(f"/{CONFIRMED.name}")
            marks = () if name in _QUICK else (pytest.mark.long,)
            yield pytest.param(attrs.evolve(cell, layout=AMQP10), id=name, marks=marks)


@pytest.fixture(scope="module")
def spare_redis() -> Iterator[Redis]:
    """A Redis of this module's own: it is killed, emptied and refuses."""
    with Redis() as server:
        yield server


@pytest.fixture
def own_redis(spare_redis: Redis) -> Redis:
    """The spare Redis, whatever the test before did to it."""
    if spare_redis.running:
        spare_redis.resume()
    spare_redis.empty()
    return spare_redis


@pytest.mark.each_version("long")
@pytest.mark.parametrize("cell", list(_cells()))
def test_promises_are_kept(cell: Cell, broker: RabbitMQ, own_redis: Redis) -> None:
    """Nothing is lost, nothing doubled without a mark, and no more marked than this fault may cost."""
    assert not broken(cell, run_scene(cell, broker, own_redis), broker.version, BATCH_MAX)


def test_a_broken_promise_is_seen(broker: RabbitMQ, own_redis: Redis) -> None:
    """The control: with a plain loop in the shim's place a kill doubles without a mark."""
    cell = next(cell for cell in CELLS if cell.fault == "shim-killed" and cell.layout is CONFIRMED)
    outcome = run_scene(cell, broker, own_redis, times=2, control=True)
    assert any("doubled" in words for words in broken(cell, outcome, broker.version, BATCH_MAX))
