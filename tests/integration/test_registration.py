"""Registration on a real broker: one holder at a time, a take-over, and every way in which a registry can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pika
import pytest

from dedup import registrar
from dedup.amqp091.channels import register
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.registry import RegistryServer
from dedup.core import names
from dedup.core.identity import NOT_BOUND_TO_USER, RANGE_SIZE, Receipt, UserBinding
from dedup.core.questions import Told
from dedup.core.registration import HELD_GRACE_S
from dedup.core.registry import (
    REGISTRY,
    Act,
    Answer,
    Record,
    Request,
    decode_request,
    encode_answer,
    lock_queue,
)
from dedup.errors import (
    BrokerUnavailableError,
    ConfigError,
    DedupError,
    FencedError,
    PublisherAlreadyRegisteredError,
    RegistryUnavailableError,
    StoreUnavailableError,
)
from dedup.publisher import Publisher
from dedup.testing.proxy import FaultProxy
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ, Redis
from tests import looking
from tests.fault.child import PATIENCE_S, Child, Tell
from tests.fault.guarded import Guarded


@pytest.fixture
def registry(rabbitmq: RabbitMQ) -> Iterator[MemoryRegistry]:
    """A registry that is served, and has forgotten nothing for long."""
    memory = MemoryRegistry(time.time)
    memory.age(10_000)
    with serving(rabbitmq.url, memory):
        yield memory


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for an answer that does not come."""
    monkeypatch.setattr(registrar, "ANSWER_TIMEOUT_S", 0.4)


@pytest.fixture
def queue(rabbitmq: RabbitMQ, queue_name: str) -> Iterator[str]:
    """A queue to publish to; the registry's own is gone before and after."""
    with looking.channel(rabbitmq) as channel:
        channel.queue_declare(queue_name, durable=True)
        channel.exchange_delete(REGISTRY)
        channel.queue_delete(REGISTRY)
    yield queue_name
    rabbitmq.ensure_running()
    with looking.channel(rabbitmq) as channel:
        channel.queue_delete(queue_name)
        channel.exchange_delete(REGISTRY)
        channel.queue_delete(REGISTRY)


def _hold(settings: dict[str, Any], tell: Tell) -> None:
    """Hold a publisher id, and publish numbered messages until something ends it."""
    with Publisher(settings["amqp"], "p", confirm_timeout_s=3.0, close_timeout_s=1.0) as publisher:
        tell(
            "registered",
            {"base": publisher.submit(b"z0", routing_key=settings["queue"]).result().sequence - 1},
        )
        number = 0

        def on_settled(number: int, future: Future[Receipt]) -> None:
            if future.exception() is None:
                tell("confirmed", {"number": number})

        try:
            while True:
                number += 1
                future = publisher.submit(b"z%d" % number, routing_key=settings["queue"])
                future.add_done_callback(partial(on_settled, number))
                time.sleep(0.005)
        except FencedError as error:
            tell("fenced", {"text": str(error)})


# -- one holder -----------------------------------------------------------------------------------


