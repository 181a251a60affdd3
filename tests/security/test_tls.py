"""TLS to broker, management API and Redis with a private authority and client certificates; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from dedup import ConfigError, Publisher
from dedup.core import names
from dedup.errors import BrokerUnavailableError, StoreUnavailableError
from dedup.store.redis import RedisStore
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ, Redis
from tests.looking import PATIENCE_S
from tests.security.deployed import Deployed


class Place(NamedTuple):
    """Servers that speak TLS and want to see a certificate, and where the files are."""

    rabbitmq: RabbitMQ
    redis: Redis
    amqps: int
    https: int
    rediss: int
    files: Path

    def amqp(self, *, host: str = "localhost", authority: str = "ca", client: str = "client") -> str:
        """Return the URL of the broker."""
        query = f"cacertfile={self.files / authority}.pem" if authority else ""
        if client:
            query += f"&certfile={self.files / client}.pem&keyfile={self.files / client}.key"
        return f"amqps://guest:guest@{host}:{self.amqps}/%2F?{query}"

    def state(
        self, *, host: str = "localhost", authority: str = "ca", client: str = "client", more: str = ""
    ) -> str:
        """Return the URL of Redis."""
        query = f"ssl_ca_certs={self.files / authority}.pem" if authority else ""
        if client:
            query += f"&ssl_certfile={self.files / client}.pem&ssl_keyfile={self.files / client}.key"
        return f"rediss://{host}:{self.rediss}/0?{query}{more}"


def _write(files: Path, name: str, certificate: trustme.LeafCert) -> None:
    certificate.cert_chain_pems[0].write_to_path(str(files / f"{name}.pem"))
    certificate.private_key_pem.write_to_path(str(files / f"{name}.key"))


@pytest.fixture(scope="module")
def place(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """
    Start a broker and a Redis with certificates of a private authority for "localhost"; "other" is another authority.

    The session's servers are asked for only because where they can be had, these can.
    """
    if rabbitmq.external or redis_server.external:
        pytest.skip("configures servers: needs private ones")
    files = tmp_path_factory.mktemp("tls")
    ours, other = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(files / "ca.pem"))
    other.cert_pem.write_to_path(str(files / "other.pem"))
    _write(files, "server", ours.issue_cert("localhost"))
    _write(files, "client", ours.issue_cert("shim.example"))
    _write(files, "stranger", other.issue_cert("shim.example"))
    ports = reserve_ports(3)
    amqps, https, rediss = ports.ports
    chain = {
        "cacertfile": files / "ca.pem",
        "certfile": files / "server.pem",
        "keyfile": files / "server.key",
    }
    config = {
        "listeners.ssl.1": f"127.0.0.1:{amqps}",
        **{f"ssl_options.{key}": str(path) for key, path in chain.items()},
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
        "management.ssl.ip": "127.0.0.1",
        "management.ssl.port": str(https),
        **{f"management.ssl.{key}": str(path) for key, path in chain.items()},
    }
    settings = {
        "tls-port": str(rediss),
        "tls-ca-cert-file": str(files / "ca.pem"),
        "tls-cert-file": str(files / "server.pem"),
        "tls-key-file": str(files / "server.key"),
        "tls-auth-clients": "yes",
    }
    with (
        RabbitMQ(rabbitmq.version.rpartition(".")[0], config=config) as broker,
        Redis(config=settings) as redis,
    ):
        broker.ctl("await_startup")  # the listener for TLS opens last
        yield Place(broker, redis, amqps, https, rediss, files)
    ports.release()


def test_everything_goes_over_tls(place: Place, queue_name: str, tmp_path: Path) -> None:
    """SDK, shim, its look through the management API, and Redis; nothing is warned of, and each message arrives once."""
    with Deployed(place.rabbitmq, place.state(), queue_name, tmp_path / "log") as queue:
        with Publisher(place.amqp(), "p", connect_timeout_s=PATIENCE_S, registration="local") as publisher:
            publisher.publish(b"x" * 300_000, queue=queue_name, timeout=PATIENCE_S)
        events = queue.drain(amqp=place.amqp(), management=f"https://localhost:{place.https}")
        assert [event["exact"] for event in events if event["event"] == "dedup.forwarding"] == [True]
        assert not [event for event in events if event["event"] == "dedup.warning"]
        assert (queue.depth(queue_name), queue.depth(names.quarantine(queue_name))) == (1, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"authority": "other"}, "certificate that cannot be verified .*; see cacertfile"),
        ({"authority": ""}, "certificate that cannot be verified .*; see cacertfile"),
        ({"host": "127.0.0.1"}, "certificate that cannot be verified .*IP address mismatch"),
    ],
    ids=["wrong authority", "no authority", "wrong host"],
)
def test_a_broker_that_cannot_be_verified_is_refused(
    place: Place, options: dict[str, str], words: str
) -> None:
    """It is a setting to correct, said at once."""
    with pytest.raises(ConfigError, match=words):
        Publisher(place.amqp(**options), "p", connect_timeout_s=PATIENCE_S, registration="local")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"authority": "other"}, "certificate that cannot be verified .*; see ssl_ca_certs"),
        ({"authority": ""}, "certificate that cannot be verified .*; see ssl_ca_certs"),
        ({"host": "127.0.0.1"}, "certificate that cannot be verified .*IP address mismatch"),
    ],
    ids=["wrong authority", "no authority", "wrong host"],
)
def test_a_redis_that_cannot_be_verified_is_refused(
    place: Place, options: dict[str, str], words: str
) -> None:
    """The same, whichever version of redis-py: older ones do not look at the host by themselves."""
    store = RedisStore(place.state(**options), vhost="/", queue="tls")
    with closing(store), pytest.raises(ConfigError, match=words):
        store.check()


@pytest.mark.parametrize("more", ["&ssl_check_hostname=false", "&ssl_cert_reqs=none"])
def test_the_url_may_ask_for_less(place: Place, more: str) -> None:
    """What is switched off in the URL is off."""
    store = RedisStore(place.state(host="127.0.0.1", more=more), vhost="/", queue="tls")
    with closing(store):
        assert store.check() == []


def test_the_shim_ends_with_the_reason(place: Place, queue_name: str, tmp_path: Path) -> None:
    """Exit code 2: nobody waits for a certificate to become another."""
    with Deployed(place.rabbitmq, place.state(), queue_name, tmp_path / "log") as queue:
        management = f"https://localhost:{place.https}"
        for wrong in ({"amqp": place.amqp(authority="other")}, {"redis": place.state(authority="other")}):
            with queue.shim(**{"amqp": place.amqp(), "management": management, **wrong}) as running:
                assert running.process.wait(PATIENCE_S) == 2, running.output
                assert "certificate that cannot be verified" in running.output


@pytest.mark.parametrize("client", ["", "stranger"])
def test_who_shows_no_certificate_or_a_stranger_s_is_not_let_in(place: Place, client: str) -> None:
    """The servers want to know who comes; nothing gets through, and the error says that the connection failed."""
    with pytest.raises(BrokerUnavailableError):
        Publisher(place.amqp(client=client), "p", connect_timeout_s=3, registration="local")
    store = RedisStore(place.state(client=client), vhost="/", queue="tls")
    with closing(store), pytest.raises(StoreUnavailableError):
        store.check()


def test_a_plain_client_at_a_tls_port_is_told(place: Place) -> None:
    """The error asks whether TLS is wanted."""
    with pytest.raises(BrokerUnavailableError, match="whether it wants amqps://"):
        Publisher(
            f"amqp://guest:guest@localhost:{place.amqps}", "p", connect_timeout_s=3, registration="local"
        )
