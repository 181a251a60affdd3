"""Keep which digests one session has written down, until their letters are acknowledged for good."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable


class Digests:
    """
    The digests of one session, from their letter's being written down to their being forgotten.

    Args:
        keep_s: How long one outlives the arrival of its ack; seconds.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._held: Counter[bytes] = Counter()
        #: Those whose ack was sent since the last probe, and before it.
        self._unprobed: list[bytes] = []
        self._probing: list[bytes] = []
        #: Those whose ack has arrived, with the time since which that is known.
        self._arrived: deque[tuple[float, bytes]] = deque()

    def count(self, digest: bytes) -> int:
        """
        Return how many letters with *digest* are held.
        """
        return self._held[digest]

    def hold(self, digest: bytes) -> None:
        """
        A letter with *digest* is written down.
        """
        self._held[digest] += 1

    def acknowledge(self, digests: Iterable[bytes]) -> None:
        """
        The acks of these are sent.
        """
        self._unprobed.extend(digests)

    def probe(self) -> bool:
        """
        Say whether it is to be asked if acks have arrived; one question at a time.
        """
        if self._probing or not self._unprobed:
            return False
        self._probing, self._unprobed = self._unprobed, []
        return True

    def probed(self, now_s: float) -> None:
        """
        What was sent before the question has arrived.
        """
        self._arrived.extend((now_s, digest) for digest in self._probing)
        self._probing = []

    def forget(self, now_s: float, at_most: int) -> list[bytes]:
        """
        Return the digests whose time is over, the oldest first, each as often as it was held.
        """
        gone: list[bytes] = []
        while self._arrived and len(gone) < at_most and now_s - self._arrived[0][0] >= self._keep_s:
            digest = self._arrived.popleft()[1]
            gone.append(digest)
            self._held[digest] -= 1
            if not self._held[digest]:
                del self._held[digest]
        return gone
