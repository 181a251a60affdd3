"""The rule of ranges: above everything before, also when the registry forgets, twice in one second, at any speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.identity import RANGE_SIZE
from dedup.core.ranges import LEAD_S, Handed, base_of, next_range, range_of

NOW = 90_000_000


def test_the_clock_decides_after_a_pause() -> None:
    """A publisher that comes back later has the range of its second."""
    assert next_range(NOW, 0, Handed(NOW - 100, NOW - 100)) == NOW


def test_faster_than_the_clock_means_ahead_of_it() -> None:
    """Each registration in one second takes the next range, up to the lead; then it waits."""
    newest = Handed(NOW, NOW)
    taken = []
    while (following := next_range(NOW, 0, newest)) is not None:
        taken.append(following)
        newest = Handed(following, NOW)
    assert taken == list(range(NOW + 1, NOW + LEAD_S + 1))
    assert next_range(NOW + 1, 0, newest) == NOW + LEAD_S + 1


def test_what_the_publisher_remembers_counts() -> None:
    """Its own last range is as good as the registry's memory; one beyond any clock is waited for, in vain."""
    assert next_range(NOW, 0, Handed(), last=NOW + 7) == NOW + 8
    assert next_range(NOW, 0, Handed(), last=NOW + LEAD_S) is None


def test_after_a_loss_the_first_waits_for_the_next_second() -> None:
    """Before it somebody may have had the whole lead; so the new range is beyond that."""
    assert next_range(NOW, NOW, Handed()) is None
    assert next_range(NOW + 1, NOW, Handed()) == NOW + LEAD_S + 1
    assert next_range(NOW + 1, NOW, Handed(NOW - 5, NOW - 5)) == NOW + LEAD_S + 1


@given(st.integers(0, 2**31 - 1))
def test_a_base_is_a_multiple_of_the_size(number: int) -> None:
    """And a range holds everything up to the next one."""
    assert base_of(number) % RANGE_SIZE == 0
    assert {range_of(base_of(number)), range_of(base_of(number) + RANGE_SIZE - 1)} == {number}


#: Seconds that pass, then: register, or lose everything, or roll back to what was known a few steps ago.
_STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2, 70]), st.sampled_from(["register"] * 6 + ["empty", "roll back"])
    )
)


def repeats(rule: Callable[[int, int, Handed], int | None], steps: list[tuple[int, str]]) -> bool:
    """Say whether *rule* hands out a range that is not above every one before it."""
    now, since, highest, newest = NOW, NOW - 1000, 0, Handed()
    memory = [newest]
    for passed, act in steps:
        now += passed
        if act == "empty":
            newest, since = Handed(), now
        elif act == "roll back":
            newest, since = memory[max(0, len(memory) - 3)], now
        elif (following := rule(now, since, newest)) is not None:
            assert following <= now + LEAD_S
            if following <= highest:
                return True
            highest, newest = following, Handed(following, now)
            memory.append(newest)
    return False


@given(_STEPS)
def test_nothing_is_handed_out_twice_whatever_is_forgotten(steps: list[tuple[int, str]]) -> None:
    """Every range is above every one before it, with any losses between."""
    assert not repeats(next_range, steps)


@pytest.mark.parametrize("loss", ["empty", "roll back"])
def test_memory_and_clock_alone_would_repeat_ranges(loss: str) -> None:
    """The control: the plain maximum of the two hands a range out twice when the loss falls into one second."""
    steps = [(0, "register"), (0, "register"), (0, loss), (0, "register")]
    assert repeats(lambda now, _, newest: max(newest.range + 1, now), steps)
