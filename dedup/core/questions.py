"""
What publishers and shims tell each other in band: questions, answers and receipts, and their form on the wire.

A question travels through an ingress like data, behind everything ahead of it, and the shim answers from what is settled and
written. An answer may say less than what is true a moment later, never more: a publisher that goes by it sends a message once
more at the worst, under its own number, and the shim drops that copy.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

from attrs import field, frozen

from dedup.core.identity import SEQUENCE_MAX, Receipt, validate_sequence
from dedup.core.reply_address import is_reply_address
from dedup.core.window import Verdict, Window, judge
from dedup.errors import InvalidIdentityError, QuestionFormatError

#: The value of the header ``dedup-ask``: this, or that with a sequence behind it.
RESUME: Final = "resume"
STATUS: Final = "status"
ASK_BYTES_MAX: Final = 32
#: Longest correlation id that comes back with an answer; bytes.
CORRELATION_BYTES_MAX: Final = 64
#: Stretches of missing numbers that an answer names; more are told as one that covers all the rest.
STRETCHES_MAX: Final = 256
#: Messages that one message of receipts speaks of; it is a hint, and the rest is left out.
RECEIPTS_MAX: Final = 500
#: Longest answer or message of receipts that is looked at; bytes.
MESSAGE_BYTES_MAX: Final = 64 * 1024
_REASON_MAX: Final = 100
_QUEUE_MAX: Final = 255

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


# -- the shim's side ------------------------------------------------------------------------------


def read_ask(text: bytes) -> int | None:
    """
    Return what the header ``dedup-ask`` asks: a sequence, or 0 for the place to resume; None: it is no question.
    """
    if text == RESUME.encode():
        return 0
    name, _, number = text.partition(b" ")
    if name != STATUS.encode() or len(text) > ASK_BYTES_MAX or not number.isdigit():
        return None
    sequence = int(number)
    return sequence if 1 <= sequence <= SEQUENCE_MAX else None


def question_of(
    publisher: str, ask: bytes, *, body_bytes: int, reply_to: bytes, correlation: bytes
) -> tuple[Question | None, str]:
    """
    Return the question that a message with the header ``dedup-ask`` asks, or why it is none, as a slug.

    A question has no body, so that nothing is lost when it is dropped; and its answer goes back to the channel it came from,
    so that nobody can have a shim write into a queue of his choice.
    """
    sequence = read_ask(ask)
    if sequence is None:
        return None, "ask-unknown"
    if body_bytes:
        return None, "ask-with-body"
    if not is_reply_address(reply_to):
        return None, "ask-reply-to"
    if len(correlation) > CORRELATION_BYTES_MAX or not correlation.isascii():
        return None, "ask-correlation"
    return Question(publisher, sequence, reply_to.decode(), correlation), ""


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


# -- on the wire ----------------------------------------------------------------------------------


def ask_text(sequence: int) -> str:
    """
    Return the value of the header ``dedup-ask``; 0 asks for the place to resume.
    """
    return f"{STATUS} {sequence}" if sequence else RESUME


def encode_answer(queue: str, standing: Standing) -> bytes:
    """
    Return what the shim of *queue* says, as JSON.
    """
    return _json(
        {
            "queue": queue,
            "last": standing.last,
            "base": standing.base,
            "missing": standing.missing,
            "certain": standing.certain,
            "status": standing.status.value if standing.status else "",
        }
    )


def decode_answer(data: bytes) -> Answer:
    """
    Return the answer in *data*; total but for its one error.

    Raises:
        QuestionFormatError: it is none.
    """
    found = _object(data)
    try:
        queue = _text(found["queue"], _QUEUE_MAX)
        last, base = _natural(found["last"]), _natural(found["base"])
        missing = [(validate_sequence(first), validate_sequence(last)) for first, last in found["missing"]]
        status = Status(found["status"]) if found["status"] else None
        certain = found["certain"]
    except (KeyError, TypeError, ValueError) as error:
        raise QuestionFormatError(f"no answer to a question: {error!r}") from error
    in_order = [number for stretch in missing for number in stretch]
    if not isinstance(certain, bool) or len(missing) > STRETCHES_MAX or in_order != sorted(in_order):
        raise QuestionFormatError("no answer to a question: it contradicts itself")
    return Answer(queue, Standing(last, base, tuple(missing), certain, status))


def encode_receipts(queue: str, told: Iterable[tuple[int, str, str]]) -> bytes:
    """
    Return the message of receipts for one publisher: sequence, what became of it, and why.
    """
    return _json({"queue": queue, "receipts": list(told)[:RECEIPTS_MAX]})


def is_receipts(data: bytes) -> bool:
    """
    Say whether *data*, from the queue of a publisher, is a message of receipts rather than a registry's word.
    """
    return data.startswith(b'{"queue":')


def decode_receipts(data: bytes, publisher_id: str) -> list[Told]:
    """
    Return the receipts in *data*; total but for its one error.

    Raises:
        QuestionFormatError: there are none: anybody may write to that queue.
    """
    found = _object(data)
    try:
        queue, rows = _text(found["queue"], _QUEUE_MAX), found["receipts"]
        if not isinstance(rows, list) or len(rows) > RECEIPTS_MAX:
            raise ValueError("too many")
        return [
            Told(Receipt(publisher_id, number), queue, _text(what, _REASON_MAX), _text(reason, _REASON_MAX))
            for number, what, reason in rows
        ]
    except (KeyError, TypeError, ValueError, InvalidIdentityError) as error:
        raise QuestionFormatError(f"no receipts: {error!r}") from error


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MESSAGE_BYTES_MAX:
        raise QuestionFormatError(f"{len(data)} bytes are more than {MESSAGE_BYTES_MAX}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise QuestionFormatError(f"not JSON: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise QuestionFormatError("not a JSON object")
    return found


def _text(value: object, size_max: int) -> str:
    if not isinstance(value, str) or len(value) > size_max:
        raise ValueError("no text, or a long one")
    return "".join(character if character.isprintable() else "?" for character in value)


def _natural(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SEQUENCE_MAX:
        raise ValueError("no number of a message")
    return value
