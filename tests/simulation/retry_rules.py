"""The rules of worlds around production retriers: what may happen next, and what must never be."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import attrs

from dedup.core.digests import Digests
from dedup.core.retrier import Retrier
from dedup.core.retry_steps import Entry, Item, Letter
from tests.simulation.retry_world import Dead, Faults, Live, World

Act = Callable[[World], object]


class RetryRules:
    """
    The rules of one world, for `tests.simulation.exploring.explore`.

    Args:
        letters: What is in the dead-letter queue.
        at_once: Sessions that live at the same time.
        slow: Time passes while acks are on their way.
    """

    def __init__(
        self,
        letters: list[Dead],
        faults: Faults,
        *,
        at_once: int = 1,
        capacity: int = 100,
        slow: bool = False,
    ) -> None:
        self._letters = letters
        world = World(faults, list(letters), capacity)
        for _ in range(at_once):
            world.begin()
        self._at_once = at_once
        self._slow = slow
        self.start = Frozen(world)

    def successors(self, state: Frozen) -> Iterator[tuple[str, Frozen]]:
        """Yield every next state and what led to it."""
        for story, act in self._actions(state.thaw()):
            world = state.thaw()
            act(world)
            yield story, Frozen(world)

    def wrong(self, state: Frozen) -> str:
        """
        No copy is unmarked that may be a second one.

        Twins cannot be told apart by anybody: of two there may be two unmarked copies, whichever they are.
        """
        for dead in self._letters:
            twins = [other.name for other in self._letters if other.digest == dead.digest]
            marks = [marked for name, marked in state.copies if name in twins]
            if marks.count(False) > len(twins):
                return f"{dead.name} is doubled without a mark"
            if len(twins) == 1 and False in marks[1:]:
                return f"{dead.name} has an unmarked copy behind another"
        return ""

    def stuck(self, state: Frozen) -> str:
        """Without further faults, everything arrives."""
        world = state.thaw()
        world.faults = Faults()
        for turn in range(400):
            acts = [act for story, act in self._actions(world) if not story.startswith("time")]
            (acts[turn % len(acts)] if acts else World.tick)(world)
            missing = self._missing(world)
            if not missing:
                return ""
        return f"{missing} is lost"

    def _missing(self, world: World) -> str:
        arrived = [name for queue in world.queues.values() for name, _ in queue]
        for dead in self._letters:
            twins = [other.name for other in self._letters if other.digest == dead.digest]
            if sum(name in twins for name in arrived) < len(twins):
                return dead.name
        return ""

    def _actions(self, world: World) -> list[tuple[str, Act]]:
        found: list[tuple[str, Act]] = []
        for name, live in world.sessions.items():
            found += self._of_session(name, live, world)
            found += self._of_connection(name, live, world)
        living = sum(live.retrier is not None and not live.noticed for live in world.sessions.values())
        if living < self._at_once:
            found.append(("a session begins", World.begin))
        if world.faults.broker_restarts:
            found.append(("the broker restarts", _failing("broker_restarts", World.restart)))
        busy = any(
            live.effects
            or live.publishes
            or (live.acks and not self._slow)
            or (live.retrier is None) > live.noticed
            for live in world.sessions.values()
        )
        return found if busy else [*found, ("time passes", World.tick)]

    def _of_session(self, name: str, live: Live, world: World) -> Iterator[tuple[str, Act]]:
        """What a process may do, or what may happen to it."""
        if live.retrier is None:
            return
        if live.effects:
            kind = type(live.effects[0]).__name__
            yield f"{name} performs {kind}", partial(World.perform, name=name)
            if world.faults.lost_answers and kind in ("Store", "Claim", "Settle"):
                unheard = partial(World.perform, name=name, heard=False)
                yield f"{name} performs {kind} and does not hear", _failing("lost_answers", unheard)
        if live.consuming and world.ready and len(live.unacked) < 3:
            yield f"a letter is delivered to {name}", partial(World.deliver, name=name)
        if world.faults.kills:
            yield f"{name} is killed", _failing("kills", partial(World.kill, name=name))
        if live.noticed:
            yield f"{name} sees that it is cut off", partial(World.kill, name=name)
        elif world.faults.cuts:
            yield f"{name} is cut off", _failing("cuts", partial(World.notice, name=name))

    def _of_connection(self, name: str, live: Live, world: World) -> Iterator[tuple[str, Act]]:
        """What the broker may take of a session, alive or dead."""
        if live.publishes:
            yield f"the broker takes a message of {name}", partial(World.take_publish, name=name)
            if world.faults.refusals:
                refused = partial(World.take_publish, name=name, refuse=True)
                yield f"the queue refuses a message of {name}", _failing("refusals", refused)
        if live.acks or live.probe:
            yield f"the broker takes acks of {name}", partial(World.take_acks, name=name)
        if live.retrier is None and not live.noticed:
            yield f"the broker sees that {name} is dead", partial(World.notice, name=name)


def _failing(fault: str, act: Act) -> Act:
    def fail(world: World) -> None:
        world.fail(fault)
        act(world)

    return fail


class Frozen:
    """A world that does not change, equal to another in which the same may happen next."""

    __slots__ = ("_hash", "_pickled", "copies")

    def __init__(self, world: World) -> None:
        self._pickled = pickle.dumps(world, protocol=5)
        self._hash = hash(_key(world, world.now_s))
        self.copies = tuple(copy for queue in world.queues.values() for copy in queue)

    def thaw(self) -> World:
        """Return the world, to be changed."""
        world: World = pickle.loads(self._pickled)
        return world

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self._hash == other._hash


def _key(value: Any, now_s: float, name: str = "") -> Any:
    """Return a hashable stand-in; points in time count by how far away they are."""
    kind = type(value)
    if kind is float and name.endswith(("_at_s", "allowed_s", "since_s")):
        return max(-3.0, value - now_s)
    if kind in (int, str, bytes, bool, float) or value is None or isinstance(value, Enum):
        return value
    if kind is Dead:
        return value.name
    if kind is Letter:
        return value.tag, value.payload.name
    if kind is Item:
        return value.id, value.queue, value.reason, value.marked, value.tag, value.payload.name
    if kind is Entry:
        return value.letter.tag, value.letter.payload.name, value.own
    if name == "_arrived":
        return tuple((max(-3.0, at - now_s), digest) for at, digest in value)
    if kind in (list, tuple, deque):
        return tuple([_key(item, now_s) for item in value])
    if kind in (dict, Counter):
        return tuple(sorted([(str(key), _key(item, now_s)) for key, item in value.items()], key=_first))
    if kind is set:
        return tuple(sorted(value))
    if kind in (Retrier, Digests):
        kept = [
            (key, _key(item, now_s, key)) for key, item in vars(value).items() if key not in _NOT_COMPARED
        ]
        return tuple(kept)
    names = _FIELDS.get(kind) or _FIELDS.setdefault(kind, [*attrs.fields_dict(kind)])
    return kind.__name__, *[_key(getattr(value, f), now_s, f) for f in names if f not in _NOT_COMPARED]


_FIELDS: dict[type, list[str]] = {}
#: The allowance of the world is larger than whatever it has.
_NOT_COMPARED = frozenset({"settings", "_handlers", "now_s", "_allowance", "_allowed_s"})


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]
