"""
Keep the event log as Parquet files, on a disk or in an object store, each row once.

``date=2026-01-31/queue=orders/1798000000123-1-1798000000123-52000.parquet``: a file is named by its first and its last row
(token, offset), and says in its own metadata which rows it has. A file is there whole or not at all: on a disk it is written
under another name, forced to the medium and renamed; in an object store an upload that is not completed leaves nothing.
"""

from __future__ import annotations

import datetime as dt
import functools
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import frozen

from dedup.core.event_log import COLUMNS, Kind
from dedup.core.urls import mask_url
from dedup.errors import ConfigError, LogUnavailableError

Method = TypeVar("Method", bound=Callable[..., Any])

_TYPES: Final = {
    Kind.STRING: pa.string(),
    Kind.LONG: pa.int64(),
    Kind.INT: pa.int32(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
#: The columns of the log, in Arrow's words.
SCHEMA: Final = pa.schema(
    [pa.field(column.name, _TYPES[column.kind], nullable=column.nullable) for column in COLUMNS]
)
#: Where a file's metadata says which rows it has.
_STRETCHES: Final = b"dedup.stretches"
_SUFFIX: Final = ".parquet"
#: What cannot be read is put here; readers of the log pass over names that begin so.
_UNREADABLE: Final = "_unreadable"


def _explained(method: Method) -> Method:
    """
    Turn what the system says into an error that names the log.
    """

    @functools.wraps(method)
    def explained(self: Folder, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except (OSError, pa.ArrowException) as error:
            raise LogUnavailableError(f"the event log at {self.name}: {error}") from error

    return cast("Method", explained)


@frozen(order=True)
class Stretch:
    """
    Rows of one token that follow one another.
    """

    token: int
    first: int
    last: int

    def holds(self, other: Stretch) -> bool:
        """
        Say whether all rows of *other* are in this one.
        """
        return self.token == other.token and self.first <= other.first and other.last <= self.last


@frozen(order=True)
class Place:
    """
    One partition of the log.
    """

    date: dt.date
    queue: str

    @property
    def path(self) -> str:
        """
        Return its folder; names of queues are written as in URLs, with nothing left as it is that a path could mean.
        """
        return f"date={self.date.isoformat()}/queue={quote(self.queue, safe='')}"


class Folder:
    """
    Where the event log is.

    Args:
        url: A folder of this machine, or ``s3://bucket/path``, ``gs://``, ``hdfs://`` as pyarrow understands them.

    Raises:
        ConfigError: pyarrow cannot make anything of it.
    """

    def __init__(self, url: str) -> None:
        #: Where it is, without a password.
        self.name = mask_url(url)
        try:
            if "://" in url:
                self._files, self._root = pafs.FileSystem.from_uri(url)
            else:
                self._files, self._root = pafs.LocalFileSystem(), str(Path(url).absolute())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigError(
                f"{self.name!r} is no place for the event log: {error}; name a folder or s3://BUCKET/PATH"
            ) from error
        self._root = self._root.rstrip("/")
        self._on_disk = isinstance(self._files, pafs.LocalFileSystem)

    @_explained
    def stretches(self, place: Place) -> list[Stretch]:
        """
        Return which rows of *place* are kept, from the metadata of its files.

        Raises:
            LogUnavailableError: it cannot be reached, or a file is torn.
        """
        found = []
        for info in self._listed(place):
            metadata = pq.read_metadata(info.path, filesystem=self._files).metadata or {}
            found += [Stretch(*numbers) for numbers in json.loads(metadata.get(_STRETCHES, b"[]"))]
        return found

    @_explained
    def add(self, place: Place, rows: Mapping[str, Sequence[Any]], stretches: Iterable[Stretch]) -> str:
        """
        Keep *rows* of *place*, and return the path of the file; it lasts when this returns.

        Args:
            rows: Column -> values, as `dedup.core.event_log.decode_record` gives them.
            stretches: Which rows they are, in order.

        Raises:
            LogUnavailableError: nothing was kept.
        """
        return self._write(place, pa.table(dict(rows), SCHEMA), list(stretches))

    @_explained
    def put_aside(self, queue: str, name: str, body: bytes) -> str:
        """
        Keep a message that is no record, and return the path of the file.

        Raises:
            LogUnavailableError: nothing was kept.
        """
        path = f"{self._root}/{_UNREADABLE}/{quote(queue, safe='')}-{name}"
        self._store(path, body)
        return path

    @_explained
    def compact(self, place: Place) -> tuple[int, int]:
        """
        Put all files of *place* into one, each row once; return how many there were and how many there are.

        Cut off in between it leaves rows in two files; the audit counts them once, and the next compaction removes them.

        Raises:
            LogUnavailableError: the log cannot be reached, or a file is torn; nothing was removed.
        """
        infos = self._listed(place)
        stretches = joined(self.stretches(place))
        if len(infos) < 2 or not stretches:
            # Files of another make do not say which rows they have; the audit reads them as they are.
            return len(infos), len(infos)
        table = pa.concat_tables(
            [pq.ParquetFile(info.path, filesystem=self._files).read(SCHEMA.names) for info in infos]
        ).cast(SCHEMA)
        table = table.sort_by([("token", "ascending"), ("offset", "ascending")])
        kept = self._write(place, _each_once(table), stretches)
        for info in infos:
            if info.path != kept:
                self._files.delete_file(info.path)
        return len(infos), 1

    @_explained
    def places(self, *, first: dt.date | None = None, last: dt.date | None = None) -> list[Place]:
        """
        Return the partitions from day *first* to day *last*.

        Raises:
            LogUnavailableError: the log cannot be reached.
        """
        found = []
        for day, path in self._folders(self._root, "date="):
            try:
                date = dt.date.fromisoformat(day)
            except ValueError:
                continue
            if (first is None or first <= date) and (last is None or date <= last):
                found += [Place(date, unquote(queue)) for queue, _ in self._folders(path, "queue=")]
        return sorted(found)

    def _folders(self, path: str, prefix: str) -> list[tuple[str, str]]:
        """
        Return the folders in *path* whose name begins with *prefix*: the rest of the name, and the path.
        """
        infos = self._files.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return [
            (info.base_name.removeprefix(prefix), info.path)
            for info in infos
            if info.type == pafs.FileType.Directory and info.base_name.startswith(prefix)
        ]

    def _listed(self, place: Place) -> list[Any]:
        selector = pafs.FileSelector(f"{self._root}/{place.path}", allow_not_found=True)
        infos = [
            info
            for info in self._files.get_file_info(selector)
            if info.is_file and info.base_name.endswith(_SUFFIX) and info.base_name[0] not in "._"
        ]
        return sorted(infos, key=lambda info: str(info.base_name))

    def _write(self, place: Place, table: pa.Table, stretches: Sequence[Stretch]) -> str:
        told = json.dumps([[one.token, one.first, one.last] for one in stretches])
        table = table.replace_schema_metadata({_STRETCHES: told})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        begin, end = stretches[0], stretches[-1]
        name = f"{begin.token}-{begin.first}-{end.token}-{end.last}{_SUFFIX}"
        path = f"{self._root}/{place.path}/{name}"
        self._store(path, buffer.getvalue())
        return path

    def _store(self, path: str, data: bytes) -> None:
        if not self._on_disk:
            with self._files.open_output_stream(path) as stream:
                stream.write(data)
            return
        final = Path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """
    Return the same rows in as few stretches as possible, in order.
    """
    found: list[Stretch] = []
    for one in sorted(stretches):
        newest = found[-1] if found else None
        if newest is not None and newest.token == one.token and one.first <= newest.last + 1:
            found[-1] = Stretch(one.token, newest.first, max(newest.last, one.last))
        else:
            found.append(one)
    return found


def _each_once(table: pa.Table) -> pa.Table:
    """
    Return the rows of a sorted *table* without those that have the token and offset of the row before.
    """
    if table.num_rows < 2:
        return table
    same = None
    for name in ("token", "offset"):
        column = table[name].combine_chunks()
        equal = pa.compute.equal(column[1:], column[:-1])
        same = equal if same is None else pa.compute.and_(same, equal)
    keep = pa.concat_arrays([pa.array([True]), pa.compute.invert(same)])
    return table.filter(keep)
