"""Number the states of a sender's world, and answer once for each of them what may happen next."""

from __future__ import annotations

import copyreg
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs

from dedup.core import confirms
from dedup.core.sender import Sender
from dedup.core.sending import SenderSettings
from tests.simulation.catalog import Catalog
from tests.simulation.sender_rules import BrokenRuleError, Scenario
from tests.simulation.sender_world import World, finish

# The sender compares with this very object, so a copy of a world must share it.
copyreg.pickle(type(confirms._GONE), lambda _: "_GONE")


class Step(NamedTuple):
    """
    One thing that can happen next.
    """

    name: str
    #: Number of the world it leads to.
    following: int
    #: What the broker stored in it, in order.
    stored: tuple[int, ...]
    is_fault: bool


class Senders:
    """
    The rules of one world, for :mod:`tests.simulation.exploring`: a state is the number of a :class:`World`.
    """

    def __init__(self, scenario: Scenario, sender: Callable[[SenderSettings], Sender] = Sender) -> None:
        world = World(scenario, make_sender=sender, faults=Counter(scenario.faults), retries=scenario.retries)
        world.start()
        self.catalog = Catalog()
        self._broken: dict[int, str] = {}
        self._steps: dict[int, tuple[Step, ...]] = {}
        self._cuts: dict[int, int] = {}
        self.start = self._number(world)

    @property
    def states(self) -> int:
        """
        Return how many states were seen.
        """
        return len(self._steps)

    def steps(self, number: int) -> tuple[Step, ...]:
        """
        Return everything that can happen next.
        """
        known = self._steps.get(number)
        if known is None:
            names = [name for name, _ in self._world(number).choices()]
            known = self._steps[number] = tuple(self._step(number, at, name) for at, name in enumerate(names))
        return known

    def successors(self, number: int) -> Iterator[tuple[str, int]]:
        """
        Yield every next state and what led to it.
        """
        return ((step.name, step.following) for step in self.steps(number))

    def wrong(self, number: int) -> str:
        """
        Name the rule that was broken, or nothing.
        """
        return self._broken.get(number, "")

    def stuck(self, number: int) -> str:
        """
        Say why it does not end well although the faults have ended, or nothing.
        """
        return self.finished(number)[0]

    def finished(self, number: int) -> tuple[str, tuple[int, ...]]:
        """
        Let the faults end: return what went wrong (nothing when all is well), and what was stored meanwhile.
        """
        world = self._world(number)
        try:
            finish(world)
        except BrokenRuleError as error:
            return str(error), ()
        return "", tuple(world.arrivals)

    def cut(self, number: int) -> int:
        """
        Return the state in which the broker has gone away.
        """
        if number not in self._cuts:
            world = self._world(number)
            if world.channel is not None:
                world.lose("the broker restarts")
            self._cuts[number] = self._number(world)
        return self._cuts[number]

    def _step(self, number: int, index: int, name: str) -> Step:
        world = self._world(number)
        left = world.faults.total()
        _, act = list(world.choices())[index]
        try:
            act(world)
        except BrokenRuleError as error:
            world.broken = str(error)
        stored, world.arrivals = tuple(world.arrivals), []
        return Step(name, self._number(world), stored, world.faults.total() < left)

    def _world(self, number: int) -> World:
        world: World = pickle.loads(self.catalog[number])
        return world

    def _number(self, world: World) -> int:
        names = (field.name for field in attrs.fields(World))
        known = [_plain(getattr(world, name)) for name in names if name not in ("scenario", "make_sender")]
        number = self.catalog.number(known, lambda _: pickle.dumps(world, protocol=5))
        if world.broken:
            self._broken[number] = world.broken
        return number


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):
        return tuple(sorted(value.items()))
    return frozenset(value) if isinstance(value, set) else value
