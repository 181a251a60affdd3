"""Messages that die in the target and come back: each death comes through, and no copy of one does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dedup.core import names
from dedup.core.identity import RETURNS_HEADER
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded
from tests.fault.returning import Returning, exchange
from tests.fault.test_at_least_once import kill_worker
from tests.looking import until

DEATHS = 5
STAMP: dict[str, Any] = {"app_id": "p", "headers": {"dedup-sequence": 1}}
MESSAGE_ID: dict[str, Any] = {"message_id": "event"}
BY_ID = {"relay": {"by_message_id": True}}


@pytest.fixture
def make(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Callable[..., Returning]]:
    """Return a maker of guarded queues."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Returning(rabbitmq, redis_server, queue_name, **options))


@contextmanager
def shim(guarded: Guarded, **options: Any) -> Iterator[None]:
    """Run a shim meanwhile."""
    child = guarded.start_shim(**options)
    child.wait_for("dedup.recovered")
    yield
    guarded.wait_drained(child)
    guarded.stop(child, **options)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("identity", [STAMP, MESSAGE_ID], ids=["stamp", "message id"])
def test_what_is_rejected_at_once_comes_back_each_time(
    make: Callable[..., Returning], kind: Any, identity: dict[str, Any]
) -> None:
    """Five deaths, often within one second, whose histories may be the same: five returns, and a count of them."""
    guarded = make(target_type=kind, exact=kind == "classic")
    guarded.send("m", **identity)
    with shim(guarded, **BY_ID):
        for returns in range(DEATHS):
            assert guarded.take().get(RETURNS_HEADER, 0) == returns
    guarded.assert_each_once(["m"])


@pytest.mark.parametrize("identity", [STAMP, MESSAGE_ID], ids=["stamp", "message id"])
def test_copies_of_one_re_entry_come_through_once(
    make: Callable[..., Returning], identity: dict[str, Any]
) -> None:
    """Also when another shim has forwarded the first; and what was forwarded dies, and comes back, as ever."""
    guarded = make(aside=True)
    guarded.send("m", **identity)
    for returns in range(3):
        guarded.run_until_drained(**BY_ID)
        assert guarded.depth(guarded.queue) == 1
        assert guarded.take().get(RETURNS_HEADER, 0) == returns
        guarded.copy_back(2)
    guarded.run_until_drained(**BY_ID)
    guarded.assert_each_once(["m"])


def test_what_nothing_tells_comes_through_with_every_copy(make: Callable[..., Returning]) -> None:
    """The control: without a stamp or an id the copies are there."""
    guarded = make(aside=True)
    guarded.send("m")
    guarded.run_until_drained()
    guarded.take()
    guarded.copy_back(3)
    guarded.run_until_drained()
    assert guarded.read().unmarked == {"m": 3}


def test_copies_that_came_by_two_ways_are_copies(
    make: Callable[..., Returning], rabbitmq: RabbitMQ, queue_name: str
) -> None:
    """The dead-letter exchange leads to the ingress through two queues that wait: the histories differ, the death is one."""
    dlx, back = f"{queue_name}.dlx", names.ingress(queue_name)
    waiting = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": back}
    guarded = make(dead={"x-dead-letter-exchange": dlx})
    with exchange(rabbitmq, dlx, {f"{queue_name}.wait{number}": waiting for number in (1, 2)}):
        guarded.send("m", **STAMP)
        for returns in range(3):
            guarded.run_until_drained()
            assert guarded.depth(queue_name) == 1
            assert guarded.take().get(RETURNS_HEADER, 0) == returns
            until(lambda: guarded.depth(back) == 2)
        guarded.run_until_drained()
        guarded.assert_each_once(["m"])


def test_what_is_dead_lettered_at_least_once_comes_through_once(
    make: Callable[..., Returning], rabbitmq: RabbitMQ, queue_name: str
) -> None:
    """
    The process of the broker that dead-letters dies before all queues have confirmed, and sends everything again.

    It does so later than the first time: the copies have another time of death, and are copies.
    """
    dlx, back, full = f"{queue_name}.dlx", names.ingress(queue_name), f"{queue_name}.full"
    dead = {
        "x-dead-letter-exchange": dlx,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    bodies = [f"m{number}" for number in range(1, 7)]
    refusing = {full: {"x-max-length": 1, "x-overflow": "reject-publish"}}
    with ExitStack() as stack:
        if rabbitmq.version < "4":
            stack.callback(rabbitmq.kill)  # 3.10 starts that worker again and none for later queues
        guarded = make(target_type="quorum", exact=False, dead=dead)
        guarded.publish([(body, number) for number, body in enumerate(bodies, 1)])
        guarded.run_until_drained()
        channel = stack.enter_context(exchange(rabbitmq, dlx, refusing))
        channel.basic_publish("", full, b"full")
        channel.queue_bind(back, dlx)
        for _ in bodies:
            guarded.take()
        until(lambda: guarded.depth(back) == len(bodies))
        time.sleep(1)  # what a time of death is told in
        kill_worker(rabbitmq, queue_name)
        until(lambda: guarded.depth(back) == 2 * len(bodies))
        with guarded.channel() as other:
            copies = [other.basic_get(back)[1].headers["x-death"][0] for _ in range(2 * len(bodies))]
        assert len({death["time"] for death in copies}) > 1, "all copies tell one time: the test is too easy"
        assert {death["count"] for death in copies} == {1}
        guarded.run_until_drained()
        guarded.assert_each_once(bodies)


@pytest.mark.parametrize(
    ("exact", "kills"),
    [
        (True, [("after", "Save", 2), ("before", "Forward", 1), ("after", "Forward", 1), ("before", "Ack", 1)]),
        (False, [("after", "Save", 2), ("after", "Forward", 1), ("before", "Ack", 1)]),
    ],
    ids=["exact", "confirmed"],
)  # fmt: skip
def test_a_killed_shim_loses_and_doubles_no_re_entry(
    make: Callable[..., Returning], exact: bool, kills: list[tuple[str, str, int]]
) -> None:
    """Two copies of each, and a kill in the midst of them: exact, each is there once and unmarked."""
    guarded = make(aside=True, exact=exact)
    bodies = [f"m{number}" for number in range(1, 9)]
    guarded.publish([(body, number) for number, body in enumerate(bodies, 1)])
    guarded.run_until_drained()
    for _ in bodies:
        guarded.take()
        guarded.copy_back(2)
    for kill in kills:
        assert guarded.start_shim(kill).wait(60) < 0
    guarded.run_until_drained()
    found = guarded.assert_each_once(bodies, marks=not exact)
    assert not exact or found.order == bodies


def test_an_id_that_may_be_another_message_is_let_through_marked(make: Callable[..., Returning]) -> None:
    """
    Somebody publishes a dead letter to the target with its message id and without its headers; it dies, and comes back.

    Nothing counts its returns any more, so it looks like the first re-entry once more. It died after that was forwarded:
    it goes on, marked.
    """
    guarded = make(aside=True)
    guarded.send("m", **MESSAGE_ID)
    for again in (False, True):
        guarded.run_until_drained(**BY_ID)
        guarded.take()
        guarded.copy_back(1)
        guarded.run_until_drained(**BY_ID)
        if again:
            break
        guarded.take(keep=True)
        time.sleep(2.1)  # times of death are whole seconds, and so are those of what is known
        guarded.send("m", guarded.queue, **MESSAGE_ID)
    assert guarded.read().copies == [("m", True)]
