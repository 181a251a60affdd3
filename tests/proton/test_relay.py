"""The shim whose ingress and target are AMQP 1.0, as a process on real servers: what passes, and what a kill leaves."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from proton import Message, char, symbol, timestamp, ubyte, ulong
from proton.utils import BlockingConnection

import dedup
import proton_adapter
from dedup.core import names
from dedup.core.identity import RETURNS_HEADER
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded
from tests.fault.returning import Returning, exchange
from tests.looking import channel, until
from tests.proton.looking import receive

Make = Callable[..., "Guarded10"]


class Guarded10(Guarded):
    """
    A guarded queue whose shim speaks AMQP 1.0.
    """

    def start_shim(self, kill: tuple[str, str, int] | None = None, **options: Any) -> Any:
        """Start a shim that ends itself at *kill*."""
        return super().start_shim(kill, **{"protocol": "amqp10", **options})


@pytest.fixture
def make(broker: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Make]:
    """Return a maker of guarded queues that are cleaned up."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Guarded10(broker, redis_server, queue_name, **options))


def _send(broker: RabbitMQ, queue: str, *messages: Message) -> None:
    """Send with proton's own client, to the ingress of *queue*."""
    connection = BlockingConnection(
        f"127.0.0.1:{broker.port}", user="guest", password="guest", allowed_mechs="PLAIN"
    )
    try:
        sender = connection.create_sender(f"/queues/{names.ingress(queue)}")
        for message in messages:
            sender.send(message)
    finally:
        connection.close()


def _rich(sequence: int) -> Message:
    """A message of everything that AMQP 0.9.1 could not carry."""
    return Message(
        id=uuid.UUID(int=7),
        correlation_id=ulong(2**64 - 1),
        subject="subject",
        reply_to="/queues/answers",
        content_type="application/x-mine",
        group_id="rich",
        group_sequence=sequence,
        creation_time=1_700_000_000.123,
        durable=True,
        priority=7,
        ttl=3600,
        annotations={symbol("x-opt-mine"): ["a list", {symbol("deep"): ubyte(3)}]},
        properties={
            "dedup-sequence": sequence,
            "uuid": uuid.UUID(int=9),
            "char": char("€"),
            "ulong": ulong(2**64 - 1),
            "time": timestamp(1_700_000_000_123),
            "none": None,
            "bytes": b"\x00\xff",
        },
        body={"typed": [1, 2.5, symbol("s"), None]},
    )


def _told(message: Message) -> dict[str, Any]:
    wanted = "id correlation_id subject reply_to content_type group_id group_sequence creation_time durable priority ttl properties body"
    told = {name: getattr(message, name) for name in wanted.split()}
    told["types"] = {name: type(value) for name, value in message.properties.items()}
    told["annotations"] = message.annotations["x-opt-mine"]
    told["properties"] = {
        name: bytes(value) if isinstance(value, memoryview) else value
        for name, value in message.properties.items()
    }
    return told


def test_a_reader_of_1_0_sees_what_a_direct_send_had_given_it(make: Make, broker: RabbitMQ) -> None:
    """Types, annotations and a typed body; what comes twice is there once."""
    guarded = make()
    direct = f"{guarded.queue}.direct"
    with channel(broker) as opened:
        opened.queue_declare(direct, durable=True)
    with proton_adapter.Publisher(broker.url, "unused", registration="local"):
        connection = BlockingConnection(
            f"127.0.0.1:{broker.port}", user="guest", password="guest", allowed_mechs="PLAIN"
        )
        connection.create_sender(f"/queues/{direct}").send(_rich(5))
        connection.close()
    _send(broker, guarded.queue, _rich(5), _rich(5), _rich(6))
    guarded.run_until_drained()
    assert guarded.depth(guarded.queue) == 2
    (expected,) = receive(broker, direct, 1)
    first, second = receive(broker, guarded.queue, 2)
    assert _told(first) == _told(expected)
    assert second.group_sequence == 6
    with channel(broker) as opened:
        opened.queue_delete(direct)


