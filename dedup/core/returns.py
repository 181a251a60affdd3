"""
Tell another copy of a re-entry from the next death of its message.

A message that dies in the target may be routed back to the ingress. That is no duplicate of itself, but a copy of that way
back is: a broker that dead-letters at least once, a shovel, anything that sends again may bring one death twice.

What a broker writes of deaths cannot tell them apart. RabbitMQ 4 begins to count anew when a client (the shim) publishes a
dead letter, 3.10 counts on; times are whole seconds, so a message that is rejected at once dies twice with one history; and a
broker that sends a dead letter again gives it another time. So the shim counts by itself, in a header: a message that it
forwards for the n-th time after a return carries ``dedup-returns: n``. Who comes back without it comes back for the first time.
All copies of one re-entry carry the same count, and what is forwarded of them has the next one: its own death is another.

A re-entry is then known like a message id (message_ids.py), by what names the message and that count. Being known is proof
of a copy as long as the count travels with the name. A stamp's sequence is a header too, and what takes headers off leaves no
stamp behind. A message id or a group may be a property, which somebody may publish again straight to the target without any
header, and an id may come into use again. There a death that is younger than the re-entry that was forwarded may be another
one, and nobody can tell: :attr:`Reentry.died_s`.
"""

from __future__ import annotations

import math
from typing import Final

from attrs import frozen

from dedup.core.deaths import DeathHistory
from dedup.core.message_ids import message_key

#: More returns than this are not counted: no message comes back so often.
RETURNS_MAX: Final = 2**31 - 1
#: Nobody knows when; so it may have been after anything.
UNKNOWN_S: Final = math.inf
#: Sets its keys apart from every message id's.
_KIND: Final = b"return"


@frozen
class Reentry:
    """
    One way of a message from its death in the target back to the ingress.
    """

    #: What it is known by, in the space of message ids.
    key: str
    #: When the message died, if its count may have been taken off since it was last forwarded; unix seconds. 0: it cannot.
    died_s: float = 0.0


def reentry(publisher: str, sequence: int, returns: int, *, died_s: float = 0.0) -> Reentry:
    """
    Return the re-entry of a message that has come back *returns* times before.

    Args:
        publisher: Publisher id, or the key of a message id.
    """
    name = b"%d %d %b" % (returns, sequence, publisher.encode())
    return Reentry(message_key(name, kind=_KIND), died_s)


def counted(number: int | None) -> int | None:
    """
    Return *number* when it can say how often a message has come back, and one more can be counted; else None.
    """
    return number if number is not None and 0 <= number < RETURNS_MAX else None


def last_death_s(history: DeathHistory, queue: str) -> float:
    """
    Return when a message died in *queue* last, in unix seconds; of several deaths of one reason the first may be all that is told.
    """
    times_ms = [
        death.first_ms if death.last_ms is None else death.last_ms
        for death in history.deaths
        if death.queue == queue
    ]
    known_ms = [time_ms for time_ms in times_ms if time_ms is not None]
    if history.faults or not known_ms or len(known_ms) < len(times_ms):
        return UNKNOWN_S
    return max(known_ms) / 1000
