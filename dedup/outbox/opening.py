"""Open the outbox that a text names: a PostgreSQL URL, or an SQLite file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from dedup.errors import ConfigError
from dedup.outbox import lock
from dedup.outbox.sqlite import SQLiteStore, file_of

if TYPE_CHECKING:
    from dedup.outbox.postgres import PostgresStore
    from dedup.outbox.store import Store

_POSTGRESQL: Final = ("postgresql://", "postgres://")


def open_to_send(database: str) -> Store:
    """
    Open an outbox and hold it.

    Raises:
        OutboxInUseError: somebody else does.
        OutboxUnavailableError: it cannot be reached or written now.
        OutboxError: it cannot be used at all.
        ConfigError: psycopg is not installed.
    """
    if is_postgresql(database):
        return _postgres().of_application(database)
    return SQLiteStore.of_application(_file(database))


def open_to_look(database: str) -> Store:
    """
    Open an outbox to read, beside whoever holds it.
    """
    if is_postgresql(database):
        return _postgres().look(database)
    return SQLiteStore.look(_file(database))


def holder(database: str, store: Store) -> int | None:
    """
    Return the process that holds an outbox, of PostgreSQL's own for a database; None when nobody does.
    """
    if is_postgresql(database):
        assert isinstance(store, _postgres())
        return store.holder()
    return lock.holder(_file(database))


def is_postgresql(database: str) -> bool:
    """
    Say whether a text names a PostgreSQL database.
    """
    return database.startswith(_POSTGRESQL)


def _file(database: str) -> Path:
    scheme, found, _ = database.partition("://")
    if found:
        raise ConfigError(f"an outbox is in postgresql:// or in an SQLite file, not in {scheme}://")
    return file_of(database)


def _postgres() -> type[PostgresStore]:
    try:
        from dedup.outbox.postgres import PostgresStore  # noqa: PLC0415 psycopg is an extra
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ConfigError("an outbox in PostgreSQL needs psycopg: pip install 'dedup[postgres]'") from error
    return PostgresStore
