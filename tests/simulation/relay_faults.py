"""What can happen to a relay and its servers at any moment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from dedup.core import steps
from dedup.core.records import MarkerKind
from tests.simulation.relay_servers import Servers
from tests.simulation.relay_state import Redis, World, elected, killed, spent, strayed, subsets


class Faulting(Servers):
    """
    Faults, as far as a world has some left.
    """

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        faults = world.faults
        if world.relay:
            if faults.kills:
                yield "KILL", killed(spent(world, "kills"))
            if faults.lost_fences:
                writes = tuple(
                    (world.revision, number)
                    for number in world.pending[:1]
                    if isinstance(self.catalog[number], steps.Save | steps.Replace)
                )
                lost = killed(spent(world, "lost_fences"))
                yield "THE FENCE IS LOST, the process lives", lost._replace(zombie=writes)
            if faults.stops and world.consuming:
                stopped = spent(world, "stops")._replace(pausing=False)
                yield "STOP is asked for", self._told(stopped, ("stop",), steps.StopRequested())
        if faults.broker_restarts:
            yield from self._broker_restarts(world)
        if faults.elections:
            after = spent(world, "elections")
            for missing in subsets(len(world.uncommitted)):
                yield f"ANOTHER LEADER, {list(missing)} of the uncommitted lost", elected(after, missing)
        if faults.redis_regressions:
            for count, before in enumerate(reversed(world.redis_before), start=1):
                older = before._replace(process=world.redis.process + 1)
                after = spent(world._replace(redis=older, redis_before=()), "redis_regressions")
                name = f"{count} NEWEST WRITES" if count > 1 else "NEWEST WRITE"
                yield f"REDIS RESTARTS WITHOUT ITS {name}", after
        if faults.redis_emptied and world.redis.state:
            empty = Redis(process=world.redis.process + 1)
            after = spent(world, "redis_emptied")._replace(redis=empty, redis_before=())
            yield "REDIS IS EMPTIED", after

    def _broker_restarts(self, world: World) -> Iterator[tuple[str, World]]:
        effect = self.catalog[world.pending[0]] if world.pending else None
        if isinstance(effect, steps.Anchor) and effect.strays:
            yield from self._restarts_amid_strays(world, effect)
            return
        outgoing = effect.outgoing if isinstance(effect, steps.Forward) else ()
        record = effect.record if isinstance(effect, steps.Forward) else None
        forgotten = {(): ((), ()), world.acked: (world.released, world.released_strays)}
        lost_ones = subsets(len(world.uncommitted))
        records = (None,) if record is None else (None, record)
        for done, (acked, (released, strays)), lost, told in itertools.product(
            subsets(len(outgoing)), forgotten.items(), lost_ones, records
        ):
            stored = [outgoing[i] for i in done]
            restarted = elected(spent(world, "broker_restarts"), lost)._replace(relay=0)
            after = self._published(restarted, stored, (), (), record=told)
            after = killed(strayed(after, strays))
            founding = [n for _, n in after.ledger if self.catalog[n].kind is MarkerKind.FOUNDING]
            after = after._replace(
                ingress=(*((m, True) for m in acked), *((m, True) for m, _ in after.ingress)),
                acked=(),
                released=(),
                released_strays=(),
                ledger=tuple(enumerate((*released, *founding), start=1)),
            )
            yield f"BROKER RESTARTS, {list(done)} stored, {list(acked)} come back", after

    def _restarts_amid_strays(self, world: World, effect: steps.Anchor) -> Iterator[tuple[str, World]]:
        """
        Restart the broker while strays are sent on: it has stored some, and knows of the releases or does not.
        """
        for done, release in itertools.product(subsets(len(effect.strays)), ((), effect.release)):
            after = spent(world, "broker_restarts")._replace(relay=0)
            after = self._published(after, (), (), release, strays=[effect.strays[i] for i in done])
            after = killed(after)
            founding = [n for _, n in after.ledger if self.catalog[n].kind is MarkerKind.FOUNDING]
            after = after._replace(
                ingress=tuple((m, True) for m, _ in after.ingress),
                acked=(),
                released=(),
                released_strays=(),
                ledger=tuple(enumerate(founding, start=1)),
            )
            yield f"BROKER RESTARTS, strays {list(done)} stored", after

    def _zombie_writes(self, world: World) -> Iterator[tuple[str, World]]:
        if world.zombie:
            (revision, number), rest = world.zombie[0], world.zombie[1:]
            redis, answer = self._written(world, self.catalog[number], revision)
            after = world._replace(zombie=rest)
            if answer == "saved":
                after = self._redis_changed(after, redis)
            yield f"the zombie's {self._name(number)}: {answer}", after
