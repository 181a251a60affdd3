"""The publisher of AMQP 0.9.1: what every publisher keeps, and what is of this protocol."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pika.adapters.utils.connection_workflow import AMQPConnector

from dedup.amqp091.administration import administration
from dedup.core.identity import Receipt
from dedup.errors import BrokerUnavailableError, ConfigError
from dedup.publisher import Properties, Publisher
from dedup.testing.process import reserve_ports
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from dedup.testing.servers import RabbitMQ
from tests.looking import bodies, channel, check_copies, drain, listens, over, until
from tests.publisher_contract import PublisherContract
from tests.publisher_trouble import PublisherInTrouble

_TLS = Path(__file__).parent / "tls"


class TestPublisher(PublisherContract, PublisherInTrouble):
    """
    What it has in common with every publisher.
    """

    publisher = Publisher
    properties = Properties
    odd_bodies = (b"x" * 131_064, b"x" * 131_065)  # one frame to the byte, and one byte more
    torn_after: ClassVar[Mapping[str, int]] = {"greeting": 1, "login": 541}
    bad_properties = (
        {"app_id": "x"},
        Properties(headers={"dedup-sequence": 7}),
        Properties(headers={"large": "x" * 140_000}),
    )
    refusals_are_named = False

    def refusal(self, rabbitmq: RabbitMQ) -> str:
        """Return what is made of a nack, which says nothing."""
        del rabbitmq
        return "nacked"


def test_a_message_is_stamped_and_otherwise_as_it_was_given(rabbitmq: RabbitMQ, queue: str) -> None:
    """The id is in app_id and the sequence in a header; the user's headers and properties are untouched."""
    given = Properties(
        content_type="text/plain", headers={"a": 1, "nested": {"b": [True, None]}}, priority=3, message_id="m"
    )
    with Publisher(rabbitmq.url, "orders-1", base=1 << 32) as publisher:
        assert publisher.publish(b"plain", routing_key=queue) == Receipt("orders-1", (1 << 32) + 1)
        assert publisher.publish(memoryview(b"given"), routing_key=queue, properties=given).attempts == 1
    (plain, stamped), (body, properties) = drain(rabbitmq, queue)
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
    ((_, properties),) = drain(rabbitmq, queue)
    assert (properties.app_id, properties.headers["dedup-publisher"]) == ("billing", "orders-1")


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


def test_closing_in_the_middle_of_a_handshake_frees_everything(
    link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """What pika asserts when it is closed while it connects again leaves nothing open; sockets are freed all the same."""
    publisher = Publisher(over(link), "orders-1", base=0, close_timeout_s=0.2)
    link.stall(TO_CLIENT)
    link.cut()
    until(lambda: link.connections > 0)
    publisher.close()
    assert publisher._thread._loop._poller._poll is None
    assert "publisher_release_failed" not in caplog.text


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
        [over(link), f"{rabbitmq.url}?frame_max=8192"], "orders-1", registration="local"
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
    check_copies(drain(rabbitmq, queue), [future.result() for n, future in enumerate(futures) if n != 5])


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
    until(lambda: listens(port))  # this listener opens last
    with channel(server) as opened:
        opened.queue_declare(queue_name, durable=True)
    url = f"amqps://guest:guest@localhost:{port}/%2F"
    with pytest.raises(ConfigError, match="certificate"):
        Publisher(url, "orders-1", connect_timeout_s=30, registration="local")
    trusting = ssl.create_default_context(cafile=str(_TLS / "cert.pem"))
    with Publisher(url, "orders-1", ssl_context=trusting, registration="local") as publisher:
        publisher.publish(b"x" * 300_000, routing_key=queue_name, timeout=10)
    assert [len(body) for body in bodies(drain(server, queue_name))] == [300_000]
