"""The publisher against a real broker, over a link that breaks."""

from __future__ import annotations

import os
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.utils.connection_workflow import AMQPConnector

from dedup.amqp091.administration import administration
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
from dedup.publisher import Properties, Publisher
from dedup.testing.process import reserve_ports
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from dedup.testing.servers import RabbitMQ

_TLS = Path(__file__).parent / "tls"
_DEAD_URL = "amqp://guest:secret@127.0.0.1:1/%2F"


@pytest.fixture
def queue(rabbitmq: RabbitMQ, queue_name: str) -> Iterator[str]:
    """A durable classic queue that is deleted at the end."""
    with _channel(rabbitmq) as channel:
        channel.queue_declare(queue_name, durable=True)
    yield queue_name
    rabbitmq.ensure_running()
    with _channel(rabbitmq) as channel:
        channel.queue_delete(queue_name)


@pytest.fixture
def link(rabbitmq: RabbitMQ) -> Iterator[FaultProxy]:
    """A link to the broker that breaks on request."""
    with FaultProxy(rabbitmq.port) as proxy:
        yield proxy


@contextmanager
def _channel(rabbitmq: RabbitMQ) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def _over(link: FaultProxy) -> str:
    return f"amqp://guest:guest@127.0.0.1:{link.port}/%2F"


def _drain(rabbitmq: RabbitMQ, queue: str) -> list[tuple[bytes, Any]]:
    """Take everything out of *queue*: (body, properties) in order."""
    messages: list[tuple[bytes, Any]] = []
    with _channel(rabbitmq) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return messages
            messages.append((body, properties))


def _sequences(messages: list[tuple[bytes, Any]]) -> list[int]:
    return [properties.headers["dedup-sequence"] for _, properties in messages]


def _check_copies(messages: list[tuple[bytes, Any]], receipts: list[Receipt]) -> None:
    """Everything confirmed is there, and copies are the same message with a higher attempt."""
    assert {receipt.sequence for receipt in receipts} <= set(_sequences(messages))
    bodies: dict[int, bytes] = {}
    attempts = set()
    for body, properties in messages:
        sequence = properties.headers["dedup-sequence"]
        assert bodies.setdefault(sequence, body) == body
        attempt = (sequence, properties.headers.get("dedup-attempt", 1))
        assert attempt not in attempts
        attempts.add(attempt)


def _until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


# -- what arrives ---------------------------------------------------------------------------------


def test_a_message_is_stamped_and_otherwise_as_it_was_given(rabbitmq: RabbitMQ, queue: str) -> None:
    """The id is in app_id and the sequence in a header; the user's headers and properties are untouched."""
    given = Properties(
        content_type="text/plain", headers={"a": 1, "nested": {"b": [True, None]}}, priority=3, message_id="m"
    )
    with Publisher(rabbitmq.url, "orders-1", base=1 << 32) as publisher:
        assert publisher.publish(b"plain", routing_key=queue) == Receipt("orders-1", (1 << 32) + 1)
        assert publisher.publish(memoryview(b"given"), routing_key=queue, properties=given).attempts == 1
    (plain, stamped), (body, properties) = _drain(rabbitmq, queue)
    assert (plain, stamped.app_id, stamped.headers) == (
        b"plain",
        "orders-1",
        {"dedup-sequence": (1 << 32) + 1},
    )
    assert stamped.delivery_mode == 2
    assert body == b"given"
    assert properties.headers == {"dedup-sequence": (1 << 32) + 2, "a": 1, "nested": {"b": [True, None]}}
    assert (properties.content_type, properties.priority, properties.message_id) == ("text/plain", 3, "m")
    assert properties.delivery_mode is None
    assert given.headers == {"a": 1, "nested": {"b": [True, None]}}
    assert given.app_id is None


def test_an_app_id_of_the_user_stays(rabbitmq: RabbitMQ, queue: str) -> None:
    """Where app_id is taken, the publisher id rides in a header."""
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        publisher.publish(b"x", routing_key=queue, properties=Properties(app_id="billing"))
    ((_, properties),) = _drain(rabbitmq, queue)
    assert (properties.app_id, properties.headers["dedup-publisher"]) == ("billing", "orders-1")


