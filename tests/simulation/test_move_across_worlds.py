"""
The relay of a move between two brokers in small worlds, each explored whole.

Each broker restarts alone, and the source may hold what a dead session had in its hands for as long as it likes. The ledger is
where the target is; a world with it where the source is shows what that would cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from dedup.core import steps
from dedup.core.records import MarkerKind
from tests.simulation.exploring import Explored, explore
from tests.simulation.mutants import UNMARKED
from tests.simulation.relay_state import World, elected, killed, spent, subsets
from tests.simulation.test_move_worlds import MoveExplorer

WORLDS: dict[str, dict[str, Any]] = {
    "two kills": {"messages": 1, "kills": 2},
    "a kill while both are in flight": {"kills": 1, "prefetch": 2},
    "the source restarts": {"source_restarts": 1, "prefetch": 2},
    "the source restarts, without an identity": {"untracked": 1, "source_restarts": 1, "batch_max": 1, "prefetch": 1},
    "the target restarts": {"broker_restarts": 1, "batch_max": 1, "prefetch": 1},
    "both restart": {"messages": 1, "source_restarts": 1, "broker_restarts": 1},
    "a stop, then the source restarts": {"messages": 1, "untracked": 1, "stops": 1, "source_restarts": 1},
    "the source does not know of a kill": {"untracked": 2, "kills": 1, "lingers": True, "batch_max": 1, "prefetch": 1},
    "the source knows late of two kills": {"messages": 1, "kills": 2, "lingers": True},
    "Redis restarts": {"messages": 1, "kills": 1, "redis_regressions": 1},
    "Redis is emptied, the source restarts": {"messages": 1, "source_restarts": 1, "redis_emptied": 1},
    "the target refuses until they are put aside": {"surveyed": False, "messages": 1, "kills": 1, "refusals": 2, "aside_s": 0.0, "marking": ("kills", "refusals")},
    "another leader": {"messages": 1, "kills": 1, "elections": 1},
}  # fmt: skip


class AcrossExplorer(MoveExplorer):
    """
    A world of two brokers.

    Args:
        lingers: The source may learn late of a session that was killed.
        waits: The relay takes nothing before the source knows.
        ledger_beside_source: The ledger is not where the target is: no marker proves what was published before it.
    """

    def __init__(
        self,
        *,
        lingers: bool = False,
        waits: bool = True,
        ledger_beside_source: bool = False,
        source_witnessed: bool = False,
        surveyed: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            exact=False,
            surveyed=surveyed and not ledger_beside_source,
            source_witnessed=source_witnessed,
            **settings,
        )
        self.lingers = lingers
        self.waits = waits
        self.ledger_beside_source = ledger_beside_source
        #: Messages with an identity that were marked in one state, at the most.
        self.marks_max = 0

    def wrong(self, world: World) -> str:
        marks = {m for m, marked in world.target if marked and m not in self.untracked}
        self.marks_max = max(self.marks_max, len(marks))
        return super().wrong(world)

    def _performs(self, world: World) -> Iterator[tuple[str, World]]:
        following = self.catalog[world.pending[0]] if world.pending else None
        if self.waits and world.lingering and isinstance(following, steps.Consume):
            return
        yield from super()._performs(world)

    def _waits(self, world: World) -> Iterator[tuple[str, World]]:
        if world.lingering:
            returned = tuple((m, True) for m in world.lingering)
            yield (
                "the source gives the dead session up",
                world._replace(ingress=returned + world.ingress, lingering=()),
            )
        yield from super()._waits(world)

    def _faults(self, world: World) -> Iterator[tuple[str, World]]:
        yield from super()._faults(world)
        if world.faults.source_restarts:
            yield from self._source_restarts(world)
        if self.lingers and world.relay and world.faults.kills and world.unacked:
            held = world.lingering + tuple(m for _, m in world.unacked)
            dead = killed(spent(world, "kills")._replace(unacked=()))
            yield "KILL, and the source does not know", dead._replace(lingering=held)

    def _source_restarts(self, world: World) -> Iterator[tuple[str, World]]:
        """
        Restart the source, which ends the session: of a Forward in flight the target has what a kill leaves.
        """
        after = spent(world, "source_restarts")
        ends = [after]
        effect = self.catalog[world.pending[0]] if world.pending else None
        if isinstance(effect, steps.Forward):
            for done, markers in self._cuts(world, effect):
                sent = [effect.outgoing[i] for i in done]
                part = self._published(after._replace(relay=0), sent, markers, effect.release)
                if self.surveyed:
                    handed = [(out.arrival.payload, out.marked) for out in sent if not out.reason]
                    part = part._replace(uncommitted=tuple(sorted((*part.uncommitted, *handed))))
                ends.append(part)
        for end, acked in product(ends, {(), world.acked}):
            dead = killed(end)
            back = (*acked, *dead.lingering, *(m for m, _ in dead.ingress))
            dead = dead._replace(ingress=tuple((m, True) for m in back), lingering=(), acked=())
            if self.ledger_beside_source:
                dead = self._swept(dead, ())
            yield f"THE SOURCE RESTARTS, {list(acked)} come back", dead

    def _broker_restarts(self, world: World) -> Iterator[tuple[str, World]]:
        """
        Restart the target: any part of a Forward in flight is stored, and no transient marker is left.
        """
        effect = self.catalog[world.pending[0]] if world.pending else None
        outgoing = effect.outgoing if isinstance(effect, steps.Forward) else ()
        ways = product(subsets(len(outgoing)), subsets(len(world.uncommitted)), {(), world.released})
        for done, lost, released in ways:
            restarted = elected(spent(world, "broker_restarts"), lost)._replace(relay=0)
            after = killed(self._published(restarted, [outgoing[i] for i in done], (), ()))
            if not self.ledger_beside_source:
                after = self._swept(after, released)
            yield f"THE TARGET RESTARTS, {list(done)} stored", after

    def _swept(self, world: World, released: tuple[int, ...]) -> World:
        founding = [n for _, n in world.ledger if self.catalog[n].kind is MarkerKind.FOUNDING]
        return world._replace(ledger=tuple(enumerate((*released, *founding), start=1)), released=())


def explored(explorer: AcrossExplorer) -> Explored:
    """Visit every state of a world."""
    try:
        return explore(explorer, rest_every=50)
    except AssertionError as error:  # the relay or the world caught it itself
        return Explored(0, 0, 0.0, str(error) or "an assertion of the relay")


@pytest.mark.parametrize("name", WORLDS)
def test_in_every_state_of_a_world_nothing_is_lost_or_doubled(name: str) -> None:
    """Whichever broker fails after whichever step, the promise holds, and afterwards everything arrives."""
    found = explored(AcrossExplorer(**WORLDS[name]))
    assert not found.reason, found
    assert found.states > 20
    print(f"{name}: {found.states} states in {found.seconds:.1f} s")


@pytest.mark.parametrize(
    ("missing", "world"),
    [
        ({"waits": False}, "the source does not know of a kill"),
        ({"source_witnessed": True}, "a stop, then the source restarts"),
    ],
    ids=["takes while a dead session holds some", "believes that a clean end is witnessed"],
)
def test_a_world_notices_that_a_safeguard_is_missing(missing: dict[str, Any], world: str) -> None:
    """Without it there is a story that ends badly."""
    found = explored(AcrossExplorer(**WORLDS[world], **missing))
    assert UNMARKED in found.reason, found


@pytest.mark.parametrize(("beside_source", "marks"), [(False, 1), (True, 2)], ids=["target", "source"])
def test_where_the_ledger_is_decides_how_much_is_marked(beside_source: bool, marks: int) -> None:
    """Both places are safe; beside the target its markers leave one message in doubt, beside the source the whole batch."""
    explorer = AcrossExplorer(**WORLDS["a kill while both are in flight"], ledger_beside_source=beside_source)
    found = explored(explorer)
    assert not found.reason, found
    assert explorer.marks_max == marks
