"""Keep track of the markers a relay holds in the ledger, and of the ones that prove nothing any more."""

from __future__ import annotations

from collections import deque
from typing import Any

from dedup.core.records import Batch, Marker, MarkerKind


class Ledger:
    """
    The deliveries of the ledger queue that one relay holds unacknowledged.

    Markers of parts of an own batch go when Redis has the batch. Of the others three kinds stay. The
    newest founding marker: it is how a Redis that was emptied is noticed. The newest transient marker
    of the own token: as long as it is there, the broker has not restarted. And the markers of batches
    that Redis has had for less than *keep_s*: they repair a Redis that loses its newest writes.

    *Strays* are messages that found no queue on their way to the target or to quarantine; the ledger is
    where such a way ends. Whoever takes the ledger over sends them on, and releases them once they are stored.
    """

    def __init__(self, keep_s: float) -> None:
        self.token = 0
        #: Redis has this batch.
        self.saved_batch = 0
        self._keep_s = keep_s
        #: Delivery tag -> marker, oldest first; None: not a marker at all.
        self._held: dict[int, Marker | None] = {}
        #: Delivery tag of a marker of a part of an own batch -> number of the batch.
        self._parts: dict[int, int] = {}
        #: Delivery tag of a stray -> what its driver needs to send it on.
        self._strays: dict[int, Any] = {}
        self._founding_tag = 0
        self._own_tag = 0
        #: When Redis took which batch, oldest first.
        self._saved: deque[tuple[float, int]] = deque()
        #: Redis has had this batch for *keep_s*.
        self._durable_batch = -1

    def __len__(self) -> int:
        """
        Return how many deliveries are held.
        """
        return len(self._held) + len(self._parts) + len(self._strays)

    def add(self, tag: int, marker: Marker | None) -> bool:
        """
        Hold one more delivery; say whether it is a transient marker of the own token.
        """
        if marker is not None and marker.kind is MarkerKind.PART and marker.batch.token == self.token:
            self._parts[tag] = marker.batch.number
            return True
        self._held[tag] = marker
        if marker is None:
            return False
        if marker.kind is MarkerKind.FOUNDING:
            self._founding_tag = tag
            return False
        if marker.batch.token != self.token:
            return False
        self._own_tag = tag
        return True

    def add_stray(self, tag: int, payload: Any) -> None:
        """
        Hold one more message that found no queue.
        """
        self._strays[tag] = payload

    def strays(self) -> tuple[Any, ...]:
        """
        Return the payloads of the strays held, oldest first.
        """
        return tuple(self._strays.values())

    def release_strays(self) -> tuple[int, ...]:
        """
        Return the deliveries of all strays held, to acknowledge: they are stored elsewhere.
        """
        tags = tuple(self._strays)
        self._strays.clear()
        return tags

    def markers(self) -> list[Marker]:
        """
        Return the markers held, oldest first, those of parts of own batches left out.
        """
        return [marker for marker in self._held.values() if marker is not None]

    def anchors(self, *, exact: bool) -> tuple[Marker, Marker]:
        """
        Return the durable founding marker and a first marker; all older ones may go when they are there.
        """
        batch = Batch(self.token, self.saved_batch, exact)
        return Marker(MarkerKind.FOUNDING, batch), Marker(MarkerKind.FIRST, batch)

    def saved(self, batch: int, now_s: float) -> None:
        """
        Take note that Redis has *batch*.
        """
        if not self._saved or batch != self.saved_batch:
            self._saved.append((now_s, batch))
        self.saved_batch = batch

    def lost(self) -> None:
        """
        Take note that Redis has lost writes: what is written again has to last anew.
        """
        self._saved.clear()
        self._durable_batch = -1

    def release(self, now_s: float) -> tuple[int, ...]:
        """
        Return the deliveries to acknowledge, each once; the oldest batches go first, without a hole.
        """
        while self._saved and now_s - self._saved[0][0] >= self._keep_s:
            self._durable_batch = self._saved.popleft()[1]
        released = []
        for tag, marker in self._held.items():
            if marker is not None and marker.batch.number > self._durable_batch:
                break
            if tag not in (self._founding_tag, self._own_tag):
                released.append(tag)
        for tag in released:
            del self._held[tag]
        settled = [tag for tag, number in self._parts.items() if number <= self.saved_batch]
        for tag in settled:
            del self._parts[tag]
        return (*released, *settled)