def test_a_guarded_queue_is_published_to_by_its_own_name(rabbitmq: RabbitMQ, queue: str) -> None:
    """``queue="orders"`` leads to the queue in front of it."""
    with _channel(rabbitmq) as channel:
        channel.queue_declare(f"{queue}.dedup", durable=True)
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        publisher.publish(b"x", queue=queue)
    assert [body for body, _ in _drain(rabbitmq, f"{queue}.dedup")] == [b"x"]
    with _channel(rabbitmq) as channel:
        channel.queue_delete(f"{queue}.dedup")


def test_pipelined_messages_arrive_in_the_order_of_their_submits(rabbitmq: RabbitMQ, queue: str) -> None:
    """Thousands in flight, each confirmed under its own sequence."""
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(10_000)]
        publisher.flush()
        receipts = [future.result(0) for future in futures]
    messages = _drain(rabbitmq, queue)
    assert [body for body, _ in messages] == [b"%d" % n for n in range(10_000)]
    assert _sequences(messages) == [receipt.sequence for receipt in receipts]


def test_bodies_of_any_size_arrive_whole(rabbitmq: RabbitMQ, queue: str) -> None:
    """Empty, one frame to the byte, one more, and many frames."""
    bodies = [b"", b"x" * 131_064, b"x" * 131_065, os.urandom(5_000_000)]
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        for body in bodies:
            publisher.publish(body, routing_key=queue)
    assert [body for body, _ in _drain(rabbitmq, queue)] == bodies


def test_threads_may_share_a_publisher(rabbitmq: RabbitMQ, queue: str) -> None:
    """No sequence is used twice, and each thread's messages keep their order."""
    with Publisher(
        rabbitmq.url, "orders-1", unconfirmed_max=100, waiting_max=50, registration="local"
    ) as publisher:
        receipts: list[Receipt] = []

        def work(name: int) -> None:
            futures = [publisher.submit(b"%d %d" % (name, n), routing_key=queue) for n in range(500)]
            receipts.extend(future.result(60) for future in futures)
            receipts.append(publisher.publish(b"%d 500" % name, routing_key=queue, timeout=60))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    messages = _drain(rabbitmq, queue)
    assert len(receipts) == len({receipt.sequence for receipt in receipts}) == len(messages) == 8 * 501
    assert _sequences(messages) == sorted(_sequences(messages))
    for name in range(8):
        mine = [body for body, _ in messages if body.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, n) for n in range(501)]


# -- a link that breaks ---------------------------------------------------------------------------


