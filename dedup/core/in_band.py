"""Write and read what publishers and shims tell each other in band: a header that asks, answers and receipts in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from dedup.core.identity import SEQUENCE_MAX, Receipt, validate_sequence
from dedup.core.questions import STRETCHES_MAX, Answer, Question, Standing, Status, Told
from dedup.core.reply_address import is_reply_address
from dedup.errors import InvalidIdentityError, QuestionFormatError

#: The value of the header ``dedup-ask``: this, or that with a sequence behind it.
RESUME: Final = "resume"
STATUS: Final = "status"
ASK_BYTES_MAX: Final = 32
#: Longest correlation id that comes back with an answer; bytes.
CORRELATION_BYTES_MAX: Final = 64
#: Messages that one message of receipts speaks of; it is a hint, and the rest is left out.
RECEIPTS_MAX: Final = 500
#: Longest answer or message of receipts that is looked at; bytes.
MESSAGE_BYTES_MAX: Final = 64 * 1024
_REASON_MAX: Final = 100
_QUEUE_MAX: Final = 255


# -- questions ------------------------------------------------------------------------------------


def ask_text(sequence: int) -> str:
    """
    Return the value of the header ``dedup-ask``; 0 asks for the place to resume.
    """
    return f"{STATUS} {sequence}" if sequence else RESUME


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


# -- answers and receipts -------------------------------------------------------------------------


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
