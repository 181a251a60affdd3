"""The publisher of AMQP 1.0 against real brokers, over a link that breaks."""

from __future__ import annotations

import os
import threading
import time
import warnings
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from proton import symbol, ulong

from dedup.core.identity import Receipt
from dedup.errors import (
    BrokerUnavailableError,
    ClosedUnconfirmedError,
    ConfigError,
    DedupError,
    InvalidMessageError,
    PublisherClosedError,
    PublishError,
    PublishTimeoutError,
    ReturnedError,
)
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from dedup.testing.servers import RabbitMQ
from proton_adapter import Properties, Publisher
from tests.proton.looking import channel, check_copies, drain, over, receive, sequences, until

_DEAD_URL = "amqp://guest:secret@127.0.0.1:1/%2F"
#: More than one link gets credit for.
_MORE_THAN_CREDIT = 600


# -- what arrives ---------------------------------------------------------------------------------


@pytest.mark.each_version
def test_a_reader_of_0_9_1_finds_the_stamp(broker: RabbitMQ, queue: str) -> None:
    """RabbitMQ turns group-id into app_id and the application property into a header; the message is persistent."""
    with Publisher(broker.url, "orders-1", base=1 << 32) as publisher:
        assert publisher.publish(b"plain", routing_key=queue) == Receipt("orders-1", (1 << 32) + 1)
    ((body, properties),) = drain(broker, queue)
    assert (body, properties.app_id) == (b"plain", "orders-1")
    assert properties.headers == {"dedup-sequence": (1 << 32) + 1}
    assert properties.delivery_mode == 2


@pytest.mark.each_version
def test_a_reader_of_1_0_finds_everything_as_it_was_given(broker: RabbitMQ, queue: str) -> None:
    """Every property, annotation and application property keeps its value and its type."""
    when = datetime(2026, 5, 17, 12, 30, 15, 123000, tzinfo=UTC)
    name = UUID("6f3f2a5e-8a0b-4c8d-9d2f-0123456789ab")
    given = Properties(
        message_id=name,
        correlation_id=2**64 - 1,
        user_id="guest",
        subject="a subject",
        reply_to="/queues/answers",
        content_type="text/plain",
        content_encoding="gzip",
        absolute_expiry_time=when,
        creation_time=when,
        reply_to_group_id="others",
        priority=3,
        ttl_s=3600.5,
        annotations={"x-opt-mine": symbol("s")},
        application_properties={
            "a": 1,
            "b": ulong(7),
            "c": b"\x00",
            "d": None,
            "e": True,
            "ü": "ö",
            "f": 1.5,
        },
    )
    sequence = (3 << 32) + 2**31
    with Publisher(broker.url, "orders-1", base=sequence - 1) as publisher:
        publisher.publish(b"\x00\xff", routing_key=queue, properties=given)
    (message,) = receive(broker, queue, 1)
    assert (message.body, message.durable, message.priority) == (b"\x00\xff", True, 3)
    assert (message.id, message.correlation_id, message.user_id) == (name, 2**64 - 1, b"guest")
    assert (message.subject, message.content_type, message.content_encoding) == (
        "a subject",
        "text/plain",
        "gzip",
    )
    assert message.reply_to == "/queues/answers"
    assert (message.expiry_time, message.creation_time) == (when.timestamp(), when.timestamp())
    assert (message.group_id, message.group_sequence, message.reply_to_group_id) == (
        "orders-1",
        2**31,
        "others",
    )
    assert message.ttl == 3600.5
    assert message.annotations is not None
    assert message.annotations["x-opt-mine"] == symbol("s")
    assert message.properties is not None
    assert message.properties == {"dedup-sequence": sequence, **given.application_properties}
    assert type(message.properties["b"]) is ulong


def test_a_group_id_of_the_user_stays(broker: RabbitMQ, queue: str) -> None:
    """Where group-id is taken, the publisher id rides in an application property."""
    with Publisher(broker.url, "orders-1") as publisher:
        publisher.publish(
            b"x", routing_key=queue, properties=Properties(group_id="billing", group_sequence=7)
        )
        publisher.publish(b"x", routing_key=queue, properties=Properties(group_id="billing"))
    first, second = receive(broker, queue, 2)
    assert (first.group_id, first.group_sequence) == ("billing", 7)
    assert first.properties is not None
    assert first.properties["dedup-publisher"] == "orders-1"
    assert (second.group_id, second.group_sequence) == ("billing", 0)


