"""The window, row by row, the known bugs of its kind, and any history against a plain set."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedup.core.identity import RANGE_SIZE, SEQUENCE_MAX, range_base
from dedup.core.window import UNCERTAIN, WINDOW_SIZE, Verdict, Window, judge

NEW, DUPLICATE, TOO_OLD = Verdict.NEW, Verdict.DUPLICATE, Verdict.TOO_OLD


def verdicts(*sequences: int, size: int = 4) -> list[Verdict]:
    """Return the verdict on each of *sequences*, judged one after the other."""
    window: Window | None = None
    found = []
    for sequence in sequences:
        verdict, window = judge(window, sequence, size)
        found.append(verdict)
    return found


def after(*sequences: int, size: int = 4) -> Window:
    """Return the window that has seen *sequences*."""
    window: Window | None = None
    for sequence in sequences:
        _, window = judge(window, sequence, size)
    assert window is not None
    return window


def test_the_first_sequence_is_new() -> None:
    """A publisher never seen may begin anywhere."""
    assert verdicts(1) == [NEW]
    assert verdicts(7 * RANGE_SIZE + 5) == [NEW]


def test_the_next_sequence_is_new() -> None:
    """A publisher that never skips costs two integers."""
    assert verdicts(1, 2, 3) == [NEW] * 3
    assert after(1, 2, 3) == Window(last=3, start=1)


def test_the_newest_sequence_again_is_a_duplicate() -> None:
    """An immediate replay is recognised (skywire #2612 marked the newest bit in the wrong place)."""
    assert verdicts(5, 5) == [NEW, DUPLICATE]
    assert verdicts(1, 2, 2, 1) == [NEW, NEW, DUPLICATE, DUPLICATE]


def test_what_was_jumped_over_is_new_once() -> None:
    """A nacked message that arrives after its successor is forwarded, and its retry is not."""
    assert verdicts(1, 3, 2, 2) == [NEW, NEW, NEW, DUPLICATE]
    assert after(1, 3) == Window(last=3, start=1, missing=0b1)
    assert after(1, 4, 2).missing == 0b01


def test_a_hole_at_the_start_of_a_range_is_new_once() -> None:
    """A range begins at 1: publishers whose first message comes second do not lose it."""
    assert verdicts(2, 1, 1) == [NEW, NEW, DUPLICATE]
    assert verdicts(RANGE_SIZE + 2, RANGE_SIZE + 1, RANGE_SIZE + 1) == [NEW, NEW, DUPLICATE]


def test_below_the_window_is_too_old_and_never_a_duplicate() -> None:
    """The window of 4 behind 10 ends at 7: about 6 nothing can be said (bits, not bytes: wireguard-lwip #4)."""
    assert verdicts(10, 7, 7, 6) == [NEW, NEW, DUPLICATE, TOO_OLD]


def test_the_window_is_as_long_as_it_says() -> None:
    """Every sequence of a window is told apart, the first and the last included (odp #1261 was off by one)."""
    for size in (1, 2, 31, 32, 33, 63, 64, 65, 70, WINDOW_SIZE):
        last = 10 * size
        inside = range(last - size + 1, last)
        assert verdicts(last, *inside, size=size) == [NEW] * size
        assert verdicts(last, *inside, *inside, size=size)[size:] == [DUPLICATE] * len(inside)
        assert verdicts(last, last - size, size=size) == [NEW, TOO_OLD]


def test_a_step_out_of_the_window_forgets_exactly_one() -> None:
    """Moving by one drops the oldest bit and keeps the others."""
    assert verdicts(1, 2, 3, 4, 5, 1, 2, 3, 4)[5:] == [TOO_OLD, DUPLICATE, DUPLICATE, DUPLICATE]
    assert verdicts(4, 5, 2, 3)[2:] == [NEW, NEW]
    assert verdicts(4, 5, 1) == [NEW, NEW, TOO_OLD]


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 63, 64, 65, WINDOW_SIZE])
def test_jumps_around_the_size(size: int) -> None:
    """A jump of one less, exactly and one more than the window leaves what lies between missing and the rest unknown."""
    for jump in (size - 1, size, size + 1):
        if jump < 1:
            continue
        history = verdicts(1, 1 + jump, 1, size=size)
        assert history == [NEW, NEW, DUPLICATE if jump < size else TOO_OLD]
        if jump > 1 and size > 1:
            assert verdicts(1, 1 + jump, jump, jump, size=size)[2:] == [NEW, DUPLICATE]


def test_a_huge_jump_loses_nothing() -> None:
    """One forged number moves the window, and what then comes below is quarantined and not dropped (CVE-2016-2181)."""
    assert verdicts(1, SEQUENCE_MAX, 2, SEQUENCE_MAX, size=WINDOW_SIZE) == [NEW, NEW, TOO_OLD, DUPLICATE]
    assert after(1, SEQUENCE_MAX, size=WINDOW_SIZE).missing.bit_length() == WINDOW_SIZE - 1