def test_each_message_once_in_order_whoever_published(make: Make, broker: RabbitMQ) -> None:
    """Publishers of both protocols, each retried over the other one, behind this shim."""
    guarded = make()
    with proton_adapter.Publisher(broker.url, "new", base=0) as publisher:
        for n in range(300):
            publisher.submit(b"new %d" % n, queue=guarded.queue)
    guarded.publish([(f"old {n}", n + 1) for n in range(50)], publisher="old")
    guarded.publish([(f"new {n}", n + 1) for n in range(290, 310)], publisher="new")
    guarded.run_until_drained(batch_max=100)
    bodies = [f"old {n}" for n in range(50)] + [f"new {n}" for n in range(310)]
    found = guarded.assert_each_once(bodies)
    for who, count in (("old", 50), ("new", 310)):
        assert [body for body in found.order if body.startswith(who)] == [f"{who} {n}" for n in range(count)]


def test_what_cannot_be_believed_is_quarantined_with_its_reason(make: Make, broker: RabbitMQ) -> None:
    """A sequence of a wrong type; and a mark that somebody forged is taken off what passes."""
    guarded = make()
    good = Message(body=b"good", inferred=True, durable=True, group_id="p", user_id=b"guest")
    good.properties = {"dedup-sequence": 1, "dedup-possible-duplicate": True}
    bad = Message(body=b"bad", inferred=True, durable=True, group_id="p", properties={"dedup-sequence": "1"})
    _send(broker, guarded.queue, bad, good)
    guarded.run_until_drained()
    found = guarded.read()
    assert (found.unmarked, found.marked) == ({"good": 1}, {})
    assert guarded.read(names.quarantine(guarded.queue)).reasons == {"bad": "sequence-kind"}


def test_routing_keys_stay(make: Make, broker: RabbitMQ) -> None:
    """More of them than links are kept open, in order."""
    guarded = make()
    with channel(broker) as opened:
        opened.exchange_declare(f"{guarded.queue}.x", "topic", durable=True)
        opened.queue_bind(names.ingress(guarded.queue), f"{guarded.queue}.x", "#")
        with proton_adapter.Publisher(broker.url, "p", base=0) as publisher:
            for n in range(80):
                publisher.submit(b"%d" % n, exchange=f"{guarded.queue}.x", routing_key=f"key/{n} ü")
        guarded.run_until_drained(batch_max=50)
        for n in range(80):
            method, _, body = opened.basic_get(guarded.queue, auto_ack=True)
            assert (body, method.routing_key) == (b"%d" % n, f"key/{n} ü")
        opened.exchange_delete(f"{guarded.queue}.x")


class Returning10(Guarded10, Returning):
    """
    One whose messages die in it and come back.
    """


@pytest.mark.parametrize("stamped", [True, False], ids=["stamp", "group"])
def test_each_death_comes_back_and_no_copy_of_one_does(
    broker: RabbitMQ, redis_server: Redis, queue_name: str, stamped: bool
) -> None:
    """Two waiting queues lead from the target back to the ingress, so each death comes back twice."""
    relay = {"by_group_sequence": not stamped}
    dlx, back = f"{queue_name}.dlx", names.ingress(queue_name)
    waiting = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": back}
    with (
        Returning10(broker, redis_server, queue_name, dead={"x-dead-letter-exchange": dlx}) as guarded,
        exchange(broker, dlx, {f"{queue_name}.wait{number}": waiting for number in (1, 2)}),
    ):
        identity = {"properties": {"dedup-sequence": 7}} if stamped else {"group_sequence": 7}
        _send(broker, queue_name, Message(body=b"m", inferred=True, durable=True, group_id="p", **identity))
        for returns in range(3):
            guarded.run_until_drained(relay=relay)
            assert guarded.take().get(RETURNS_HEADER, 0) == returns
            until(lambda: guarded.depth(back) == 2)
            assert guarded.depth(queue_name) == 0, "a copy came through"
        guarded.run_until_drained(relay=relay)
        guarded.assert_each_once(["m"])


