"""
A small world around the production relay: publishers, ingress, target, ledger and Redis, and every fault.

The world performs the relay's effects one at a time, so a crash can be put between any two of them,
and each way an effect can go wrong is a branch of its own:

- the relay is killed, also in the middle of a confirmed Forward (any part of it stored);
- the broker restarts: transient markers are gone, what was acknowledged may come back, a Forward in
  flight is done in part;
- Redis loses its newest write, is emptied, or executes a write whose answer is lost;
- the target refuses messages, or a commit is partial;
- the target gets another leader, which has less than the one before (what nobody was told it had);
- the relay loses its fence and still writes to Redis (a paused process that wakes up);
- it is asked to stop.

The oracle: nothing is lost; a sequence has at most one unmarked copy in the target; and without a
fault that allows marks there is no mark and no second copy.

Relays are deterministic, so each state of one is kept once, by number, and asked once for its answer
to each event: what runs is the production class, and a world is a tuple of numbers that is quick to
compare. That is where the speed comes from.
"""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import attrs
from attrs import evolve

from dedup.core import steps
from dedup.core.phase import Phase
from dedup.core.publishers import Entry
from dedup.core.records import Leadership, Marker, MarkerKind, State
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings

#: When everything happens: relays are turned back to this moment after each event.
NOW_S = 1_000.0
#: How long a write of Redis takes.
WRITE_S = 1.0
#: Longer than any pause between two tries.
PAUSE_S = 100.0
#: Faults that allow marks and marked copies, by the way of forwarding.
MARKING_EXACT = ("broker_restarts", "redis_emptied", "partial_commits")
MARKING_CONFIRMED = (*MARKING_EXACT, "elections", "kills", "lost_fences")
#: Faults that put one message in doubt each, where it can be read who leads the target.
MARKING_ONE = ("kills", "lost_fences")
#: How likely the next step of a long way is a fault.
FAULT_CHANCE = 0.05
#: Steps that a world without faults needs at the most to come to rest.
REST_STEPS_MAX = 1_000


class Faults(NamedTuple):
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
    elections: int = 0


class Redis(NamedTuple):
    """
    What the store holds.
    """

    token: int = 0
    revision: int = 0
    #: Number of the state; 0: none.
    state: int = 0
    #: The process that *state* was written to, and the one that runs.
    written_to: int = 0
    process: int = 0


class World(NamedTuple):
    """
    One state of everything; messages are numbered from 0, everything large stands in the catalog.
    """

    #: How often each message was published.
    sent: tuple[int, ...]
    faults: Faults
    #: Message, and whether the broker flags it as redelivered.
    ingress: tuple[tuple[int, bool], ...] = ()
    #: Delivery tag and message.
    unacked: tuple[tuple[int, int], ...] = ()
    acked: tuple[int, ...] = ()
    #: Message, and whether it is marked; in no order.
    target: tuple[tuple[int, bool], ...] = ()
    quarantine: tuple[int, ...] = ()
    #: Delivery tag and number of the marker.
    ledger: tuple[tuple[int, int], ...] = ()
    #: Persistent markers that were acknowledged.
    released: tuple[int, ...] = ()
    redis: Redis = Redis()
    #: What it held before its newest writes, oldest first; kept only while it may be lost again.
    redis_before: tuple[Redis, ...] = ()
    #: Number of the relay; 0: it is dead.
    relay: int = 0
    #: Numbers of the effects it asked for and nobody performed yet.
    pending: tuple[int, ...] = ()
    #: Revision the relay expects Redis to have.
    revision: int = 0
    consuming: bool = False
    #: The relay waits after a refusal.
    pausing: bool = False
    next_tag: int = 1
    next_ledger_tag: int = 1
    #: Store writes of a relay that has lost its fence: (expected revision, effect).
    zombie: tuple[tuple[int, int], ...] = ()
    #: How often a relay was started: the clock of the tokens.
    starts: int = 0
    #: How often somebody came to lead the target.
    term: int = 1
    #: The term in which the relay's channel found the leader; 0: it has not looked.
    channel_term: int = 0
    #: In the target, as long as nobody else comes to lead it.
    uncommitted: tuple[tuple[int, bool], ...] = ()


