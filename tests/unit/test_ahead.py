"""How many deliveries are given ahead: few at first, as many as fit, fewer when they grow, and never none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dedup.core.ahead import COUNT_FIRST, Ahead

BYTES_MAX = 1_000_000


def given_all(ahead: Ahead, size: int) -> int:
    """Deliver and settle all that the consumer is given, of this size, and return what the next one is given."""
    ahead.came(ahead.count, ahead.count * size)
    ahead.settled(ahead.count * size)
    return ahead.next()


def grown(count_max: int, size: int) -> Ahead:
    """Go on until it grows no more."""
    ahead = Ahead(count_max, BYTES_MAX)
    while count := given_all(ahead, size):
        ahead.replace(count)
    return ahead


def test_small_messages_are_given_in_three_steps() -> None:
    """Up to the number that was asked for."""
    ahead = Ahead(3_000, BYTES_MAX)
    counts = [ahead.count]
    while count := given_all(ahead, 100):
        ahead.replace(count)
        counts.append(count)
    assert counts == [COUNT_FIRST, 100, 1_000, 3_000]


def test_of_large_messages_half_of_the_bytes_are_given() -> None:
    """So that a few that are larger change nothing."""
    assert grown(3_000, 10_000).count == 50
    assert grown(3_000, 50_000).count == COUNT_FIRST


def test_a_consumer_is_looked_at_when_it_has_delivered_what_it_was_given() -> None:
    """One message tells little of the next thousand."""
    ahead = Ahead(3_000, BYTES_MAX)
    ahead.came(COUNT_FIRST - 1, 0)
    assert ahead.next() == 0
    ahead.came(1, 0)
    assert ahead.next() == 100


def test_messages_that_turn_out_larger() -> None:
    """Single ones until half of the bytes are free, then as many as fit of such messages."""
    ahead = grown(3_000, 100)
    ahead.came(50, 50 * 20_000)
    assert ahead.next() == 0, "as much as may be held"
    ahead.came(50, 50 * 20_000)
    assert ahead.next() == 1
    ahead.replace(1)
    ahead.came(1, 20_000)
    assert ahead.next() == 0
    ahead.settled(75 * 20_000)
    assert ahead.next() == 0
    ahead.settled(1 * 20_000)
    assert ahead.next() == 10
    ahead.replace(10)
    assert given_all(ahead, 20_000) == 25


def test_messages_that_turn_out_smaller() -> None:
    """It grows again."""
    ahead = grown(3_000, 10_000)
    assert given_all(ahead, 100) == 500


def test_a_message_larger_than_all_that_may_be_held() -> None:
    """One at a time goes on."""
    ahead = grown(3_000, 100)
    ahead.came(1, 5 * BYTES_MAX)
    assert ahead.next() == 1
    ahead.settled(5 * BYTES_MAX)
    ahead.replace(1)
    assert given_all(ahead, 5 * BYTES_MAX) == 0


def test_what_is_skipped_is_made_up_for() -> None:
    """The broker holds it, until no more may be held at all."""
    ahead, seen = Ahead(1_000, BYTES_MAX), 0
    while True:
        for _ in range(ahead.count):
            ahead.came(1, 100_000)
            ahead.skipped(100_000)
            seen += 1
            if count := ahead.next():
                ahead.replace(count)
                break
        else:
            break
    assert seen == 1_000


@given(
    count_max=st.integers(1, 3_000),
    sizes=st.lists(st.tuples(st.integers(0, 3 * BYTES_MAX), st.integers(1, 300)), min_size=1, max_size=20),
)
def test_something_is_always_given(count_max: int, sizes: list[tuple[int, int]]) -> None:
    """Whatever comes, never more than was asked for and never nothing."""
    ahead = Ahead(count_max, BYTES_MAX)
    for size, times in sizes:
        for _ in range(times):
            ahead.came(1, size)
            count = ahead.next()
            ahead.settled(size)
            assert 0 <= count <= count_max
            if count:
                ahead.replace(count)
    assert ahead.count >= 1
