"""Hold the publisher id "p" as another process does, or only its lock: what the tests of registration share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pika

from dedup import registrar
from dedup.core.identity import Receipt
from dedup.core.registry import lock_queue
from dedup.errors import FencedError
from dedup.publisher import Publisher
from dedup.testing.servers import RabbitMQ
from tests.fault.child import Child, Tell


def takes_lock(opened: Any) -> bool:
    """Take the lock of "p" on the connection of *opened*, if it is free."""
    try:
        opened.connection.channel().queue_declare(
            lock_queue("p"), exclusive=True, arguments=registrar.LOCK_ARGUMENTS
        )
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


def is_locked(publisher: Publisher) -> bool:
    """Say whether the lock of its id is its own."""
    return publisher._registration is not None and publisher._registration.is_locked


@contextmanager
def holding(kind: type[Publisher], rabbitmq: RabbitMQ, queue: str) -> Iterator[Child]:
    """Have a process of its own hold "p", and publish to *queue* until something ends it."""
    child = Child(_hold, {"kind": kind, "amqp": rabbitmq.url, "queue": queue})
    try:
        yield child
    finally:
        child.end()


def _hold(settings: dict[str, Any], tell: Tell) -> None:
    """Hold a publisher id, and publish numbered messages until something ends it."""
    kind: type[Publisher] = settings["kind"]
    with kind(settings["amqp"], "p", confirm_timeout_s=3.0, close_timeout_s=1.0) as publisher:
        first = publisher.submit(b"z0", routing_key=settings["queue"]).result()
        tell("registered", {"base": first.sequence - 1})
        number = 0

        def on_settled(number: int, future: Future[Receipt]) -> None:
            if future.exception() is None:
                tell("confirmed", {"number": number})

        try:
            while True:
                number += 1
                future = publisher.submit(b"z%d" % number, routing_key=settings["queue"])
                future.add_done_callback(partial(on_settled, number))
                time.sleep(0.005)
        except FencedError as error:
            tell("fenced", {"text": str(error)})
