"""The fields of the state in Redis come back, and a foreign or damaged state is refused."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.bodies import CHUNK_BYTES, CHUNK_SIZE
from dedup.core.identity import SEQUENCE_MAX
from dedup.core.message_ids import is_message_key, message_key
from dedup.core.publishers import Changes, Entry, forwarded
from dedup.core.records import (
    Batch,
    Belief,
    Leadership,
    State,
)
from dedup.core.steps import Save
from dedup.core.window import WINDOW_SIZE_MAX, Window, judge
from dedup.errors import StateFormatError
from dedup.store.encoding import (
    decode_entry,
    encode_entry,
    pack,
    save_fields,
    state_fields,
    state_from,
    unpack,
)
from tests.unit.record_strategies import BATCHES, BELIEFS, IDS, NUMBERS

WINDOWS = st.builds(
    lambda last, missing, start, uncertain_to: Window(last, min(start, last), missing, uncertain_to),
    last=st.integers(1, SEQUENCE_MAX),
    missing=st.integers(0, 2**8191 - 1),
    start=st.integers(1, SEQUENCE_MAX),
    uncertain_to=st.integers(0, SEQUENCE_MAX),
)
ENTRIES = st.builds(Entry, window=WINDOWS, seen_s=st.integers(0, 2**33).map(float))
CHUNKS = st.dictionaries(
    st.tuples(IDS, st.integers(0, SEQUENCE_MAX // CHUNK_SIZE)),
    st.binary(min_size=CHUNK_BYTES, max_size=CHUNK_BYTES),
    max_size=3,
)


@st.composite
def entries_of_both(draw: st.DrawFn, first: int) -> dict[str, Entry]:
    """Draw publishers, and message ids of batches from the *first*."""
    keys = st.binary(min_size=1, max_size=80).map(message_key)
    publishers = draw(st.dictionaries(IDS, ENTRIES, max_size=3))
    # Those of one batch were forwarded at one time.
    times = draw(st.dictionaries(st.integers(first, first + 2), st.integers(0, 2**33).map(float), min_size=1))
    together = st.sampled_from([forwarded(at_s, batch) for batch, at_s in times.items()])
    return publishers | draw(st.dictionaries(keys, together, max_size=5))


STATES = st.builds(
    State,
    batch=st.integers(0, 2**50),
    writer=st.integers(0, 2**50),
    entries=entries_of_both(1),
    intent=st.none() | BATCHES,
    doubt=st.dictionaries(IDS, NUMBERS.filter(len).map(frozenset), max_size=3),
    believed=st.none() | BELIEFS,
    clean=st.booleans(),
    unknown_uncertain_until_s=st.just(0.0) | st.floats(0, 1e12),
    message_ids_uncertain_until_s=st.just(0.0) | st.floats(0, 1e12),
    bodies=CHUNKS,
)


def as_stored(fields: dict[str, str | bytes]) -> dict[bytes, bytes]:
    """Return *fields* as Redis gives them back."""
    return unpack(*pack(fields.items()))


def written(state: State) -> dict[str, str | bytes]:
    """Return the fields of *state*."""
    return dict(state_fields(state))


def test_an_entry_in_full() -> None:
    """One line of text, the bitmap in hexadecimal."""
    entry = Entry(Window(last=300, start=2, missing=0xABC, uncertain_to=310), 1.5)
    assert encode_entry(entry) == "300 2 abc 310 1.500"
    assert decode_entry(b"300 2 abc 310 1.500") == entry


@given(STATES)
def test_states_come_back(state: State) -> None:
    """What replace writes is what claim reads."""
    assert state_from(as_stored(written(state))) == state


@given(
    state=STATES,
    entries=entries_of_both(10),
    bodies=CHUNKS,
    intent=st.none() | BATCHES,
    proven=st.booleans(),
)
def test_saves_come_back(
    state: State,
    entries: dict[str, Entry],
    bodies: dict[tuple[str, int], bytes],
    intent: Batch | None,
    proven: bool,
) -> None:
    """What save writes over a state is that state with the changes in it."""
    publishers = {name for name in state.entries if not is_message_key(name)}
    gone = tuple(publishers - set(entries))[:2]
    batches = tuple({state.entries[key].batch for key in state.entries.keys() - publishers})[:1]
    keys = [key for key in state.entries.keys() - publishers if state.entries[key].batch in batches]
    forgotten = dict.fromkeys(list(state.bodies.keys() - bodies.keys())[:1], b"")
    deleted, fields = save_fields(
        Save(
            9,
            11,
            Changes(entries, gone, batches, bodies | forgotten),
            intent,
            {"q": frozenset({5})},
            proven=proven,
            clean=True,
        )
    )
    stored = written(state) | fields
    for name in deleted:
        del stored[name]
    found = state_from(as_stored(stored))
    assert found is not None
    assert (found.batch, found.writer, found.intent, found.clean) == (11, 9, intent, True)
    assert found.doubt == {"q": frozenset({5})}
    assert found.believed == (None if proven else state.believed)
    left = {name: e for name, e in state.entries.items() if name not in (*gone, *keys)}
    assert found.entries == left | entries
    assert found.bodies == {p: d for p, d in state.bodies.items() if p not in forgotten} | bodies


def test_the_largest_window_comes_back_with_every_sequence_missing() -> None:
    """The most that a publisher may make the shim remember is read again, and judged on."""
    _, window = judge(None, (1 << 32) + WINDOW_SIZE_MAX, WINDOW_SIZE_MAX)
    entry = Entry(window, 7.0)
    assert window.missing.bit_length() == WINDOW_SIZE_MAX - 1
    assert decode_entry(encode_entry(entry).encode()) == entry
    _, moved = judge(window, window.last + 2, WINDOW_SIZE_MAX)
    assert moved.missing.bit_length() == WINDOW_SIZE_MAX - 1


def test_message_ids_in_full() -> None:
    """One field for a batch: when it was forwarded, rounded up so that none is forgotten early, and the keys."""
    entries = {
        message_key(text): forwarded(7.25, batch) for text, batch in ((b"a", 4), (b"b c", 4), (b"d", 5))
    }
    fields = written(State(entries=entries))
    assert (fields["forwarded:4"], fields["forwarded:5"]) == ("8\n\x7fa\n\x7fb c", "8\n\x7fd")
    found = state_from(as_stored(fields))
    assert found is not None
    assert found.entries == {key: evolve(entry, seen_s=8.0) for key, entry in entries.items()}


def test_a_message_id_that_was_forwarded_anew() -> None:
    """It stands with the batch before too until that is forgotten; the newer one counts."""
    fields = as_stored(written(State())) | {b"forwarded:9": b"8\n\x7fa", b"forwarded:10": b"9\n\x7fa"}
    found = state_from(fields)
    assert found is not None
    assert found.entries == {"\x7fa": forwarded(9.0, 10)}


def test_a_state_from_before_message_ids_is_read() -> None:
    """It has none, and nothing is lost with them."""
    fields = as_stored(written(State()))
    del fields[b"message_ids_uncertain_until_s"]
    assert state_from(fields) == State()


def test_doubt_that_did_not_change_is_not_written() -> None:
    """None leaves the field as it is."""
    assert "doubt" not in save_fields(Save(9, 11, Changes({}), None))[1]


def test_a_belief_is_written_with_the_whole_state_and_cleared_when_it_is_proven() -> None:
    """Nothing else changes it."""
    assert "believed" not in save_fields(Save(9, 11, Changes({}), None))[1]
    assert save_fields(Save(9, 11, Changes({}), None, proven=True))[1]["believed"] == b""
    belief = Belief({"p": (1, 2, 5)}, Leadership("rabbit@a", 3, 70))
    told = b'{"sequences":{"p":[[1,2],[5,5]]},"leadership":["rabbit@a",3,70]}'
    assert written(State(believed=belief))["believed"] == told


def test_a_token_alone_is_no_state() -> None:
    """A queue that was claimed and never recovered has nothing yet."""
    assert state_from({b"token": b"7"}) is None
    assert state_from({}) is None


GOOD = as_stored(written(State(1, 2, {"p": Entry(Window(3, 1), 4.0)})))


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
        ({b"believed": b"{}"}, "believed"),
        ({b"believed": None}, "damaged.*believed"),
        ({b"clean": None}, "damaged"),
        ({b"unknown_uncertain_until_s": b"soon"}, "damaged"),
        ({b"publisher:p": b""}, "damaged"),
        ({b"publisher:p": b"1 2 3"}, "damaged"),
        ({b"publisher:p": b"0 0 0 0 0"}, "damaged"),
        ({b"publisher:p": b"3 4 0 0 0.0"}, "damaged"),
        ({b"publisher:p": b"3 1 -1 0 0.0"}, "damaged"),
        ({b"publisher:p": b"9223372036854775808 1 0 0 0.0"}, "damaged"),
        ({b"publisher:p": b"3 1 " + b"f" * (WINDOW_SIZE_MAX // 4) + b"f 0 0.0"}, "damaged"),
        ({b"publisher:p": b"\xff"}, "damaged"),
        ({b"message_ids_uncertain_until_s": b"soon"}, "damaged"),
        ({b"forwarded:4": b""}, "damaged"),
        ({b"forwarded:4": b"1.5"}, "damaged"),
        ({b"forwarded:4": b"1\n"}, "damaged"),
        ({b"forwarded:4": b"1\n\x7f"}, "damaged"),
        ({b"forwarded:4": b"1\n\x7f\xff"}, "damaged"),
        ({b"forwarded:4": b"1\np"}, "damaged"),
        ({b"forwarded:": b"1\n\x7fa"}, "damaged"),
        ({b"forwarded:-1": b"1\n\x7fa"}, "integers from 0"),
        ({b"bodies:1:a": b"short"}, "damaged"),
        ({b"bodies:x:a": bytes(256)}, "damaged"),
        ({b"bodies:1": bytes(256)}, "damaged"),
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
