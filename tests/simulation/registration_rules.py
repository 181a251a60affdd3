"""The rules of worlds around production registrations: what may happen next, and what must never be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from tests.simulation.registration_world import GHOST, Asked, Faults, Link, Owner, World

Act = Callable[[World], object]
_MANY = 1_000
#: Steps that are told of how it ends.
_STORY_MAX = 12
#: Seconds after which everything must have come to rest: one of grace for a lock, one or two until the clock has moved on.
_SECONDS_MAX = 6


class RegistrationRules:
    """
    The rules of one world, for `tests.simulation.exploring.explore`.

    Args:
        owners: Names in the order of the alphabet; with a "!" those that take over.
        shims: More than one: requests of one owner may be carried out in any order.
    """

    def __init__(self, owners: str, faults: Faults, *, shims: int = 1) -> None:
        names = owners.split()
        self._shims = shims
        #: Nothing goes wrong: somebody must publish, whatever the order of things.
        self._calm = faults == Faults(looks=faults.looks, ticks=faults.ticks)
        self.start = Frozen(
            World(faults, {name.strip("!"): Owner(name.strip("!"), name.endswith("!")) for name in names})
        )

    def successors(self, state: Frozen) -> Iterator[tuple[str, Frozen]]:
        """Yield every next state and what led to it."""
        for story, act in [*self._actions(state.seen), *self._faults(state.seen)]:
            world = state.thaw()
            act(world)
            yield story, Frozen(world)

    def wrong(self, state: Frozen) -> str:
        """No range has two owners, and whoever registered later has the higher one."""
        world = state.seen
        if world.broken:
            return world.broken
        published = sorted(world.published.items(), key=lambda item: item[1])
        for (one, low), (other, high) in pairwise(published):
            if low == high:
                return f"{one} and {other} publish from the same range"
            if world.handed.index((low, one)) > world.handed.index((high, other)):
                return f"{one} registered later than {other} and has the lower range"
        return ""

    def stuck(self, state: Frozen) -> str:
        """Without further faults one owner publishes, and whoever lives besides it was told why it does not."""
        world = state.thaw()
        world.faults = Faults()
        story: list[str] = []
        for owner in world.owners.values():
            owner.frozen = False
        for _ in range(_SECONDS_MAX):
            self._settle(world, story)
            world.tick()
            for name, owner in world.owners.items():
                if owner.paused and owner.link is not None:
                    world.begin(name)
                elif owner.ready:
                    world.look(name)
        self._settle(world, story)
        reason = world.broken or self._unrest(world)
        return reason and f"{reason} (when faults stop: {'; '.join(story[:_STORY_MAX])})"

    def _settle(self, world: World, story: list[str]) -> None:
        for _ in range(_MANY):
            acts = [(name, act) for name, act in self._actions(world) if not name.endswith("tries again")]
            if not acts:
                return
            name, act = acts[0]
            act(world)
            story.append(name)
        raise AssertionError("it does not come to rest within a second")

    def _unrest(self, world: World) -> str:
        ready = [name for name, owner in world.owners.items() if owner.ready]
        if len(ready) > 1:
            return f"{' and '.join(ready)} both publish for ever"
        for name, owner in world.owners.items():
            if not owner.ready and not owner.ended:
                return f"{name} neither publishes nor is told why"
        if self._calm and not ready:
            return "nobody publishes and nothing went wrong"
        newest = max(world.published.values(), default=0)
        if ready and not world.forgot and world.published[ready[0]] < newest:
            return f"{ready[0]} goes on behind a newer owner"
        return ""

    def _actions(self, world: World) -> list[tuple[str, Act]]:
        """What may happen without a fault."""
        found: list[tuple[str, Act]] = []
        for name, owner in world.owners.items():
            if not owner.ended and not owner.frozen:
                found += self._of_owner(name, owner, world)
            if owner.link is not None and owner.link.locking:
                found.append(
                    (f"the broker answers {name} about the lock", partial(World.answer_lock, name=name))
                )
        if world.lock:
            link = world.owners[world.lock.removesuffix(GHOST)].link
            if world.lock.endswith(GHOST) or (link is not None and link.cut):
                found.append((f"the broker sees that {world.lock} is dead", World.notice))
        for index, asked in self._next_requests(world):
            story = f"the registry carries out {_named(asked)}"
            found.append((story, partial(World.carry_out, index=index)))
        return found

    def _of_owner(self, name: str, owner: Owner, world: World) -> Iterator[tuple[str, Act]]:
        link = owner.link
        if link is None:
            yield f"{name} connects", partial(World.connect, name=name)
            return
        if link.lock_reply is not None:
            reply = type(link.lock_reply).__name__
            yield f"{name} hears of the lock: {reply}", partial(World.hear_of_lock, name=name)
        if link.answers:
            yield f"{name} hears {_told(link)}", partial(World.hear, name=name)
        if link.hints:
            yield (
                f"{name} gets the hint that {link.hints[0]} has registered",
                partial(World.hear_hint, name=name),
            )
        if link.cut:
            yield f"{name} sees that its connection is gone", partial(World.see_loss, name=name)
        elif owner.paused:
            yield f"{name} tries again", partial(World.begin, name=name)
        if owner.question is not None and not _may_be_answered(world, owner):
            yield f"{name} hears no answer", partial(World.hear_nothing, name=name)

    def _faults(self, world: World) -> Iterator[tuple[str, Act]]:
        left = world.faults
        for name, owner in world.owners.items():
            if owner.frozen and not owner.ended:
                yield f"{name} wakes up", partial(World.wake, name=name)
            if owner.link is not None:
                yield from self._faults_of_owner(name, owner, owner.link, world)
        for index, asked in self._next_requests(world):
            if left.losses:
                yield f"{_named(asked)} is lost", _failing("losses", partial(World.lose, index=index))
                lost = partial(World.carry_out, index=index, heard=False)
                yield f"the answer to {_named(asked)} is lost", _failing("losses", lost)
            if left.repeats:
                again = partial(World.carry_out, index=index, again=True)
                story = f"the registry carries out {_named(asked)}, not for the last time"
                yield story, _failing("repeats", again)
        if left.emptied:
            yield "the registry's Redis is emptied", _failing("emptied", World.empty)
        if left.ticks:
            yield "a second passes", _failing("ticks", World.tick)

    def _faults_of_owner(
        self, name: str, owner: Owner, link: Link, world: World
    ) -> Iterator[tuple[str, Act]]:
        left = world.faults
        if left.kills:
            yield f"{name} is killed", _failing("kills", partial(World.kill, name=name))
        if left.cuts and not link.cut:
            yield f"the connection of {name} is cut", _failing("cuts", partial(World.cut, name=name))
        if owner.frozen:
            if not link.cut:
                yield f"the broker hears no heartbeat of {name}", partial(World.give_up, name=name)
            return
        if left.freezes:
            yield f"{name} freezes", _failing("freezes", partial(World.freeze, name=name))
        if left.looks and owner.ready and owner.question is None:
            story = f"{name} looks whether it is the newest"
            yield story, _failing("looks", partial(World.look, name=name))
        if left.silences and owner.question is not None and _may_be_answered(world, owner):
            yield f"{name} waits no longer", _failing("silences", partial(World.hear_nothing, name=name))

    def _next_requests(self, world: World) -> Iterator[tuple[int, Asked]]:
        """Requests of one owner are carried out in order, if there is one shim."""
        seen: set[str] = set()
        for index, asked in enumerate(world.requests):
            if asked.owner not in seen:
                yield index, asked
            if self._shims == 1:
                seen.add(asked.owner)


def _failing(fault: str, act: Act) -> Act:
    def fail(world: World) -> None:
        world.fail(fault)
        act(world)

    return fail


def _may_be_answered(world: World, owner: Owner) -> bool:
    assert owner.question is not None
    assert owner.link is not None
    number = owner.question.id
    return any(answer.id == number for answer in owner.link.answers) or any(
        asked.owner == owner.name and asked.reply and asked.request.id == number for asked in world.requests
    )


def _named(asked: Asked) -> str:
    return f"{asked.request.act.name} of {asked.owner}"


def _told(link: Link) -> str:
    answer = link.answers[0]
    if answer.refusal is not None:
        return f"from the registry: {answer.refusal.value}"
    return f"that the newest owner is {answer.record.owner or 'unknown'}"


class Frozen:
    """A world that does not change, equal to another in which the same may happen next."""

    __slots__ = ("_hash", "seen")

    def __init__(self, world: World) -> None:
        #: To be looked at only.
        self.seen = world
        self._hash = hash(_key(world))

    def thaw(self) -> World:
        """Return a copy, to be changed."""
        return self.seen.copy()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and self._hash == other._hash


def _key(world: World) -> Any:
    """Return a hashable stand-in; of the questions' numbers counts only which is the newest, and which are the same."""
    registry = vars(world.registry)
    known = [(one.record, one.handed) for one in registry["_known"].values()]
    return (
        world.faults,
        world.clock.now_s,
        (registry["_since_s"], *known),
        world.lock,
        tuple(_owner_key(world, owner) for owner in world.owners.values()),
        tuple(
            (
                asked.owner,
                asked.request.act,
                asked.request.last,
                _age(world, asked.owner, asked.request.id),
                asked.reply,
            )
            for asked in world.requests
        ),
        tuple(world.handed),
        tuple(sorted(world.published.items())),
        world.forgot,
        world.broken,
    )


def _age(world: World, name: str, number: int) -> int:
    asked: int = vars(world.owners[name].machine)["_asked_count"]
    return min(asked - number, 3)


def _owner_key(world: World, owner: Owner) -> Any:
    machine = {**vars(owner.machine), "_request": None, "_asked_count": 0}
    link = owner.link
    return (
        tuple(machine.values()),
        (owner.ready, owner.frozen, owner.paused, owner.ended),
        owner.question is not None and (owner.question.act, _age(world, owner.name, owner.question.id)),
        link
        and (
            (link.cut, link.locking, link.granted),
            link.lock_reply,
            tuple((one.record, one.refusal, _age(world, owner.name, one.id)) for one in link.answers),
            tuple(link.hints),
        ),
    )