#: What a store answers to a write, and the state it holds then; None: as it was.
Write = Callable[[Redis, State | None, steps.Save | steps.Replace, int], tuple[str, State | None]]


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


class Explorer:
    """
    The rules of one world: what may happen next, and what must never be.

    Args:
        messages: How many there are; message *m* belongs to publisher ``m % publishers``.
        copies: How often each may be published.
        untracked: The last so many messages carry no sequence.
        anchor_every_s: How often the relay rewrites the ledger and asks who leads; a write of Redis takes WRITE_S.
        lost_writes: How many writes Redis loses at the most when it restarts; markers are kept as long.
        surveyed: It can be read who leads the target.
        marking: Faults that allow marks and marked copies; by default those that the guarantees name.
        make_relay, write: The relay, and the store's rules; a mutant changes one of them.
    """

    def __init__(
        self,
        *,
        messages: int = 2,
        copies: int = 2,
        batch_max: int = 2,
        prefetch: int | None = None,
        exact: bool = True,
        publishers: int = 1,
        untracked: int = 0,
        anchor_every_s: float = math.inf,
        lost_writes: int = 1,
        surveyed: bool = False,
        marking: Sequence[str] | None = None,
        make_relay: Callable[[RelaySettings], Relay] = Relay,
        write: Write | None = None,
        **faults: int,
    ) -> None:
        self.messages = messages
        self.copies = copies
        self.batch_max = batch_max
        self.prefetch = 2 * batch_max if prefetch is None else prefetch
        self.exact = exact
        self.publishers = publishers
        self.untracked = range(messages - untracked, messages)
        self.anchor_every_s = anchor_every_s
        self.lost_writes = lost_writes
        self.surveyed = surveyed
        self.make_relay = make_relay
        self.write = write or write_as_the_store
        self.start = World(sent=(0,) * messages, faults=Faults(**faults))
        if marking is None:
            marking = MARKING_EXACT if exact else MARKING_CONFIRMED
        if not exact and faults.get("refusals"):
            # Which part of a batch was refused is known to Redis alone.
            marking = (*marking, "redis_regressions")
        if surveyed:
            marking = [fault for fault in marking if fault not in MARKING_ONE]
        self.marking = marking
        self.catalog = Catalog()
        self._answers: dict[Any, tuple[int, tuple[int, ...]]] = {}
        self._names: dict[int, str] = {}
        self._lacking: dict[int, bool] = {}

    def happened(self, world: World, *faults: str) -> int:
        """
        Return how many of *faults* have happened.
        """
        return sum(getattr(self.start.faults, name) - getattr(world.faults, name) for name in faults)

    # -- what may happen --------------------------------------------------------------------------

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        """
        Yield every next state and what led to it.
        """
        return itertools.chain.from_iterable(branch(world) for branch in self.branches())

    def branches(self) -> tuple[Callable[[World], Iterator[tuple[str, World]]], ...]:
        """
        Return the kinds of things that may happen.
        """
        return (
            self._publishes,
            self._starts,
            self._deliveries,
            self._waits,
            self._performs,
            self._zombie_writes,
            self._faults,
        )

    def _publishes(self, world: World) -> Iterator[tuple[str, World]]:
        # Nothing but a delivery looks into the ingress, so publishing earlier than before the next one
        # makes no difference; only a broker restart flags what lies there.
        if world.pending and not world.faults.broker_restarts:
            return
        for m in range(self.messages):
            if world.sent[m] < self.copies and (m == 0 or world.sent[m - 1]):
                sent = (*world.sent[:m], world.sent[m] + 1, *world.sent[m + 1 :])
                yield f"publish {m}", world._replace(sent=sent, ingress=(*world.ingress, (m, False)))

    def _starts(self, world: World) -> Iterator[tuple[str, World]]:
        if not world.relay:
            yield "the relay starts", self._started(world)

    def _deliveries(self, world: World) -> Iterator[tuple[str, World]]:
        if not (world.consuming and world.ingress):
            return
        room = self.prefetch - len(world.unacked)
        for count in range(1, min(room, len(world.ingress)) + 1):
            taken = world.ingress[:count]
            tags = range(world.next_tag, world.next_tag + count)
            following = world._replace(
                ingress=world.ingress[count:],
                unacked=world.unacked + tuple((tag, m) for tag, (m, _) in zip(tags, taken, strict=True)),
                next_tag=world.next_tag + count,
            )
            names = ", ".join(str(m) for m, _ in taken)
            yield f"deliver {names}", self._told_arrivals(following, world.next_tag, taken)

    def _waits(self, world: World) -> Iterator[tuple[str, World]]:
        if world.pausing:
            ticked = self._told(world._replace(pausing=False), ("ticked",), steps.Ticked(), passed_s=PAUSE_S)
            yield "the pause is over", ticked
        elif not world.pending and self._lacks_proof(world):
            yield "time passes", self._told(world, ("ticked",), steps.Ticked(), passed_s=PAUSE_S)

    def _performs(self, world: World) -> Iterator[tuple[str, World]]:
        """
        Perform the relay's next effect, in every way it can go.
        """
        if not world.pending:
            return
        number = world.pending[0]
        effect = self.catalog[number]
        after = world._replace(pending=world.pending[1:])
        name = self._name(number)
        match effect:
            case steps.Save() | steps.Replace():
                yield from self._writes(world, after, effect, name)
            case steps.Forward():
                yield from self._forwards(world, after, effect, name)
            case steps.Ack(tag):
                restarts = world.faults.broker_restarts
                done = tuple(m for t, m in world.unacked if t <= tag)
                left = tuple((t, m) for t, m in world.unacked if t > tag)
                yield name, after._replace(unacked=left, acked=world.acked + done if restarts else ())
            case steps.Anchor(markers, release):
                stored = self._published(after, (), markers, release)
                yield name, self._told(stored, ("anchored",), steps.Anchored())
            case steps.ClaimState(token_min):
                redis = world.redis._replace(token=max(world.redis.token + 1, token_min))
                after = self._redis_changed(after, redis)._replace(revision=redis.revision)
                restarted = redis.written_to != redis.process
                claimed = steps.Claimed(redis.token, self.catalog[redis.state], restarted)
                yield name, self._told(after, ("claimed", redis.token, redis.state, restarted), claimed)
            case steps.Survey():
                leadership = Leadership("", world.term, 0) if self.surveyed else None
                yield name, self._told(after, ("surveyed", leadership), steps.Surveyed(leadership))
            case steps.Consume():
                yield name, after._replace(consuming=True)
            case steps.Close():
                yield name, self._told(_disconnected(after), ("closed",), steps.Closed())
            case steps.End():
                yield name, _killed(after)
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def _lacks_proof(self, world: World) -> bool:
        """
        Say whether the relay would forward something it believes in, if it had to wait any longer.
        """
        if not (self.surveyed and world.relay):
            return False
        if world.relay not in self._lacking:
            relay = pickle.loads(self.catalog[world.relay])
            self._lacking[world.relay] = relay.judge.spare is not None and not relay.judge.doubt
        return self._lacking[world.relay]

    def _writes(
        self, world: World, after: World, effect: steps.Save | steps.Replace, name: str
    ) -> Iterator[tuple[str, World]]:
        redis, answer = self._written(world, effect, world.revision)
        if answer == "fenced":
            yield f"{name}: fenced", _killed(after)
            return
        if answer == "behind":
            yield f"{name}: behind", self._told(after, ("behind",), steps.StoreBehind(), passed_s=WRITE_S)
            return
        after = self._redis_changed(after, redis)._replace(revision=world.revision + 1)
        yield name, self._told(after, ("saved",), steps.Saved(), passed_s=WRITE_S)
        if world.faults.lost_replies:
            # The store repeats it: the same write must change nothing the second time.
            repeated = self._written(world._replace(redis=redis), effect, world.revision)
            assert repeated == (redis, "saved"), "a repeated write changed something"
            again = self._told(_spent(after, "lost_replies"), ("saved",), steps.Saved(), passed_s=WRITE_S)
            yield f"{name}, its answer lost, again", again

    def _forwards(
        self, world: World, after: World, effect: steps.Forward, name: str
    ) -> Iterator[tuple[str, World]]:
        outgoing, marker, release = effect.outgoing, effect.marker, effect.release
        between = [part for _, part in effect.between]
        whole = self._published(after, outgoing, (*between, marker), release)
        if any(not out.reason for out in outgoing):
            # A confirm: whatever was handed over before is there for good.
            whole = whole._replace(uncommitted=(), channel_term=world.term if self.surveyed else 0)
        yield name, self._told(whole, ("forwarded",), steps.Forwarded())
        exact = marker.batch.exact
        if world.faults.refusals:
            for refused in _subsets(len(outgoing)):
                if refused:
                    stored = [out for i, out in enumerate(outgoing) if i not in refused]
                    # A transaction puts its marker into the ledger whatever became of the messages.
                    markers = (marker,) if exact else tuple(between)
                    some = self._published(_spent(after, "refusals"), stored, markers, release)
                    told = self._told(some, ("refused", refused), steps.Refused(refused))
                    yield f"{name}: {list(refused)} refused", told._replace(pausing=not told.pending)
        if world.faults.partial_commits and exact:
            for done in _subsets(len(outgoing)):
                stored = [outgoing[i] for i in done]
                part = self._published(_spent(after, "partial_commits"), stored, (marker,), release)
                told = self._told(part, ("partial",), steps.CommitPartial())
                yield f"{name}: partial, {list(done)} stored", told
        if world.faults.kills and not exact:
            for done, parts_done in self._cuts(world, effect):
                dead = _spent(after, "kills")
                part = self._published(dead, [outgoing[i] for i in done], parts_done, release)
                if self.surveyed:
                    sent = [
                        (outgoing[i].arrival.payload, outgoing[i].marked)
                        for i in done
                        if not outgoing[i].reason
                    ]
                    part = part._replace(uncommitted=tuple(sorted((*part.uncommitted, *sent))))
                yield (
                    f"KILL within {name}, {list(done)} stored, {len(parts_done)} parts marked",
                    _killed(part),
                )

    def _cuts(self, world: World, effect: steps.Forward) -> Iterator[tuple[tuple[int, ...], list[Marker]]]:
        """
        Yield what a killed channel may have done: messages stored, and markers in between.

        Of what it carried out, which is a prefix, nothing is missing if it knew who leads.
        """
        count = len(effect.outgoing)
        if not self.surveyed:
            yield (), []
            for done in _subsets(count):
                yield done, [marker for position, marker in effect.between if position == 0]
            return
        knows = world.channel_term in (0, world.term)
        for cut in range(count + 1):
            before = [part for position, part in effect.between if position < cut]
            last = [part for position, part in effect.between if position == cut]
            for markers in [before, before + last] if last else [before]:
                for done in [tuple(range(cut))] if knows else _subsets(cut):
                    yield done, markers

    # -- faults -----------------------------------------------------------------------------------

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        faults = world.faults
        if world.relay:
            if faults.kills:
                yield "KILL", _killed(_spent(world, "kills"))
            if faults.lost_fences:
                writes = tuple(
                    (world.revision, number)
                    for number in world.pending[:1]
                    if isinstance(self.catalog[number], steps.Save | steps.Replace)
                )
                lost = _killed(_spent(world, "lost_fences"))
                yield "THE FENCE IS LOST, the process lives", lost._replace(zombie=writes)
            if faults.stops and world.consuming:
                stopped = _spent(world, "stops")._replace(pausing=False)
                yield "STOP is asked for", self._told(stopped, ("stop",), steps.StopRequested())
        if faults.broker_restarts:
            yield from self._broker_restarts(world)
        if faults.elections:
            after = _spent(world, "elections")
            for missing in _subsets(len(world.uncommitted)):
                yield f"ANOTHER LEADER, {list(missing)} of the uncommitted lost", _elected(after, missing)
        if faults.redis_regressions:
            for count, before in enumerate(reversed(world.redis_before), start=1):
                older = before._replace(process=world.redis.process + 1)
                after = _spent(world._replace(redis=older, redis_before=()), "redis_regressions")
                name = f"{count} NEWEST WRITES" if count > 1 else "NEWEST WRITE"
                yield f"REDIS RESTARTS WITHOUT ITS {name}", after
        if faults.redis_emptied and world.redis.state:
            empty = Redis(process=world.redis.process + 1)
            after = _spent(world, "redis_emptied")._replace(redis=empty, redis_before=())
            yield "REDIS IS EMPTIED", after

    def _broker_restarts(self, world: World) -> Iterator[tuple[str, World]]:
        effect = self.catalog[world.pending[0]] if world.pending else None
        outgoing = effect.outgoing if isinstance(effect, steps.Forward) else ()
        forgotten = {(): (), world.acked: world.released}
        lost_ones = _subsets(len(world.uncommitted))
        for done, (acked, released), lost in itertools.product(
            _subsets(len(outgoing)), forgotten.items(), lost_ones
        ):
            stored = [outgoing[i] for i in done]
            spent = (
                _elected(_spent(world, "broker_restarts"), lost)
                if self.surveyed
                else _spent(world, "broker_restarts")
            )
            after = _killed(self._published(spent, stored, (), ()))
            founding = [n for _, n in after.ledger if self.catalog[n].kind is MarkerKind.FOUNDING]
            after = after._replace(
                ingress=(*((m, True) for m in acked), *((m, True) for m, _ in after.ingress)),
                acked=(),
                released=(),
                ledger=tuple(enumerate((*released, *founding), start=1)),
            )
            yield f"BROKER RESTARTS, {list(done)} stored, {list(acked)} come back", after

    def _zombie_writes(self, world: World) -> Iterator[tuple[str, World]]:
        if world.zombie:
            (revision, number), rest = world.zombie[0], world.zombie[1:]
            redis, answer = self._written(world, self.catalog[number], revision)
            after = world._replace(zombie=rest)
            if answer == "saved":
                after = self._redis_changed(after, redis)
            yield f"the zombie's {self._name(number)}: {answer}", after

    # -- how it is done ---------------------------------------------------------------------------

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
        for out in outgoing:
            m = out.arrival.payload
            if out.reason:
                world = world._replace(quarantine=tuple(sorted((*world.quarantine, m))))
            else:
                world = world._replace(target=tuple(sorted((*world.target, (m, out.marked)))))
        if release:
            gone = [n for tag, n in world.ledger if tag in release]
            founding = tuple(n for n in gone if self.catalog[n].kind is MarkerKind.FOUNDING)
            world = world._replace(
                ledger=tuple(held for held in world.ledger if held[0] not in release),
                released=world.released + founding if world.faults.broker_restarts else (),
            )
        for marker in markers:
            tag, number = world.next_ledger_tag, self.catalog.number(marker)
            world = world._replace(ledger=(*world.ledger, (tag, number)), next_ledger_tag=tag + 1)
            world = self._told(world, ("marker", tag, number), steps.MarkerArrived(tag, marker))
        return world

    def _started(self, world: World) -> World:
        # A commit is partial where the target can refuse, and the next session sees that it can.
        exact = self.exact and not self.happened(world, "partial_commits")
        settings = RelaySettings(
            batch_max=self.batch_max,
            exact=exact,
            trust_exact=exact,
            marker_keep_s=self.lost_writes * WRITE_S,
            publisher_idle_s=math.inf,
            anchor_every_s=self.anchor_every_s,
            survey_every_s=self.anchor_every_s,
            window_size=4,
        )
        world = world._replace(
            relay=self.catalog.number(self.make_relay(settings), _pickled),
            next_ledger_tag=len(world.ledger) + 1,
            starts=world.starts + 1,
        )
        for tag, number in world.ledger:
            marker = steps.MarkerArrived(tag, self.catalog[number])
            world = self._told(world, ("marker", tag, number), marker)
        return self._told(world, ("started", world.starts), steps.Started(), passed_s=world.starts / 1000)

    def _told_arrivals(self, world: World, tag: int, taken: tuple[tuple[int, bool], ...]) -> World:
        arrivals = [
            steps.Arrival(
                tag + i,
                redelivered,
                f"p{m % self.publishers}",
                None if m in self.untracked else m // self.publishers + 1,
                payload=m,
            )
            for i, (m, redelivered) in enumerate(taken)
        ]
        return self._told(world, ("arrived", tag, taken), steps.Arrived(arrivals))

    def _told(self, world: World, key: tuple[Any, ...], event: steps.Event, passed_s: float = 0.0) -> World:
        """
        Tell the relay *event* (*key* stands for it), *passed_s* after the event before, and queue what it asks for.
        """
        if not world.relay:
            return world
        known = self._answers.get((world.relay, key))
        if known is None:
            relay = pickle.loads(self.catalog[world.relay])
            effects = relay.handle(event, NOW_S + passed_s)
            effects = [e for e in effects if not isinstance(e, steps.Report | steps.Notice)]
            _turn_back(relay, passed_s)
            known = self.catalog.number(relay, _pickled), tuple(map(self.catalog.number, effects))
            self._answers[(world.relay, key)] = known
        relay_number, asked = known
        return world._replace(relay=relay_number, pending=world.pending + asked)

    def _written(self, world: World, effect: steps.Save | steps.Replace, revision: int) -> tuple[Redis, str]:
        """
        Write as the store does: what Redis holds then, and what it answers.
        """
        redis = world.redis
        answer, state = self.write(redis, self.catalog[redis.state], effect, revision)
        if answer != "saved" or state is None:
            return redis, answer
        number = self.catalog.number(state)
        written_to = redis.process if isinstance(effect, steps.Replace) else redis.written_to
        return Redis(effect.token, revision + 1, number, written_to, redis.process), answer

    def _redis_changed(self, world: World, redis: Redis) -> World:
        if not world.faults.redis_regressions:
            return world._replace(redis=redis)
        return world._replace(
            redis=redis, redis_before=(*world.redis_before, world.redis)[-self.lost_writes :]
        )

    def _name(self, number: int) -> str:
        if number not in self._names:
            self._names[number] = _describe(self.catalog[number])
        return self._names[number]

    # -- what must never be -----------------------------------------------------------------------

    def wrong(self, world: World) -> str:
        """
        Say what is wrong with *world*, or nothing.
        """
        innocent = not self.happened(world, *self.marking)
        marks_max = self.happened(world, *MARKING_ONE) if self.surveyed else 0
        if (
            innocent
            and len({m for m, marked in world.target if marked and m not in self.untracked}) > marks_max
        ):
            return f"more than {marks_max} messages are marked although no fault allows it"
        for m in range(self.messages):
            if not world.sent[m]:
                continue
            copies = [marked for message, marked in world.target if message == m]
            if not copies and m not in world.quarantine and not _waits(world, m):
                return f"message {m} is lost"
            if copies.count(False) > (world.sent[m] if m in self.untracked else 1):
                return f"message {m} is doubled without a mark"
            if innocent and not marks_max and m not in self.untracked and (len(copies) > 1 or True in copies):
                return f"message {m} is doubled or marked although no fault allows it"
            if innocent and m in world.quarantine:
                return f"message {m} is quarantined although no fault allows it"
        return ""

    def stuck(self, world: World) -> str:
        """
        Say what is wrong with *world* after the faults have ended and everything has had its time, or nothing.
        """
        world = world._replace(zombie=())
        for _ in range(REST_STEPS_MAX):
            # The first way each of them can go is the good one.
            branches = self._starts(world), self._performs(world), self._deliveries(world), self._waits(world)
            following = next(itertools.chain.from_iterable(branches), None)
            if following is None:
                break
            world = following[1]
        else:
            return "the world does not come to rest"
        if world.ingress or world.unacked:
            return f"{world.ingress} and {world.unacked} stay in the ingress"
        state = self.catalog[world.redis.state]
        lossy = self.happened(world, "redis_regressions", "redis_emptied")
        if state is not None and state.intent is not None and not lossy:
            return f"an intent stays in Redis: {state.intent}"
        return self.wrong(world)


