"""An outbox in an SQLite file: the publisher's own, or tables in the application's."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from dedup.errors import ConfigError, DedupError, OutboxError, OutboxUnavailableError
from dedup.outbox.dialects import SQLITE
from dedup.outbox.lock import FileLock
from dedup.outbox.store import Store

#: How long an application may hold its own file's write lock before a relay calls it unavailable; seconds.
_BUSY_S: Final = 30.0
_FIXES: Final = {
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_READONLY: "the file or its disk is read-only: make it writable",
    sqlite3.SQLITE_IOERR: "the disk fails, or is full: make room and look at its log",
    sqlite3.SQLITE_BUSY: "somebody else keeps it locked: end that transaction",
    sqlite3.SQLITE_LOCKED: "somebody else keeps it locked: end that transaction",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: look at its permissions and those of its directory",
    sqlite3.SQLITE_PERM: "it cannot be opened: look at its permissions",
    sqlite3.SQLITE_NOMEM: "there is no memory",
}
#: How the names of tables begin that are an outbox's, or come of mending its file with ``.recover``.
_OWN: Final = ("dedup_outbox", "sqlite_", "lost_and_found")
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class SQLiteStore(Store):
    """
    The tables in one file.

    ``synchronous=FULL``: a commit returns after fsync. Use `own` or `of_application`, or `look` to read only.
    """

    dialect = SQLITE

    def __init__(self, path: Path, *, lock: FileLock | None, read_only: bool = False) -> None:
        self._path = path
        self._lock = lock
        with self._converted():
            # Its owner is one thread, but not the one that opens it.
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            # What is not UTF-8 must not keep the rest from being read.
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")

    @classmethod
    def own(cls, path: Path) -> Self:
        """
        Open the outbox that belongs to a publisher alone; make it where there is none.

        Raises:
            OutboxInUseError: another process has it.
            OutboxUnavailableError: it cannot be written.
            OutboxError: it is damaged, or something else.
        """
        _refuse_directory(path)
        lock = FileLock(path)
        try:
            _make(path)
            _refuse_second_name(path)
            store = cls(path, lock=lock)
        except BaseException:
            lock.release()
            raise
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def of_application(cls, path: Path) -> Self:
        """
        Open the tables in an application's file, whose journal mode stays what it is.

        Raises:
            OutboxInUseError, OutboxUnavailableError, OutboxError: as `own`; also when there are no tables.
        """
        _require(path)
        lock = FileLock(path)
        try:
            _refuse_second_name(path)
            store = cls(path, lock=lock)
        except BaseException:
            lock.release()
            raise
        try:
            store._do("PRAGMA synchronous = FULL")
            store._require_tables()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def look(cls, path: Path) -> Self:
        """
        Open it to read, beside whoever works on it.
        """
        _require(path)
        store = cls(path, lock=None, read_only=True)
        try:
            store._require_tables()
        except BaseException:
            store.close()
            raise
        return store

    @property
    def name(self) -> str:
        """
        The file.
        """
        return str(self._path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Begin; commit at the end of the block, roll back when it raises.
        """
        connection = self._connection
        with self._converted():
            connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self._converted():
                connection.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back some failures itself, and a disk that is gone cannot be asked.
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """
        Close the file, then free the lock.
        """
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _run(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        with self._converted():
            return self._connection.execute(statement, parameters).fetchall()

    def _run_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._converted():
            self._connection.executemany(statement, rows)

    def _prepare(self) -> None:
        self._refuse_foreign()
        self._do("PRAGMA journal_mode = WAL")
        self._do("PRAGMA synchronous = FULL")
        problems = [row[0] for row in self._ask("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise _damaged(self._path, str(problems[0]))
        with self.transaction():
            for statement in SQLITE.schema:
                self._do(statement)

    def _refuse_foreign(self) -> None:
        """
        Leave a database of something else as it is.
        """
        found = {
            row[0] for row in self._ask("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        }
        foreign = sorted(name for name in found if not name.startswith(_OWN))
        if foreign:
            raise OutboxError(
                f"{self._path} belongs to another program: it has {foreign[0]!r} in it; a publisher's outbox is a file of its own. To "
                "send what is committed with an application's data, use dedup.Outbox.enqueue and 'dedup outbox run'"
            )

    def _require_tables(self) -> None:
        found = self._ask(
            "SELECT COUNT(*) FROM sqlite_master WHERE name IN ('dedup_outbox', 'dedup_outbox_state')"
        )
        if found[0][0] != 2:
            raise OutboxError(f"{self._path} has no outbox; make one with dedup.Outbox.create(connection)")

    @contextmanager
    def _converted(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _converted(error, self._path) from error


def _converted(error: sqlite3.Error, path: Path) -> DedupError:
    """
    Return what dedup says about an error of SQLite.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGED:
        return _damaged(path, str(error))
    if code in _FIXES:
        return OutboxUnavailableError(f"the outbox {path} cannot be used now ({error}); {_FIXES[code]}")
    return OutboxError(f"the outbox {path} cannot be used: {error}")


def _damaged(path: Path, how: str) -> OutboxError:
    return OutboxError(
        f"{path} is damaged, or no SQLite file ({how}); nothing was changed. Move it away, save what can be saved with "
        "'sqlite3 FILE .recover', and begin with an empty one"
    )


def file_of(name: object) -> Path:
    """
    Return the path that a caller has given.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(name, str | os.PathLike) or not isinstance(path := os.fspath(name), str):
        raise ConfigError(f"outbox is the path of a file, as text or pathlib.Path, not {type(name).__name__}")
    if not path or "\0" in path:
        raise ConfigError(f"outbox is the path of a file, not {path!r}")
    return Path(path)


def _refuse_directory(path: Path) -> None:
    if os.path.isdir(path):  # noqa: PTH112 Path.is_dir() raises for names that are too long
        raise OutboxUnavailableError(f"the outbox {path} is a directory; name a file in it")


def _refuse_second_name(path: Path) -> None:
    """
    Refuse a file with hard links: SQLite would keep a log for each name, and the lock is beside one of them.
    """
    names = path.stat().st_nlink
    if names > 1:
        raise OutboxError(
            f"the outbox {path} has {names} names (hard links), through which two could work on it at once and damage it; copy it "
            "to a file of its own while nobody has it open, or use a symbolic link"
        )


def _require(path: Path) -> None:
    if not path.is_file():
        raise OutboxError(
            f"there is no outbox {path}; name the file that the publisher or the application writes"
        )


def _make(path: Path) -> None:
    """
    Make an empty file that only its owner can read, whose name survives a power cut.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(file)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise OutboxUnavailableError(f"the outbox {path} cannot be opened: {error.strerror}") from error
