"""A publisher id is bound to the broker's user: the rule, what the shim makes of it, and what the SDK does for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup import Properties, Publisher, PublishError
from dedup.amqp091.properties import scan
from dedup.amqp091.stamping import seal
from dedup.core import names
from dedup.core.identity import NOT_BOUND_TO_USER, UserBinding, may_publish_as
from dedup.testing.servers import RabbitMQ, Redis
from tests.security.deployed import Deployed
from tests.security.users import Users

# -- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("publisher", "user", "same", "prefix"),
    [
        ("shop", "shop", True, True),
        ("shop:1", "shop", False, True),
        ("shop:a:b", "shop", False, True),
        ("shop:", "shop", False, True),
        ("shop-1", "shop", False, False),
        ("shop.1", "shop", False, False),
        ("shopping", "shop", False, False),
        ("Shop", "shop", False, False),
        ("sho", "shop", False, False),
        ("shop", None, False, False),
        ("shop", "", False, False),
        (":shop", "shop", False, False),
        (":shop", "", False, True),  # RabbitMQ has no user without a name
        ("a:b", "a:b", True, False),  # it belongs to user "a", and to nobody else
        ("a:b", "a", False, True),
        ("é:1", "é", False, True),
        ("e\u0301:1", "é", False, False),
    ],
)
def test_the_rule(publisher: str, user: str | None, same: bool, prefix: bool) -> None:
    """The id is the user's name, or with "prefix" what stands before its first colon is; nothing is taken for equal."""
    assert may_publish_as(publisher, user, UserBinding.SAME) is same
    assert may_publish_as(publisher, user, UserBinding.PREFIX) is prefix
    assert may_publish_as(publisher, user, UserBinding.OFF)


@given(st.text(min_size=1), st.text(":ab", min_size=1), st.text(":ab", min_size=1))
def test_no_id_belongs_to_two_users(publisher: str, one: str, other: str) -> None:
    """Whatever users there are, no two of them may publish under the same id."""
    for binding in (UserBinding.SAME, UserBinding.PREFIX):
        for name in (publisher, f"{one}:{publisher}", one):
            owners = [user for user in {one, other, name} if may_publish_as(name, user, binding)]
            assert len(owners) <= 1


def test_a_user_that_is_no_utf8_equals_no_id() -> None:
    """A name that cannot be decoded is not replaced by something that a publisher id could be."""
    raw = seal(Properties(user_id="\ufffd"), "p").stamp(1, 1, 0.0).replace("\ufffd".encode(), b"\xff\xfe\xfd")
    user = scan(raw).user
    assert user == b"\xff\xfe\xfd"
    assert not may_publish_as("\ufffd" * 3, user.decode(errors="surrogateescape"), UserBinding.SAME)


# -- the SDK --------------------------------------------------------------------------------------


def test_the_sdk_puts_the_user_where_none_is_named() -> None:
    """With user_id in every message without one of its own, and without it in none."""
    assert scan(seal(None, "shop:1", "shop").stamp(1, 1, 0.0)).user == b"shop"
    assert scan(seal(Properties(user_id="own"), "shop:1", "shop").stamp(1, 1, 0.0)).user == b"own"
    assert scan(seal(None, "shop:1").stamp(1, 1, 0.0)).user is None


# -- through broker and shim ----------------------------------------------------------------------

ONE = {"dedup-sequence": 1}


@pytest.fixture
def users(rabbitmq: RabbitMQ) -> Iterator[Users]:
    """Alice and Mallory, who may publish through the default exchange and no more."""
    with Users(rabbitmq) as made:
        made.add("alice", write="^amq[.]default$")
        made.add("mallory", write="^amq[.]default$")
        yield made


@pytest.fixture
def deployed(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, tmp_path: Path) -> Iterator[Deployed]:
    """A guarded queue."""
    with Deployed(rabbitmq, redis_server.url, queue_name, tmp_path / "log") as queue:
        yield queue


def _publish(deployed: Deployed, url: str, body: bytes, **properties: Any) -> None:
    with deployed.channel(url) as channel:
        settled = pika.BasicProperties(delivery_mode=2, **properties)
        channel.basic_publish("", names.ingress(deployed.queue), body, settled)


def _bodies(deployed: Deployed, queue: str) -> list[bytes]:
    return sorted(delivery.body for delivery in deployed.take(queue))


def test_a_spoofed_publisher_ends_in_quarantine(users: Users, deployed: Deployed) -> None:
    """Mallory cannot use up alice's numbers, whatever she puts into a message; what alice publishes passes, once."""
    alice, mallory = users.name("alice"), users.name("mallory")
    hers = users.url("mallory")
    death = {"queue": deployed.queue, "reason": "rejected", "count": 1, "exchange": "", "routing-keys": ["x"]}
    _publish(deployed, hers, b"no user", app_id=f"{alice}:1", headers=ONE)
    _publish(deployed, hers, b"own user", app_id=f"{alice}:1", headers=ONE, user_id=mallory)
    _publish(
        deployed,
        hers,
        b"by header",
        app_id=mallory,
        headers={**ONE, "dedup-publisher": alice},
        user_id=mallory,
    )
    _publish(
        deployed, hers, b"by death", app_id=f"{alice}:1", headers={**ONE, "x-death": [death]}, user_id=mallory
    )
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id"):
        _publish(deployed, hers, b"false user", app_id=alice, headers=ONE, user_id=alice)
    _publish(deployed, hers, b"unstamped")
    for body in (b"first", b"copy"):
        _publish(deployed, users.url("alice"), body, app_id=f"{alice}:1", headers=ONE, user_id=alice)

    deployed.drain(bind_publisher_to_user="prefix")

    assert _bodies(deployed, deployed.queue) == [b"first", b"unstamped"]
    kept = deployed.take(names.quarantine(deployed.queue))
    assert sorted(delivery.body for delivery in kept) == [b"by death", b"by header", b"no user", b"own user"]
    assert all(f"dedup-reasonS\x00\x00\x00\x1b{NOT_BOUND_TO_USER}".encode() in one.properties for one in kept)


def test_without_binding_a_spoofer_can_use_up_numbers(users: Users, deployed: Deployed) -> None:
    """The control: by default whoever may publish may publish as anybody."""
    _publish(deployed, users.url("mallory"), b"spoofed", app_id=users.name("alice"), headers=ONE)
    _publish(deployed, users.url("alice"), b"real", app_id=users.name("alice"), headers=ONE)
    deployed.drain()
    assert _bodies(deployed, deployed.queue) == [b"spoofed"]


def test_the_sdk_passes_a_bound_queue(users: Users, deployed: Deployed) -> None:
    """With user_id it gets through; a false one is refused by the broker and fails that message alone."""
    alice = users.name("alice")
    with Publisher(users.url("alice"), alice, user_id=alice, registration="local") as publisher:
        publisher.publish(b"before", queue=deployed.queue, timeout=20)
        with pytest.raises(PublishError, match="user_id"):
            publisher.publish(
                b"false", queue=deployed.queue, properties=Properties(user_id="mallory"), timeout=20
            )
        publisher.publish(b"behind", queue=deployed.queue, timeout=20)
    deployed.drain(bind_publisher_to_user="same")
    assert _bodies(deployed, deployed.queue) == [b"before", b"behind"]
