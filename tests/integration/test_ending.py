"""SIGTERM ends each service soon and in order, whatever is away at that moment, and nothing is lost or doubled by it."""

from __future__ import annotations

import signal
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pika
import pytest

from dedup.core import names
from dedup.core.identity import MARK_HEADER
from dedup.outbox.enqueue import Outbox
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from dedup.testing.servers import RabbitMQ, Redis
from tests.commands import running
from tests.fault.child import Child
from tests.fault.guarded import Guarded
from tests.fault.moved import Moves
from tests.fault.retried import Retried
from tests.looking import Found, channel, depth, drain, over, until

#: After that long the documented unit of systemd kills: a service that has not ended by then does not end in order; seconds.
_KILLED_AFTER_S = 30.0
#: Messages before the trouble, and as many in it.
_COUNT = 20


class Service:
    """
    One command that runs until SIGTERM, and what it takes from where to where.
    """

    uses_redis: ClassVar[bool] = True
    #: It marks a copy that may be a second one; else it is told by its number.
    marks: ClassVar[bool] = True

    def __init__(self, stack: ExitStack, rabbitmq: RabbitMQ, redis: Redis, name: str, folder: Path) -> None:
        self.rabbitmq = rabbitmq
        self.source, self.target = name, name
        self.build(stack, redis, folder)

    def build(self, stack: ExitStack, redis: Redis, folder: Path) -> None:
        """Declare what there has to be, until the end of *stack*."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return its own arguments."""
        raise NotImplementedError

    def feed(self, numbers: range) -> None:
        """Give it one message for each number."""
        with channel(self.rabbitmq) as opened:
            for number in numbers:
                headers = {"dedup-sequence": number + 1, **self.headers()}
                properties = pika.BasicProperties(delivery_mode=2, app_id="p", headers=headers)
                opened.basic_publish("", self.source, b"%d" % number, properties)

    def headers(self) -> dict[str, Any]:
        """Return what a message that comes to it has beside its number."""
        return {}

    def holds(self) -> bool:
        """Say whether it has taken what was fed."""
        return depth(self.rabbitmq, self.source) == 0


class TheShim(Service):
    """``dedup shim``."""

    def build(self, stack: ExitStack, redis: Redis, folder: Path) -> None:
        del folder
        stack.enter_context(Guarded(self.rabbitmq, redis, self.target))
        self.source = names.ingress(self.target)

    def command(self) -> list[str]:
        return ["shim", "--queue", self.target, "--management", self.rabbitmq.management_url]


class TheRetry(Service):
    """``dedup retry``."""

    def build(self, stack: ExitStack, redis: Redis, folder: Path) -> None:
        del folder
        self.source = stack.enter_context(Retried(self.rabbitmq, redis, self.target)).dead_letter_queue

    def command(self) -> list[str]:
        return ["retry", "--dead-letter-queue", self.source, "--delays-s", "0.05"]

    def headers(self) -> dict[str, Any]:
        return {"x-death": [{"queue": self.target, "reason": "rejected", "count": 1}]}


class TheMove(Service):
    """``dedup move --forever``."""

    def build(self, stack: ExitStack, redis: Redis, folder: Path) -> None:
        del folder
        moves = stack.enter_context(Moves(self.rabbitmq, redis))
        self.source, self.target = moves.source, moves.target

    def command(self) -> list[str]:
        return ["move", self.source, self.target, "--forever", "--management", self.rabbitmq.management_url]


class TheOutbox(Service):
    """``dedup outbox run``."""

    uses_redis = marks = False

    def build(self, stack: ExitStack, redis: Redis, folder: Path) -> None:
        del redis
        self.file = folder / "shop.db"
        with closing(sqlite3.connect(self.file)) as connection:
            Outbox.create(connection)
            connection.commit()
        opened = stack.enter_context(channel(self.rabbitmq))
        opened.queue_declare(self.target, durable=True)
        stack.callback(opened.queue_delete, self.target)

    def command(self) -> list[str]:
        own = ["--database", str(self.file), "--publisher-id", "shop-1", "--registration", "local"]
        return ["outbox", "run", *own]

    def feed(self, numbers: range) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            for number in numbers:
                Outbox.enqueue(connection, b"%d" % number, routing_key=self.target)
            connection.commit()


@contextmanager
def _redis_killed(link: FaultProxy, redis: Redis) -> Iterator[None]:
    del link
    redis.kill()
    yield
    redis.start()


