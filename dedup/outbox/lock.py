"""One process at a time on one outbox: a lock of the operating system, which ends with its holder however that dies."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from dedup.errors import OutboxInUseError, OutboxUnavailableError

#: Behind the name of the database; the file stays, because deleting it would let two in.
SUFFIX: Final = ".outbox-lock"
_PID_BYTES_MAX: Final = 32
#: (device, inode) -> process that holds it: the kernel's lock is the process's, not the object's.
_HELD: dict[tuple[int, int], int] = {}
#: Looking whether it is ours, and taking it, are one step: to the kernel all threads are one holder.
_ONE_AT_A_TIME: Final = threading.Lock()


class FileLock:
    """
    A lock beside a database file.

    A POSIX record lock: a fork does not inherit it, and NFS passes it on where its lock service runs. It is not on the
    database itself, where SQLite has locks of its own that closing this file would drop. It is beside the file itself, not
    beside a symbolic link to it: all who mean one outbox meet at one lock.

    Raises:
        OutboxInUseError: somebody holds it; *pid* is the holder.
        OutboxUnavailableError: the file cannot be made.
    """

    def __init__(self, database: Path) -> None:
        with _ONE_AT_A_TIME:
            self._take(database)

    def release(self) -> None:
        """
        Let the next one in.
        """
        with _ONE_AT_A_TIME:
            _HELD.pop(self._key, None)
            os.close(self._file)

    def _take(self, database: Path) -> None:
        path = _path(database)
        if _is_ours(path):
            raise _in_use(database, os.getpid())
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OutboxUnavailableError(
                f"{path} cannot be made: {error.strerror}; the outbox needs to write there"
            ) from error
        if not _try(self._file):
            pid = _pid(self._file)
            os.close(self._file)
            raise _in_use(database, pid)
        status = os.fstat(self._file)
        self._key = status.st_dev, status.st_ino
        _HELD[self._key] = os.getpid()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)


def holder(database: Path) -> int | None:
    """
    Return the process that holds the lock of *database*; None when nobody does, or the holder is not known.
    """
    with _ONE_AT_A_TIME:
        return _holder(_path(database))


def _holder(path: Path) -> int | None:
    if _is_ours(path):
        return os.getpid()
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _try(file) else _pid(file)
    finally:
        os.close(file)


def _path(database: Path) -> Path:
    return Path(os.path.realpath(database) + SUFFIX)


def _is_ours(path: Path) -> bool:
    """
    Say whether this process holds it; the file is not opened, because closing it would drop the lock.
    """
    try:
        status = path.stat()
    except OSError:
        return False
    return _HELD.get((status.st_dev, status.st_ino)) == os.getpid()


def _try(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _pid(file: int) -> int | None:
    text = os.pread(file, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def _in_use(database: Path, pid: int | None) -> OutboxInUseError:
    who = f"process {pid}" if pid else "another process"
    return OutboxInUseError(
        f"the outbox {database} is in use by {who}; one publisher or relay at a time works on an outbox: stop that one, or "
        "give this one an outbox and a publisher id of its own",
        pid=pid,
    )
