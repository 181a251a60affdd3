"""The records that make the relay crash-proof: intent, marker and the state kept in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from attrs import Factory, astuple, frozen

from dedup.core.bodies import Chunks
from dedup.core.identity import validate_sequence
from dedup.core.message_ids import KEY_SEQUENCE, is_message_key, validate_name
from dedup.core.publishers import Entry
from dedup.errors import DedupError, StateFormatError

#: Sequences one intent or marker may name; far above any batch, it bounds what a forged one can cost.
SEQUENCES_MAX = 100_000
#: Largest token and batch number: Redis counts in doubles, which are exact up to here.
NUMBER_MAX = 2**53 - 1

#: What a key of a message id has.
_OF_KEY = (KEY_SEQUENCE,)

#: Publisher id, or key of a message id -> its sequences, ascending.
Sequences = Mapping[str, tuple[int, ...]]


class Position(NamedTuple):
    """
    A row of what the audit is told; of no row at all: (0, 0).
    """

    #: Fencing token of the relay that told it.
    token: int
    #: Its number, from 1 for each token.
    offset: int


#: Where the log of the audit begins.
BEGINNING = Position(0, 0)


@frozen
class Leadership:
    """
    Who leads a quorum queue, and since when (Raft section 5.2): it changes with each election.
    """

    #: Name of the node; "" for a queue that has nobody to elect.
    leader: str
    term: int
    #: Index of the newest entry of the leader's log: it falls only when the queue was declared anew.
    index: int

    def holds_since(self, before: Leadership) -> bool:
        """
        Say whether nobody else has led since *before* was read.
        """
        return (self.leader, self.term) == (before.leader, before.term) and self.index >= before.index


@frozen
class Parts:
    """
    What it takes to believe markers of parts of a batch that is forwarded with confirms.
    """

    #: Publisher id and sequence of all that is new in the batch, as published.
    order: Sequence[tuple[str, int]]
    #: A marker follows each so-many of them.
    every: int
    #: Who led the target before they were published.
    leadership: Leadership


@frozen
class Batch:
    """
    Which sequences a relay is about to forward (an intent) or has forwarded (a marker).
    """

    #: Fencing token of the relay, unique for each time a relay took the queue over.
    token: int
    #: Batch number, rising over all tokens of a queue.
    number: int
    #: Whether it is forwarded in a transaction that holds its marker too.
    exact: bool = True
    sequences: Sequences = Factory(dict)
    #: Set where markers of parts prove something.
    parts: Parts | None = None
    #: Of a marker: the last row of the audit that was stored before it.
    logged: Position = BEGINNING


class MarkerKind(Enum):
    """
    What a message in the ledger proves.
    """

    #: The batch was forwarded. Transient.
    BATCH = "batch"
    #: A batch is about to be forwarded with confirms: what Redis may forget of it. Transient.
    INTENT = "intent"
    #: So many of a batch's messages were published before it, with confirms still to come. Transient.
    PART = "part"
    #: The relay with this token began, Redis had reached this batch number, and the broker
    #: has not restarted since. Transient.
    FIRST = "first"
    #: This queue has state in Redis, at least as new as this batch number. Persistent.
    FOUNDING = "founding"


@frozen
class Marker:
    """
    One message of the ledger queue.
    """

    kind: MarkerKind
    batch: Batch
    #: Of a part: how many of the batch's sequences, in its order.
    count: int = 0


@frozen
class Belief:
    """
    What markers of parts prove, until the target confirms something that came after it.
    """

    sequences: Sequences
    #: Who leads the target all the time.
    leadership: Leadership


@frozen
class State:
    """
    What Redis holds for one guarded queue.
    """

    #: Number of the newest settled batch.
    batch: int = 0
    #: Token of the relay that wrote it.
    writer: int = 0
    entries: Mapping[str, Entry] = Factory(dict)
    #: The batch that was being forwarded, if one was.
    intent: Batch | None = None
    #: Sequences that may be in the target already: they are forwarded marked.
    doubt: Mapping[str, frozenset[int]] = Factory(dict)
    #: In the windows, and in the target unless somebody else comes to lead that first.
    believed: Belief | None = None
    #: True when the relay before stopped with everything settled and acknowledged.
    clean: bool = False
    #: Until then (unix seconds) a publisher not in the map proves nothing: state was lost.
    unknown_uncertain_until_s: float = 0.0
    #: The newest row of the audit that is known to be stored.
    logged: Position = BEGINNING
    #: Until then (unix seconds) a message id not in the map proves nothing: state was lost.
    message_ids_uncertain_until_s: float = 0.0
    #: Digests of the bodies that were forwarded.
    bodies: Chunks = Factory(dict)


def encode_marker(marker: Marker) -> bytes:
    """
    Return the body of the ledger message.
    """
    return _dump({"kind": marker.kind.value, "count": marker.count, **batch_fields(marker.batch)})


def decode_marker(body: bytes) -> Marker | None:
    """
    Return the marker in *body*, or None: whatever else lies in a ledger proves nothing.
    """
    try:
        fields = json.loads(body)
        return Marker(MarkerKind(fields["kind"]), batch_from_fields(fields), natural(fields.get("count", 0)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DedupError):
        return None


def encode_batch(batch: Batch | None) -> bytes:
    """
    Return *batch* as kept in Redis; empty for none.
    """
    return b"" if batch is None else _dump(batch_fields(batch))


def decode_batch(data: bytes) -> Batch | None:
    """
    Return the batch that encode_batch wrote.

    Raises:
        StateFormatError: the bytes are something else.
    """
    if not data:
        return None
    try:
        return batch_from_fields(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DedupError) as error:
        raise StateFormatError(f"the intent kept in Redis cannot be read: {error}") from error


def encode_belief(belief: Belief | None) -> bytes:
    """
    Return *belief* as kept in Redis; empty for none.
    """
    if belief is None:
        return b""
    ranges = {name: _to_ranges(numbers) for name, numbers in belief.sequences.items()}
    return _dump({"sequences": ranges, "leadership": astuple(belief.leadership)})


def decode_belief(data: bytes) -> Belief | None:
    """
    Return the belief that encode_belief wrote.

    Raises:
        StateFormatError: the bytes are something else.
    """
    if not data:
        return None
    try:
        fields = json.loads(data)
        return Belief(_sequences(fields["sequences"]), _leadership(fields["leadership"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DedupError) as error:
        raise StateFormatError(f"what is believed, kept in Redis, cannot be read: {error}") from error


def encode_doubt(doubt: Mapping[str, Iterable[int]]) -> bytes:
    """
    Return the sequences in doubt as kept in Redis.
    """
    return _dump({name: _to_ranges(numbers) for name, numbers in doubt.items()})


def decode_doubt(data: bytes) -> dict[str, frozenset[int]]:
    """
    Return the sequences that encode_doubt wrote.

    Raises:
        StateFormatError: the bytes are something else.
    """
    try:
        return {name: frozenset(numbers) for name, numbers in _sequences(json.loads(data or b"{}")).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DedupError) as error:
        raise StateFormatError(f"the sequences in doubt kept in Redis cannot be read: {error}") from error


def batch_fields(batch: Batch) -> dict[str, Any]:
    """
    Return *batch* as plain JSON values; sequences as ranges [first, last].
    """
    fields: dict[str, Any] = {
        "token": batch.token,
        "batch": batch.number,
        "exact": batch.exact,
        "sequences": {},
    }
    if batch.parts is None:
        keys: list[str] = []
        for name, numbers in batch.sequences.items():
            if numbers == _OF_KEY and is_message_key(name):
                keys.append(name)
            else:
                fields["sequences"][name] = _to_ranges(numbers)
        if keys:
            fields["keys"] = keys
    else:  # parts name the sequences too
        fields["parts"] = {
            "order": _to_runs(batch.parts.order),
            "every": batch.parts.every,
            "leadership": astuple(batch.parts.leadership),
        }
    if batch.logged != BEGINNING:
        fields["logged"] = batch.logged
    return fields


def batch_from_fields(fields: dict[str, Any]) -> Batch:
    """
    Return the batch that batch_fields described; raises on anything else.
    """
    parts = _parts(fields["parts"]) if "parts" in fields else None
    return Batch(
        natural(fields["token"]),
        natural(fields["batch"]),
        bool(fields["exact"]),
        _named(fields) if parts is None else by_publisher(parts.order),
        parts,
        position_from(fields.get("logged", BEGINNING)),
    )


def position_from(numbers: Iterable[Any]) -> Position:
    """
    Return the position of two integers; raises on anything else.
    """
    token, offset = numbers
    return Position(natural(token), natural(offset))


def natural(value: Any) -> int:
    """
    Return *value*, an integer from 0 to `NUMBER_MAX`.

    Raises:
        StateFormatError: it is something else.
    """
    if not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise StateFormatError("token, batch, count, term and index are integers from 0 to 2^53 - 1")
    return value


def _parts(fields: dict[str, Any]) -> Parts:
    order: list[tuple[str, int]] = []
    for run in fields["order"]:
        name, first, last = (run, KEY_SEQUENCE, KEY_SEQUENCE) if isinstance(run, str) else run
        for numbers in _sequences({name: [[first, last]]}).values():
            order += [(name, number) for number in numbers]
        if len(order) > SEQUENCES_MAX:
            raise StateFormatError(f"an order names at most {SEQUENCES_MAX}")
    return Parts(order, max(1, natural(fields["every"])), _leadership(fields["leadership"]))


def _leadership(fields: list[Any]) -> Leadership:
    leader, term, index = fields
    return Leadership(str(leader), natural(term), natural(index))


def _named(fields: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """
    Return the sequences of a batch; the key of a message id stands for its only one.
    """
    keys = fields.get("keys", [])
    if not isinstance(keys, list) or len(keys) > SEQUENCES_MAX:
        raise StateFormatError(f"keys are a list of {SEQUENCES_MAX} at the most")
    return _sequences(fields["sequences"]) | {validate_name(key): _OF_KEY for key in keys}


def _sequences(ranges: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    total = 0
    result: dict[str, tuple[int, ...]] = {}
    for name, pairs in ranges.items():
        numbers: list[int] = []
        for first, last in pairs:
            total += validate_sequence(last) - validate_sequence(first) + 1
            if last < first or total > SEQUENCES_MAX:
                raise StateFormatError(f"ranges of sequences ascend and name at most {SEQUENCES_MAX}")
            numbers.extend(range(first, last + 1))
        result[validate_name(name)] = tuple(numbers)
    return result


def _to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def by_publisher(order: Iterable[tuple[str, int]]) -> Sequences:
    """
    Return *order* as sequences by publisher, ascending.
    """
    found: dict[str, list[int]] = {}
    for name, number in order:
        found.setdefault(name, []).append(number)
    return {
        name: tuple(sorted(numbers)) if len(numbers) > 1 else (numbers[0],) for name, numbers in found.items()
    }


def _to_runs(order: Iterable[tuple[str, int]]) -> list[Any]:
    """
    Return *order* as name, first and last; the key of a message id stands for itself.
    """
    runs: list[Any] = []
    for name, number in order:
        if number == KEY_SEQUENCE and is_message_key(name):
            runs.append(name)
        elif runs and runs[-1][0] == name and runs[-1][2] == number - 1:
            runs[-1][2] = number
        else:
            runs.append([name, number, number])
    return runs


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
