"""Message ids: which are the same, how long they are remembered, and that they keep out of the way of publishers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dedup.amqp091.identifying import key_of
from dedup.amqp091.properties import fresh, scan
from dedup.core.identity import PUBLISHER_ID_BYTES_MAX, validate_publisher_id
from dedup.core.message_ids import (
    KEY_PREFIX,
    PLAIN_BYTES_MAX,
    MessageIds,
    Together,
    is_message_key,
    message_id,
    message_key,
    validate_name,
)
from dedup.core.publishers import Changes, Entry, Publishers, forwarded
from dedup.core.window import Verdict, Window
from dedup.errors import InvalidIdentityError

NEW, DUPLICATE, UNADMITTED = Verdict.NEW, Verdict.DUPLICATE, Verdict.UNADMITTED
A, B, C, D = (message_key(name.encode()) for name in "abcd")


# -- which ids are the same -----------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=255), st.sampled_from([b"", b"l", b"d"])), max_size=8)
)
def test_two_ids_share_a_key_only_if_they_are_the_same(ids: list[tuple[bytes, bytes]]) -> None:
    """Bytes and kind both count, so nothing is dropped for the sake of another message."""
    keys = {(text, kind): message_key(text, kind=kind) for text, kind in ids}
    assert len({*keys.values()}) == len(keys)


@given(st.binary(min_size=1, max_size=1_000), st.sampled_from([b"", b"F"]))
def test_a_key_is_bounded_and_no_publisher_id(text: bytes, kind: bytes) -> None:
    """Whatever an id is, its key can be stored, and nobody can publish under it."""
    key = message_key(text, kind=kind)
    assert is_message_key(key)
    assert len(key.encode()) <= PLAIN_BYTES_MAX + 1
    assert validate_name(key) == key
    with pytest.raises(InvalidIdentityError):
        validate_publisher_id(key)
    assert scan(fresh([("dedup-sequence", 1)], app_id=key)).fault == "publisher-control"
    assert scan(fresh([("dedup-sequence", 1), ("dedup-publisher", key)])).fault == "publisher-control"


def test_a_key_shows_its_id() -> None:
    """Plain text as it is, anything else by its digest."""
    assert message_id(message_key("order-ä".encode())) == "order-ä"
    assert message_id(message_key(b"x" * 65)).startswith("sha-256:")
    # An id that looks like a key is not the key it looks like.
    assert message_id(message_key(A.encode())).startswith("sha-256:")
    assert message_key(message_key(b"\xff").encode()) != message_key(b"\xff")


@pytest.mark.parametrize(
    "name",
    ["", KEY_PREFIX, 2 * KEY_PREFIX, 3 * KEY_PREFIX + "a", KEY_PREFIX + "a\x00", KEY_PREFIX + "a" * 65, KEY_PREFIX + "\ud800", 5, None],
)  # fmt: skip
def test_what_no_publisher_and_no_key_is_called_is_refused(name: object) -> None:
    """Markers are written by whoever may publish to the ledger."""
    with pytest.raises(InvalidIdentityError):
        validate_name(name)


def test_publisher_ids_are_names_too() -> None:
    """The map holds both."""
    assert validate_name("x" * PUBLISHER_ID_BYTES_MAX) == "x" * PUBLISHER_ID_BYTES_MAX


# -- where an id is read --------------------------------------------------------------------------


def with_header(value: bytes, name: bytes = b"id") -> bytes:
    """Return properties with one header, its value encoded."""
    table = bytes((len(name),)) + name + value
    return struct.pack(">HI", 1 << 13, len(table)) + table


def encoded(**properties: Any) -> bytes:
    """Return pika's encoding of these properties."""
    return b"".join(pika.BasicProperties(**properties).encode())


def test_the_property_message_id_is_the_id() -> None:
    """In the midst of all others; headers do not matter."""
    raw = encoded(
        content_type="text/plain", headers={"id": "b"}, correlation_id="c", message_id="a", app_id="shop"
    )
    assert key_of(raw, "") == A
    assert key_of(raw, "id") == B
    assert key_of(raw, "other") is None


