"""Read numbered rows, the lowest first, and hand their messages on as far as the gate allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dedup.core.identity import SEQUENCE_MAX
from dedup.core.sending import Message
from dedup.errors import InvalidMessageError
from dedup.outbox.gate import Gate
from dedup.outbox.messages import message_of
from dedup.outbox.store import Row, Store
from dedup.wire import Wire


class Outlet:
    """
    The way out of one outbox, for one thread.

    Args:
        gate: Knows which rows are there.
        wire: What the rows are encoded for.
        body_bytes_max: A row with a larger body is not read, and not sent.
        fresh_above: A row with a higher number was not sent before.
        on_bad: Told of a row that cannot be sent.
    """

    def __init__(
        self,
        store: Store,
        gate: Gate,
        wire: Wire,
        publisher_id: str,
        *,
        body_bytes_max: int,
        fresh_above: int,
        on_bad: Callable[[int, InvalidMessageError], None],
    ) -> None:
        self._store = store
        self._gate = gate
        self._wire = wire
        self._publisher_id = publisher_id
        self._body_bytes_max = body_bytes_max
        self._fresh_above = fresh_above
        self._on_bad = on_bad
        #: Every row up to here was read.
        self.read_up_to = 0
        #: Read, and not handed on yet.
        self.waiting: deque[Message] = deque()

    def read(self, up_to: int = SEQUENCE_MAX) -> bool:
        """
        Read more rows, so many as are good to hold at once; return whether there were any.
        """
        rows = self._store.read(self.read_up_to, up_to=up_to, body_bytes_max=self._body_bytes_max)
        for row in rows:
            self.read_up_to = row.sequence
            self._gate.enter(row.sequence)
            try:
                self.waiting.append(self._message_of(row))
            except InvalidMessageError as error:
                self._on_bad(row.sequence, error)
        return bool(rows)

    def _message_of(self, row: Row) -> Message:
        fresh = row.sequence > self._fresh_above
        return message_of(row, self._wire, self._publisher_id, self._body_bytes_max, fresh=fresh)

    def hand_on(self, post: Callable[[Message], None]) -> bool:
        """
        Hand on what the gate lets out; return whether anything was.
        """
        before = len(self.waiting)
        hand_on(self.waiting, self._gate, post)
        return len(self.waiting) < before


def hand_on(waiting: deque[Message], gate: Gate, post: Callable[[Message], None]) -> None:
    """
    Hand on the first of the messages, in order, as far as the gate lets them out.
    """
    while waiting and gate.lets(waiting[0].sequence, waiting[0].size):
        message = waiting.popleft()
        gate.out(message.sequence, message.size)
        post(message)
