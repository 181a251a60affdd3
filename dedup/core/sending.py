"""What a sender is told (settings), what it hears (events) and what it asks its driver to do (effects)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from attrs import define, frozen

from dedup.core.backoff import DELAY_S_FIRST, DELAY_S_MAX
from dedup.core.window import WINDOW_SIZE
from dedup.errors import DedupError


class Place(Enum):
    """
    Where a message stands.
    """

    #: Submitted, never sent.
    WAITING = "waiting"
    #: Published on the channel of now, its confirm is awaited.
    IN_FLIGHT = "in-flight"
    #: The broker refused it for now (nack); it is sent again when its delay is over.
    NACKED = "nacked"
    #: Its channel is gone, or its caller asked: it goes out before anything new.
    RESEND = "resend"
    #: The broker has it, and its caller knows.
    CONFIRMED = "confirmed"
    #: Its caller was told of a failure; nothing is sent any more unless the caller retries.
    GIVEN_UP = "given-up"
    #: Given up because no queue took it: the ack that follows means nothing.
    RETURNED = "returned"
    #: Given up, then confirmed after all.
    CONFIRMED_LATE = "confirmed-late"


@define(eq=False)
class Message:
    """
    One message on its way; the sender alone changes the fields below *deadline*.
    """

    sequence: int
    exchange: str
    routing_key: str
    #: What the driver sends; the sender never looks inside.
    content: Any
    #: Bytes it holds in memory.
    size: int
    #: When its caller gives up, on the clock of the events; None waits as long as it takes.
    deadline: float | None = None
    #: How often it was sent so far.
    attempts: int = 0
    nacks: int = 0
    #: Why the last one came, where the broker told.
    nack_reason: str = ""
    #: How often the broker closed the channel with nothing but this message on it.
    refusals: int = 0
    sent_at: float = 0.0
    first_sent_at: float = 0.0
    place: Place = Place.WAITING


@frozen
class SenderSettings:
    """
    The limits of one sender.
    """

    publisher_id: str
    #: Window of the shim; half of it is the largest distance of a re-send.
    window_size: int = WINDOW_SIZE
    #: Messages unconfirmed at the most; up to half of the window.
    unconfirmed_max: int = WINDOW_SIZE // 2
    #: Silence about the oldest message in flight after which its connection counts as dead; seconds.
    confirm_timeout_s: float = 30.0
    #: Time for an Open to be answered; seconds.
    open_timeout_s: float = 30.0
    reconnect_delay_s_first: float = DELAY_S_FIRST
    reconnect_delay_s_max: float = DELAY_S_MAX
    #: Given-up messages kept for a retry, and their bytes.
    kept_max: int = WINDOW_SIZE
    kept_bytes_max: int = 64 * 1024 * 1024


# -- events ---------------------------------------------------------------------------------------


@frozen
class Submitted:
    """New messages; one below the highest so far fills a gap, at most half a window below what was sent."""

    messages: Sequence[Message]


@frozen
class RetryAsked:
    """The caller of a message that was given up wants it sent again."""

    sequence: int
    deadline: float | None = None


@frozen
class Opened:
    """The answer to Open: a channel in confirm mode."""


@frozen
class Lost:
    """The other answer to Open, or the end of an open channel: the connection is gone."""

    reason: str
    #: A random number in [0, 1).
    jitter: float = 0.0


@frozen
class Refused:
    """The broker closed the channel, or the connection, for something it was sent."""

    code: int
    text: str
    #: A random number in [0, 1).
    jitter: float = 0.0


@frozen
class Confirms:
    """What one read from the socket brought: (tag, multiple, whether it is an ack), in order."""

    confirms: Sequence[tuple[int, bool, bool]]
    #: A random number in [0, 1).
    jitter: float = 0.0
    #: Why some are nacks, where the protocol tells (AMQP 1.0).
    reason: str = ""


@frozen
class Returned:
    """The broker gave a message back: no queue took it (312), or it refused this one for good. Its ack follows."""

    sequence: int
    code: int
    text: str


@frozen
class Blocked:
    """The broker takes no publishes for now (an alarm)."""

    reason: str


@frozen
class Unblocked:
    """The alarm is over."""


@frozen
class Tick:
    """Time has passed; every event says so too."""


@frozen
class Stopped:
    """Nothing more is sent; whatever is unconfirmed fails now."""

    #: What ended it; None: the caller closed it.
    error: DedupError | None = None


Event = (
    Submitted
    | RetryAsked
    | Opened
    | Lost
    | Refused
    | Confirms
    | Returned
    | Blocked
    | Unblocked
    | Tick
    | Stopped
)


# -- effects --------------------------------------------------------------------------------------


@frozen
class Open:
    """Open a channel in confirm mode: on the connection if it lives, else on one to the next host."""


@frozen
class Drop:
    """Abandon channel and connection at once; nothing from them counts any more."""

    reason: str


@frozen
class Send:
    """Publish these in this order, in one write; *attempts* of each counts this one."""

    messages: Sequence[Message]


@frozen
class Confirmed:
    """The broker has these: their callers have succeeded."""

    messages: Sequence[Message]


@frozen
class Failed:
    """The caller of this sequence is told of *error*."""

    sequence: int
    error: DedupError


@frozen
class Notice:
    """Something an operator wants to know; *name* is the log event."""

    name: str
    facts: dict[str, Any]


Effect = Open | Drop | Send | Confirmed | Failed | Notice
