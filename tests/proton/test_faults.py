"""A few strikes of the cells of the fault matrix in which publisher and shim speak AMQP 1.0; the matrix itself is in tests/fault."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.cells import CELLS
from tests.fault.matrix import AMQP10, OVER_10, Cell, Reach
from tests.fault.promises import check_a_broken_promise_is_seen, check_promises, check_together

_CELLS = [cell for cell in CELLS if cell.layout in OVER_10]
_STRUCK_TOGETHER = sorted({cell.fault for cell in _CELLS if cell.reach is Reach.BROKER})


def _parameters(reaches: Collection[Reach]) -> list[Any]:
    return [
        pytest.param(cell, id=cell.name, marks=() if cell.quick else pytest.mark.long)
        for cell in _CELLS
        if cell.reach in reaches
    ]


@pytest.mark.each_version("long")
@pytest.mark.parametrize("cell", _parameters({Reach.SCENE}))
def test_promises_are_kept(cell: Cell, broker: RabbitMQ, own_redis: Redis) -> None:
    """Nothing is lost, nothing doubled without a mark, and no more marked than this fault may cost."""
    check_promises(cell, broker, own_redis)


@pytest.mark.parametrize("cell", _parameters({Reach.REDIS}))
def test_promises_are_kept_whatever_redis_does(cell: Cell, broker: RabbitMQ, own_redis: Redis) -> None:
    """The same for faults of Redis, for which RabbitMQ's version makes no difference."""
    check_promises(cell, broker, own_redis)


@pytest.mark.long
@pytest.mark.each_version("long")
@pytest.mark.parametrize("fault", _STRUCK_TOGETHER)
def test_faults_of_the_whole_broker(broker: RabbitMQ, own_redis: Redis, fault: str) -> None:
    """Several guarded queues are struck at once, and each keeps its promises."""
    cells = [cell for cell in _CELLS if cell.fault == fault and cell.reach is Reach.BROKER]
    check_together(cells, broker, own_redis)


def test_a_broken_promise_is_seen(broker: RabbitMQ, own_redis: Redis) -> None:
    """The control: with a plain loop in the shim's place a kill doubles without a mark."""
    cell = next(cell for cell in _CELLS if cell.fault == "shim-killed" and cell.layout is AMQP10)
    check_a_broken_promise_is_seen(cell, broker, own_redis)
