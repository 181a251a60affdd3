"""
Number things that are equal alike: a world of numbers is small and quick to compare.

Relays are deterministic, so each state of one is kept once, by number, and asked once for its answer to each event: what runs
is the production class. That is where the speed of exploring comes from.
"""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import attrs

from dedup.core import steps
from dedup.core.message_ids import Together
from dedup.core.phase import Phase
from dedup.core.publishers import Entry
from dedup.core.records import Position
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings

#: When everything happens: relays are turned back to this moment after each event.
NOW_S = 1_000.0


class Catalog:
    """
    Give equal things the same number, from 1.
    """

    def __init__(self) -> None:
        self._things: list[Any] = [None]
        self._numbers: dict[Any, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self._things[number]

    def number(self, thing: Any, keep: Callable[[Any], Any] = lambda thing: thing) -> int:
        """
        Return the number of *thing*; a new one is kept as *keep* makes it.
        """
        key = freeze(thing)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._things)
            self._things.append(keep(thing))
        return number


def freeze(value: Any) -> Any:
    """
    Return *value* in a form that can be compared: relays count by what they know, not by how they lie in memory.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list or kind is deque:
        return tuple([freeze(item) for item in value])
    if kind is dict:
        return tuple(sorted([(freeze(k), freeze(v)) for k, v in value.items()]))
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = _names(value)
    return (kind.__name__, *[freeze(getattr(value, name)) for name in names])


def _names(value: Any) -> tuple[str, ...]:
    """
    Return the attributes that make up *value*.
    """
    if isinstance(value, Enum):
        return ("value",)
    if isinstance(value, Entry):
        # When a publisher was seen counts only in a full map, and no world fills one.
        return ("window", "batch")
    if attrs.has(type(value)):
        return tuple(a.name for a in attrs.fields(type(value)))
    if isinstance(value, Position | Together):
        return value._fields
    return tuple(sorted(set(vars(value)) - {"_handlers", "_policy"}))


_PLAIN = frozenset({int, str, bool, float, bytes, type(None), frozenset, RelaySettings})
_NAMES: dict[type, tuple[str, ...]] = {}


def turn_back(relay: Relay, passed_s: float) -> None:
    """
    Turn the clock of *relay* back to NOW_S, and drop what it will never look at again: neither makes a difference.
    """
    if relay.phase not in (Phase.CLAIMING, Phase.READING_LEDGER, Phase.SURVEYING):
        relay._claimed = steps.Claimed(0, None, restarted=False)
    ledger, keep_s, every_s = relay.ledger, relay.settings.marker_keep_s, relay.settings.anchor_every_s
    ledger._saved = deque((max(at_s - passed_s, NOW_S - keep_s), batch) for at_s, batch in ledger._saved)
    relay._anchored_s = NOW_S if math.isinf(every_s) else max(relay._anchored_s - passed_s, NOW_S - every_s)
    relay._surveyed_s = NOW_S if math.isinf(every_s) else max(relay._surveyed_s - passed_s, NOW_S - every_s)
    if relay._current is not None:
        relay._current.at_s = NOW_S
    relay.judge._proof_due_s = NOW_S + relay.settings.proof_wait_s
    relay._retry_at_s = relay._retry_at_s - passed_s if relay.phase is Phase.REFUSED else 0.0


def pickled(relay: Any) -> bytes:
    """
    Return *relay* as a catalog keeps it.
    """
    return pickle.dumps(relay, protocol=5)
