"""Number the states of an outbox's world, and say what may happen next in each."""

from __future__ import annotations

import copyreg
import pickle
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import attrs

from dedup.amqp091.stamping import Content
from dedup.core import confirms
from dedup.core.sending import Place
from tests.simulation.outbox_rules import Scenario
from tests.simulation.outbox_table import Table
from tests.simulation.outbox_world import World, finish
from tests.simulation.sender_rules import BrokenRuleError

# The sender compares with this very object, so a copy of a world must share it.
copyreg.pickle(type(confirms._GONE), lambda _: "_GONE")

#: Stands for the scenario in a state that is kept: it is the same in all of them.
_NOTHING = Scenario()


class Outboxes:
    """
    The rules of one world, for :mod:`tests.simulation.exploring`: a state is the number of a :class:`World`.

    Args:
        faults: How often each fault may happen: kill, stop (in order), cut, nack, disk (a transaction fails), range (a restart
            gets a new range), unbind (no queue takes anything from now on), retry (an operator), rollback.
    """

    def __init__(self, scenario: Scenario, **faults: int) -> None:
        self._scenario = scenario
        self._numbers: dict[Any, int] = {}
        self._worlds: list[bytes] = []
        self._broken: dict[int, str] = {}
        self.start = self._number(World(scenario, Table(), faults=Counter(faults)))

    def successors(self, number: int) -> Iterator[tuple[str, int]]:
        """
        Yield every next state and what led to it.
        """
        for name, act in self._world(number).choices():
            world = self._world(number)
            try:
                act(world)
            except AssertionError as error:
                world.broken = _reason(error)
            yield name, self._number(world)

    def wrong(self, number: int) -> str:
        """
        Name the rule that was broken, or nothing.
        """
        return self._broken.get(number, "")

    def stuck(self, number: int) -> str:
        """
        Say why it does not end well although the faults have ended, or nothing.
        """
        try:
            finish(self._world(number))
        except AssertionError as error:
            return _reason(error)
        return ""

    def _world(self, number: int) -> World:
        world: World = pickle.loads(self._worlds[number])
        world.scenario = self._scenario
        return world

    def _number(self, world: World) -> int:
        key = tuple(
            _plain(getattr(world, field.name)) for field in attrs.fields(World) if field.name != "scenario"
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._worlds)
            world.scenario = _NOTHING
            self._worlds.append(pickle.dumps(world, protocol=5))
            if world.broken:
                self._broken[number] = world.broken
        return number


def _reason(error: AssertionError) -> str:
    """
    Return the rule that is broken, or what production code takes for impossible.
    """
    return str(error) if isinstance(error, BrokenRuleError) else f"the product asserts: {error}"


_ATOMS = frozenset({int, str, bytes, float, bool, type(None), frozenset, Place})
_NAMES: dict[type, tuple[str, ...]] = {}


def _plain(value: Any) -> Any:
    """
    Return *value* in a form that can be compared: worlds count by what they know, not by how they lie in memory.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple or kind is list or kind is deque:
        return tuple([_plain(item) for item in value])
    if kind is dict or kind is Counter:
        return tuple(sorted([(_plain(key), _plain(item)) for key, item in value.items()]))
    if kind is set:
        return frozenset(value)
    if kind is Content:
        return value.body
    if kind is Table:
        return value.rows
    if isinstance(value, Exception):
        return str(value)
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = _names(value)
    return tuple([_plain(getattr(value, name)) for name in names])


def _names(value: Any) -> tuple[str, ...]:
    """
    Return the attributes that make up *value*: none where it does nothing but stand for something.
    """
    if attrs.has(type(value)):
        return tuple(field.name for field in attrs.fields(type(value)))
    if callable(value) or not hasattr(value, "__dict__"):
        return ()
    # Some never change, and the thread is the world's own.
    return tuple(sorted(vars(value).keys() - {"_settings", "_publisher_id", "_thread"}))
