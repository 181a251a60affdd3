"""Say how many deliveries the broker may send ahead, so that what is held of them stays within a number of bytes."""

from __future__ import annotations

from typing import Final

#: Bytes of deliveries held at the most, unless they grow larger all at once; half of it is aimed at.
AHEAD_BYTES_MAX: Final = 64 * 1024 * 1024
#: Deliveries the broker may send ahead while nobody knows how large they are.
COUNT_FIRST: Final = 10
#: It grows so much at once: by then so many messages have told how large they are.
_GROWTH: Final = 10


class Ahead:
    """
    How many deliveries one consumer after the other is given at once.

    Messages are taken to be as large as those that came last. The first consumer gets a few, the next ones as many as fit. When
    messages turn out larger and too much is held, the next one gets a single one, until half of that is settled. What a consumer
    was given stays when it is replaced: what is skipped, and held by the broker alone, counts for all of them together.

    Args:
        count_max: Deliveries at the most.
        bytes_max: Bytes of what is held at the most; None: the first consumer is given *count_max* and stays.
    """

    def __init__(self, count_max: int, bytes_max: int | None = AHEAD_BYTES_MAX) -> None:
        assert count_max > 0, "no delivery at all"
        #: What the present consumer is given.
        self.count = count_max if bytes_max is None else min(COUNT_FIRST, count_max)
        #: Delivered, and held by this side.
        self.held_bytes = 0
        self._bytes_max = bytes_max
        #: What all consumers together may be given beside what is settled.
        self._count_max = count_max
        #: Of the present consumer: what was delivered since a sample was taken, and what it has left for what is not skipped.
        self._came = self._came_bytes = 0
        self._room = self.count
        #: How many bytes so many messages had.
        self._sample = (1, 0)

    def came(self, count: int, size: int) -> None:
        """
        Take note of so many deliveries of so many bytes.
        """
        self.held_bytes += size
        self._came += count
        self._came_bytes += size

    def settled(self, size: int) -> None:
        """
        Take note that so many bytes are not held any more.
        """
        self.held_bytes -= size

    def skipped(self, size: int) -> None:
        """
        Take note that one is not held here any more, but by the broker until the session ends.
        """
        self.settled(size)
        self._count_max -= 1
        self._room -= 1

    def next(self) -> int:
        """
        Return what another consumer should be given instead of this one; 0: this one is right.
        """
        if self._bytes_max is None:
            return 0
        if self.held_bytes > self._bytes_max:
            return min(1, self._count_max) if self.count > 1 else 0
        if 2 * self.held_bytes > self._bytes_max:
            return 0
        if self._came >= self.count:
            self._sample, self._came, self._came_bytes = (self._came, self._came_bytes), 0, 0
        elif 2 * self._room > self.count:
            return 0
        grown = min(_GROWTH * self.count, self._fitting(self._bytes_max, *self._sample))
        return grown if grown >= 2 * self._room else 0

    def replace(self, count: int) -> None:
        """
        Go on with another consumer that is given *count*.
        """
        self.count = self._room = count
        self._came = self._came_bytes = 0

    def _fitting(self, bytes_max: int, count: int, size: int) -> int:
        fitting = count * bytes_max // (2 * max(1, size))
        return min(max(1, fitting), self._count_max)
