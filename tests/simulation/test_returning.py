"""
The production relay in small worlds where a message dies in the target and comes back, again and again.

The same worlds, faults and oracle as for publishers' copies, each explored whole. Message 0 of a world is what a publisher
sends; message 1 is its re-entry after the first death, message 2 the one after the second. None comes before the one before
it is in the target, and each may come in several copies. So "nothing is lost" says that every death's re-entry comes through,
"nothing is doubled" that no copy of it does. What tells them apart is read and written by the code of the shim, from headers as
RabbitMQ 4 writes them of deaths within one second: the same ones each time.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve

from dedup.amqp091 import identifying
from dedup.amqp091.identifying import return_of
from dedup.amqp091.properties import DELIVERY_MODE, HEADERS, fresh, join, split
from dedup.core import parts, steps
from dedup.core.identity import SEQUENCE_HEADER
from dedup.core.judge import Judge
from dedup.core.message_ids import is_message_key
from dedup.core.relay import Relay
from dedup.core.returns import Reentry
from dedup.core.settings import RelaySettings
from dedup.core.window import Verdict
from tests.simulation.exploring import Explored, explore
from tests.simulation.relay_state import World
from tests.simulation.relay_world import Explorer
from tests.simulation.relay_worlds import world

TARGET = "orders"
STAMPED = fresh([(SEQUENCE_HEADER, 1)], app_id="p0")
#: x-death: one entry, whose time is the second in which everything happens here.
_ENTRY = b"\x05queueS\x00\x00\x00\x06orders\x06reasonS\x00\x00\x00\x08rejected\x05countl\x00\x00\x00\x00\x00\x00\x00\x01\x04timeT\x00\x00\x00\x00\x65\x00\x00\x00"
_TABLE = b"F" + struct.pack(">I", len(_ENTRY)) + _ENTRY
DEATH = b"\x07x-deathA" + struct.pack(">I", len(_TABLE)) + _TABLE


def died(raw: bytes) -> bytes:
    """What a broker makes of properties when their message dies: an older history makes way."""
    properties, _ = split(raw)
    table = properties.get(HEADERS, b"\x00\x00\x00\x00")[4:].replace(DEATH, b"") + DEATH
    return join(properties | {HEADERS: struct.pack(">I", len(table)) + table, DELIVERY_MODE: b"\x02"})


@functools.cache
def way_back(number: int, ways: Callable[..., Any]) -> tuple[Reentry | None, bytes]:
    """What the shim makes of the re-entry after so many deaths: what it is known by, and its properties in the target."""
    raw = STAMPED if number == 1 else way_back(number - 1, ways)[1]
    raw = died(raw)
    found = ways(raw, ("p0", 1), TARGET)
    return (None, raw) if found is None else found


class Returning(Explorer):
    """
    The rules of a world of one message and its re-entries.

    Args:
        ways: What tells re-entries apart.
        settings: What Oracle and Servers take.
    """

    def __init__(self, *, ways: Callable[..., Any] = return_of, **settings: Any) -> None:
        def make_relay(told: RelaySettings) -> Relay:
            return Relay(evolve(told, message_id_keep_s=math.inf))

        super().__init__(make_relay=make_relay, **settings)
        self._ways = [way_back(m, ways)[0] for m in range(1, self.messages)]

    def _publishes(self, world: World) -> Iterator[tuple[str, World]]:
        for name, following in super()._publishes(world):
            m = next(m for m in range(self.messages) if following.sent[m] > world.sent[m])
            if m == 0 or any(message == m - 1 for message, _ in world.target):
                yield name, following

    def _arrival(self, tag: int, m: int, redelivered: bool) -> steps.Arrival:
        way = self._ways[m - 1] if m else None
        return steps.Arrival(tag, redelivered, "p0", 1, returning=m > 0, payload=m, reentry=way)

    def _named(self, publisher: str, sequence: int) -> int:
        if not is_message_key(publisher):
            return 0
        return 1 + next(m for m, way in enumerate(self._ways) if way is not None and way.key == publisher)


WORLDS: dict[str, dict[str, Any]] = {
    "two kills": world(kills=2, batch_max=1, prefetch=1),
    "two deaths and a kill": world(messages=3, kills=1, batch_max=1, prefetch=1),
    "a kill while much is in flight": world(messages=3, kills=1),
    "the broker restarts": world(copies=1, broker_restarts=1, prefetch=2),
    "Redis restarts": world(kills=1, redis_regressions=1, batch_max=1, prefetch=1),
    "Redis is emptied and the broker restarts": world(
        copies=1, redis_emptied=1, broker_restarts=1, batch_max=1, prefetch=1
    ),
    "Redis is emptied, the relay lives": world(messages=3, redis_emptied=1, batch_max=1, marking=()),
    "a fence is lost, and answers of Redis": world(
        kills=1, lost_fences=1, lost_replies=1, batch_max=1, prefetch=1
    ),
    "a commit is partial": world(copies=1, kills=1, partial_commits=1, prefetch=2),
    "a stop and a kill": world(messages=3, copies=1, kills=1, stops=1, prefetch=2),
    "there is no queue": world(copies=1, missing_queues=1, kills=1, batch_max=1, prefetch=2),
    "the audit is told": world(kills=1, audited=True, batch_max=1, prefetch=1),
    "confirmed: a kill": world(exact=False, messages=3, kills=1, batch_max=1, prefetch=1),
    "confirmed: the target refuses": world(exact=False, kills=1, refusals=1, batch_max=1, prefetch=1),
    "confirmed: Redis loses everything": world(
        exact=False, kills=1, redis_regressions=1, redis_emptied=1, batch_max=1, prefetch=1
    ),
    "surveyed: a kill": world(exact=False, surveyed=True, kills=1),
    "surveyed: the audit is told": world(exact=False, surveyed=True, audited=True, copies=1, kills=1),
}


def explored(rules: Explorer) -> Explored:
    """Visit every state of a world."""
    try:
        return explore(rules)
    except AssertionError as error:  # the relay or the world caught it itself
        return Explored(0, 0, 0.0, str(error) or "an assertion of the relay")


#: Too large for every run.
LARGE = {
    "two kills",
    "a kill while much is in flight",
    "a fence is lost, and answers of Redis",
    "a commit is partial",
    "a stop and a kill",
    "confirmed: the target refuses",
    "confirmed: Redis loses everything",
    "surveyed: a kill",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LARGE)) for name in WORLDS]
)
def test_in_every_state_of_a_world_each_death_comes_back_once(name: str) -> None:
    """Whatever fails after whichever step."""
    found = explored(Returning(**WORLDS[name]))
    assert not found.reason, found
    assert found.states > 100


def untold(_: pytest.MonkeyPatch) -> dict[str, Any]:
    """Forward whatever comes back."""
    return WORLDS["two deaths and a kill"] | {"ways": lambda *_: None}


def by_history(_: pytest.MonkeyPatch) -> dict[str, Any]:
    """Tell deaths apart by what the broker says of them."""
    return WORLDS["two deaths and a kill"] | {
        "ways": lambda raw, *_: (Reentry("\x7fdied" if DEATH in raw else "\x7f?"), raw)
    }


def uncounted(_: pytest.MonkeyPatch) -> dict[str, Any]:
    """Do not let the count go on with the message."""
    return WORLDS["two deaths and a kill"] | {
        "ways": lambda raw, *told: (return_of(raw, *told)[0], raw)  # type: ignore[index]
    }


def stuck(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Count to one."""
    monkeypatch.setattr(identifying, "counted", lambda number: number and 0)
    return WORLDS["two deaths and a kill"] | {
        "ways": functools.partial(return_of)
    }  # nothing cached is known of it


