"""Conditions on messages: what they mean, and what is no condition."""

from __future__ import annotations

import pytest

from dedup.core.deaths import DeathHistory
from dedup.core.filters import CONDITIONS_MAX, Seen, read_filter
from dedup.errors import ConfigError

NOW_MS = 10_000_000
DIED = DeathHistory.of(
    [
        {"queue": "orders", "reason": "expired", "count": 2, "first-time": 1_000_000, "last-time": 9_000_000},
        {"queue": "retries", "reason": "rejected", "count": 1, "first-time": 500_000, "last-time": 500_000},
    ]
)


@pytest.mark.parametrize(
    ("texts", "matches"),
    [
        ((), True),
        (("header:region=north",), True),
        (("header:region=south",), False),
        (("header:urgent=true",), True),
        (("header:count=5",), True),
        (("header:raw=bytes",), True),
        (("header:missing=",), None),
        (("header:sum=1=2",), True),
        (("reason=rejected",), True),
        (("queue=orders",), True),
        (("queue=orders", "reason=rejected"), False),  # one death, and not one of each
        (("queue=orders", "reason=expired"), True),
        (("older-than=15m",), True),
        (("older-than=17m",), False),
        (("header:region=north", "reason=maxlen"), False),
    ],
)
def test_what_is_meant(texts: tuple[str, ...], matches: bool | None) -> None:
    """All conditions must be met; queue and reason speak of one death; age counts from the last."""
    headers = {"region": "north", "urgent": True, "count": 5, "raw": b"bytes", "sum": "1=2"}
    if matches is None:
        with pytest.raises(ConfigError, match="is no condition"):
            read_filter(texts)
        return
    assert read_filter(texts).matches(Seen(headers, DIED), NOW_MS) is matches


@pytest.mark.parametrize(
    ("timestamp_ms", "matches"), [(None, False), (NOW_MS - 59_999, False), (NOW_MS - 60_000, True)]
)
def test_the_age_of_what_never_died(timestamp_ms: int | None, matches: bool) -> None:
    """It is that of the property timestamp; without one it is not older than anything."""
    seen = Seen({}, DeathHistory(), timestamp_ms)
    assert read_filter(["older-than=60s"]).matches(seen, NOW_MS) is matches


@pytest.mark.parametrize(
    "text", ["", "=", "header:=x", "reason=", "older-than=1y", "older-than=", "colour=red", "reason"]
)
def test_what_is_no_condition(text: str) -> None:
    """It is refused with the forms that there are."""
    with pytest.raises(ConfigError, match=r"write "):
        read_filter([text])


def test_a_death_has_one_reason() -> None:
    """Two reasons cannot both be met by one death."""
    with pytest.raises(ConfigError, match="repeats"):
        read_filter(["reason=rejected", "reason=expired"])


def test_there_is_a_limit() -> None:
    """A filter is read for each message."""
    with pytest.raises(ConfigError, match="at the most"):
        read_filter([f"header:n{number}=1" for number in range(CONDITIONS_MAX + 1)])
