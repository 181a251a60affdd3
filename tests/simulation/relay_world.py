"""
A small world around the production relay: publishers, ingress, target, ledger and Redis, and every fault.

The world performs the relay's effects one at a time, so a crash can be put between any two of them,
and each way an effect can go wrong is a branch of its own:

- the relay is killed, also in the middle of a confirmed Forward (any part of it stored);
- the broker restarts: transient markers are gone, what was acknowledged may come back, a Forward in
  flight is done in part;
- Redis loses its newest write, is emptied, or executes a write whose answer is lost;
- the target refuses messages, or a commit is partial;
- the relay loses its fence and still writes to Redis (a paused process that wakes up).

The oracle: nothing is lost; a sequence has at most one unmarked copy in the target; and without a
fault that allows marks there is no mark and no second copy.
"""

from __future__ import annotations

import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import attrs
from attrs import evolve, field, frozen

from dedup.core import steps
from dedup.core.records import Marker, MarkerKind, State
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings

PUBLISHER = "p"
NOW_S = 1_000.0


@frozen
class Faults:
    """
    How many faults of each kind may still happen.
    """

    kills: int = 0
    broker_restarts: int = 0
    redis_regressions: int = 0
    redis_emptied: int = 0
    lost_replies: int = 0
    refusals: int = 0
    partial_commits: int = 0
    lost_fences: int = 0
    stops: int = 0


@frozen
class Redis:
    """
    What the store holds.
    """

    token: int = 0
    revision: int = 0
    state: State | None = None
    #: The process that *state* was written to, and the one that runs.
    written_to: int = 0
    process: int = 0


@frozen
class World:
    """
    One state of everything. The relay is kept pickled: a branch works on its own copy.
    """

    sent: tuple[int, ...]
    ingress: tuple[tuple[int, bool], ...] = ()
    unacked: tuple[tuple[int, int], ...] = ()
    acked: tuple[int, ...] = ()
    target: tuple[tuple[int, bool], ...] = ()
    quarantine: tuple[int, ...] = ()
    ledger: tuple[tuple[int, Marker], ...] = ()
    redis: Redis = Redis()
    redis_before: Redis = Redis()
    relay: bytes | None = None
    #: What the relay knows, in a form that can be compared.
    relay_key: Any = None
    pending: tuple[steps.Effect, ...] = ()
    #: Revision the relay expects Redis to have.
    revision: int = 0
    consuming: bool = False
    next_tag: int = 1
    next_ledger_tag: int = 1
    #: Store writes of a relay that has lost its fence: (expected revision, effect).
    zombie: tuple[tuple[int, steps.Effect], ...] = ()
    faults: Faults = Faults()
    happened: Faults = field(factory=Faults)
    #: How often a relay was started: the clock of the tokens.
    starts: int = 0
    #: How often Redis was written: the clock of the relay, so that markers outlive the newest write.
    writes: int = 0


