"""The records that make the relay crash-proof: intent, marker and the state kept in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from attrs import Factory, frozen

from dedup.core.identity import validate_publisher_id, validate_sequence
from dedup.core.publishers import Entry
from dedup.errors import DedupError, StateFormatError

#: Sequences one intent or marker may name; far above any batch, it bounds what a forged one can cost.
SEQUENCES_MAX = 100_000

#: Publisher id -> its sequences, ascending.
Sequences = Mapping[str, tuple[int, ...]]


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


class MarkerKind(Enum):
    """
    What a message in the ledger proves.
    """

    #: The batch was forwarded. Transient.
    BATCH = "batch"
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
    #: True when the relay before stopped with everything settled and acknowledged.
    clean: bool = False
    #: Until then (unix seconds) a publisher not in the map proves nothing: state was lost.
    unknown_uncertain_until_s: float = 0.0


def encode_marker(marker: Marker) -> bytes:
    """
    Return the body of the ledger message.
    """
    return _dump({"kind": marker.kind.value, **batch_fields(marker.batch)})


def decode_marker(body: bytes) -> Marker | None:
    """
    Return the marker in *body*, or None: whatever else lies in a ledger proves nothing.
    """
    try:
        fields = json.loads(body)
        return Marker(MarkerKind(fields["kind"]), batch_from_fields(fields))
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
    return {
        "token": batch.token,
        "batch": batch.number,
        "exact": batch.exact,
        "sequences": {name: _to_ranges(numbers) for name, numbers in batch.sequences.items()},
    }


def batch_from_fields(fields: dict[str, Any]) -> Batch:
    """
    Return the batch that batch_fields described; raises on anything else.
    """
    token, number = fields["token"], fields["batch"]
    if not (isinstance(token, int) and isinstance(number, int) and token >= 0 and number >= 0):
        raise StateFormatError("token and batch are integers from 0")
    return Batch(token, number, bool(fields["exact"]), _sequences(fields["sequences"]))


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
        result[validate_publisher_id(name)] = tuple(numbers)
    return result


def _to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
