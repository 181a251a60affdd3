"""The demo repeats its faults by seed, and calls a run that met none worthless."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve

from dedup.demo.outcome import Faults, Outcome, Wishes
from dedup.demo.plan import KILLS, Act, Fault, plan
from dedup.testing.oracle import Account

GOOD = Outcome(
    account=Account(
        messages=100,
        confirmed=100,
        copies=130,
        forwarded=100,
        dropped=30,
        marked=0,
        quarantined=0,
        lost=0,
        duplicates=0,
        unexpected=0,
        disordered=0,
    ),
    wishes=Wishes(messages=100, seconds=10, seed=1, publishers=2),
    faults=Faults(swallowed=3, resets=5, kills=4, kills_in_batch=2),
    exact=True,
    forwarding="classic queues on the only node",
    seconds=12.0,
    servers="RabbitMQ 4.0.5",
)


def link(acts: list[Act]) -> list[Act]:
    """Return what happens to the link."""
    return [act for act in acts if act.fault not in KILLS]


def test_the_same_seed_makes_the_same_plan() -> None:
    """A run can be repeated, and another seed makes another run."""
    assert plan(7, 30) == plan(7, 30)
    assert plan(7, 30) != plan(8, 30)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    """More seconds add faults at the end and change none before."""
    long = plan(7, 60)
    assert plan(7, 5) == [act for act in long if act.at_s < 5][: len(plan(7, 5))]


@pytest.mark.parametrize("seed", range(20))
def test_a_short_run_meets_every_kind_of_fault(seed: int) -> None:
    """Ten seconds are enough for lost confirms, resets, torn messages and kills, in order and in time."""
    acts = plan(seed, 10)
    assert {Fault.SWALLOW, Fault.RESTORE, Fault.RESET, Fault.TEAR} <= {act.fault for act in acts}
    assert len(acts) - len(link(acts)) >= 2
    assert [act.at_s for act in acts] == sorted(act.at_s for act in acts)
    assert all(1.0 <= act.at_s < 10 for act in acts)


def test_confirms_that_are_swallowed_come_back() -> None:
    """Each loss of confirms is followed by the reset that ends it before anything else happens to the link."""
    acts = link(plan(3, 120))
    followers = [after.fault for before, after in pairwise(acts) if before.fault is Fault.SWALLOW]
    assert followers
    assert {*followers} == {Fault.RESTORE}


def test_a_good_run_is_good() -> None:
    """Nothing speaks against a run that met its faults and lost nothing."""
    assert GOOD.ok
    assert GOOD.sentence.startswith("Every message is in the queue exactly once")


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        ({"copies": 100}, "no message was sent twice, so the run proves nothing"),
        ({"confirmed": 99}, "1 messages were never confirmed"),
        ({"lost": 2}, "2 messages are lost"),
        ({"duplicates": 3}, "3 duplicates reached the queue"),
        ({"unexpected": 1}, "1 messages are nobody's"),
        ({"disordered": 1}, "1 messages were overtaken"),
        ({"marked": 4}, "4 messages are marked"),
        ({"quarantined": 5}, "5 messages are in quarantine"),
    ],
)
def test_each_flaw_fails_the_run(flaw: dict[str, Any], said: str) -> None:
    """One number that is not as promised is enough, and the sentence names it."""
    outcome = evolve(GOOD, account=evolve(GOOD.account, **flaw))
    assert not outcome.ok
    assert said in outcome.sentence


def test_kills_between_batches_prove_nothing() -> None:
    """A shim that was never killed inside a batch was not tested."""
    outcome = evolve(GOOD, faults=Faults(swallowed=3, resets=5, kills=4))
    assert not outcome.ok
    assert "proves nothing about crashes" in outcome.sentence


def test_confirmed_forwarding_may_mark() -> None:
    """Where forwarding is not exact, a kill may leave marks."""
    outcome = evolve(GOOD, exact=False, account=evolve(GOOD.account, marked=4))
    assert outcome.ok
    assert "twice without a mark" in outcome.sentence


def test_the_control_says_what_it_is() -> None:
    """Without dedup the duplicates fail the run, and the sentence says that this was expected."""
    control = evolve(
        GOOD,
        wishes=evolve(GOOD.wishes, with_dedup=False),
        account=evolve(GOOD.account, duplicates=30, dropped=0, forwarded=130),
        faults=Faults(swallowed=3, resets=5),
    )
    assert not control.ok
    assert "30 duplicates" in control.sentence
    assert "expected to fail" in control.sentence
