"""Every cell of the fault matrix, in the order of the table."""

from __future__ import annotations

from tests.fault import (
    broker_faults,
    cluster_faults,
    publisher_faults,
    redis_faults,
    shim_faults,
    target_faults,
)

CELLS = [
    *publisher_faults.CELLS,
    *shim_faults.CELLS,
    *redis_faults.CELLS,
    *broker_faults.CELLS,
    *cluster_faults.CELLS,
    *target_faults.CELLS,
]
BY_NAME = {cell.name: cell for cell in CELLS}
assert len(BY_NAME) == len(CELLS), "two cells have the same name"
