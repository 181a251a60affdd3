"""Registration over AMQP 1.0: one holder at a time whatever it speaks, a take-over, and every way in which a registry can fail."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pika
import pytest
from proton import Message

import dedup
import proton_adapter
from dedup import registrar
from dedup.core import names
from dedup.core.identity import NOT_BOUND_TO_USER, RANGE_SIZE, Receipt, UserBinding
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
    DedupError,
    FencedError,
    PublisherAlreadyRegisteredError,
    RegistryUnavailableError,
)
from dedup.testing.proxy import FaultProxy
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ
from proton_adapter import Publisher
from tests.fault.child import PATIENCE_S, Child, Tell
from tests.fault.guarded import Guarded
from tests.looking import channel, over, until
from tests.proton.looking import connected

_KINDS: dict[str, type[dedup.Publisher]] = {"0.9.1": dedup.Publisher, "1.0": proton_adapter.Publisher}


@pytest.fixture
def queue(broker: RabbitMQ, queue_name: str) -> Iterator[str]:
    """A queue to publish to; the registry's own is gone before and after."""

    def forget(*queues: str) -> None:
        with channel(broker) as opened:
            opened.exchange_delete(REGISTRY)
            for name in (REGISTRY, *queues):
                opened.queue_delete(name)

    forget()
    with channel(broker) as opened:
        opened.queue_declare(queue_name, durable=True)
    yield queue_name
    forget(queue_name)


@pytest.fixture
def registry(broker: RabbitMQ, queue: str) -> Iterator[MemoryRegistry]:
    """A registry that is served, and has forgotten nothing for long."""
    del queue
    memory = MemoryRegistry(time.time)
    memory.age(10_000)
    with serving(broker.url, memory):
        yield memory


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for an answer that does not come."""
    monkeypatch.setattr(registrar, "ANSWER_TIMEOUT_S", 0.4)


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try soon to have the lock that another connection has."""
    monkeypatch.setattr(registrar, "UNLOCKED_EVERY_S", 0.2)


def _hold(settings: dict[str, Any], tell: Tell) -> None:
    """Hold a publisher id, and publish numbered messages until something ends it."""
    kind = _KINDS[settings["kind"]]
    with kind(settings["amqp"], "p", confirm_timeout_s=3.0, close_timeout_s=1.0) as publisher:
        first = publisher.submit(b"z0", routing_key=settings["queue"]).result()
        tell("registered", {"base": first.sequence - 1})
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


@pytest.mark.each_version
@pytest.mark.parametrize("holder", _KINDS)
def test_a_second_publisher_of_either_protocol_is_refused(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry, holder: str
) -> None:
    """It is told who holds the id, and the first one does not notice; when it closes, either may have the id."""
    del registry

    def refuse(kind: str) -> None:
        with pytest.raises(
            PublisherAlreadyRegisteredError, match=rf"process {os.getpid()} on .+, since"
        ) as caught:
            _KINDS[kind](broker.url, "p")
        assert caught.value.publisher_id == "p"
        assert "exclusive access" in str(caught.value)

    with _KINDS[holder](broker.url, "p") as first:
        before = first.publish(b"1", routing_key=queue)
        with ThreadPoolExecutor() as pool:
            assert len([*pool.map(refuse, _KINDS)]) == 2
        assert first.publish(b"2", routing_key=queue).sequence == before.sequence + 1
        with Publisher(broker.url, "other") as other:
            other.publish(b"3", routing_key=queue)
    last = before.sequence
    for kind in _KINDS.values():
        with kind(broker.url, "p") as following:
            sequence = following.publish(b"4", routing_key=queue).sequence
            assert sequence > last + RANGE_SIZE // 2
            last = sequence


def test_without_registration_both_would_publish(broker: RabbitMQ, queue: str) -> None:
    """The control: nothing refuses the second one."""
    with (
        Publisher(broker.url, "p", registration="local") as first,
        Publisher(broker.url, "p", registration="local") as second,
    ):
        first.publish(b"1", routing_key=queue)
        second.publish(b"2", routing_key=queue)