def test_a_second_publisher_is_refused_and_told_who_holds_the_id(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """The first one does not notice; when it closes, the id is free."""
    del registry
    with Publisher(rabbitmq.url, "p") as first:
        before = first.publish(b"1", routing_key=queue)
        with pytest.raises(
            PublisherAlreadyRegisteredError, match=rf"process {os.getpid()} on .+, since"
        ) as caught:
            Publisher(rabbitmq.url, "p")
        assert caught.value.publisher_id == "p"
        assert first.publish(b"2", routing_key=queue).sequence == before.sequence + 1
        with Publisher(rabbitmq.url, "other") as other:
            other.publish(b"3", routing_key=queue)
    with Publisher(rabbitmq.url, "p") as second:
        assert second.publish(b"4", routing_key=queue).sequence > before.sequence + RANGE_SIZE // 2


def test_without_registration_both_would_publish(rabbitmq: RabbitMQ, queue: str) -> None:
    """The control: nothing refuses the second one."""
    with (
        Publisher(rabbitmq.url, "p", registration="local") as first,
        Publisher(rabbitmq.url, "p", registration="local") as second,
    ):
        first.publish(b"1", routing_key=queue)
        second.publish(b"2", routing_key=queue)


def test_kill_9_frees_the_id_at_once(rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry) -> None:
    """The broker sees the connection end: no lease has to run out."""
    del registry
    holder = Child(_hold, {"amqp": rabbitmq.url, "queue": queue})
    base = holder.wait_for("registered")["base"]
    os.kill(holder.pid, signal.SIGKILL)
    with Publisher(rabbitmq.url, "p") as publisher:
        assert publisher.publish(b"next", routing_key=queue).sequence > base + RANGE_SIZE // 2
    holder.end()


def test_a_frozen_holder_is_taken_over_and_its_later_messages_are_quarantined(
    rabbitmq: RabbitMQ,
    redis_server: Redis,
    queue: str,
    registry: MemoryRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The zombie hears FencedError as soon as it wakes up; what it sent after the new owner's first message is in quarantine.

    Nothing of the new owner is lost or doubled, and nothing that the zombie has confirmed is lost. A receipt for one of the
    zombie's messages comes to the new owner, who holds the lock now; it is told, and nothing of its own is touched.
    """
    del registry
    monkeypatch.setattr(registrar, "UNLOCKED_EVERY_S", 0.2)
    told: list[Told] = []
    with Guarded(rabbitmq, redis_server, f"{queue}-guarded") as guarded:
        shim = guarded.start_shim(batch_max=100)
        shim.wait_for("dedup.recovered")
        zombie = Child(_hold, {"amqp": rabbitmq.url, "queue": names.ingress(guarded.queue)})
        zombie.wait_for("registered")
        zombie.wait_for("confirmed")
        os.kill(zombie.pid, signal.SIGSTOP)
        with pytest.raises(PublisherAlreadyRegisteredError):
            Publisher(rabbitmq.url, "p")
        with Publisher(rabbitmq.url, "p", takeover=True, receipts=told.append) as owner:
            first = [owner.submit(b"o%d" % number, queue=guarded.queue) for number in range(200)]
            owner.flush(PATIENCE_S)
            guarded.wait_drained(shim)
            # Asleep in the middle of a socket's buffer or not: this one comes from the zombie for certain.
            with guarded.channel() as channel:
                number = first[0].result().sequence - 2**33
                late = pika.BasicProperties(
                    app_id="p", headers={"dedup-sequence": number, "dedup-receipt": True}
                )
                channel.basic_publish("", names.ingress(guarded.queue), b"late", late)
            os.kill(zombie.pid, signal.SIGCONT)
            fenced = zombie.wait_for("fenced")
            assert f"process {os.getpid()}" in fenced["text"]
            rest = [owner.submit(b"o%d" % number, queue=guarded.queue) for number in range(200, 400)]
            owner.flush(PATIENCE_S)
            assert [future.result().attempts for future in first + rest] == [1] * 400
            registration: Any = owner._registration
            looking.until(lambda: registration.is_locked)  # before, receipts went to the zombie, or to nobody
            with guarded.channel() as channel:
                late.headers["dedup-sequence"] = number + 1
                channel.basic_publish("", names.ingress(guarded.queue), b"later", late)
            looking.until(lambda: Told(Receipt("p", number + 1), guarded.queue, "fenced", "fenced") in told)
            assert {one.receipt.sequence for one in told} <= {number, number + 1}
            assert owner.publish(b"o400", queue=guarded.queue).attempts == 1
        guarded.wait_drained(shim)
        guarded.stop(shim)
        target, quarantine = guarded.read(), guarded.read(names.quarantine(guarded.queue))
        assert {body: n for body, n in target.unmarked.items() if body[0] == "o"} == {
            f"o{n}": 1 for n in range(401)
        }
        assert not target.marked
        assert {quarantine.reasons[body] for body in quarantine.unmarked} == {"fenced"}
        assert {"late", "later"} <= set(quarantine.unmarked)
        assert not [body for body in quarantine.unmarked if body[0] == "o"]
        confirmed = {f"z{notice['number']}" for notice in zombie.notices if notice["event"] == "confirmed"}
        assert confirmed <= {*target.unmarked, *quarantine.unmarked}
        assert Counter(target.order).most_common(1)[0][1] == 1
        zombie.end()


def test_whoever_is_taken_over_hears_it_at_once_and_frees_the_lock(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Futures and calls fail with FencedError; the newest owner then gets the lock, and a third is refused."""
    del registry
    monkeypatch.setattr(registrar, "UNLOCKED_EVERY_S", 0.2)
    old = Publisher(rabbitmq.url, "p")
    old.publish(b"1", routing_key=queue)
    with Publisher(rabbitmq.url, "p", takeover=True) as new:
        looking.until(lambda: repr(old).endswith("closed>"))
        with pytest.raises(FencedError, match="newer owner") as caught:
            old.publish(b"2", routing_key=queue)
        assert caught.value.receipt is None
        old.close()
        assert new.publish(b"3", routing_key=queue).attempts == 1
        looking.until(lambda: new._registration is not None and new._registration.is_locked)
        with pytest.raises(PublisherAlreadyRegisteredError):
            Publisher(rabbitmq.url, "p")


def test_messages_of_a_fenced_publisher_fail_with_their_receipts(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """They may be stored or not: the receipt says which they were."""
    del registry
    with FaultProxy(rabbitmq.port) as link:
        old = Publisher(looking.over(link), "p")
        link.refuse()
        link.cut()
        future = old.submit(b"1", routing_key=queue)
        with Publisher(rabbitmq.url, "p", takeover=True):
            link.heal()
            error = future.exception(PATIENCE_S)
        assert isinstance(error, FencedError)
        assert error.receipt is not None
        assert error.receipt.publisher_id == "p"
        old.close()


# -- connections that come and go -----------------------------------------------------------------


def test_a_lost_connection_is_made_again_with_the_same_numbers(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """No new range is taken; a registry that is away does not matter."""
    with (
        FaultProxy(rabbitmq.port) as link,
        Publisher(looking.over(link), "p") as own,
    ):
        first = own.publish(b"1", routing_key=queue)
        registry.down = True
        for number in range(3):
            link.cut()
            assert own.publish(b"more", routing_key=queue).sequence == first.sequence + number + 1


def test_a_connection_that_only_the_broker_believes_in_keeps_nobody_waiting(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection has the lock, and the registry knows no newer owner: publishing goes on, and the lock is taken later."""
    monkeypatch.setattr(registrar, "UNLOCKED_EVERY_S", 0.2)
    with (
        FaultProxy(rabbitmq.port) as link,
        Publisher(looking.over(link), "p") as own,
    ):
        first = own.publish(b"1", routing_key=queue)
        link.refuse()
        link.cut()
        with looking.channel(rabbitmq) as dead:
            looking.until(lambda: _declares(dead))
            registry.down = True
            link.heal()
            future = own.submit(b"2", routing_key=queue)
            time.sleep(1.0)
            assert not future.done()  # neither lock nor registry: somebody else may have taken over
            registry.down = False
            assert future.result(PATIENCE_S).sequence == first.sequence + 1
            assert own._registration is not None
            assert not own._registration.is_locked
        looking.until(lambda: own._registration is not None and own._registration.is_locked)


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
        opening = pool.submit(Publisher, looking.over(link), "p", connect_timeout_s=PATIENCE_S)
        assert asked.wait(PATIENCE_S)
        link.refuse()
        link.cut()
        with looking.channel(rabbitmq) as ghost:
            looking.until(lambda: _declares(ghost))
            monkeypatch.setattr(registry, "answer", carry_out)
            link.heal()
            if registered:
                opening.result(PATIENCE_S)
            else:
                time.sleep(2 * HELD_GRACE_S)  # long enough to be refused, were it another's
                assert not opening.done()
        with opening.result(PATIENCE_S) as publisher:
            assert publisher.publish(b"1", routing_key=queue).attempts == 1


def _declares(channel: Any) -> bool:
    """Take the lock of "p" on the connection of *channel*, if it is free."""
    try:
        channel.connection.channel().queue_declare(
            lock_queue("p"), exclusive=True, arguments=registrar.LOCK_ARGUMENTS
        )
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


def test_a_refused_message_does_not_touch_the_registration(
    rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """The broker closes the channel that publishes; id and numbers stay."""
    del registry
    with Publisher(rabbitmq.url, "p") as own:
        first = own.publish(b"1", routing_key=queue)
        with pytest.raises(DedupError, match="404"):
            own.publish(b"2", exchange="nowhere", routing_key=queue)
        assert own.publish(b"3", routing_key=queue).sequence == first.sequence + 2
        with pytest.raises(PublisherAlreadyRegisteredError):
            Publisher(rabbitmq.url, "p")


# -- a registry that fails ------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_without_a_registry_the_error_names_what_to_start(rabbitmq: RabbitMQ, queue: str) -> None:
    """Never there, or there and gone: the same error; with numbers of its own a publisher needs none."""
    with pytest.raises(RegistryUnavailableError, match="dedup registry") as caught:
        Publisher(rabbitmq.url, "p", connect_timeout_s=0.7)
    assert "none has ever run" in str(caught.value)
    with serving(rabbitmq.url, MemoryRegistry(time.time)):
        pass
    with pytest.raises(RegistryUnavailableError, match=r"none within 0\.4 s"):
        Publisher(rabbitmq.url, "p", connect_timeout_s=0.9)
    for options in ({"registration": "local"}, {"base": 5}):
        with Publisher(rabbitmq.url, "p", **options) as publisher:
            publisher.publish(b"1", routing_key=queue)


def test_a_registry_that_comes_in_time_is_waited_for(rabbitmq: RabbitMQ, queue: str) -> None:
    """Publisher and shim may be started together, in any order."""
    found: list[Publisher] = []
    waiting = threading.Thread(
        target=lambda: found.append(Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S))
    )
    waiting.start()
    time.sleep(0.3)
    with serving(rabbitmq.url, MemoryRegistry(time.time)):
        waiting.join()
        with found[0] as publisher:
            publisher.publish(b"1", routing_key=queue)


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
            looking.until(lambda: repr(old).endswith("closed>"))


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
def test_every_answer_that_is_none_is_survived(rabbitmq: RabbitMQ, queue: str) -> None:
    """Silence, garbage, another's record, a hostile header: each time the publisher asks again, until a right answer comes."""

    def right(request: Request) -> bytes:
        return encode_answer(Answer(request.id, Record(7 * RANGE_SIZE, request.owner)))

    def of_another(request: Request) -> bytes:
        return encode_answer(Answer(request.id, Record(9 * RANGE_SIZE, "other")))

    answers: list[Callable[[Request], bytes | None]] = [
        lambda _: None,
        lambda _: b"\x00\xff",
        lambda _: b"[]",
        lambda request: json.dumps({"id": request.id, "base": "many"}).encode(),
        of_another,
        lambda request: encode_answer(Answer(request.id + 1000, Record(9 * RANGE_SIZE, request.owner))),
        right,
    ]
    asked: list[str] = []
    with looking.channel(rabbitmq) as channel:
        channel.exchange_declare(REGISTRY, "fanout", durable=True)
        channel.queue_declare(REGISTRY, durable=True)
        channel.queue_bind(REGISTRY, REGISTRY)
        found: list[Publisher] = []
        waiting = threading.Thread(
            target=lambda: found.append(Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S))
        )
        waiting.start()
        for _, properties, body in channel.consume(REGISTRY, auto_ack=True, inactivity_timeout=PATIENCE_S):
            request = decode_request(body)
            assert request.act is Act.REGISTER
            asked.append(request.owner)
            answer = answers.pop(0)(request)
            if answer is not None:
                channel.basic_publish("", properties.reply_to, answer)
            if not answers:
                break
        channel.cancel()
        waiting.join()
        with found[0] as publisher:
            assert publisher.publish(b"1", routing_key=queue).sequence == 7 * RANGE_SIZE + 1
    assert len({*asked}) == 1


@pytest.mark.usefixtures("impatient")
def test_a_killed_registry_process_is_replaced_by_another(
    rabbitmq: RabbitMQ, redis_server: Redis, queue: str
) -> None:
    """``dedup registry`` killed with -9: publishers go on, and the next process knows what the first one handed out."""
    command = [
        sys.executable,
        "-m",
        "dedup.cli",
        "registry",
        "--amqp",
        rabbitmq.url,
        "--redis",
        redis_server.url,
    ]
    command += ["--redis-prefix", queue]

    @contextmanager
    def process() -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
            try:
                yield child
            finally:
                child.kill()

    with process() as first:
        publisher = Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S)
        before = publisher.publish(b"1", routing_key=queue)
        first.kill()
    with publisher:
        assert publisher.publish(b"2", routing_key=queue).sequence == before.sequence + 1
        with pytest.raises(RegistryUnavailableError):
            Publisher(rabbitmq.url, "q", connect_timeout_s=0.9)
    with process(), Publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S) as second:
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
            looking.until(lambda: _serves(rabbitmq))
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


def test_a_bound_publisher_registers_under_its_users_name_only(rabbitmq: RabbitMQ, queue: str) -> None:
    """The registry asks for the same proof as the shim."""
    with serving(rabbitmq.url, MemoryRegistry(time.time), binding=UserBinding.PREFIX):
        with Publisher(rabbitmq.url, "guest:1", user_id="guest") as publisher:
            publisher.publish(b"1", routing_key=queue)
        for publisher_id, user in (("guest:1", None), ("other", "guest")):
            with pytest.raises(DedupError, match=NOT_BOUND_TO_USER):
                Publisher(rabbitmq.url, publisher_id, user_id=user)


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
