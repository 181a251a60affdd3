"""
The production relay in small worlds, each explored whole.

The mutants are the reason to believe the rest: each takes one safeguard away, and a world must notice. Larger worlds:
``python -m tests.simulation.explore``; long ways through random faults: test_long_ways.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.simulation import proof_mutants, record_mutants, relay_mutants
from tests.simulation.exploring import Explored, explore
from tests.simulation.mutants import REST_EVERY, Mutant
from tests.simulation.relay_world import Explorer
from tests.simulation.relay_worlds import all_worlds

WORLDS = all_worlds()
MUTANTS: dict[str, Mutant] = relay_mutants.MUTANTS | proof_mutants.MUTANTS | record_mutants.MUTANTS


def explored(settings: dict[str, Any], rest_every: int = REST_EVERY) -> Explored:
    """
    Visit every state of a world.
    """
    try:
        return explore(Explorer(**settings), rest_every=rest_every)
    except AssertionError as error:  # the relay or the world caught it itself
        return Explored(0, 0, 0.0, str(error) or "an assertion of the relay")


@cache
def intact(settings: frozenset[tuple[str, Any]]) -> Explored:
    """
    Visit every state of a world whose relay is the production one; worlds that several tests look at once.
    """
    return explored(dict(settings))


@pytest.mark.parametrize("name", WORLDS)
def test_in_every_state_of_a_world_nothing_is_lost_or_doubled(name: str) -> None:
    """Whatever fails after whichever step, the promise holds, and afterwards everything arrives."""
    found = intact(frozenset(WORLDS[name].items()))
    assert not found.reason, found
    assert found.states > 100


def test_a_marker_lies_of_what_its_transaction_returns() -> None:
    """Why nothing may be returned: were there no way into the ledger, a kill right after a return would lose the message."""
    returned = explored({"messages": 1, "copies": 1, "batch_max": 1, "kills": 1, "refusals": 1})
    assert "message 0 is lost" in returned.reason
    found = explored({"messages": 1, "copies": 1, "batch_max": 1, "kills": 1, "missing_queues": 1})
    assert not found.reason, found


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the safeguard the world is right; without it there is a story that ends badly."""
    mutant = MUTANTS[name]
    right = intact(
        frozenset((setting, value) for setting, value in mutant.world.items() if setting != "write")
    )
    assert not right.reason, right
    mutant.patch(monkeypatch)
    found = explored(mutant.world, mutant.rest_every)
    assert found.reason, f"nobody noticed in {found.states} states"
    assert mutant.reason in found.reason, found
    print(f"{name}: {found}")