# -- ways through the world -----------------------------------------------------------------------
def explore(
    explorer: Explorer, *, rest_every: int = 0, states_max: int = 10_000_000
) -> tuple[int, list[str], str]:
    """
    Visit every state breadth first.

    Args:
        rest_every: From each so-manieth state on, see whether everything comes to rest; 0: from none.

    Returns:
        How many states were seen, the shortest story that leads to a wrong one, and what is
        wrong; an empty story when all of them are right.
    """
    start = explorer.start
    # Hashes stand for the worlds seen: 64 bits tell a few million of them apart.
    parents: dict[int, tuple[int, str] | None] = {hash(start): None}
    queue = deque([start])
    visited = 0
    while queue:
        world = queue.popleft()
        key = hash(world)
        visited += 1
        reason = explorer.wrong(world)
        if not reason and rest_every and visited % rest_every == 0:
            reason = explorer.stuck(world)
        if reason:
            return len(parents), _story(parents, key), reason
        for action, following in explorer.successors(world):
            following_key = hash(following)
            if following_key not in parents:
                parents[following_key] = (key, action)
                queue.append(following)
        assert len(parents) <= states_max, "the world is larger than expected"
    return len(parents), [], ""


def wander(explorer: Explorer, seed: int, steps_max: int) -> tuple[list[str], str]:
    """
    Take one long way through a world that is too large to explore: faults at random, then rest.

    Returns:
        The story, and what is wrong in its last state (nothing when all went well).
    """
    choose = random.Random(seed)
    world = explorer.start
    story: list[str] = []
    for _ in range(steps_max):
        if choose.random() < FAULT_CHANCE:
            branches = [explorer._faults, explorer._zombie_writes]
        else:
            branches = [
                explorer._publishes,
                explorer._starts,
                explorer._deliveries,
                explorer._waits,
                explorer._performs,
            ]
        choices = [choice for branch in branches for choice in branch(world)]
        if not choices:
            continue
        action, world = choose.choice(choices)
        story.append(action)
        if reason := explorer.wrong(world):
            return story, reason
    return story, explorer.stuck(world)