def by_time(_: pytest.MonkeyPatch) -> dict[str, Any]:
    """Take each copy for a death of its own: what dead-letters again tells another time."""
    numbers = itertools.count()

    class ByTime(Returning):
        def _arrival(self, tag: int, m: int, redelivered: bool) -> steps.Arrival:
            own = Reentry(f"\x7f{next(numbers)}") if m else None
            return evolve(super()._arrival(tag, m, redelivered), reentry=own)

    return WORLDS["two kills"] | {"rules": ByTime}


def unintended(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Do not write down what comes back before it is forwarded."""
    monkeypatch.setattr(parts, "_is_remembered", lambda out: out.verdict is Verdict.NEW)
    return WORLDS["confirmed: a kill"]


def untroubled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Never mark what comes back."""
    let_back = Judge._let_back

    def unmarked(self: Judge, *told: Any) -> Any:
        out = let_back(self, *told)
        return out and evolve(out, marked=False)

    monkeypatch.setattr(Judge, "_let_back", unmarked)
    return WORLDS["confirmed: a kill"]


MUTANTS = {
    untold: "doubled",
    by_history: "lost",
    uncounted: "lost",
    stuck: "lost",
    by_time: "doubled",
    unintended: "doubled",
    untroubled: "doubled",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_world_notices_what_is_missing(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard there is a story that ends badly."""
    settings = mutant(monkeypatch)
    found = explored(settings.pop("rules", Returning)(**settings))
    assert found.reason, f"nobody noticed in {found.states} states"
    assert MUTANTS[mutant] in found.reason, found
