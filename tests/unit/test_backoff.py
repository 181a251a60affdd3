"""Delays between tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dedup.core.backoff import DELAY_S_FIRST, DELAY_S_MAX, delay_s


def test_the_delay_doubles_until_the_cap() -> None:
    """Without jitter each delay is half of first * 2^n, and of the cap at the most."""
    assert [delay_s(attempt, 0.0, first_s=1.0, max_s=8.0) for attempt in range(6)] == [
        0.5,
        1.0,
        2.0,
        4.0,
        4.0,
        4.0,
    ]


def test_jitter_spreads_the_upper_half() -> None:
    """The other half of the delay follows the random number that was passed in."""
    assert delay_s(0, 0.5, first_s=1.0, max_s=8.0) == 0.75


@given(attempt=st.integers(0, 10**9), jitter=st.floats(0, 1, exclude_max=True))
def test_the_delay_is_bounded_for_ever(attempt: int, jitter: float) -> None:
    """Whatever the attempt and the jitter: at least half of the first delay, at most the cap."""
    assert DELAY_S_FIRST / 2 <= delay_s(attempt, jitter) <= DELAY_S_MAX


@given(attempt=st.integers(0, 100), jitter=st.floats(0, 1, exclude_max=True))
def test_more_failures_never_wait_less(attempt: int, jitter: float) -> None:
    """At equal jitter the delay never falls."""
    assert delay_s(attempt, jitter) <= delay_s(attempt + 1, jitter)
