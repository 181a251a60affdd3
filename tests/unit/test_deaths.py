"""Death histories: read from what brokers and everybody else wrote, carried on, and summed."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import BasicProperties

from dedup import Death, DeathHistory
from dedup.core.deaths import (
    BROKER_HEADERS,
    CARRIED_BYTES_MAX,
    ENTRIES_MAX,
    ROUTING_KEYS_MAX,
)
from dedup.core.foreign import FAULTS_MAX
from dedup.core.identity import DEATHS_HEADER, RESERVED_HEADERS

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
MOMENTS = st.none() | st.integers(0, 2**53)
DEATHS = st.builds(
    Death,
    queue=NAMES,
    reason=st.sampled_from(["rejected", "expired", "maxlen", "delivery_limit"]),
    count=st.integers(1, 10**12),
    first_ms=MOMENTS,
    last_ms=MOMENTS,
    exchange=NAMES,
    routing_keys=st.lists(NAMES, max_size=3).map(tuple),
    original_expiration_ms=st.none() | st.integers(0, 2**53),
)
HISTORIES = st.builds(
    DeathHistory, st.lists(DEATHS, max_size=6, unique_by=lambda death: death.key).map(tuple)
)
#: Whatever a decoder can make of a header, and more.
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.binary(max_size=20)
    | st.text(max_size=20)
    | st.datetimes(timezones=st.none() | st.just(dt.UTC)),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(
                ["queue", "reason", "count", "time", "first-time", "exchange", "routing-keys", "ttl", "?"]
            ),
            inner,
        )
    ),
    max_leaves=40,
)

AT = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
AT_MS = int(AT.timestamp()) * 1000


def entry(queue: str = "orders", reason: str = "rejected", **more: Any) -> dict[str, Any]:
    """What RabbitMQ writes about one death, as pika decodes it; *more* names fields with underscores."""
    return {
        "queue": queue,
        "reason": reason,
        "count": 1,
        "time": AT,
        "exchange": "shop",
        "routing-keys": ["new"],
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def test_an_entry_of_the_old_protocol() -> None:
    """One time in whole seconds, the expiration as text; of a single death the first time is the last."""
    history = DeathHistory.read({"x-death": [entry(original_expiration="60000")]})
    assert history == DeathHistory((Death("orders", "rejected", 1, AT_MS, AT_MS, "shop", ("new",), 60_000),))
    assert DeathHistory.read({"x-death": [entry(count=2)]}).deaths[0].last_ms is None


def test_an_old_history_over_the_new_protocol() -> None:
    """RabbitMQ turns a republished x-death into an annotation, and its whole seconds into a timestamp in milliseconds."""
    told = DeathHistory.read({"x-death": [entry(time=AT_MS)]})
    assert told == DeathHistory.read({"x-death": [entry()]})
    assert told.deaths[0].first_ms == AT_MS


def test_an_entry_of_the_new_protocol() -> None:
    """Two times in milliseconds, arrays that are no lists, a time to live as a number."""

    class Array:
        """As python-qpid-proton decodes an array."""

        def __init__(self, *elements: object) -> None:
            self.elements = elements

    death = {"queue": "orders", "reason": "expired", "count": 3, "first-time": 1_001, "last-time": 2_002}
    value = Array({**death, "exchange": "", "routing-keys": Array("a", "b"), "ttl": 500})
    history = DeathHistory.read(None, {"x-opt-deaths": value})
    assert history == DeathHistory((Death("orders", "expired", 3, 1_001, 2_002, "", ("a", "b"), 500),))


def test_what_pika_decodes_is_read_whole() -> None:
    """The way through pika's encoder and decoder changes nothing."""
    encoded = b"".join(
        BasicProperties(headers={"x-death": [entry(), entry("retry", "expired", count=7)]}).encode()
    )
    decoded = pika.BasicProperties()
    decoded.decode(encoded)
    assert DeathHistory.read(decoded.headers) == DeathHistory.read(
        {"x-death": [entry(), entry("retry", "expired", count=7)]}
    )


def test_a_stale_header_does_not_hide_the_annotation() -> None:
    """RabbitMQ 4 keeps an x-death that a client sent beside the x-opt-deaths it writes itself."""
    own = {"queue": "q", "reason": "expired", "count": 1, "first-time": 1, "last-time": 1}
    read = DeathHistory.read({"x-death": [entry("stale")], "x-opt-deaths": [own]})
    assert [death.queue for death in read.deaths] == ["q"]
    assert DeathHistory.read({"x-death": [entry()], "x-opt-deaths": "junk"}).count(queue="orders") == 1