def test_a_message_without_an_id_has_no_key() -> None:
    """An empty one, which libraries send for none, is none: all of them would be copies of each other."""
    assert key_of(encoded(), "") is None
    assert key_of(encoded(message_id=""), "") is None
    assert key_of(encoded(headers={}), "id") is None
    assert key_of(encoded(headers={"id": ""}), "id") is None
    assert key_of(encoded(headers={"id": b""}), "id") is None
    assert key_of(encoded(headers={"id": None}), "id") is None
    assert key_of(encoded(message_id="a"), "id") is None


def test_texts_of_either_type_are_the_same_id() -> None:
    """One library sends characters, the other bytes."""
    assert key_of(with_header(b"S\x00\x00\x00\x01a"), "id") == A
    assert key_of(with_header(b"x\x00\x00\x00\x01a"), "id") == A


def test_numbers_of_any_size_are_the_same_id() -> None:
    """But not that of the text which spells them, nor of a float."""
    spelled = [b"b\x07", b"s\x00\x07", b"I\x00\x00\x00\x07", b"l" + struct.pack(">q", 7)]
    keys = {key_of(with_header(value), "id") for value in spelled}
    assert len(keys) == 1
    assert key_of(encoded(headers={"id": "7"}), "id") not in keys
    assert key_of(with_header(b"d" + struct.pack(">d", 7.0)), "id") not in keys
    assert key_of(encoded(headers={"id": -7}), "id") not in keys


@pytest.mark.parametrize(
    "value",
    [
        b"t\x01",
        b"d" + struct.pack(">d", float("nan")),
        b"D\x02\x00\x00\x00\x07",
        b"T" + struct.pack(">Q", 7),
        b"F\x00\x00\x00\x00",
        b"F\x00\x00\x00\x06\x01ab\x00b\x00",
        b"A\x00\x00\x00\x02b\x07",
        b"S\x00\x00\x00\x02\xff\xfe",
        b"S\x00\x00\x00\x03a\x00b",
        b"S\x00\x01\x00\x00" + b"a" * 65536,
    ],
)
def test_a_value_of_any_type_is_an_id(value: bytes) -> None:
    """The same bytes are the same id, and others another one."""
    key = key_of(with_header(value), "id")
    assert key is not None
    assert validate_name(key) == key == key_of(with_header(value), "id")
    assert key_of(with_header(value[:-1] + bytes((value[-1] ^ 1,))), "id") != key or value[:1] in b"F"


def test_the_first_of_two_headers_counts() -> None:
    """As it does in RabbitMQ."""
    table = b"\x02idb\x01\x02idb\x02"
    raw = struct.pack(">HI", 1 << 13, len(table)) + table
    assert key_of(raw, "id") == key_of(with_header(b"b\x01"), "id")


@given(st.binary(max_size=60), st.sampled_from(["", "id", "x" * 255]))
def test_reading_an_id_is_total(raw: bytes, header: str) -> None:
    """Any bytes have one or none."""
    key = key_of(raw, header)
    assert key is None or validate_name(key) == key


# -- how long they are remembered -----------------------------------------------------------------


def judged(publishers: Publishers, name: str, now_s: float, **more: bool) -> tuple[Verdict, bool]:
    """Judge one message of *name* with sequence 1."""
    return publishers.judge(name, 1, now_s, **more)


def test_an_id_is_remembered_from_when_it_was_forwarded() -> None:
    """A copy makes it no younger; after its time it is new."""
    publishers = Publishers(message_id_keep_s=60.0)
    assert judged(publishers, A, 0.0) == (NEW, False)
    assert publishers.settle(0.0, 1) == Changes({A: forwarded(0.0, 1)})
    assert judged(publishers, A, 59.0) == (DUPLICATE, False)
    assert publishers.settle(59.0, 2) == Changes({})
    assert judged(publishers, A, 60.0) == (NEW, False)
    assert publishers.settle(60.0, 3) == Changes({A: forwarded(60.0, 3)}, forgotten=(1,))
    assert judged(publishers, A, 119.0) == (DUPLICATE, False)


