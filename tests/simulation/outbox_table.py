"""
The table of an outbox in a world: production statements on real SQLite, and a state that is copied with the world.

All tables of all worlds share one database in memory; whoever runs a statement finds its own rows in it. What a transaction
has written is part of the state when it is committed, and never before: a kill has nothing to undo.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dedup.errors import OutboxUnavailableError
from dedup.outbox.dialects import SQLITE
from dedup.outbox.sqlite import SQLiteStore

_COLUMNS = "id, exchange, routing_key, properties, body, created_at, sequence, sealed, failure, maybe_stored"


class Kept(NamedTuple):
    """One row, as `_COLUMNS`; nobody looks at when it was made."""

    id: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    created_at: float
    sequence: int | None = None
    sealed: int = 0
    failure: str | None = None
    maybe_stored: int = 1


class Rows(NamedTuple):
    """What is committed."""

    kept: tuple[Kept, ...] = ()
    publisher_id: str | None = None
    newest: int = 0
    #: The highest id given out.
    last_id: int = 0


class Table(SQLiteStore):
    """
    Production's store, but for its file: `rows` is what a crash leaves.
    """

    _path = Path("outbox.db")
    _lock = None
    _shared: ClassVar[sqlite3.Connection | None] = None
    #: Whose rows are in the shared database.
    _loaded: ClassVar[Rows | None] = None

    def __init__(self, rows: Rows = Rows()) -> None:  # noqa: B008 it cannot change
        self.rows = rows
        #: The next transaction cannot be committed.
        self.fails = False

    def __reduce__(self) -> Any:
        return Table, (self.rows,)

    @property
    def _connection(self) -> sqlite3.Connection:  # type: ignore[override]
        if Table._shared is None:
            Table._shared = sqlite3.connect(":memory:", isolation_level=None)
            for statement in SQLITE.schema:
                Table._shared.execute(statement)
        connection = Table._shared
        if Table._loaded is not self.rows and not connection.in_transaction:
            self._load(connection)
        return connection

    def _load(self, connection: sqlite3.Connection) -> None:
        rows = Table._loaded = self.rows
        connection.execute("DELETE FROM dedup_outbox")
        connection.executemany(
            f"INSERT INTO dedup_outbox ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows.kept
        )
        connection.execute("UPDATE sqlite_sequence SET seq = ?", (rows.last_id,))
        connection.execute(
            "UPDATE dedup_outbox_state SET publisher_id = ?, newest = ?", (rows.publisher_id, rows.newest)
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end as production does, and note what is then to be found after a crash."""
        with super().transaction():
            yield
            if self.fails:
                self.fails = False
                raise OutboxUnavailableError("the disk is full")
        self.rows = Table._loaded = self._committed()

    def _committed(self) -> Rows:
        kept = self._run(f"SELECT {_COLUMNS} FROM dedup_outbox ORDER BY id", ())
        publisher_id, newest = self._run("SELECT publisher_id, newest FROM dedup_outbox_state", ())[0]
        last_id = self._run("SELECT MAX(seq) FROM sqlite_sequence", ())[0][0] or 0
        return Rows(tuple(Kept(*row)._replace(created_at=0.0) for row in kept), publisher_id, newest, last_id)

    def insert(self, row_id: int, body: bytes) -> None:
        """Commit what an application has enqueued: its id may be lower than those that are committed already."""
        row = Kept(row_id, "", "orders", b"", body, 0.0)
        rows = self.rows
        kept: Sequence[Kept] = sorted((*rows.kept, row))
        self.rows = rows._replace(kept=tuple(kept), last_id=max(row_id, rows.last_id))

    def close(self) -> None:
        """Leave the shared database to the others."""
