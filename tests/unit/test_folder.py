"""The event log keeps each row once, whole files only, below folders that any queue name can be read from."""

from __future__ import annotations

import datetime as dt
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pafs = pytest.importorskip("pyarrow.fs")
pq = pytest.importorskip("pyarrow.parquet")

from dedup.core.event_log import decode_record, encode_record  # noqa: E402
from dedup.core.records import Position  # noqa: E402
from dedup.core.steps import Arrival, Outgoing, Record  # noqa: E402
from dedup.core.window import Verdict  # noqa: E402
from dedup.errors import ConfigError, LogUnavailableError  # noqa: E402
from dedup.eventlog.folder import Folder, Place, Stretch  # noqa: E402

DAY = dt.date(2026, 11, 21)
PLACE = Place(DAY, "a/b ü=%2F..")


def rows(first: int, count: int, token: int = 7) -> dict[str, list[Any]]:
    """Return the columns of *count* rows."""
    judged = [
        Outgoing(Arrival(n, redelivered=False, publisher="shop", sequence=n), Verdict.NEW)
        for n in range(first, first + count)
    ]
    return decode_record(
        encode_record(PLACE.queue, Record(token, 1, first, Position(0, 0), 1.795e9, (), judged))
    )


def offsets(folder: Path) -> list[int]:
    """Return the offsets in all files, in order."""
    return sorted(
        offset
        for file in folder.rglob("*.parquet")
        for offset in pq.ParquetFile(file).read()["offset"].to_pylist()
    )


def test_a_file_says_which_rows_it_has(tmp_path: Path) -> None:
    """Whatever the name of the queue: nothing leaves the folder, and the name comes back."""
    folder = Folder(str(tmp_path))
    folder.add(PLACE, rows(1, 3), [Stretch(7, 1, 3)])
    folder.add(PLACE, rows(4, 2), [Stretch(7, 4, 5)])
    assert sorted(folder.stretches(PLACE)) == [Stretch(7, 1, 3), Stretch(7, 4, 5)]
    assert folder.places() == [PLACE]
    assert folder.places(first=DAY + dt.timedelta(days=1)) == []
    assert [file.parent.parent.parent for file in tmp_path.rglob("*.parquet")] == [tmp_path] * 2


def test_the_same_rows_are_the_same_file(tmp_path: Path) -> None:
    """A collector that dies before it could acknowledge writes the same again."""
    folder = Folder(str(tmp_path))
    paths = {folder.add(PLACE, rows(1, 3), [Stretch(7, 1, 3)]) for _ in range(2)}
    assert len(paths) == 1
    assert offsets(tmp_path) == [1, 2, 3]


def test_compaction_keeps_each_row_once(tmp_path: Path) -> None:
    """Files that overlap, as an interrupted compaction leaves them, become one with every row once."""
    folder = Folder(str(tmp_path))
    folder.add(PLACE, rows(1, 3), [Stretch(7, 1, 3)])
    folder.add(PLACE, rows(2, 4), [Stretch(7, 2, 5)])
    folder.add(PLACE, rows(1, 2, token=8), [Stretch(8, 1, 2)])
    assert offsets(tmp_path) == [1, 1, 2, 2, 2, 3, 3, 4, 5]
    assert folder.compact(PLACE) == (3, 1)
    assert offsets(tmp_path) == [1, 1, 2, 2, 3, 4, 5]
    assert folder.stretches(PLACE) == [Stretch(7, 1, 5), Stretch(8, 1, 2)]
    assert folder.compact(PLACE) == (1, 1)


def test_files_of_another_make_are_left_alone(tmp_path: Path) -> None:
    """What does not say which rows it has is not put together with anything."""
    folder = Folder(str(tmp_path))
    for first in (1, 4):
        path = Path(folder.add(PLACE, rows(first, 3), [Stretch(7, first, first + 2)]))
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    assert folder.compact(PLACE) == (2, 2)
    assert offsets(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_torn_file_is_told_and_nothing_is_removed(tmp_path: Path) -> None:
    """Compaction names the file that cannot be read, and leaves all of them."""
    folder = Folder(str(tmp_path))
    kept = Path(folder.add(PLACE, rows(1, 3), [Stretch(7, 1, 3)]))
    torn = kept.with_name("7-4-7-6.parquet")
    torn.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(LogUnavailableError):
        folder.compact(PLACE)
    assert kept.exists()
    assert torn.exists()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file grow beyond *size* bytes: the system refuses the rest, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    """The error says where; no file, whole or torn, is there; with room again it goes on."""
    folder = Folder(str(tmp_path))
    with room_for(1000), pytest.raises(LogUnavailableError, match=str(tmp_path)):
        folder.add(PLACE, rows(1, 300), [Stretch(7, 1, 300)])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    folder.add(PLACE, rows(1, 300), [Stretch(7, 1, 300)])
    assert len(offsets(tmp_path)) == 300


def test_an_object_store_is_a_place_like_a_folder() -> None:
    """Files, what they hold, and compaction, through the protocol of S3; an error tells no secret."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        where = f"scheme=http&region=us-east-1&endpoint_override={host}:{port}"
        fs, _ = pafs.FileSystem.from_uri(f"s3://user:s3cret@log?{where}&allow_bucket_creation=true")
        fs.create_dir("log")
        folder = Folder(f"s3://user:s3cret@log/events?{where}")
        folder.add(PLACE, rows(1, 3), [Stretch(7, 1, 3)])
        folder.add(PLACE, rows(2, 4), [Stretch(7, 2, 5)])
        assert folder.places() == [PLACE]
        assert folder.compact(PLACE) == (2, 1)
        assert folder.stretches(PLACE) == [Stretch(7, 1, 5)]
        with pytest.raises(LogUnavailableError) as caught:
            Folder(f"s3://user:s3cret@elsewhere/events?{where}").add(PLACE, rows(1, 3), [Stretch(7, 1, 3)])
        assert "s3cret" not in str(caught.value)
    finally:
        server.stop()


def test_what_is_no_record_is_put_where_readers_do_not_look(tmp_path: Path) -> None:
    """Its bytes are kept as they are, outside of every partition."""
    path = Path(Folder(str(tmp_path)).put_aside("a/b", "c0ffee", b"junk"))
    assert path.read_bytes() == b"junk"
    assert path.relative_to(tmp_path).parts[0] == "_unreadable"


def test_a_place_that_cannot_be_is_refused() -> None:
    """Early, and with what could be given instead."""
    with pytest.raises(ConfigError, match="name a folder"):
        Folder("carrier-pigeon://log")
