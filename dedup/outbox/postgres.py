"""An outbox in an application's PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import psycopg

from dedup.core.urls import mask_url
from dedup.errors import DedupError, OutboxError, OutboxInUseError, OutboxUnavailableError
from dedup.outbox.dialects import POSTGRESQL
from dedup.outbox.store import Store

#: High half of the advisory lock's key; the table's oid is the low one.
_LOCK: Final = int.from_bytes(b"dedu", "big") << 32
_CONNECT_TIMEOUT_S: Final = 10
#: A relay whose database has gone silent must not go on sending: somebody else may have the lock.
_SILENCE: Final[dict[str, Any]] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


class PostgresStore(Store):
    """
    The tables in one database, found by its search path.

    A relay holds a session's advisory lock, which the server frees when the session ends. Everything it writes goes over
    that same session: who has lost the lock can write nothing any more.

    Args:
        url: ``postgresql://...``, or what libpq takes.
        lock: Take the lock, or only look.

    Raises:
        OutboxInUseError: another session holds the lock.
        OutboxUnavailableError: the server cannot be reached.
        OutboxError: there are no tables.
    """

    dialect = POSTGRESQL

    def __init__(self, url: str, *, lock: bool) -> None:
        self._url = mask_url(url)
        self._connection: psycopg.Connection[Any] | None = None
        with self._converted():
            self._connection = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=_CONNECT_TIMEOUT_S,
                application_name="dedup outbox",
                **_SILENCE,
            )
        try:
            # Whatever the role's default is: a number that was lost would be given a second time.
            self._ask(
                "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
            )
            self._prepare(lock=lock)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_application(cls, url: str) -> Self:
        """
        Open it to send what is in it.
        """
        return cls(url, lock=True)

    @classmethod
    def look(cls, url: str) -> Self:
        """
        Open it to read, beside whoever works on it.
        """
        return cls(url, lock=False)

    @property
    def name(self) -> str:
        """
        The URL without its password.
        """
        return self._url

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Begin; commit at the end of the block, roll back when it raises.
        """
        assert self._connection is not None
        with self._converted(), self._connection.transaction():
            yield

    def close(self) -> None:
        """
        End the session, and with it the lock.
        """
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()

    def holder(self) -> int | None:
        """
        Return the server process whose session holds the lock; None when none does.
        """
        rows = self._ask(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid::bigint = ? AND objid::bigint = ? "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            _LOCK >> 32,
            self._table(),
        )
        return rows[0][0] if rows else None

    def _run(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        assert self._connection is not None
        with self._converted():
            cursor = self._connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def _run_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        assert self._connection is not None
        with self._converted(), self._connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    def _prepare(self, *, lock: bool) -> None:
        if not self._table():
            raise OutboxError(f"{self._url} has no outbox; make one with dedup.Outbox.create(connection)")
        if lock and not self._ask("SELECT pg_try_advisory_lock(?)", _LOCK | self._table())[0][0]:
            pid = self.holder()
            raise OutboxInUseError(
                f"the outbox in {self._url} is in use by another relay (server process {pid}); one at a time sends",
                pid=pid,
            )

    def _table(self) -> int:
        rows = self._ask(
            "SELECT COALESCE(to_regclass('dedup_outbox')::oid::bigint, 0) WHERE to_regclass('dedup_outbox_state') IS NOT NULL"
        )
        return int(rows[0][0]) if rows else 0

    @contextmanager
    def _converted(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise _converted(error, self._url) from error


def _converted(error: psycopg.Error, url: str) -> DedupError:
    """
    Return what dedup says about an error of PostgreSQL; the driver's text has host and user in it, never the password.
    """
    text = " ".join(str(error).split())
    if isinstance(
        error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.errors.ReadOnlySqlTransaction
    ):
        return OutboxUnavailableError(
            f"the outbox in {url} cannot be used now: {text}; check that the server runs, takes writes and has room"
        )
    return OutboxError(f"the outbox in {url} cannot be used: {text}")