@pytest.mark.parametrize("name", ["with a space", "a/b%2Fc", "ünïcode?#&"])
def test_names_of_any_kind_are_reached(broker: RabbitMQ, queue_name: str, name: str) -> None:
    """Queues, exchanges and routing keys are percent-encoded in addresses."""
    queue = exchange = f"{queue_name} {name}"
    with channel(broker) as opened, Publisher(broker.url, "orders-1") as publisher:
        opened.queue_declare(queue, durable=True)
        opened.exchange_declare(exchange, "direct", durable=True)
        opened.queue_bind(queue, exchange, name)
        opened.queue_bind(queue, exchange, "")
        publisher.publish(b"1", routing_key=queue)
        publisher.publish(b"2", exchange=exchange, routing_key=name)
        publisher.publish(b"3", exchange=exchange)
        assert [body for body, _ in drain(broker, queue)] == [b"1", b"2", b"3"]
        opened.exchange_delete(exchange)
        opened.queue_delete(queue)


def test_pipelined_messages_arrive_in_the_order_of_their_submits(broker: RabbitMQ, queue: str) -> None:
    """Far more than the credit of a link, each confirmed under its own sequence."""
    with Publisher(broker.url, "orders-1") as publisher:
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(5000)]
        publisher.flush()
        receipts = [future.result(0) for future in futures]
    messages = drain(broker, queue)
    assert [body for body, _ in messages] == [b"%d" % n for n in range(5000)]
    assert sequences(messages) == [receipt.sequence for receipt in receipts]


def test_bodies_of_any_size_arrive_whole(broker: RabbitMQ, queue: str) -> None:
    """Empty, where the length takes another form, many frames, and as large as the broker takes."""
    bodies = [b"", b"x" * 255, b"x" * 256, os.urandom(5_000_000)]
    with Publisher(broker.url, "orders-1") as publisher:
        for body in bodies:
            publisher.publish(body, routing_key=queue)
        with pytest.raises(InvalidMessageError, match="16777216"):
            publisher.publish(bytes(16 * 1024 * 1024), routing_key=queue)
        assert publisher.publish(bytes(16 * 1024 * 1024 - 2000), routing_key=queue).attempts == 1
    assert [len(body) for body, _ in drain(broker, queue)] == [
        0,
        255,
        256,
        5_000_000,
        16 * 1024 * 1024 - 2000,
    ]


def test_threads_may_share_a_publisher(broker: RabbitMQ, queue: str) -> None:
    """No sequence is used twice, and each thread's messages keep their order."""
    with Publisher(broker.url, "orders-1", unconfirmed_max=100, waiting_max=50) as publisher:
        receipts: list[Receipt] = []

        def work(name: int) -> None:
            futures = [publisher.submit(b"%d %d" % (name, n), routing_key=queue) for n in range(200)]
            receipts.extend(future.result(60) for future in futures)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    messages = drain(broker, queue)
    assert len(receipts) == len({receipt.sequence for receipt in receipts}) == len(messages) == 8 * 200
    assert sequences(messages) == sorted(sequences(messages))
    for name in range(8):
        mine = [body for body, _ in messages if body.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, n) for n in range(200)]


# -- a link that breaks ---------------------------------------------------------------------------


@pytest.mark.each_version
def test_lost_outcomes_lead_to_the_same_message_again(
    broker: RabbitMQ, queue: str, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker stores, its answers never arrive: the connection counts as dead, and copies name the same sequence."""
    with Publisher(over(link), "orders-1", confirm_timeout_s=1.0) as publisher:
        publisher.publish(b"before", routing_key=queue)
        link.drop(TO_CLIENT)
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(100)]
        with channel(broker) as opened:
            until(lambda: opened.queue_declare(queue, passive=True).method.message_count == 101)
        until(lambda: "publisher_connection_dropped" in caplog.text)
        link.heal()
        receipts = [future.result(30) for future in futures]
    assert {receipt.attempts for receipt in receipts} == {2}
    messages = drain(broker, queue)
    assert len(messages) == 201
    assert {properties.headers.get("dedup-attempt") for _, properties in messages} == {None, 2}
    check_copies(messages, receipts)


def test_silence_counts_even_when_credit_is_used_up(
    broker: RabbitMQ, queue: str, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead link is not taken for a broker that blocks: what left this machine is owed an answer."""
    with Publisher(over(link), "orders-1", confirm_timeout_s=2.0) as publisher:
        publisher.publish(b"before", routing_key=queue)
        link.drop(TO_CLIENT)
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(_MORE_THAN_CREDIT)]
        until(lambda: "publisher_connection_dropped" in caplog.text)
        link.heal()
        receipts = [future.result(30) for future in futures]
    assert "publisher_blocked" not in caplog.text
    check_copies(drain(broker, queue), receipts)


