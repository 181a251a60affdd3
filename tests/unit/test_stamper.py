"""The stamper gives out numbers to any number of threads, and properties to pika's clients."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dedup import (
    ConfigError,
    InvalidIdentityError,
    InvalidMessageError,
    Properties,
    Receipt,
    Stamper,
    WindowFullError,
)


def test_threads_share_numbers() -> None:
    """Each stamp is given out once, whoever asks, and none is left unconfirmed."""
    stamper = Stamper("shop-1", base=0)

    def publish(_: int) -> list[int]:
        stamps = [stamper.stamp() for _ in range(500)]
        for stamp in stamps:
            stamper.confirmed(stamp)
        return [stamp.sequence for stamp in stamps]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads interrupt each other at every step
    try:
        with ThreadPoolExecutor(8) as pool:
            numbers = [number for batch in pool.map(publish, range(8)) for number in batch]
    finally:
        sys.setswitchinterval(interval)
    assert sorted(numbers) == list(range(1, 4001))
    assert (stamper.newest, stamper.unconfirmed) == (4000, [])


def test_numbers_begin_with_the_clock() -> None:
    """A later start is above an earlier one."""
    assert Stamper("shop-1").stamp().sequence < Stamper("shop-1").stamp().sequence


def test_a_client_that_cannot_confirm_is_not_stopped() -> None:
    """Without tracking there are numbers only; the stamp itself remembers attempt and time."""
    stamper = Stamper("shop-1", base=0, window_size=4, track=False)
    for _ in range(100):
        stamp = stamper.stamp()
    third = stamper.again(stamper.again(stamp))
    assert (third.sequence, third.attempts, third.first_sent_ms) == (100, 3, stamp.first_sent_ms)
    assert stamper.unconfirmed == []


def test_giving_up_makes_room() -> None:
    """A message that will not be sent again holds nobody back."""
    stamper = Stamper("shop-1", base=0, window_size=2)
    first = stamper.stamp()
    stamper.stamp()
    with pytest.raises(WindowFullError):
        stamper.stamp()
    stamper.give_up(first)
    assert stamper.stamp().sequence == 3


def test_properties_for_pika() -> None:
    """The user's own are kept and not touched; a taken app_id moves the publisher id into a header."""
    stamper = Stamper("shop-1", base=6)
    stamp = stamper.stamp()
    plain = stamper.properties(stamp)
    assert (plain.app_id, plain.headers, plain.delivery_mode) == ("shop-1", {"dedup-sequence": 7}, 2)
    given = Properties(app_id="billing", headers={"a": 1}, priority=3)
    taken = stamper.properties(stamp, given)
    assert (taken.app_id, taken.priority) == ("billing", 3)
    assert taken.headers == {"dedup-publisher": "shop-1", "a": 1, "dedup-sequence": 7}
    assert given.headers == {"a": 1}


@pytest.mark.parametrize("given", [{"app_id": "x"}, Properties(headers={"dedup-sequence": 1})])
def test_properties_that_cannot_be_stamped_are_refused(given: Any) -> None:
    """As by the publisher: no dict, no header of dedup's own."""
    stamper = Stamper("shop-1")
    with pytest.raises(InvalidMessageError):
        stamper.properties(stamper.stamp(), given)


@pytest.mark.parametrize("stamp", [None, 7, Receipt("shop-1", 7), Stamper("shop-2").stamp()])
def test_only_a_stamp_of_its_own_is_put_into_properties(stamp: Any) -> None:
    """Another publisher's would give the message another name."""
    with pytest.raises(InvalidMessageError, match="stamp of 'shop-1'"):
        Stamper("shop-1").properties(stamp)


@pytest.mark.parametrize("sequence", [True, 1.5, "1", 0, -1, 2**63])
def test_a_number_of_the_callers_own_is_checked(sequence: Any) -> None:
    """As by the publisher, and nothing has changed."""
    stamper = Stamper("shop-1", base=6)
    with pytest.raises(InvalidMessageError, match="a sequence is"):
        stamper.stamp(sequence=sequence)
    assert stamper.stamp().sequence == 7


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (InvalidIdentityError, {"publisher_id": ""}),
        (ConfigError, {"base": -1}),
        (ConfigError, {"base": 2**63 - 1}),
        (ConfigError, {"window_size": 1}),
        (ConfigError, {"window_size": 1_048_577}),
    ],
)
def test_wrong_settings_are_told(error: type[Exception], wrong: dict[str, Any]) -> None:
    """Each is an error when the stamper is made."""
    with pytest.raises(error):
        Stamper(**{"publisher_id": "shop-1", **wrong})


def test_the_last_number_is_the_end() -> None:
    """Beyond 63 bits there is no number."""
    stamper = Stamper("shop-1", base=2**63 - 2)
    assert stamper.stamp().sequence == 2**63 - 1
    with pytest.raises(InvalidMessageError, match="between 1"):
        stamper.stamp()
