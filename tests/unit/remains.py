"""What a dead relay leaves in Redis and in the ledger, and what recovery makes of it."""

from __future__ import annotations

from typing import Any

from dedup.core.publishers import Entry
from dedup.core.records import Batch, Leadership, Marker, MarkerKind, State
from dedup.core.recovery import Recovered, recover
from dedup.core.window import Window

#: The relay before, and the one that recovers.
OLD, NEW = 5, 9
NOW_S, IDLE_S, SIZE = 100.0, 50.0, 8

BATCH, FIRST, FOUNDING = MarkerKind.BATCH, MarkerKind.FIRST, MarkerKind.FOUNDING


def batch(number: int, *sequences: int, token: int = OLD, exact: bool = True) -> Batch:
    """Return a batch of publisher p."""
    return Batch(token, number, exact, {"p": sequences} if sequences else {})


def marker(kind: MarkerKind, number: int, *sequences: int, token: int = OLD, exact: bool = True) -> Marker:
    """Return a marker of the relay before."""
    return Marker(kind, batch(number, *sequences, token=token, exact=exact))


def state(number: int, last: int, intent: Batch | None = None, **facts: Any) -> State:
    """Return what the relay before left in Redis: everything up to *last* seen."""
    entries = {"p": Entry(Window(last, 1), 1.0)} if last else {}
    return State(number, OLD, entries, intent, **facts)


def found(
    left: State | None,
    *markers: Marker,
    redis_restarted: bool = False,
    trust_exact: bool = True,
    leadership: Leadership | None = None,
    **settings: Any,
) -> Recovered:
    """Return what recovery makes of state and markers."""
    return recover(
        left,
        markers,
        token=NEW,
        redis_restarted=redis_restarted,
        trust_exact=trust_exact,
        leadership=leadership,
        size=SIZE,
        idle_s=IDLE_S,
        now_s=NOW_S,
        **settings,
    )


def last(recovered: Recovered) -> int:
    """Return the newest sequence remembered of p, 0 for none."""
    entry = recovered.state.entries.get("p")
    return entry.window.last if entry else 0


def is_uncertain(recovered: Recovered) -> bool:
    """Tell whether what p sends next is not proven to be new."""
    return bool(recovered.rollback) and recovered.state.unknown_uncertain_until_s == NOW_S + IDLE_S