class Explorer:
    """
    The rules of the world: what may happen next, and what must never be.
    """

    def __init__(
        self,
        *,
        messages: int,
        copies: int,
        batch_max: int,
        exact: bool,
        faults: Faults,
        make_relay: Callable[[RelaySettings], Relay] = Relay,
    ) -> None:
        self.messages = messages
        self.copies = copies
        self.batch_max = batch_max
        self.exact = exact
        self.make_relay = make_relay
        self.start = World(sent=(0,) * messages, faults=faults)

    # -- what may happen --------------------------------------------------------------------------

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        """
        Yield every next state and what led to it.
        """
        yield from self._publishes(world)
        if world.relay is None:
            yield "the relay starts", self._started(world)
        else:
            yield from self._deliveries(world)
            yield from self._performs(world)
        yield from self._zombie_writes(world)
        yield from self._faults(world)

    def _publishes(self, world: World) -> Iterator[tuple[str, World]]:
        for m in range(self.messages):
            if world.sent[m] < self.copies and (m == 0 or world.sent[m - 1]):
                sent = (*world.sent[:m], world.sent[m] + 1, *world.sent[m + 1 :])
                yield f"publish {m}", evolve(world, sent=sent, ingress=(*world.ingress, (m, False)))

    def _deliveries(self, world: World) -> Iterator[tuple[str, World]]:
        if not (world.consuming and world.ingress):
            return
        relay = _thaw(world)
        room = self.batch_max - relay.waiting
        for count in range(1, min(room, len(world.ingress)) + 1):
            taken = world.ingress[:count]
            arrivals = [
                steps.Arrival(world.next_tag + i, redelivered, PUBLISHER, m + 1, payload=m)
                for i, (m, redelivered) in enumerate(taken)
            ]
            following = evolve(
                world,
                ingress=world.ingress[count:],
                unacked=(*world.unacked, *((a.tag, a.payload) for a in arrivals)),
                next_tag=world.next_tag + count,
            )
            names = ", ".join(str(m) for m, _ in taken)
            yield f"deliver {names}", _told(following, steps.Arrived(arrivals))

    def _performs(self, world: World) -> Iterator[tuple[str, World]]:
        """
        Perform the relay's next effect, in every way it can go.
        """
        if not world.pending:
            return
        effect, rest = world.pending[0], world.pending[1:]
        after = evolve(world, pending=rest)
        name = _describe(effect)
        match effect:
            case steps.ClaimState(token_min):
                redis = evolve(world.redis, token=max(world.redis.token + 1, token_min))
                claimed = steps.Claimed(redis.token, redis.state, redis.written_to != redis.process)
                after = evolve(after, redis=redis, redis_before=world.redis, revision=redis.revision)
                yield name, _told(after, claimed)
            case steps.Anchor(markers, release):
                yield name, _told(self._published(after, (), markers, release), steps.Anchored())
            case steps.Replace() | steps.Save():
                yield from self._writes(world, after, effect, name)
            case steps.Forward():
                yield from self._forwards(world, after, effect, name)
            case steps.Consume():
                yield name, evolve(after, consuming=True)
            case steps.Ack(tag):
                done = tuple(m for t, m in world.unacked if t <= tag)
                left = tuple((t, m) for t, m in world.unacked if t > tag)
                yield name, evolve(after, unacked=left, acked=world.acked + done)
            case steps.Close():
                yield name, _told(_disconnected(after), steps.Closed())
            case steps.End(reason):
                yield f"{name} {reason}", _killed(after)
            case _:
                yield name, after

    def _writes(
        self, world: World, after: World, effect: steps.Save | steps.Replace, name: str
    ) -> Iterator[tuple[str, World]]:
        written, answer = _written(world.redis, effect, world.revision)
        if answer is None:
            yield f"{name}: fenced", _killed(after)
            return
        after = evolve(
            after,
            redis=written,
            redis_before=world.redis,
            revision=written.revision,
            writes=world.writes + 1,
        )
        yield name, _told(after, answer)
        if world.faults.lost_replies and answer == steps.Saved():
            # The store repeats it: the same write must change nothing the second time.
            again, second = _written(written, effect, world.revision)
            assert second is None or again == written, "a repeated write changed something"
            yield f"{name}, its answer lost, again", _told(_spent(after, "lost_replies"), answer)

    def _forwards(
        self, world: World, after: World, effect: steps.Forward, name: str
    ) -> Iterator[tuple[str, World]]:
        outgoing, marker, release = effect.outgoing, effect.marker, effect.release
        whole = self._published(after, outgoing, (marker,), release)
        yield name, _told(whole, steps.Forwarded())
        exact = marker.batch.exact
        indexes = range(len(outgoing))
        if world.faults.refusals and not exact:
            for refused in _subsets(indexes):
                if refused:
                    stored = [outgoing[i] for i in indexes if i not in refused]
                    some = self._published(_spent(after, "refusals"), stored, (), release)
                    told = _told(_told(some, steps.Refused(refused)), steps.Ticked(), later_s=100.0)
                    yield f"{name}: {list(refused)} refused", told
        if world.faults.partial_commits and exact:
            for done in _subsets(indexes):
                part = self._published(
                    _spent(after, "partial_commits"), [outgoing[i] for i in done], (marker,), release
                )
                yield f"{name}: partial, {list(done)} stored", _told(part, steps.CommitPartial())
        if world.faults.kills and not exact:
            for done in _subsets(indexes):
                part = self._published(_spent(after, "kills"), [outgoing[i] for i in done], (), ())
                yield f"KILL within {name}, {list(done)} stored", _killed(part)

    def _published(
        self,
        world: World,
        outgoing: Iterable[steps.Outgoing],
        markers: Iterable[Marker],
        release: Iterable[int],
    ) -> World:
        """
        Store messages and markers, release old markers, deliver the new ones back.
        """
        outgoing = list(outgoing)
        target = tuple((out.arrival.payload, out.marked) for out in outgoing if not out.reason)
        quarantine = tuple(out.arrival.payload for out in outgoing if out.reason)
        gone = set(release)
        world = evolve(
            world,
            target=world.target + target,
            quarantine=world.quarantine + quarantine,
            ledger=tuple((tag, marker) for tag, marker in world.ledger if tag not in gone),
        )
        for marker in markers:
            tag = world.next_ledger_tag
            world = evolve(world, ledger=(*world.ledger, (tag, marker)), next_ledger_tag=tag + 1)
            world = _told(world, steps.MarkerArrived(tag, marker))
        return world

    # -- faults -----------------------------------------------------------------------------------

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        faults = world.faults
        if world.relay is not None:
            if faults.kills:
                yield "KILL", _killed(_spent(world, "kills"))
            if faults.lost_fences:
                writes = tuple(
                    (world.revision, e)
                    for e in world.pending[:1]
                    if isinstance(e, steps.Save | steps.Replace)
                )
                yield (
                    "THE FENCE IS LOST, the process lives",
                    evolve(_killed(_spent(world, "lost_fences")), zombie=writes),
                )
            if faults.stops and world.consuming:
                yield "STOP is asked for", _told(_spent(world, "stops"), steps.StopRequested())
        if faults.broker_restarts:
            yield from self._broker_restarts(world)
        if faults.redis_regressions and world.redis != world.redis_before:
            older = evolve(world.redis_before, process=world.redis.process + 1)
            yield (
                "REDIS RESTARTS WITHOUT ITS NEWEST WRITE",
                evolve(_spent(world, "redis_regressions"), redis=older, redis_before=older),
            )
        if faults.redis_emptied and world.redis.state is not None:
            empty = Redis(process=world.redis.process + 1)
            yield "REDIS IS EMPTIED", evolve(_spent(world, "redis_emptied"), redis=empty, redis_before=empty)

    def _broker_restarts(self, world: World) -> Iterator[tuple[str, World]]:
        effect = world.pending[0] if world.pending else None
        outgoing = effect.outgoing if isinstance(effect, steps.Forward) else ()
        for done in _subsets(range(len(outgoing))):
            for acked in {(), world.acked}:
                part = [outgoing[i] for i in done]
                after = self._published(_spent(world, "broker_restarts"), part, (), ())
                after = _killed(after)
                after = evolve(
                    after,
                    ingress=(*((m, True) for m in acked), *((m, True) for m, _ in after.ingress)),
                    acked=(),
                    ledger=tuple(x for x in after.ledger if x[1].kind is MarkerKind.FOUNDING),
                )
                yield f"BROKER RESTARTS, {list(done)} stored, {list(acked)} come back", after

    def _zombie_writes(self, world: World) -> Iterator[tuple[str, World]]:
        if world.zombie:
            (revision, effect), rest = world.zombie[0], world.zombie[1:]
            written, answer = _written(world.redis, effect, revision)
            after = evolve(world, zombie=rest)
            if answer is not None:
                after = evolve(after, redis=written, redis_before=world.redis)
            yield f"the zombie's {_describe(effect)}", after

    def _started(self, world: World) -> World:
        # A commit is partial where the target can refuse, and the next session sees that it can.
        exact = self.exact and not world.happened.partial_commits
        settings = RelaySettings(
            batch_max=self.batch_max,
            exact=exact,
            trust_exact=exact,
            marker_keep_s=1.0,
            window_size=4,
        )
        ledger = tuple((tag, marker) for tag, (_, marker) in enumerate(world.ledger, start=1))
        world = evolve(
            world,
            relay=pickle.dumps(self.make_relay(settings)),
            pending=(),
            ledger=ledger,
            next_ledger_tag=len(ledger) + 1,
            next_tag=1,
            consuming=False,
            starts=world.starts + 1,
        )
        for tag, marker in ledger:
            world = _told(world, steps.MarkerArrived(tag, marker))
        return _told(world, steps.Started(), later_s=world.starts / 1000)

    # -- what must never be -----------------------------------------------------------------------

    def wrong(self, world: World) -> str:
        """
        Say what is wrong with *world*, or nothing.
        """
        happened = world.happened
        innocent = not (
            happened.broker_restarts
            or happened.redis_emptied
            or happened.partial_commits
            or (not self.exact and (happened.kills or happened.lost_fences))
        )
        waiting = {m for m, _ in world.ingress} | {m for _, m in world.unacked}
        for m in range(self.messages):
            copies = [marked for message, marked in world.target if message == m]
            if world.sent[m] and not copies and m not in waiting and m not in world.quarantine:
                return f"message {m} is lost"
            if copies.count(False) > 1:
                return f"message {m} is doubled without a mark"
            if innocent and (len(copies) > 1 or True in copies):
                return f"message {m} is doubled or marked although no fault allows it"
            if innocent and m in world.quarantine:
                return f"message {m} is quarantined although no fault allows it"
        return ""

    def drained(self, world: World) -> World:
        """
        Return the world after the faults have ended and everything has had its time.
        """
        world = evolve(world, faults=Faults(), zombie=())
        for _ in range(400):
            if world.relay is None:
                world = self._started(world)
                continue
            steps_left = itertools.chain(self._performs(world), self._deliveries(world))
            following = next(steps_left, None)
            if following is None:
                return world
            world = following[1]
        raise AssertionError("the world does not come to rest")


