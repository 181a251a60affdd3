"""Registration over AMQP 1.0: what it keeps over every protocol, against publishers of 0.9.1, and what strangers write."""

from __future__ import annotations

import json
import time
from typing import Any

import pika
import pytest
from proton import Message

import dedup
from dedup.core.registry import REGISTRY, lock_queue
from dedup.errors import PublisherAlreadyRegisteredError
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ
from proton_adapter import Properties, Publisher
from tests.fault.child import PATIENCE_S
from tests.looking import channel, until
from tests.proton.looking import connected
from tests.registration_contract import RegistrationContract

pytestmark = pytest.mark.usefixtures("without_registry")


class TestRegistration(RegistrationContract):
    """
    What it keeps whatever protocol the publisher speaks, and whatever the other one does.
    """

    publisher = Publisher
    properties = Properties
    kinds = (dedup.Publisher, Publisher)

    @pytest.fixture(params=kinds, ids=["0.9.1", "1.0"])
    def holder(self, request: pytest.FixtureRequest) -> type[dedup.Publisher]:
        """Each protocol, against both."""
        kind: type[dedup.Publisher] = request.param
        return kind

    @pytest.fixture(
        params=[
            pytest.param((Publisher, dedup.Publisher), id="1.0-0.9.1"),
            pytest.param((dedup.Publisher, Publisher), id="0.9.1-1.0"),
            pytest.param((Publisher, Publisher), id="1.0-1.0", marks=pytest.mark.long),
        ]
    )
    def owners(self, request: pytest.FixtureRequest) -> tuple[type[dedup.Publisher], type[dedup.Publisher]]:
        """Each protocol takes over from the other, and 1.0 from its own."""
        kinds: tuple[type[dedup.Publisher], type[dedup.Publisher]] = request.param
        return kinds


# -- connections that come and go -----------------------------------------------------------------


@pytest.mark.long
def test_a_broker_that_was_killed_gives_the_id_back(broker: RabbitMQ, queue: str) -> None:
    """Lock and registry go with it; the same owner publishes on with the same numbers when it is back, and holds the id."""
    with serving(broker.url, MemoryRegistry(time.time)):
        own = Publisher(broker.url, "p")
    with own:
        first = own.publish(b"1", routing_key=queue)
        time.sleep(1.0)  # a queue that is a moment old may not be on disk
        broker.kill()
        future = own.submit(b"2", routing_key=queue)
        broker.start()
        assert future.result(PATIENCE_S).sequence == first.sequence + 1
        with serving(broker.url, MemoryRegistry(time.time)), pytest.raises(PublisherAlreadyRegisteredError):
            Publisher(broker.url, "p", connect_timeout_s=PATIENCE_S)


# -- a registry that fails ------------------------------------------------------------------------


@pytest.mark.each_version("long")
def test_what_anybody_writes_into_the_locks_queue_ends_nothing(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """Any bytes, over either protocol, more than the broker was given credit for; a true hint is heard behind it."""
    del registry
    with Publisher(broker.url, "p") as own:
        first = own.publish(b"1", routing_key=queue)
        with channel(broker) as opened:
            for body in (b"", b"junk", b'{"queue":1}', b"x" * 200_000, *(b"%d" % n for n in range(300))):
                opened.basic_publish("", lock_queue("p"), body)
        values: tuple[Any, ...] = ("text", [[[]]], {"a": [1]}, 7)
        with connected(broker) as connection:
            sender = connection.create_sender(f"/queues/{lock_queue('p')}")
            for value in values:
                sender.send(Message(body=value))
        assert own.publish(b"2", routing_key=queue).sequence == first.sequence + 1
        with dedup.Publisher(broker.url, "p", takeover=True):
            until(lambda: repr(own).endswith("closed>"))


# -- who asks the registry ------------------------------------------------------------------------


@pytest.mark.each_version
def test_a_request_is_answered_to_addresses_of_publishers_only(
    broker: RabbitMQ, queue: str, registry: MemoryRegistry
) -> None:
    """A reply queue has a name that nobody guesses; no other queue is written to, however it is spelled."""
    del registry
    good = json.dumps({"id": 1, "act": "show", "publisher_id": "p", "owner": "a"}).encode()
    refused = [queue, f"/queues/{queue}", "dedup.replies.", f"dedup.replies.{queue}", lock_queue("p")]
    with channel(broker) as opened:
        for name in ("dedup.replies.short", "dedup.replies." + "0" * 32):
            opened.queue_declare(name, exclusive=True)
        for address in (*refused, "dedup.replies.short", "dedup.replies." + "0" * 32):
            opened.basic_publish(REGISTRY, "", good, pika.BasicProperties(reply_to=address))
        until(lambda: opened.queue_declare("dedup.replies." + "0" * 32, exclusive=True).method.message_count)
        for name in (queue, "dedup.replies.short"):
            assert opened.queue_declare(name, passive=True).method.message_count == 0