# -- helpers --------------------------------------------------------------------------------------


def write_as_the_store(
    redis: Redis, state: State | None, effect: steps.Save | steps.Replace, revision: int
) -> tuple[str, State | None]:
    """
    Write as the store's scripts do.
    """
    if redis.token > effect.token:
        return "fenced", None
    if isinstance(effect, steps.Replace):
        return "saved", effect.state
    if redis.token < effect.token or redis.written_to != redis.process:
        return "behind", None
    if redis.revision == revision + 1:
        return "saved", None
    if redis.revision != revision or state is None:
        return "behind", None
    entries = {**state.entries, **effect.changes.entries}
    for name in effect.changes.evicted:
        entries.pop(name, None)
    state = evolve(
        state,
        batch=effect.batch,
        writer=effect.token,
        entries=entries,
        intent=effect.intent,
        doubt=state.doubt if effect.doubt is None else effect.doubt,
        believed=None if effect.proven else state.believed,
        clean=effect.clean,
    )
    return "saved", state


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
        return ("window",)
    if attrs.has(type(value)):
        return tuple(a.name for a in attrs.fields(type(value)))
    return tuple(sorted(set(vars(value)) - {"_handlers"}))


_PLAIN = frozenset({int, str, bool, float, bytes, type(None), frozenset, RelaySettings})
_NAMES: dict[type, tuple[str, ...]] = {}


