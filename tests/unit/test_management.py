"""The client of the management API, against a server that answers as RabbitMQ 4.0 did, and as it should not."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dedup.amqp091.facts import Binding, ExchangeFacts, QueueFacts
from dedup.amqp091.management import Management
from dedup.amqp091.policies import Policies, Setting
from dedup.errors import BrokerUnavailableError, ConfigError, TopologyError

AMQP = "amqp://amqp-user:amqp-s3cret@127.0.0.1:5672"
TTL = {
    "vhost": "/",
    "name": "ttl",
    "pattern": "^orders",
    "apply-to": "queues",
    "definition": {"message-ttl": 60000},
    "priority": 0,
}
#: Path as RabbitMQ takes it -> status and body; recorded from 4.0.5 and cut.
RECORDED: dict[str, tuple[int, Any]] = {
    "/api/queues/%2F/orders.dedup?columns=name,type,durable,auto_delete,arguments,node": (
        200,
        {
            "arguments": {"x-queue-type": "classic", "x-single-active-consumer": True},
            "auto_delete": False,
            "durable": True,
            "name": "orders.dedup",
            "node": "rabbit@host",
            "type": "classic",
        },
    ),
    "/api/queues/%2F?disable_stats=true&enable_queue_totals=true": (
        200,
        [
            {
                "arguments": {"x-queue-type": "quorum"},
                "auto_delete": False,
                "durable": True,
                "exclusive": None,
                "leader": "rabbit@host",
                "members": ["rabbit@host"],
                "messages": 3,
                "messages_ready": 1,
                "messages_unacknowledged": 2,
                "name": "q/ü",
                "node": "rabbit@host",
                "online": ["rabbit@host"],
                "policy": "p1",
                "state": "running",
                "type": "quorum",
                "vhost": "/",
            },
            {  # of a queue that does not answer there are no counts
                "arguments": [],
                "auto_delete": False,
                "durable": False,
                "name": "down",
                "state": "down",
                "type": "classic",
                "vhost": "/",
            },
        ],
    ),
    "/api/queues/%2F/q%2F%C3%BC/bindings": (
        200,
        [
            {
                "source": "",
                "vhost": "/",
                "destination": "q/ü",
                "destination_type": "queue",
                "routing_key": "q/ü",
                "arguments": {},
                "properties_key": "q%2F%C3%BC",
            },
            {
                "source": "h1",
                "vhost": "/",
                "destination": "q/ü",
                "destination_type": "queue",
                "routing_key": "a/b é",
                "arguments": {"n": 5},
                "properties_key": "a%2Fb+%C3%A9~Ww7bmQ",
            },
        ],
    ),
    "/api/exchanges/%2F/forward?columns=name,type,durable,auto_delete,arguments": (
        200,
        {
            "arguments": {"alternate-exchange": "aside"},
            "auto_delete": False,
            "durable": True,
            "name": "forward",
            "type": "fanout",
        },
    ),
    "/api/exchanges/%2F/forward/bindings/source": (200, [{"source": "forward", "destination": "orders"}]),
    "/api/policies/%2F": (200, [TTL]),
    "/api/operator-policies/%2F": (200, []),
    "/api/nodes?columns=name": (200, [{"name": "rabbit@host"}]),
    "DELETE /api/bindings/%2F/e/h1/q/q%2F%C3%BC/a%252Fb%2B%25C3%25A9~Ww7bmQ": (204, None),
}


class Recorded:
    """
    A server that answers what was recorded, 404 to everything else, and remembers what it was asked.
    """

    def __init__(self) -> None:
        self.answers = dict(RECORDED)
        self.asked: list[str] = []
        self.authorizations: set[str | None] = set()
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ours.answer(self, self.path)

            def do_DELETE(self) -> None:
                ours.answer(self, f"DELETE {self.path}")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        self.asked.append(path)
        self.authorizations.add(handler.headers.get("Authorization"))
        status, value = self.answers.get(path, (404, {"error": "Object Not Found", "reason": "Not Found"}))
        if callable(value):
            status, value = value()
        body = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        handler.send_response(status)
        if status == 302:
            handler.send_header("Location", f"{self.url}/api/nodes?columns=name")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """A server with the recorded answers."""
    server = Recorded()
    yield server
    server.close()


@pytest.fixture
def management(recorded: Recorded) -> Management:
    """A client of it."""
    return Management(recorded.url, amqp=AMQP)


def test_a_queue_comes_with_the_policies_in_force(management: Management) -> None:
    """Arguments and policies are merged, each with who says so."""
    assert management.queue("/", "orders.dedup") == QueueFacts(
        name="orders.dedup",
        type="classic",
        durable=True,
        auto_delete=False,
        arguments={"x-queue-type": "classic", "x-single-active-consumer": True},
        settings={
            "message-ttl": Setting(60000, "policy 'ttl'"),
            "queue-type": Setting("classic", "argument"),
            "single-active-consumer": Setting(value=True, source="argument"),
        },
        node="rabbit@host",
    )


def test_policies_are_asked_for_once_when_they_are_given(recorded: Recorded, management: Management) -> None:
    """Several looks share one reading of the policies."""
    policies = management.policies("/")
    management.queue("/", "orders.dedup", policies)
    management.exchange("/", "forward", policies)

    assert recorded.asked.count("/api/policies/%2F") == 1


def test_all_queues_with_their_counts(management: Management) -> None:
    """Counts include what is unacknowledged; a queue that is down has none; empty tables may come as lists."""
    quorum, down = management.queues("/")

    assert (quorum.name, quorum.type, quorum.messages) == ("q/ü", "quorum", 3)
    assert (down.name, down.messages, down.arguments, down.node) == ("down", None, {}, "")


#: What the broker remembers of a quarter of an hour.
_REMEMBERED = "/api/queues/%2F/orders?msg_rates_age=900&msg_rates_incr=60&lengths_age=900&lengths_incr=60"


@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        ({"messages_details": {"samples": [{"sample": 3}, {"sample": 1}]}}, True),
        ({"messages_details": {"samples": [{"sample": 3}, {"sample": 0}]}}, False),
        ({"messages_details": {"samples": []}}, False),
        ({"messages": 3}, False),
        ({"messages_details": "x", "message_stats": []}, False),
        ([], False),
    ],
)
def test_whether_messages_have_waited(recorded: Recorded, management: Management, answer: Any, *, waits: bool) -> None:  # fmt: skip
    """All the time; a broker that keeps no figures does not say so."""
    recorded.answers[_REMEMBERED] = (200, answer)
    assert management.waits_untaken("/", "orders", 900) is waits


def test_messages_of_which_one_was_taken_do_not_wait(recorded: Recorded, management: Management) -> None:
    """Deliveries and gets count."""
    answer: Any = {"messages_details": {"samples": [{"sample": 3}]}}
    for samples, waits in (([7, 7], True), ([8, 7], False)):
        listed = [{"sample": sample} for sample in samples]
        answer["message_stats"] = {"deliver_get_details": {"samples": listed}}
        recorded.answers[_REMEMBERED] = (200, answer)
        assert management.waits_untaken("/", "orders", 900) is waits


def test_bindings_leave_the_default_exchange_out(management: Management) -> None:
    """Every queue is bound to the default exchange; that binding can neither be copied nor removed."""
    assert management.bindings("/", "q/ü") == [Binding("h1", "q/ü", "a/b é", {"n": 5}, "a%2Fb+%C3%A9~Ww7bmQ")]


def test_a_binding_is_removed_by_its_key(recorded: Recorded, management: Management) -> None:
    """The key is quoted once more, as it is itself quoted; one that is gone is as good as removed."""
    (binding,) = management.bindings("/", "q/ü")
    management.remove("/", binding)
    assert recorded.asked[-1] in RECORDED

    recorded.answers.clear()
    management.remove("/", binding)


def test_an_exchange_and_where_it_leads(management: Management) -> None:
    """Type, alternate exchange and destinations are told."""
    assert management.exchange("/", "forward") == ExchangeFacts(
        "forward",
        "fanout",
        durable=True,
        auto_delete=False,
        settings={"alternate-exchange": Setting("aside", "argument")},
        destinations=["orders"],
    )


def test_what_is_not_there(management: Management) -> None:
    """A queue or exchange that is missing is None; a virtual host that is missing is an error."""
    assert management.queue("/", "missing") is None
    assert management.exchange("/", "missing") is None
    with pytest.raises(TopologyError, match="knows no policies/nowhere"):
        management.queues("nowhere")


def test_credentials_are_its_own_or_those_of_amqp(recorded: Recorded) -> None:
    """The management URL's user goes first, percent-encoding undone; neither is in a repr or an error."""
    own = Management(recorded.url.replace("//", "//own:s3%3Acret@"), amqp=AMQP)
    lent = Management(recorded.url, amqp=AMQP)
    own.nodes()
    lent.nodes()

    expected = {b64encode(pair).decode() for pair in (b"own:s3:cret", b"amqp-user:amqp-s3cret")}
    assert recorded.authorizations == {f"Basic {token}" for token in expected}
    shown = " ".join([own.url, lent.url, repr(own), repr(own.__dict__), repr(lent.__dict__)])
    assert "cret" not in shown
    assert not any(token in shown for token in expected)


