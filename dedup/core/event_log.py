"""
Describe the audit's event log: one row for each arrival at the shim.

The shim tells them batch by batch, the collector stores these columns and the audit reads them: the list is the contract
between the three. Files are Parquet, below ``date=YYYY-MM-DD/queue=<name>/``. The same row may be there twice, from a
collector that was killed between its write and its acknowledgement: token and offset tell, and the audit counts it once. A
column that is added one day is nullable, so that files from before it stay readable.
"""

from __future__ import annotations

import json
import zlib
from enum import Enum
from typing import Any

from attrs import frozen

from dedup.core.identity import validate_sequence
from dedup.core.message_ids import is_message_key, message_id, validate_name
from dedup.core.records import natural, position_from
from dedup.core.steps import Outgoing, Record
from dedup.core.window import Verdict
from dedup.errors import DedupError, RecordFormatError

#: The verdict of a row that stands for what a dead relay had forwarded.
RECOVERED = "recovered"


class Kind(Enum):
    """
    What a column holds; the values are Spark's names.
    """

    STRING = "string"
    LONG = "bigint"
    INT = "int"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    DATE = "date"
    #: Microseconds, UTC.
    TIMESTAMP = "timestamp"


@frozen
class Column:
    """
    One column of a table.
    """

    name: str
    kind: Kind
    #: What it says, with its unit and what null means.
    about: str
    nullable: bool = False


COLUMNS = (
    Column("queue", Kind.STRING, "The guarded queue (the target)."),
    Column("token", Kind.LONG, "Fencing token of the relay that judged it; a later relay has a higher one."),
    Column("offset", Kind.LONG, "Number of the arrival, from 1 for each token, without a hole."),
    Column(
        "batch",
        Kind.LONG,
        "Number of the batch it was settled in, rising over all tokens of the queue; recovery may use a number up.",
    ),
    Column("arrived_at", Kind.TIMESTAMP, "When the shim took it, by the shim's clock."),
    Column(
        "before_token",
        Kind.LONG,
        "Token of the row that the shim knew as the last one when it told this one: the end of what came before. 0: it knew none.",
    ),
    Column("before_offset", Kind.LONG, "Offset of that row."),
    Column(
        "publisher",
        Kind.STRING,
        "Publisher id; null: unstamped, or told by its message id.",
        nullable=True,
    ),
    Column("sequence", Kind.LONG, "Sequence, 1 to 2^63 - 1; null: unstamped or unreadable.", nullable=True),
    Column("attempt", Kind.INT, "How often the publisher had sent it, as far as it says; 1: once."),
    Column(
        "first_sent_at",
        Kind.TIMESTAMP,
        "When the publisher sent it first, by the publisher's clock; on re-sends only.",
        nullable=True,
    ),
    Column("redelivered", Kind.BOOLEAN, "The broker flagged it as delivered before."),
    Column(
        "verdict",
        Kind.STRING,
        "What the shim thought of it (`dedup.core.window.Verdict`); `recovered`: no arrival, but what markers prove that a dead "
        "shim had forwarded before it could tell. It may have a row of its own as well.",
    ),
    Column("reason", Kind.STRING, "Why it went to quarantine; empty: it did not."),
    Column(
        "depth",
        Kind.LONG,
        "Last sequence of the publisher before this one, minus this one: -1 in order, 0 and more behind. Null: there was no "
        "window, or it was not asked.",
        nullable=True,
    ),
    Column("marked", Kind.BOOLEAN, "It carried `dedup-possible-duplicate` on its way out."),
    Column("forwarded", Kind.BOOLEAN, "It went to the target."),
    Column("bytes", Kind.LONG, "Size of the body in bytes."),
    Column(
        "message_id",
        Kind.STRING,
        "Message id that it was told by, having no stamp (`sha-256:...` for one that is long or no plain text); null: it was not. A "
        "`recovered` row may have what tells a message that came back from the target. "
        "Ids are forgotten after a time, so the verdict on the shim leaves these rows out.",
        nullable=True,
    ),
)

#: Version of the messages' layout; another one is refused, never guessed.
_FORMAT = 1
#: Bytes of one message, unpacked, at the most: far above what the largest batch needs.
_BYTES_MAX = 1 << 24
#: By their code, which is for good: the first seven verdicts, "recovered", and what came later.
_VERDICTS = [verdict.value for verdict in Verdict]
_VERDICTS.insert(7, RECOVERED)
_CODES = {verdict: _VERDICTS.index(verdict.value) for verdict in Verdict}
_RECOVERED_CODE = _VERDICTS.index(RECOVERED)
_VERDICT_BITS = 0xF
_MARKED, _FORWARDED, _REDELIVERED = 0x10, 0x20, 0x40
#: Weak and fast: columns of numbers pack well anyway.
_LEVEL = 1
#: A publisher may say anything; more than this is as much.
_ATTEMPT_MAX = 2**31 - 1
#: The year 9999: the last one a timestamp can name everywhere.
_MILLISECONDS_MAX = 253_370_764_800_000