def test_a_silent_link_is_noticed_by_heartbeats(
    queue: str, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is published, nothing comes: the idle time-out ends the connection, and the next one serves."""
    with Publisher(over(link) + "?heartbeat=1", "orders-1") as publisher:
        link.drop(TO_CLIENT)
        until(lambda: "idle-timeout expired" in caplog.text)
        link.heal()
        assert publisher.publish(b"x", routing_key=queue, timeout=20).attempts == 1


def test_heartbeats_keep_an_idle_connection(
    broker: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides are content for longer than their time-outs."""
    with Publisher(broker.url + "?heartbeat=1", "orders-1") as publisher:
        time.sleep(2.5)
        publisher.publish(b"x", routing_key=queue, timeout=10)
    assert "lost" not in caplog.text


@pytest.mark.parametrize("count", [1, 300], ids=["greeting", "login"])
def test_a_link_torn_in_the_handshake_is_tried_again(queue: str, link: FaultProxy, count: int) -> None:
    """What ends a connection before it is open is not taken for a wrong setting: the next attempt serves."""
    link.cut_after(count, TO_CLIENT)
    with Publisher(over(link), "p") as publisher:
        assert publisher.publish(b"m", routing_key=queue, timeout=20).attempts <= 2


def test_a_link_cut_again_and_again_loses_nothing(broker: RabbitMQ, queue: str, link: FaultProxy) -> None:
    """Resets in the middle of the stream: everything submitted is confirmed and there, first copies in order."""
    with Publisher(over(link), "orders-1") as publisher:
        futures: list[Future[Receipt]] = []
        for cut in range(8):
            link.cut_after(
                20_000 + 7919 * cut if cut % 2 else 5_000 + 1319 * cut, TO_SERVER if cut % 2 else TO_CLIENT
            )
            futures += [publisher.submit(b"%d" % (cut * 1000 + n), routing_key=queue) for n in range(1000)]
        receipts = [future.result(60) for future in futures]
    assert max(receipt.attempts for receipt in receipts) > 1
    messages = drain(broker, queue)
    check_copies(messages, receipts)
    first_copies = list(dict.fromkeys(sequences(messages)))
    assert first_copies == [receipt.sequence for receipt in receipts]


def test_a_timeout_carries_a_receipt_that_is_safe_to_retry(
    broker: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """The caller is told in time; the retry is the same message, and the publisher does not repeat it by itself."""
    with Publisher(over(link), "orders-1") as publisher:
        link.stall(TO_CLIENT)
        with pytest.raises(PublishTimeoutError, match="silent") as caught:
            publisher.publish(b"x", routing_key=queue, timeout=0.5)
        link.cut()
        link.heal()
        receipt = publisher.retry(caught.value.receipt, timeout=30)
    assert receipt.sequence == caught.value.receipt.sequence
    check_copies(drain(broker, queue), [receipt])


def test_a_full_buffer_blocks_and_times_out_with_a_receipt(
    broker: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """Back-pressure: submit waits for room, in bounded time, and even then the receipt is good for a retry."""
    with Publisher(over(link), "orders-1", unconfirmed_max=2, waiting_max=1) as publisher:
        link.stall(TO_CLIENT)
        first = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(3)]
        late = publisher.submit(b"3", routing_key=queue, timeout=0.5)
        error = late.exception(10)
        assert isinstance(error, PublishTimeoutError)
        with pytest.raises(PublishTimeoutError, match="3 messages"):
            publisher.flush(timeout=0.1)
        link.heal()
        assert publisher.retry(error.receipt, timeout=30).attempts == 1
        assert [future.result(30).attempts for future in first] == [1, 1, 1]
    assert sorted(body for body, _ in drain(broker, queue)) == [b"0", b"1", b"2", b"3"]


def test_closing_in_time_fails_what_is_unconfirmed(queue: str, link: FaultProxy) -> None:
    """Close is bounded, and each message without an answer says so with its receipt."""
    publisher = Publisher(over(link), "orders-1", close_timeout_s=0.5)
    link.stall(TO_CLIENT)
    futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(3)]
    started = time.monotonic()
    publisher.close()
    assert time.monotonic() - started < 5
    for future in futures:
        error = future.exception(0)
        assert isinstance(error, ClosedUnconfirmedError)
        assert error.receipt.publisher_id == "orders-1"
    with pytest.raises(PublisherClosedError):
        publisher.submit(b"x", routing_key=queue)


# -- a broker in trouble --------------------------------------------------------------------------


def test_a_broker_killed_and_restarted_has_everything_confirmed(broker: RabbitMQ, queue: str) -> None:
    """A kill -9 under load, a while of nothing, the same broker again: nothing confirmed is missing."""
    with Publisher(broker.url, "orders-1") as publisher:
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(4000)]
        until(lambda: any(future.done() for future in futures))
        broker.kill()
        futures += [publisher.submit(b"%d" % n, routing_key=queue) for n in range(4000, 5000)]
        broker.start()
        receipts = [future.result(60) for future in futures]
    check_copies(drain(broker, queue), receipts)


