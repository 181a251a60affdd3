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
    intent, no marker of its token                      in doubt: forward it marked
    intent, forwarded with confirms                     in doubt but for the parts that markers prove

Why a marker *of its token*: markers of other relays may be younger than a broker restart that
swept the intent's own marker away. Every relay publishes a first marker before its first intent
and keeps one until it ends, so no marker of a token means that the broker restarted.

A batch forwarded with confirms has its marker only when all of it is stored. Until then markers of
*parts* run behind its messages on the same channel (parts.py says what they prove, and when). What
they prove is only *believed*: a quorum queue has been handed the messages, and a leader that dies can
still lose them. So the windows have them and the state names them, until the new relay has a confirm
from the same queue under the same leader: everything handed over before is committed then. If another
leader comes first, they fall into doubt; doubt weighs more than windows.

Redis may have gone backward: it was emptied, restored from an older copy, or restarted and lost
its last second. A first or founding marker says which batch number Redis had reached, and batch
markers follow one another without a hole; a Redis below that has lost every batch that has no
marker any more. A rollback takes a number too, so a Redis that loses even that it was rolled back
is below what the ledger says. Where the markers are gone, a Redis that restarted must be taken as
one that lost its last second. Then nothing that Redis does not know as seen is proven, and NEW is
forwarded marked, for each publisher until a window has passed since the first that comes from it;
that stays in the window itself, so that a relay killed at once does not forget it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from dedup.core.bodies import without
from dedup.core.message_ids import is_message_key
from dedup.core.parts import fate, still_led, united
from dedup.core.publishers import Entry, remember
from dedup.core.records import Batch, Belief, Leadership, Marker, MarkerKind, Sequences, State
from dedup.core.steps import Notice
from dedup.core.window import UNCERTAIN


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

    def notices(self) -> list[Notice]:
        """
        Return what an operator wants to know of it.
        """
        believed = self.state.believed.sequences if self.state.believed is not None else {}
        facts = {
            "token": self.state.writer,
            "batch": self.state.batch,
            "publishers": sum(not is_message_key(name) for name in self.state.entries),
            "replayed": self.replayed,
            "believed": sum(map(len, believed.values())),
            "doubtful": self.doubtful,
        }
        notices = [Notice("dedup.recovered", facts)]
        if self.rollback:
            notices.append(Notice("dedup.rolled_back", {"cause": self.rollback}))
        return notices


