"""Each role works with exactly the permissions that the documentation gives it, and is refused everything else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner

from dedup import Publisher, PublishError, Status, Told
from dedup.cli.commands import dedup as program
from dedup.core import names
from dedup.errors import TopologyError
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ, Redis
from tests.looking import PATIENCE_S, until
from tests.security.deployed import Deployed, dedup
from tests.security.users import Users

_PAGE = Path(__file__).parents[2] / "docs/howto/permissions.md"
_ACCESS_REFUSED = 403
_ROW = re.compile(
    r"^\| \*\*(?P<role>[^*]+)\*\* \| `(?P<configure>.+?)` \| `(?P<write>.+?)` \| `(?P<read>.+?)` \|\s*(?P<tags>[^|]*?)\s*\|",
    re.MULTILINE,
)


def documented(queue: str, exchange: str) -> dict[str, dict[str, str]]:
    """Return the permissions of each role as the page has them, for other names than its "orders" and "sales"."""
    roles = {}
    for row in _ROW.finditer(_PAGE.read_text("utf-8")):
        # In a table of Markdown "|" is written "\|".
        rights = {kind: row[kind].replace("\\|", "|") for kind in ("configure", "write", "read")}
        rights = {
            kind: text.replace("orders", queue).replace("sales", exchange) for kind, text in rights.items()
        }
        roles[row["role"]] = {**rights, "tags": row["tags"].strip("` ")}
    return roles


@pytest.fixture
def deployed(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, tmp_path: Path) -> Iterator[Deployed]:
    """A guarded queue whose ingress is bound to an exchange."""
    with (
        Deployed(rabbitmq, redis_server.url, queue_name, tmp_path / "log") as queue,
        queue.channel() as channel,
    ):
        channel.exchange_declare(f"{queue_name}.sales", "fanout", durable=True)
        channel.queue_bind(names.ingress(queue_name), f"{queue_name}.sales")
        yield queue
        channel.exchange_delete(f"{queue_name}.sales")


@pytest.fixture
def url_of(rabbitmq: RabbitMQ, deployed: Deployed) -> Iterator[Callable[[str], str]]:
    """Return a maker of users, by role."""
    roles = documented(re.escape(deployed.queue), re.escape(f"{deployed.queue}.sales"))
    with Users(rabbitmq) as users:
        yield lambda role: users.add(role.replace(" ", "-"), **roles[role])


def refused(deployed: Deployed, url: str, act: Callable[[Any], object]) -> bool:
    """Say whether the broker closes the channel of who does this with 403."""
    with deployed.channel(url) as channel:
        try:
            act(channel)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == _ACCESS_REFUSED)
    return False


def publishing(exchange: str, routing_key: str = "") -> Callable[[Any], object]:
    """Return what publishes."""
    return lambda channel: channel.basic_publish(exchange, routing_key, b"x")


def getting(queue: str) -> Callable[[Any], object]:
    """Return what takes a message."""
    return lambda channel: channel.basic_get(queue, auto_ack=True)


def deleting(queue: str) -> Callable[[Any], object]:
    """Return what deletes a queue."""
    return lambda channel: channel.queue_delete(queue)


def surroundings(queue: str) -> list[str]:
    """Return the queues that belong to dedup."""
    return [names.ingress(queue), names.ledger(queue), names.quarantine(queue), names.audit(queue)]


def test_a_publisher_to_an_exchange(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It publishes to its exchange; not to the queues by name, not past the shim, not a marker; it reads and makes nothing."""
    url, queue = url_of("publisher"), deployed.queue
    with serving(url_of("registry"), MemoryRegistry(time.time)), Publisher(url, "p") as publisher:
        publisher.publish(b"x", exchange=f"{queue}.sales", timeout=30)
        with pytest.raises(PublishError, match=r"403|refused"):
            publisher.publish(b"x", queue=queue, timeout=30)
    assert not refused(deployed, url, publishing(f"{queue}.sales"))
    for exchange, key in (
        ("", names.ledger(queue)),
        ("", names.ingress(queue)),
        ("", queue),
        (names.forward_exchange(queue), ""),
        (names.quarantine_exchange(queue), ""),
    ):
        assert refused(deployed, url, publishing(exchange, key)), exchange or key
    for name in (*surroundings(queue), queue):
        assert refused(deployed, url, getting(name)), name
        assert refused(deployed, url, deleting(name)), name