def encode_record(queue: str, record: Record) -> bytes:
    """
    Return what the audit is told of one batch of *queue*, as one message.

    Columns of numbers as JSON, deflated. What few rows have (attempt, time of the first send, reason) is told of those rows
    only, and a publisher is named once.
    """
    rows = record.rows
    publishers: dict[str | None, int] = {}
    place = publishers.setdefault
    names = [name for name, _ in record.recovered] + [out.arrival.publisher for out in rows]
    first = len(record.recovered)
    return zlib.compress(
        json.dumps(
            {
                "format": _FORMAT,
                "queue": queue,
                "token": record.token,
                "batch": record.batch,
                "offset": record.offset,
                "before": record.before,
                "at_us": int(record.at_s * 1_000_000),
                "publisher": [place(name, len(publishers)) for name in names],
                "publishers": list(publishers),
                "sequence": [number for _, number in record.recovered]
                + [out.arrival.sequence for out in rows],
                "depth": [None] * first + [out.depth for out in rows],
                "bytes": [0] * first + [out.arrival.size for out in rows],
                "flags": [_RECOVERED_CODE | _FORWARDED] * first + [_flags(out) for out in rows],
                "more": [
                    [index, min(out.arrival.attempt, _ATTEMPT_MAX), _told_ms(out), out.reason]
                    for index, out in enumerate(rows, start=first)
                    if out.arrival.attempt != 1 or out.arrival.first_sent_ms or out.reason
                ],
            },
            separators=(",", ":"),
            ensure_ascii=False,
        ).encode(),
        _LEVEL,
    )


def _flags(out: Outgoing) -> int:
    forwarded = not out.reason and out.verdict is not Verdict.DUPLICATE
    # A copy of a re-entry says nothing of its publisher's window, dropped or not.
    verdict = out.verdict if out.arrival.reentry is None else Verdict.RETURNING
    return (
        _CODES[verdict]
        | (out.marked and _MARKED)
        | (forwarded and _FORWARDED)
        | (out.arrival.redelivered and _REDELIVERED)
    )


def _told_ms(out: Outgoing) -> int:
    """
    Return when it was first sent, unless the publisher's clock says what no calendar holds.
    """
    first_sent_ms = out.arrival.first_sent_ms
    return first_sent_ms if 0 < first_sent_ms < _MILLISECONDS_MAX else 0


def decode_record(body: bytes) -> dict[str, list[Any]]:
    """
    Return the rows of one message: column -> values, times in unix microseconds.

    Raises:
        RecordFormatError: the message is none of ours, or of another version.
    """
    try:
        unpack = zlib.decompressobj()
        fields = json.loads(unpack.decompress(body, _BYTES_MAX))
        if fields["format"] != _FORMAT:
            raise RecordFormatError(
                f"a record of format {fields['format']!r}, this version reads {_FORMAT}: collect it with the version that wrote it"
            )
        return _columns(fields)
    except RecordFormatError:
        raise
    except (zlib.error, ValueError, KeyError, IndexError, TypeError, RecursionError, DedupError) as error:
        raise RecordFormatError(f"not a record of the event log: {error!r}") from error


def _columns(fields: dict[str, Any]) -> dict[str, list[Any]]:
    flags = [natural(value) for value in fields["flags"]]
    count = len(flags)
    token, first = position_from((fields["token"], fields["offset"]))
    before = position_from(fields["before"])
    names = [None if name is None else validate_name(name) for name in fields["publishers"]]
    named = [names[natural(index)] for index in fields["publisher"]]
    keys = [name is not None and is_message_key(name) for name in named]
    numbers = [None if number is None else validate_sequence(number) for number in fields["sequence"]]
    columns: dict[str, list[Any]] = {
        "queue": [str(fields["queue"])] * count,
        "token": [token] * count,
        "offset": list(range(first, first + count)),
        "batch": [natural(fields["batch"])] * count,
        "arrived_at": [natural(fields["at_us"])] * count,
        "before_token": [before.token] * count,
        "before_offset": [before.offset] * count,
        "publisher": [None if key else name for name, key in zip(named, keys, strict=True)],
        "sequence": [None if key else number for number, key in zip(numbers, keys, strict=True)],
        "attempt": [1] * count,
        "first_sent_at": [None] * count,
        "redelivered": [bool(value & _REDELIVERED) for value in flags],
        "verdict": [_VERDICTS[value & _VERDICT_BITS] for value in flags],
        "reason": [""] * count,
        "depth": [None if depth is None else int(depth) for depth in fields["depth"]],
        "marked": [bool(value & _MARKED) for value in flags],
        "forwarded": [bool(value & _FORWARDED) for value in flags],
        "bytes": [natural(size) for size in fields["bytes"]],
        "message_id": [
            message_id(name) if name and key else None for name, key in zip(named, keys, strict=True)
        ],
    }
    for index, attempt, first_sent_ms, reason in fields["more"]:
        columns["attempt"][natural(index)] = min(natural(attempt), _ATTEMPT_MAX)
        columns["first_sent_at"][index] = natural(first_sent_ms) * 1000 or None
        columns["reason"][index] = str(reason)
    if any(len(values) != count for values in columns.values()):
        raise RecordFormatError("columns of different lengths")
    return columns
