"""Hold a few strikes of a cell to what the matrix promises, and show that a plain loop does not get through them unharmed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import BATCH_MAX
from tests.fault.lab import CONTROLS_MAX, run_scene, run_together
from tests.fault.matrix import Cell, Outcome, broken

#: How often a fault strikes here that strikes again and again.
TIMES = 2


def check_promises(cell: Cell, rabbitmq: RabbitMQ, redis: Redis) -> None:
    """Fail on a loss, on an unmarked duplicate, and on more marks than the fault may cost."""
    outcome = run_scene(cell, rabbitmq, redis, times=TIMES)
    assert not broken(cell, outcome, rabbitmq.version, BATCH_MAX)


def check_fault_is_real(cell: Cell, rabbitmq: RabbitMQ, redis: Redis) -> None:
    """Fail unless the fault harms a plain loop in the shim's place, by chance in one of a few runs."""
    for _ in range(CONTROLS_MAX):
        outcome = run_scene(cell, rabbitmq, redis, times=TIMES, control=True)
        if outcome.shown() & cell.shows:
            return
    pytest.fail(f"it does nothing: {outcome}")


def check_together(cells: Sequence[Cell], rabbitmq: RabbitMQ, redis: Redis) -> None:
    """Strike the broker once under all *cells*: every one of them keeps its promises."""
    for cell, outcome in zip(cells, run_together(cells, rabbitmq, redis), strict=True):
        assert isinstance(outcome, Outcome), outcome
        assert not broken(cell, outcome, rabbitmq.version, BATCH_MAX)


def check_broker_fault_is_real(cells: Sequence[Cell], rabbitmq: RabbitMQ, redis: Redis) -> None:
    """Fail unless the same does harm to plain loops."""
    for _ in range(CONTROLS_MAX):
        outcomes = run_together(cells, rabbitmq, redis, control=True)
        ended = [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
        assert len(ended) == len(cells), outcomes
        if any(outcome.shown() & cells[0].shows for outcome in ended):
            return
    pytest.fail(f"it does nothing: {outcomes}")


def check_a_broken_promise_is_seen(cell: Cell, rabbitmq: RabbitMQ, redis: Redis) -> None:
    """With a plain loop in the shim's place, what `check_promises` asserts fails."""
    outcome = run_scene(cell, rabbitmq, redis, times=TIMES, control=True)
    problems = broken(cell, outcome, rabbitmq.version, BATCH_MAX)
    assert any("doubled without a mark" in words for words in problems), problems