@pytest.mark.each_version
def test_kill_9_frees_the_id_at_once(broker: RabbitMQ, queue: str, registry: MemoryRegistry) -> None:
    """The broker sees the connection end, and its exclusive queues end with it: no lease has to run out."""
    del registry
    holder = Child(_hold, {"kind": "1.0", "amqp": broker.url, "queue": queue})
    base = holder.wait_for("registered")["base"]
    os.kill(holder.pid, signal.SIGKILL)
    with Publisher(broker.url, "p") as publisher:
        assert publisher.publish(b"next", routing_key=queue).sequence > base + RANGE_SIZE // 2
    holder.end()


@pytest.mark.each_version("long")
@pytest.mark.parametrize(
    ("frozen", "newer"),
    [
        ("1.0", "0.9.1"),
        pytest.param("0.9.1", "1.0", marks=pytest.mark.long),
        pytest.param("1.0", "1.0", marks=pytest.mark.long),
    ],
)
def test_a_frozen_holder_is_taken_over_and_its_later_messages_are_quarantined(
    broker: RabbitMQ, make: Callable[..., Guarded], registry: MemoryRegistry, frozen: str, newer: str
) -> None:
    """
    The zombie hears FencedError as soon as it wakes up; what it sent after the new owner's first message is in quarantine.

    Nothing of the new owner is lost or doubled, and nothing that the zombie has confirmed is lost.
    """
    del registry
    guarded, kind = make(), _KINDS[newer]
    shim = guarded.start_shim(batch_max=100)
    shim.wait_for("dedup.recovered")
    zombie = Child(_hold, {"kind": frozen, "amqp": broker.url, "queue": names.ingress(guarded.queue)})
    zombie.wait_for("registered")
    zombie.wait_for("confirmed")
    os.kill(zombie.pid, signal.SIGSTOP)
    with pytest.raises(PublisherAlreadyRegisteredError):
        kind(broker.url, "p")
    with kind(broker.url, "p", takeover=True) as owner:
        first = [owner.submit(b"o%d" % number, queue=guarded.queue) for number in range(200)]
        owner.flush(PATIENCE_S)
        guarded.wait_drained(shim)
        # Asleep in the middle of a socket's buffer or not: this one comes from the zombie for certain.
        guarded.publish([("late", first[0].result().sequence - 2 * RANGE_SIZE)])
        os.kill(zombie.pid, signal.SIGCONT)
        assert f"process {os.getpid()}" in zombie.wait_for("fenced")["text"]
        rest = [owner.submit(b"o%d" % number, queue=guarded.queue) for number in range(200, 400)]
        owner.flush(PATIENCE_S)
        assert [future.result().attempts for future in first + rest] == [1] * 400
    guarded.wait_drained(shim)
    guarded.stop(shim)
    target, quarantine = guarded.read(), guarded.read(names.quarantine(guarded.queue))
    assert {body: n for body, n in target.unmarked.items() if body[0] == "o"} == {
        f"o{n}": 1 for n in range(400)
    }
    assert not target.marked
    assert {quarantine.reasons[body] for body in quarantine.unmarked} == {"fenced"}
    assert "late" in quarantine.unmarked
    assert not [body for body in quarantine.unmarked if body[0] == "o"]
    confirmed = {f"z{notice['number']}" for notice in zombie.notices if notice["event"] == "confirmed"}
    assert confirmed <= {*target.unmarked, *quarantine.unmarked}
    assert Counter(target.order).most_common(1)[0][1] == 1
    zombie.end()


@pytest.mark.each_version("long")
@pytest.mark.usefixtures("registry", "looks_often")
@pytest.mark.parametrize(("older", "newer"), [("1.0", "0.9.1"), ("0.9.1", "1.0")])
def test_whoever_is_taken_over_hears_it_at_once_and_frees_the_lock(
    broker: RabbitMQ, queue: str, older: str, newer: str
) -> None:
    """Futures and calls fail with FencedError; the newest owner then gets the lock, and a third is refused."""
    old = _KINDS[older](broker.url, "p")
    old.publish(b"1", routing_key=queue)
    with _KINDS[newer](broker.url, "p", takeover=True) as new:
        until(lambda: repr(old).endswith("closed>"))
        with pytest.raises(FencedError, match="newer owner"):
            old.publish(b"2", routing_key=queue)
        old.close()
        assert new.publish(b"3", routing_key=queue).attempts == 1
        until(lambda: new._registration is not None and new._registration.is_locked)
        with pytest.raises(PublisherAlreadyRegisteredError):
            Publisher(broker.url, "p")


