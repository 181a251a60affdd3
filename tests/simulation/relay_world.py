"""
A small world around the production relay: publishers, ingress, target, ledger and Redis, and every fault.

The world performs the relay's effects one at a time, so a crash can be put between any two of them,
and each way an effect can go wrong is a branch of its own:

- the relay is killed, also in the middle of a confirmed Forward (any part of it stored);
- the broker restarts: transient markers are gone, what was acknowledged may come back, a Forward in
  flight is done in part;
- Redis loses its newest write, is emptied, or executes a write whose answer is lost;
- the target refuses messages, or a commit is partial;
- neither the target nor the quarantine has a queue, so messages end in the ledger;
- the target gets another leader, which has less than the one before (what nobody was told it had);
- the relay loses its fence and still writes to Redis (a paused process that wakes up);
- it is asked to stop.

A world is put together from its parts: relay_state.py is one state of it, relay_servers.py the relay and the servers,
relay_effects.py what the relay does, relay_faults.py what befalls it, relay_oracle.py what must never be.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from dedup.core import steps
from dedup.core.relay import Relay
from tests.simulation import relay_log
from tests.simulation.relay_effects import Effects
from tests.simulation.relay_faults import Faulting
from tests.simulation.relay_oracle import Oracle
from tests.simulation.relay_state import World

#: Longer than any pause between two tries.
PAUSE_S = 100.0
#: Steps that a world without faults needs at the most to come to rest.
REST_STEPS_MAX = 1_000


class Explorer(Effects, Faulting, Oracle):
    """
    The rules of one world, for :mod:`tests.simulation.exploring`: what may happen next, and what must never be.

    Args:
        settings: What Oracle and Servers take.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._lacking: dict[int, bool] = {}

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
            self._strays,
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

    def _strays(self, world: World) -> Iterator[tuple[str, World]]:
        if world.relay and world.strays_told < len(world.strays):
            yield f"stray {world.strays[world.strays_told][1]} arrives", self._told_stray(world)

    def _waits(self, world: World) -> Iterator[tuple[str, World]]:
        if world.pausing:
            ticked = self._told(world._replace(pausing=False), ("ticked",), steps.Ticked(), passed_s=PAUSE_S)
            yield "the pause is over", ticked
        elif not world.pending and self._lacks_proof(world):
            yield "time passes", self._told(world, ("ticked",), steps.Ticked(), passed_s=PAUSE_S)

    def _lacks_proof(self, world: World) -> bool:
        """
        Say whether the relay would forward something it believes in, if it had to wait any longer.
        """
        if not (self.surveyed and world.relay):
            return False
        if world.relay not in self._lacking:
            self._lacking[world.relay] = lacks_proof(pickle.loads(self.catalog[world.relay]))
        return self._lacking[world.relay]

    # -- what must be in the end ------------------------------------------------------------------

    def stuck(self, world: World) -> str:
        """
        Say what is wrong with *world* after the faults have ended and everything has had its time, or nothing.
        """
        world = world._replace(zombie=())
        for _ in range(REST_STEPS_MAX):
            # The first way each of them can go is the good one.
            ways = self._starts, self._strays, self._performs, self._deliveries, self._waits
            branches = [way(world) for way in ways]
            following = next(itertools.chain.from_iterable(branches), None)
            if following is None:
                break
            world = following[1]
        else:
            return "the world does not come to rest"
        if world.ingress or world.unacked:
            return f"{world.ingress} and {world.unacked} stay in the ingress"
        if world.strays:
            return f"{world.strays} stay in the ledger"
        state = self.catalog[world.redis.state]
        lossy = self.happened(world, "redis_regressions", "redis_emptied")
        if state is not None and state.intent is not None and not lossy:
            return f"an intent stays in Redis: {state.intent}"
        if self.audited:
            for m in range(self.messages):
                if told := relay_log.missing(world, m):
                    return told
        return self.wrong(world)


def lacks_proof(relay: Relay) -> bool:
    """
    Say whether *relay* would forward something it believes in, if it had to wait any longer.
    """
    return relay.judge.spare is not None and not relay.judge.doubt
