"""Tell the broker that a move takes from and the one that it moves into, which are often one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from attrs import evolve, field, frozen

from dedup.amqp091.administration import Administration, administration
from dedup.amqp091.parameters import connection_parameters
from dedup.core import names
from dedup.core.names import Route
from dedup.errors import TopologyError

_RESOURCE_LOCKED = 405
_DIGEST_BYTES = 6


@frozen
class Brokers:
    """
    Where a move takes from, and where it moves into.
    """

    #: ``amqp://`` or ``amqps://``; several hosts of one cluster separated by commas.
    source: str = field(repr=False)
    #: The same; empty: the source's.
    target: str = field(default="", repr=False)

    @property
    def across(self) -> bool:
        """
        Say whether there are two of them.
        """
        return bool(self.target)

    @property
    def into(self) -> str:
        """
        Return the URL of the one that is moved into.
        """
        return self.target or self.source

    @contextmanager
    def open(self) -> Iterator[tuple[Administration, Administration]]:
        """
        Give an :class:`Administration` of each, twice the same where they are one.

        Raises:
            ConfigError: a URL that cannot be used.
        """
        with administration(self.source) as here:
            if not self.across:
                yield here, here
                return
            with administration(self.target) as there:
                yield here, there

    def settled(self, source: str) -> Brokers:
        """
        Return them, as one if both URLs lead to the same virtual host of one cluster, however they are spelled.

        Args:
            source: The queue that is moved out of: what tells them apart is named after it.

        Raises:
            BrokerUnavailableError: one of them does not answer.
            ConfigError: a URL that cannot be used.
        """
        if not self.across:
            return self
        one = evolve(self, target="")
        if _places(self.source) & _places(self.target):
            return one
        with self.open() as (here, there):
            # Names can be alike without being one's.
            if (here.cluster, here.vhost) == (there.cluster, there.vhost) and _see_the_same(
                here, there, source
            ):
                return one
        return self

    def route(self, source: str, target: str) -> Route:
        """
        Return the way between two queues of theirs; asks the source's broker for its name where they are two.
        """
        if not self.across:
            return names.moving(source, target)
        with administration(self.source) as here:
            known = f"{len(here.cluster)} {here.cluster} {here.vhost}".encode()
        return names.moving_across(source, target, blake2b(known, digest_size=_DIGEST_BYTES).hexdigest())


def _places(amqp: str) -> set[tuple[str, int, str]]:
    return {
        (str(single.host).lower(), int(single.port), str(single.virtual_host))
        for single in connection_parameters(amqp, name="dedup administration")
    }


def _see_the_same(here: Administration, there: Administration, source: str) -> bool:
    """
    Say whether a queue that is declared over one connection is seen over the other; it goes with the connection.
    """
    probe = f"{names.moves(source)}.probe.{uuid.uuid4().hex}"
    here.declare_own(probe)
    try:
        return there.count(probe) is not None
    except TopologyError as error:
        # It is there, and another connection's.
        if getattr(error, "reply_code", 0) == _RESOURCE_LOCKED:
            return True
        raise
