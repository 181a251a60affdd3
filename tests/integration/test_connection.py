"""The connection against a real RabbitMQ: what pika keeps doing, and the content path beside it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.select_connection import IOLoop
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByClient, InvalidFrameError

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.failures import translate
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.properties import amend, scan
from dedup.errors import BrokerUnavailableError, ConfigError, DedupError, PartialCommitError, TopologyError
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ
from tests.looking import listens, until

TLS = Path(__file__).parent / "tls"
#: Headers that pika loses or dies of: a float, 16 bits, a millisecond epoch, a name and a text that are not UTF-8. In
#: the order of their names, since RabbitMQ 4 sorts them; NaN is missing, since it answers that with 541.
HOSTILE = (
    b"\x01dd" + struct.pack(">d", 1e300)
    + b"\x01ff" + struct.pack(">f", 1.5)
    + b"\x01tT" + struct.pack(">Q", 1_700_000_000_000_000)
    + b"\x01uu\xff\xff"
    + b"\x02\xff\xfeS\x00\x00\x00\x01\xff"
)  # fmt: skip


class Desk:
    """
    One loop and the connections on it, driven until something has happened.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.loop = IOLoop()
        self.loop.activate_poller()
        self.closed: dict[Any, Exception] = {}
        self.connections: list[RawConnection] = []

    def until(self, condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        end = time.monotonic() + timeout_s
        handle = self.loop.call_later(timeout_s, lambda: None)
        while not (result := condition()):
            assert time.monotonic() < end, f"timed out; closed: {self.closed}"
            self.loop.poll()
            self.loop.process_timeouts()
        self.loop.remove_timeout(handle)
        return result

    def connect(self, url: str = "", **settings: Any) -> RawConnection:
        """
        Return an open connection, or raise what the failure means.
        """
        opened: list[Any] = []
        parameters = connection_parameters(url or self.url, name="test", **settings)
        RawConnection.create_connection(parameters, opened.append, custom_ioloop=self.loop)
        self.until(lambda: opened)
        if not isinstance(opened[0], RawConnection):
            raise translate(opened[0]) from opened[0]
        connection = opened[0]
        connection.add_on_close_callback(self.closed.__setitem__)
        self.connections.append(connection)
        return connection

    def channel(self, connection: RawConnection, **handlers: Any) -> RawChannel:
        opened: list[Any] = []
        connection.channel(on_open_callback=opened.append)
        channel = self.until(lambda: opened)[0]
        channel.add_on_close_callback(self.closed.__setitem__)
        return connection.attach(channel, **handlers)

    def ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """
        Make a request through pika and return its answer.
        """
        answers: list[Any] = []
        method(*arguments, **options, callback=answers.append)
        return self.until(lambda: answers)[0]

    def close(self) -> None:
        for connection in self.connections:
            if connection.is_open:
                connection.close()
        self.until(lambda: all(connection.is_closed for connection in self.connections))
        self.loop.deactivate_poller()
        self.loop.close()


@pytest.fixture
def free_port() -> Iterator[int]:
    """
    Return a port where nobody listens.
    """
    ports = reserve_ports(1)
    yield ports.ports[0]
    ports.release()


@pytest.fixture
def desk(rabbitmq: RabbitMQ) -> Iterator[Desk]:
    """
    Return a loop for connections to the run's server.
    """
    desk = Desk(rabbitmq.url)
    yield desk
    desk.close()


@pytest.fixture
def queue(desk: Desk) -> str:
    """
    Return the name of a new queue that goes away with its test.
    """
    channel = desk.channel(desk.connect()).channel
    answer = desk.ask(channel.queue_declare, "", exclusive=False, auto_delete=True)
    return str(answer.method.queue)


def publish(raw: RawChannel, queue: str, body: bytes, properties: bytes = b"\x00\x00") -> bytes:
    """
    Return the frames of a mandatory publish to *queue*.
    """
    return wire.publish_frame(raw.number, b"", queue.encode(), True) + wire.content_frames(
        properties, body, channel=raw.number, frame_max=raw.frame_max
    )


def consume(desk: Desk, raw: RawChannel, queue: str) -> None:
    """
    Begin to consume; pika must never see a message of it.
    """
    desk.ask(
        raw.channel.basic_consume, queue, on_message_callback=lambda *_: pytest.fail("pika got a message")
    )


# -- the content path ------------------------------------------------------------------------------


def test_messages_come_back_byte_for_byte(desk: Desk, queue: str) -> None:
    """Empty, small and several frames long, with properties that pika's decoder loses or dies of."""
    nested = b"V"
    for _ in range(2000):
        nested = b"F" + struct.pack(">I", len(nested) + 2) + b"\x01n" + nested
    properties = [b"\x00\x00", b"\x20\x08" + struct.pack(">I", len(HOSTILE)) + HOSTILE + b"\x02me"]
    properties.append(b"\x20\x00" + struct.pack(">I", len(nested) + 2) + b"\x01d" + nested)
    bodies = [b"", b"body", bytes(range(256)) * 2000]
    sent = [(each, body) for each in properties for body in bodies]
    got: list[wire.Delivery] = []
    confirms: list[tuple[int, bool, bool]] = []

    raw = desk.channel(desk.connect(), on_deliveries=got.extend, on_confirms=confirms.extend)
    desk.ask(raw.channel.confirm_delivery, lambda _: None)
    consume(desk, raw, queue)
    raw.send([publish(raw, queue, body, each) for each, body in sent])
    desk.until(lambda: len(got) == len(sent) and confirms and confirms[-1][0] == len(sent))

    assert [(delivery.properties, delivery.body) for delivery in got] == sent
    assert [delivery.tag for delivery in got] == list(range(1, len(sent) + 1))
    assert {(delivery.exchange, delivery.routing_key) for delivery in got} == {(b"", queue.encode())}
    assert all(positive for _, _, positive in confirms)
    assert scan(got[3].properties).fault is None


def test_a_delivery_is_forwarded_as_it_came(desk: Desk, queue: str) -> None:
    """Over two connections on one loop, unchanged and marked, whatever the size."""
    bodies = [b"", b"body", b"x" * 300_000]
    stamp = b"\x20\x08" + struct.pack(">I", 24) + b"\x0ededup-sequencel" + struct.pack(">q", 5) + b"\x02me"
    targets: list[wire.Delivery] = []
    source, target = desk.connect(), desk.connect()
    out = desk.channel(target, on_deliveries=targets.extend)
    name = desk.ask(out.channel.queue_declare, "", exclusive=True).method.queue
    consume(desk, out, name)

    def forward(batch: list[wire.Delivery]) -> None:
        frames = []
        for delivery in batch:
            marked = amend(delivery.properties, headers=[("dedup-possible-duplicate", True)])
            for properties in (None, marked):
                frames.append(wire.publish_frame(out.number, b"", name.encode(), True))
                frames.append(
                    wire.forward_frames(
                        delivery, channel=out.number, frame_max=out.frame_max, properties=properties
                    )
                )
        out.send(frames)
        ingress.ack(batch[-1].tag)

    ingress = desk.channel(source, on_deliveries=forward)
    consume(desk, ingress, queue)
    ingress.send([publish(ingress, queue, body, stamp) for body in bodies])
    desk.until(lambda: len(targets) == 2 * len(bodies))
    assert [delivery.body for delivery in targets] == [body for body in bodies for _ in range(2)]
    assert [delivery.properties == stamp for delivery in targets] == [True, False] * len(bodies)
    assert {scan(delivery.properties)[:2] for delivery in targets} == {("me", 5)}
    desk.until(lambda: desk.ask(ingress.channel.queue_declare, queue, passive=True).method.message_count == 0)


def test_many_messages_come_in_few_calls(desk: Desk, queue: str) -> None:
    """A call carries what one read brought, and confirms are gathered too."""
    batches: list[int] = []
    confirms: list[int] = []
    raw = desk.channel(
        desk.connect(),
        on_deliveries=lambda batch: batches.append(len(batch)),
        on_confirms=lambda c: confirms.append(c[-1][0]),
    )
    desk.ask(raw.channel.confirm_delivery, lambda _: None)
    raw.send([publish(raw, queue, b"x" * 200)] * 5000)
    desk.until(lambda: confirms and confirms[-1] == 5000)
    consume(desk, raw, queue)
    desk.until(lambda: sum(batches) == 5000)
    assert len(batches) < 2500
    assert len(confirms) < 2500


def test_a_return_comes_before_the_confirm_of_its_message(desk: Desk) -> None:
    """An ack alone would look like success."""
    events: list[Any] = []
    raw = desk.channel(desk.connect(), on_confirms=events.extend, on_return=events.append)
    desk.ask(raw.channel.confirm_delivery, lambda _: None)
    raw.send(publish(raw, "nowhere", b"lost", b"\x10\x00\x02"))
    desk.until(lambda: len(events) == 2)
    assert events == [
        wire.Returned(312, "NO_ROUTE", b"", b"nowhere", b"\x10\x00\x02", b"lost"),
        (1, False, True),
    ]


def test_a_full_queue_refuses_with_a_nack(desk: Desk) -> None:
    """The negative confirm names its message."""
    confirms: list[tuple[int, bool, bool]] = []
    raw = desk.channel(desk.connect(), on_confirms=confirms.extend)
    limits = {"x-max-length": 1, "x-overflow": "reject-publish", "x-queue-type": "classic"}
    name = desk.ask(raw.channel.queue_declare, "", exclusive=True, arguments=limits).method.queue
    desk.ask(raw.channel.confirm_delivery, lambda _: None)
    raw.send(publish(raw, name, b"1"))
    desk.until(lambda: len(confirms) == 1)
    raw.send(publish(raw, name, b"2"))
    desk.until(lambda: len(confirms) == 2)
    assert [positive for _, _, positive in confirms] == [True, False]


def test_a_transaction_can_be_one_write(desk: Desk, queue: str) -> None:
    """Messages and tx.commit leave together; its answer has its own handler."""
    commits: list[int] = []
    raw = desk.channel(desk.connect(), on_commit=lambda: commits.append(1))
    desk.ask(raw.channel.tx_select)
    for _ in range(2):
        before = len(commits)
        raw.send([*[publish(raw, queue, b"x")] * 10, wire.commit_frame(raw.number)])
        desk.until(lambda count=before: len(commits) > count)  # type: ignore[misc]
    assert desk.ask(raw.channel.queue_declare, queue, passive=True).method.message_count == 20


def test_a_refused_transaction_is_told_apart(desk: Desk) -> None:
    """406 partial tx completion closes the channel with its own error."""
    raw = desk.channel(desk.connect(), on_commit=lambda: pytest.fail("committed"))
    limits = {"x-max-length": 1, "x-overflow": "reject-publish", "x-queue-type": "classic"}
    name = desk.ask(raw.channel.queue_declare, "", exclusive=True, arguments=limits).method.queue
    desk.ask(raw.channel.tx_select)
    raw.send([*[publish(raw, name, b"x")] * 3, wire.commit_frame(raw.number)])
    reason = desk.until(lambda: desk.closed.get(raw.channel))
    assert isinstance(translate(reason), PartialCommitError)


# -- what stays with pika --------------------------------------------------------------------------


def test_a_consumer_that_the_broker_cancels_is_told_after_its_messages(desk: Desk) -> None:
    """The queue was deleted: without the notice the shim would wait for ever."""
    events: list[Any] = []
    connection = desk.connect()
    raw = desk.channel(connection, on_deliveries=events.extend)
    name = desk.ask(raw.channel.queue_declare, "", exclusive=True).method.queue
    raw.channel.add_on_cancel_callback(lambda _: events.append("cancelled"))
    consume(desk, raw, name)
    other = desk.channel(connection)
    other.send(publish(other, name, b"last"))
    desk.ask(other.channel.queue_delete, name)
    desk.until(lambda: "cancelled" in events)
    assert [getattr(event, "body", event) for event in events] == [b"last", "cancelled"]


def test_a_channel_that_the_broker_closes_says_why_and_sends_no_more(desk: Desk, queue: str) -> None:
    """A frame for a closed channel would take the connection, and every other channel, with it."""
    connection = desk.connect()
    got: list[wire.Delivery] = []
    broken, healthy = desk.channel(connection), desk.channel(connection, on_deliveries=got.extend)
    broken.send(
        wire.publish_frame(broken.number, b"missing", b"")
        + wire.content_frames(b"\0\0", b"", channel=broken.number, frame_max=0)
    )
    reason = desk.until(lambda: desk.closed.get(broken.channel))
    assert isinstance(reason, ChannelClosedByBroker)
    failure = translate(reason)
    assert isinstance(failure, TopologyError)
    assert vars(failure)["reply_code"] == 404
    with pytest.raises(BrokerUnavailableError, match=f"channel {broken.number} is closed"):
        broken.ack(1)
    consume(desk, healthy, queue)
    healthy.send(publish(healthy, queue, b"x"))
    desk.until(lambda: got)


def test_a_channel_number_is_free_again_after_its_channel(desk: Desk, queue: str) -> None:
    """The handlers of the old channel hear nothing of the new one."""
    connection = desk.connect()
    first = desk.channel(connection, on_deliveries=lambda _: pytest.fail("old handler"))
    first.channel.close()
    desk.until(lambda: first.channel.is_closed)
    got: list[wire.Delivery] = []
    second = desk.channel(connection, on_deliveries=got.extend)
    assert second.number == first.number
    consume(desk, second, queue)
    second.send(publish(second, queue, b"x"))
    desk.until(lambda: got)
    with pytest.raises(BrokerUnavailableError):
        first.ack(1)


def test_deliveries_stop_when_the_channel_is_closed_by_us(desk: Desk, queue: str) -> None:
    """What arrives after close() could not be acknowledged any more."""
    calls: list[int] = []

    def deliver(batch: list[wire.Delivery]) -> None:
        calls.append(len(batch))
        raw.channel.close()

    connection = desk.connect()
    feeder = desk.channel(connection)
    feeder.send([publish(feeder, queue, b"x" * 1000)] * 1000)
    raw = desk.channel(connection, on_deliveries=deliver)
    consume(desk, raw, queue)
    desk.until(lambda: raw.channel.is_closed)
    assert len(calls) == 1
    assert isinstance(desk.closed[raw.channel], pika.exceptions.ChannelClosedByClient)


def test_an_alarm_is_told_and_what_is_sent_meanwhile_waits(
    desk: Desk, rabbitmq: RabbitMQ, queue: str
) -> None:
    """connection.blocked and unblocked arrive; the bytes that the broker does not take can be seen."""
    if rabbitmq.external:
        pytest.skip("needs a server of its own")
    events: list[str] = []
    confirms: list[tuple[int, bool, bool]] = []
    connection = desk.connect()
    connection.add_on_connection_blocked_callback(lambda *_: events.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: events.append("unblocked"))
    raw = desk.channel(connection, on_confirms=confirms.extend)
    desk.ask(raw.channel.confirm_delivery, lambda _: None)
    rabbitmq.set_alarm()
    try:
        raw.send(publish(raw, queue, b"x"))
        desk.until(lambda: events == ["blocked"])
        raw.send([publish(raw, queue, b"x" * 1_000_000)] * 20)
        desk.until(lambda: 0 < connection.write_buffer_size < 20_000_000)
        assert not confirms
    finally:
        rabbitmq.clear_alarm()
    desk.until(lambda: confirms and confirms[-1][0] == 21)
    assert events == ["blocked", "unblocked"]
    assert connection.write_buffer_size == 0


def test_the_broker_knows_the_connection_by_name_and_what_it_can_do(desk: Desk, rabbitmq: RabbitMQ) -> None:
    """A name for the operator, and pika's capabilities, without which nacks and notices stop."""
    if rabbitmq.external:
        pytest.skip("needs a server of its own")
    desk.connect()
    properties = rabbitmq.ctl("list_connections", "client_properties", "--silent")
    for expected in ("connection_name", "test", "basic.nack", "connection.blocked", "consumer_cancel_notify"):
        assert expected in properties


def test_heartbeats_see_the_bytes_that_come_in(desk: Desk, queue: str) -> None:
    """The checker compares counters of ours: a busy connection must never look idle."""
    got: list[wire.Delivery] = []
    connection = desk.connect()
    raw = desk.channel(connection, on_deliveries=got.extend)
    consume(desk, raw, queue)
    before = connection.bytes_received, connection.frames_received, connection.bytes_sent
    data = publish(raw, queue, b"x" * 1000)
    raw.send(data)
    desk.until(lambda: got)
    assert connection.bytes_received - before[0] > len(got[0].content)
    assert connection.frames_received - before[1] == 3
    assert connection.bytes_sent - before[2] == len(data)


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\x01\x00\x00\x00\x00\x00\x00X", id="no end marker"),
        pytest.param(b"\x01\x00\x00\x00\x00\x00\x04\x00\x63\x00\x63\xce", id="unknown method"),
        pytest.param(b"\x01\x00\x00\x00\x00\x00\x00\xce", id="empty method"),
    ],
)
def test_a_broken_frame_closes_the_connection_and_raises_nowhere(desk: Desk, frame: bytes) -> None:
    """The loop goes on for everybody else, and the callback gets the reason."""
    connection, other = desk.connect(), desk.connect()
    connection._on_data_available(frame)
    reason = desk.until(lambda: desk.closed.get(connection))
    assert isinstance(reason, InvalidFrameError)
    assert isinstance(translate(reason), BrokerUnavailableError)
    assert other.is_open
    with pytest.raises(BrokerUnavailableError, match="the connection to the broker is closed"):
        connection.send(b"x")
    assert connection.write_buffer_size == 0


