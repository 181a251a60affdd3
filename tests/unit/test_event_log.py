"""What the shim tells the audit comes back row by row, and whatever else lies in the queue is refused."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.event_log import COLUMNS, RECOVERED, decode_record, encode_record
from dedup.core.identity import SEQUENCE_MAX
from dedup.core.message_ids import is_message_key, message_id, message_key
from dedup.core.records import NUMBER_MAX, Position
from dedup.core.returns import reentry
from dedup.core.steps import Arrival, Outgoing, Record
from dedup.core.window import Verdict
from dedup.errors import RecordFormatError

NAMES = [column.name for column in COLUMNS]
SEQUENCES = st.integers(1, SEQUENCE_MAX)
PUBLISHERS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
KEYS = st.binary(min_size=1, max_size=100).map(message_key)


@st.composite
def outgoing(draw: Any) -> Outgoing:
    """Draw one judged arrival."""
    arrival = Arrival(
        tag=1,
        redelivered=draw(st.booleans()),
        publisher=draw(st.none() | PUBLISHERS | KEYS),
        sequence=draw(st.none() | SEQUENCES),
        attempt=draw(st.integers(1, SEQUENCE_MAX)),
        first_sent_ms=draw(st.just(0) | st.integers(1, SEQUENCE_MAX)),
        size=draw(st.integers(0, 2**40)),
    )
    depth = draw(st.none() | st.integers(-SEQUENCE_MAX, SEQUENCE_MAX))
    reason = draw(st.just("") | st.text(max_size=10))
    return Outgoing(arrival, draw(st.sampled_from(Verdict)), reason, draw(st.booleans()), depth=depth)


RECORDS = st.builds(
    Record,
    token=st.integers(1, 2**45),
    batch=st.integers(1, 2**45),
    offset=st.integers(1, 2**45),
    before=st.builds(Position, st.integers(0, 2**45), st.integers(0, 2**45)),
    at_s=st.floats(0, 4e9),
    recovered=st.lists(st.tuples(PUBLISHERS | KEYS, SEQUENCES), max_size=3),
    rows=st.lists(outgoing(), max_size=6),
)


def named(publisher: str | None, sequence: int | None) -> dict[str, Any]:
    """Say what a row tells of who sent it: a message id is not a publisher."""
    if publisher is None or not is_message_key(publisher):
        return {"publisher": publisher, "sequence": sequence, "message_id": None}
    return {"publisher": None, "sequence": None, "message_id": message_id(publisher)}


def expected(queue: str, record: Record) -> Iterator[dict[str, Any]]:
    """Say by hand which rows a record stands for."""
    common = {
        "queue": queue,
        "token": record.token,
        "batch": record.batch,
        "arrived_at": int(record.at_s * 1e6),
        "before_token": record.before.token,
        "before_offset": record.before.offset,
    }
    offset = record.offset
    for publisher, sequence in record.recovered:
        row = {**named(publisher, sequence), "attempt": 1, "first_sent_at": None}
        row |= {"redelivered": False, "verdict": RECOVERED, "reason": "", "depth": None}
        yield common | row | {"offset": offset, "marked": False, "forwarded": True, "bytes": 0}
        offset += 1
    for out in record.rows:
        arrival = out.arrival
        sent_ms = arrival.first_sent_ms
        yield common | {
            "offset": offset,
            **named(arrival.publisher, arrival.sequence),
            "attempt": min(arrival.attempt, 2**31 - 1),
            "first_sent_at": sent_ms * 1000 if 0 < sent_ms < 253_370_764_800_000 else None,
            "redelivered": arrival.redelivered,
            "verdict": out.verdict.value,
            "reason": out.reason,
            "depth": out.depth,
            "marked": out.marked,
            "forwarded": out.verdict is not Verdict.DUPLICATE and not out.reason,
            "bytes": arrival.size,
        }
        offset += 1


@given(st.text(max_size=30), RECORDS)
def test_every_row_comes_back(queue: str, record: Record) -> None:
    """All columns of the log, each with the value that the arrival had."""
    columns = decode_record(encode_record(queue, record))
    assert sorted(columns) == sorted(NAMES)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert rows == list(expected(queue, record))


def test_a_message_id_is_told_as_such() -> None:
    """Not as a publisher: ids are forgotten after a time, and the audit convicts nobody of what comes again then."""
    arrivals = [Arrival(n, redelivered=False, publisher=message_key(b"event-1"), sequence=1) for n in (1, 2)]
    rows = [Outgoing(arrivals[0], Verdict.NEW), Outgoing(arrivals[1], Verdict.DUPLICATE)]
    columns = decode_record(encode_record("q", Record(1, 1, 1, Position(0, 0), 1.0, (), rows)))
    assert columns["message_id"] == ["event-1", "event-1"]
    assert columns["publisher"] == columns["sequence"] == [None, None]
    assert columns["verdict"] == ["new", "duplicate"]


def test_re_entries_of_a_death_are_told_as_returning_dropped_or_not() -> None:
    """Not as a publisher's duplicates: who dropped one has not dropped a message, and one that passed is no second copy."""
    arrival = Arrival(
        1, redelivered=False, publisher="p", sequence=7, returning=True, reentry=reentry("p", 7, 0)
    )
    rows = [
        Outgoing(arrival, Verdict.RETURNING),
        Outgoing(arrival, Verdict.DUPLICATE),
        Outgoing(arrival, Verdict.DUPLICATE, "duplicate"),
    ]
    record = Record(1, 1, 1, Position(0, 0), 1.0, [(reentry("p", 8, 0).key, 1)], rows)
    columns = decode_record(encode_record("q", record))
    assert columns["verdict"] == [RECOVERED, *["returning"] * 3]
    assert columns["publisher"] == [None, *["p"] * 3]
    assert columns["sequence"] == [None, 7, 7, 7]
    assert columns["forwarded"] == [True, True, False, False]
    assert columns["reason"] == ["", "", "", "duplicate"]


