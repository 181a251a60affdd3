"""Look at the messages of a queue without taking any: what would move, and where it died."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from attrs import frozen

from dedup.amqp091.administration import administration
from dedup.amqp091.conversation import Line, conversation
from dedup.amqp091.inspection import missing
from dedup.amqp091.move_messages import seen_of
from dedup.core.filters import Filter
from dedup.errors import TopologyError

#: Messages that are looked at: all of them are held meanwhile.
LOOKED_AT_MAX: Final = 20_000
#: How long a message that was counted is waited for; somebody else may have taken it. Seconds.
_IDLE_S: Final = 1.0


@frozen
class Died:
    """
    How many of the messages that would move died first in one queue for one reason.
    """

    #: Empty: they never died.
    queue: str
    reason: str
    messages: int


@frozen
class Sample:
    """
    What a look has found.
    """

    #: Ready messages when it began.
    waiting: int
    looked_at: int
    wanted: int
    #: The most frequent first.
    deaths: tuple[Died, ...]


def sample(amqp: str, queue: str, wanted: Filter, limit: int | None) -> Sample:
    """
    Look at up to `LOOKED_AT_MAX` messages of *queue*; all of them go back to their places, flagged as redelivered.

    Args:
        limit: Stop when so many would move.

    Raises:
        TopologyError: there is no such queue.
        BrokerUnavailableError: the broker is lost.
    """
    with administration(amqp) as broker:
        counted = broker.count(queue)
    if counted is None:
        raise TopologyError(missing("queue", queue, "declare it first"))
    looked_at = 0
    deaths: Counter[tuple[str, str]] = Counter()
    with conversation(amqp, name="dedup move, dry run") as talk:
        line = Line(talk)
        line.consume(queue, prefetch=LOOKED_AT_MAX)
        while looked_at < min(counted.messages, LOOKED_AT_MAX) and (limit is None or deaths.total() < limit):
            delivery = line.take(_IDLE_S)
            if delivery is None:
                break
            looked_at += 1
            seen = seen_of(delivery.properties)
            if wanted.matches(seen, int(time.time() * 1000)):
                first = seen.history.deaths[-1] if seen.history.deaths else None
                deaths["" if first is None else first.queue, "" if first is None else first.reason] += 1
        line.cancel()
    rows = tuple(Died(*where, count) for where, count in deaths.most_common())
    return Sample(counted.messages, looked_at, deaths.total(), rows)