# -- helpers --------------------------------------------------------------------------------------


def explore(explorer: Explorer, states_max: int = 10_000_000) -> tuple[int, list[str], str]:
    """
    Visit every state breadth first.

    Returns:
        How many states were seen, the shortest story that leads to a wrong one, and what is
        wrong; an empty story when all of them are right.
    """
    start = explorer.start
    parents: dict[Any, tuple[Any, str] | None] = {fingerprint(start): None}
    queue = deque([start])
    while queue:
        world = queue.popleft()
        key = fingerprint(world)
        if reason := explorer.wrong(world):
            return len(parents), _story(parents, key), reason
        for action, following in explorer.successors(world):
            following_key = fingerprint(following)
            if following_key not in parents:
                parents[following_key] = (key, action)
                queue.append(following)
        assert len(parents) <= states_max, "the world is larger than expected"
    return len(parents), [], ""


def fingerprint(world: World) -> int:
    """
    Return a number that tells states apart; relays count by what they know, not by how they lie in memory.
    """
    return hash(tuple(_freeze(getattr(world, name)) for name in _WORLD_FIELDS))


def _freeze(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list or kind is deque:
        return tuple([_freeze(item) for item in value])
    if kind is dict:
        return tuple(sorted([(_freeze(k), _freeze(v)) for k, v in value.items()]))
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = _names(value)
    return tuple([_freeze(getattr(value, name)) for name in names])


def _names(value: Any) -> tuple[str, ...]:
    """
    Return the attributes that make up *value*.
    """
    if isinstance(value, Enum):
        return ("value",)
    if attrs.has(type(value)):
        return tuple(a.name for a in attrs.fields(type(value)))
    return tuple(sorted(set(vars(value)) - {"_handlers", "settings", "_settings"}))


_PLAIN = frozenset({int, str, bool, float, bytes, type(None), frozenset})
_NAMES: dict[type, tuple[str, ...]] = {}
_WORLD_FIELDS = tuple(a.name for a in attrs.fields(World) if a.name != "relay")


def _story(parents: dict[Any, tuple[Any, str] | None], key: Any) -> list[str]:
    story: list[str] = []
    while (parent := parents[key]) is not None:
        key, action = parent
        story.append(action)
    return story[::-1]


def _thaw(world: World) -> Relay:
    assert world.relay is not None
    relay = pickle.loads(world.relay)
    assert isinstance(relay, Relay)
    return relay


def _told(world: World, event: steps.Event, later_s: float = 0.0) -> World:
    """
    Tell the relay *event* and queue what it asks for.
    """
    if world.relay is None:
        return world
    relay = _thaw(world)
    effects = relay.handle(event, NOW_S + world.writes + later_s)
    effects = [e for e in effects if not isinstance(e, steps.Report | steps.Notice)]
    return evolve(
        world,
        relay=pickle.dumps(relay, protocol=5),
        relay_key=hash(_freeze(relay)),
        pending=world.pending + tuple(effects),
    )


def _disconnected(world: World) -> World:
    """
    Return what was delivered and not acknowledged to the head of the ingress.
    """
    returned = tuple((m, True) for _, m in world.unacked)
    return evolve(world, ingress=returned + world.ingress, unacked=(), consuming=False)


def _killed(world: World) -> World:
    return evolve(_disconnected(world), relay=None, relay_key=None, pending=())


def _spent(world: World, fault: str) -> World:
    left = evolve(world.faults, **{fault: getattr(world.faults, fault) - 1})
    happened = evolve(world.happened, **{fault: getattr(world.happened, fault) + 1})
    return evolve(world, faults=left, happened=happened)


def _written(redis: Redis, effect: steps.Effect, revision: int) -> tuple[Redis, steps.Event | None]:
    """
    Write as the store does; None instead of an answer when the writer is fenced.
    """
    assert isinstance(effect, steps.Save | steps.Replace)
    if redis.token > effect.token:
        return redis, None
    if isinstance(effect, steps.Replace):
        done = Redis(effect.token, revision + 1, effect.state, redis.process, redis.process)
        return done, steps.Saved()
    if redis.token == effect.token and redis.revision == revision + 1:
        return redis, steps.Saved()
    if redis.token < effect.token or redis.revision != revision or redis.state is None:
        return redis, steps.StoreBehind()
    entries = {**redis.state.entries, **effect.changes.entries}
    for name in effect.changes.evicted:
        entries.pop(name, None)
    doubt = redis.state.doubt if effect.doubt is None else effect.doubt
    state = evolve(
        redis.state,
        batch=effect.batch,
        writer=effect.token,
        entries=entries,
        intent=effect.intent,
        doubt=doubt,
        clean=effect.clean,
    )
    return evolve(redis, revision=revision + 1, state=state), steps.Saved()


def _subsets(indexes: Iterable[int]) -> Iterator[tuple[int, ...]]:
    indexes = tuple(indexes)
    return itertools.chain.from_iterable(
        itertools.combinations(indexes, size) for size in range(len(indexes) + 1)
    )


def _describe(effect: steps.Effect) -> str:
    match effect:
        case steps.Forward(outgoing, marker):
            names = ", ".join(f"{o.arrival.payload}{' marked' if o.marked else ''}" for o in outgoing)
            return f"forward batch {marker.batch.number}: {names}"
        case steps.Save(batch=batch, intent=intent):
            return f"save batch {batch}" + (f", intent {intent.number}" if intent else "")
        case steps.Ack(tag):
            return f"ack up to {tag}"
        case _:
            return type(effect).__name__
