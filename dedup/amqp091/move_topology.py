"""
Build, look at and take down what a move needs beside its two queues.

From ``orders.dlq`` into ``orders``::

    orders.dlq -> move -> orders.dlq.dedup.move -> orders
    (the source)   |      (fanout; alternate: orders.dlq.dedup.move.trash -> orders.dlq.dedup.trash, a stream)
                   +----> orders.dlq.dedup.move.ledger

Where the target is another broker's, ``orders.dlq.dedup.trash`` and the exchange before it stay with the source: what cannot
be moved must not depend on where it cannot go. All else is where the target is, the ledger above all, because its markers
prove what went before them on one channel; its names tell of which broker the source is::

    orders.dlq -> move -> orders.dlq.dedup.BROKER.dedup.move -> orders
                   |      (fanout; alternate: ....dedup.move.strays -> ....dedup.move.ledger)
                   +----> orders.dlq.dedup.move.trash -> orders.dlq.dedup.trash, where the source is

With many targets (``--to-origin``) each has a fanout of its own, ``orders.dlq.dedup.move.to.QUEUE``: whatever routing key or
CC header a message carries, it leads nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from attrs import evolve

from dedup.amqp091.administration import Administration, administration
from dedup.amqp091.inspection import Inspection, exactness, missing, refuses, risks_of_source
from dedup.amqp091.management import Management
from dedup.amqp091.move_brokers import Brokers
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


def build(brokers: Brokers, route: Route) -> None:
    """
    Declare everything of a move; what is there and right stays as it is, and leads to this target alone.

    Raises:
        TopologyError: source or target is missing, somebody else takes from the source, or another move does.
        ConfigError: a name is too long, or source and target are one.
    """
    _check_names(brokers, route)
    with brokers.open() as (here, there):
        for broker, queue in ((here, route.source), (there, route.target)):
            if queue and broker.count(queue) is None:
                raise TopologyError(missing("queue", queue, "declare it first"))
        _wait_until_free(
            there, route.ledger, f"another move out of {route.source!r} is running: stop it first"
        )
        _wait_until_free(
            here,
            route.source,
            f"queue {route.source!r} has consumers, which would take what is to be moved: stop them first",
        )
        there.declare_queue(route.ledger, {"x-queue-type": "classic"})
        there.declare_exchange(route.strays, {})
        there.bind(route.ledger, route.strays)
        here.declare_queue(names.trash(route.source), _TRASH)
        here.declare_exchange(route.aside, {} if brokers.across else {"alternate-exchange": route.strays})
        here.bind(names.trash(route.source), route.aside)
        # A move before may have had another target.
        there.delete_exchange(route.forward)
        lead(brokers, there, route, route.forward, route.target)


def lead(brokers: Brokers, there: Administration, route: Route, exchange: str, target: str) -> None:
    """
    Declare the exchange that leads to *target* alone, or nowhere if that is empty.

    What finds no target goes to the trash where that is in the same broker. Where it is not, it goes to the ledger, from where
    it is sent on when the one target is there again; of many it comes back, and counts as refused.
    """
    alternate = (route.strays if route.target else "") if brokers.across else route.aside
    there.declare_exchange(exchange, {"alternate-exchange": alternate} if alternate else {})
    if target:
        there.bind(target, exchange)


def look(
    brokers: Brokers, route: Route, management: Management | None, to_management: Management | None
) -> Inspection:
    """
    Say whether the move can be exact, and what may go wrong with it; bind a target again that was declared anew.

    Args:
        management: The source's; None: nothing is seen of it.
        to_management: The target's, the same where it is one broker.

    Raises:
        TopologyError: a queue is missing, or the source is a stream.
        BrokerUnavailableError: nobody answers.
    """
    with brokers.open() as (here, there):
        source, target = _Side(here, management), _Side(there, to_management)
        version = here.version
        for broker, queue in ((here, route.source), (there, route.target), (there, route.ledger)):
            if queue and broker.count(queue) is None:
                raise TopologyError(
                    missing("queue", queue, "it was deleted; declare it, or start the move again")
                )
        if route.target:
            there.bind(route.target, route.forward)
    source_type, warnings = _look_at_source(source, route, version)
    return evolve(_look_at_target(brokers, target, route), warnings=warnings, source_type=source_type)


class _Side:
    """
    One broker, and the API that tells more of it.
    """

    def __init__(self, broker: Administration, management: Management | None) -> None:
        self.vhost = broker.vhost
        self._cluster = broker.cluster
        self._management = management

    def management(self) -> Management:
        """
        Return the API.

        Raises:
            ConfigError: none is named, or it is another broker's.
        """
        if self._management is None:
            raise ConfigError("no management API is named")
        # By default it is looked for beside the broker, where another one's may be.
        if (answers := self._management.cluster()) != self._cluster:
            raise ConfigError(
                f"the management API at {self._management.url} belongs to cluster {answers!r}, not to {self._cluster!r}: "
                "name the right one"
            )
        return self._management


def _look_at_source(side: _Side, route: Route, version: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
    """
    Return the type of the source, and what may go wrong with it.
    """
    try:
        source = side.management().queue(side.vhost, route.source)
    except (BrokerUnavailableError, ConfigError):
        return "", ()
    if source is not None and source.type == "stream":
        raise TopologyError(f"queue {route.source!r} is a stream: nothing can be taken out of it")
    return ("", ()) if source is None else (source.type, tuple(risks_of_source(source, version)))


def _look_at_target(brokers: Brokers, side: _Side, route: Route) -> Inspection:
    try:
        management = side.management()
        if not route.target:
            return Inspection("", exact_possible=False, reason="there are many targets")
        target = management.queue(side.vhost, route.target)
        if target is None:
            raise TopologyError(missing("queue", route.target, "declare it first"))
        # The trash is a stream, which refuses nothing: only the target decides.
        exact, reason = exactness(target, target, management.nodes())
    except (BrokerUnavailableError, ConfigError) as error:
        setting = "to_management" if brokers.across else "management"
        reason = f"neither policies nor arguments of the target can be seen ({setting} = URL): {error}"
        return Inspection("", exact_possible=False, reason=reason)
    return Inspection(target.type, exact, reason, refuses(target))


class Origins:
    """
    The exchanges that lead to the queues messages go back to, each declared when it is needed first.
    """

    def __init__(self, brokers: Brokers, route: Route) -> None:
        self._brokers = brokers
        self._route = route
        #: Queue -> exchange.
        self.found: dict[str, bytes] = {}

    def find(self, queue: str) -> bytes:
        """
        Return the exchange that leads to *queue*; empty bytes where there is no such queue.
        """
        exchange = self._route.each + queue
        is_source = queue == self._route.source and not self._brokers.across
        if is_source or len(exchange.encode()) > _NAME_BYTES_MAX:
            return b""
        if queue not in self.found:
            with administration(self._brokers.into) as there:
                if there.count(queue) is None:
                    return b""
                lead(self._brokers, there, self._route, exchange, queue)
            self.found[queue] = exchange.encode()
        return self.found[queue]


def take_down(brokers: Brokers, route: Route, origins: Iterable[str] = ()) -> None:
    """
    Delete what build() made, and never the trash: RabbitMQ says late how much is in a stream, and 0 until then.

    Args:
        origins: Queues that messages went back to.

    Raises:
        TopologyError: messages that found no queue at all are in the ledger; nothing was deleted.
    """
    each = [route.each + origin for origin in origins]
    with brokers.open() as (here, there):
        if strays := there.count_from(route.ledger, (*route.leading, *each)):
            raise TopologyError(
                f"queue {route.ledger!r} holds {strays} messages that found neither target nor trash: run the move again"
            )
        for exchange in (*each, route.forward):
            there.delete_exchange(exchange)
        here.delete_exchange(route.aside)
        there.delete_exchange(route.strays)
        there.delete_queue(route.ledger)


def _wait_until_free(broker: Administration, queue: str, held: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while (counted := broker.count(queue)) is not None and counted.consumers:
        if time.monotonic() > deadline:
            raise TopologyError(held)
        time.sleep(_POLL_S)


def _check_names(brokers: Brokers, route: Route) -> None:
    if route.source == route.target and not brokers.across:
        raise ConfigError(f"source and target are one queue, {route.source!r}")
    longest = max(len(name.encode()) for name in (route.ledger, route.strays))
    if not route.source or longest > _NAME_BYTES_MAX:
        room = _NAME_BYTES_MAX - (longest - len(route.source.encode()))
        raise ConfigError(f"a source's name has 1 to {room} bytes, this one has {len(route.source.encode())}")