def test_messages_of_a_fenced_publisher_fail_with_their_receipts(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry, link: FaultProxy
) -> None:
    """They may be stored or not: the receipt says which they were."""
    del registry
    old = Publisher(over(link), "p")
    link.refuse()
    link.cut()
    future = old.submit(b"1", routing_key=queue)
    with Publisher(broker.url, "p", takeover=True):
        link.heal()
        error = future.exception(PATIENCE_S)
    assert isinstance(error, FencedError)
    assert error.receipt is not None
    assert error.receipt.publisher_id == "p"
    old.close()


# -- connections that come and go -----------------------------------------------------------------


@pytest.mark.each_version
def test_a_lost_connection_is_made_again_with_the_same_numbers(
    queue: str, registry: MemoryRegistry, link: FaultProxy
) -> None:
    """No new range is taken; a registry that is away does not matter."""
    with Publisher(over(link), "p") as own:
        first = own.publish(b"1", routing_key=queue)
        registry.down = True
        for number in range(3):
            link.cut()
            assert own.publish(b"more", routing_key=queue).sequence == first.sequence + number + 1


@pytest.mark.long
def test_a_broker_that_was_killed_gives_the_id_back(broker: RabbitMQ, queue: str) -> None:
    """Lock and registry go with it; the same owner publishes on with the same numbers when it is back, and holds the id."""
    with serving(broker.url, MemoryRegistry(time.time)):
        own = Publisher(broker.url, "p")
    with own:
        first = own.publish(b"1", routing_key=queue)
        time.sleep(1.0)  # a queue that is a moment old may not be on disk
        broker.kill()
        future = own.submit(b"2", routing_key=queue)
        broker.start()
        assert future.result(PATIENCE_S).sequence == first.sequence + 1
        with serving(broker.url, MemoryRegistry(time.time)), pytest.raises(PublisherAlreadyRegisteredError):
            Publisher(broker.url, "p", connect_timeout_s=PATIENCE_S)


@pytest.mark.usefixtures("looks_often")
def test_a_connection_that_only_the_broker_believes_in_keeps_nobody_waiting(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry, link: FaultProxy
) -> None:
    """Another connection has the lock, and the registry knows no newer owner: publishing goes on, and the lock is taken later."""
    with Publisher(over(link), "p") as own:
        first = own.publish(b"1", routing_key=queue)
        link.refuse()
        link.cut()
        with channel(broker) as dead:
            until(lambda: _declares(dead))
            registry.down = True
            link.heal()
            future = own.submit(b"2", routing_key=queue)
            time.sleep(1.0)
            assert not future.done()  # neither lock nor registry: somebody else may have taken over
            registry.down = False
            assert future.result(PATIENCE_S).sequence == first.sequence + 1
            assert own._registration is not None
            assert not own._registration.is_locked
        until(lambda: own._registration is not None and own._registration.is_locked)


def _declares(opened: Any) -> bool:
    """Take the lock of "p" on the connection of *opened*, if it is free."""
    try:
        opened.connection.channel().queue_declare(
            lock_queue("p"), exclusive=True, arguments=registrar.LOCK_ARGUMENTS
        )
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