def recover(
    state: State | None,
    markers: Sequence[Marker],
    *,
    token: int,
    redis_restarted: bool,
    trust_exact: bool,
    source_witnessed: bool = True,
    leadership: Leadership | None,
    size: int,
    idle_s: float,
    message_id_keep_s: float = 0.0,
    check_bodies: bool = False,
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
        source_witnessed: The ledger is in the broker that the relay takes from.
        leadership: Who leads the target, read after the dead relay had lost the fence; None: nobody knows.
        size: Window size in sequences.
        idle_s: How long a publisher may be silent before it may be forgotten; seconds.
        message_id_keep_s: How long a message id is remembered; seconds.
        check_bodies: Go on comparing bodies; else what is known of them is forgotten.
        now_s: Unix seconds.
    """
    known = state or State()
    forwarded: list[Sequences] = []
    rollback = _rollback(state, markers, redis_restarted=redis_restarted, trust_exact=trust_exact)
    entries = dict(known.entries)
    doubt = {name: set(numbers) for name, numbers in known.doubt.items()}
    replayed = 0
    newest = newest_number(state, markers)
    believed = known.believed.sequences if known.believed is not None else {}
    if known.believed is not None and not still_led(known.believed.leadership, leadership):
        _add(doubt, believed)
        believed = {}
    for intent in _unsettled(known, markers):
        found = fate(intent, markers, leadership)
        remember(entries, found.believed, intent.number, size, now_s)
        forwarded.append(found.believed)
        believed = united(believed, found.believed)
        _subtract(doubt, found.believed)
        _add(doubt, found.doubtful)
        # An intent that came to nothing leaves no number behind that the ledger could not account for.
        newest = max(newest, intent.number)
    for marker in markers:
        batch = marker.batch
        if marker.kind is MarkerKind.BATCH and batch.number > known.batch:
            if trust_exact or not batch.exact:
                remember(entries, batch.sequences, batch.number, size, now_s)
                forwarded.append(batch.sequences)
                _subtract(doubt, batch.sequences)
                replayed += 1
            else:
                _add(doubt, batch.sequences)

    unknown_until, ids_until = known.unknown_uncertain_until_s, known.message_ids_uncertain_until_s
    if now_s < unknown_until:
        # A marker replayed into an empty place says nothing of the sequences below it.
        entries = {name: e if name in known.entries else _uncertain(e) for name, e in entries.items()}
    if rollback:
        entries = {name: _uncertain(entry) for name, entry in entries.items()}
        unknown_until, ids_until = now_s + idle_s, now_s + message_id_keep_s
    return Recovered(
        state=State(
            # A rollback has a number of its own: should Redis lose that it happened, the ledger tells.
            batch=newest + bool(rollback),
            writer=token,
            entries=entries,
            doubt={name: frozenset(numbers) for name, numbers in doubt.items() if numbers},
            believed=Belief(believed, leadership) if believed and leadership is not None else None,
            unknown_uncertain_until_s=unknown_until,
            logged=max([known.logged, *(marker.batch.logged for marker in markers)]),
            message_ids_uncertain_until_s=ids_until,
            bodies=without(known.bodies, forwarded) if check_bodies else {},
        ),
        suspect=bool(rollback) or not _untouched(state, markers, source_witnessed=source_witnessed),
        replayed=replayed,
        doubtful=sum(len(numbers.difference(known.doubt.get(name, ()))) for name, numbers in doubt.items()),
        rollback=rollback,
    )


def _untouched(state: State | None, markers: Sequence[Marker], *, source_witnessed: bool) -> bool:
    """
    Say whether nothing that was acknowledged can come back: nobody worked here, or the relay before
    ended clean and the broker, which may forget acknowledgements when it restarts, has not.
    """
    if state is None:
        return not markers
    witnesses = [m for m in markers if m.batch.token == state.writer and m.kind is not MarkerKind.FOUNDING]
    return source_witnessed and bool(witnesses) and _ended_clean(state, markers)


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
    # As long as the broker has not restarted, the markers repeat everything Redis may have lost;
    # those of transactions only where they can be believed.
    complete = bool(transient) and (trust_exact or not any(m.batch.exact for m in transient))
    if state is None and settled != {0} and not complete:
        return "Redis holds nothing for this queue although it was guarded before"
    founding = [m for m in markers if m.kind is MarkerKind.FOUNDING]
    reached = max((m.batch.number for m in (*founding, *transient)), default=0)
    # Only what the ledger repeats is not lost.
    repeated = {m.batch.number for m in transient if m.kind in (MarkerKind.BATCH, MarkerKind.INTENT)}
    if sum(known < number <= reached for number in repeated) < reached - known:
        return f"Redis is at batch {known}, the ledger says it had reached {reached}"
    # A relay puts a founding marker into the ledger when its state is in Redis: a state of one before it is older.
    outdated = state is not None and state.writer < max(settled)
    if (
        (redis_restarted or outdated)
        and not complete
        and state is not None
        and not _ended_clean(state, markers)
    ):
        return "Redis has restarted or went back: its newest writes may be lost, and the ledger cannot tell"
    return ""


def _unsettled(state: State, markers: Sequence[Marker]) -> list[Batch]:
    """
    Return the intents that may have been forwarded in part and were not settled: Redis', and what it has lost.
    """
    done = {(m.batch.token, m.batch.number) for m in markers if m.kind is MarkerKind.BATCH}
    intents = [m.batch for m in markers if m.kind is MarkerKind.INTENT and m.batch.number > state.batch]
    if state.intent is not None and not (state.intent.exact and _witnessed(markers, state.intent)):
        intents.append(state.intent)
    found = {(intent.token, intent.number): intent for intent in intents}
    return [intent for key, intent in found.items() if key not in done]


def _witnessed(markers: Sequence[Marker], intent: Batch) -> bool:
    """
    Say whether the broker has not restarted since *intent*: a transient marker of its token is there.
    """
    return any(m.batch.token == intent.token and m.kind is not MarkerKind.FOUNDING for m in markers)


def _uncertain(entry: Entry) -> Entry:
    return evolve(entry, window=evolve(entry.window, uncertain_to=UNCERTAIN))


def _add(doubt: dict[str, set[int]], sequences: Sequences) -> None:
    for name, numbers in sequences.items():
        doubt.setdefault(name, set()).update(numbers)


def _subtract(doubt: dict[str, set[int]], sequences: Sequences) -> None:
    for name, numbers in sequences.items():
        doubt.get(name, set()).difference_update(numbers)
