"""What the relay's drivers offer each other: the message record and the store's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from attrs import frozen

from dedup.core.records import State
from dedup.core.retry_steps import Entry, Item, Kept
from dedup.core.steps import Save


@frozen
class Claim:
    """
    What a relay gets when it takes a queue's state over.
    """

    #: Its fencing token; every write with a lower one is refused from now on.
    token: int
    #: What the relay before left, None when there is nothing.
    state: State | None
    #: Redis is another process than the one that state was written to.
    restarted: bool


class Store(Protocol):
    """
    Where a relay keeps its state; one guarded queue each.

    Every call either has its effect completely or not at all, and may be repeated when its
    answer was lost.

    Raises:
        StoreUnavailableError: no answer, or no space; repeat the call.
        StoreFencedError: another relay holds a higher token; stop.
        StateFormatError: the state was written by an unknown version.
    """

    def claim(self, token_min: int) -> Claim:
        """
        Raise the token to at least *token_min*, above every token before, and read the state.
        """

    def save(self, save: Save) -> bool:
        """
        Write what changed; False when the store is behind and changed nothing.
        """

    def replace(self, token: int, state: State) -> None:
        """
        Write the whole state over whatever is there.
        """

    def close(self) -> None:
        """
        Give the connection back.
        """


class DeadLetter(NamedTuple):
    """
    One dead letter, byte for byte.
    """

    exchange: bytes
    routing_key: bytes
    #: Property flags and list, encoded.
    properties: bytes
    body: bytes


@frozen
class MoveFacts:
    """
    What is seen of the source of a move at once, whatever its length.
    """

    #: Messages that wait.
    backlog: int
    #: Deliveries that are under way: not acknowledged yet.
    in_flight: int
    #: Deliveries that are not wanted, held until the end.
    skipped: int


@frozen
class ScheduleFacts:
    """
    How full a schedule is, and how late.
    """

    messages: int
    bytes: int
    #: Messages that are due and not claimed.
    overdue: int
    #: How long the oldest of them has been due; seconds.
    late_s: float
    #: There is room for more, with some to spare.
    room: bool


class Schedule(Protocol):
    """
    Where dead letters wait for their next attempt; sessions of one dead-letter queue share it.

    Every call either has its effect completely or not at all, and may be repeated when its answer was lost.

    Raises:
        StoreUnavailableError: no answer, or no memory; repeat the call.
        StoreFencedError: the session is not known: it must end.
        StateFormatError: a message was written by another version.
    """

    def enter(self, session: str) -> None:
        """
        Make *session* known; its fence is held already.
        """

    def store(self, session: str, number: int, entries: Sequence[Entry]) -> Sequence[Kept]:
        """
        Write down the first of *entries*, as many as there is room for; *number* rises by one with each batch.
        """

    def forget(self, session: str, digests: Sequence[bytes]) -> None:
        """
        Forget digests of letters that are acknowledged for good.
        """

    def claim(self, session: str, at_most: int, bytes_at_most: int) -> Sequence[Item]:
        """
        Take what is due, the oldest first, one at least; what the session has claimed and not settled comes again.
        """

    def settle(self, session: str, done: Sequence[str], refused: Sequence[str], delay_s: float) -> None:
        """
        Delete what was published; what was refused is due again after *delay_s* seconds.
        """

    def sessions(self) -> Sequence[str]:
        """
        Return the names of all sessions.
        """

    def recover(self, session: str) -> int:
        """
        Take a session out whose fence is gone; what it had claimed is due again, as doubtful.
        """

    def facts(self) -> ScheduleFacts:
        """
        Return how full it is.
        """

    def close(self) -> None:
        """
        Give the connection back.
        """
