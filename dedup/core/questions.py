"""
What publishers ask shims, and what follows from a window: questions, answers and receipts.

A question travels through an ingress like data, behind everything ahead of it, and the shim answers from what is settled and
written. An answer may say less than what is true a moment later, never more: a publisher that goes by it sends a message once
more at the worst, under its own number, and the shim drops that copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from attrs import field, frozen

from dedup.core.identity import SEQUENCE_MAX, Receipt
from dedup.core.window import Verdict, Window, judge

#: Stretches of missing numbers that an answer names; more are told as one that covers all the rest.
STRETCHES_MAX: Final = 256

#: First and last number of a stretch.
Stretch = tuple[int, int]


class Status(Enum):
    """
    What one queue's shim knows of one message.
    """

    #: It has not come: publish it, under its own number.
    NEW = "new"
    #: It is in the queue or was there; what the broker refuses to store in the queue is in the quarantine.
    SEEN = "seen"
    #: It lies below the window: nobody remembers.
    TOO_OLD = "too-old"
    #: It may have been forwarded or not: state was lost, or a shim died over it. Publish it again: it comes out marked.
    UNCERTAIN = "uncertain"
    #: The shim knows nothing of this publisher: it never sent anything this way, or was silent for so long that it was forgotten.
    UNKNOWN = "unknown"


@frozen
class Question:
    """
    What a publisher asks the shims of the queues its messages go to.
    """

    publisher: str
    #: The message whose status is asked for; 0: where to resume.
    sequence: int = 0
    reply_to: str = ""
    #: Comes back with the answer.
    correlation: bytes = b""


@frozen
class Standing:
    """
    How far one publisher has come in front of one queue.
    """

    #: Highest sequence that the queue has had; 0: nothing is known of the publisher.
    last: int = 0
    #: Lowest sequence that can still be told from a duplicate; 0 with *last* 0.
    base: int = 0
    #: Stretches from *base* to *last* that the queue has not had, or may not have had; ascending.
    missing: tuple[Stretch, ...] = ()
    #: False: the shim has lost its state, and more may have been forwarded than it knows.
    certain: bool = True
    #: Of the message asked for.
    status: Status | None = None


@frozen
class Answer:
    """
    What the shim of one queue says.
    """

    queue: str
    standing: Standing


@frozen
class ResumePoint:
    """
    Where to go on publishing with numbers of your own, over all queues that the messages go to.
    """

    #: Queue -> how far it has come.
    queues: Mapping[str, Standing]
    #: Numbers up to this one are in the publisher's outbox or were: they are on their way.
    kept: int = 0
    _stretches: tuple[Stretch, ...] = field(init=False, repr=False)

    @_stretches.default
    def _all_missing(self) -> tuple[Stretch, ...]:
        return tuple(_merged(self._of_each()))

    @property
    def maximum(self) -> int:
        """
        The highest sequence that any of the queues has had; 0: none has had one.
        """
        return max(standing.last for standing in self.queues.values())

    @property
    def minimum(self) -> int:
        """
        The highest sequence that each of the queues has reached, gaps below it aside; 0: one of them has had none.
        """
        return min(standing.last for standing in self.queues.values())

    @property
    def next(self) -> int:
        """
        The first number that is above everything: new messages begin there.
        """
        return max(self.maximum, self.kept) + 1

    @property
    def missing(self) -> tuple[Stretch, ...]:
        """
        Stretches (first, last) up to the maximum that at least one queue lacks, or may lack; ascending.

        Publish these first, oldest first: a queue that has one already drops the copy.
        """
        return self._stretches

    def lacks(self, sequence: int) -> bool:
        """
        Say whether the message of this number is to be published: some queue lacks it, and it is not on its way.
        """
        if sequence <= self.kept or sequence > self.maximum:
            return sequence > self.kept
        at = bisect_right(self._stretches, (sequence, SEQUENCE_MAX))
        return at > 0 and sequence <= self._stretches[at - 1][1]

    def _of_each(self) -> Iterator[Stretch]:
        maximum = self.maximum
        for standing in self.queues.values():
            yield from standing.missing
            if standing.last < maximum:
                yield standing.last + 1, maximum


@frozen
class Told:
    """
    What became of one message whose publisher asks for receipts: a hint, sent once.
    """

    receipt: Receipt
    queue: str
    #: ``duplicate``, ``quarantined`` or ``fenced``.
    what: str
    #: Why, of a quarantined one; as in the header ``dedup-reason``.
    reason: str = ""


def stand(
    window: Window | None, sequence: int, *, size: int, unproven: Collection[int] = (), lost: bool = False
) -> Standing:
    """
    Return how far a publisher has come.

    Args:
        window: What is settled; None when nothing is known.
        sequence: The message whose status is asked for; 0 for none.
        size: Window size.
        unproven: Sequences that may have been forwarded or not, whatever the window says.
        lost: State was lost: the first sequences of a publisher that is not known prove nothing.
    """
    if window is None:
        status = (Status.UNCERTAIN if lost else Status.UNKNOWN) if sequence else None
        return Standing(certain=not lost, status=status)
    base = max(window.start, window.last - size + 1)
    missing = tuple(_bounded(_merged([*_zeros(window, base), *_within(unproven, base, window.last)])))
    # Whoever it heard fresh was at most one window further before the loss: known for sure only above that.
    certain = window.uncertain_to <= window.last
    status = _status(window, sequence, size, unproven) if sequence else None
    return Standing(window.last, base, missing, certain, status)


def _status(window: Window, sequence: int, size: int, unproven: Collection[int]) -> Status:
    verdict, _ = judge(window, sequence, size)
    if verdict is Verdict.TOO_OLD:
        return Status.TOO_OLD
    if sequence in unproven or (verdict is Verdict.NEW and sequence <= window.uncertain_to):
        return Status.UNCERTAIN
    return Status.NEW if verdict is Verdict.NEW else Status.SEEN


def _zeros(window: Window, base: int) -> Iterator[Stretch]:
    """
    Yield the stretches that the bits of *window* say are missing; descending.
    """
    bits = window.missing
    newest = window.last - 1
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        newest -= skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        if newest < base:
            return
        yield max(base, newest - length + 1), newest
        bits >>= length
        newest -= length


def _within(numbers: Iterable[int], base: int, last: int) -> Iterator[Stretch]:
    return ((number, number) for number in numbers if base <= number <= last)


def _merged(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """
    Yield stretches that neither touch nor overlap; ascending.
    """
    begun: Stretch | None = None
    for first, last in sorted(stretches):
        if begun is None:
            begun = first, last
        elif first <= begun[1] + 1:
            begun = begun[0], max(begun[1], last)
        else:
            yield begun
            begun = first, last
    if begun is not None:
        yield begun


def _bounded(stretches: Iterable[Stretch]) -> list[Stretch]:
    """
    Return at most STRETCHES_MAX; the last may cover numbers that are not missing: sending those again does no harm.
    """
    found = list(stretches)
    if len(found) > STRETCHES_MAX:
        found[STRETCHES_MAX - 1 :] = [(found[STRETCHES_MAX - 1][0], found[-1][1])]
    return found
