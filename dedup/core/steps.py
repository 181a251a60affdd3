"""What a relay hears (events) and what it asks its drivers to do (effects)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Factory, define, frozen

from dedup.core.message_ids import KEY_SEQUENCE
from dedup.core.publishers import Changes
from dedup.core.questions import Question, Standing
from dedup.core.records import BEGINNING, Batch, Leadership, Marker, Position, State
from dedup.core.returns import Reentry
from dedup.core.window import Verdict


@define
class Arrival:
    """
    One delivery from the ingress, as far as the relay needs to understand it.
    """

    #: Delivery tag: ascending within a session.
    tag: int
    #: The broker says it may have been delivered before; a hint, never proof.
    redelivered: bool
    #: None when the message carries no publisher id; of a message told by its id: the key of that.
    publisher: str | None
    #: None when the message carries no sequence.
    sequence: int | None
    #: How often the publisher sent it, as far as it says.
    attempt: int = 1
    #: When it was sent first, by the publisher's clock; unix milliseconds, 0: it does not say.
    first_sent_ms: int = 0
    #: Why the stamp cannot be believed; empty when it can.
    fault: str = ""
    #: It was dead-lettered from the target and routed back.
    returning: bool = False
    #: Size of the body in bytes.
    size: int = 0
    #: What the driver needs to pass the message on; the relay never looks inside.
    payload: Any = None
    #: Digest of the body (bodies.py); empty where bodies are not compared.
    digest: bytes = b""
    #: It is no message but a question.
    question: Question | None = None
    #: Its publisher wants to be told what becomes of it.
    wants_receipt: bool = False
    #: What tells copies of its way back from its next one; None: it is not returning, or nothing tells.
    reentry: Reentry | None = None

    @property
    def known_by(self) -> tuple[str, int] | None:
        """
        Return the name and the number that it is remembered by once it is forwarded; None: by nothing.
        """
        if self.reentry is not None:
            return self.reentry.key, KEY_SEQUENCE
        if self.publisher is None or self.sequence is None:
            return None
        return self.publisher, self.sequence


@define
class Outgoing:
    """
    One message on its way out.
    """

    arrival: Arrival
    verdict: Verdict
    #: Why it goes to quarantine; empty: it goes to the target.
    reason: str = ""
    #: It carries ``dedup-possible-duplicate``.
    marked: bool = False
    #: Pass on the body with fresh properties: the broker refused the ones it has.
    stripped: bool = False
    #: How far it lay behind its publisher's newest; -1: it came in order. None: nobody knows or asks.
    depth: int | None = None


@frozen
class Record:
    """
    What the audit is told of one batch: one row for each arrival, numbered from 1 for each token without a hole.
    """

    token: int
    #: Number of the batch.
    batch: int
    #: Number of the first row.
    offset: int
    #: The last row before it.
    before: Position
    #: When the batch was judged; unix seconds.
    at_s: float
    #: Publisher id and sequence of what markers of parts prove of a dead relay's batch; they come first.
    recovered: Sequence[tuple[str, int]]
    #: Every arrival of the batch, in order.
    rows: Sequence[Outgoing]

    @property
    def end(self) -> Position:
        """
        Return the last row of it.
        """
        return Position(self.token, self.offset + len(self.recovered) + len(self.rows) - 1)


# -- events ---------------------------------------------------------------------------------------


@frozen
class Started:
    """The session begins: both connections are open and the fence is held."""


@frozen
class Claimed:
    """The answer to Claim."""

    token: int
    state: State | None
    restarted: bool


@frozen
class MarkerArrived:
    """A message of the ledger was delivered; *marker* is None when it is not one."""

    tag: int
    marker: Marker | None


@frozen
class StrayArrived:
    """A message of the ledger that neither the target nor the quarantine took; *payload* is for the driver."""

    tag: int
    payload: Any


@frozen
class Surveyed:
    """The answer to Survey."""

    #: None when nobody knows, or where markers of parts prove nothing.
    leadership: Leadership | None
    #: What this session publishes reaches the leader without a link between nodes, which may lose it.
    local: bool = True


@frozen
class Anchored:
    """The answer to Anchor: the broker has it."""


@frozen
class Saved:
    """The answer to Save and Replace: Redis has it."""


@frozen
class StoreBehind:
    """The other answer to Save: Redis has lost writes and changed nothing."""


@frozen
class Arrived:
    """Deliveries of the ingress, in order."""

    arrivals: Sequence[Arrival]


@frozen
class Forwarded:
    """The answer to Forward: all of it is stored."""


@frozen
class Refused:
    """The other answer to Forward: these (indexes into its outgoing) were refused, the rest is stored."""

    indexes: Sequence[int]


@frozen
class CommitPartial:
    """The third answer to Forward: the broker does not say which of them it stored."""


@frozen
class Ticked:
    """Some time has passed; sent a few times a second."""


@frozen
class StopRequested:
    """Finish the batch, settle, and end."""


@frozen
class Closed:
    """The answer to Close: the broker has taken everything that was sent."""


Event = (
    Started
    | Claimed
    | MarkerArrived
    | StrayArrived
    | Surveyed
    | Anchored
    | Saved
    | StoreBehind
    | Arrived
    | Forwarded
    | Refused
    | CommitPartial
    | Ticked
    | StopRequested
    | Closed
)


# -- effects --------------------------------------------------------------------------------------


@frozen
class ClaimState:
    """Raise the token to at least *token_min* and read the state."""

    token_min: int


@frozen
class Survey:
    """Read who leads the target, now."""


@frozen
class Anchor:
    """
    Publish these strays, markers and the record in order, in one piece; release the ledger deliveries named.

    A stray goes marked to where it was going; its own ledger delivery is not released with it.
    """

    markers: Sequence[Marker]
    release: Sequence[int] = ()
    record: Record | None = None
    strays: Sequence[Any] = ()


@frozen
class Replace:
    """Write the whole state."""

    token: int
    state: State


@frozen
class Save:
    """Write what changed since the write before."""

    token: int
    #: Number of the newest settled batch.
    batch: int
    changes: Changes
    #: None: no batch is being forwarded.
    intent: Batch | None
    #: None: as it was.
    doubt: Mapping[str, frozenset[int]] | None = None
    #: What was believed is in the target: nothing can change that any more.
    proven: bool = False
    clean: bool = False
    #: The newest row of the audit that is stored.
    logged: Position = BEGINNING


@frozen
class Consume:
    """Begin to take deliveries from the ingress."""


@frozen
class Forward:
    """
    Publish these in order, then the record and the marker, and release the ledger deliveries named.

    With confirms record and marker follow when all of them are stored; markers in between do not wait.
    """

    outgoing: Sequence[Outgoing]
    marker: Marker
    release: Sequence[int] = ()
    #: How many of *outgoing* come before a marker in between, and that marker; in order.
    between: Sequence[tuple[int, Marker]] = ()
    #: None: there is no audit.
    record: Record | None = None


@frozen
class Ack:
    """Acknowledge every delivery of the ingress up to this tag."""

    tag: int


@frozen
class Answer:
    """Tell who asks how far a publisher has come."""

    question: Question
    standing: Standing


@frozen
class Receipts:
    """Tell *publisher* what became of messages that were not plainly forwarded: sequence, what, and why."""

    publisher: str
    told: Sequence[tuple[int, str, str]]


@frozen
class Close:
    """Close both connections in order, so that what was sent is taken."""


@frozen
class End:
    """The session is over; *reason* is empty after a stop that was asked for."""

    reason: str = ""
    #: The broker refused part of a transaction: this target needs confirms.
    partial: bool = False


@frozen
class Report:
    """What one batch did, for metrics and log."""

    verdicts: Mapping[Verdict, int] = Factory(dict)
    forwarded: int = 0
    quarantined: int = 0
    marked: int = 0
    evicted: Sequence[str] = ()
    #: Publishers remembered, and deliveries that wait for the next batch.
    publishers: int = 0
    waiting: int = 0
    #: Message ids remembered, and those forgotten before their time.
    message_ids: int = 0
    message_ids_forgotten: int = 0
    #: Messages with the sequence of another one.
    conflicts: int = 0
    #: Questions, which are no messages.
    questions: int = 0
    #: Deliveries wait for a proof that what they are copies of is in the target, and what came behind them waits too.
    unproven: bool = False


@frozen
class Notice:
    """Something an operator wants to know; *name* is the log event."""

    name: str
    facts: Mapping[str, Any] = Factory(dict)


Effect = (
    ClaimState
    | Survey
    | Anchor
    | Replace
    | Save
    | Consume
    | Forward
    | Ack
    | Answer
    | Receipts
    | Close
    | End
    | Report
    | Notice
)
