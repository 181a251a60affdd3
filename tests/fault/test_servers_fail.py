"""Redis and the broker fail in every way while messages flow, and each message is in the target once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dedup.core import names
from dedup.testing.proxy import Direction, FaultProxy
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded, ShimProcess, declare

MESSAGES = 300
BODIES = [f"m{number}" for number in range(1, MESSAGES + 1)]
#: Long enough for a fault to be felt, and well inside every timeout; seconds.
WHILE_S = 1.0

Make = Callable[..., Guarded]


@pytest.fixture(scope="module")
def own_rabbitmq(rabbitmq_version: str | None) -> Iterator[RabbitMQ]:
    """A broker of this module's own: it is killed and restarted."""
    with RabbitMQ(rabbitmq_version) as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    """A Redis of the test's own."""
    with Redis() as server:
        yield server


@pytest.fixture
def make(rabbitmq: RabbitMQ, own_redis: Redis, queue_name: str) -> Iterator[Make]:
    """Return a maker of guarded queues with a Redis of their own."""
    with ExitStack() as stack:

        def guarded(broker: RabbitMQ = rabbitmq, **options: Any) -> Guarded:
            return stack.enter_context(Guarded(broker, own_redis, queue_name, **options))

        yield guarded


def _publish_twice(guarded: Guarded) -> None:
    guarded.publish([(body, number) for number, body in enumerate(BODIES, 1)])
    guarded.publish([(body, number) for number, body in enumerate(BODIES, 1)])


@contextmanager
def _in_flow(guarded: Guarded) -> Iterator[ShimProcess]:
    """A shim that has begun to forward; it is drained and stopped in order afterwards."""
    _publish_twice(guarded)
    child = guarded.start_shim()
    child.wait_for("report")
    yield child
    guarded.wait_drained(child)
    guarded.stop(child)


# -- Redis ----------------------------------------------------------------------------------------


def test_redis_is_killed(make: Make, own_redis: Redis) -> None:
    """Redis dies and comes back: the shim waits, forwards nothing meanwhile, and goes on without a mark."""
    guarded = make()
    with _in_flow(guarded):
        own_redis.kill()
        time.sleep(WHILE_S)
        own_redis.start()
    guarded.assert_each_once(BODIES)


def test_redis_hangs(make: Make, own_redis: Redis) -> None:
    """Redis accepts and does not answer: as if it were down."""
    guarded = make()
    with _in_flow(guarded):
        own_redis.pause()
        time.sleep(3 * WHILE_S)
        own_redis.resume()
    guarded.assert_each_once(BODIES)


def test_redis_is_emptied_while_the_shim_lives(make: Make, own_redis: Redis) -> None:
    """Memory knows better than an empty Redis: it is written again, whole, and nothing is marked."""
    guarded = make()
    with _in_flow(guarded):
        own_redis.cli("flushall")
    guarded.assert_each_once(BODIES)


def test_redis_restarts_empty_while_the_shim_lives(make: Make, own_redis: Redis) -> None:
    """The same when another, empty process answers at the address."""
    guarded = make()
    with _in_flow(guarded):
        own_redis.empty()
    guarded.assert_each_once(BODIES)


def test_redis_goes_back_and_the_shim_dies(make: Make, own_redis: Redis) -> None:
    """An older copy of Redis, the broker alive: the ledger knows what was forwarded since, so nothing is marked."""
    guarded = make()
    guarded.run_until_drained()
    older = own_redis.snapshot()
    _publish_twice(guarded)
    child = guarded.start_shim()
    child.wait_for("report")
    child.kill()
    own_redis.restore(older)
    guarded.run_until_drained()
    guarded.assert_each_once(BODIES)


def test_redis_is_emptied_while_no_shim_lives(make: Make, own_redis: Redis) -> None:
    """Windows are gone and markers too: a re-send cannot be told from a first copy, so it is marked, never silent."""
    guarded = make()
    guarded.publish([(body, number) for number, body in enumerate(BODIES, 1)])
    child = guarded.start_shim(marker_keep_s=0.0)
    guarded.wait_drained(child)
    guarded.stop(child)
    own_redis.cli("flushall")
    guarded.publish([(body, number) for number, body in enumerate(BODIES, 1)])
    notices = guarded.run_until_drained()
    assert any(notice["event"] == "dedup.rolled_back" for notice in notices)
    found = guarded.assert_each_once(BODIES, marks=True)
    # The last batches are still in the ledger: their second copies are known and dropped.
    assert set(found.marked) >= set(BODIES[: -5 * guarded.batch_max]), (
        "every other second copy carries the mark"
    )


def test_redis_refuses_writes(make: Make, own_redis: Redis) -> None:
    """Out of memory: reads work and writes fail; the shim waits."""
    guarded = make()
    with _in_flow(guarded):
        own_redis.cli("config", "set", "maxmemory", "1")
        time.sleep(WHILE_S)
        own_redis.cli("config", "set", "maxmemory", "0")
    guarded.assert_each_once(BODIES)


# -- the connections ------------------------------------------------------------------------------


