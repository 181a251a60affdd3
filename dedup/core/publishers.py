"""The bounded map publisher id -> window, with the changes of one batch kept apart until it is forwarded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve, frozen

from dedup.core.window import UNCERTAIN, WINDOW_SIZE, Verdict, Window, judge

#: Publishers remembered at the most; one more is quarantined as UNADMITTED.
PUBLISHERS_MAX = 10_000
#: A publisher silent for this long may be forgotten when the map is full; seconds.
PUBLISHER_IDLE_S = 86_400.0


@frozen
class Entry:
    """
    One publisher of the map.
    """

    window: Window
    #: When its newest message was judged; unix seconds.
    seen_s: float


@frozen
class Changes:
    """
    What one batch changed in the map.
    """

    entries: Mapping[str, Entry]
    #: Publisher ids forgotten to make room.
    evicted: tuple[str, ...] = ()


class Publishers:
    """
    What is remembered of every publisher in front of one queue.

    A verdict is only provisional until its batch is forwarded: recording a sequence
    before its message is stored loses the message when the publisher has to send it
    again (four other products do that). So judge() writes into a draft, and settle()
    merges the draft once the batch is in the target. One draft at a time; a relay
    that fails throws the whole map away and recovers from Redis.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry] | None = None,
        *,
        size: int = WINDOW_SIZE,
        publishers_max: int = PUBLISHERS_MAX,
        idle_s: float = PUBLISHER_IDLE_S,
        unknown_uncertain: bool = False,
    ) -> None:
        #: Oldest first: an entry moves to the end whenever it changes.
        self._settled = dict(sorted((entries or {}).items(), key=lambda item: item[1].seen_s))
        self._draft: dict[str, Window] = {}
        self._evicted: list[str] = []
        self._size = size
        self._max = publishers_max
        self._idle_s = idle_s
        #: State was lost: the first sequences of a publisher not in the map prove nothing.
        self._unknown_uncertain = unknown_uncertain

    def __len__(self) -> int:
        """
        Return how many publishers are remembered, drafted ones included.
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
            redelivered: The broker says that it may have been delivered before.

        Returns:
            The verdict (NEW, DUPLICATE, TOO_OLD or UNADMITTED), and whether a NEW is
            uncertain because state was lost.
        """
        window = self._window(publisher)
        if window is None and not self._admit(now_s):
            return Verdict.UNADMITTED, False
        verdict, judged = judge(window, sequence, self._size)
        if self._unknown_uncertain and (window is None or sequence - window.last > self._size):
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

    def settle(self, now_s: float) -> Changes:
        """
        Merge the draft: its batch is in the target.
        """
        changed = {name: Entry(window, now_s) for name, window in self._draft.items()}
        for name, entry in changed.items():
            self._settled.pop(name, None)
            self._settled[name] = entry
        evicted = tuple(name for name in self._evicted if name not in changed)
        self._draft = {}
        self._evicted = []
        return Changes(changed, evicted)

    def abandon(self) -> None:
        """
        Throw the draft away: its batch is not in the target.
        """
        self._draft = {}

    def entries(self) -> dict[str, Entry]:
        """
        Return the settled map, oldest first; the draft is not part of it.
        """
        return dict(self._settled)

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
    entries: dict[str, Entry], sequences: Mapping[str, Iterable[int]], size: int, now_s: float
) -> None:
    """
    Record *sequences* as seen in *entries*; recovery replays markers with it.

    Nothing is refused: what the ledger says was forwarded.
    """
    for publisher, numbers in sequences.items():
        window = entries[publisher].window if publisher in entries else None
        for number in numbers:
            _, window = judge(window, number, size)
        if window is not None:
            entries[publisher] = Entry(window, now_s)