def test_an_older_range_is_unknown() -> None:
    """What an owner before used is neither new nor a duplicate: a zombie falls below the new range."""
    base = 3 * RANGE_SIZE
    assert verdicts(base + 1, base, base - 1, size=64) == [NEW, NEW, TOO_OLD]
    assert verdicts(base - 1, base + 1, base - 1, base - 2, size=64) == [NEW, NEW, DUPLICATE, NEW]


def test_doubles_would_confuse_these() -> None:
    """Sequences above 2^53 are told apart to the last bit."""
    big = 2**53
    assert verdicts(big, big + 1, big, big + 1, size=8) == [NEW, NEW, DUPLICATE, DUPLICATE]


def test_a_verdict_that_teaches_nothing_returns_the_same_window() -> None:
    """The caller sees by identity that there is nothing to write."""
    window = after(1, 2, 3, 9)
    for sequence in (9, 1):
        assert judge(window, sequence, 4)[1] is window


def test_uncertainty_stays_with_the_window() -> None:
    """Moving, jumping and filling holes keep what is not proven."""
    window = Window(last=5, start=1, uncertain_to=9)
    for sequence in (6, 8, 1000):
        assert judge(window, sequence, 4)[1].uncertain_to == 9
    hole = Window(last=5, start=1, missing=0b1, uncertain_to=9)
    assert judge(hole, 4, 4)[1] == Window(last=5, start=1, uncertain_to=9)


@pytest.mark.parametrize("sequence", [3, 7, 8, 500, SEQUENCE_MAX])
def test_uncertainty_without_an_end_stays_without_one(sequence: int) -> None:
    """Who judges decides where it ends: the window only keeps it, whatever jump is made."""
    assert judge(Window(7, 1, 0b1000, UNCERTAIN), sequence, 4)[1].uncertain_to == UNCERTAIN
    assert max(SEQUENCE_MAX, UNCERTAIN) == UNCERTAIN, "no sequence lies above it"


@pytest.mark.parametrize("sequence", [0, -1])
def test_what_is_no_sequence_is_the_callers_mistake(sequence: int) -> None:
    """Zero never gets this far: it is malformed."""
    with pytest.raises(AssertionError):
        judge(None, sequence, 4)


INTERESTING = sorted(
    {
        value
        for edge in (1, 32, 64, 70, WINDOW_SIZE, RANGE_SIZE, 2 * RANGE_SIZE, 2**53, SEQUENCE_MAX)
        for value in range(edge - 3, edge + 4)
        if 1 <= value <= SEQUENCE_MAX
    }
)
SIZES = st.one_of(st.integers(1, 70), st.just(WINDOW_SIZE))
SEQUENCES = st.one_of(
    st.integers(1, 100),
    st.sampled_from(INTERESTING),
    st.integers(RANGE_SIZE - 80, RANGE_SIZE + 80),
    st.integers(1, SEQUENCE_MAX),
)


@given(size=SIZES, history=st.lists(SEQUENCES, max_size=120))
@example(size=8192, history=[1, 8191, 8192, 8193, 1, 2, 8194, 2])
@example(size=33, history=[RANGE_SIZE - 1, RANGE_SIZE + 31, RANGE_SIZE - 1, RANGE_SIZE])
@example(size=1, history=[1, 1, 2, 1, 2, SEQUENCE_MAX, SEQUENCE_MAX])
def test_the_window_never_lies(size: int, history: list[int]) -> None:
    """NEW was never seen, DUPLICATE was, and TOO_OLD lies outside the window or the range."""
    window: Window | None = None
    seen: set[int] = set()
    for sequence in history:
        before = window
        verdict, window = judge(before, sequence, size)
        if verdict is NEW:
            assert sequence not in seen
            seen.add(sequence)
        elif verdict is DUPLICATE:
            assert sequence in seen
        else:
            assert before is not None
            assert sequence <= before.last - size or range_base(sequence) < range_base(before.last)
        assert window.last == max(seen)
        assert 1 <= window.start <= window.last
        assert 0 <= window.missing < 1 << (size - 1)


@given(
    size=st.integers(1, 70),
    base=st.sampled_from([0, RANGE_SIZE, 5 * RANGE_SIZE]),
    order=st.permutations(range(1, 41)),
    retries=st.lists(st.integers(1, 40), max_size=40),
)
def test_an_honest_publisher_is_never_misjudged(
    size: int, base: int, order: list[int], retries: list[int]
) -> None:
    """Within half a window of the newest, first copies are NEW and retries are duplicates, whatever the order."""
    window: Window | None = None
    seen: set[int] = set()
    for number in [n for pair in zip(order, [*retries, *order], strict=False) for n in pair]:
        sequence = base + number
        newest = max(seen, default=sequence)
        if sequence <= newest - (size + 1) // 2 and sequence != newest:
            continue
        verdict, window = judge(window, sequence, size)
        assert verdict is (DUPLICATE if sequence in seen else NEW)
        seen.add(sequence)
