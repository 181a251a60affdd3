"""Judge a sequence against what is remembered of its publisher in front of one queue."""

from __future__ import annotations

from enum import Enum

from attrs import evolve, frozen

from dedup.core.identity import SEQUENCE_MAX, range_base

#: Sequences below the last one that a window can still tell apart.
WINDOW_SIZE = 8192
#: The largest window there may be. Full of holes it takes 128 KiB of memory for a publisher, 256 KiB of Redis with each batch that
#: has a message of it, and about 0.2 ms for each of these messages: linearly less below.
WINDOW_SIZE_MAX = 1 << 20

#: The end of uncertainty when nobody knows it: all sequences there are.
UNCERTAIN = SEQUENCE_MAX


class Verdict(Enum):
    """
    What the shim thinks of one message; DESIGN section 5 has the table of actions.
    """

    NEW = "new"
    DUPLICATE = "duplicate"
    TOO_OLD = "too-old"
    UNTRACKED = "untracked"
    MALFORMED = "malformed"
    UNADMITTED = "unadmitted"
    RETURNING = "returning"

    # Each member is one object; the hash that enumerations come with is a call in Python.
    __hash__ = object.__hash__


@frozen
class Window:
    """
    What is remembered of one publisher in front of one queue.

    A sliding window as in anti-replay protection (RFC 4303 3.4.3, RFC 6479), with two
    changes. It keeps the sequences that are *missing*, so a publisher that never skips
    costs two integers; and what lies below it is unknown, not a replay: a queue may not
    drop what it cannot prove to have seen.
    """

    #: Highest sequence seen, 1 to 2^63 - 1.
    last: int
    #: Lowest sequence this window may ever speak of: older owners end below it.
    start: int
    #: Bit *i* stands for sequence ``last - 1 - i``: set when it was not seen.
    missing: int = 0
    #: NEW verdicts up to this sequence are not proven: state was lost (0: all are proven).
    uncertain_to: int = 0


def judge(window: Window | None, sequence: int, size: int) -> tuple[Verdict, Window]:
    """
    Judge *sequence* and return the window that remembers it.

    Args:
        window: What is remembered; None for a publisher never seen.
        sequence: 1 to 2^63 - 1.
        size: Window size in sequences, at least 1.

    Returns:
        NEW, DUPLICATE or TOO_OLD, and the window; the same object when nothing changed.
    """
    assert sequence >= 1, sequence
    assert size >= 1, size

    if window is None:
        return Verdict.NEW, _opened(sequence, size, uncertain_to=0)

    jump = sequence - window.last
    if jump == 1 and not window.missing:
        return Verdict.NEW, Window(sequence, window.start, 0, window.uncertain_to)
    if jump > size:
        return Verdict.NEW, _opened(sequence, size, window.uncertain_to)
    if jump > 0:
        # The bits move up by the jump; the sequences jumped over are missing.
        missing = ((window.missing << 1) << (jump - 1)) | ((1 << (jump - 1)) - 1)
        return Verdict.NEW, evolve(window, last=sequence, missing=missing & _mask(size))

    if sequence < window.start or jump <= -size:
        return Verdict.TOO_OLD, window
    if jump == 0:
        return Verdict.DUPLICATE, window
    bit = 1 << (-jump - 1)
    if not window.missing & bit:
        return Verdict.DUPLICATE, window
    return Verdict.NEW, evolve(window, missing=window.missing ^ bit)


def _opened(sequence: int, size: int, uncertain_to: int) -> Window:
    """
    Return a window that has seen *sequence* alone.

    It speaks of the sequences below it in the same range only: what an older owner of
    the publisher id used lies in a lower range and stays unknown.
    """
    start = max(1, range_base(sequence), sequence - size + 1)
    return Window(sequence, start, (1 << (sequence - start)) - 1, uncertain_to)


def _mask(size: int) -> int:
    """
    Return the bits a window of *size* sequences has below its last one.
    """
    return (1 << (size - 1)) - 1
