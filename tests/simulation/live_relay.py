"""
Take a relay world along one way, quickly: one living relay instead of a catalog of frozen ones.

Exploring keeps every state of the relay, because it comes back to each of them. A long way never does: of all that may
happen next one thing is chosen, and only then the relay is told of it, so it needs neither copies nor comparisons, and its
clock runs on. Both tell the same stories, which a test compares; this one about ten times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dedup.core import steps
from tests.simulation.catalog import NOW_S, Catalog
from tests.simulation.relay_state import World
from tests.simulation.relay_world import Explorer, lacks_proof


class Said(NamedTuple):
    """
    Events that the relay hears when the world it belongs to is chosen.
    """

    events: Sequence[steps.Event]
    passed_s: float


class Things(Catalog):
    """
    Number things by what they are, not by what they say; they stay alive and may change.
    """

    def number(self, thing: Any, keep: Callable[[Any], Any] = lambda thing: thing) -> int:
        """
        Return the number of *thing* itself.
        """
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._things)
            self._things.append(thing)
        return number


class Walked(Explorer):
    """
    The rules of a relay world for a way through it.
    """

    def choices(self, world: World, *, faulty: bool) -> list[tuple[str, World]]:
        """
        Return what may happen next: faults, or everything else.
        """
        if faulty:
            branches = [self._faults, self._zombie_writes]
        else:
            branches = [self._publishes, self._starts, self._deliveries, self._waits, self._performs]
        return [choice for branch in branches for choice in branch(world)]

    def settle(self, world: World) -> World:
        """
        Make up for what was put off until *world* was chosen.
        """
        return world


class LiveExplorer(Walked):
    """
    The same with a living relay: settle() each state that was chosen, and look at no other again.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.catalog = Things()
        self._now_s = NOW_S
        self._resting = False

    def settle(self, world: World) -> World:
        """
        Tell the relay what it has not heard on the way to *world*.
        """
        # Numbers of effects, and behind them what a branch of this class has put off.
        pending: tuple[Any, ...] = world.pending
        said = [item for item in pending if isinstance(item, Said)]
        if not said:
            return world
        world = world._replace(pending=world.pending[: -len(said)])
        for events, passed_s in said:
            world = self._heard(world, events, passed_s)
            if isinstance(events[-1], steps.Refused):
                world = world._replace(pausing=not world.pending)
        return world

    def stuck(self, world: World) -> str:
        """
        Say what is wrong with *world* after everything has had its time, or nothing.
        """
        # At rest the first thing that can happen is what happens, so the relay may hear of it at once.
        self._resting = True
        return super().stuck(world)

    def _lacks_proof(self, world: World) -> bool:
        return self.surveyed and bool(world.relay) and lacks_proof(self.catalog[world.relay])

    def _told(self, world: World, key: tuple[Any, ...], *events: steps.Event, passed_s: float = 0.0) -> World:
        if not (world.relay and events):
            return world
        if self._resting:
            return self._heard(world, events, passed_s)
        said: Any = Said(events, passed_s)
        return world._replace(pending=(*world.pending, said))

    def _heard(self, world: World, events: Sequence[steps.Event], passed_s: float) -> World:
        self._now_s += passed_s
        relay = self.catalog[world.relay]
        effects = [effect for event in events for effect in relay.handle(event, self._now_s)]
        asked = [self.catalog.number(e) for e in effects if not isinstance(e, steps.Report | steps.Notice)]
        return world._replace(pending=(*world.pending, *asked))
