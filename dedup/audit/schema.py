"""Name and type every table of the audit: what each column says, with its unit."""

from __future__ import annotations

from typing import Final

from attrs import frozen
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dedup.core.event_log import COLUMNS, Column, Kind

_TYPES: Final[dict[Kind, DataType]] = {
    Kind.STRING: StringType(),
    Kind.LONG: LongType(),
    Kind.INT: IntegerType(),
    Kind.DOUBLE: DoubleType(),
    Kind.BOOLEAN: BooleanType(),
    Kind.DATE: DateType(),
    Kind.TIMESTAMP: TimestampType(),
}

#: Sequences, or offsets, one mask stands for. 32 and not 64: a mask then is never negative, so that
#: any engine with 64-bit integers computes the same.
BLOCK_SIZE: Final = 32
#: ``number >> BLOCK_SHIFT`` is the block of a number.
BLOCK_SHIFT: Final = 5


@frozen
class Table:
    """
    One table: its columns in order, of which the first *keys* name a row.
    """

    name: str
    about: str
    keys: int
    columns: tuple[Column, ...]

    @property
    def schema(self) -> StructType:
        """
        Return Spark's type of a row.
        """
        return StructType([StructField(c.name, _TYPES[c.kind], c.nullable) for c in self.columns])

    @property
    def key_names(self) -> list[str]:
        """
        Return the columns that name a row.
        """
        return [column.name for column in self.columns[: self.keys]]

    def shape(self, frame: DataFrame) -> DataFrame:
        """
        Return *frame* with exactly these columns, in this order and of these types.
        """
        return frame.select(*(F.col(c.name).cast(c.kind.value).alias(c.name) for c in self.columns))

    def readable(self, frame: DataFrame) -> DataFrame:
        """
        Return *frame* with times as text in UTC; as a row of Python they would have the time zone of this machine.
        """
        shown = {
            column.name: F.date_format(column.name, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
            for column in self.columns
            if column.kind is Kind.TIMESTAMP
        }
        return frame.withColumns(shown)


def _long(name: str, about: str, *, nullable: bool = False) -> Column:
    """
    Return a column of 64-bit integers.
    """
    return Column(name, Kind.LONG, about, nullable)


_DATE = Column("date", Kind.DATE, "Day of the arrivals, UTC: the folder they are in.")
_HOUR = Column("hour", Kind.TIMESTAMP, "Hour of the arrivals, UTC, cut off.")
_QUEUE = Column("queue", Kind.STRING, "The guarded queue.")
_PUBLISHER = Column("publisher", Kind.STRING, "Publisher id.")
_ANY_PUBLISHER = Column("publisher", Kind.STRING, "Publisher id; null: unstamped.", nullable=True)

#: Counts of arrivals that add up over rows of a table.
COUNTS: Final = (
    _long("events", "Arrivals at the shim."),
    _long("bytes", "Their bodies, bytes."),
    _long("duplicates", "Arrivals judged `duplicate`."),
    _long("resent", "Those of `duplicates` that their publisher had sent before (attempt 2 and more)."),
    _long("too_old", "Arrivals judged `too-old`."),
    _long(
        "second_owner", "Those of `too_old` that come from a lower range than the publisher's last sequence."
    ),
    _long("untracked", "Arrivals judged `untracked`."),
    _long("malformed", "Arrivals judged `malformed`."),
    _long("unadmitted", "Arrivals judged `unadmitted`."),
    _long("returning", "Arrivals judged `returning`: dead-lettered from the target and routed back."),
    _long("tracked", "Arrivals with a stamp that were judged by it; what follows is about them."),
    _long("forwarded", "Tracked arrivals that went to the target."),
    _long("marked", "Those of `forwarded` that carried the mark."),
    _long("dropped", "Tracked arrivals that went nowhere: duplicates, acknowledged and counted."),
)

EVENTS: Final = Table(
    "events",
    "What the shim records: one row for each arrival. Partitioned by date and queue.",
    3,
    (*COLUMNS, _DATE),
)

CELLS: Final = Table(
    "cells",
    "State of the audit: 32 neighbouring sequences of one publisher in one hour, a bit for each. Counts add up and masks are "
    "OR-ed, so days, micro-batches and late files merge into the same answer in any order. Arrivals without a stamp are in "
    "rows without a block.",
    5,
    (
        _DATE,
        _HOUR,
        _QUEUE,
        _ANY_PUBLISHER,
        _long("block", "Sequence divided by 32; null: not tracked.", nullable=True),
        *COUNTS,
        _long("forwarded_mask", "Bit *i*: sequence 32 * block + *i* went to the target."),
        _long("unmarked_mask", "... went to the target without a mark."),
        _long("dropped_mask", "... was dropped at least once."),
        _long("quarantined_mask", "... went to quarantine."),
        _long(
            "last_min", "Lowest last sequence the shim compared an arrival with; null: none.", nullable=True
        ),
        _long(
            "opened_min",
            "Lowest sequence that opened a window, unknown publisher before; null: none.",
            nullable=True,
        ),
    ),
)

COVERAGE: Final = Table(
    "coverage",
    "State of the audit: which records of the log are there, a bit for each offset. OR-ed and added up like cells.",
    4,
    (
        _DATE,
        _QUEUE,
        _long("token", "Fencing token of the relay."),
        _long("block", "Offset divided by 32."),
        _long("records", "Records, repeated ones included."),
        _long("mask", "Bit *i*: the record of offset 32 * block + *i* is there."),
        _long("last", "Highest offset."),
        _long(
            "before_token",
            "Relay of the last record before this relay's first; 0: none, or the first is not in this block.",
        ),
        _long("before_offset", "Offset of that record."),
    ),
)

EARLY_DROPS: Final = Table(
    "early_drops",
    "State of the audit: messages dropped before any copy of them was stored, as far as one day or one micro-batch can tell. "
    "Most were stored the day before; `findings` looks at all of the log and decides.",
    4,
    (_DATE, _QUEUE, _PUBLISHER, _long("sequence", "Sequence of the message.")),
)

HISTOGRAMS: Final = Table(
    "histograms",
    "How late re-sends come, and how far behind. Four buckets for each power of two, so a bucket is at most 25 % wide; counts "
    "add up.",
    5,
    (
        _DATE,
        _QUEUE,
        Column(
            "measure",
            Kind.STRING,
            "`retry-latency`: arrival minus first send, microseconds, of arrivals with attempt 2 and more (two clocks: their "
            "difference is in it). `window-depth`: last sequence minus this one, sequences, of arrivals behind the last.",
        ),
        Column("verdict", Kind.STRING, "What the shim thought of the arrivals."),
        _long("low", "Lowest value of the bucket; -1: negative latency, the clocks differ."),
        _long("high", "Highest value of the bucket."),
        _long("events", "Arrivals in the bucket."),
    ),
)

#: What the jobs keep; everything else is computed from it, and from the few events it points to.
STATE: Final = (CELLS, COVERAGE, EARLY_DROPS, HISTOGRAMS)

LOG_GAPS: Final = Table(
    "log_gaps",
    "What the log does not hold. With a hole (`offsets`, `end`) nothing is proven about its queue: the verdict is "
    "`incomplete`, never `clean`.",
    4,
    (
        _QUEUE,
        Column(
            "kind",
            Kind.STRING,
            "`offsets`: arrivals a relay numbered. `end`: its last ones, which the next relay knew to be told. `beginning`: "
            "arrivals before the log begins, no hole.",
        ),
        _long("token", "Fencing token of the relay."),
        _long("first", "First missing offset."),
        _long("last", "Last missing offset."),
        _long("missing", "How many are missing."),
    ),
)

RATES: Final = Table(
    "rates",
    "Arrivals, duplicates and marks of each publisher in each hour.",
    4,
    (
        _DATE,
        _HOUR,
        _QUEUE,
        _ANY_PUBLISHER,
        *COUNTS,
        Column("duplicate_share", Kind.DOUBLE, "`duplicates` / `events`, 0 to 1."),
    ),
)

CAUSES: Final = Table(
    "causes",
    "Where arrivals come from that are not simply first.",
    4,
    (
        _DATE,
        _QUEUE,
        _ANY_PUBLISHER,
        Column(
            "cause",
            Kind.STRING,
            "`publisher-retry`: a duplicate with attempt 2 and more. `broker-redelivery`: a duplicate with attempt 1: the "
            "broker delivered it again, or its publisher does not number attempts, or its retry overtook it. `same-message-id`: a duplicate without a stamp, told by "
            "its message id. `second-owner`: "
            "too old and from a lower range: an older owner of the id still publishes. `late`: too old in the same range. "
            "`dead-letter`: it died in the target and was routed back.",
        ),
        _long("events", "Arrivals."),
    ),
)

VERDICT: Final = Table(
    "verdict",
    "The verdict on the shim, for each publisher of each queue.",
    2,
    (
        _QUEUE,
        _PUBLISHER,
        _long("tracked", "Arrivals judged by their stamp."),
        _long("messages", "Different messages among them."),
        _long("duplicates", "Arrivals that were not the first of their message: `tracked` - `messages`."),
        _long("forwarded", "Arrivals that went to the target."),
        _long("marked", "Those of `forwarded` that carried the mark."),
        _long("dropped", "Arrivals that were dropped."),
        _long("quarantined_only", "Messages that are in quarantine and not in the target."),
        _long("lost", "Messages dropped, and never forwarded or quarantined."),
        _long("false_drops", "Messages dropped before their first copy was stored; a retry repaired it."),
        _long("escaped", "Copies forwarded without a mark after another copy was forwarded."),
        _long(
            "unproven",
            "Messages whose drop cannot be judged: they are not above what the publisher had reached when the log begins.",
        ),
        _long("missing", "Sequences that never arrived between the lowest and the highest, jumps left out."),
        _long("jumps", "Jumps to a new range: over more than 2^20 sequences at once."),
        Column("log_complete", Kind.BOOLEAN, "The log of the queue has no hole."),
        Column(
            "verdict",
            Kind.STRING,
            "`convicted`: something escaped, or the log is complete and something was lost or falsely dropped. `incomplete`: "
            "the log has a hole and nothing escaped. `unproven`: a drop cannot be judged. `clean`: none of these.",
        ),
    ),
)

FINDINGS: Final = Table(
    "findings",
    "Each message the shim treated wrongly, and where to look.",
    6,
    (
        Column("kind", Kind.STRING, "`lost`, `false-drop`, `escaped` or `unproven`, as in `verdict`."),
        _QUEUE,
        _PUBLISHER,
        _long("sequence", "Sequence of the message."),
        _long("token", "Fencing token of the relay that did it."),
        _long(
            "offset", "Offset of the arrival: of a drop the first one, of an escape the copy that escaped."
        ),
        _long("batch", "Batch it was settled in."),
        Column("arrived_at", Kind.TIMESTAMP, "When it arrived."),
        _long(
            "stored_token",
            "Relay that stored the first copy, in target or quarantine; null: nobody.",
            nullable=True,
        ),
        _long("stored_offset", "Offset of that copy; null: there is none.", nullable=True),
        _long("copies", "Arrivals of the message."),
    ),
)

CHECKS: Final = Table(
    "checks",
    "The numbers that decide, each against its threshold.",
    1,
    (
        Column("name", Kind.STRING, "What is checked."),
        Column("value", Kind.DOUBLE, "What was found."),
        Column(
            "threshold", Kind.DOUBLE, "The highest value that passes; null: for information.", nullable=True
        ),
        Column(
            "status",
            Kind.STRING,
            "`pass`, `fail`, or `incomplete`: the log has a hole, so a zero proves nothing.",
        ),
    ),
)

#: What the audit answers.
RESULTS: Final = (LOG_GAPS, RATES, CAUSES, HISTOGRAMS, VERDICT, FINDINGS, CHECKS)
