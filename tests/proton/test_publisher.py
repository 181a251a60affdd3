"""The publisher of AMQP 1.0: what every publisher keeps, and what is of this protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar
from uuid import UUID

import pytest
from proton import symbol, ulong

from dedup.core.identity import Receipt
from dedup.errors import BrokerUnavailableError, InvalidMessageError
from dedup.testing.proxy import TO_CLIENT, FaultProxy
from dedup.testing.servers import RabbitMQ
from proton_adapter import Properties, Publisher
from tests.looking import bodies, channel, check_copies, drain, over, until
from tests.proton.looking import receive
from tests.publisher_contract import PublisherContract
from tests.publisher_trouble import PublisherInTrouble

#: More than one link gets credit for.
_MORE_THAN_CREDIT = 600


class TestPublisher(PublisherContract, PublisherInTrouble):
    """
    What it has in common with every publisher.
    """

    publisher = Publisher
    properties = Properties
    odd_bodies = (b"x" * 255, b"x" * 256)  # the length takes one byte, then four
    torn_after: ClassVar[Mapping[str, int]] = {"greeting": 1, "login": 300}
    bad_properties = (
        {"group_id": "x"},
        Properties(application_properties={"dedup-sequence": 7}),
        Properties(application_properties={"nested": {}}),
        Properties(application_properties={"large": 2**63}),
        Properties(application_properties={"odd": object()}),
        Properties(application_properties={1: "x"}),  # type: ignore[dict-item]
        Properties(message_id=-1),
        Properties(message_id=1.5),  # type: ignore[arg-type]
        Properties(subject="\ud800"),
        Properties(content_type="ü"),
        Properties(creation_time=datetime(2026, 1, 1)),  # noqa: DTZ001
        Properties(group_sequence=1),
        Properties(priority=256),
        Properties(ttl_s=float("nan")),
    )
    refusals_are_named = True

    def refusal(self, rabbitmq: RabbitMQ) -> str:
        """Return the words of the broker."""
        return "exceeded maximum length" if rabbitmq.version.startswith("4.3") else "is a queue full"


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
    with Publisher(broker.url, "orders-1", registration="local") as publisher:
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
    with channel(broker) as opened, Publisher(broker.url, "orders-1", registration="local") as publisher:
        opened.queue_declare(queue, durable=True)
        opened.exchange_declare(exchange, "direct", durable=True)
        opened.queue_bind(queue, exchange, name)
        opened.queue_bind(queue, exchange, "")
        publisher.publish(b"1", routing_key=queue)
        publisher.publish(b"2", exchange=exchange, routing_key=name)
        publisher.publish(b"3", exchange=exchange)
        assert bodies(drain(broker, queue)) == [b"1", b"2", b"3"]
        opened.exchange_delete(exchange)
        opened.queue_delete(queue)


def test_a_body_is_as_large_as_the_broker_takes_and_no_larger(broker: RabbitMQ, queue: str) -> None:
    """What the broker would refuse is refused before it is sent; what it takes arrives."""
    with Publisher(broker.url, "orders-1", registration="local") as publisher:
        with pytest.raises(InvalidMessageError, match="16777216"):
            publisher.publish(bytes(16 * 1024 * 1024), routing_key=queue)
        assert publisher.publish(bytes(16 * 1024 * 1024 - 2000), routing_key=queue).attempts == 1
    assert [len(body) for body in bodies(drain(broker, queue))] == [16 * 1024 * 1024 - 2000]


def test_silence_counts_even_when_credit_is_used_up(
    broker: RabbitMQ, queue: str, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead link is not taken for a broker that blocks: what left this machine is owed an answer."""
    with Publisher(over(link), "orders-1", confirm_timeout_s=2.0, registration="local") as publisher:
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
    with Publisher(over(link) + "?heartbeat=1", "orders-1", registration="local") as publisher:
        link.drop(TO_CLIENT)
        until(lambda: "idle-timeout expired" in caplog.text)
        link.heal()
        assert publisher.publish(b"x", routing_key=queue, timeout=20).attempts == 1


def test_heartbeats_keep_an_idle_connection(
    broker: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides are content for longer than their time-outs."""
    with Publisher(broker.url + "?heartbeat=1", "orders-1", registration="local") as publisher:
        time.sleep(2.5)
        publisher.publish(b"x", routing_key=queue, timeout=10)
    assert "lost" not in caplog.text


def test_a_connection_closed_by_the_operator_is_made_again(
    broker: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``close_all_connections`` is a loss like any other."""
    with Publisher(broker.url, "orders-1", registration="local") as publisher:
        publisher.publish(b"0", routing_key=queue)
        broker.ctl("close_all_connections", "maintenance")
        until(lambda: "publisher_connection_lost" in caplog.text)
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(1, 100)]
        receipts = [future.result(30) for future in futures]
    assert "maintenance" in caplog.text
    check_copies(drain(broker, queue), receipts)


def test_a_missing_virtual_host_is_named(broker: RabbitMQ) -> None:
    """The broker says nothing and cuts the link; the error names what to look at."""
    with pytest.raises(BrokerUnavailableError, match="virtual host"):
        Publisher(f"amqp://guest:guest@127.0.0.1:{broker.port}/nowhere", "orders-1", connect_timeout_s=5)
