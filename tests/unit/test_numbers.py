"""The numbers of one publisher: its own or its caller's, never both, never twice by accident."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.identity import SEQUENCE_MAX
from dedup.core.numbers import Numbers
from dedup.errors import InvalidMessageError


def test_counts_from_its_base() -> None:
    """A base that comes later counts from there; a clock that went back does not lead back into an outbox."""
    numbers = Numbers(4)
    numbers.begin(100)
    assert [numbers.take(None), numbers.take(None)] == [101, 102]
    numbers = Numbers(4, newest=500, fills=False)
    numbers.begin(100)
    assert numbers.take(None) == 501


def test_numbers_end() -> None:
    """The last one is given out; the next is refused, again and again, and nothing changes."""
    numbers = Numbers(4)
    numbers.begin(SEQUENCE_MAX - 1)
    assert numbers.take(None) == SEQUENCE_MAX
    for _ in range(2):
        with pytest.raises(InvalidMessageError, match="under another publisher id"):
            numbers.take(None)
    assert numbers.newest == SEQUENCE_MAX


def test_the_callers_numbers_ascend_or_fill_a_gap() -> None:
    """A fill is half a window below the highest at the most, and leaves the highest as it is."""
    numbers = Numbers(4)
    numbers.begin(1_000)
    assert [numbers.take(n) for n in (1, 10, 6, 9, 11, 7)] == [1, 10, 6, 9, 11, 7]
    assert numbers.newest == 11
    with pytest.raises(
        InvalidMessageError, match="sequence 6 is 5 below 11, the highest so far; a gap can be filled 4 below"
    ):
        numbers.take(6)
    with pytest.raises(InvalidMessageError, match="sequence 9 is still on its way"):
        numbers.take(9, pending={9})
    assert numbers.take(12, pending={9}) == 12


@pytest.mark.parametrize(
    ("first", "second", "match"), [(None, 5, "leave sequence out"), (5, None, "pass sequence=")]
)
def test_whoever_has_begun_one_way_goes_on_with_it(first: int | None, second: int | None, match: str) -> None:
    """Both would meet in one window; the refusal changes nothing."""
    numbers = Numbers(4)
    numbers.take(first)
    with pytest.raises(InvalidMessageError, match=match):
        numbers.take(second)
    numbers.take(first if first is None else first + 1)


def test_an_outbox_goes_in_order() -> None:
    """Neither below what it had, nor below what was given since."""
    numbers = Numbers(4, newest=10, fills=False)
    for low in (3, 10):
        with pytest.raises(InvalidMessageError, match="not above 10, the highest that the outbox has had"):
            numbers.take(low)
    assert numbers.take(11) == 11


@pytest.mark.parametrize("wrong", [0, -1, SEQUENCE_MAX + 1, 1.5, "7", True])
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    """And nothing was used."""
    numbers = Numbers(4)
    with pytest.raises(InvalidMessageError, match="sequence"):
        numbers.take(wrong)
    assert numbers.take(None) == 1


@given(st.lists(st.none() | st.integers(1, 40)), st.integers(0, 20), st.booleans())
def test_no_number_is_further_below_the_highest_than_a_window_tells(
    wanted: list[int | None], newest: int, fills: bool
) -> None:
    """And what is counted here is never given twice."""
    numbers = Numbers(4, newest=newest, fills=fills)
    taken: list[int] = []
    for number in wanted:
        highest = max([newest, *taken])
        try:
            taken.append(numbers.take(number))
        except InvalidMessageError:
            continue
        assert highest - taken[-1] <= (4 if fills else -1)
        assert number is not None or taken[-1] == highest + 1
        assert numbers.newest == max(highest, taken[-1])