def test_where_the_history_is_lost_its_ends_are_left() -> None:
    """A stream of RabbitMQ 3.10 keeps texts only: no lists, so no x-death."""
    ends = {"x-first-death-queue": "a", "x-first-death-reason": "rejected", "x-first-death-exchange": "shop"}
    assert DeathHistory.read(ends) == DeathHistory((Death("a", "rejected", exchange="shop"),))
    ends |= {"x-last-death-queue": "b", "x-last-death-reason": "expired", "x-last-death-exchange": ""}
    assert [death.key for death in DeathHistory.read(ends).deaths] == [("b", "expired"), ("a", "rejected")]
    assert DeathHistory.read({**ends, "x-death": [entry()]}).count() == 1
    assert DeathHistory.read({"x-first-death-queue": 5, "x-last-death-queue": [1]}) == DeathHistory()


def test_the_carried_and_the_new_are_summed() -> None:
    """What was carried past a republish comes after what the broker wrote since; counts add up, the first way is kept."""
    before = DeathHistory((Death("orders", "rejected", 2, 1_000, 2_000, "shop", ("new",), 60_000),))
    headers = {
        DEATHS_HEADER: before.encode(),
        "x-death": [
            entry("retry", "expired"),
            entry(exchange="", routing_keys=["orders"]),
        ],
    }
    history = DeathHistory.read(headers)
    assert [death.key for death in history.deaths] == [("retry", "expired"), ("orders", "rejected")]
    assert history.deaths[1] == Death("orders", "rejected", 3, 1_000, AT_MS, "shop", ("new",), 60_000)
    assert (history.count(), history.count(queue="orders"), history.count(reason="expired")) == (4, 3, 1)
    assert history.newest == history.deaths[0]


def test_no_header_no_death() -> None:
    """Most messages never died."""
    for headers in (None, {}, {"x": 1}):
        assert DeathHistory.read(headers) == DeathHistory()
    assert DeathHistory().newest is None
    assert DeathHistory().count() == 0


@pytest.mark.parametrize(
    ("reasons", "cycle"),
    [
        (["expired"], True),
        (["rejected"], False),
        (["expired", "maxlen", "expired"], True),
        (["expired", "rejected", "expired"], False),
        (["expired", "expired", "rejected"], False),
        (["delivery_limit"], True),
    ],
)
def test_a_cycle_counts_only_without_a_rejection_in_it(reasons: list[str], cycle: bool) -> None:
    """A consumer that rejects wants the message to come again; the rest would go round for ever."""
    queues = [*(f"between-{number}" for number in range(len(reasons) - 1)), "orders"]
    history = DeathHistory(tuple(Death(*pair) for pair in zip(queues, reasons, strict=True)))
    assert history.cycles_into("orders") is cycle
    assert not history.cycles_into("elsewhere")


def test_a_rejection_before_the_cycle_does_not_count() -> None:
    """Only what happened since the message was in the queue is the cycle."""
    history = DeathHistory((Death("a", "expired"), Death("b", "expired"), Death("c", "rejected")))
    assert history.cycles_into("b")
    assert not history.cycles_into("c")


def test_a_history_with_faults_proves_no_cycle() -> None:
    """A client was at it: RabbitMQ takes such a cycle for a wanted one too."""
    history = DeathHistory.read({"x-death": [17, entry("orders", "expired")]})
    assert history.faults == ("x-death[0] is not a table",)
    assert history.count(queue="orders") == 1
    assert not history.cycles_into("orders")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"count": 2**70}, "x-death[0].count is not between 0 and 2^63 - 1"),
        ({"count": True}, "x-death[0].count is not a whole number"),
        ({"count": 0}, "x-death[0].count is not at least 1"),
        ({"count": None}, "x-death[0].count is not a whole number"),
        ({"time": "yesterday"}, "x-death[0].time is not a whole number"),
        ({"time": dt.datetime(1, 1, 1, tzinfo=dt.UTC)}, "x-death[0].time is not between 0 and 2^63 - 1"),
        (
            {"time": dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=9)))},
            "x-death[0].time is not between 0 and 2^63 - 1",
        ),
        ({"time": 2**62}, "x-death[0].time is too late"),
        ({"reason": 5}, "x-death[0].reason is not text"),
        ({"exchange": b"\xff"}, "x-death[0].exchange is not UTF-8"),
        ({"exchange": "\ud800"}, "x-death[0].exchange is not UTF-8"),
        ({"exchange": "é" * 200}, "x-death[0].exchange is over 255 bytes"),
        ({"exchange": b"\xc3" * 400}, "x-death[0].exchange is over 255 bytes"),
        ({"routing-keys": "new"}, "x-death[0].routing-keys is not a list"),
        ({"routing-keys": [1]}, "x-death[0].routing-keys[0] is not text"),
        ({"original-expiration": "soon"}, "x-death[0].original-expiration is not a whole number"),
        ({"original-expiration": "9" * 5000}, "x-death[0].original-expiration is not a whole number"),
    ],
)
def test_a_wrong_field_does_not_cost_the_entry(change: dict[str, Any], fault: str) -> None:
    """What can be read is read, and what cannot is told."""
    history = DeathHistory.read({"x-death": [{**entry(), **change}]})
    assert history.faults == (fault,)
    assert history.count(queue="orders") == 1


