"""
Decide, from the ledger and Redis, what became of the batches a dead relay left behind.

Theory of operation
-------------------
Two witnesses outlive a relay. The *ledger* is a queue of transient markers: a batch forwarded
exactly put its marker there in the same transaction, so the marker is there if and only if the
batch is in the target, as long as the broker has not restarted. *Redis* holds the windows, the
number of the newest settled batch and the intent of the batch that was next.

    marker newer than Redis' batch                      forwarded: replay it into the windows
    intent, its marker is there                         forwarded (the line above)
    intent, its marker missing, another marker          not forwarded: forget it
        of its token is there
    intent, no marker of its token, or forwarded        in doubt: forward it marked
        with confirms

Why a marker *of its token*: markers of other relays may be younger than a broker restart that
swept the intent's own marker away. Every relay publishes a first marker before its first intent
and keeps one until it ends, so no marker of a token means that the broker restarted.

Redis may have gone backward: it was emptied, restored from an older copy, or restarted and lost
its last second. A first or founding marker says which batch number Redis had reached, and batch
markers follow one another without a hole; a Redis below that has lost every batch that has no
marker any more. A rollback takes a number too, so a Redis that loses even that it was rolled back
is below what the ledger says. Where the markers are gone, a Redis that restarted must be taken as
one that lost its last second. Then nothing within a window of what Redis still knows is proven, and
NEW is forwarded marked; the mark stays in the window itself, so that a relay killed at once does
not forget it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from dedup.core.publishers import Entry, remember
from dedup.core.records import Marker, MarkerKind, Sequences, State


@frozen
class Recovered:
    """
    What the new relay starts from.
    """

    #: Number, windows and doubt to persist before work begins; no intent, not clean.
    state: State
    #: What the broker flags as redelivered may have been forwarded: mark it unless a sequence tells.
    suspect: bool
    #: Batches the ledger proved and Redis had not.
    replayed: int
    #: Sequences that came into doubt.
    doubtful: int
    #: Why windows are uncertain; empty when they are not.
    rollback: str


def recover(
    state: State | None,
    markers: Sequence[Marker],
    *,
    token: int,
    redis_restarted: bool,
    trust_exact: bool,
    size: int,
    idle_s: float,
    now_s: float,
) -> Recovered:
    """
    Settle what a dead relay left.

    Args:
        state: What Redis holds; None when it holds nothing for this queue.
        markers: The ledger in order, up to the own first marker.
        token: The new relay's own.
        redis_restarted: Redis is another process than the one that was written to.
        trust_exact: Markers of exact batches prove something: the target is a classic
            queue that cannot refuse a message.
        size: Window size in sequences.
        idle_s: How long a publisher may be silent before it may be forgotten; seconds.
        now_s: Unix seconds.
    """
    known = state or State()
    rollback = _rollback(state, markers, redis_restarted=redis_restarted, trust_exact=trust_exact)
    entries = dict(known.entries)
    doubt = {name: set(numbers) for name, numbers in known.doubt.items()}
    replayed = doubtful = 0

    for marker in markers:
        batch = marker.batch
        if marker.kind is MarkerKind.BATCH and batch.number > known.batch:
            if trust_exact or not batch.exact:
                remember(entries, batch.sequences, size, now_s)
                _subtract(doubt, batch.sequences)
                replayed += 1
            else:
                doubtful += _add(doubt, batch.sequences)
    newest = newest_number(state, markers)
    if known.intent is not None and not _settled_by(markers, known):
        doubtful += _add(doubt, known.intent.sequences)
        # An intent that came to nothing leaves no number behind that the ledger could not account for.
        newest = max(newest, known.intent.number)

    unknown_until = known.unknown_uncertain_until_s
    if now_s < unknown_until:
        # A marker replayed into an empty place says nothing of the sequences below it.
        entries = {name: e if name in known.entries else _uncertain(e, size) for name, e in entries.items()}
    if rollback:
        entries = {name: _uncertain(entry, size) for name, entry in entries.items()}
        unknown_until = now_s + idle_s
    return Recovered(
        state=State(
            # A rollback has a number of its own: should Redis lose that it happened, the ledger tells.
            batch=newest + bool(rollback),
            writer=token,
            entries=entries,
            doubt={name: frozenset(numbers) for name, numbers in doubt.items() if numbers},
            unknown_uncertain_until_s=unknown_until,
        ),
        suspect=bool(rollback) or not _untouched(state, markers),
        replayed=replayed,
        doubtful=doubtful,
        rollback=rollback,
    )


def _untouched(state: State | None, markers: Sequence[Marker]) -> bool:
    """
    Say whether nothing that was acknowledged can come back: nobody worked here, or the relay before
    ended clean and the broker, which may forget acknowledgements when it restarts, has not.
    """
    if state is None:
        return not markers
    witnesses = [m for m in markers if m.batch.token == state.writer and m.kind is not MarkerKind.FOUNDING]
    return bool(witnesses) and _ended_clean(state, markers)


def _ended_clean(state: State, markers: Sequence[Marker]) -> bool:
    """
    Say whether the newest relay that worked ended clean; one that Redis has forgotten since left its founding marker.
    """
    newer = [m for m in markers if m.batch.token > state.writer and m.kind is not MarkerKind.FIRST]
    return state.clean and not newer


def newest_number(state: State | None, markers: Iterable[Marker] = ()) -> int:
    """
    Return the highest number of a batch that was settled.
    """
    return max([0 if state is None else state.batch, *(marker.batch.number for marker in markers)])


def _rollback(
    state: State | None, markers: Sequence[Marker], *, redis_restarted: bool, trust_exact: bool
) -> str:
    """
    Say how Redis went backward or may have, or nothing.
    """
    known = state.batch if state is not None else 0
    # A relay that died before it had written to Redis may have begun after all that it should
    # witness: its first marker counts for nothing.
    settled = {m.batch.token for m in markers if m.kind is not MarkerKind.FIRST}
    settled.add(state.writer if state is not None else 0)
    transient = [m for m in markers if m.kind is not MarkerKind.FOUNDING and m.batch.token in settled]
    # Only markers of transactions replay everything Redis may have lost: a batch forwarded with
    # confirms has no marker while it is in doubt.
    complete = bool(transient) and trust_exact and all(m.batch.exact for m in transient)
    if state is None and settled != {0} and not complete:
        return "Redis holds nothing for this queue although it was guarded before"
    founding = [m for m in markers if m.kind is MarkerKind.FOUNDING]
    reached = max((m.batch.number for m in (*founding, *transient)), default=0)
    # Only what the ledger repeats is not lost.
    repeated = {m.batch.number for m in transient if m.kind is MarkerKind.BATCH}
    if sum(known < number <= reached for number in repeated) < reached - known:
        return f"Redis is at batch {known}, the ledger says it had reached {reached}"
    if redis_restarted and not complete and state is not None and not _ended_clean(state, markers):
        return "Redis has restarted: its last second may be lost, and the ledger cannot tell"
    return ""


def _settled_by(markers: Sequence[Marker], state: State) -> bool:
    """
    Say whether the ledger tells what became of the intent: forwarded, or surely not.
    """
    intent = state.intent
    assert intent is not None
    for marker in markers:
        same_token = marker.batch.token == intent.token and marker.kind is not MarkerKind.FOUNDING
        if same_token and marker.kind is MarkerKind.BATCH and marker.batch.number == intent.number:
            return True
        if same_token and intent.exact:
            return True
    return False


def _uncertain(entry: Entry, size: int) -> Entry:
    window = entry.window
    return evolve(entry, window=evolve(window, uncertain_to=max(window.uncertain_to, window.last + size)))


def _add(doubt: dict[str, set[int]], sequences: Sequences) -> int:
    for name, numbers in sequences.items():
        doubt.setdefault(name, set()).update(numbers)
    return sum(map(len, sequences.values()))


def _subtract(doubt: dict[str, set[int]], sequences: Sequences) -> None:
    for name, numbers in sequences.items():
        doubt.get(name, set()).difference_update(numbers)