def test_within_a_batch_the_second_is_a_copy() -> None:
    """And when the batch is thrown away, none has been."""
    publishers = Publishers()
    assert [judged(publishers, A, 0.0)[0] for _ in range(2)] == [NEW, DUPLICATE]
    publishers.abandon()
    assert judged(publishers, A, 0.0) == (NEW, False)


def test_ids_past_their_time_leave_redis() -> None:
    """With the next batch, whoever that is of."""
    publishers = Publishers({A: forwarded(0.0, 1), B: forwarded(30.0, 2)}, message_id_keep_s=60.0)
    judged(publishers, "p", 61.0)
    assert publishers.settle(61.0, 3).forgotten == (1,)
    assert publishers.entries().keys() == {"p", B}


def test_the_oldest_goes_when_there_is_no_room_and_that_is_counted() -> None:
    """Nothing is refused, and what was forgotten before its time is new again."""
    publishers = Publishers(message_ids_max=2)
    for second, key in enumerate((A, B, C)):
        assert judged(publishers, key, float(second)) == (NEW, False)
        changes = publishers.settle(float(second), second)
    assert changes == Changes({C: forwarded(2.0, 2)}, forgotten=(0,))
    assert publishers.message_ids.forgotten_early == 1
    assert judged(publishers, A, 3.0) == (NEW, False)


def test_ids_of_one_batch_go_together() -> None:
    """Those of the newest stay although there is no room for them."""
    publishers = Publishers(message_ids_max=2)
    for key in (A, B, C):
        judged(publishers, key, 0.0)
    assert publishers.settle(0.0, 1) == Changes(dict.fromkeys((A, B, C), forwarded(0.0, 1)))
    judged(publishers, D, 1.0)
    assert publishers.settle(1.0, 2) == Changes({D: forwarded(1.0, 2)}, forgotten=(1,))
    assert publishers.message_ids.forgotten_early == 3


def test_ids_and_publishers_do_not_take_each_others_place() -> None:
    """Each has a limit of its own."""
    publishers = Publishers({"p": Entry(Window(1, 1), 0.0)}, publishers_max=1, idle_s=1e9, message_ids_max=1)
    assert judged(publishers, A, 1.0) == (NEW, False)
    assert publishers.settle(1.0, 1).forgotten == ()
    assert judged(publishers, B, 2.0) == (NEW, False)
    changes = publishers.settle(2.0, 2)
    assert (changes.forgotten, changes.evicted) == ((1,), ())
    assert publishers.judge("q", 1, 3.0) == (UNADMITTED, False)
    assert len(publishers) == 1
    assert publishers.entries().keys() == {"p", B}


def test_what_a_dead_relay_had_in_flight_is_known_after_any_time() -> None:
    """It may be in the target, or the id may be used for another message by now: it is forwarded marked."""
    publishers = Publishers({A: forwarded(0.0, 1), B: forwarded(0.0, 1)}, message_id_keep_s=60.0)
    assert judged(publishers, A, 1e6, redelivered=True) == (NEW, True)
    assert publishers.settle(1e6, 2).forgotten == (), "the broker may still deliver the other again"
    assert judged(publishers, B, 1e6, redelivered=True) == (NEW, True)
    assert judged(publishers, C, 1e6) == (NEW, False)


def test_after_a_loss_of_state_an_unknown_id_proves_nothing() -> None:
    """Until those that were lost would have been forgotten."""
    publishers = Publishers(
        {A: forwarded(0.0, 1)}, message_id_keep_s=60.0, message_ids_uncertain_until_s=50.0
    )
    assert judged(publishers, A, 49.0) == (DUPLICATE, False)
    assert judged(publishers, B, 49.0) == (NEW, True)
    assert judged(publishers, C, 50.0) == (NEW, False)


