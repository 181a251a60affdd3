"""The shim is killed with SIGKILL at each of its steps, again and again, and each message is in the target once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded

MESSAGES = 30
#: How often the shim is killed at one step in one test.
KILLS = 3

#: Every point between two effects, by the effect that comes next or has just been performed.
#: "after Forward": the batch is sent, the broker's answer is still to come.
STEPS = [
    ("before", "ClaimState", 1),
    ("after", "ClaimState", 1),
    ("before", "Replace", 1),
    ("after", "Replace", 1),
    ("after", "Anchor", 1),
    ("after", "Anchor", 2),
    ("after", "Consume", 1),
    ("before", "Save", 1),
    ("after", "Save", 1),
    ("after", "Forward", 1),
    ("before", "Save", 2),
    ("after", "Save", 2),
    ("before", "Ack", 1),
    ("after", "Ack", 1),
    ("after", "Forward", 2),
]

Make = Callable[..., Guarded]


@pytest.fixture
def make(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Make]:
    """Return a maker of guarded queues that are cleaned up."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Guarded(rabbitmq, redis_server, queue_name, **options))


def _twice(count: int) -> list[tuple[str, int]]:
    """Return messages, each sent a second time after the next five."""
    sent: list[tuple[str, int]] = []
    for number in range(1, count + 6):
        if number <= count:
            sent.append((f"m{number}", number))
        if number > 5:
            sent.append((f"m{number - 5}", number - 5))
    return sent


def _bodies() -> list[str]:
    return [f"m{number}" for number in range(1, MESSAGES + 1)]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: "-".join(map(str, step)))
def test_exact_forwarding_survives_kills(make: Make, step: tuple[str, str, int]) -> None:
    """Killed at this step again and again, the shim forwards each message once, unmarked and in order."""
    guarded = make()
    guarded.publish(_twice(MESSAGES))
    for _ in range(KILLS):
        guarded.run_until_killed(step)
    guarded.run_until_drained()
    assert guarded.assert_each_once(_bodies()).order == _bodies()


@pytest.mark.parametrize("target_type", ["classic", "quorum"])
@pytest.mark.parametrize("step", STEPS[8:], ids=lambda step: "-".join(map(str, step)))
def test_confirmed_forwarding_survives_kills(
    make: Make, step: tuple[str, str, int], target_type: str
) -> None:
    """Killed at this step, the shim loses nothing and leaves no unmarked copy."""
    guarded = make(target_type=target_type, exact=False)
    guarded.publish(_twice(MESSAGES))
    for _ in range(KILLS):
        guarded.run_until_killed(step)
    guarded.run_until_drained()
    guarded.assert_each_once(_bodies(), marks=True)


def test_no_kill_no_mark(make: Make) -> None:
    """Without a fault confirmed forwarding marks nothing either."""
    guarded = make(target_type="quorum", exact=False)
    guarded.publish(_twice(MESSAGES))
    guarded.run_until_drained()
    guarded.assert_each_once(_bodies())
