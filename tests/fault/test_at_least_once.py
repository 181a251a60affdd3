"""Dead-lettering at least once: what it keeps, the duplicates it makes, and that guarding the dead letters removes them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests import looking
from tests.fault.guarded import Guarded
from tests.looking import until

PAGE = Path(__file__).parents[2] / "docs/howto/dead-letter-at-least-once.md"
MESSAGES = 12


def arguments(exchange: str, **changes: Any) -> dict[str, Any]:
    """The arguments that the how-to gives, for another exchange."""
    found = re.findall(r'^ +"(x-[\w-]+)": "([\w.-]+)",', PAGE.read_text("utf-8"), re.MULTILINE)
    given = dict(found)
    assert given.keys() >= {"x-queue-type", "x-dead-letter-exchange", "x-dead-letter-strategy", "x-overflow"}
    wanted = {**given, "x-dead-letter-exchange": exchange, **changes}
    return {name: value for name, value in wanted.items() if value is not None}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is to be cleaned up."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def channel(rabbitmq: RabbitMQ, stack: ExitStack) -> Any:
    """A plain pika channel with confirms."""
    return stack.enter_context(looking.channel(rabbitmq))


def source(channel: Any, stack: ExitStack, name: str, exchange: str, **changes: Any) -> str:
    """Declare a quorum queue that dead-letters into a fanout exchange."""
    channel.exchange_declare(exchange, "fanout")
    channel.queue_declare(name, durable=True, arguments=arguments(exchange, **changes))

    def delete() -> None:
        with suppress(pika.exceptions.AMQPError):
            channel.queue_delete(name)
            channel.exchange_delete(exchange)

    stack.callback(delete)
    return name


def reject_all(channel: Any, queue: str, bodies: list[str]) -> None:
    """Publish stamped messages and let them die."""
    for number, body in enumerate(bodies, 1):
        made = pika.BasicProperties(app_id="shop", headers={"dedup-sequence": number}, delivery_mode=2)
        channel.basic_publish("", queue, body.encode(), made)
    left = len(bodies)
    until(lambda: channel.queue_declare(queue, passive=True).method.message_count == left)
    while left:
        method, _, _ = channel.basic_get(queue)
        channel.basic_reject(method.delivery_tag, requeue=False)
        left -= 1


def kill_worker(rabbitmq: RabbitMQ, queue: str) -> None:
    """Kill the process in the broker that dead-letters for *queue*, as a crash would; it is started again."""
    told = rabbitmq.evaluate(
        "[exit(P, kill) || {_, P, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup), is_pid(P), "
        f'lists:member({{resource, <<"/">>, queue, <<"{queue}">>}}, tuple_to_list(sys:get_state(P)))].'
    )
    assert told == "[true]", told


def test_its_duplicates_are_removed_by_guarding_the_dead_letters(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, channel: Any, stack: ExitStack) -> None:  # fmt: skip
    """
    The worker that dead-letters dies after one queue has confirmed and before all have: it sends everything again.

    A third queue, full and refusing, keeps the source from letting go. The plain queue of dead letters then holds each message
    twice, unmarked: that is the control. Behind an ingress of its own each comes once.
    """
    plain, full, exchange = (f"{queue_name}-{name}" for name in ("plain", "full", "dlx"))
    if rabbitmq.version < "4":
        stack.callback(rabbitmq.kill)  # 3.10 starts that worker again and none for later queues
    guarded = stack.enter_context(Guarded(rabbitmq, redis_server, f"{queue_name}-letters"))
    orders = source(channel, stack, f"{queue_name}-orders", exchange)
    channel.queue_declare(plain, durable=True)
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    stack.callback(lambda: [channel.queue_delete(name) for name in (plain, full)])
    channel.basic_publish("", full, b"full")
    ingress = names.ingress(guarded.queue)
    for name in (plain, full, ingress):
        channel.queue_bind(name, exchange)
    bodies = [f"order {number}" for number in range(1, MESSAGES + 1)]
    reject_all(channel, orders, bodies)
    until(lambda: guarded.depth(plain) == guarded.depth(ingress) == MESSAGES)
    kill_worker(rabbitmq, orders)
    until(lambda: guarded.depth(plain) == guarded.depth(ingress) == 2 * MESSAGES)
    assert guarded.read(plain).unmarked == Counter(dict.fromkeys(bodies, 2))
    guarded.run_until_drained()
    guarded.assert_each_once(bodies)
    assert guarded.depth(names.quarantine(guarded.queue)) == 0


@pytest.mark.parametrize(
    ("changes", "kept"),
    [({}, True), ({"x-overflow": None}, False), ({"x-dead-letter-strategy": None}, False)],
    ids=["as the page says", "without reject-publish", "without the strategy"],
)
def test_the_arguments_keep_what_nobody_takes(rabbitmq: RabbitMQ, queue_name: str, channel: Any, stack: ExitStack, *, changes: dict[str, Any], kept: bool) -> None:  # fmt: skip
    """A dead letter that no queue is bound for waits in its queue until one is; with an argument less it is lost."""
    exchange, late = f"{queue_name}-dlx", f"{queue_name}-late"
    again_after_ms = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, {})."
    rabbitmq.evaluate(again_after_ms.format(300))
    stack.callback(lambda: rabbitmq.evaluate(again_after_ms.format(180_000)))  # its default
    orders = source(channel, stack, f"{queue_name}-orders", exchange, **changes)
    reject_all(channel, orders, ["one"])
    # The broker has carried the rejection out when it answers about the queue.
    assert channel.queue_declare(orders, passive=True).method.message_count == 0
    channel.queue_declare(late, durable=True)
    stack.callback(lambda: channel.queue_delete(late))
    if kept:
        channel.queue_bind(late, exchange)
        until(lambda: channel.queue_declare(late, passive=True).method.message_count == 1)
        return
    # A second message, which has somewhere to go, comes behind the first: that one will not come any more.
    time.sleep(0.5)
    channel.queue_bind(late, exchange)
    reject_all(channel, orders, ["two"])
    until(lambda: channel.queue_declare(late, passive=True).method.message_count)
    assert channel.basic_get(late, auto_ack=True)[2] == b"two"
    assert channel.queue_declare(late, passive=True).method.message_count == 0
