"""URLs become connection parameters, and failures of pika become ours."""

from __future__ import annotations

import ssl
from pathlib import Path

import pika
import pytest
from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorAMQPHandshakeError,
    AMQPConnectorSocketConnectError,
    AMQPConnectorStackTimeout,
)
from pika.exceptions import (
    AMQPConnectionError,
    AMQPHeartbeatTimeout,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from dedup.amqp091.failures import translate
from dedup.amqp091.parameters import connection_parameters
from dedup.errors import BrokerUnavailableError, ConfigError, DedupError, PartialCommitError, TopologyError

CERTIFICATE = Path(__file__).parents[1] / "integration" / "tls" / "cert.pem"


def one(url: str) -> pika.connection.Parameters:
    """Return the parameters of a single URL."""
    (parameters,) = connection_parameters(url, name="shim orders")
    return parameters


def test_reads_a_url() -> None:
    """Host, port, user and virtual host are where pika wants them."""
    parameters = one("amqp://us%40er:pa%3Ass@host:5673/my%2Fvhost")
    assert (parameters.host, parameters.port, parameters.virtual_host) == ("host", 5673, "my/vhost")
    assert (parameters.credentials.username, parameters.credentials.password) == ("us@er", "pa:ss")


@pytest.mark.parametrize("url", ["amqp://host", "amqp://host/", "amqp://host/%2F"])
def test_the_virtual_host_is_the_default_one_unless_named(url: str) -> None:
    """As every client of RabbitMQ has it."""
    assert one(url).virtual_host == "/"


def test_defaults_hold_where_the_url_says_nothing() -> None:
    """A heartbeat always; no end to waiting for an alarm."""
    assert (one("amqp://host").heartbeat, one("amqp://host").blocked_connection_timeout) == (30, None)
    parameters = one("amqp://host?heartbeat=5&blocked_connection_timeout=7")
    assert (parameters.heartbeat, parameters.blocked_connection_timeout) == (5, 7)


def test_the_connection_has_a_name_and_keeps_what_pika_can_do() -> None:
    """Replaced capabilities would turn off nacks and cancel notices without a word."""
    assert one("amqp://host").client_properties == {"connection_name": "shim orders"}
    parameters = one(
        "amqp://host?client_properties={'capabilities': {}, 'team': 'payments', 'connection_name': 'x'}"
    )
    assert parameters.client_properties == {"connection_name": "x", "team": "payments"}


def test_several_urls_are_several_parameters() -> None:
    """In the order they were given."""
    several = connection_parameters("amqp://a,amqp://b", name="n")
    assert [parameters.host for parameters in several] == ["a", "b"]


def test_tls_is_on_and_checks_by_default() -> None:
    """An amqps URL means what it says; RabbitMQ's own query parameters change it."""
    plain, checked = one("amqp://host"), one("amqps://host")
    assert (plain.ssl_options, checked.port) == (None, 5671)
    assert checked.ssl_options.context.verify_mode == ssl.CERT_REQUIRED
    named = one(f"amqps://host?cacertfile={CERTIFICATE}&server_name_indication=other&heartbeat=4")
    assert named.ssl_options.server_hostname == "other"
    assert named.ssl_options.context.verify_mode == ssl.CERT_REQUIRED
    assert named.heartbeat == 4
    assert one("amqps://host?verify=verify_none").ssl_options.context.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "no AMQP URL given"),
        ("host:5672", "begins with amqp://"),
        ("http://host", "begins with amqp://"),
        ("redis://:S3CRET@host", "begins with amqp://"),
        ("amqp://host:port", "no valid host and port"),
        ("amqp://u:S3CRET/x@host", "no valid host and port"),
        ("amqp://u:S3CRET#x@host", "percent-encode"),
        ("amqp://[::1", "no valid host and port"),
        ("amqp://user@host", "a user without a password"),
        ("amqp://u:S3CRET@host/a/b", "is written %2F"),
        ("amqp://u:S3CRET@host?heartbeet=3", "heartbeet"),
        ("amqp://u:S3CRET@host?heartbeat=x", "heartbeat"),
        ("amqps://host?ssl_options={'password':'S3CRET'", "one of its query parameters is wrong"),
        ("amqp://host?cacertfile=/x", "needs an amqps:// URL"),
        ("amqps://host?cacertfile=/missing", "No such file"),
        ("amqps://host?verify=perhaps", "verify_peer or verify_none"),
    ],
)
def test_a_url_that_cannot_be_used_is_named_with_the_fix(url: str, message: str) -> None:
    """Before anything connects, and without the password, in the message or behind it."""
    with pytest.raises(ConfigError, match=message) as caught:
        connection_parameters(url, name="n")
    assert "S3CRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def failed(*causes: BaseException) -> AMQPConnectionWorkflowFailed:
    """Return what pika gives when every host has failed."""
    return AMQPConnectionWorkflowFailed(causes)