def test_a_connection_closed_by_the_operator_is_made_again(
    broker: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``close_all_connections`` is a loss like any other."""
    with Publisher(broker.url, "orders-1") as publisher:
        publisher.publish(b"0", routing_key=queue)
        broker.ctl("close_all_connections", "maintenance")
        until(lambda: "publisher_connection_lost" in caplog.text)
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(1, 100)]
        receipts = [future.result(30) for future in futures]
    assert "maintenance" in caplog.text
    check_copies(drain(broker, queue), receipts)


@pytest.mark.each_version("long")
def test_an_alarm_blocks_and_heartbeats_live(
    broker: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the broker takes no publishes, callers are told why, the connection stays, and then it all goes through."""
    with Publisher(broker.url + "?heartbeat=2", "orders-1", confirm_timeout_s=3.0) as publisher:
        publisher.publish(b"0", routing_key=queue)
        broker.set_alarm()
        try:
            until(lambda: broker.evaluate("rabbit_alarm:get_alarms().") != "[]", 30)
            futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(1, _MORE_THAN_CREDIT)]
            until(lambda: "publisher_blocked" in caplog.text)
            with pytest.raises(PublishTimeoutError, match="blocked the connection"):
                publisher.publish(b"late", routing_key=queue, timeout=4)
        finally:
            broker.clear_alarm()
        receipts = [future.result(30) for future in futures]
    assert {receipt.attempts for receipt in receipts} == {1}
    assert "lost" not in caplog.text
    assert "publisher_connection_dropped" not in caplog.text
    assert [body for body, _ in drain(broker, queue)] == [b"%d" % n for n in range(_MORE_THAN_CREDIT)]


@pytest.mark.each_version("long")
@pytest.mark.parametrize("kind", ["classic", pytest.param("quorum", marks=pytest.mark.long)])
def test_a_full_queue_is_tried_again_until_there_is_room(broker: RabbitMQ, queue: str, kind: str) -> None:
    """reject-publish answers ``rejected``: the message is sent again under its sequence until it is taken."""
    full = f"{queue}.full"
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish", "x-queue-type": kind}
    with channel(broker) as opened:
        opened.queue_declare(full, durable=True, arguments=arguments)
    with Publisher(broker.url, "orders-1") as publisher:
        publisher.publish(b"0", routing_key=full, timeout=10)
        told = "exceeded maximum length" if broker.version.startswith("4.3") else "is a queue full"
        # A queue may take one or two more than its limit.
        more = [publisher.submit(b"more", routing_key=full, timeout=2)]
        while not (error := more[-1].exception(10)):
            more.append(publisher.submit(b"more", routing_key=full, timeout=2))
        assert len(more) <= 4
        assert isinstance(error, PublishTimeoutError)
        assert told in str(error)
        future = publisher.submit(b"last", routing_key=full)
        time.sleep(0.3)
        assert not future.done()
        taken = drain(broker, full)
        assert future.result(30).attempts > 1
    assert [body for body, _ in taken + drain(broker, full)][-1] == b"last"
    with channel(broker) as opened:
        opened.queue_delete(full)


