"""
The production relay in small worlds where messages are told by their message id: several publishers send the same event.

The same worlds, faults and oracle as for stamped messages, each explored whole: a kill at every step loses nothing and doubles
nothing. Messages of a world are events; its copies come from redundant publishers. Mutants take away what message ids
need beyond that, and a world must notice.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve

from dedup.core import steps
from dedup.core.message_ids import KEY_SEQUENCE, MessageIds, is_message_key, message_id, message_key
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from tests.simulation.exploring import Explored, explore
from tests.simulation.relay_state import World
from tests.simulation.relay_world import Explorer
from tests.simulation.relay_worlds import world


class ByMessageId(Explorer):
    """
    The rules of a world whose messages carry an id and no stamp.

    Args:
        keep_s: How long ids are remembered; by default for ever.
        ids_max: How many.
        settings: What Oracle and Servers take.
    """

    def __init__(self, *, keep_s: float = math.inf, ids_max: int = 1_000, **settings: Any) -> None:
        def make_relay(told: RelaySettings) -> Relay:
            return Relay(evolve(told, message_id_keep_s=keep_s, message_ids_max=ids_max))

        super().__init__(make_relay=make_relay, **settings)

    def _told_arrivals(self, world: World, tag: int, taken: tuple[tuple[int, bool], ...]) -> World:
        arrivals = [
            steps.Arrival(tag + i, redelivered, message_key(b"%d" % m), KEY_SEQUENCE, payload=m)
            for i, (m, redelivered) in enumerate(taken)
        ]
        return self._told(world, ("arrived", tag, taken), steps.Arrived(arrivals))

    def _named(self, publisher: str, sequence: int) -> int:
        assert is_message_key(publisher)
        return int(message_id(publisher))


WORLDS: dict[str, dict[str, Any]] = {
    "two kills": world(kills=2, batch_max=1, prefetch=1),
    "a kill while much is in flight": world(kills=1),
    "three publishers of one event and two kills": world(messages=1, copies=3, kills=2, batch_max=1),
    "the broker restarts": world(copies=1, broker_restarts=1, prefetch=2),
    "Redis restarts": world(kills=1, redis_regressions=1, batch_max=1, prefetch=1),
    "Redis is emptied and the broker restarts": world(
        messages=1, redis_emptied=1, broker_restarts=1, batch_max=1
    ),
    "Redis is emptied, the relay lives": world(redis_emptied=1, batch_max=1, marking=()),
    "a fence is lost, and answers of Redis": world(
        messages=1, kills=1, lost_fences=1, lost_replies=1, batch_max=1, prefetch=1
    ),
    "a commit is partial": world(copies=1, kills=1, partial_commits=1, prefetch=2),
    "the audit is told": world(kills=1, audited=True, batch_max=1, prefetch=1),
    "confirmed: the target refuses": world(
        exact=False, messages=1, kills=1, refusals=1, stops=1, batch_max=1
    ),
    "confirmed: Redis loses everything": world(
        exact=False, messages=1, kills=1, redis_regressions=1, redis_emptied=1, batch_max=1
    ),
    "surveyed: a kill": world(exact=False, surveyed=True, copies=1, kills=1),
    "surveyed: another leader": world(
        exact=False, surveyed=True, messages=1, kills=1, elections=2, batch_max=1
    ),
    # As many as two prefetch and a batch, which is what the settings demand.
    "the ids are full": world(messages=5, copies=1, kills=2, batch_max=1, prefetch=1, ids_max=3),
}


def explored(rules: Explorer) -> Explored:
    """Visit every state of a world."""
    try:
        return explore(rules)
    except AssertionError as error:  # the relay or the world caught it itself
        return Explored(0, 0, 0.0, str(error) or "an assertion of the relay")


@pytest.mark.parametrize("name", WORLDS)
def test_in_every_state_of_a_world_no_event_is_lost_or_doubled(name: str) -> None:
    """Whatever fails after whichever step, each event is once in the target, as stamped messages are."""
    found = explored(ByMessageId(**WORLDS[name]))
    assert not found.reason, found
    assert found.states > 100


def forgetful(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Forget ids at once."""
    monkeypatch.setattr(MessageIds, "settle", lambda self, *_: (self.abandon(), ([], []))[1])
    return WORLDS["a kill while much is in flight"]


def hasty(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Remember ids that were judged and not forwarded."""
    monkeypatch.setattr(MessageIds, "abandon", lambda _: None)
    return WORLDS["confirmed: the target refuses"]


def unmarked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Take an unknown id for new, whatever was lost."""
    begin = MessageIds.__init__

    def careless(self: MessageIds, *args: Any, **settings: Any) -> None:
        begin(self, *args, **(settings | {"uncertain_until_s": 0.0}))

    monkeypatch.setattr(MessageIds, "__init__", careless)
    return WORLDS["Redis is emptied and the broker restarts"]


def small(_: pytest.MonkeyPatch) -> dict[str, Any]:
    """Remember fewer ids than may be in flight."""
    return WORLDS["a kill while much is in flight"] | {"ids_max": 1}


@pytest.mark.parametrize("mutant", [forgetful, hasty, unmarked, small], ids=lambda mutant: mutant.__name__)
def test_a_world_notices_what_is_missing(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard there is a story that ends badly."""
    settings = mutant(monkeypatch)
    found = explored(ByMessageId(**settings))
    assert found.reason, f"nobody noticed in {found.states} states"
    assert "doubled" in found.reason or "lost" in found.reason, found
