"""What is written into the ledger and into Redis comes back, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.identity import SEQUENCE_MAX
from dedup.core.records import (
    NUMBER_MAX,
    SEQUENCES_MAX,
    Batch,
    Belief,
    Leadership,
    Marker,
    MarkerKind,
    Parts,
    by_publisher,
    decode_batch,
    decode_belief,
    decode_doubt,
    decode_marker,
    encode_batch,
    encode_belief,
    encode_doubt,
    encode_marker,
)
from dedup.errors import StateFormatError
from tests.unit.record_strategies import BATCHES, BELIEFS, IDS, JSON_VALUES, NUMBERS

#: What the parts of an intent look like when they are written.
PARTS_FIELDS = {"order": [["p", 1, 2]], "every": 1, "leadership": ["rabbit@a", 3, 70]}


def forged(**fields: Any) -> bytes:
    """Return the body of a marker with some fields replaced; None leaves one out."""
    honest = {"kind": "batch", "token": 1, "batch": 1, "exact": True, "sequences": {"p": [[1, 2]]}}
    return json.dumps(
        {name: value for name, value in (honest | fields).items() if value is not None}
    ).encode()


def test_a_marker_in_full() -> None:
    """The ledger is read by older and newer versions: this is its format."""
    marker = Marker(MarkerKind.BATCH, Batch(7, 3, True, {"é": (1, 2, 3, 9)}))
    body = (
        '{"kind":"batch","count":0,"token":7,"batch":3,"exact":true,"sequences":{"é":[[1,3],[9,9]]}}'.encode()
    )
    assert encode_marker(marker) == body
    assert decode_marker(body) == marker


def test_the_marker_of_an_intent_in_full() -> None:
    """Its parts keep the order in which the batch is published, in runs; that names its sequences too."""
    order = [("b", 4), ("b", 5), ("a", 1), ("b", 3), ("b", 2)]
    parts = Parts(order, 2, Leadership("rabbit@a", 3, 70))
    marker = Marker(MarkerKind.INTENT, Batch(7, 3, False, by_publisher(order), parts))
    body = (
        b'{"kind":"intent","count":0,"token":7,"batch":3,"exact":false,"sequences":{},'
        b'"parts":{"order":[["b",4,5],["a",1,1],["b",3,3],["b",2,2]],"every":2,"leadership":["rabbit@a",3,70]}}'
    )
    assert encode_marker(marker) == body
    assert decode_marker(body) == marker


def test_the_marker_of_a_part_is_small() -> None:
    """There is one for each message: a number says it all."""
    body = b'{"kind":"part","count":9,"token":7,"batch":3,"exact":false,"sequences":{}}'
    assert encode_marker(Marker(MarkerKind.PART, Batch(7, 3, False), 9)) == body
    assert decode_marker(body) == Marker(MarkerKind.PART, Batch(7, 3, False), 9)


def test_a_marker_without_count_and_parts_is_read() -> None:
    """Markers were written without them before."""
    assert decode_marker(forged()) == Marker(MarkerKind.BATCH, Batch(1, 1, True, {"p": (1, 2)}))


@given(kind=st.sampled_from(MarkerKind), batch=BATCHES, count=st.integers(0, NUMBER_MAX))
def test_markers_come_back(kind: MarkerKind, batch: Batch, count: int) -> None:
    """Any marker is read as it was written."""
    assert decode_marker(encode_marker(Marker(kind, batch, count))) == Marker(kind, batch, count)


@given(batch=st.none() | BATCHES)
def test_intents_come_back(batch: Batch | None) -> None:
    """Any intent is read as it was written, none too."""
    assert decode_batch(encode_batch(batch)) == batch


@given(belief=st.none() | BELIEFS)
def test_beliefs_come_back(belief: Belief | None) -> None:
    """What is believed is read as it was written, nothing too."""
    assert decode_belief(encode_belief(belief)) == belief


@given(doubt=st.dictionaries(IDS, NUMBERS.map(frozenset), max_size=4))
def test_doubt_comes_back(doubt: dict[str, frozenset[int]]) -> None:
    """Sequences in doubt are read as they were written."""
    assert decode_doubt(encode_doubt(doubt)) == doubt


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"7",
        b'"batch"',
        b"{}",
        b"[" * 100_000,
        b'{"kind":' + b"9" * 10_000 + b"}",
        forged(kind="other"),
        forged(kind=[]),
        forged(token=-1),
        forged(token="1"),
        forged(token=1.0),
        forged(batch=None),
        forged(batch=-1),
        forged(exact=None),
        forged(sequences=None),
        forged(sequences=[]),
        forged(sequences={"": [[1, 2]]}),
        forged(sequences={"x" * 201: [[1, 2]]}),
        forged(sequences={"p": [[2, 1]]}),
        forged(sequences={"p": [[0, 1]]}),
        forged(sequences={"p": [[1, 2**63]]}),
        forged(sequences={"p": [[1, 2.0]]}),
        forged(sequences={"p": [[1, True]]}),
        forged(sequences={"p": [[1]]}),
        forged(sequences={"p": [1]}),
        forged(sequences={"p": [[1, 2, 3]]}),
        forged(sequences={"p": 7}),
        forged(sequences={"p": None}),
        forged(count=-1),
        forged(count=2**53),
        forged(count="1"),
        forged(count=1.5),
        forged(count=[]),
        forged(parts=7),
        forged(parts=[]),
        forged(parts={}),
        forged(parts=PARTS_FIELDS | {"order": None}),
        forged(parts=PARTS_FIELDS | {"order": 7}),
        forged(parts=PARTS_FIELDS | {"order": [["p", 1]]}),
        forged(parts=PARTS_FIELDS | {"order": [["p", 2, 1]]}),
        forged(parts=PARTS_FIELDS | {"order": [["p", 0, 1]]}),
        forged(parts=PARTS_FIELDS | {"order": [["p", 1, "2"]]}),
        forged(parts=PARTS_FIELDS | {"order": [["", 1, 1]]}),
        forged(parts=PARTS_FIELDS | {"order": [[7, 1, 1]]}),
        forged(parts=PARTS_FIELDS | {"order": [[["p"], 1, 1]]}),
        forged(parts=PARTS_FIELDS | {"every": -1}),
        forged(parts=PARTS_FIELDS | {"every": None}),
        forged(parts=PARTS_FIELDS | {"every": 2**53}),
        forged(parts=PARTS_FIELDS | {"leadership": None}),
        forged(parts=PARTS_FIELDS | {"leadership": ["rabbit@a", 3]}),
        forged(parts=PARTS_FIELDS | {"leadership": ["rabbit@a", -3, 70]}),
        forged(parts=PARTS_FIELDS | {"leadership": ["rabbit@a", 3, "70"]}),
    ],
    ids=range(55),
)
def test_what_is_no_marker_proves_nothing(body: bytes) -> None:
    """Whoever may write to the ledger can put anything there: it is None and never an error."""
    assert decode_marker(body) is None


@given(st.binary(max_size=200))
def test_reading_a_marker_is_total(body: bytes) -> None:
    """Arbitrary bytes are a marker or None."""
    assert decode_marker(body) is None or body.startswith(b"{")


@given(
    st.dictionaries(
        st.sampled_from(["kind", "token", "batch", "exact", "sequences", "count", "parts"]),
        JSON_VALUES
        | st.dictionaries(st.sampled_from(["order", "every", "leadership"]), JSON_VALUES).map(
            lambda changes: PARTS_FIELDS | changes
        ),
    )
)
def test_reading_a_forged_marker_is_total(fields: dict[str, Any]) -> None:
    """Well-formed JSON with wrong types does not get further than None."""
    marker = decode_marker(forged(**fields))
    assert marker is None or isinstance(marker.batch.token, int)


@pytest.mark.parametrize(
    "ranges",
    [
        {"p": [[1, SEQUENCES_MAX + 1]]},
        {"p": [[1, SEQUENCE_MAX]]},
        {"p": [[1, SEQUENCES_MAX]], "q": [[1, 1]]},
        {"p": [[1, 60_000], [1, 60_000]]},
    ],
)
def test_a_forged_range_costs_nothing(ranges: dict[str, Any]) -> None:
    """A few bytes that name 2^63 sequences are refused before any is built."""
    body = forged(sequences=ranges)
    assert decode_marker(body) is None
    with pytest.raises(StateFormatError, match="at most 100000"):
        decode_batch(body)


@pytest.mark.parametrize(
    "order",
    [
        [["p", 1, SEQUENCES_MAX + 1]],
        [["p", 1, SEQUENCE_MAX]],
        [["p", 1, SEQUENCES_MAX], ["q", 1, 1]],
        [["p", 1, 60_000]] * 1_000,
    ],
)
def test_a_forged_order_costs_nothing(order: list[Any]) -> None:
    """It is limited as ranges are, also when it names the same ones again and again."""
    body = forged(parts=PARTS_FIELDS | {"order": order})
    assert decode_marker(body) is None
    with pytest.raises(StateFormatError, match="at most 100000"):
        decode_batch(body)


def test_an_order_may_name_no_part_length_of_zero() -> None:
    """A forged zero would make a recovery doubt nothing behind the newest marker."""
    marker = decode_marker(forged(parts=PARTS_FIELDS | {"every": 0}))
    assert marker is not None
    assert marker.batch.parts == Parts([("p", 1), ("p", 2)], 1, Leadership("rabbit@a", 3, 70))


def test_the_largest_honest_range_is_read() -> None:
    """The limit itself is allowed."""
    marker = decode_marker(forged(sequences={"p": [[1, SEQUENCES_MAX]]}))
    assert marker is not None
    assert len(marker.batch.sequences["p"]) == SEQUENCES_MAX


@pytest.mark.parametrize("data", [b"x", b"7", b"[]", b"{}", b'{"token":1}', b"\xff", b"[" * 100_000])
def test_a_damaged_intent_is_refused_loudly(data: bytes) -> None:
    """State is our own: unlike a ledger message it may not be ignored."""
    with pytest.raises(StateFormatError, match="the intent kept in Redis cannot be read"):
        decode_batch(data)


@pytest.mark.parametrize("data", [b"x", b"7", b"[]", b'{"p":7}', b'{"p":[[2,1]]}', b'{"":[[1,1]]}', b"\xff"])
def test_damaged_doubt_is_refused_loudly(data: bytes) -> None:
    """Doubt that cannot be read must not become no doubt."""
    with pytest.raises(StateFormatError, match="the sequences in doubt kept in Redis cannot be read"):
        decode_doubt(data)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"7",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"sequences":{"p":[[1,1]]}}',
        b'{"leadership":["a",1,1]}',
        b'{"sequences":{"p":[[2,1]]},"leadership":["a",1,1]}',
        b'{"sequences":{"p":[[1,1]]},"leadership":["a",1]}',
        b'{"sequences":{"p":[[1,1]]},"leadership":["a",-1,1]}',
    ],
)
def test_a_damaged_belief_is_refused_loudly(data: bytes) -> None:
    """A belief that cannot be read must not become proof."""
    with pytest.raises(StateFormatError, match="what is believed, kept in Redis, cannot be read"):
        decode_belief(data)


@given(st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_reading_a_belief_is_total(data: bytes) -> None:
    """Any bytes are a belief, none, or refused with the one error that says so."""
    try:
        decode_belief(data)
    except StateFormatError:
        return
