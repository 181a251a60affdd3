"""
The production sender and the production relay together, in small worlds explored whole.

The mutants at the end are the reason to believe the rest: each takes one safeguard of the sender or the relay away that only
matters because the other one is there, and a world must notice. Larger worlds: ``python -m tests.simulation.explore``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve, frozen

from dedup.core import publishers, sending, window
from dedup.core.judge import Judge, Judged
from dedup.core.publishers import Changes, Publishers
from dedup.core.sender import Sender
from dedup.core.sending import Message
from dedup.core.window import Verdict, Window
from tests.simulation import explore as large
from tests.simulation.exploring import explore
from tests.simulation.sender_rules import Scenario, faults
from tests.simulation.whole_world import WINDOW_SIZE, WholeExplorer

#: From one state in so many, the world must come to rest with everything where it belongs.
REST_EVERY = 50


def publishing(messages: int, **counts: int) -> Scenario:
    """
    Return the publisher's side of a world.
    """
    return Scenario(messages=messages, faults=faults(**counts), unconfirmed_max=2, window_size=WINDOW_SIZE)


WORLDS: dict[str, tuple[Scenario, dict[str, Any]]] = {
    "a cut and a kill": (publishing(2, cut=1), {"kills": 1, "batch_max": 2}),
    "the publisher is killed and goes on": (publishing(2, kill=1), {"kills": 1, "batch_max": 2}),
    "a later owner of the id": (publishing(1, forget=1), {"kills": 1, "batch_max": 2}),
    "a nack in the middle": (publishing(3, nack=1), {"kills": 0, "batch_max": 2}),
    "a nack of what is stored": (publishing(2, lie=1), {"kills": 1, "batch_max": 1}),
    "a broker that is silent about what it stored": (
        publishing(2, swallow=1, silence=1),
        {"kills": 0, "batch_max": 2},
    ),
    "two publishers": (publishing(1, lie=1), {"publishers": 2, "kills": 0, "batch_max": 2}),
    "the broker restarts": (publishing(1), {"broker_restarts": 1, "kills": 1, "batch_max": 1}),
    "a paused shim wakes up": (publishing(1, lie=1), {"lost_fences": 1, "kills": 1, "batch_max": 1}),
    "confirmed: a cut and a kill": (
        publishing(1, cut=1, lie=1),
        {"exact": False, "kills": 1, "batch_max": 1},
    ),
}

#: Ways that once ended badly.
FOUND: dict[str, tuple[Scenario, dict[str, Any]]] = {
    "a later owner's intent is lost with the last write of Redis, and the broker restarts": (
        publishing(1, forget=1),
        {"broker_restarts": 1, "redis_regressions": 1, "batch_max": 1},
    ),
}


@pytest.mark.parametrize("name", [*WORLDS, *FOUND])
def test_in_every_state_what_was_confirmed_arrives_once(name: str) -> None:
    """Whatever fails on either side of the broker, nothing stored is lost, doubled without a mark, or overtaken."""
    scenario, settings = (WORLDS | FOUND)[name]
    explored = explore(WholeExplorer(scenario, prefetch=2, **settings), rest_every=REST_EVERY)
    assert not explored.reason, explored
    assert explored.states > 100


@frozen
class Mutant:
    """
    One safeguard taken away, the world that must notice, and part of what it has to say.
    """

    owner: Any
    name: str
    function: Callable[..., Any]
    world: str
    reason: str


def _highest_only(before: Window | None, sequence: int, size: int) -> tuple[Verdict, Window]:
    verdict, judged = _judge(before, sequence, size)
    return verdict, evolve(judged, missing=0)


def _forgets(self: Publishers, _now_s: float, _batch: int) -> Changes:
    self.abandon()
    return Changes({})


def _newest_first(self: Judge, *arguments: Any, **options: Any) -> Judged:
    batch = _take(self, *arguments, **options)
    batch.outgoing.reverse()
    return batch


def _numbers_anew(self: Sender, message: Message, batch: list[Message], now: float) -> None:
    if message.attempts:
        message.sequence += 1
    _publish(self, message, batch, now)


def _believes_everything(self: Sender, event: sending.Confirms, now: float) -> None:
    _confirms(
        self, evolve(event, confirms=[(tag, multiple, True) for tag, multiple, _ in event.confirms]), now
    )


_judge, _take, _publish, _confirms = window.judge, Judge.take, Sender._publish, Sender._confirms

MUTANTS = {
    "the highest sequence remembered only": Mutant(
        publishers, "judge", _highest_only, "a nack in the middle", "is lost"
    ),
    "what was forwarded not recorded": Mutant(
        Publishers, "settle", _forgets, "a nack of what is stored", "doubled without a mark"
    ),
    "a batch forwarded the other way round": Mutant(
        Judge, "take", _newest_first, "a cut and a kill", "another order"
    ),
    "another number for the next attempt": Mutant(
        Sender, "_publish", _numbers_anew, "a cut and a kill", "never changes"
    ),
    "a nack taken for an ack": Mutant(
        Sender, "_confirms", _believes_everything, "a nack in the middle", "confirmed is stored"
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard there is a story that ends badly, and its reason is the right one."""
    mutant = MUTANTS[name]
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.function)
    scenario, settings = WORLDS[mutant.world]
    explored = explore(WholeExplorer(scenario, prefetch=2, **settings), rest_every=REST_EVERY)
    assert mutant.reason in explored.reason, explored
    assert explored.story


def test_the_large_worlds_are_visited_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The command explores a world of its list, and has none of another name."""
    assert large.main(["--world", "two relays", "--processes", "1", "--json"]) == 0
    assert '"reason": ""' in capsys.readouterr().out
    with pytest.raises(SystemExit):
        large.main(["--world", "of the dead"])
