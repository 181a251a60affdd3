"""Give the messages of one publisher their numbers, or check the ones they come with."""

from __future__ import annotations

from collections.abc import Container

from dedup.core.identity import SEQUENCE_MAX, validate_sequence
from dedup.errors import InvalidIdentityError, InvalidMessageError


class Numbers:
    """
    The numbers of one publisher: counted here, or all of them its caller's own.

    Both would meet in one window, where the higher ones make the lower ones too old; so whoever has begun one way goes on with
    it. The caller's own ascend. A lower one fills a gap that a queue has, as long as it is at most *span* below the highest: a
    shim can tell it from a duplicate there.

    Args:
        span: Half of the window.
        newest: The highest number that is in the outbox or was; 0 for none.
        fills: Gaps may be filled; an outbox sends in the order of its numbers and cannot.
    """

    def __init__(self, span: int, *, newest: int = 0, fills: bool = True) -> None:
        self._span = span
        #: The highest one so far.
        self.newest = newest
        self._fills = fills
        self._base = newest
        #: Whose numbers these are; None: nothing has been numbered yet.
        self._given: bool | None = None

    def begin(self, base: int) -> None:
        """
        Count from *base*; but a clock that went back must not give numbers out twice.
        """
        self._base = max(base, self.newest)

    def take(self, sequence: int | None, pending: Container[int] = ()) -> int:
        """
        Return the number of the next message; *sequence* is its caller's own, None asks for one.

        Args:
            pending: Numbers of messages that are on their way.

        Raises:
            InvalidMessageError: it cannot have this one; nothing has changed.
        """
        if sequence is None:
            if self._given:
                raise InvalidMessageError(
                    f"this publisher's numbers are your own, {self.newest} was the highest: pass sequence= with every message"
                )
            following = max(self.newest, self._base) + 1
            if following > SEQUENCE_MAX:
                raise InvalidMessageError(
                    "every number up to 2^63 - 1 is used; go on under another publisher id, which begins anew"
                )
            self._given, self.newest = False, following
            return following
        self._check(sequence)
        if sequence in pending:
            raise InvalidMessageError(f"sequence {sequence} is still on its way; a number names one message")
        self._given = True
        self.newest = max(self.newest, sequence)
        return sequence

    def _check(self, sequence: int) -> None:
        if self._given is False:
            raise InvalidMessageError(
                "this publisher has numbered messages itself: leave sequence out, or use another publisher id for your own numbers"
            )
        try:
            validate_sequence(sequence)
        except InvalidIdentityError as error:
            raise InvalidMessageError(str(error)) from error
        behind = self.newest - sequence
        if behind < 0:
            return
        if not self._fills:
            raise InvalidMessageError(
                f"sequence {sequence} is not above {self.newest}, the highest that the outbox has had: messages of an outbox go in "
                "the order of their numbers; what is in it is on its way, go on above it"
            )
        if behind > self._span:
            raise InvalidMessageError(
                f"sequence {sequence} is {behind} below {self.newest}, the highest so far; a gap can be filled {self._span} below "
                "it at the most: publish in ascending order, or fill the gap with a publisher that begins there"
            )