# -- messages nobody takes ------------------------------------------------------------------------


@pytest.mark.each_version
def test_an_unroutable_message_is_an_error_and_can_be_retried(broker: RabbitMQ, queue: str) -> None:
    """``released`` is no success; the caller mends the topology and retries."""
    missing = f"{queue}.later"
    with Publisher(broker.url, "orders-1") as publisher:
        with pytest.raises(ReturnedError, match=missing) as caught:
            publisher.publish(b"x", routing_key=missing)
        with channel(broker) as opened:
            opened.queue_declare(missing, durable=True)
        assert publisher.retry(caught.value.receipt, timeout=10).attempts == 2
    assert [body for body, _ in drain(broker, missing)] == [b"x"]
    with channel(broker) as opened:
        opened.queue_delete(missing)


@pytest.mark.each_version
def test_a_missing_exchange_fails_its_messages_and_no_others(broker: RabbitMQ, queue: str) -> None:
    """Over 1.0 the broker names the message, so the connection is not even touched."""
    with Publisher(broker.url, "orders-1") as publisher:
        futures = []
        for n in range(1000):
            exchange, key = (f"{queue}.nowhere", "k") if n % 100 == 50 else ("", queue)
            futures.append(publisher.submit(b"%d" % n, exchange=exchange, routing_key=key))
        errors = {n: future.exception(60) for n, future in enumerate(futures)}
    bad = {n for n, error in errors.items() if error is not None}
    assert bad == set(range(50, 1000, 100))
    assert all(type(errors[n]) is PublishError and "404" in str(errors[n]) for n in bad)
    assert [body for body, _ in drain(broker, queue)] == [b"%d" % n for n in range(1000) if n not in bad]