@pytest.mark.parametrize(
    ("amqp", "expected"),
    [
        ("amqp://h", "http://h:15672"),
        ("amqp://a,amqp://b:5673", "http://a:15672, http://b:15672"),
        ("amqps://h", "https://h:15671"),
        ("amqp://[::1]:5672", "http://[::1]:15672"),
    ],
)
def test_without_a_url_it_is_beside_amqp(amqp: str, expected: str) -> None:
    """RabbitMQ's usual port on each AMQP host; a password that travels by TLS to AMQP does so here too."""
    assert Management(amqp=amqp).url == expected


@pytest.mark.parametrize(
    "url", ["host:15672", "ftp://u:s3cret@h", "http://", "http://u:s3cret@h:port", "amqp://u:s3cret@h"]
)
def test_what_is_no_management_url(url: str) -> None:
    """A URL that cannot be used is refused, without its password."""
    with pytest.raises(ConfigError, match="not a management URL") as caught:
        Management(url, amqp=AMQP)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_says_what_to_grant(recorded: Recorded, management: Management, status: int) -> None:
    """RabbitMQ's own reason is told, and the tag that helps."""
    recorded.answers["/api/nodes?columns=name"] = (
        status,
        {"error": "not_authorised", "reason": "Not monitor user"},
    )

    with pytest.raises(ConfigError, match=r"Not monitor user.*'monitoring'") as caught:
        management.nodes()
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("body", [b"<html>login</html>", b"\xff", b""])
def test_something_else_that_speaks_http(recorded: Recorded, management: Management, body: bytes) -> None:
    """A page that is not JSON is a wrong URL, not a crash."""
    recorded.answers["/api/nodes?columns=name"] = (200, body)

    with pytest.raises(ConfigError, match="no management API"):
        management.nodes()


