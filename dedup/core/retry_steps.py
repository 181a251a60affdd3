"""What a retrier hears (events) and what it asks its drivers to do (effects)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import define, frozen

from dedup.core.deaths import DeathHistory
from dedup.core.obituaries import Reason


@define(eq=False)
class Letter:
    """
    One dead letter as it was delivered, as far as the retrier needs to understand it.
    """

    #: Delivery tag: ascending within a session.
    tag: int
    #: Of everything in the message that stays the same when it is delivered again.
    digest: bytes
    #: It names its publisher and its number: equal digests are the same message, not a twin of it.
    stamped: bool
    history: DeathHistory
    #: How often it was retried before; None: what it says cannot be read.
    retries: int | None
    #: Bytes that it takes in the schedule.
    size: int
    #: A random number in [0, 1).
    jitter: float = 0.0
    #: What the driver needs to pass the message on; the retrier never looks inside.
    payload: Any = None


@define(eq=False)
class Entry:
    """
    One message on its way into the schedule, or past it.
    """

    letter: Letter
    #: The queue it goes back to, or that it died in for good; empty: nobody knows that one.
    queue: str
    #: Why it gets an obituary; None: it is retried.
    reason: Reason | None = None
    #: Which retry this is, from 1; of an obituary how often it was retried.
    attempt: int = 0
    delay_s: float = 0.0
    #: Too large for the schedule: it is written down that it is under way, and nothing more.
    direct: bool = False
    #: How many letters with the same digest this session has written down and not forgotten.
    own: int = 0


@define(eq=False)
class Item:
    """
    One message on its way out.
    """

    #: Its name in the schedule; empty: it never was there, *tag* is to be acknowledged when it is stored.
    id: str
    queue: str
    #: Why it gets an obituary; None: it is retried.
    reason: Reason | None = None
    #: As in its entry.
    attempt: int = 0
    #: It may be there already: it carries ``dedup-possible-duplicate``.
    marked: bool = False
    payload: Any = None
    tag: int = 0
    digest: bytes = b""


class Kept(Enum):
    """
    What the schedule says to one entry.
    """

    #: It is written down, for the first time as far as anybody can tell.
    NEW = "n"
    #: It may be there already: a copy of it was written down and its acknowledgement is not known to have arrived.
    #: It is written down once more, marked.
    DOUBTFUL = "d"
    #: It is there already.
    KNOWN = "k"


class Sent(Enum):
    """
    What the broker says to one item.
    """

    STORED = "stored"
    #: There is no such queue.
    RETURNED = "returned"
    #: The queue did not take it; it is not there.
    REFUSED = "refused"
    #: It cannot be encoded for this broker, whatever is tried.
    IMPOSSIBLE = "impossible"


# -- events ---------------------------------------------------------------------------------------


@frozen
class Started:
    """Both connections are open, and the broker holds the fence of this session."""


@frozen
class Registered:
    """The schedule knows this session."""

    #: There is room for more.
    room: bool


@frozen
class Arrived:
    """Dead letters were delivered."""

    letters: Sequence[Letter]


@frozen
class Stored:
    """The schedule has taken the first entries of a batch; the others find no room."""

    kept: Sequence[Kept]


@frozen
class Probed:
    """The broker has taken every ack that was sent before the probe."""


@frozen
class Claimed:
    """These messages are due, and this session's to publish."""

    items: Sequence[Item]


@frozen
class Published:
    """Every item of a batch has its answer."""

    sent: Sequence[Sent]


@frozen
class Settled:
    """The schedule knows what became of the batch."""


@frozen
class Looked:
    """How full the schedule is."""

    room: bool


@frozen
class Ticked:
    """Time has passed."""


@frozen
class StopRequested:
    """Finish what is under way and end."""


@frozen
class Closed:
    """Both connections are closed in order."""


Event = (
    Started
    | Registered
    | Arrived
    | Stored
    | Probed
    | Claimed
    | Published
    | Settled
    | Looked
    | Ticked
    | StopRequested
    | Closed
)


# -- effects --------------------------------------------------------------------------------------


@frozen
class Register:
    """Make this session known to the schedule; the answer is Registered."""


@frozen
class Consume:
    """Begin to take dead letters, or go on."""


@frozen
class Pause:
    """Take no more dead letters; those that have come stay."""


@frozen
class GiveBack:
    """Return dead letters to their queue: there will be no room for them soon."""

    tags: Sequence[int]


@frozen
class Store:
    """Write a batch down, all it has room for in one piece; the answer is Stored."""

    #: Of this session, rising by one: an entry whose answer was lost is not written twice.
    number: int
    entries: Sequence[Entry]


@frozen
class Forget:
    """Forget digests: their letters are acknowledged for good."""

    digests: Sequence[bytes]


@frozen
class Ack:
    """Acknowledge dead letters."""

    tags: Sequence[int]


@frozen
class Probe:
    """Ask the broker something behind the acks, on their channel; the answer is Probed."""


@frozen
class Claim:
    """Take what is due, the oldest first; the answer is Claimed."""

    at_most: int
    #: Of all messages together; one that is larger comes alone.
    bytes_at_most: int


@frozen
class Publish:
    """Publish items and wait for the answer to each; the answer is Published."""

    items: Sequence[Item]


@frozen
class Settle:
    """Delete what is stored, put back what was refused; the answer is Settled."""

    done: Sequence[str]
    refused: Sequence[str]
    #: Until a refused item is due again; seconds.
    delay_s: float


@frozen
class Look:
    """See how full the schedule is; the answer is Looked."""


@frozen
class Sweep:
    """Find sessions whose connection is dead, and put what they had taken back, as doubtful."""


@frozen
class Notice:
    """Tell an operator."""

    name: str
    facts: Mapping[str, Any]


@frozen
class Unregister:
    """Take this session out of the schedule: it has nothing under way."""


@frozen
class Close:
    """Close both connections in order; the answer is Closed."""


@frozen
class End:
    """End the session."""


Effect = (
    Register
    | Consume
    | Pause
    | GiveBack
    | Store
    | Forget
    | Ack
    | Probe
    | Claim
    | Publish
    | Settle
    | Look
    | Sweep
    | Notice
    | Unregister
    | Close
    | End
)
