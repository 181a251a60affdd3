"""A publisher of AMQP 1.0 works with exactly the permissions that the documentation gives it, and is told what it lacks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from dedup.core.questions import Status, Told
from dedup.errors import PublishError, TopologyError
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ
from proton_adapter import Publisher
from tests.fault.child import PATIENCE_S
from tests.fault.guarded import Guarded
from tests.looking import channel, until
from tests.proton.test_questions import Make
from tests.security.test_permissions import documented
from tests.security.users import Users

_ROLE = "publisher over AMQP 1.0"


@pytest.fixture
def guarded(make: Make, broker: RabbitMQ) -> Iterator[Guarded]:
    """A guarded queue whose ingress is bound to an exchange, and a registry."""
    made = make()
    sales = f"{made.queue}.sales"
    with channel(broker) as opened, serving(broker.url, MemoryRegistry(time.time)):
        opened.exchange_declare(sales, "fanout", durable=True)
        opened.queue_bind(f"{made.queue}.dedup", sales)
        yield made
        opened.exchange_delete(sales)


def _rights(guarded: Guarded) -> dict[str, str]:
    return documented(re.escape(guarded.queue), re.escape(f"{guarded.queue}.sales"))[_ROLE]


@pytest.mark.each_version
def test_it_registers_publishes_asks_and_is_told(guarded: Guarded, broker: RabbitMQ) -> None:
    """To its exchange; not to queues by name, not past the shim."""
    told: list[Told] = []
    sales = f"{guarded.queue}.sales"
    child = guarded.start_shim()
    with (
        Users(broker) as users,
        Publisher(users.add("publisher", **_rights(guarded)), "p", receipts=told.append) as publisher,
    ):
        for body in (b"x", b"again"):
            receipt = publisher.publish(body, exchange=sales, sequence=7, timeout=PATIENCE_S)
        assert publisher.resume_point(exchange=sales, queues=[guarded.queue]).next == 8
        assert publisher.status(receipt, exchange=sales) == {guarded.queue: Status.SEEN}
        until(lambda: told)
        for number, key in ((8, guarded.queue), (9, f"{guarded.queue}.dedup")):
            with pytest.raises(PublishError, match=r"403|refused"):
                publisher.publish(b"x", routing_key=key, sequence=number, timeout=PATIENCE_S)
        with pytest.raises(PublishError, match="refused the question: 403"):
            publisher.resume_point(queue=guarded.queue)
        assert publisher.resume_point(exchange=sales, queues=[guarded.queue]).next == 8
    guarded.stop(child)


@pytest.mark.each_version
@pytest.mark.parametrize("missing", ["configure", "write", "read"])
def test_with_less_it_is_told(guarded: Guarded, broker: RabbitMQ, missing: str) -> None:
    """Without a right that registration needs, the constructor says which page has them; nothing is waited for."""
    with Users(broker) as users:
        url = users.add("publisher", **{**_rights(guarded), missing: "^$"})
        with pytest.raises(TopologyError, match=rf"{missing} access to .* refused.*permissions\.md"):
            Publisher(url, "p", connect_timeout_s=PATIENCE_S)
