"""A shim of AMQP 1.0, and publishers of 1.0 without registration, work with exactly the permissions that the documentation gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedup.core import names
from dedup.errors import PublishError
from dedup.testing.servers import RabbitMQ, Redis
from proton_adapter import Publisher
from tests.fault.child import PATIENCE_S
from tests.looking import channel, until
from tests.security.deployed import Deployed
from tests.security.test_permissions import deleting, documented, getting, publishing, refused, surroundings
from tests.security.users import Users


@pytest.fixture
def deployed(broker: RabbitMQ, redis_server: Redis, queue_name: str, tmp_path: Path) -> Iterator[Deployed]:
    """A guarded queue whose ingress is bound to an exchange."""
    sales = f"{queue_name}.sales"
    with (
        Deployed(broker, redis_server.url, queue_name, tmp_path / "log") as made,
        channel(broker) as opened,
    ):
        opened.exchange_declare(sales, "fanout", durable=True)
        opened.queue_bind(names.ingress(queue_name), sales)
        yield made
        opened.exchange_delete(sales)


@pytest.fixture
def url_of(broker: RabbitMQ, deployed: Deployed) -> Iterator[Callable[..., str]]:
    """Return a maker of users: by role, with other rights in the place of some."""
    roles = documented(re.escape(deployed.queue), re.escape(f"{deployed.queue}.sales"))
    with Users(broker) as users:
        yield lambda role, **others: users.add(role, **{**roles[role], **others})


@pytest.mark.each_version
def test_a_shim(deployed: Deployed, url_of: Callable[..., str]) -> None:
    """What a shim of 0.9.1 needs is enough: it forwards and quarantines; it cannot read the target, nor make or delete anything."""
    url, queue = url_of("shim"), deployed.queue
    deployed.publish(b"good", 1)
    deployed.publish(b"too old", 1, publisher="p" * 201)
    management = deployed.rabbitmq.management_url.replace("guest:guest@", "")
    events = deployed.drain(amqp=url, management=management, protocol="amqp10")
    assert [event["reason"] for event in events if event["event"] == "dedup.forwarding"] == [
        "protocol amqp10 has no transactions"
    ]
    assert not [event for event in events if event["event"] == "dedup.warning"]
    assert (deployed.depth(queue), deployed.depth(names.quarantine(queue))) == (1, 1)
    for name in (queue, names.quarantine(queue)):
        assert refused(deployed, url, getting(name)), name
    assert refused(deployed, url, publishing(f"{queue}.sales"))
    for name in (*surroundings(queue), queue):
        assert refused(deployed, url, deleting(name)), name


@pytest.mark.parametrize("missing", ["write", "read"])
@pytest.mark.each_version("long")
def test_a_shim_with_less_says_so(deployed: Deployed, url_of: Callable[..., str], missing: str) -> None:
    """
    Without a right that only the messages need it forwards nothing, loses nothing, and its log names what was refused.

    It is write on the exchange to the target, or read on the ingress: what AMQP 1.0 is used for.
    """
    queue = re.escape(deployed.queue)
    left = {
        "write": rf"^({queue}(\.quarantine)?|{queue}\.dedup\.(quarantine|strays|audit)|dedup\.registry|amq\.default)$",
        "read": rf"^({queue}\.dedup\.(ledger|forward)|dedup\.registry)$",
    }
    url = url_of("shim", **{missing: left[missing]})
    deployed.publish(b"waits", 1)
    with deployed.shim(amqp=url, protocol="amqp10") as running:
        until(lambda: "refused for user" in running.output)
    # Who has no right at all on a queue may not even look whether it is there, on 4.3, which calls that "configure".
    assert re.search(rf"({missing}|configure) access to", running.output), running.output
    assert (deployed.depth(names.ingress(deployed.queue)), deployed.depth(deployed.queue)) == (1, 0)


@pytest.mark.each_version
def test_a_publisher_without_registration(deployed: Deployed, url_of: Callable[..., str]) -> None:
    """Write on its exchange is all: nothing by the names of queues, and nothing past the shim or to the ledger."""
    queue = deployed.queue
    sales = f"{queue}.sales"
    url = url_of("publisher", configure="^$", read="^$", write=f"^{re.escape(sales)}$")
    with Publisher(url, "p", registration="local") as publisher:
        publisher.publish(b"x", exchange=sales, timeout=PATIENCE_S)
        for exchange, key in (
            ("", names.ingress(queue)),
            ("", names.ledger(queue)),
            ("", queue),
            (names.forward_exchange(queue), ""),
        ):
            with pytest.raises(PublishError, match=r"403|refused"):
                publisher.publish(b"x", exchange=exchange, routing_key=key, timeout=PATIENCE_S)
        publisher.publish(b"y", exchange=sales, timeout=PATIENCE_S)
    assert deployed.depth(names.ingress(queue)) == 2
    assert deployed.depth(queue) == deployed.depth(names.ledger(queue)) == 0
