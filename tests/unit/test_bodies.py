"""Digests of bodies: a copy is never called a conflict, and a conflict only when another body is known."""

from __future__ import annotations

from hashlib import blake2b

from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dedup.core.bodies import CHUNK_BYTES, CHUNK_SIZE, DIGEST_BYTES, Bodies, without

ONE, TWO = b"\x00\x00\x00\x01", b"\x00\x00\x00\x02"


def digest(body: int) -> bytes:
    """Return the digest of a body, as drivers make it."""
    return blake2b(b"%d" % body, digest_size=DIGEST_BYTES).digest()


def known(size: int = 8, **stored: bytes) -> Bodies:
    """Return what is known after one batch of sequence 5 of each publisher."""
    bodies = Bodies({}, size)
    for publisher, body in stored.items():
        bodies.note(publisher, 5, body)
    bodies.settle(dict.fromkeys(stored, (5,)), ())
    return bodies


def test_another_body_differs_and_the_same_does_not() -> None:
    """For the same publisher and sequence."""
    bodies = known(a=ONE)
    assert bodies.differs("a", 5, TWO)
    assert not bodies.differs("a", 5, ONE)
    assert not bodies.differs("a", 6, TWO)
    assert not bodies.differs("b", 5, TWO)


def test_what_nobody_knows_is_no_conflict() -> None:
    """Neither a body without a digest nor a sequence without one."""
    bodies = known(a=ONE)
    assert not bodies.differs("a", 5, b"")
    assert not bodies.differs("a", 5, bytes(4))
    assert not known(a=bytes(4)).differs("a", 5, ONE)


def test_a_batch_knows_its_own() -> None:
    """And forgets them when it is thrown away, or when that part of it was refused."""
    bodies = Bodies({}, 8)
    bodies.note("a", 1, ONE)
    assert bodies.differs("a", 1, TWO)
    bodies.abandon()
    assert not bodies.differs("a", 1, TWO)
    bodies.note("a", 1, ONE)
    bodies.note("a", 2, ONE)
    bodies.settle({"a": (2,)}, ())
    assert not bodies.differs("a", 1, TWO)
    assert bodies.differs("a", 2, TWO)


def test_what_changed_is_told_in_chunks() -> None:
    """Redis is told of the chunks of one batch, whatever else is known."""
    bodies = known(a=ONE, b=ONE)
    bodies.note("a", 6, TWO)
    changed = bodies.settle({"a": (6,)}, ())
    assert changed == {("a", 0): bytes(5 * 4) + ONE + TWO + bytes(CHUNK_BYTES - 7 * 4)}
    assert bodies.chunks().keys() == {("a", 0), ("b", 0)}


def test_an_evicted_publisher_takes_its_digests_along() -> None:
    """One that comes back begins anew."""
    bodies = known(a=ONE, b=ONE)
    assert bodies.settle({}, ("a", "unknown")) == {("a", 0): b""}
    assert not bodies.differs("a", 5, TWO)
    assert bodies.differs("b", 5, TWO)


def test_what_is_replayed_has_no_digest() -> None:
    """One that is there is of an earlier message with that sequence."""
    chunks = known(a=ONE, b=ONE).chunks()
    bodies = Bodies(without(chunks, [{"a": (5, 70), "c": (1,)}]), 8)
    assert not bodies.differs("a", 5, TWO)
    assert bodies.differs("b", 5, TWO)


@define
class _Sent:
    """The plain model: which body was forwarded last with a sequence, and the highest."""

    bodies: dict[int, int]
    last: int = 0


class BodiesMachine(RuleBasedStateMachine):
    """Note, settle, abandon, evict and begin anew, against a dictionary; Redis is written as the store does."""

    @initialize(size=st.sampled_from([1, CHUNK_SIZE, 200]))
    def start(self, size: int) -> None:
        self.size = size
        self.redis: dict[tuple[str, int], bytes] = {}
        self.settled = {name: _Sent({}) for name in "ab"}
        self.begin_anew()

    @rule()
    def begin_anew(self) -> None:
        self.bodies = Bodies(self.redis, self.size)
        self.draft: dict[tuple[str, int], int] = {}

    @rule(name=st.sampled_from("ab"), step=st.integers(-70, 300), body=st.integers(1, 3))
    def forward(self, name: str, step: int, body: int) -> None:
        last = max([self.settled[name].last, *(n for publisher, n in self.draft if publisher == name)])
        # Whatever lies further below is too old, and not forwarded.
        sequence = max(1, last + max(step, 1 - self.size))
        self.bodies.note(name, sequence, digest(body))
        self.draft[name, sequence] = body

    @rule(evicted=st.sampled_from(["", "", "a"]))
    def settle(self, evicted: str) -> None:
        stored: dict[str, list[int]] = {}
        for name, sequence in self.draft:
            if name != evicted:
                stored.setdefault(name, []).append(sequence)
        changed = self.bodies.settle(stored, [evicted] if evicted else [])
        for place, digests in changed.items():
            self.redis[place] = digests
            if not digests:
                del self.redis[place]
        if evicted:
            self.settled[evicted] = _Sent({})
        for (name, sequence), body in self.draft.items():
            if name != evicted:
                sent = self.settled[name]
                sent.bodies[sequence], sent.last = body, max(sent.last, sequence)
        self.draft = {}

    @rule()
    def abandon(self) -> None:
        self.bodies.abandon()
        self.draft = {}

    @rule(name=st.sampled_from("ab"), step=st.integers(0, 70), body=st.integers(1, 3))
    def compare(self, name: str, step: int, body: int) -> None:
        sent = self.settled[name]
        sequence = max(1, sent.last - step)
        if step < self.size:
            before = self.draft.get((name, sequence), sent.bodies.get(sequence))
            assert self.bodies.differs(name, sequence, digest(body)) == (before not in (None, body))

    @invariant()
    def redis_has_what_is_known_and_that_is_bounded(self) -> None:
        assert self.bodies.chunks() == self.redis
        for name in "ab":
            numbers = [number for publisher, number in self.redis if publisher == name]
            assert max(numbers, default=0) - min(numbers, default=0) <= self.size // CHUNK_SIZE + 1


BodiesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBodiesAgainstADictionary = BodiesMachine.TestCase
