"""What Redis holds for a relay, and how the store's scripts change it."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from dedup.core import steps
from dedup.core.records import State
from tests.simulation.relay_state import Redis

#: What a store answers to a write, and the state it holds then; None: as it was.
Write = Callable[[Redis, State | None, steps.Save | steps.Replace, int], tuple[str, State | None]]


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
    entries = {n: entry for n, entry in entries.items() if entry.batch not in effect.changes.forgotten}
    bodies = {**state.bodies, **effect.changes.bodies}
    state = evolve(
        state,
        batch=effect.batch,
        writer=effect.token,
        entries=entries,
        intent=effect.intent,
        doubt=state.doubt if effect.doubt is None else effect.doubt,
        believed=None if effect.proven else state.believed,
        clean=effect.clean,
        bodies={place: digests for place, digests in bodies.items() if digests},
    )
    return "saved", state