#: What pika makes of a link that is reset before the connection is open, but for its kind.
LOST = repr(StreamLostError("Stream connection lost: ConnectionResetError(104, 'Connection reset by peer')"))
LOGIN = AMQPConnectorAMQPHandshakeError(ProbableAuthenticationError("403"))
REFUSED = AMQPConnectorSocketConnectError(ConnectionRefusedError(111, "Connection refused"))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (REFUSED, BrokerUnavailableError, "at h cannot be reached: .*Connection refused"),
        (StreamLostError("Stream connection lost"), BrokerUnavailableError, "connection lost"),
        (AMQPHeartbeatTimeout("No activity"), BrokerUnavailableError, "No activity"),
        (AMQPConnectorStackTimeout(), BrokerUnavailableError, "Timeout"),
        (AMQPConnectionError(failed(REFUSED)), BrokerUnavailableError, "Connection refused"),
        (ConnectionClosedByBroker(320, "CONNECTION_FORCED"), BrokerUnavailableError, "320 CONNECTION_FORCED"),
        (LOGIN, ConfigError, "check user and password"),
        (ProbableAccessDeniedError("530"), ConfigError, "virtual host"),
        (IncompatibleProtocolError("x"), ConfigError, "does not speak AMQP"),
        (ProbableAuthenticationError(LOST), BrokerUnavailableError, "lost before the connection was open"),
        (ProbableAccessDeniedError(LOST), BrokerUnavailableError, "lost before"),
        (IncompatibleProtocolError(LOST), BrokerUnavailableError, "check host, port"),
        (failed(LOGIN), ConfigError, "check user and password"),
        (failed(LOGIN, REFUSED), BrokerUnavailableError, "check user and password.*; .*refused"),
        (failed(), BrokerUnavailableError, "no AMQP broker"),
        (ChannelClosedByBroker(404, "NOT_FOUND - no queue"), TopologyError, "404 NOT_FOUND"),
        (
            ChannelClosedByBroker(406, "PRECONDITION_FAILED - partial tx completion"),
            PartialCommitError,
            "partial tx",
        ),
        (ChannelClosedByBroker(541, "INTERNAL_ERROR"), BrokerUnavailableError, "541"),
        (ConfigError("mine"), ConfigError, "mine"),
    ],
)
def test_a_failure_of_the_driver_becomes_one_of_ours(
    error: Exception, kind: type[DedupError], message: str
) -> None:
    """Worth trying again, a setting to correct, or a topology to repair."""
    failure = translate(error, where="the broker at h")
    assert type(failure) is kind
    with pytest.raises(kind, match=message):
        raise failure


def test_the_brokers_code_is_a_fact_of_the_error() -> None:
    """Whoever must tell 403 from 405 need not read texts."""
    assert vars(translate(ChannelClosedByBroker(405, "RESOURCE_LOCKED")))["reply_code"] == 405


def test_a_bug_stays_what_it_is() -> None:
    """It must not look like a network that comes and goes."""
    with pytest.raises(KeyError):
        translate(KeyError("x"))
