"""
Number the messages of somebody else's client, and hold it to the rules that keep its re-sends inside the window.

Theory of operation
-------------------
A message has one number from its first send to its last. It is unconfirmed from then until its client says what became of it.
The shim can tell a re-send from a new message while it is inside the window, so two rules are kept here, and a client that
would break one is stopped before it has published anything:

    new number      only if it is at most half a window above the oldest unconfirmed one; the other half is for what the
                    broker still has of an old connection
    channel lost    everything unconfirmed is due again, oldest first, and nothing new before all of it: so the first copies
                    arrive in the order of their numbers

A number that is confirmed or given up holds nobody back any more. The clock comes with the calls.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from attrs import frozen

from dedup.core.failures import expired
from dedup.core.identity import (
    ATTEMPT_HEADER,
    FIRST_SENT_HEADER,
    PUBLISHER_HEADER,
    SEQUENCE_HEADER,
    Receipt,
    validate_sequence,
)
from dedup.errors import InvalidIdentityError, InvalidMessageError, OutOfTurnError, WindowFullError


@frozen
class Stamp(Receipt):
    """
    What one send of a message carries, and a receipt for it.
    """

    #: When it was sent first, in milliseconds since 1970; 0 when nobody remembers.
    first_sent_ms: int = 0

    @property
    def app_id(self) -> str:
        """
        The AMQP property ``app_id``.
        """
        return self.publisher_id

    @property
    def headers(self) -> dict[str, int]:
        """
        The headers to add to the message's own.
        """
        headers = {SEQUENCE_HEADER: self.sequence}
        if self.attempts > 1:
            headers[ATTEMPT_HEADER] = self.attempts
            if self.first_sent_ms:
                headers[FIRST_SENT_HEADER] = self.first_sent_ms
        return headers

    @property
    def headers_alone(self) -> dict[str, int | str]:
        """
        The headers to add where ``app_id`` is taken, or cannot be set: they name the publisher too.
        """
        return {PUBLISHER_HEADER: self.publisher_id, **self.headers}


class Numbering:
    """
    Decide which number is next, and whether it is its turn.

    Args:
        publisher_id: valid.
        base: the first number is the one after it.
        window_size: the window of the shim, at least 2.
    """

    def __init__(self, publisher_id: str, *, base: int, window_size: int) -> None:
        self._publisher_id = publisher_id
        self._span = window_size // 2
        self.newest = base
        self._unconfirmed: dict[int, Stamp] = {}
        #: A heap of what is in there; settled numbers are removed when they come to the top.
        self._oldest: list[int] = []
        #: What must be sent again before anything new, oldest first; may hold settled numbers.
        self._due: deque[int] = deque()

    def new(self, now_ms: int, sequence: int | None = None) -> Stamp:
        """
        Return the stamp of a new message, with its own *sequence* or the next one.

        Raises:
            OutOfTurnError: something must be sent again first.
            WindowFullError: too far above the oldest unconfirmed one.
            InvalidMessageError: *sequence* is no number, or not above the newest; or there is none left.
        """
        if self._first_due() is not None:
            raise self._out_of_turn("a new message")
        try:
            number = validate_sequence(self.newest + 1 if sequence is None else sequence)
        except InvalidIdentityError as error:
            raise InvalidMessageError(str(error)) from error
        if number <= self.newest:
            raise InvalidMessageError(
                f"sequence {number} is not above the newest, {self.newest}: numbers rise; again() sends one again"
            )
        oldest = self._first_unconfirmed()
        if oldest is not None and number - oldest > self._span:
            raise WindowFullError(
                f"sequence {number} would be more than {self._span} above {oldest}, which is not confirmed; wait for its "
                "confirm, send it again, or give it up",
                oldest=self._unconfirmed[oldest],
                unconfirmed=len(self._unconfirmed),
            )
        stamp = Stamp(self._publisher_id, number, 1, now_ms)
        self.newest = number
        self._remember(stamp)
        return stamp

    def again(self, receipt: Receipt) -> Stamp:
        """
        Return the stamp of a re-send: the same number, the next attempt.

        Raises:
            OutOfTurnError: an older one must be sent again first.
            ReceiptExpiredError: so far below the newest that the shim may take it for too old.
            InvalidMessageError: another publisher's, or never given out.
        """
        self._check(receipt)
        number = receipt.sequence
        due = self._first_due()
        if due is not None and number > due:
            raise self._out_of_turn(f"sequence {number}")
        if self.newest - number > self._span:
            raise expired(receipt, self.newest, self._span)
        known = self._unconfirmed.get(number)
        before = known or receipt
        first_sent_ms = before.first_sent_ms if isinstance(before, Stamp) else 0
        stamp = Stamp(
            self._publisher_id, number, max(before.attempts, receipt.attempts, 1) + 1, first_sent_ms
        )
        if number == due:
            self._due.popleft()
        self._remember(stamp)
        return stamp

    def settle(self, receipt: Receipt) -> None:
        """
        Let a message hold nobody back any more: it is confirmed, or given up.

        Raises:
            InvalidMessageError: another publisher's, or never given out.
        """
        self._check(receipt)
        self._unconfirmed.pop(receipt.sequence, None)
        self._first_unconfirmed()

    def lose(self) -> list[Stamp]:
        """
        Make everything unconfirmed due again, and return it, oldest first: its channel is gone.
        """
        self._due = deque(sorted(self._unconfirmed))
        return self.unconfirmed()

    def unconfirmed(self) -> list[Stamp]:
        """
        Return the newest stamp of each unconfirmed message, oldest message first.
        """
        return [stamp for _, stamp in sorted(self._unconfirmed.items())]

    def _remember(self, stamp: Stamp) -> None:
        if stamp.sequence not in self._unconfirmed:
            heappush(self._oldest, stamp.sequence)
        self._unconfirmed[stamp.sequence] = stamp

    def _first_unconfirmed(self) -> int | None:
        while self._oldest and self._oldest[0] not in self._unconfirmed:
            heappop(self._oldest)
        return self._oldest[0] if self._oldest else None

    def _first_due(self) -> int | None:
        while self._due and self._due[0] not in self._unconfirmed:
            self._due.popleft()
        return self._due[0] if self._due else None

    def _check(self, receipt: object) -> None:
        if not isinstance(receipt, Receipt):
            raise InvalidMessageError(f"pass the stamp, or its receipt, not {type(receipt).__name__}")
        if receipt.publisher_id != self._publisher_id:
            raise InvalidMessageError(
                f"the receipt belongs to publisher {receipt.publisher_id!r}, this is {self._publisher_id!r}"
            )
        if receipt.sequence > self.newest:
            raise InvalidMessageError(
                f"sequence {receipt.sequence} was never given out; the newest is {self.newest}"
            )

    def _out_of_turn(self, what: str) -> OutOfTurnError:
        due = self._due[0]
        return OutOfTurnError(
            f"{what} must wait: the channel was lost, and sequence {due} goes first; send again what lost() returned, in its order",
            oldest=self._unconfirmed[due],
        )