def test_an_entry_without_a_queue_is_none() -> None:
    """There is nothing to say about it."""
    broken = entry()
    del broken["queue"]
    history = DeathHistory.read({"x-death": [broken, entry("other")]})
    assert [death.queue for death in history.deaths] == ["other"]
    assert history.faults == ("x-death[0].queue is not text",)


def test_thousands_of_entries_are_bounded() -> None:
    """Reading, what is told of it, and what is carried on have limits."""
    many = [entry(f"queue-{number}" + "x" * 200, time=None) for number in range(5_000)]
    history = DeathHistory.read({"x-death": many})
    assert len(history.deaths) == ENTRIES_MAX
    assert history.faults == (f"x-death has 5000 entries, the first {ENTRIES_MAX} are read",)
    assert len(history.encode().encode()) <= CARRIED_BYTES_MAX
    assert (
        DeathHistory.decode(history.encode()).deaths
        == history.deaths[: len(DeathHistory.decode(history.encode()).deaths)]
    )
    keys = DeathHistory.read({"x-death": [entry(routing_keys=["k"] * 9_999)]})
    assert len(keys.deaths[0].routing_keys) == ROUTING_KEYS_MAX
    assert len(DeathHistory.read({"x-death": [17] * 200}).faults) == FAULTS_MAX


def test_entries_of_one_kind_are_one() -> None:
    """A broker writes one entry for each {queue, reason}; whatever else comes is summed into that."""
    history = DeathHistory.read({"x-death": [entry(), entry("b"), entry(), entry(count=2**63 - 1)]})
    assert [(death.queue, death.count) for death in history.deaths] == [("orders", 2**63 - 1), ("b", 1)]


@pytest.mark.parametrize(
    "value",
    [None, 7, b"\xff", "", "{", "[]", "[2]", '[2,["q","rejected",1]]', "{}", "[" * 100_000, "[1,7]", "x" * 10**6, '[1,["q"]]', f"[1,[{'9' * 5000}]]"],
)  # fmt: skip
def test_a_carried_history_may_be_junk(value: object) -> None:
    """Any client can set the header; then there is a fault, and what the broker wrote still counts."""
    history = DeathHistory.read({DEATHS_HEADER: value, "x-death": [entry()]})
    assert history.faults
    assert history.count(queue="orders") == 1


def test_the_header_is_compact_and_reserved() -> None:
    """The format is part of the wire: changing it needs another version number."""
    history = DeathHistory((Death("q", "rejected", 2), Death("p", "expired", 1, 5, 5, "e", ("k",), 9)))
    assert history.encode() == '[1,["q","rejected",2],["p","expired",1,5,5,"e",["k"],9]]'
    assert DEATHS_HEADER in RESERVED_HEADERS
    assert {"x-death", "x-opt-deaths", "x-first-death-queue", "x-last-death-reason"} <= BROKER_HEADERS


@given(HISTORIES)
def test_a_history_survives_being_carried(history: DeathHistory) -> None:
    """What is written is what is read."""
    assert DeathHistory.decode(history.encode()) == history
    assert DeathHistory.decode(history.encode().encode()) == history
    assert json.loads(history.encode())[0] == 1


@given(HISTORIES, HISTORIES, HISTORIES)
def test_histories_add_up(newest: DeathHistory, middle: DeathHistory, oldest: DeathHistory) -> None:
    """How often the history was carried on does not matter, and no death is lost or invented."""
    once = newest.after(middle).after(oldest)
    assert once == newest.after(middle.after(oldest))
    assert once.count() == newest.count() + middle.count() + oldest.count()
    assert newest.after(DeathHistory()) == DeathHistory().after(newest) == newest
    assert len({death.key for death in once.deaths}) == len(once.deaths)


@given(JUNK, JUNK, JUNK)
def test_nothing_is_too_broken_to_read(deaths: Any, annotation: Any, carried: Any) -> None:
    """No value raises; the result can be written and read again."""
    history = DeathHistory.read({"x-death": deaths, "x-opt-deaths": annotation}, {DEATHS_HEADER: carried})
    assert DeathHistory.decode(history.encode()).deaths == history.deaths
    assert all(death.count >= 1 for death in history.deaths)
    assert len(history.faults) <= FAULTS_MAX
    history.cycles_into("orders")


@given(st.lists(JUNK, max_size=4), st.integers(0, 4))
def test_junk_does_not_hide_a_real_death(junk: list[Any], place: int) -> None:
    """The entry of a broker among others is read as it would be alone."""
    entries = [*junk[:place], entry("real", "maxlen", count=3), *junk[place:]]
    assert DeathHistory.read({"x-death": entries}).count(queue="real", reason="maxlen") == 3
