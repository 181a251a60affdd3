"""
The production relay in small worlds where a publisher uses one sequence for two messages, and bodies are compared.

Without faults neither is lost: the second is in quarantine. A kill may make the relay miss that, never the opposite: what is
in quarantine is another message than the one in the target.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from dedup.core import steps
from dedup.core.bodies import Bodies
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from tests.simulation.exploring import Explored, explore
from tests.simulation.relay_state import World
from tests.simulation.relay_world import Explorer
from tests.simulation.relay_worlds import world


class SameSequence(Explorer):
    """
    The rules of a world whose messages all carry the same stamp, each with a body of its own.

    Args:
        settings: What Oracle and Servers take.
    """

    def __init__(self, **settings: Any) -> None:
        def make_relay(told: RelaySettings) -> Relay:
            return Relay(evolve(told, check_bodies=True))

        super().__init__(make_relay=make_relay, **settings)

    def _told_arrivals(self, world: World, tag: int, taken: tuple[tuple[int, bool], ...]) -> World:
        arrivals = [
            steps.Arrival(tag + i, redelivered, "p0", 1, payload=m, digest=b"%04d" % m)
            for i, (m, redelivered) in enumerate(taken)
        ]
        return self._told(world, ("arrived", tag, taken), steps.Arrived(arrivals))

    def wrong(self, world: World) -> str:
        """Say what is wrong with *world*, or nothing."""
        stored = {m for m, _ in world.target}
        if len(stored) > 1 or len(world.target) > 1:
            return "one sequence is twice in the target"
        if conflicts := stored.intersection(world.quarantine):
            return f"a copy of {conflicts} is called a conflict"
        waiting = {*(m for m, _ in world.ingress), *(m for _, m in world.unacked)}
        gone = {m for m in range(self.messages) if world.sent[m]} - stored - waiting - {*world.quarantine}
        if gone and not (stored and self.happened(world, "kills")):
            return f"{gone} are lost"
        return ""


WORLDS: dict[str, dict[str, Any]] = {
    "no fault": world(),
    "no fault, one at a time": world(messages=3, batch_max=1, prefetch=2),
    "Redis restarts, the relay lives": world(redis_regressions=1, lost_replies=1, batch_max=1, prefetch=1),
    "a kill": world(kills=1, prefetch=2),
    "two kills": world(kills=2, batch_max=1, prefetch=1),
}


def explored(settings: dict[str, Any]) -> Explored:
    """Visit every state of a world."""
    return explore(SameSequence(**settings))


@pytest.mark.parametrize("name", WORLDS)
def test_neither_of_two_messages_is_taken_for_the_other(name: str) -> None:
    """Whatever fails after whichever step."""
    found = explored(WORLDS[name])
    assert not found.reason, found
    assert found.states > 100


@pytest.mark.parametrize(
    ("world", "differs", "reason"),
    [
        ("no fault", lambda *_: False, "are lost"),
        ("two kills", lambda *_: True, "is called a conflict"),
    ],
)
def test_a_world_notices_a_comparison_that_is_wrong(
    world: str, differs: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never finds a difference, and one that finds it where nothing is known."""
    monkeypatch.setattr(Bodies, "differs", differs)
    assert reason in explored(WORLDS[world]).reason