def test_connections_are_cut_again_and_again(make: Make) -> None:
    """Each cut ends a session; nothing is lost, doubled or marked."""
    guarded = make()
    with FaultProxy(guarded.rabbitmq.port) as proxy:
        guarded.amqp_url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/%2F"
        with _in_flow(guarded):
            for _ in range(5):
                proxy.cut()
                time.sleep(0.3)
    guarded.assert_each_once(BODIES)


def test_the_answer_to_a_commit_is_lost(make: Make) -> None:
    """The broker's answers vanish, then the link is cut: commits happened that nobody heard of."""
    guarded = make()
    with FaultProxy(guarded.rabbitmq.port) as proxy:
        guarded.amqp_url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/%2F"
        with _in_flow(guarded):
            for _ in range(4):
                proxy.drop(Direction.TO_CLIENT)
                time.sleep(0.2)
                proxy.heal()
                proxy.cut()
                time.sleep(0.4)
    guarded.assert_each_once(BODIES)


# -- the broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_broker_restarts(make: Make, own_rabbitmq: RabbitMQ, how: str) -> None:
    """The ledger is swept: what was in flight is forwarded marked, and nothing else is."""
    guarded = make(own_rabbitmq)
    with _in_flow(guarded):
        getattr(own_rabbitmq, how)()
        own_rabbitmq.start()
    found = guarded.assert_each_once(BODIES, marks=True)
    assert len(found.marked) <= guarded.batch_max


def test_the_broker_has_an_alarm(make: Make, own_rabbitmq: RabbitMQ) -> None:
    """While publishers are blocked the shim waits; afterwards nothing is marked."""
    guarded = make(own_rabbitmq)
    with _in_flow(guarded):
        own_rabbitmq.set_alarm()
        time.sleep(WHILE_S)
        own_rabbitmq.clear_alarm()
    guarded.assert_each_once(BODIES)


# -- the target -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target_type", ["classic", "quorum"])
def test_the_target_is_full(make: Make, own_rabbitmq: RabbitMQ, target_type: str) -> None:
    """A full target refuses: with confirms the shim tries again until there is room, and marks nothing."""
    guarded = make(own_rabbitmq, target_type=target_type, exact=False)
    pattern = f"^{guarded.queue}$"
    own_rabbitmq.ctl(
        "set_policy",
        guarded.queue,
        pattern,
        '{"max-length":20,"overflow":"reject-publish"}',
        "--apply-to",
        "queues",
    )
    with _in_flow(guarded) as child:
        child.wait_for("dedup.refused")
        own_rabbitmq.ctl("clear_policy", guarded.queue)
    guarded.assert_each_once(BODIES)


def test_the_target_begins_to_refuse_inside_transactions(make: Make, own_rabbitmq: RabbitMQ) -> None:
    """A policy set under a running shim makes commits partial: it changes to confirms and loses nothing."""
    guarded = make(own_rabbitmq)
    with _in_flow(guarded) as child:
        guarded.wait_drained(child)
        # Room for ten more: a limit below the depth would make the broker itself drop the oldest.
        limit = f'{{"max-length":{MESSAGES + 10},"overflow":"reject-publish"}}'
        own_rabbitmq.ctl("set_policy", guarded.queue, f"^{guarded.queue}$", limit, "--apply-to", "queues")
        guarded.publish([(f"late{number}", 1000 + number) for number in range(50)])
        ended = child.wait_for("dedup.session_ended")
        assert ended["outcome"] == "partial"
        own_rabbitmq.ctl("clear_policy", guarded.queue)
    guarded.assert_each_once([*BODIES, *(f"late{number}" for number in range(50))], marks=True)


def test_the_target_is_deleted_and_comes_back(make: Make) -> None:
    """Without a target the shim waits; what came in between is in the new target or in quarantine."""
    guarded = make()
    with _in_flow(guarded):
        with guarded.channel() as channel:
            lost_with_the_queue = channel.queue_delete(guarded.queue).method.message_count
        time.sleep(WHILE_S)
        with guarded.channel() as channel:
            declare(channel, guarded.queue, "classic")
    found = guarded.read()
    parked = guarded.read(names.quarantine(guarded.queue))
    # A batch under way may have entered the queue after its count was taken: deleted with it.
    assert len(found.order) + len(parked.order) + lost_with_the_queue >= MESSAGES - guarded.batch_max
    assert max((found.unmarked + parked.unmarked).values()) == 1


# -- the shim -------------------------------------------------------------------------------------


def test_a_paused_shim_wakes_up_after_a_take_over(make: Make) -> None:
    """SIGSTOP until another shim owns the queue, then SIGCONT: the old one does no harm."""
    guarded = make()
    guarded.amqp_url += "?heartbeat=1"
    _publish_twice(guarded)
    first = guarded.start_shim()
    first.wait_for("report")
    first.send_signal(signal.SIGSTOP)
    second = guarded.start_shim()
    second.wait_for("dedup.standby")
    second.wait_for("dedup.recovered")
    first.send_signal(signal.SIGCONT)
    guarded.wait_drained(second)
    guarded.stop(first)
    guarded.stop(second)
    guarded.assert_each_once(BODIES)