def test_lost_confirms_lead_to_the_same_message_again(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker stores, its confirms never arrive: the connection counts as dead, and copies name the same sequence."""
    with Publisher(_over(link), "orders-1", confirm_timeout_s=1.0, registration="local") as publisher:
        publisher.publish(b"before", routing_key=queue)
        link.drop(TO_CLIENT)
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(100)]
        with _channel(rabbitmq) as channel:
            _until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 101)
        _until(lambda: "publisher_connection_dropped" in caplog.text)
        link.heal()
        receipts = [future.result(30) for future in futures]
    assert {receipt.attempts for receipt in receipts} == {2}
    messages = _drain(rabbitmq, queue)
    assert len(messages) == 201
    _check_copies(messages, receipts)


@pytest.mark.parametrize("count", [1, 541], ids=["greeting", "login"])
def test_a_link_torn_in_the_handshake_is_tried_again(queue: str, link: FaultProxy, count: int) -> None:
    """What ends a connection before it is open is not taken for a wrong setting: the next attempt serves."""
    link.cut_after(count, TO_CLIENT)
    with Publisher(_over(link), "p", registration="local") as publisher:
        assert publisher.publish(b"m", routing_key=queue).attempts == 1


def test_a_socket_reset_as_soon_as_it_is_connected_is_a_failed_attempt(
    rabbitmq: RabbitMQ, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pika raises out of its loop for it; the publisher lives on, and an administrator may try again."""
    connect = AMQPConnector._on_tcp_connection_done
    resets = [True, False, True]

    def reset_first(self: Any, error: BaseException | None) -> None:
        if resets and resets.pop(0):
            self._sock.close()
        connect(self, error)

    monkeypatch.setattr(AMQPConnector, "_on_tcp_connection_done", reset_first)
    with Publisher(rabbitmq.url, "p", registration="local") as publisher:
        assert publisher.publish(b"m", routing_key=queue).attempts == 1
    with pytest.raises(BrokerUnavailableError), administration(rabbitmq.url) as broker:
        broker.count(queue)
    assert not resets


def test_a_link_cut_again_and_again_loses_nothing(rabbitmq: RabbitMQ, queue: str, link: FaultProxy) -> None:
    """Resets in the middle of the stream: everything submitted is confirmed and there, first copies in order."""
    with Publisher(_over(link), "orders-1", registration="local") as publisher:
        futures: list[Future[Receipt]] = []
        for cut in range(8):
            link.cut_after(40_000 + 7919 * cut, TO_SERVER if cut % 2 else TO_CLIENT)
            futures += [publisher.submit(b"%d" % (cut * 2000 + n), routing_key=queue) for n in range(2000)]
        receipts = [future.result(60) for future in futures]
    messages = _drain(rabbitmq, queue)
    _check_copies(messages, receipts)
    first_copies = list(dict.fromkeys(_sequences(messages)))
    assert first_copies == [receipt.sequence for receipt in receipts]


def test_a_timeout_carries_a_receipt_that_is_safe_to_retry(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """The caller is told in time; the retry is the same message, and the publisher does not repeat it by itself."""
    with Publisher(_over(link), "orders-1", registration="local") as publisher:
        link.stall(TO_CLIENT)
        started = time.monotonic()
        with pytest.raises(PublishTimeoutError, match="silent") as caught:
            publisher.publish(b"x", routing_key=queue, timeout=0.5)
        assert 0.4 < time.monotonic() - started < 3
        assert isinstance(caught.value, TimeoutError)
        link.cut()
        link.heal()
        receipt = publisher.retry(caught.value.receipt, timeout=30)
    assert receipt.sequence == caught.value.receipt.sequence
    _check_copies(_drain(rabbitmq, queue), [receipt])


def test_a_late_confirm_makes_the_retry_a_success_without_a_copy(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """What turned out to be stored is not sent again."""
    with Publisher(_over(link), "orders-1", registration="local") as publisher:
        link.stall(TO_CLIENT)
        with pytest.raises(PublishTimeoutError) as caught:
            publisher.publish(b"x", routing_key=queue, timeout=0.5)
        link.heal()
        publisher.publish(b"y", routing_key=queue, timeout=30)
        assert publisher.retry(caught.value.receipt, timeout=30).attempts == 1
    assert [body for body, _ in _drain(rabbitmq, queue)] == [b"x", b"y"]


def test_a_full_buffer_blocks_and_times_out_with_a_receipt(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """Back-pressure: submit waits for room, in bounded time, and even then the receipt is good for a retry."""
    with Publisher(
        _over(link), "orders-1", unconfirmed_max=2, waiting_max=1, registration="local"
    ) as publisher:
        link.stall(TO_CLIENT)
        first = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(3)]
        started = time.monotonic()
        late = publisher.submit(b"3", routing_key=queue, timeout=0.5)
        assert time.monotonic() - started > 0.4
        error = late.exception(10)
        assert isinstance(error, PublishTimeoutError)
        assert error.receipt.attempts == 0
        with pytest.raises(PublishTimeoutError, match="3 messages"):
            publisher.flush(timeout=0.1)
        link.heal()
        assert publisher.retry(error.receipt, timeout=30).attempts == 1
        assert len(wait(first, 30).not_done) == 0
    assert sorted(body for body, _ in _drain(rabbitmq, queue)) == [b"0", b"1", b"2", b"3"]


def test_closing_in_time_fails_what_is_unconfirmed(rabbitmq: RabbitMQ, queue: str, link: FaultProxy) -> None:
    """Close is bounded, and each message without a confirm says so with its receipt."""
    publisher = Publisher(_over(link), "orders-1", close_timeout_s=0.5, registration="local")
    link.stall(TO_CLIENT)
    futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(3)]
    started = time.monotonic()
    publisher.close()
    assert time.monotonic() - started < 5
    for future in futures:
        error = future.exception(0)
        assert isinstance(error, ClosedUnconfirmedError)
        assert isinstance(error, PublishError)
        assert error.receipt.publisher_id == "orders-1"
    publisher.close()
    with pytest.raises(PublisherClosedError):
        publisher.submit(b"x", routing_key=queue)
    link.heal()
    rabbitmq.ensure_running()


def test_closing_waits_for_confirms(rabbitmq: RabbitMQ, queue: str) -> None:
    """What was submitted before close is confirmed by it."""
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(5000)]
    assert len([future.result(0) for future in futures]) == len(_drain(rabbitmq, queue)) == 5000


def test_closing_in_the_middle_of_a_handshake_frees_everything(
    link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """What pika asserts when it is closed while it connects again leaves nothing open; sockets are freed all the same."""
    publisher = Publisher(_over(link), "orders-1", base=0, close_timeout_s=0.2)
    link.stall(TO_CLIENT)
    link.cut()
    _until(lambda: link.connections > 0)
    publisher.close()
    assert publisher._thread._loop._poller._poll is None
    assert "publisher_release_failed" not in caplog.text


# -- a broker in trouble --------------------------------------------------------------------------


def test_a_broker_killed_and_restarted_has_everything_confirmed(rabbitmq: RabbitMQ, queue: str) -> None:
    """A kill -9 under load, a while of nothing, the same broker again: all futures end well, nothing confirmed is missing."""
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(4000)]
        _until(lambda: any(future.done() for future in futures))
        rabbitmq.kill()
        futures += [publisher.submit(b"%d" % n, routing_key=queue) for n in range(4000, 5000)]
        rabbitmq.start()
        receipts = [future.result(60) for future in futures]
    _check_copies(_drain(rabbitmq, queue), receipts)


def test_an_alarm_blocks_and_heartbeats_live(rabbitmq: RabbitMQ, queue: str) -> None:
    """While the broker takes no publishes, callers are told why, the connection stays, and then it all goes through."""
    with Publisher(
        rabbitmq.url + "?heartbeat=2", "orders-1", confirm_timeout_s=6.0, registration="local"
    ) as publisher:
        publisher.publish(b"0", routing_key=queue)
        connected = publisher._thread._connection
        rabbitmq.set_alarm()
        try:
            futures = [publisher.submit(b"1", routing_key=queue)]
            _until(lambda: bool(publisher._thread._sender._link.blocked))
            with pytest.raises(PublishTimeoutError, match="blocked the connection"):
                publisher.publish(b"2", routing_key=queue, timeout=9)
            futures.append(publisher.submit(b"3", routing_key=queue))
        finally:
            rabbitmq.clear_alarm()
        receipts = [future.result(30) for future in futures]
        assert publisher._thread._connection is connected
    assert [receipt.attempts for receipt in receipts] == [1, 1]
    assert [body for body, _ in _drain(rabbitmq, queue)] == [b"0", b"1", b"3"]


def test_a_full_queue_is_tried_again_until_there_is_room(rabbitmq: RabbitMQ, queue: str) -> None:
    """reject-publish answers with nacks: the message is sent again under its sequence until it is taken."""
    full = f"{queue}.full"
    with _channel(rabbitmq) as channel:
        channel.queue_declare(
            full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        publisher.publish(b"0", routing_key=full, timeout=10)
        # A classic queue may take one more than its limit.
        more = [publisher.submit(b"%d" % n, routing_key=full, timeout=1) for n in range(1, 4)]
        with pytest.raises(PublishTimeoutError, match="nacked"):
            more[-1].result(10)
        future = publisher.submit(b"last", routing_key=full)
        time.sleep(0.3)
        assert not future.done()
        taken = _drain(rabbitmq, full)
        assert future.result(30).attempts > 1
    assert [body for body, _ in taken + _drain(rabbitmq, full)][-1] == b"last"
    with _channel(rabbitmq) as channel:
        channel.queue_delete(full)


# -- messages nobody takes ------------------------------------------------------------------------


def test_an_unroutable_message_is_an_error_and_can_be_retried(rabbitmq: RabbitMQ, queue: str) -> None:
    """The broker acks what it returns; the caller learns the truth, mends the topology and retries."""
    missing = f"{queue}.later"
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        with pytest.raises(ReturnedError, match=missing) as caught:
            publisher.publish(b"x", routing_key=missing)
        with _channel(rabbitmq) as channel:
            channel.queue_declare(missing, durable=True)
        assert publisher.retry(caught.value.receipt, timeout=10).attempts == 2
    assert [body for body, _ in _drain(rabbitmq, missing)] == [b"x"]
    with _channel(rabbitmq) as channel:
        channel.queue_delete(missing)


def test_a_missing_exchange_fails_its_messages_and_no_others(rabbitmq: RabbitMQ, queue: str) -> None:
    """The broker closes the channel and names no message; exactly the right ones fail."""
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        futures = []
        for n in range(1000):
            exchange, key = (f"{queue}.nowhere", "k") if n % 100 == 50 else ("", queue)
            futures.append(publisher.submit(b"%d" % n, exchange=exchange, routing_key=key))
        errors = {n: future.exception(60) for n, future in enumerate(futures)}
    bad = {n for n, error in errors.items() if error is not None}
    assert bad == set(range(50, 1000, 100))
    assert all(type(errors[n]) is PublishError and "404" in str(errors[n]) for n in bad)
    stored = {body for body, _ in _drain(rabbitmq, queue)}
    assert stored == {b"%d" % n for n in range(1000) if n not in bad}


def test_a_message_the_broker_refuses_fails_alone(rabbitmq: RabbitMQ, queue: str) -> None:
    """406 for one message among many (a user id that is not the login's): that one fails, precisely."""
    forged = Properties(user_id="somebody-else", delivery_mode=2)
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        futures = [
            publisher.submit(b"%d" % n, routing_key=queue, properties=forged if n == 500 else None)
            for n in range(1000)
        ]
        errors = [future.exception(60) for future in futures]
    assert [n for n, error in enumerate(errors) if error is not None] == [500]
    assert "406" in str(errors[500])
    assert {body for body, _ in _drain(rabbitmq, queue)} == {b"%d" % n for n in range(1000) if n != 500}


def test_bad_input_uses_no_sequence_and_sends_nothing(rabbitmq: RabbitMQ, queue: str) -> None:
    """What is refused at once leaves no hole: the next message has the next sequence."""
    bad: list[dict[str, Any]] = [
        {"body": "text"},
        {"body": bytes(1001)},
        {"exchange": "e" * 256},
        {"timeout": 0},
        {"properties": {"app_id": "x"}},
        {"properties": Properties(headers={"dedup-sequence": 7})},
        {"properties": Properties(headers={"large": "x" * 140_000})},
        {"queue": "orders"},
    ]
    with Publisher(rabbitmq.url, "orders-1", base=0, body_bytes_max=1000) as publisher:
        for arguments in bad:
            with pytest.raises(InvalidMessageError):
                publisher.submit(**{"body": b"x", "routing_key": queue, **arguments})
        with pytest.raises(InvalidMessageError, match="belongs"):
            publisher.retry(Receipt("orders-2", 1))
        assert publisher.publish(b"good", routing_key=queue).sequence == 1
    assert [body for body, _ in _drain(rabbitmq, queue)] == [b"good"]


# -- opening --------------------------------------------------------------------------------------


def test_a_dead_first_host_is_passed_over(rabbitmq: RabbitMQ, queue: str) -> None:
    """Hosts are tried in turn."""
    with Publisher([_DEAD_URL, rabbitmq.url], "orders-1", registration="local") as publisher:
        publisher.publish(b"x", routing_key=queue, timeout=10)
    assert len(_drain(rabbitmq, queue)) == 1


def test_a_lost_host_is_replaced_by_the_next(rabbitmq: RabbitMQ, queue: str, link: FaultProxy) -> None:
    """When the connection breaks and its host refuses, the other one is used."""
    with Publisher(f"{_over(link)},{rabbitmq.url}", "orders-1", registration="local") as publisher:
        publisher.publish(b"0", routing_key=queue)
        link.refuse()
        link.cut()
        publisher.publish(b"1", routing_key=queue, timeout=20)
    _check_copies(_drain(rabbitmq, queue), [])


def test_no_broker_is_a_clear_error_without_the_password() -> None:
    """Nobody answers: the constructor says so in bounded time and shows no secret."""
    started = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match=r"within 0\.5 s: amqp://127\.0\.0\.1:1") as caught:
        Publisher(_DEAD_URL, "orders-1", connect_timeout_s=0.5, registration="local")
    assert time.monotonic() - started < 3
    assert "secret" not in str(caught.value) + repr(caught.value)


def test_a_refused_login_is_an_error_at_once(rabbitmq: RabbitMQ) -> None:
    """A wrong password does not get better by waiting."""
    url = f"amqp://guest:wrong@127.0.0.1:{rabbitmq.port}/%2F"
    started = time.monotonic()
    with pytest.raises(ConfigError, match="login") as caught:
        Publisher(url, "orders-1", connect_timeout_s=30, registration="local")
    assert time.monotonic() - started < 10
    assert "wrong" not in str(caught.value)


def test_a_missing_virtual_host_is_an_error_at_once(rabbitmq: RabbitMQ) -> None:
    """So is a virtual host that is not there."""
    with pytest.raises(ConfigError, match="virtual host"):
        Publisher(
            f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/nowhere",
            "orders-1",
            connect_timeout_s=30,
            registration="local",
        )


def test_a_message_too_large_for_the_frames_of_the_next_host_fails_alone(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """Headers that the first broker's frames could hold and the second one's cannot: that message fails, precisely."""
    large = Properties(headers={"large": "x" * 10_000}, delivery_mode=2)
    with Publisher(
        [_over(link), f"{rabbitmq.url}?frame_max=8192"], "orders-1", registration="local"
    ) as publisher:
        link.stall(TO_SERVER)
        futures = [
            publisher.submit(b"%d" % n, routing_key=queue, properties=large if n == 5 else None)
            for n in range(20)
        ]
        link.refuse()
        link.cut()
        errors = [future.exception(30) for future in futures]
    assert [n for n, error in enumerate(errors) if error is not None] == [5]
    assert "frame-max of 8192" in str(errors[5])
    _check_copies(_drain(rabbitmq, queue), [future.result() for n, future in enumerate(futures) if n != 5])


def test_tls_is_a_matter_of_the_url_or_of_a_context(
    private_rabbitmq: Callable[..., RabbitMQ], queue_name: str, request: pytest.FixtureRequest
) -> None:
    """An unknown certificate is refused at once; a context that trusts it is used."""
    block = reserve_ports(1)
    request.addfinalizer(block.release)
    (port,) = block.ports
    server = private_rabbitmq(
        plugins=(),
        config={
            "listeners.ssl.1": f"127.0.0.1:{port}",
            "ssl_options.cacertfile": str(_TLS / "cert.pem"),
            "ssl_options.certfile": str(_TLS / "cert.pem"),
            "ssl_options.keyfile": str(_TLS / "key.pem"),
        },
    )
    server.ctl("await_startup")  # this listener opens last
    with _channel(server) as channel:
        channel.queue_declare(queue_name, durable=True)
    url = f"amqps://guest:guest@localhost:{port}/%2F"
    with pytest.raises(ConfigError, match="certificate"):
        Publisher(url, "orders-1", connect_timeout_s=30, registration="local")
    trusting = ssl.create_default_context(cafile=str(_TLS / "cert.pem"))
    with Publisher(url, "orders-1", ssl_context=trusting, registration="local") as publisher:
        publisher.publish(b"x" * 300_000, routing_key=queue_name, timeout=10)
    assert [len(body) for body, _ in _drain(server, queue_name)] == [300_000]


# -- misuse ---------------------------------------------------------------------------------------


def test_waiting_in_a_callback_is_refused_and_submitting_is_not(rabbitmq: RabbitMQ, queue: str) -> None:
    """A callback runs in the thread that would have to do the work."""
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
        outcome: Future[Any] = Future()

        def callback(_: Future[Receipt]) -> None:
            try:
                publisher.publish(b"y", routing_key=queue)
            except DedupError as error:
                outcome.set_result((str(error), publisher.submit(b"z", routing_key=queue)))

        future = publisher.submit(b"x", routing_key=queue)
        assert not future.cancel()
        future.add_done_callback(callback)
        text, chained = outcome.result(10)
        assert "callback" in text
        assert chained.result(10).attempts == 1
    assert [body for body, _ in _drain(rabbitmq, queue)] == [b"x", b"z"]


def test_a_fork_cannot_use_its_parent_publisher(rabbitmq: RabbitMQ, queue: str) -> None:
    """The child is told so, its exit harms nothing, and the parent goes on."""
    with Publisher(rabbitmq.url, "orders-1", registration="local") as publisher:
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
    assert [body for body, _ in _drain(rabbitmq, queue)] == [b"parent"]


def test_a_dying_thread_leaves_nobody_waiting(
    queue: str, link: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the thread that owns the connection ends as errors in the callers, not as silence."""
    publisher = Publisher(_over(link), "orders-1", registration="local")
    link.stall(TO_CLIENT)
    future = publisher.submit(b"x", routing_key=queue)

    def broken(*_: Any) -> Any:
        raise RuntimeError("bug")

    monkeypatch.setattr(publisher._thread._sender, "handle", broken)
    link.heal()
    error = future.exception(10)
    assert isinstance(error, ClosedUnconfirmedError)
    assert isinstance(error.__cause__, RuntimeError)
    with pytest.raises(PublisherClosedError) as caught:
        publisher.publish(b"y", routing_key=queue)
    assert isinstance(caught.value.__cause__, RuntimeError)
    publisher.close()
