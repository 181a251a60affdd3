"""The faults of a soak are decided by its seed, and are as many and as mixed as was asked for."""

from __future__ import annotations

import pytest

from tests.soak.plan import KINDS, Step, plan


def steps(seed: int, faults: int, *, forwarding: str = "exact", marking: bool = False) -> list[Step]:
    """Return a whole plan."""
    return list(plan(seed, faults, forwarding=forwarding, marking=marking))


def test_the_same_seed_makes_the_same_plan() -> None:
    """A run can be repeated, and another seed makes another run."""
    assert steps(7, 40) == steps(7, 40) != steps(8, 40)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("forwarding", "marking"), [("exact", False), ("confirmed", False), ("exact", True)])
def test_a_plan_has_every_kind_that_fits(seed: int, forwarding: str, marking: bool) -> None:
    """300 faults are numbered without a gap, and only what may mark and what may refuse is left out."""
    faults = [
        fault for step in steps(seed, 300, forwarding=forwarding, marking=marking) for fault in step.faults
    ]
    assert [fault.number for fault in faults] == [*range(1, 301)]
    fitting = {
        name
        for name, kind in KINDS.items()
        if (marking or not kind.marking) and (not kind.refuses or forwarding == "confirmed")
    }
    assert {fault.kind for fault in faults} == fitting


@pytest.mark.parametrize("seed", range(5))
def test_one_fault_in_ten_meets_another_one(seed: int) -> None:
    """Pairs hurt different places, and the second one begins before the first one is over or right after."""
    pairs = [step.faults for step in steps(seed, 3000) if len(step.faults) == 2]
    assert 200 <= 2 * len(pairs) <= 400
    for first, second in pairs:
        assert KINDS[first.kind].place is not KINDS[second.kind].place
        assert second.begins_s - first.ends_s <= 0.3


@pytest.mark.parametrize("seed", range(5))
def test_a_burst_begins_before_the_faults_are_over(seed: int) -> None:
    """Messages that rest in the target are hurt by nothing."""
    bursts = [(step, step.burst_at_s) for step in steps(seed, 100) if step.burst_at_s is not None]
    assert 20 < len(bursts) < 80
    assert all(
        0 <= at_s <= max(fault.ends_s for fault in step.faults) < step.seconds for step, at_s in bursts
    )
