"""Tell the relay of a small world something, and let the servers around it store what it publishes and writes."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Collection, Iterable
from typing import Any

from dedup.core import steps
from dedup.core.records import Marker, MarkerKind
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from tests.simulation.catalog import NOW_S, Catalog, pickled, turn_back
from tests.simulation.relay_log import told
from tests.simulation.relay_state import STRAY_TAG, Faults, Redis, World, without_strays
from tests.simulation.store_rules import Write, write_as_the_store

#: How long a write of Redis takes.
WRITE_S = 1.0

#: Effects that are called the same in every story.
PLAIN: dict[type, str] = {
    steps.ClaimState: "claim the state",
    steps.Survey: "ask who leads the target",
    steps.Consume: "begin to take deliveries",
    steps.Close: "close the connections",
}


class Servers:
    """
    The parts of one world, and how each of them is told something; nothing here goes wrong.

    Args:
        messages: How many there are; message *m* belongs to publisher ``m % publishers``.
        copies: How often each may be published.
        untracked: The last so many messages carry no sequence.
        anchor_every_s: How often the relay rewrites the ledger and asks who leads; a write of Redis takes WRITE_S.
        lost_writes: How many writes Redis loses at the most when it restarts; markers are kept as long.
        surveyed: It can be read who leads the target.
        audited: The relay tells the audit of every arrival.
        marker_every: A marker follows each so-many messages of a batch that is forwarded with confirms.
        in_turns: Every second relay is one of AMQP 1.0: it forwards with confirms, whatever those around it do, and marks no parts.
        make_relay, write: The relay, and the store's rules; a mutant changes one of them.
        faults: How often each may happen.
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
        audited: bool = False,
        marker_every: int = 1,
        in_turns: bool = False,
        make_relay: Callable[[RelaySettings], Relay] = Relay,
        write: Write = write_as_the_store,
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
        self.audited = audited
        self.marker_every = marker_every
        self.in_turns = in_turns
        self.make_relay = make_relay
        self.write = write
        self.start = World(sent=(0,) * messages, faults=Faults(**faults))
        self.catalog = Catalog()
        self._answers: dict[Any, tuple[int, tuple[int, ...]]] = {}
        self._names: dict[int, str] = {}

    def happened(self, world: World, *faults: str) -> int:
        """
        Return how many of *faults* have happened.
        """
        return sum(getattr(self.start.faults, name) - getattr(world.faults, name) for name in faults)

    def is_other(self, start: int) -> bool:
        """
        Say whether the relay with this number, from 0, is one of AMQP 1.0.
        """
        return self.in_turns and start % 2 == 1

    # -- the relay --------------------------------------------------------------------------------

    def _started(self, world: World) -> World:
        # A commit is partial where the target can refuse, and the next session sees that it can.
        sound = self.exact and not self.happened(world, "partial_commits")
        settings = RelaySettings(
            batch_max=self.batch_max,
            exact=sound and not self.is_other(world.starts),
            trust_exact=sound,
            marker_every=self.marker_every,
            audit=self.audited,
            marker_keep_s=self.lost_writes * WRITE_S,
            publisher_idle_s=math.inf,
            anchor_every_s=self.anchor_every_s,
            survey_every_s=self.anchor_every_s,
            window_size=4,
        )
        world = world._replace(
            relay=self.catalog.number(self.make_relay(settings), pickled),
            next_ledger_tag=len(world.ledger) + 1,
            next_stray_tag=STRAY_TAG + len(world.strays),
            strays_told=len(world.strays),
            starts=world.starts + 1,
        )
        ledger = [steps.MarkerArrived(tag, self.catalog[number]) for tag, number in world.ledger]
        strays = [steps.StrayArrived(tag, m) for tag, m in world.strays]
        key = "started", world.starts, world.ledger, world.strays
        return self._told(world, key, *strays, *ledger, steps.Started(), passed_s=world.starts / 1000)

    def _told_stray(self, world: World) -> World:
        stray = world.strays[world.strays_told]
        world = world._replace(strays_told=world.strays_told + 1)
        return self._told(world, ("stray", *stray), steps.StrayArrived(*stray))

    def _told_arrivals(self, world: World, tag: int, taken: tuple[tuple[int, bool], ...]) -> World:
        arrivals = [self._arrival(tag + i, m, redelivered) for i, (m, redelivered) in enumerate(taken)]
        return self._told(world, ("arrived", tag, taken), steps.Arrived(arrivals))

    def _arrival(self, tag: int, m: int, redelivered: bool) -> steps.Arrival:
        sequence = None if m in self.untracked else self._sequence(m)
        return steps.Arrival(tag, redelivered, f"p{m % self.publishers}", sequence, payload=m)

    def _sequence(self, message: int) -> int:
        return message // self.publishers + 1

    def _named(self, publisher: str, sequence: int) -> int:
        return (sequence - 1) * self.publishers + int(publisher.removeprefix("p"))

    def _told(self, world: World, key: tuple[Any, ...], *events: steps.Event, passed_s: float = 0.0) -> World:
        """
        Tell the relay *events* (*key* stands for them), *passed_s* after those before, and queue what it asks for.
        """
        if not (world.relay and events):
            return world
        known = self._answers.get((world.relay, key))
        if known is None:
            relay = pickle.loads(self.catalog[world.relay])
            effects = [effect for event in events for effect in relay.handle(event, NOW_S + passed_s)]
            turn_back(relay, passed_s)
            asked = [
                self.catalog.number(e) for e in effects if not isinstance(e, steps.Report | steps.Notice)
            ]
            known = self.catalog.number(relay, pickled), tuple(asked)
            self._answers[(world.relay, key)] = known
        return world._replace(relay=known[0], pending=world.pending + known[1])

    # -- the broker and Redis ---------------------------------------------------------------------

    def _published(
        self,
        world: World,
        outgoing: Iterable[steps.Outgoing],
        markers: Iterable[Marker],
        release: Collection[int],
        answer: steps.Event | None = None,
        *,
        record: steps.Record | None = None,
        strays: Iterable[int] = (),
    ) -> World:
        """
        Store messages, strays, record and markers, release old ones, deliver the new markers back, and answer.
        """
        for m in strays:
            world = world._replace(target=tuple(sorted((*world.target, (m, True)))))
        if record is not None:
            world = world._replace(log=told(world.log, record, self._named))
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
            world = without_strays(world, release)
        new = list(enumerate(markers, start=world.next_ledger_tag))
        ledger = tuple((tag, self.catalog.number(marker)) for tag, marker in new)
        world = world._replace(
            ledger=world.ledger + ledger, next_ledger_tag=world.next_ledger_tag + len(ledger)
        )
        events: list[steps.Event] = [steps.MarkerArrived(tag, marker) for tag, marker in new]
        if answer is not None:
            events.append(answer)
        return self._told(world, ("published", ledger, answer), *events)

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
            self._names[number] = describe(self.catalog[number])
        return self._names[number]


def describe(effect: steps.Effect) -> str:
    """
    Return what *effect* is called in a story.
    """
    match effect:
        case steps.Forward(outgoing, marker):
            names = ", ".join(f"{o.arrival.payload}{' marked' if o.marked else ''}" for o in outgoing)
            return f"forward batch {marker.batch.number}: {names}"
        case steps.Save(batch=batch, intent=intent):
            return f"save batch {batch}" + (f", intent {intent.number}" if intent else "")
        case steps.Replace(state=state):
            return f"replace everything, batch {state.batch}"
        case steps.Anchor(markers, release, record, strays):
            others = [*(["record"] if record is not None else []), *(f"stray {m}" for m in strays)]
            what = ", ".join([*(marker.kind.value for marker in markers), *others])
            return f"anchor {what}" if what else f"release {len(release)}"
        case steps.Ack(tag):
            return f"ack up to {tag}"
        case steps.End(reason):
            return f"end {reason}".rstrip()
        case _:
            return PLAIN[type(effect)]
