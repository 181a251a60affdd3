"""What becomes of a dead letter, and for how long it waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.deaths import Death, DeathHistory
from dedup.core.digests import Digests
from dedup.core.obituaries import Reason
from dedup.core.schedule import Backoff, Bury, Retry, decide
from dedup.errors import ConfigError
from dedup.retry.settings import read_table


def decided(history: DeathHistory, retries: int | None = 0, backoff: Backoff | None = None) -> Retry | Bury:
    """Decide with no jitter."""
    return decide(history, retries, backoff=backoff or Backoff(), dead_letter_queue="orders.dlq", jitter=0.0)


def died(queue: str = "orders", reason: str = "rejected", count: int = 1) -> DeathHistory:
    """A history of one entry."""
    return DeathHistory((Death(queue, reason, count),))


@pytest.mark.parametrize(("retries", "delay_s"), [(0, 10.0), (1, 100.0), (2, 1000.0)])
def test_each_retry_has_its_delay(retries: int, delay_s: float) -> None:
    """The list is followed, and the number of the retry is told."""
    assert decided(died(count=retries + 1), retries) == Retry("orders", delay_s, retries + 1)


def test_out_of_attempts() -> None:
    """After as many retries as there are delays it is given up; with a number of its own, after that many."""
    assert decided(died(), 3) == Bury("orders", Reason.ATTEMPTS)
    assert decided(died(), 3, Backoff((1.0,), 5)) == Retry("orders", 1.0, 4)


def test_an_unreadable_count_is_taken_from_the_history() -> None:
    """Whoever forges the header gains no attempts."""
    assert decided(died(count=4), None) == Bury("orders", Reason.ATTEMPTS)
    assert decided(died(count=2), None) == Retry("orders", 100.0, 2)


@pytest.mark.parametrize("reason", ["expired", "maxlen"])
def test_a_cycle_without_a_rejection(reason: str) -> None:
    """What nobody looked at twice in a row is given up; a rejection in between means that somebody tries."""
    assert decided(died(reason=reason)) == Retry("orders", 10.0, 1)
    assert decided(died(reason=reason, count=2), 1) == Bury("orders", Reason.CYCLE)
    looked_at = DeathHistory((Death("orders", "rejected", 1), Death("orders", reason, 2)))
    assert isinstance(decided(looked_at, 1), Retry)


def test_a_death_in_the_dead_letter_queue_itself() -> None:
    """It is not sent back to where it would die again."""
    assert decided(died("orders.dlq", "expired")) == Bury("orders.dlq", Reason.CYCLE)


@pytest.mark.parametrize("history", [DeathHistory(), DeathHistory((), ("x-death is not a list",))])
def test_no_history(history: DeathHistory) -> None:
    """Nobody knows where it belongs."""
    assert decided(history) == Bury("", Reason.NO_HISTORY)


@given(retries=st.integers(0, 20_000), jitter=st.floats(0, 1, exclude_max=True))
def test_doubling_stays_between_first_and_last(retries: int, jitter: float) -> None:
    """Never at once, never longer than the last one."""
    delay_s = Backoff((2.0, 60.0), doubling=True).delay_s(retries, jitter)
    assert 1.0 <= delay_s <= 60.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["hold", "acknowledge", "probe", "probed", "forget"]), st.integers(0, 2))
    )
)
def test_a_digest_is_forgotten_only_long_after_its_ack_has_arrived(script: list[tuple[str, int]]) -> None:
    """In any order of events: held before, acknowledged, asked for, answered, and then kept for its time."""
    digests, now_s = Digests(2.0), 0.0
    sent: list[tuple[bytes, bool]] = []
    arrived: dict[bytes, list[float]] = {}
    for act, number in script:
        now_s += 1.0
        digest = bytes([number])
        match act:
            case "hold":
                digests.hold(digest)
            case "acknowledge" if digests.count(digest) > len(arrived.get(digest, [])) + sum(
                d == digest for d, _ in sent
            ):
                digests.acknowledge([digest])
                sent.append((digest, False))
            case "probe":
                if digests.probe():
                    sent = [(d, True) for d, _ in sent]
            case "probed":
                digests.probed(now_s)
                for d, asked in sent:
                    if asked:
                        arrived.setdefault(d, []).append(now_s)
                sent = [(d, asked) for d, asked in sent if not asked]
            case "forget":
                for d in digests.forget(now_s, 10):
                    assert now_s - arrived[d].pop(0) >= 2.0


def test_the_table_of_settings() -> None:
    """Queues inherit what the table says, flags go before it."""
    table: dict[str, Any] = {
        "dead_letter_queues": ["orders.dlq"],
        "delays_s": [1, 2],
        "queues": {"orders": {"attempts_max": 7}, "invoices": {"delays_s": [5], "doubling": True}},
    }
    read = read_table(table, {"delays_s": [3.0], "dead_letter_queues": ()})
    assert read.backoff == Backoff((3.0,))
    assert read.queues == {"orders": Backoff((3.0,), 7), "invoices": Backoff((5.0,), None, doubling=True)}
    service = read.service("orders.dlq", amqp="amqp://x", redis="redis://x", prefix="dedup")
    assert service.retry.queues["orders"].attempts == 7
    assert service.limits.messages == 1_000_000


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({}, "no dead-letter queue"),
        ({"dead_letter_queues": ["q"], "delay_s": [1]}, "delays_s"),
        ({"dead_letter_queues": "q"}, "list"),
        ({"dead_letter_queues": ["q"], "delays_s": []}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [0]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": ["a"]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": "10,100"}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": 10}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": {"first": 10}}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [True, 10]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": ["10"]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [[10]]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [10, -1]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [float("nan")]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [float("inf")]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [10**400]}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": range(1, 10)}, "delays_s"),
        ({"dead_letter_queues": ["q"], "delays_s": [1] * 10_001}, "10,000"),
        ({"dead_letter_queues": ["q"], "attempts_max": 10_001}, "attempts_max"),
        ({"dead_letter_queues": ["q"], "attempts_max": 0}, "attempts_max"),
        ({"dead_letter_queues": ["q"], "doubling": "yes"}, "doubling"),
        ({"dead_letter_queues": ["q"], "sync": "tape"}, "sync"),
        ({"dead_letter_queues": ["q"], "rate_max": True}, "rate_max"),
        ({"dead_letter_queues": ["q"], "queues": []}, "queues"),
        ({"dead_letter_queues": ["q"], "queues": {"orders": {"delay": 1}}}, "retry.queues.orders"),
    ],
)
def test_a_wrong_table_names_what_is_wrong(table: dict[str, Any], word: str) -> None:
    """Each mistake is an error with the key in it."""
    with pytest.raises(ConfigError, match=word):
        read_table(table, {})
