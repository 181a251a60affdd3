"""Decide which message of an outbox may be sent next: no row may fall behind what was sent by more than a window keeps."""

from __future__ import annotations

from heapq import heappop, heappush


class Gate:
    """
    Hold messages back until the rows far below them are deleted for good.

    After a crash every row that is still there is sent again. If one were further below the newest message that was
    ever sent than the shim's window reaches, the shim could not tell whether it had it, and would quarantine it. So a
    message is let out only when the oldest row, confirmed or not, is at most *span* below it; what counts is that its
    deletion is committed, not that the broker has confirmed it. A new range of numbers therefore begins when the rows
    of the old one are gone.

    Args:
        span: Largest distance between the oldest row and a message that is sent; half of the shim's window.
        bytes_max: Bytes of messages let out whose rows are still there; one message may always go.
    """

    def __init__(self, span: int, bytes_max: int) -> None:
        assert span >= 1, span
        self._span = span
        self._bytes_max = bytes_max
        #: May lag behind the rows.
        self._order: list[int] = []
        #: Row -> bytes it holds since it was let out; 0 before.
        self._rows: dict[int, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._rows

    @property
    def oldest(self) -> int | None:
        """
        The lowest sequence whose row is there; None when there is none.
        """
        while self._order and self._order[0] not in self._rows:
            heappop(self._order)
        return self._order[0] if self._order else None

    def enter(self, sequence: int) -> None:
        """
        Note a row.
        """
        assert sequence not in self._rows, sequence
        heappush(self._order, sequence)
        self._rows[sequence] = 0

    def lets(self, sequence: int, size: int) -> bool:
        """
        Say whether the message of this row may be sent now.
        """
        oldest = self.oldest
        assert oldest is not None
        return sequence - oldest <= self._span and (not self._bytes or self._bytes + size <= self._bytes_max)

    def out(self, sequence: int, size: int) -> None:
        """
        Note that it is being sent.
        """
        self._bytes += size
        self._rows[sequence] = size

    def leave(self, sequence: int) -> None:
        """
        Note that its row is deleted, or marked as failed, for good; one that is not known means nothing.
        """
        self._bytes -= self._rows.pop(sequence, 0)