def test_an_exception_of_a_handler_reaches_the_close_callback_itself(desk: Desk, queue: str) -> None:
    """Not as a text in a log: whoever runs the loop can raise it again."""
    error = ZeroDivisionError("a bug")

    def fail(_: list[wire.Delivery]) -> None:
        raise error

    connection = desk.connect()
    raw = desk.channel(connection, on_deliveries=fail)
    consume(desk, raw, queue)
    raw.send(publish(raw, queue, b"x"))
    assert desk.until(lambda: desk.closed.get(connection)) is error
    with pytest.raises(ZeroDivisionError):
        translate(error)


def test_an_orderly_close_closes_channels_first(desk: Desk) -> None:
    """Both callbacks name the client as the one who closed."""
    connection = desk.connect()
    raw = desk.channel(connection, on_deliveries=lambda _: None)
    connection.close()
    assert isinstance(desk.until(lambda: desk.closed.get(connection)), ConnectionClosedByClient)
    assert isinstance(desk.closed[raw.channel], pika.exceptions.ChannelClosedByClient)


# -- connecting ------------------------------------------------------------------------------------


def test_tls_carries_everything_and_checks_the_certificate(
    desk: Desk, private_rabbitmq: Callable[..., RabbitMQ], free_port: int
) -> None:
    """Large and small messages, both ways; a certificate that nobody vouches for is a setting to correct."""
    config = {
        "listeners.ssl.1": f"127.0.0.1:{free_port}",
        "ssl_options.cacertfile": str(TLS / "cert.pem"),
        "ssl_options.certfile": str(TLS / "cert.pem"),
        "ssl_options.keyfile": str(TLS / "key.pem"),
    }
    private_rabbitmq(plugins=(), config=config)
    until(lambda: listens(free_port))  # this listener opens last
    url = f"amqps://guest:guest@localhost:{free_port}/%2F"
    got: list[wire.Delivery] = []
    raw = desk.channel(desk.connect(f"{url}?cacertfile={TLS / 'cert.pem'}"), on_deliveries=got.extend)
    name = desk.ask(raw.channel.queue_declare, "", exclusive=True).method.queue
    consume(desk, raw, name)
    bodies = [b"x" * 5_000_000, *[b"y" * 200] * 2000, b"", b"z" * 200_000]
    raw.send([publish(raw, name, body) for body in bodies])
    desk.until(lambda: len(got) == len(bodies))
    assert [delivery.body for delivery in got] == bodies

    with pytest.raises(ConfigError, match="cacertfile"):
        desk.connect(url)
    assert desk.connect(f"{url}?verify=verify_none").is_open
    for connection in desk.connections:
        connection.close()
    desk.until(lambda: all(connection.is_closed for connection in desk.connections))