@pytest.mark.each_version("long")
def test_a_refused_message_does_not_touch_the_registration(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """The broker ends link or session of the message; id and numbers stay."""
    del registry
    forged = proton_adapter.Properties(user_id="other")
    with Publisher(broker.url, "p") as own:
        first = own.publish(b"1", routing_key=queue)
        with pytest.raises(DedupError, match="user_id"):
            own.publish(b"2", routing_key=queue, properties=forged)
        assert own.publish(b"3", routing_key=queue).sequence == first.sequence + 2
        with pytest.raises(PublisherAlreadyRegisteredError):
            dedup.Publisher(broker.url, "p")


# -- a registry that fails ------------------------------------------------------------------------


@pytest.mark.each_version("long")
@pytest.mark.usefixtures("impatient")
def test_without_a_registry_the_error_names_what_to_start(broker: RabbitMQ, queue: str) -> None:
    """Never there, there and gone, or not led to: the same error; with numbers of its own a publisher needs none."""
    with pytest.raises(RegistryUnavailableError, match="dedup registry") as caught:
        Publisher(broker.url, "p", connect_timeout_s=0.7)
    assert "none has ever run" in str(caught.value)
    with serving(broker.url, MemoryRegistry(time.time)):
        pass
    with pytest.raises(RegistryUnavailableError, match=r"none within 0\.4 s"):
        Publisher(broker.url, "p", connect_timeout_s=0.9)
    with channel(broker) as opened:
        opened.queue_delete(REGISTRY)
    with pytest.raises(RegistryUnavailableError, match="leads to no queue"):
        Publisher(broker.url, "p", connect_timeout_s=0.7)
    options: tuple[dict[str, Any], ...] = ({"registration": "local"}, {"base": 5})
    for each in options:
        with Publisher(broker.url, "p", **each) as publisher:
            publisher.publish(b"1", routing_key=queue)


def test_a_registry_that_comes_in_time_is_waited_for(broker: RabbitMQ, queue: str) -> None:
    """Publisher and shim may be started together, in any order."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(Publisher, broker.url, "p", connect_timeout_s=PATIENCE_S)
        time.sleep(0.3)
        with serving(broker.url, MemoryRegistry(time.time)), waiting.result() as publisher:
            publisher.publish(b"1", routing_key=queue)


@pytest.mark.usefixtures("impatient")
def test_a_registry_that_goes_stops_nobody_who_has_registered(
    broker: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """Others have to wait; the next one knows what the one before it handed out."""
    memory = MemoryRegistry(time.time)
    with serving(broker.url, memory):
        own = Publisher(over(link), "p", connect_timeout_s=PATIENCE_S)
    with own:
        first = own.publish(b"1", routing_key=queue)
        link.cut()
        assert own.publish(b"2", routing_key=queue).sequence == first.sequence + 1
        with pytest.raises(RegistryUnavailableError):
            Publisher(broker.url, "q", connect_timeout_s=0.9)
        with serving(broker.url, memory):
            with pytest.raises(PublisherAlreadyRegisteredError, match=f"process {os.getpid()}"):
                Publisher(broker.url, "p", connect_timeout_s=PATIENCE_S)
            with Publisher(broker.url, "q", connect_timeout_s=PATIENCE_S) as other:
                other.publish(b"3", routing_key=queue)


@pytest.mark.each_version("long")
@pytest.mark.usefixtures("impatient")
def test_every_answer_that_is_none_is_survived(broker: RabbitMQ, queue: str) -> None:
    """Silence, garbage of any size, another's record, an answer to another question: the publisher asks again, until a right answer comes."""

    def right(request: Request) -> bytes:
        return encode_answer(Answer(request.id, Record(7 * RANGE_SIZE, request.owner)))

    def of_another(request: Request) -> bytes:
        return encode_answer(Answer(request.id, Record(9 * RANGE_SIZE, "other")))

    answers: list[Callable[[Request], bytes | None]] = [
        lambda _: None,
        lambda _: b"\x00\xff",
        lambda _: b"x" * 1_000_000,
        of_another,
        lambda request: encode_answer(Answer(request.id + 1000, Record(9 * RANGE_SIZE, request.owner))),
        right,
    ]
    asked: list[str] = []
    with ThreadPoolExecutor() as pool, channel(broker) as opened:
        opened.exchange_declare(REGISTRY, "fanout", durable=True)
        opened.queue_declare(REGISTRY, durable=True)
        opened.queue_bind(REGISTRY, REGISTRY)
        waiting = pool.submit(Publisher, broker.url, "p", connect_timeout_s=PATIENCE_S)
        for _, properties, body in opened.consume(REGISTRY, auto_ack=True, inactivity_timeout=PATIENCE_S):
            request = decode_request(body)
            assert request.act is Act.REGISTER
            asked.append(request.owner)
            answer = answers.pop(0)(request)
            if answer is not None:
                opened.basic_publish("", properties.reply_to, answer)
            if not answers:
                break
        opened.cancel()
        with waiting.result(PATIENCE_S) as publisher:
            assert publisher.publish(b"1", routing_key=queue).sequence == 7 * RANGE_SIZE + 1
    assert len({*asked}) == 1


@pytest.mark.each_version("long")
def test_what_anybody_writes_into_the_locks_queue_ends_nothing(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """Any bytes, over either protocol, more than the broker was given credit for; a true hint is heard behind it."""
    del registry
    with Publisher(broker.url, "p") as own:
        first = own.publish(b"1", routing_key=queue)
        with channel(broker) as opened:
            for body in (b"", b"junk", b'{"queue":1}', b"x" * 200_000, *(b"%d" % n for n in range(300))):
                opened.basic_publish("", lock_queue("p"), body)
        values: tuple[Any, ...] = ("text", [[[]]], {"a": [1]}, 7)
        with connected(broker) as connection:
            sender = connection.create_sender(f"/queues/{lock_queue('p')}")
            for value in values:
                sender.send(Message(body=value))
        assert own.publish(b"2", routing_key=queue).sequence == first.sequence + 1
        with dedup.Publisher(broker.url, "p", takeover=True):
            until(lambda: repr(own).endswith("closed>"))


# -- who asks the registry ------------------------------------------------------------------------


@pytest.mark.each_version
def test_a_bound_publisher_registers_under_its_users_name_only(broker: RabbitMQ, queue: str) -> None:
    """The registry asks for the same proof as the shim, and the broker vouches for it over AMQP 1.0 too."""
    with serving(broker.url, MemoryRegistry(time.time), binding=UserBinding.PREFIX):
        with Publisher(broker.url, "guest:1", user_id="guest") as publisher:
            publisher.publish(b"1", routing_key=queue)
        for publisher_id, user in (("guest:1", None), ("other", "guest")):
            with pytest.raises(DedupError, match=NOT_BOUND_TO_USER):
                Publisher(broker.url, publisher_id, user_id=user)
        with pytest.raises(DedupError, match="user_id property set to 'other'"):
            Publisher(broker.url, "other:1", user_id="other")


@pytest.mark.each_version
def test_a_request_is_answered_to_addresses_of_publishers_only(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """A reply queue has a name that nobody guesses; no other queue is written to, however it is spelled."""
    del registry
    good = json.dumps({"id": 1, "act": "show", "publisher_id": "p", "owner": "a"}).encode()
    refused = [queue, f"/queues/{queue}", "dedup.replies.", f"dedup.replies.{queue}", lock_queue("p")]
    with channel(broker) as opened:
        for name in ("dedup.replies.short", "dedup.replies." + "0" * 32):
            opened.queue_declare(name, exclusive=True)
        for address in (*refused, "dedup.replies.short", "dedup.replies." + "0" * 32):
            opened.basic_publish(REGISTRY, "", good, pika.BasicProperties(reply_to=address))
        until(lambda: opened.queue_declare("dedup.replies." + "0" * 32, exclusive=True).method.message_count)
        for name in (queue, "dedup.replies.short"):
            assert opened.queue_declare(name, passive=True).method.message_count == 0


def test_many_threads_of_one_process_register_as_many_ids(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """Each has a connection, a lock and an address of its own."""
    del registry
    ready = threading.Barrier(8)

    def register(number: int) -> int:
        with Publisher(broker.url, f"p{number}", connect_timeout_s=PATIENCE_S) as publisher:
            ready.wait(PATIENCE_S)
            return publisher.publish(b"1", routing_key=queue).sequence

    with ThreadPoolExecutor(8) as pool:
        assert len([*pool.map(register, range(8))]) == 8
