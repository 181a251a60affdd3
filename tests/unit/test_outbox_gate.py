"""The gate of the outbox: nothing is sent further above the oldest row than a window keeps."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dedup.outbox.gate import Gate


@given(seed=st.integers(0, 2**32), span=st.integers(1, 12), bytes_max=st.integers(1, 40))
def test_what_is_sent_is_near_the_oldest_row(seed: int, span: int, bytes_max: int) -> None:
    """However rows come and go, in numbers with gaps: in order, within the span, within the bytes, and nothing waits for ever."""
    chance = random.Random(seed)
    gate, newest = Gate(span, bytes_max), 0
    waiting: list[tuple[int, int]] = []
    sent: dict[int, int] = {}
    rows: set[int] = set()
    for _ in range(120):
        if chance.random() < 0.5:
            newest += chance.choice([1, 1, 1, 2, 50])
            gate.enter(newest)
            rows.add(newest)
            waiting.append((newest, chance.randint(1, 30)))
        while waiting and gate.lets(*waiting[0]):
            sequence, size = waiting.pop(0)
            assert sequence - min(rows) <= span
            assert not sent or sum(sent.values()) + size <= bytes_max
            gate.out(sequence, size)
            sent[sequence] = size
        assert sent or not waiting, "the oldest row itself may always be sent"
        if sent and chance.random() < 0.6:
            gone = chance.choice(sorted(sent))
            gate.leave(gone)
            rows.discard(gone)
            del sent[gone]
        assert (len(gate), gate.oldest) == (len(rows), min(rows, default=None))


def test_a_new_range_waits_for_the_old_one() -> None:
    """A row of an older range holds back everything of the newer one until it is deleted."""
    gate = Gate(4096, 1000)
    gate.enter(7)
    gate.enter((1 << 32) + 1)
    assert gate.lets(7, 1)
    gate.out(7, 1)
    assert not gate.lets((1 << 32) + 1, 1)
    gate.leave(7)
    assert gate.lets((1 << 32) + 1, 1)


def test_one_large_message_may_always_go() -> None:
    """A body above the limit waits for the others, not for ever; what is not known means nothing."""
    gate = Gate(10, 5)
    gate.enter(1)
    gate.enter(2)
    assert gate.lets(1, 100)
    gate.out(1, 100)
    assert not gate.lets(2, 1)
    gate.leave(99)
    gate.leave(1)
    assert gate.lets(2, 100)