def test_a_limit_that_was_lowered_is_reached_step_by_step() -> None:
    """One batch forgets a bounded number, however many there are."""
    ids = MessageIds({message_key(b"%d" % n): Together(n // 10, 0.0) for n in range(5_000)}, count_max=1_000)
    sizes = []
    while len(ids) > 1_000:
        added, gone = ids.settle(0.0, 500)
        assert (added, len(gone)) == ([], 50)
        sizes.append(len(ids))
    assert sizes[-1] == 1_000
    assert min(ids.entries().values()).batch == 400


class MessageIdsMachine(RuleBasedStateMachine):
    """Judge, settle, abandon, wait and begin anew, against dictionaries with time and count."""

    @initialize(count_max=st.integers(1, 6), keep_s=st.sampled_from([1.0, 5.0, 1e9]))
    def start(self, count_max: int, keep_s: float) -> None:
        self.count_max, self.keep_s, self.now_s = count_max, keep_s, 0.0
        self.number = 0
        #: Key -> the batch it was forwarded with last.
        self.known: dict[str, int] = {}
        #: Batch -> when it was forwarded and with which keys; what Redis has of it.
        self.batches: dict[int, tuple[float, set[str]]] = {}
        self.redis: dict[int, dict[str, Entry]] = {}
        self.draft: list[str] = []
        self.returning = True
        self.early = 0
        self.begin_anew()

    @rule()
    def begin_anew(self) -> None:
        """The shim is killed: what Redis has is what is known, and no batch is under way."""
        entries = {key: entry for number in sorted(self.redis) for key, entry in self.redis[number].items()}
        assert {key: entry.batch for key, entry in entries.items()} == self.known
        self.batches = {
            number: (at_s, {key for key in keys if self.known[key] == number})
            for number, (at_s, keys) in self.batches.items()
            if number in self.known.values()
        }
        self.publishers = Publishers(entries, message_ids_max=self.count_max, message_id_keep_s=self.keep_s)
        self.draft, self.returning, self.early = [], True, 0

    def is_in_time(self, number: int) -> bool:
        return self.now_s - self.batches[number][0] < self.keep_s

    @rule(key=st.sampled_from([message_key(b"%d" % n) for n in range(10)]), redelivered=st.booleans())
    def judge(self, key: str, redelivered: bool) -> None:
        self.returning = self.returning and redelivered
        verdict, uncertain = self.publishers.judge(key, 1, self.now_s, redelivered=redelivered)
        if key in self.draft or (key in self.known and self.is_in_time(self.known[key])):
            assert (verdict, uncertain) == (DUPLICATE, False)
        else:
            assert (verdict, uncertain) == (NEW, key in self.known and redelivered)
            self.draft.append(key)

    @rule()
    def settle(self) -> None:
        self.number += 1
        changes = self.publishers.settle(self.now_s, self.number)
        if self.draft:
            self.batches[self.number] = (self.now_s, set(self.draft))
        self.known.update(dict.fromkeys(self.draft, self.number))
        self.draft = []
        assert set(changes.forgotten) == set(self.leaving())
        for number in changes.forgotten:
            self.redis.pop(number, None)
        if changes.entries:
            self.redis[self.number] = dict(changes.entries)
        assert self.number not in changes.forgotten

    def leaving(self) -> Iterator[int]:
        """Say which batches go now: the oldest, while they hold too many or are past their time."""
        for number in sorted(self.batches):
            crowded = len(self.known) > self.count_max and len(self.batches) > 1
            in_time = self.is_in_time(number)
            if not crowded and (in_time or self.returning):
                return
            gone = [key for key, batch in self.known.items() if batch == number]
            for key in gone:
                del self.known[key]
            del self.batches[number]
            self.early += in_time * len(gone)
            yield number

    @rule()
    def abandon(self) -> None:
        self.publishers.abandon()
        self.draft = []

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def what_is_known_is_known(self) -> None:
        assert {key: entry.batch for key, entry in self.publishers.entries().items()} == self.known
        assert len(self.publishers.message_ids) == len(self.known)
        assert len(self.known) <= self.count_max or len(self.batches) <= 1
        assert self.publishers.message_ids.forgotten_early == self.early
        assert len(self.publishers) == 0


MessageIdsMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestMessageIdsAgainstADictionary = MessageIdsMachine.TestCase
