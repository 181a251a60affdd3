"""Number what a relay tells the audit."""

from __future__ import annotations

from collections.abc import Sequence

from dedup.core.records import BEGINNING, State
from dedup.core.steps import Outgoing, Record


class Recorder:
    """
    What one relay tells the audit, in order and without a hole.

    A record is stored with its batch, or right after it and before anything of the batch is
    acknowledged. So whatever was forwarded has a row, save what a dead relay had forwarded with
    confirms: of that the next one tells what markers prove, and the rest comes out marked.
    """

    def __init__(self, *, on: bool) -> None:
        self.on = on
        #: The last row that is stored.
        self.position = BEGINNING
        self._token = 0
        self._recovered: Sequence[tuple[str, int]] = ()
        #: What is to be stored with the batch under way.
        self._record: Record | None = None

    def begin(self, state: State) -> None:
        """
        Go on after what recovery found.
        """
        self._token, self.position = state.writer, state.logged
        if state.believed is not None:
            self._recovered = [
                (name, number) for name, numbers in state.believed.sequences.items() for number in numbers
            ]

    def record(self, batch: int, at_s: float, rows: Sequence[Outgoing]) -> Record | None:
        """
        Return what the audit is told of a batch; None: nothing.
        """
        self._record = None
        if not self.on or not rows:
            return None
        first = self.position.offset + 1 if self.position.token == self._token else 1
        self._record = Record(self._token, batch, first, self.position, at_s, self._recovered, rows)
        return self._record

    def stored(self) -> None:
        """
        Take note that the record of the batch under way is stored.
        """
        if self._record is not None:
            self.position, self._record, self._recovered = self._record.end, None, ()