def _turn_back(relay: Relay, passed_s: float) -> None:
    """
    Turn the clock of *relay* back to NOW_S, and drop what it will never look at again: neither makes a difference.
    """
    if relay.phase not in (Phase.CLAIMING, Phase.READING_LEDGER, Phase.SURVEYING):
        relay._state, relay._redis_restarted = None, False
    ledger, keep_s, every_s = relay.ledger, relay.settings.marker_keep_s, relay.settings.anchor_every_s
    ledger._saved = deque((max(at_s - passed_s, NOW_S - keep_s), batch) for at_s, batch in ledger._saved)
    relay._anchored_s = NOW_S if math.isinf(every_s) else max(relay._anchored_s - passed_s, NOW_S - every_s)
    relay._surveyed_s = NOW_S if math.isinf(every_s) else max(relay._surveyed_s - passed_s, NOW_S - every_s)
    relay._proof_due_s = NOW_S + relay.settings.proof_wait_s
    relay._retry_at_s = relay._retry_at_s - passed_s if relay.phase is Phase.REFUSED else 0.0


def _pickled(relay: Any) -> bytes:
    return pickle.dumps(relay, protocol=5)


def _story(parents: dict[int, tuple[int, str] | None], key: int) -> list[str]:
    story: list[str] = []
    while (parent := parents[key]) is not None:
        key, action = parent
        story.append(action)
    return story[::-1]


