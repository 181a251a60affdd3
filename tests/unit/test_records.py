"""What is written into the ledger and into Redis comes back, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.identity import SEQUENCE_MAX
from dedup.core.publishers import Changes, Entry
from dedup.core.records import (
    SEQUENCES_MAX,
    Batch,
    Marker,
    MarkerKind,
    State,
    decode_batch,
    decode_doubt,
    decode_marker,
    encode_batch,
    encode_doubt,
    encode_marker,
)
from dedup.core.steps import Save
from dedup.core.window import Window
from dedup.errors import StateFormatError
from dedup.store.encoding import decode_entry, encode_entry, save_fields, state_fields, state_from

IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50)
NUMBERS = st.sets(st.integers(1, 60) | st.integers(SEQUENCE_MAX - 9, SEQUENCE_MAX), max_size=40)
BATCHES = st.builds(
    Batch,
    token=st.integers(0, 2**50),
    number=st.integers(0, 2**50),
    exact=st.booleans(),
    sequences=st.dictionaries(IDS, NUMBERS.map(lambda numbers: tuple(sorted(numbers))), max_size=4),
)


def forged(**fields: Any) -> bytes:
    """Return the body of a marker with some fields replaced; None leaves one out."""
    honest = {"kind": "batch", "token": 1, "batch": 1, "exact": True, "sequences": {"p": [[1, 2]]}}
    return json.dumps(
        {name: value for name, value in (honest | fields).items() if value is not None}
    ).encode()


def test_a_marker_in_full() -> None:
    """The ledger is read by older and newer versions: this is its format."""
    marker = Marker(MarkerKind.BATCH, Batch(7, 3, True, {"é": (1, 2, 3, 9)}))
    body = '{"kind":"batch","token":7,"batch":3,"exact":true,"sequences":{"é":[[1,3],[9,9]]}}'.encode()
    assert encode_marker(marker) == body
    assert decode_marker(body) == marker


@given(kind=st.sampled_from(MarkerKind), batch=BATCHES)
def test_markers_come_back(kind: MarkerKind, batch: Batch) -> None:
    """Any marker is read as it was written."""
    assert decode_marker(encode_marker(Marker(kind, batch))) == Marker(kind, batch)


@given(batch=st.none() | BATCHES)
def test_intents_come_back(batch: Batch | None) -> None:
    """Any intent is read as it was written, none too."""
    assert decode_batch(encode_batch(batch)) == batch


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
    ],
    ids=range(31),
)
def test_what_is_no_marker_proves_nothing(body: bytes) -> None:
    """Whoever may write to the ledger can put anything there: it is None and never an error."""
    assert decode_marker(body) is None


@given(st.binary(max_size=200))
def test_reading_a_marker_is_total(body: bytes) -> None:
    """Arbitrary bytes are a marker or None."""
    assert decode_marker(body) is None or body.startswith(b"{")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["kind", "token", "batch", "exact", "sequences"]), _JSON))
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


# -- the fields of the hash -----------------------------------------------------------------------

WINDOWS = st.builds(
    lambda last, missing, start, uncertain_to: Window(last, min(start, last), missing, uncertain_to),
    last=st.integers(1, SEQUENCE_MAX),
    missing=st.integers(0, 2**8191 - 1),
    start=st.integers(1, SEQUENCE_MAX),
    uncertain_to=st.integers(0, SEQUENCE_MAX),
)
ENTRIES = st.builds(Entry, window=WINDOWS, seen_s=st.integers(0, 2**33).map(float))
STATES = st.builds(
    State,
    batch=st.integers(0, 2**50),
    writer=st.integers(0, 2**50),
    entries=st.dictionaries(IDS, ENTRIES, max_size=3),
    intent=st.none() | BATCHES,
    doubt=st.dictionaries(IDS, NUMBERS.filter(len).map(frozenset), max_size=3),
    clean=st.booleans(),
    unknown_uncertain_until_s=st.just(0.0) | st.floats(0, 1e12),
)


def as_stored(fields: dict[str, str | bytes]) -> dict[bytes, bytes]:
    """Return *fields* as Redis gives them back."""
    return {
        name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()
    }


def test_an_entry_in_full() -> None:
    """One line of text, the bitmap in hexadecimal."""
    entry = Entry(Window(last=300, start=2, missing=0xABC, uncertain_to=310), 1.5)
    assert encode_entry(entry) == "300 2 abc 310 1.500"
    assert decode_entry(b"300 2 abc 310 1.500") == entry


@given(STATES)
def test_states_come_back(state: State) -> None:
    """What replace writes is what claim reads."""
    assert state_from(as_stored(state_fields(state))) == state


@given(state=STATES, entries=st.dictionaries(IDS, ENTRIES, max_size=3), intent=st.none() | BATCHES)
def test_saves_come_back(state: State, entries: dict[str, Entry], intent: Batch | None) -> None:
    """What save writes over a state is that state with the changes in it."""
    gone = tuple(set(state.entries) - set(entries))[:1]
    deleted, fields = save_fields(
        Save(9, 11, Changes(entries, gone), intent, {"q": frozenset({5})}, clean=True)
    )
    stored = state_fields(state) | fields
    for name in deleted:
        del stored[name]
    found = state_from(as_stored(stored))
    assert found is not None
    assert (found.batch, found.writer, found.intent, found.clean) == (11, 9, intent, True)
    assert found.doubt == {"q": frozenset({5})}
    assert found.entries == {name: e for name, e in state.entries.items() if name not in gone} | entries


def test_doubt_that_did_not_change_is_not_written() -> None:
    """None leaves the field as it is."""
    assert "doubt" not in save_fields(Save(9, 11, Changes({}), None))[1]


def test_a_token_alone_is_no_state() -> None:
    """A queue that was claimed and never recovered has nothing yet."""
    assert state_from({b"token": b"7"}) is None
    assert state_from({}) is None


GOOD = as_stored(state_fields(State(1, 2, {"p": Entry(Window(3, 1), 4.0)})))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({b"format": b"2"}, "has format '2', this version reads '1'"),
        ({b"format": b"\xff"}, "has format"),
        ({b"format": None}, "publishers and no format"),
        ({b"batch": None}, "damaged"),
        ({b"batch": b"x"}, "damaged"),
        ({b"writer": b""}, "damaged"),
        ({b"intent": b"{"}, "intent"),
        ({b"doubt": b"["}, "doubt"),
        ({b"clean": None}, "damaged"),
        ({b"unknown_uncertain_until_s": b"soon"}, "damaged"),
        ({b"publisher:p": b""}, "damaged"),
        ({b"publisher:p": b"1 2 3"}, "damaged"),
        ({b"publisher:p": b"0 0 0 0 0"}, "damaged"),
        ({b"publisher:p": b"3 4 0 0 0.0"}, "damaged"),
        ({b"publisher:p": b"3 1 -1 0 0.0"}, "damaged"),
        ({b"publisher:p": b"9223372036854775808 1 0 0 0.0"}, "damaged"),
        ({b"publisher:p": b"3 1 " + b"f" * (1 << 20) + b"f 0 0.0"}, "damaged"),
        ({b"publisher:p": b"\xff"}, "damaged"),
        ({b"publisher:": b"3 1 0 0 0.0"}, "damaged"),
        ({b"publisher:\xff": b"3 1 0 0 0.0"}, "damaged"),
    ],
)
def test_a_foreign_or_damaged_state_is_refused(changes: dict[bytes, bytes | None], complaint: str) -> None:
    """It is never guessed at: forgetting a window doubles messages, inventing one loses them."""
    fields = {name: value for name, value in (GOOD | changes).items() if value is not None}
    with pytest.raises(StateFormatError, match=complaint):
        state_from(fields)


@given(st.dictionaries(st.sampled_from([*GOOD, b"publisher:q"]), st.binary(max_size=30)))
def test_reading_a_state_is_total(changes: dict[bytes, bytes]) -> None:
    """Any fields are a state, none, or refused with the one error that says so."""
    try:
        state_from(GOOD | changes)
    except StateFormatError:
        return