def test_a_publisher_through_the_default_exchange(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It reaches every queue of the virtual host by name, the ledger too: that is what the page warns of."""
    url, queue = url_of("publisher by queue name"), deployed.queue
    with serving(url_of("registry"), MemoryRegistry(time.time)), Publisher(url, "p") as publisher:
        publisher.publish(b"x", queue=queue, timeout=30)
    for name in (names.ledger(queue), queue):
        assert not refused(deployed, url, publishing("", name))
    assert refused(deployed, url, publishing(names.forward_exchange(queue)))
    assert refused(deployed, url, getting(names.quarantine(queue)))


def test_a_publisher_asks_and_is_told(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """Questions, answers and receipts need no right that publisher and shim do not have anyway."""
    url, queue, sales = url_of("publisher"), deployed.queue, f"{deployed.queue}.sales"
    told: list[Told] = []
    with (
        deployed.shim(amqp=url_of("shim"), management=""),
        serving(url_of("registry"), MemoryRegistry(time.time)),
        Publisher(url, "p", receipts=told.append) as publisher,
    ):
        for body in (b"x", b"again"):
            receipt = publisher.publish(body, exchange=sales, sequence=7, timeout=30)
        assert publisher.resume_point(exchange=sales, queues=[queue], timeout=60).next == 8
        assert publisher.status(receipt, exchange=sales, queues=[queue]) == {queue: Status.SEEN}
        until(lambda: told)
        assert [(one.receipt.sequence, one.what) for one in told] == [(7, "duplicate")]
        with pytest.raises(PublishError, match="refused the question: 403"):
            publisher.resume_point(queue=queue)
        publisher.publish(b"and goes on", exchange=sales, sequence=8, timeout=30)


@pytest.mark.parametrize("missing", ["configure", "write", "read"])
def test_a_publisher_with_less_is_told(deployed: Deployed, rabbitmq: RabbitMQ, missing: str) -> None:
    """Without a right that registration needs, the constructor says which page has them; nothing is waited for."""
    role = documented(re.escape(deployed.queue), "sales")["publisher"]
    with Users(rabbitmq) as users, serving(rabbitmq.url, MemoryRegistry(time.time)):
        url = users.add("publisher", **{**role, missing: "^$"})
        with pytest.raises(TopologyError, match=r"403 ACCESS_REFUSED.*permissions\.md"):
            Publisher(url, "p", connect_timeout_s=PATIENCE_S)


def test_a_registry(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It makes its own queue and answers; it reads no guarded queue and makes nothing else."""
    url = url_of("registry")
    with serving(url, MemoryRegistry(time.time)):
        for name in (*surroundings(deployed.queue), deployed.queue):
            assert refused(deployed, url, getting(name)), name
            assert refused(deployed, url, deleting(name)), name
        assert refused(deployed, url, lambda channel: channel.queue_declare("new"))
        assert refused(deployed, url, publishing(f"{deployed.queue}.sales"))


def test_a_shim(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It forwards exactly, and quarantines, without a warning; it cannot read the target, nor make or delete anything."""
    url, queue = url_of("shim"), deployed.queue
    deployed.publish(b"good", 1)
    deployed.publish(b"too old", 1, publisher="p" * 201)
    events = deployed.drain(amqp=url, management=deployed.rabbitmq.management_url.replace("guest:guest@", ""))
    assert [event["exact"] for event in events if event["event"] == "dedup.forwarding"] == [True]
    assert not [event for event in events if event["event"] == "dedup.warning"]
    assert (deployed.depth(queue), deployed.depth(names.quarantine(queue))) == (1, 1)
    assert refused(deployed, url, getting(queue))
    assert refused(deployed, url, getting(names.quarantine(queue)))
    assert refused(deployed, url, publishing(f"{queue}.sales"))
    for name in (*surroundings(queue), queue):
        assert refused(deployed, url, deleting(name)), name
    assert refused(deployed, url, lambda channel: channel.queue_declare("new"))


@pytest.mark.parametrize("missing", ["write", "read"])
def test_a_shim_with_less_says_so(deployed: Deployed, rabbitmq: RabbitMQ, missing: str) -> None:
    """Without a permission it forwards nothing, loses nothing, and its log names what was refused."""
    role = documented(re.escape(deployed.queue), "none")["shim"]
    with Users(rabbitmq) as users:
        url = users.add("shim", **{**role, missing: "^$"})
        deployed.publish(b"waits", 1)
        with deployed.shim(amqp=url) as running:
            # Before its first session where the broker refuses even a look, as 4.3 does.
            until(lambda: "refused for user" in running.output)
        assert "ACCESS_REFUSED" in running.output
    assert (deployed.depth(names.ingress(deployed.queue)), deployed.depth(deployed.queue)) == (1, 0)


def test_a_consumer(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It reads the target, and nothing else; it publishes nowhere."""
    url, queue = url_of("consumer"), deployed.queue
    assert not refused(deployed, url, getting(queue))
    for name in surroundings(queue):
        assert refused(deployed, url, getting(name)), name
    for exchange in ("", f"{queue}.sales", names.forward_exchange(queue)):
        assert refused(deployed, url, publishing(exchange, queue)), exchange


def test_whoever_looks_into_the_quarantine(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It reads the quarantine and moves messages to the target by name; ingress and ledger it cannot read."""
    url, queue = url_of("quarantine"), deployed.queue
    assert not refused(deployed, url, getting(names.quarantine(queue)))
    assert not refused(deployed, url, publishing("", queue))
    for name in (names.ingress(queue), names.ledger(queue), names.audit(queue), queue):
        assert refused(deployed, url, getting(name)), name


def test_whoever_lets_dead_letters_go(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It lists, shows, releases and purges what was given up; the queue itself and what guards it cannot be read or deleted."""
    url, queue = url_of("dead letters"), deployed.queue
    dead = names.dead(queue)

    def run(*arguments: str) -> None:
        done = CliRunner().invoke(program, ["dead", *arguments], env={"DEDUP_AMQP": url})
        assert done.exit_code == 0, (arguments, done.output)

    run("declare", queue)
    with deployed.channel() as channel:
        for body in (b"one", b"two"):
            channel.basic_publish("", dead, body, pika.BasicProperties(delivery_mode=2))
    for command in (("list",), ("show",), ("release", "--limit", "1"), ("purge", "--all", "--yes")):
        run(command[0], queue, *command[1:])
    assert (deployed.depth(queue), deployed.depth(dead)) == (1, 0)
    for name in (*surroundings(queue), queue):
        assert refused(deployed, url, getting(name)), name
        assert refused(deployed, url, deleting(name)), name
    with deployed.channel() as channel:
        channel.queue_delete(dead)


def test_a_collector(deployed: Deployed, url_of: Callable[[str], str], tmp_path: Path) -> None:
    """It takes what the shim tells the audit, and nothing else; it publishes nowhere."""
    url, queue = url_of("collector"), deployed.queue
    deployed.publish(b"told", 1)
    deployed.drain(audit="events")
    log = tmp_path / "events"
    done = dedup("audit", "collect", "--until-empty", "--queue", queue, "--into", str(log), amqp=url)
    assert done.returncode == 0, done.stderr
    assert len(list(log.rglob("*.parquet"))) == 1
    for name in (names.ingress(queue), names.ledger(queue), names.quarantine(queue), queue):
        assert refused(deployed, url, getting(name)), name
    for exchange in ("", names.forward_exchange(queue)):
        assert refused(deployed, url, publishing(exchange, queue)), exchange
    assert refused(deployed, url, deleting(names.audit(queue)))


def test_an_operator(deployed: Deployed, url_of: Callable[[str], str]) -> None:
    """It guards, moves bindings, lists and unguards; it cannot make queues of other names or read other queues."""
    url, queue = url_of("operator"), deployed.queue
    management = deployed.rabbitmq.management_url.replace("guest:guest@", "")
    with deployed.channel() as channel:
        channel.queue_unbind(names.ingress(queue), f"{queue}.sales")
        channel.queue_bind(queue, f"{queue}.sales")
    servers = {"amqp": url, "management": management}
    commands: tuple[tuple[str, ...], ...] = (
        ("guard", queue, "--bindings", "move"),
        ("list",),
        ("unguard", queue, "--bindings", "move"),
        ("guard", queue, "--declare", "classic"),
    )
    for command in commands:
        done = dedup("queue", *command, **servers)
        assert done.returncode == 0, (command, done.stderr)
        assert "warning" not in done.stderr, (command, done.stderr)
    assert refused(deployed, url, lambda channel: channel.queue_declare("other", durable=True))
    assert refused(deployed, url, deleting(f"{queue}.dedup-other"))
    assert refused(deployed, url, lambda channel: channel.exchange_delete(f"{queue}.sales"))


def test_an_operator_with_less_is_told(deployed: Deployed, rabbitmq: RabbitMQ) -> None:
    """Without "configure" guarding fails with the name of what was refused, and exit code 1."""
    role = documented(re.escape(deployed.queue), "none")["operator"]
    with Users(rabbitmq) as users:
        url = users.add("operator", **{**role, "configure": "^$"})
        done = dedup("queue", "guard", deployed.queue, amqp=url, management="off")
    assert done.returncode == 1
    assert "ACCESS_REFUSED" in done.stderr
    assert deployed.queue in done.stderr
