"""What the relay's drivers offer each other: the message record and the store's protocol."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from dedup.core.records import State
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
