"""Kill retry services with SIGKILL at each step, on real servers: nothing is lost, nothing is doubled without a mark."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.retried import Retried

STAMPED = [f"s{number}" for number in range(5)]
#: Two pairs of twins, and three that are alone.
UNSTAMPED = ["twin", "twin", "u1", "u2", "u3", "twins", "twins"]

#: Each step that changes something outside, before and after, in the first batch and in the second.
STEPS = [
    (when, effect, number)
    for effect in ("Store", "Ack", "Publish", "Settle")
    for when, number in (("before", 1), ("after", 1), ("after", 2))
] + [("after", "Register", 1), ("after", "Consume", 1), ("after", "Forget", 1)]


@pytest.fixture
def retried(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Retried]:
    """A queue whose letters are retried."""
    with Retried(rabbitmq, redis_server, queue_name) as found:
        yield found


@pytest.fixture
def random_moments() -> Random:
    """Others in each run; a failure tells the seed."""
    seed = time.time_ns()
    print(f"seed {seed}")
    return Random(seed)


def test_without_a_fault_nothing_is_marked(retried: Retried) -> None:
    """Each message comes back once, with its count and its history, and nothing of it stays in the schedule."""
    retried.die(STAMPED, UNSTAMPED)
    child = retried.run()
    came = retried.all_back(child)
    assert came.all() == retried.went
    assert came.marked() == 0
    assert {headers["dedup-retry"] for _, _, headers in came.copies} == {1}
    assert all(retried.queue in headers["dedup-deaths"] for _, _, headers in came.copies)
    assert retried.schedule().facts().bytes == 0
    assert retried.schedule().sessions() == []


@pytest.mark.parametrize("place", STEPS, ids=lambda place: "-".join(map(str, place)))
def test_killed_at_a_step(retried: Retried, place: tuple[str, str, int]) -> None:
    """Whatever step the kill comes at, the next service brings everything back."""
    retried.die(STAMPED, UNSTAMPED)
    killed = retried.run(kill=place, keep_s=0.05 if place[1] == "Forget" else 30.0)
    assert killed.wait() == -signal.SIGKILL
    after = retried.run()
    retried.check(retried.all_back(after))


def test_one_of_two_is_killed(retried: Retried) -> None:
    """The one that lives goes on with what the other had taken, while both work."""
    bodies = [f"m{number}" for number in range(300)]
    lives = retried.run()
    lives.wait_for("dedup.retrying")
    dies = retried.run(kill=("after", "Publish", 3))
    dies.wait_for("dedup.retrying")
    retried.die(bodies[:150], bodies[150:])
    assert dies.wait() == -signal.SIGKILL
    retried.check(retried.all_back(lives))
    assert lives.count("dedup.retry_recovered") >= 1


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_two_are_killed_by_turns(
    rabbitmq: RabbitMQ, queue_name: str, tmp_path: Path, kind: str, random_moments: Random
) -> None:
    """At any moment, while letters keep coming and Redis is killed too."""
    with (
        Redis(directory=tmp_path, appendfsync="always") as redis,
        Retried(rabbitmq, redis, queue_name, kind=kind) as retried,
    ):
        settings = {"delays_s": (0.3,), "sync": "disk", "batch_max": 20}
        two = [retried.run(**settings) for _ in range(2)]
        for turn in range(4):
            retried.deliver([f"m{turn}-{number}" for number in range(60)], 1 + 60 * turn)
            time.sleep(0.6 * random_moments.random())
            two[turn % 2].kill()
            two[turn % 2] = retried.run(**settings)
            if turn == 2:
                for service in two:
                    service.wait_for("dedup.retrying")  # at its first look Redis must be there
                redis.kill()
                redis.start()
        retried.check(retried.all_back(*two))


def test_a_frozen_one_wakes_up_after_another_took_over(retried: Retried) -> None:
    """Once the broker has given it up, nothing that it had begun can come behind what the other sends."""
    retried.die(STAMPED, UNSTAMPED)
    slow = retried.run(
        amqp=f"{retried.rabbitmq.url}?heartbeat=1", kill=("before", "Publish", 2), signal=int(signal.SIGSTOP)
    )
    slow.wait_until_frozen()
    other = retried.run()
    came = retried.all_back(other)
    slow.send_signal(signal.SIGCONT)
    slow.wait_for("dedup.session_ended")
    time.sleep(0.3)
    with retried.channel() as channel:
        assert channel.basic_get(retried.queue)[0] is None
    slow.stop()
    retried.check(came)


def test_redis_restarts(rabbitmq: RabbitMQ, queue_name: str, tmp_path: Path) -> None:
    """What waits survives a kill of Redis; what may have been lost with its last moment comes marked."""
    with (
        Redis(directory=tmp_path, appendfsync="always") as redis,
        Retried(rabbitmq, redis, queue_name) as retried,
    ):
        retried.die(STAMPED, UNSTAMPED)
        child = retried.run(delays_s=(1.5,), sync="disk")
        deadline = time.monotonic() + 30
        while retried.schedule().facts().messages < len(STAMPED + UNSTAMPED):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        redis.kill()
        child.wait_for("dedup.store_unavailable")
        redis.start()
        came = retried.all_back(child)
        retried.check(came)
        assert came.all() == retried.went
