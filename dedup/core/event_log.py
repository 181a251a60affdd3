"""
Describe the audit's event log: one row for each arrival at the shim.

The shim writes these columns, the collector stores them and the audit reads them; this list is the contract between the
three. Files are Parquet, below ``date=YYYY-MM-DD/queue=<name>/``. The same record may be there twice, from a collector that
was killed between its write and its acknowledgement: token and offset tell, and the audit counts it once. A column that is
added one day is nullable, so that files from before it stay readable.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen


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


#: Folders, outermost first; `queue` is a column of the rows too.
PARTITIONS = ("date", "queue")

COLUMNS = (
    Column("queue", Kind.STRING, "The guarded queue (the target)."),
    Column("token", Kind.LONG, "Fencing token of the relay that judged it; a later relay has a higher one."),
    Column("offset", Kind.LONG, "Number of the arrival, from 1 for each token, without a hole."),
    Column(
        "batch",
        Kind.LONG,
        "Number of the batch it was settled in, rising by one over all tokens of the queue.",
    ),
    Column("arrived_at", Kind.TIMESTAMP, "When the shim took it, by the shim's clock."),
    Column("publisher", Kind.STRING, "Publisher id; null: unstamped.", nullable=True),
    Column("sequence", Kind.LONG, "Sequence, 1 to 2^63 - 1; null: unstamped or unreadable.", nullable=True),
    Column("attempt", Kind.INT, "How often the publisher had sent it, as far as it says; 1: once."),
    Column(
        "first_sent_at",
        Kind.TIMESTAMP,
        "When the publisher sent it first, by the publisher's clock; on re-sends only.",
        nullable=True,
    ),
    Column("verdict", Kind.STRING, "What the shim thought of it (`dedup.core.window.Verdict`)."),
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
)
