"""
Build, look at and take down what a move needs beside its two queues.

From ``orders.dlq`` into ``orders``::

    orders.dlq -> move -> orders.dlq.dedup.move -> orders
    (the source)   |      (fanout; alternate: orders.dlq.dedup.move.trash -> orders.dlq.dedup.trash, a stream)
                   +----> orders.dlq.dedup.move.ledger

With many targets (``--to-origin``) each has a fanout of its own, ``orders.dlq.dedup.move.to.QUEUE``: whatever routing key or
CC header a message carries, it leads nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from dedup.amqp091.administration import Administration, administration
from dedup.amqp091.inspection import Inspection, exactness, missing, refuses, risks_of_source
from dedup.amqp091.management import Management
from dedup.core import names
from dedup.core.names import Route
from dedup.errors import BrokerUnavailableError, ConfigError, TopologyError

#: What cannot be delivered waits in so many bytes; then the oldest goes.
TRASH_BYTES_MAX: Final = 1 << 30
_TRASH: Final = {"x-queue-type": "stream", "x-max-length-bytes": TRASH_BYTES_MAX}
#: How long somebody who holds ledger or source is waited for: the broker may not know yet that it is dead. Seconds.
WAIT_S: Final = 5.0
_POLL_S: Final = 0.1
_NAME_BYTES_MAX: Final = 255


def build(amqp: str | Iterable[str], route: Route) -> None:
    """
    Declare everything of a move; what is there and right stays as it is, and leads to this target alone.

    Raises:
        TopologyError: source or target is missing, somebody else takes from the source, or another move does.
        ConfigError: a name is too long, or source and target are one.
    """
    _check_names(route)
    with administration(amqp) as broker:
        for queue in filter(None, (route.source, route.target)):
            if broker.count(queue) is None:
                raise TopologyError(missing("queue", queue, "declare it first"))
        _wait_until_free(
            broker, route.ledger, f"another move out of {route.source!r} is running: stop it first"
        )
        _wait_until_free(
            broker,
            route.source,
            f"queue {route.source!r} has consumers, which would take what is to be moved: stop them first",
        )
        broker.declare_queue(route.ledger, {"x-queue-type": "classic"})
        broker.declare_exchange(route.strays, {})
        broker.bind(route.ledger, route.strays)
        broker.declare_queue(names.trash(route.source), _TRASH)
        broker.declare_exchange(route.aside, {"alternate-exchange": route.strays})
        broker.bind(names.trash(route.source), route.aside)
        # A move before may have had another target.
        broker.delete_exchange(route.forward)
        lead(broker, route, route.forward, route.target)


def lead(broker: Administration, route: Route, exchange: str, target: str) -> None:
    """
    Declare the exchange that leads to *target* alone, or nowhere if that is empty.
    """
    broker.declare_exchange(exchange, {"alternate-exchange": route.aside})
    if target:
        broker.bind(target, exchange)


def look(amqp: str | Iterable[str], route: Route, management: Management | None) -> Inspection:
    """
    Say whether the move can be exact, and what may go wrong with it; bind a target again that was declared anew.

    Raises:
        TopologyError: a queue is missing, or the source is a stream.
        BrokerUnavailableError: nobody answers.
    """
    with administration(amqp) as broker:
        vhost, version = broker.vhost, broker.version
        for queue in filter(None, (route.source, route.target, route.ledger)):
            if broker.count(queue) is None:
                raise TopologyError(
                    missing("queue", queue, "it was deleted; declare it, or start the move again")
                )
        if route.target:
            broker.bind(route.target, route.forward)
    if management is None:
        return Inspection("", exact_possible=False, reason="no management API is named (management = URL)")
    try:
        return _look_over_management(management, vhost, version, route)
    except (BrokerUnavailableError, ConfigError) as error:
        return Inspection(
            "", exact_possible=False, reason=f"neither policies nor arguments can be seen: {error}"
        )


def _look_over_management(
    management: Management, vhost: str, version: tuple[int, ...], route: Route
) -> Inspection:
    source = management.queue(vhost, route.source)
    if source is not None and source.type == "stream":
        raise TopologyError(f"queue {route.source!r} is a stream: nothing can be taken out of it")
    warnings = () if source is None else tuple(risks_of_source(source, version))
    if not route.target:
        return Inspection("", exact_possible=False, reason="there are many targets", warnings=warnings)
    target = management.queue(vhost, route.target)
    if target is None:
        raise TopologyError(missing("queue", route.target, "declare it first"))
    # The trash is a stream, which refuses nothing: only the target decides.
    exact, reason = exactness(target, target, management.nodes())
    return Inspection(target.type, exact, reason, refuses(target), warnings)


class Origins:
    """
    The exchanges that lead to the queues messages go back to, each declared when it is needed first.
    """

    def __init__(self, amqp: str | Iterable[str], route: Route) -> None:
        self._amqp = amqp
        self._route = route
        #: Queue -> exchange.
        self.found: dict[str, bytes] = {}

    def find(self, queue: str) -> bytes:
        """
        Return the exchange that leads to *queue*; empty bytes where there is no such queue.
        """
        exchange = self._route.each + queue
        if queue == self._route.source or len(exchange.encode()) > _NAME_BYTES_MAX:
            return b""
        if queue not in self.found:
            with administration(self._amqp) as broker:
                if broker.count(queue) is None:
                    return b""
                lead(broker, self._route, exchange, queue)
            self.found[queue] = exchange.encode()
        return self.found[queue]


def take_down(amqp: str | Iterable[str], route: Route, origins: Iterable[str] = ()) -> None:
    """
    Delete what build() made, and never the trash: RabbitMQ says late how much is in a stream, and 0 until then.

    Args:
        origins: Queues that messages went back to.

    Raises:
        TopologyError: messages that found no queue at all are in the ledger; nothing was deleted.
    """
    each = [route.each + origin for origin in origins]
    with administration(amqp) as broker:
        if strays := broker.count_from(route.ledger, (*route.leading, *each)):
            raise TopologyError(
                f"queue {route.ledger!r} holds {strays} messages that found neither target nor trash: run the move again"
            )
        for exchange in (*each, route.forward, route.aside, route.strays):
            broker.delete_exchange(exchange)
        broker.delete_queue(route.ledger)


def _wait_until_free(broker: Administration, queue: str, held: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while (counted := broker.count(queue)) is not None and counted.consumers:
        if time.monotonic() > deadline:
            raise TopologyError(held)
        time.sleep(_POLL_S)


def _check_names(route: Route) -> None:
    if route.source == route.target:
        raise ConfigError(f"source and target are one queue, {route.source!r}")
    longest = max(len(name.encode()) for name in (route.ledger, route.strays))
    if not route.source or longest > _NAME_BYTES_MAX:
        room = _NAME_BYTES_MAX - (longest - len(route.source.encode()))
        raise ConfigError(f"a source's name has 1 to {room} bytes, this one has {len(route.source.encode())}")