def _of_group(number: int) -> Message:
    return Message(
        body=b"%d" % number, inferred=True, durable=True, group_id="jms", group_sequence=number % 2**32
    )


def test_groups_are_told_by_their_numbers_when_asked_for(make: Make, broker: RabbitMQ) -> None:
    """Over the wrap at 2^32 and over a restart of the shim; without the setting every copy passes: the control."""
    guarded = make()
    asked = {"relay": {"by_group_sequence": True}}
    numbers = [2**32 - 2, 2**32 - 1, 2**32 + 1, 2**32 + 2]
    _send(broker, guarded.queue, *(_of_group(number) for number in (*numbers[:3], numbers[2])))
    guarded.run_until_drained(**asked)
    _send(broker, guarded.queue, *(_of_group(number) for number in (numbers[2], numbers[3], numbers[3])))
    guarded.run_until_drained(**asked)
    assert guarded.read().order == [str(number) for number in numbers]
    _send(broker, guarded.queue, *(_of_group(number) for number in (7, 7)))
    guarded.run_until_drained()
    assert guarded.read().order == ["7", "7"]


def test_a_question_is_answered_and_is_no_message(make: Make, broker: RabbitMQ) -> None:
    """A publisher of 0.9.1 asks where to resume, behind what it has published; the answer comes, and nothing in the target."""
    guarded = make()
    guarded.publish([(str(n), n) for n in (1, 2, 3, 5)], publisher="p")
    shim = guarded.start_shim()
    shim.wait_for("dedup.recovered")
    with dedup.Publisher(broker.url, "p", registration="local") as publisher:
        point = publisher.resume_point(queue=guarded.queue, timeout=20)
    guarded.wait_drained(shim)
    guarded.stop(shim)
    assert (point.maximum, point.missing) == (5, ((4, 4),))
    guarded.assert_each_once(["1", "2", "3", "5"])
    assert guarded.depth(names.quarantine(guarded.queue)) == 0


@pytest.mark.parametrize(
    "kill",
    [
        ("before", "Save", 2),
        ("after", "Save", 2),
        ("after", "Forward", 1),
        ("after", "Forward", 2),
        ("before", "Ack", 1),
        ("after", "Ack", 1),
    ],
    ids=lambda kill: "-".join(map(str, kill)),
)
def test_a_killed_shim_loses_and_doubles_nothing_unmarked(make: Make, kill: tuple[str, str, int]) -> None:
    """Whatever the next one cannot know is in the target marked; at most the batch of the kill is."""
    guarded = make()
    bodies = [str(n) for n in range(20)]
    guarded.publish([(body, n + 1) for n, body in enumerate(bodies)])
    guarded.run_until_killed(kill)
    guarded.run_until_drained()
    found = guarded.assert_each_once(bodies, marks=True)
    assert sum(found.marked.values()) <= guarded.batch_max


@pytest.mark.long
def test_a_frozen_shim_is_replaced_and_harms_nothing_when_it_wakes(
    private_rabbitmq: Callable[..., RabbitMQ], redis_server: Redis, queue_name: str
) -> None:
    """
    SIGSTOP until the broker has given fence and ingress to another one, then SIGCONT: both connections are dead.

    Over AMQP 1.0 it is the broker's own setting that says how long a client may be silent.
    """
    broker = private_rabbitmq("4.0", config={"heartbeat": "2"})
    with Guarded10(broker, redis_server, queue_name) as guarded:
        _freeze(guarded)