@pytest.mark.each_version
def test_a_message_that_ends_the_session_fails_alone(
    broker: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A forged user id ends the session (4.0) or detaches the link (4.3), and names no message: that one fails, precisely."""
    forged = Properties(user_id="somebody-else")
    with Publisher(broker.url, "orders-1") as publisher:
        futures = [
            publisher.submit(b"%d" % n, routing_key=queue, properties=forged if n == 300 else None)
            for n in range(600)
        ]
        errors = [future.exception(60) for future in futures]
        assert publisher.publish(b"after", routing_key=queue).attempts == 1
    assert [n for n, error in enumerate(errors) if error is not None] == [300]
    assert type(errors[300]) is PublishError
    assert "406" in str(errors[300])
    assert "connection_lost" not in caplog.text
    assert {body for body, _ in drain(broker, queue)} == {b"after"} | {
        b"%d" % n for n in range(600) if n != 300
    }


def test_bad_input_uses_no_sequence_and_sends_nothing(broker: RabbitMQ, queue: str) -> None:
    """What is refused at once leaves no hole: the next message has the next sequence."""
    bad: list[dict[str, Any]] = [
        {"body": "text"},
        {"body": bytes(1001)},
        {"exchange": "e" * 256},
        {"timeout": 0},
        {"properties": {"group_id": "x"}},
        {"properties": Properties(application_properties={"dedup-sequence": 7})},
        {"properties": Properties(application_properties={"nested": {}})},
        {"properties": Properties(application_properties={"large": 2**63})},
        {"properties": Properties(application_properties={"odd": object()})},
        {"properties": Properties(application_properties={1: "x"})},  # type: ignore[dict-item]
        {"properties": Properties(message_id=-1)},
        {"properties": Properties(message_id=1.5)},  # type: ignore[arg-type]
        {"properties": Properties(subject="\ud800")},
        {"properties": Properties(content_type="ü")},
        {"properties": Properties(creation_time=datetime(2026, 1, 1))},  # noqa: DTZ001
        {"properties": Properties(group_sequence=1)},
        {"properties": Properties(priority=256)},
        {"properties": Properties(ttl_s=float("nan"))},
        {"queue": "orders"},
    ]
    with Publisher(broker.url, "orders-1", base=0, body_bytes_max=1000) as publisher:
        for arguments in bad:
            with pytest.raises(InvalidMessageError):
                publisher.submit(**{"body": b"x", "routing_key": queue, **arguments})
        assert publisher.publish(b"good", routing_key=queue).sequence == 1
    assert [body for body, _ in drain(broker, queue)] == [b"good"]


# -- opening --------------------------------------------------------------------------------------


def test_a_dead_first_host_is_passed_over(broker: RabbitMQ, queue: str) -> None:
    """Hosts are tried in turn."""
    with Publisher([_DEAD_URL, broker.url], "orders-1") as publisher:
        publisher.publish(b"x", routing_key=queue, timeout=10)
    assert len(drain(broker, queue)) == 1


def test_a_lost_host_is_replaced_by_the_next(broker: RabbitMQ, queue: str, link: FaultProxy) -> None:
    """When the connection breaks and its host refuses, the other one is used."""
    with Publisher(f"{over(link)},{broker.url}", "orders-1") as publisher:
        publisher.publish(b"0", routing_key=queue)
        link.refuse()
        link.cut()
        publisher.publish(b"1", routing_key=queue, timeout=20)


def test_no_broker_is_a_clear_error_without_the_password() -> None:
    """Nobody answers: the constructor says so in bounded time and shows no secret."""
    with pytest.raises(BrokerUnavailableError, match=r"within 0\.5 s: amqp://127\.0\.0\.1:1") as caught:
        Publisher(_DEAD_URL, "orders-1", connect_timeout_s=0.5)
    assert "secret" not in str(caught.value) + repr(caught.value)


def test_a_refused_login_is_an_error_at_once(broker: RabbitMQ) -> None:
    """A wrong password does not get better by waiting; and it is never the guest's ANONYMOUS instead."""
    url = f"amqp://guest:wrong@127.0.0.1:{broker.port}/%2F"
    with pytest.raises(ConfigError, match="login") as caught:
        Publisher(url, "orders-1", connect_timeout_s=30)
    assert "wrong" not in str(caught.value)


def test_a_missing_virtual_host_is_named(broker: RabbitMQ) -> None:
    """The broker says nothing and cuts the link; the error names what to look at."""
    with pytest.raises(BrokerUnavailableError, match="virtual host"):
        Publisher(f"amqp://guest:guest@127.0.0.1:{broker.port}/nowhere", "orders-1", connect_timeout_s=5)


# -- misuse ---------------------------------------------------------------------------------------


def test_waiting_in_a_callback_is_refused_and_submitting_is_not(broker: RabbitMQ, queue: str) -> None:
    """A callback runs in the thread that would have to do the work."""
    with Publisher(broker.url, "orders-1") as publisher:
        outcome: Future[Any] = Future()

        def callback(_: Future[Receipt]) -> None:
            try:
                publisher.publish(b"y", routing_key=queue)
            except DedupError as error:
                outcome.set_result((str(error), publisher.submit(b"z", routing_key=queue)))

        publisher.submit(b"x", routing_key=queue).add_done_callback(callback)
        text, chained = outcome.result(10)
        assert "callback" in text
        assert chained.result(10).attempts == 1
    assert [body for body, _ in drain(broker, queue)] == [b"x", b"z"]


def test_a_fork_cannot_use_its_parent_publisher(broker: RabbitMQ, queue: str) -> None:
    """The child is told so, its exit harms nothing, and the parent goes on."""
    with Publisher(broker.url, "orders-1") as publisher:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                publisher.submit(b"child", routing_key=queue)
            except PublisherClosedError as error:
                publisher.close()
                os._exit(0 if "process" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        publisher.publish(b"parent", routing_key=queue, timeout=10)
    assert [body for body, _ in drain(broker, queue)] == [b"parent"]


def test_a_dying_thread_leaves_nobody_waiting(
    queue: str, link: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the thread that owns the connection ends as errors in the callers, not as silence."""
    publisher = Publisher(over(link), "orders-1")
    link.stall(TO_CLIENT)
    future = publisher.submit(b"x", routing_key=queue)

    def broken(*_: Any) -> Any:
        raise RuntimeError("bug")

    monkeypatch.setattr(publisher._thread._sender, "handle", broken)
    link.heal()
    error = future.exception(10)
    assert isinstance(error, ClosedUnconfirmedError)
    assert isinstance(error.__cause__, RuntimeError)
    publisher.close()