def test_a_redirect_is_not_followed(recorded: Recorded, management: Management) -> None:
    """A redirect would take the password elsewhere."""
    recorded.answers["/api/policies/%2F"] = (302, b"")

    with pytest.raises(BrokerUnavailableError, match="302"):
        management.policies("/")
    assert "/api/nodes?columns=name" not in recorded.asked


def test_a_server_that_starts_is_waited_for(recorded: Recorded, management: Management) -> None:
    """RabbitMQ answers 500 and 503 for a moment while it starts."""
    path = "/api/nodes?columns=name"
    starting: list[tuple[int, Any]] = [(500, b"boot"), (503, b"boot"), RECORDED[path]]
    recorded.answers[path] = (0, lambda: starting.pop(0))

    assert management.nodes() == ["rabbit@host"]


def test_a_server_that_goes_on_failing_is_given_up(
    recorded: Recorded, management: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends, with the status in the message."""
    monkeypatch.setattr("dedup.amqp091.management.STARTING_S", 0.3)
    recorded.answers["/api/nodes?columns=name"] = (500, b"")

    with pytest.raises(BrokerUnavailableError, match="500"):
        management.nodes()


def test_silence_times_out() -> None:
    """A server that takes the connection and says nothing is given up in time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(BrokerUnavailableError, match="timed out"):
            Management(url, amqp=AMQP, timeout_s=0.2).nodes()
        assert time.monotonic() - started < 2


def test_the_next_server_is_asked(recorded: Recorded) -> None:
    """One of several that is down does no harm; when all are down each is named."""
    assert Management(f"http://127.0.0.1:1,{recorded.url}", amqp=AMQP).nodes() == ["rabbit@host"]
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "):
        Management("http://127.0.0.1:1,http://127.0.0.1:2", amqp=AMQP).nodes()


# -- policies -------------------------------------------------------------------------------------


def policy(name: str, definition: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Return a policy as the API lists it, for every queue and exchange unless told otherwise."""
    return {
        "name": name,
        "pattern": ".*",
        "apply-to": "all",
        "definition": definition,
        "priority": 0,
        **{key.replace("_", "-"): value for key, value in other.items()},
    }


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (Policies([policy("a", {"expires": 1}, pattern="^other$")]), None),
        (Policies([policy("a", {"expires": 1}, pattern="rder")]), 1),
        (Policies([policy("a", {"expires": 1}, apply_to="quorum_queues")]), None),
        (Policies([policy("a", {"expires": 1}, apply_to="exchanges")]), None),
        (Policies([policy("a", {"expires": 1}, apply_to="classic_queues")]), 1),
        (Policies([policy("a", {"expires": 1}, apply_to="queues")]), 1),
        # a dialect of regular expressions that Python does not know
        (Policies([policy("a", {"expires": 1}, pattern="(?|orders|x)")]), 1),
        # only the policy of the highest priority applies, whole
        (Policies([policy("a", {"expires": 1}), policy("b", {"max-length": 1}, priority=1)]), None),
        (Policies([policy("a", {"expires": 1}, priority=2), policy("b", {"expires": 9}, priority=1)]), 1),
        # an operator policy is laid over it, and the lower limit holds
        (Policies([policy("a", {"expires": 5})], [policy("o", {"expires": 9})]), 5),
        (Policies([policy("a", {"expires": 9})], [policy("o", {"expires": 5})]), 5),
        (Policies([policy("a", {"max-length": 9})], [policy("o", {"expires": 5})]), 5),
    ],
)
def test_the_policy_that_applies(policies: Policies, expected: int | None) -> None:
    """What a classic queue "orders" expires by, as RabbitMQ would decide."""
    found = policies.settings("orders", "classic_queues", {})

    assert (found["expires"].value if "expires" in found else None) == expected


@pytest.mark.parametrize(
    ("key", "user", "operator", "argument", "expected"),
    [
        ("max-length", 5, None, 9, "5 by policy 'u'"),
        ("max-length", 9, None, 5, "5 by argument"),
        ("overflow", "reject-publish", None, "drop-head", "drop-head by argument"),
        ("overflow", "reject-publish", "drop-head", None, "drop-head by operator policy 'o'"),
        ("delivery-limit", 5, None, -1, "5 by policy 'u'"),
        ("delivery-limit", -1, None, 5, "5 by argument"),
        ("delivery-limit", -1, None, -1, "-1 by argument"),
        ("delivery-limit", 3, None, 5, "3 by policy 'u'"),
    ],
)
def test_who_wins(key: str, user: Any, operator: Any, argument: Any, *, expected: str) -> None:
    """Of several limits the lowest holds, and none is higher than any; else the argument goes first, then the operator."""
    policies = Policies(
        [policy("u", {key: user})], [policy("o", {key: operator})] if operator is not None else []
    )
    arguments = {} if argument is None else {f"x-{key}": argument}

    assert str(policies.settings("orders", "quorum_queues", arguments)[key]) == expected
