"""TLS and the certificate as a login, for both protocols on one broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

import dedup
import proton_adapter
from dedup.errors import BrokerUnavailableError, ConfigError
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded
from tests.looking import channel, drain


class Place(NamedTuple):
    """A broker with TLS, and where the files are."""

    broker: RabbitMQ
    port: int
    files: Path

    def url(
        self, *, authority: str = "ca", client: str = "client", login: str = "guest:guest@", more: str = ""
    ) -> str:
        """Return the URL of the broker."""
        query = f"cacertfile={self.files / authority}.pem"
        if client:
            query += f"&certfile={self.files / client}.pem&keyfile={self.files / client}.key"
        return f"amqps://{login}localhost:{self.port}/%2F?{query}{more}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Start a broker that knows clients by their certificates: the user "shim.example" may do everything."""
    files = tmp_path_factory.mktemp("tls")
    ours, other = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(files / "ca.pem"))
    other.cert_pem.write_to_path(str(files / "other.pem"))
    for name, authority, host in (
        ("server", ours, "localhost"),
        ("client", ours, "shim.example"),
        ("nobody", ours, "nobody.example"),
    ):
        certificate = authority.issue_cert(host, common_name=host)
        certificate.cert_chain_pems[0].write_to_path(str(files / f"{name}.pem"))
        certificate.private_key_pem.write_to_path(str(files / f"{name}.key"))
    ports = reserve_ports(1)
    (port,) = ports.ports
    config = {
        "listeners.ssl.1": f"127.0.0.1:{port}",
        "ssl_options.cacertfile": str(files / "ca.pem"),
        "ssl_options.certfile": str(files / "server.pem"),
        "ssl_options.keyfile": str(files / "server.key"),
        "ssl_options.verify": "verify_peer",
        "ssl_cert_login_from": "common_name",
        "auth_mechanisms.1": "PLAIN",
        "auth_mechanisms.2": "EXTERNAL",
    }
    with RabbitMQ("4.0", plugins=("rabbitmq_auth_mechanism_ssl",), config=config) as broker:
        broker.ctl("await_startup")  # the listener for TLS opens last
        broker.ctl("add_user", "shim.example", "not its certificate")
        broker.ctl("set_permissions", "shim.example", ".*", ".*", ".*")
        yield Place(broker, port, files)
    ports.release()


@pytest.mark.parametrize("kind", [dedup.Publisher, proton_adapter.Publisher], ids=["0.9.1", "1.0"])
@pytest.mark.parametrize("how", ["password", "certificate"])
def test_messages_go_over_tls(place: Place, queue_name: str, kind: type[dedup.Publisher], how: str) -> None:
    """Several frames of them, logged in by either means; the broker knows who it was."""
    url = place.url() if how == "password" else place.url(login="", more="&auth_mechanism=external")
    user = "guest" if how == "password" else "shim.example"
    with channel(place.broker) as opened:
        opened.queue_declare(queue_name, durable=True)
    with kind(url, "p", registration="local", user_id=user) as publisher:
        for size in (0, 100, 300_000):
            publisher.publish(b"x" * size, routing_key=queue_name, timeout=10)
    found = drain(place.broker, queue_name)
    assert [(len(body), properties.user_id) for body, properties in found] == [
        (0, user),
        (100, user),
        (300_000, user),
    ]


@pytest.mark.parametrize("how", ["password", "certificate"])
def test_a_shim_forwards_over_tls(place: Place, redis_server: Redis, queue_name: str, how: str) -> None:
    """Over both of its connections, several frames of a message among them; what comes twice is dropped."""
    with Guarded(place.broker, redis_server, queue_name) as guarded:
        guarded.amqp_url = (
            place.url() if how == "password" else place.url(login="", more="&auth_mechanism=external")
        )
        bodies = ["small", "x" * 300_000]
        for _ in range(2):
            guarded.publish([(body, number + 1) for number, body in enumerate(bodies)])
            guarded.run_until_drained(protocol="amqp10")
        guarded.assert_each_once(bodies)


@pytest.mark.parametrize("kind", [dedup.Publisher, proton_adapter.Publisher], ids=["0.9.1", "1.0"])
def test_a_broker_that_cannot_be_verified_is_refused(place: Place, kind: type[dedup.Publisher]) -> None:
    """It is a setting to correct, said at once."""
    with pytest.raises(ConfigError, match="certificate that cannot be verified"):
        kind(place.url(authority="other"), "p", connect_timeout_s=30)


@pytest.mark.parametrize("kind", [dedup.Publisher, proton_adapter.Publisher], ids=["0.9.1", "1.0"])
def test_a_certificate_that_names_no_user_is_a_refused_login(
    place: Place, kind: type[dedup.Publisher]
) -> None:
    """The broker knows no user of that name."""
    with pytest.raises(ConfigError, match="login"):
        kind(place.url(login="", client="nobody", more="&auth_mechanism=external"), "p", connect_timeout_s=30)


@pytest.mark.parametrize(
    ("query", "words"),
    [("auth_mechanism=external", "needs amqps"), ("auth_mechanism=anonymous", "plain or external")],
)
def test_a_mechanism_that_cannot_be_is_refused(query: str, words: str) -> None:
    """Before anything connects."""
    with pytest.raises(ConfigError, match=words):
        proton_adapter.Publisher(f"amqp://localhost?{query}", "p")


def test_plain_text_to_a_port_of_tls_is_a_failure_that_says_so(place: Place) -> None:
    """The other end does not speak AMQP 1.0 there."""
    with pytest.raises((ConfigError, BrokerUnavailableError), match=r"amqps|before the connection was open"):
        proton_adapter.Publisher(f"amqp://guest:guest@localhost:{place.port}/%2F", "p", connect_timeout_s=3)
