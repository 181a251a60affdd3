"""The oracle sees each way in which a promise can be broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.testing.oracle import Oracle

MESSAGES = ("a1", "a2", "a3", "b1", "b2")


def perfect_run() -> Oracle:
    """Return a run in which every message arrived twice and was delivered once."""
    oracle = Oracle()
    for message in MESSAGES:
        oracle.ask(message[0], message)
        oracle.arrive(message)
        oracle.arrive(message)
        oracle.confirm(message)
    return oracle


def test_each_message_once_is_what_was_promised() -> None:
    """A run in which each message arrived twice and was delivered once is a good one, and the numbers add up."""
    oracle = perfect_run()
    for message in MESSAGES:
        oracle.deliver(message)
    account = oracle.account()
    assert account.ok
    assert (account.messages, account.confirmed, account.copies) == (5, 5, 10)
    assert (account.forwarded, account.dropped, account.quarantined, account.marked) == (5, 5, 0, 0)
    assert account.examples == ()


def test_a_loss_is_seen() -> None:
    """A message that reached the broker and is in neither queue is lost, and named."""
    oracle = perfect_run()
    for message in MESSAGES[1:]:
        oracle.deliver(message)
    assert oracle.unsettled() == {"a1"}
    account = oracle.account()
    assert not account.ok
    assert account.lost == 1
    assert account.examples == ("lost: a1",)


def test_a_confirm_alone_makes_a_loss() -> None:
    """A message that was confirmed must be somewhere, even if nobody saw it arrive."""
    oracle = Oracle()
    oracle.ask("a", "a1")
    oracle.confirm("a1")
    assert oracle.account().lost == 1


def test_an_arrival_alone_makes_a_loss() -> None:
    """A message that arrived must be somewhere, even if its publisher never heard of it."""
    oracle = Oracle()
    oracle.ask("a", "a1")
    oracle.arrive("a1")
    assert oracle.account().lost == 1


def test_what_never_arrived_is_not_lost() -> None:
    """A message that was asked for and neither arrived nor was confirmed is the publisher's to send again."""
    oracle = Oracle()
    oracle.ask("a", "a1")
    account = oracle.account()
    assert account.ok
    assert (account.messages, account.confirmed) == (1, 0)


def test_an_unmarked_duplicate_is_seen() -> None:
    """A second copy without a mark breaks the promise."""
    oracle = perfect_run()
    for message in (*MESSAGES, "b1"):
        oracle.deliver(message)
    account = oracle.account()
    assert not account.ok
    assert account.duplicates == 1
    assert account.examples == ("twice: b1",)


def test_an_unmarked_copy_after_a_marked_one_is_a_duplicate() -> None:
    """A mark on the first copy does not excuse a second copy without one."""
    oracle = perfect_run()
    for message in MESSAGES:
        oracle.deliver(message, marked=True)
    oracle.deliver("a1")
    assert oracle.account().duplicates == 1


def test_a_marked_copy_is_no_duplicate() -> None:
    """A copy with a mark is counted, and the promise is kept."""
    oracle = perfect_run()
    for message in MESSAGES:
        oracle.deliver(message)
    oracle.deliver("a2", marked=True)
    account = oracle.account()
    assert account.ok
    assert (account.marked, account.forwarded, account.dropped) == (1, 6, 4)


def test_quarantine_is_not_loss() -> None:
    """What is in quarantine is not lost, and is counted."""
    oracle = perfect_run()
    oracle.quarantine("a1")
    for message in MESSAGES[1:]:
        oracle.deliver(message)
    account = oracle.account()
    assert account.ok
    assert (account.quarantined, account.dropped) == (1, 5)


def test_a_stranger_is_seen() -> None:
    """A message that nobody asked for, such as a damaged one, breaks the promise once."""
    oracle = perfect_run()
    oracle.arrive("a1?")
    for message in (*MESSAGES, "a1?"):
        oracle.deliver(message)
    account = oracle.account()
    assert not account.ok
    assert account.unexpected == 1


def test_an_overtaken_message_is_seen() -> None:
    """A message that leaves after a later one of the same publisher breaks the order."""
    oracle = perfect_run()
    for message in ("a1", "a3", "a2", "b1", "b2"):
        oracle.deliver(message)
    account = oracle.account()
    assert not account.ok
    assert account.examples == ("out of order: a2",)


def test_publishers_may_overtake_each_other() -> None:
    """Order is promised for each publisher alone."""
    oracle = perfect_run()
    for message in ("b1", "a1", "a2", "b2", "a3"):
        oracle.deliver(message)
    assert oracle.account().ok


def test_order_is_that_of_first_arrivals() -> None:
    """A publisher's later message that arrived first may leave first; repeated copies do not count."""
    oracle = Oracle()
    for message in ("a1", "a2"):
        oracle.ask("a", message)
    for message in ("a2", "a1", "a2"):
        oracle.arrive(message)
    for message in ("a2", "a1"):
        oracle.deliver(message)
    assert oracle.account().ok


def test_names_are_unique() -> None:
    """Two messages of one name could hide a loss behind a duplicate, so the second is refused."""
    oracle = perfect_run()
    with pytest.raises(AssertionError, match="names two messages"):
        oracle.ask("a", "a1")


@given(st.lists(st.sampled_from(MESSAGES), max_size=20), st.data())
def test_one_change_to_a_perfect_run_is_always_seen(order: list[str], data: st.DataObject) -> None:
    """Whatever single copy is taken away or added, the account is no longer good."""
    delivered = list(MESSAGES)
    copy = data.draw(st.sampled_from(delivered))
    if data.draw(st.booleans()):
        delivered.remove(copy)
    else:
        delivered.insert(data.draw(st.integers(0, len(delivered))), copy)
    oracle = perfect_run()
    for message in order:
        oracle.arrive(message)
    for message in delivered:
        oracle.deliver(message)
    account = oracle.account()
    assert not account.ok
    assert account.lost + account.duplicates == 1
