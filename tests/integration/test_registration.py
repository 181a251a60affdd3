"""Registration over AMQP 0.9.1: what it keeps over every protocol, what kills a registry, and plain pika channels."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from dedup.amqp091.channels import register
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.registry import RegistryServer
from dedup.core.identity import RANGE_SIZE
from dedup.core.registration import HELD_GRACE_S
from dedup.core.registry import REGISTRY, Act, Answer, Record, Request, lock_queue
from dedup.errors import (
    BrokerUnavailableError,
    ConfigError,
    FencedError,
    PublisherAlreadyRegisteredError,
    RegistryUnavailableError,
    StoreUnavailableError,
)
from dedup.publisher import Properties, Publisher
from dedup.testing.proxy import FaultProxy
from dedup.testing.registry import MemoryRegistry
from dedup.testing.servers import RabbitMQ, Redis
from tests import looking
from tests.commands import running
from tests.fault.child import PATIENCE_S
from tests.holding import takes_lock
from tests.looking import over, until
from tests.registration_contract import RegistrationContract

pytestmark = pytest.mark.usefixtures("without_registry")


class TestRegistration(RegistrationContract):
    """
    What it keeps whatever protocol the publisher speaks.
    """

    publisher = Publisher
    properties = Properties
    kinds = (Publisher,)


# -- connections that come and go -----------------------------------------------------------------


@pytest.mark.parametrize("registered", [True, False], ids=["answer lost", "request lost"])
def test_a_publisher_cut_off_while_it_registers_is_not_refused_for_its_own_sake(
    rabbitmq: RabbitMQ,
    queue: str,
    registry: MemoryRegistry,
    monkeypatch: pytest.MonkeyPatch,
    registered: bool,
) -> None:
    """Its lost connection has the lock still: the registry knows the owner by its nonce; if not, the broker is waited for."""
    asked = threading.Event()
    carry_out = registry.answer

    def answers_nobody(request: Request) -> Answer:
        if request.act is Act.REGISTER:
            if registered:
                carry_out(request)
            asked.set()
        raise StoreUnavailableError("away")

    monkeypatch.setattr(registry, "answer", answers_nobody)
    with FaultProxy(rabbitmq.port) as link, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Publisher, over(link), "p", connect_timeout_s=PATIENCE_S)
        assert asked.wait(PATIENCE_S)
        link.refuse()
        link.cut()
        with looking.channel(rabbitmq) as ghost:
            until(lambda: takes_lock(ghost))
            monkeypatch.setattr(registry, "answer", carry_out)
            link.heal()
            if registered:
                opening.result(PATIENCE_S)
            else:
                time.sleep(2 * HELD_GRACE_S)  # long enough to be refused, were it another's
                assert not opening.done()
        with opening.result(PATIENCE_S) as publisher:
            assert publisher.publish(b"1", routing_key=queue).attempts == 1


# -- a registry that fails ------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_an_emptied_registry_goes_on_above(rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry) -> None:
    """Also at once, and also while an older owner lives, which then is the one to be fenced."""
    bases = []
    for _ in range(3):
        with Publisher(rabbitmq.url, "p") as publisher:
            bases.append(publisher.publish(b"1", routing_key=queue).sequence)
        registry.empty()
    assert bases == sorted({*bases})
    with Publisher(rabbitmq.url, "p") as old:
        registry.empty()
        with Publisher(rabbitmq.url, "p", takeover=True) as new:
            assert new.publish(b"1", routing_key=queue).sequence > bases[-1]
            until(lambda: repr(old).endswith("closed>"))


def test_a_registry_killed_before_it_answers_only_delays(rabbitmq: RabbitMQ, queue: str) -> None:
    """What it had written down and not answered is asked of the next one, which gives the same owner the same range."""

    class Dying(MemoryRegistry):
        """Carries the first request out and dies."""

        def answer(self, request: Request) -> Answer:
            answer = super().answer(request)
            if not died:
                died.append(answer.record)
                raise ConnectionResetError
            return answer

    died: list[Record] = []
    memory = Dying(time.time)
    memory.age(10_000)
    servers = [RegistryServer(connection_parameters(rabbitmq.url, name="registry"), memory) for _ in range(2)]

    def run(server: RegistryServer) -> None:
        try:
            server.run()
        except BrokerUnavailableError:
            ended.append(server)

    ended: list[RegistryServer] = []
    threads = [threading.Thread(target=run, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        with Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S) as publisher:
            assert publisher.publish(b"1", routing_key=queue).sequence == died[0].base + 1
        assert len(ended) == 1
    finally:
        for server in servers:
            server.stop()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("impatient")
def test_a_killed_registry_process_is_replaced_by_another(
    rabbitmq: RabbitMQ, redis_server: Redis, queue: str
) -> None:
    """``dedup registry`` killed with -9: publishers go on, and the next process knows what the first one handed out."""
    command = ["registry", "--amqp", rabbitmq.url, "--redis", redis_server.url, "--redis-prefix", queue]
    with running(command) as first:
        publisher = Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S)
        before = publisher.publish(b"1", routing_key=queue)
        first.kill()
        first.wait()
    with publisher:
        assert publisher.publish(b"2", routing_key=queue).sequence == before.sequence + 1
        with pytest.raises(RegistryUnavailableError):
            Publisher(rabbitmq.url, "q", connect_timeout_s=0.9)
    with running(command), Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S) as second:
        after = second.publish(b"3", routing_key=queue)
        with pytest.raises(PublisherAlreadyRegisteredError, match=f"process {os.getpid()}"):
            Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S)
    assert after.sequence > before.sequence + RANGE_SIZE // 2


# -- who asks the registry ------------------------------------------------------------------------


def test_hostile_requests_end_nothing_and_reach_no_queue(rabbitmq: RabbitMQ, queue: str) -> None:
    """Whatever is asked, by whomever, to be answered wherever: the next honest publisher is served."""
    counted: Counter[str] = Counter()
    memory = MemoryRegistry(time.time)
    server = RegistryServer(
        connection_parameters(rabbitmq.url, name="registry"),
        memory,
        count=lambda outcome: counted.update([outcome]),
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    good = {"id": 1, "act": "register", "publisher_id": "p", "owner": "a", "holder": "", "last": 0}
    bodies = [
        b"",
        b"\xff",
        b"[" * 4000,
        b"x" * 100_000,
        b"null",
        json.dumps({**good, "publisher_id": "x" * 300}).encode(),
    ]
    bodies += [json.dumps({**good, "last": 2**63}).encode(), json.dumps({**good, "act": 1}).encode()]
    try:
        with looking.channel(rabbitmq) as channel:
            until(lambda: _serves(rabbitmq))
            answers: list[bytes] = []
            channel.basic_consume(
                "amq.rabbitmq.reply-to", lambda *delivery: answers.append(delivery[3]), auto_ack=True
            )
            for body in bodies:
                channel.basic_publish(
                    REGISTRY, "", body, pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
                )
            for reply_to in (None, "", queue, lock_queue("p"), "amq.rabbitmq.reply-to.x" * 10):
                for body in (json.dumps(good).encode(), b"?"):
                    channel.basic_publish(REGISTRY, "", body, pika.BasicProperties(reply_to=reply_to))
            hostile = pika.BasicProperties(
                reply_to="amq.rabbitmq.reply-to", headers={"n": {"n": [1, "x" * 1000]}}
            )
            channel.basic_publish(REGISTRY, "", json.dumps(good).encode(), hostile)
            end = time.monotonic() + PATIENCE_S
            while len(answers) < len(bodies) + 1 and time.monotonic() < end:
                channel.connection.process_data_events(time_limit=0.1)
        refused = [json.loads(answer)["refusal"] for answer in answers]
        assert refused[:-1] == ["invalid"] * len(bodies)
        with looking.channel(rabbitmq) as channel:
            assert channel.queue_declare(queue, passive=True).method.message_count == 0
        with Publisher(rabbitmq.url, "p") as publisher:
            publisher.publish(b"1", routing_key=queue)
        assert counted["dropped"] >= 8
        assert counted["invalid"] >= len(bodies)
        assert thread.is_alive()
    finally:
        server.stop()
        thread.join()


def _serves(rabbitmq: RabbitMQ) -> bool:
    """Say whether somebody consumes requests."""
    with looking.channel(rabbitmq) as channel:
        try:
            return bool(channel.queue_declare(REGISTRY, passive=True).method.consumer_count)
        except pika.exceptions.ChannelClosedByBroker:
            return False


# -- plain pika channels --------------------------------------------------------------------------


def test_a_channel_has_one_publisher_id(rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry) -> None:
    """Again the same one is fine; a second one is refused and closes the channel."""
    del registry, queue
    with looking.channel(rabbitmq) as channel:
        registered = register(channel, "p")
        assert registered.base % RANGE_SIZE == 0
        assert register(channel, "p") is registered
        with pytest.raises(ConfigError, match="'p' and cannot have 'q'"):
            register(channel, "q")
        assert channel.is_closed


def test_a_channel_that_asks_for_a_taken_id_is_closed(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """By the broker itself; the connection lives, and with it ends what it has registered."""
    del registry, queue
    with looking.channel(rabbitmq) as second:
        with looking.channel(rabbitmq) as first:
            base = register(first, "p").base
            with pytest.raises(PublisherAlreadyRegisteredError, match=f"process {os.getpid()}"):
                register(second, "p")
            assert second.is_closed
            with pytest.raises(PublisherAlreadyRegisteredError):
                Publisher(rabbitmq.url, "p")
        assert register(second.connection.channel(), "p").base > base


def test_a_channel_that_was_taken_over_hears_it_when_it_asks(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """Nobody can tell it in between: its owner asks now and then."""
    del registry
    with looking.channel(rabbitmq) as first, looking.channel(rabbitmq) as second:
        old = register(first, "p")
        old.check()
        new = register(second, "p", takeover=True)
        assert second.is_open
        second.basic_publish("", queue, b"1")
        assert new.base > old.base
        new.check()
        with pytest.raises(FencedError):
            old.check()


def test_a_channel_without_a_registry(rabbitmq: RabbitMQ, queue: str) -> None:
    """The same error as for the SDK's publisher; a channel whose connection is gone says so."""
    del queue
    with looking.channel(rabbitmq) as channel, pytest.raises(RegistryUnavailableError, match="404"):
        register(channel, "p", timeout_s=0.1)
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    connection.close()
    with pytest.raises(BrokerUnavailableError):
        register(channel, "p")
