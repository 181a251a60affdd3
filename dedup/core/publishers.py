"""The bounded map publisher id -> window, with the changes of one batch kept apart until it is forwarded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import Factory, evolve, frozen

from dedup.core.bodies import Chunks
from dedup.core.identity import range_base
from dedup.core.message_ids import (
    KEY_SEQUENCE,
    MESSAGE_ID_KEEP_S,
    MESSAGE_IDS_MAX,
    MessageIds,
    Together,
    is_message_key,
)
from dedup.core.window import UNCERTAIN, WINDOW_SIZE, Verdict, Window, judge

#: Publishers remembered at the most; one more is quarantined as UNADMITTED.
PUBLISHERS_MAX = 10_000
#: A publisher silent for this long may be forgotten when the map is full; seconds.
PUBLISHER_IDLE_S = 86_400.0


@frozen
class Entry:
    """
    One publisher of the map, or one message id that stands in it like a publisher.
    """

    window: Window
    #: When its newest message was judged; unix seconds.
    seen_s: float
    #: Of a message id: number of the batch it was forwarded with.
    batch: int = 0


#: The window of every message id: it has sent all that it ever will.
_FORWARDED = Window(KEY_SEQUENCE, KEY_SEQUENCE)


def forwarded(at_s: float, batch: int) -> Entry:
    """
    Return what is remembered of a message id that was forwarded at *at_s* (unix seconds) with *batch*.
    """
    return Entry(_FORWARDED, at_s, batch)


@frozen
class Changes:
    """
    What one batch changed in the map.
    """

    entries: Mapping[str, Entry]
    #: Publisher ids forgotten to make room.
    evicted: tuple[str, ...] = ()
    #: Batches whose message ids are forgotten.
    forgotten: tuple[int, ...] = ()
    #: Digests of bodies (bodies.py); empty bytes: these are forgotten.
    bodies: Chunks = Factory(dict)


class Publishers:
    """
    What is remembered of every publisher in front of one queue.

    A verdict is only provisional until its batch is forwarded: recording a sequence
    before its message is stored loses the message when the publisher has to send it
    again (four other products do that). So judge() writes into a draft, and settle()
    merges the draft once the batch is in the target. One draft at a time; a relay
    that fails throws the whole map away and recovers from Redis.

    Message ids stand in the map too, with limits of their own: see message_ids.py.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry] | None = None,
        *,
        size: int = WINDOW_SIZE,
        publishers_max: int = PUBLISHERS_MAX,
        idle_s: float = PUBLISHER_IDLE_S,
        unknown_uncertain: bool = False,
        message_ids_max: int = MESSAGE_IDS_MAX,
        message_id_keep_s: float = MESSAGE_ID_KEEP_S,
        message_ids_uncertain_until_s: float = 0.0,
    ) -> None:
        known, ids = {}, {}
        for name, entry in (entries or {}).items():
            if is_message_key(name):
                ids[name] = Together(entry.batch, entry.seen_s)
            else:
                known[name] = entry
        #: Oldest first: an entry moves to the end whenever it changes.
        self._settled = dict(sorted(known.items(), key=lambda item: item[1].seen_s))
        self._draft: dict[str, Window] = {}
        self._evicted: list[str] = []
        self._size = size
        self._max = publishers_max
        self._idle_s = idle_s
        #: State was lost: the first sequences of a publisher not in the map prove nothing.
        self.unknown_uncertain = unknown_uncertain
        self.message_ids = MessageIds(
            ids,
            count_max=message_ids_max,
            keep_s=message_id_keep_s,
            uncertain_until_s=message_ids_uncertain_until_s,
        )

    def __len__(self) -> int:
        """
        Return how many publishers are remembered, drafted ones included; message ids are not counted.
        """
        return len(self._settled) + sum(name not in self._settled for name in self._draft)

    def judge(
        self, publisher: str, sequence: int, now_s: float, *, redelivered: bool = False
    ) -> tuple[Verdict, bool]:
        """
        Judge one message into the draft.

        After a loss of state nobody knows how far the lost sequences of a publisher reach. What it
        sends itself is at most one window old, so the first message that comes fresh from it tells; what
        the broker delivers again may be older. A range never seen is uncertain anew: it may be a later owner's.

        Args:
            publisher: A publisher id, or the key of a message id.
            redelivered: The broker says that it may have been delivered before.

        Returns:
            The verdict (NEW, DUPLICATE, TOO_OLD or UNADMITTED), and whether a NEW is
            uncertain because state was lost.
        """
        if not redelivered:
            self.message_ids.came_fresh()
        if is_message_key(publisher):
            return self.message_ids.judge(publisher, now_s, redelivered=redelivered)
        window = self._window(publisher)
        if window is None and not self._admit(now_s):
            return Verdict.UNADMITTED, False
        verdict, judged = judge(window, sequence, self._size)
        if self.unknown_uncertain and (window is None or sequence - window.last > self._size):
            judged = evolve(judged, uncertain_to=UNCERTAIN)
        uncertain = sequence <= judged.uncertain_to
        if judged.uncertain_to == UNCERTAIN and not redelivered:
            judged = evolve(judged, uncertain_to=min(sequence + self._size, UNCERTAIN))
        if judged is not window:
            self._draft[publisher] = judged
        return verdict, uncertain

    def depth(self, publisher: str, sequence: int) -> int | None:
        """
        Return how far *sequence* lies behind the newest of *publisher*, -1 when it comes in order; None: nothing is known of it.
        """
        window = self._window(publisher)
        return None if window is None else window.last - sequence

    def has_newer_range(self, publisher: str, sequence: int) -> bool:
        """
        Say whether the newest sequence of *publisher* is in a higher range than *sequence*.
        """
        window = self._window(publisher)
        return window is not None and range_base(sequence) < range_base(window.last)

    def settled(self, publisher: str) -> Window | None:
        """
        Return what is remembered of *publisher*, the draft left out.
        """
        entry = self._settled.get(publisher)
        return None if entry is None else entry.window

    def settle(self, now_s: float, batch: int) -> Changes:
        """
        Merge the draft: its batch, with this number, is in the target.
        """
        changed = {name: Entry(window, now_s) for name, window in self._draft.items()}
        for name, entry in changed.items():
            self._settled.pop(name, None)
            self._settled[name] = entry
        evicted = [name for name in self._evicted if name not in changed]
        self._draft = {}
        self._evicted = []
        keys, forgotten = self.message_ids.settle(now_s, batch)
        changed.update(dict.fromkeys(keys, forwarded(now_s, batch)))
        return Changes(changed, tuple(evicted), tuple(forgotten))

    def abandon(self) -> None:
        """
        Throw the draft away: its batch is not in the target.
        """
        self._draft = {}
        self.message_ids.abandon()

    def entries(self) -> dict[str, Entry]:
        """
        Return the settled map, publishers and message ids each oldest first; the draft is not part of it.
        """
        ids = self.message_ids.entries()
        return self._settled | {
            key: forwarded(together.at_s, together.batch) for key, together in ids.items()
        }

    def _window(self, publisher: str) -> Window | None:
        """
        Return what is remembered of *publisher*, the draft included.
        """
        window = self._draft.get(publisher)
        if window is None and (entry := self._settled.get(publisher)) is not None:
            window = entry.window
        return window

    def _admit(self, now_s: float) -> bool:
        """
        Make room for one more publisher; False when all of them are in use.
        """
        if len(self) < self._max:
            return True
        for name, entry in self._settled.items():
            if now_s - entry.seen_s <= self._idle_s:
                return False
            if name not in self._draft:
                del self._settled[name]
                self._evicted.append(name)
                return True
        return False


def remember(
    entries: dict[str, Entry], sequences: Mapping[str, Iterable[int]], batch: int, size: int, now_s: float
) -> None:
    """
    Record *sequences* of *batch* as seen in *entries*; recovery replays markers with it.

    Nothing is refused: what the ledger says was forwarded.
    """
    for publisher, numbers in sequences.items():
        window = entries[publisher].window if publisher in entries else None
        for number in numbers:
            _, window = judge(window, number, size)
        if window is not None:
            entries[publisher] = Entry(window, now_s, batch if is_message_key(publisher) else 0)