def _freeze(guarded: Guarded10) -> None:
    guarded.amqp_url += "?heartbeat=1"
    guarded.publish([(str(n), n + 1) for n in range(20)])
    frozen = guarded.start_shim(("after", "Forward", 2), signal=int(signal.SIGSTOP))
    frozen.wait_until_frozen()
    other = guarded.start_shim()
    other.wait_for("dedup.recovered")
    guarded.publish([(str(n), n + 1) for n in range(20, 40)])
    guarded.wait_drained(other)
    frozen.send_signal(signal.SIGCONT)
    time.sleep(1)
    guarded.stop(other)
    frozen.kill()
    guarded.assert_each_once([str(n) for n in range(40)], marks=True)


def test_shims_of_both_protocols_take_turns(make: Make) -> None:
    """The state is the same: either goes on where the other one stopped, or was killed."""
    guarded = make()
    bodies = [str(n) for n in range(60)]
    for turn, protocol in enumerate(("amqp10", "amqp091", "amqp10")):
        batch = list(enumerate(bodies))[max(0, 20 * turn - 5) : 20 * turn + 20]
        guarded.publish([(body, n + 1) for n, body in batch])
        guarded.run_until_drained(protocol=protocol)
    assert guarded.assert_each_once(bodies).order == bodies


@pytest.mark.each_version("long")
@pytest.mark.parametrize(
    ("queues", "kill", "marks_max"),
    [
        ({}, ("before", "Save", 3), 0),
        ({"exact": False, "target_type": "quorum", "ingress_type": "quorum"}, ("after", "Forward", 2), 1),
    ],
    ids=["exact", "parts"],
)
def test_a_killed_shim_of_0_9_1_is_followed_as_by_its_like(
    make: Make, queues: dict[str, Any], kill: tuple[str, str, int], marks_max: int
) -> None:
    """What its markers prove is believed over AMQP 1.0 too; and what a killed shim of 1.0 leaves costs its batch, whoever follows."""
    guarded = make(**queues)
    bodies = [str(n) for n in range(60)]
    guarded.publish([(body, n + 1) for n, body in enumerate(bodies[:40])])
    assert guarded.start_shim(kill, protocol="amqp091").wait() < 0
    guarded.run_until_drained()
    found = guarded.read()
    assert sum(found.marked.values()) <= marks_max
    guarded.publish([(body, n + 1) for n, body in enumerate(bodies)])
    guarded.run_until_killed(("after", "Forward", 1))
    guarded.run_until_drained(protocol="amqp091")
    after = guarded.read()
    assert sum(after.marked.values()) <= guarded.batch_max
    copies = [*found.copies, *after.copies]
    assert {body for body, _ in copies} == {*bodies}
    unmarked = [body for body, marked in copies if not marked]
    assert len(unmarked) == len({*unmarked})


def test_a_broker_killed_under_load_loses_nothing(make: Make, broker: RabbitMQ) -> None:
    """Both connections are lost; the same shim goes on when the broker is back."""
    guarded = make()
    bodies = [str(n) for n in range(400)]
    guarded.publish([(body, n + 1) for n, body in enumerate(bodies)])
    shim = guarded.start_shim()
    shim.wait_for("dedup.recovered")
    time.sleep(0.2)
    broker.kill()
    broker.start()
    guarded.wait_drained(shim)
    guarded.stop(shim)
    guarded.assert_each_once(bodies, marks=True)


def test_a_full_target_is_waited_for(make: Make, broker: RabbitMQ) -> None:
    """``rejected`` by the target: nothing is marked, nothing lost, and the order stays."""
    guarded = make()
    broker.ctl("set_policy", "full", f"^{guarded.queue}$", '{"max-length":5,"overflow":"reject-publish"}')
    guarded.publish([(str(n), n + 1) for n in range(20)])
    shim = guarded.start_shim()
    shim.wait_for("dedup.recovered")
    time.sleep(1.0)
    assert guarded.depth(guarded.queue) in (5, 6)
    broker.ctl("clear_policy", "full")
    guarded.wait_drained(shim)
    guarded.stop(shim)
    found = guarded.read()
    assert (sum(found.unmarked.values()), len(found.unmarked), found.marked) == (20, 20, {})
