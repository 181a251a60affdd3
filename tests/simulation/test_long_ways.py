"""
Long random ways through worlds of every kind: safe at every step, and in the end everything arrives.

SIMULATION_SEEDS in the environment sets how many are taken here; ``python -m tests.simulation.soak`` takes a million.
"""

from __future__ import annotations

import json
import os
import random

import pytest

from dedup.core import recovery
from tests.simulation import soak
from tests.simulation.live_relay import LiveExplorer, Walked
from tests.simulation.long_ways import WHOLE_EVERY, relay_world, wander, way

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "300"))
#: Seeds that take the same way with the living relay and with the frozen ones.
COMPARED = 12


@pytest.mark.parametrize("chunk", range(10))
def test_long_ways_end_well(chunk: int) -> None:
    """Publishers, relays and servers that fail at random: nothing is lost, and nothing is doubled without a mark."""
    for seed in range(chunk, SEEDS, 10):
        taken = way(seed)
        assert not taken.reason, taken


@pytest.mark.parametrize("seed", range(COMPARED))
def test_a_living_relay_tells_the_same_story_as_frozen_ones(seed: int) -> None:
    """The quick way through a world is the way that exploring knows, step by step, up to the state of rest."""
    told = []
    for rules in (LiveExplorer, Walked):
        choose = random.Random(seed)
        settings = relay_world(choose)
        told.append(wander(rules(**settings), choose, seed, 0.1))
    assert told[0] == told[1]
    assert len(told[0].story) > 10


def test_a_seed_tells_the_same_story_every_time() -> None:
    """What fails in a long run can be replayed, whatever ran before it in the same process."""
    seeds = [17, WHOLE_EVERY - 1, 5 * WHOLE_EVERY - 1]
    assert [way(seed) for seed in seeds] == [way(seed) for seed in reversed(seeds)][::-1]


def test_a_broken_relay_fails_and_the_soak_says_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without replaying the ledger some seed fails, the exit code says so, and --seed tells the same story."""
    monkeypatch.setattr(recovery, "remember", lambda *_: None)
    failures = soak.failures_of(range(60))
    assert failures
    seed = failures[0].seed
    assert soak.main(["--seed", str(seed), "--json"]) == 1
    story = json.loads(capsys.readouterr().out)
    assert (story["reason"], tuple(story["story"])) == (failures[0].reason, failures[0].story)
    assert soak.replay(seed).endswith(f"--seed {seed}")


def test_the_soak_ends_with_0_when_all_goes_well(capsys: pytest.CaptureFixture[str]) -> None:
    """Its result can be read by a machine."""
    assert soak.main(["--seeds", "20", "--first", "100", "--processes", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["seeds"], result["first"], result["failures"]) == (20, 100, [])