def test_the_codes_of_verdicts_are_for_good() -> None:
    """A verdict that is added comes behind: records that wait in the queue are read by the next version."""
    names = ["new", "duplicate", "too-old", "untracked", "malformed", "unadmitted", "returning", "recovered"]
    for code, name in enumerate(names):
        assert decode_record(packed(fields() | {"flags": [code]}))["verdict"] == [name]


def test_a_usual_batch_is_small() -> None:
    """Five hundred messages that came in order are told in a few hundred bytes."""
    arrivals = [Arrival(n, redelivered=False, publisher="shop", sequence=n + 1, size=200) for n in range(500)]
    rows = [Outgoing(arrival, Verdict.NEW, depth=-1) for arrival in arrivals]
    record = Record(1, 1, 1, Position(0, 0), 1.8e9, (), rows)
    assert len(encode_record("orders", record)) < 2_000


def fields() -> dict[str, Any]:
    """Return the fields of a small record."""
    rows = [Outgoing(Arrival(1, redelivered=False, publisher="a", sequence=1, attempt=2), Verdict.NEW)]
    return dict(
        json.loads(zlib.decompress(encode_record("q", Record(1, 1, 1, Position(0, 0), 1.0, (), rows))))
    )


def packed(value: Any) -> bytes:
    """Return *value* as a message."""
    return zlib.compress(json.dumps(value).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(body: bytes) -> None:
    """Nothing but a record is taken for one."""
    with pytest.raises(RecordFormatError):
        decode_record(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 2),
        ("token", -1),
        ("token", "1"),
        ("batch", NUMBER_MAX + 1),
        ("offset", None),
        ("before", [1]),
        ("at_us", 1e300),
        ("publisher", [5]),
        ("publisher", [-1]),
        ("publisher", []),
        ("publishers", ["\x00"]),
        ("sequence", [0]),
        ("sequence", [1, 2]),
        ("depth", ["far"]),
        ("bytes", [-1]),
        ("flags", [0xF]),
        ("flags", [None]),
        ("more", [[7, 1, 0, ""]]),
        ("more", [[0, 1]]),
    ],
)
def test_a_forged_field_is_refused(name: str, value: Any) -> None:
    """Each field is checked, with the same error for each."""
    assert decode_record(packed(fields()))
    with pytest.raises(RecordFormatError):
        decode_record(packed(fields() | {name: value}))


def test_what_is_packed_is_not_unpacked_without_bound() -> None:
    """A message of a few kilobytes that would be gigabytes is refused, not unpacked."""
    bomb = zlib.compress(b" " * (1 << 27), 9)
    with pytest.raises(RecordFormatError):
        decode_record(bomb)