@contextmanager
def _redis_frozen(link: FaultProxy, redis: Redis) -> Iterator[None]:
    del link
    redis.pause()
    yield
    redis.resume()


@contextmanager
def _broker_gone(link: FaultProxy, redis: Redis) -> Iterator[None]:
    """As after a kill: connections are reset, and no new one is taken."""
    del redis
    link.refuse()
    link.cut()
    yield
    link.heal()


@contextmanager
def _broker_silent(link: FaultProxy, redis: Redis) -> Iterator[None]:
    """As of a frozen one, or behind a network that swallows everything: connections stay, nothing answers."""
    del redis
    link.stall(TO_CLIENT)
    link.stall(TO_SERVER)
    yield
    link.heal()


_OF_THE_BROKER = (_broker_gone, _broker_silent)
_TROUBLES = {
    "redis killed": _redis_killed,
    "redis frozen": _redis_frozen,
    "broker gone": _broker_gone,
    "broker silent": _broker_silent,
}
_SERVICES = {"shim": TheShim, "retry": TheRetry, "move": TheMove, "outbox": TheOutbox}
#: One for each service, and each trouble once; the others are for long runs.
_USUAL = {
    ("shim", "redis killed"),
    ("retry", "redis frozen"),
    ("move", "broker silent"),
    ("outbox", "broker gone"),
}
_CASES = [
    pytest.param(
        service,
        trouble,
        id=f"{service}, {trouble}",
        marks=[] if (service, trouble) in _USUAL else pytest.mark.long,
    )
    for service, kind in _SERVICES.items()
    for trouble in _TROUBLES
    if kind.uses_redis or _TROUBLES[trouble] in _OF_THE_BROKER
]


@pytest.mark.parametrize(("service", "trouble"), _CASES)
def test_a_service_ends_whatever_is_away(  # noqa: PLR0917 fixtures
    rabbitmq: RabbitMQ,
    own_redis: Redis,
    link: FaultProxy,
    queue_name: str,
    tmp_path: Path,
    service: str,
    trouble: str,
) -> None:
    """
    With messages in hand, and started into the trouble: SIGTERM is heard, the exit code is that of an end in order.

    What was in hand comes through by the next one, once or marked.
    """
    with ExitStack() as stack:
        own = _SERVICES[service](stack, rabbitmq, own_redis, queue_name, tmp_path)
        arguments = [*own.command(), "--amqp", over(link), "--log-format", "json"]
        if own.uses_redis:
            arguments += ["--redis", own_redis.url]

        def start() -> Child:
            return stack.enter_context(running(arguments, tmp_path / f"{uuid.uuid4().hex}.log"))

        def end(child: Child) -> None:
            until(lambda: _hears_sigterm(child))
            child.send_signal(signal.SIGTERM)
            assert child.wait(_KILLED_AFTER_S) == 0, _log(tmp_path)

        first = start()
        own.feed(range(_COUNT))
        until(lambda: depth(rabbitmq, own.target) >= _COUNT)
        with _TROUBLES[trouble](link, own_redis):
            own.feed(range(_COUNT, 2 * _COUNT))
            if "redis" in trouble:
                until(own.holds)
            end(first)
            second = start()
            until(lambda: _hears_sigterm(second))
            time.sleep(0.3)  # it is at its first look now, or waits for what it looks at
            end(second)
        third = start()
        until(lambda: depth(rabbitmq, own.target) >= 2 * _COUNT)
        end(third)
        _check(drain(rabbitmq, own.target), marks=own.marks)


def _check(came: Found, *, marks: bool) -> None:
    """Everything is there, and a copy can be told: by its mark, or by the number it has in common with its message."""
    assert {int(body) for body, _ in came} == {*range(2 * _COUNT)}
    unmarked = Counter(body for body, properties in came if not (properties.headers or {}).get(MARK_HEADER))
    if marks:
        assert set(unmarked.values()) <= {1}
    else:
        numbers = {(body, properties.headers["dedup-sequence"]) for body, properties in came}
        assert len(numbers) == 2 * _COUNT


def _hears_sigterm(child: Child) -> bool:
    """Say whether it has a handler of its own for SIGTERM: before, it simply ends, with nothing in hand."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _log(folder: Path) -> str:
    """Return what the services have told, for people."""
    return "\n".join(
        file.read_text() for file in sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime)
    )