def test_a_refused_login_and_a_missing_virtual_host_are_settings_to_correct(desk: Desk) -> None:
    """Trying again does not help; no message has the password."""
    host = desk.url.rpartition("@")[2].partition("/")[0]
    with pytest.raises(ConfigError, match="check user and password") as caught:
        desk.connect(f"amqp://guest:secret-word@{host}/%2F")
    assert "secret-word" not in str(caught.value)
    with pytest.raises(ConfigError, match="virtual host"):
        desk.connect(f"{desk.url.rpartition('/')[0]}/missing")


def test_nobody_at_the_port_is_worth_trying_again(desk: Desk, free_port: int) -> None:
    """One of several hosts that answers is enough; none is an error that says so."""
    dead = f"amqp://guest:guest@127.0.0.1:{free_port}/%2F"
    with pytest.raises(BrokerUnavailableError, match="cannot be reached"):
        desk.connect(dead)
    assert desk.connect(f"{dead},{desk.url}").is_open


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"SSH-2.0-x\r\n"]
)
def test_a_server_of_another_protocol_is_told_apart(desk: Desk, answer: bytes) -> None:
    """A wrong port is a setting to correct."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            client, _ = server.accept()
            with client:
                client.recv(8)
                client.sendall(answer)
                client.settimeout(5)
                client.recv(8)

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(DedupError) as caught:
            desk.connect(f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}/")
        assert isinstance(caught.value, ConfigError)
        assert "does not speak AMQP 0.9.1" in str(caught.value)
        thread.join()