def _disconnected(world: World) -> World:
    """
    Return what was delivered and not acknowledged to the head of the ingress.
    """
    returned = tuple((m, True) for _, m in world.unacked)
    return world._replace(ingress=returned + world.ingress, unacked=(), consuming=False)


def _elected(world: World, lost: tuple[int, ...]) -> World:
    """
    Give the target another leader, which lacks some of the uncommitted messages.
    """
    target = list(world.target)
    for index in lost:
        target.remove(world.uncommitted[index])
    return world._replace(target=tuple(target), uncommitted=(), term=world.term + 1)


def _killed(world: World) -> World:
    return _disconnected(world)._replace(
        relay=0,
        channel_term=0,
        pending=(),
        pausing=False,
        revision=0,
        next_tag=1,
        next_ledger_tag=1,
        ledger=tuple((tag, number) for tag, (_, number) in enumerate(world.ledger, start=1)),
    )


def _spent(world: World, fault: str) -> World:
    faults = world.faults._replace(**{fault: getattr(world.faults, fault) - 1})
    world = world._replace(faults=faults)
    if not faults.broker_restarts:
        world = world._replace(acked=(), released=())
    return world if faults.redis_regressions else world._replace(redis_before=())


def _waits(world: World, m: int) -> bool:
    return any(message == m for message, _ in world.ingress) or any(
        message == m for _, message in world.unacked
    )


@lru_cache
def _subsets(count: int) -> tuple[tuple[int, ...], ...]:
    """
    Return every choice of the indexes below *count*.
    """
    sizes = range(count + 1)
    return tuple(itertools.chain.from_iterable(itertools.combinations(range(count), size) for size in sizes))


def _describe(effect: steps.Effect) -> str:
    match effect:
        case steps.Forward(outgoing, marker, _, _):
            names = ", ".join(f"{o.arrival.payload}{' marked' if o.marked else ''}" for o in outgoing)
            return f"forward batch {marker.batch.number}: {names}"
        case steps.Save(batch=batch, intent=intent):
            return f"save batch {batch}" + (f", intent {intent.number}" if intent else "")
        case steps.Replace(state=state):
            return f"replace everything, batch {state.batch}"
        case steps.Anchor(markers):
            return f"anchor {', '.join(marker.kind.value for marker in markers)}"
        case steps.Ack(tag):
            return f"ack up to {tag}"
        case steps.End(reason):
            return f"end {reason}".rstrip()
        case _:
            return type(effect).__name__
