"""The collector of the event log on a real broker: each row once, whatever is killed when, and nothing lost while it waits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pq = pytest.importorskip("pyarrow.parquet")

import pika  # noqa: E402

from dedup.amqp091.topology import guard, unguard  # noqa: E402
from dedup.core import names  # noqa: E402
from dedup.core.event_log import encode_record  # noqa: E402
from dedup.core.records import Position  # noqa: E402
from dedup.core.steps import Arrival, Outgoing, Record  # noqa: E402
from dedup.core.window import Verdict  # noqa: E402
from dedup.eventlog.collector import Collector, CollectorSettings  # noqa: E402
from dedup.eventlog.folder import Folder, Place, Stretch  # noqa: E402
from dedup.testing.process import spawn  # noqa: E402
from dedup.testing.servers import RabbitMQ  # noqa: E402
from tests.looking import PATIENCE_S, channel, until  # noqa: E402

TOKEN = 7
ROWS = 20
#: Any time of one day; so all rows are in one partition.
AT_S = 1_795_000_000.0


@pytest.fixture
def queue(rabbitmq: RabbitMQ, queue_name: str) -> Iterator[str]:
    """Give a guarded queue."""
    guard(rabbitmq.url, queue_name, declare="classic")
    yield queue_name
    unguard(rabbitmq.url, queue_name, bindings="drop", force=True)


def record(number: int) -> Record:
    """Return the record of batch *number*, from 1."""
    first = (number - 1) * ROWS + 1
    rows = [
        Outgoing(Arrival(n, redelivered=False, publisher="shop", sequence=n), Verdict.NEW, depth=-1)
        for n in range(first, first + ROWS)
    ]
    return Record(TOKEN, number, first, Position(TOKEN, first - 1), AT_S, (), rows)


def tell(rabbitmq: RabbitMQ, queue: str, *bodies: bytes) -> None:
    """Put messages into the audit's queue."""
    with channel(rabbitmq) as opened:
        for body in bodies:
            opened.basic_publish(
                "", names.audit(queue), body, pika.BasicProperties(delivery_mode=2), mandatory=True
            )


def tell_batches(rabbitmq: RabbitMQ, queue: str, *numbers: int) -> None:
    """Put the records of batches into the audit's queue."""
    tell(rabbitmq, queue, *(encode_record(queue, record(number)) for number in numbers))


def collect(rabbitmq: RabbitMQ, queue: str, folder: Folder) -> None:
    """Collect what there is."""
    Collector(folder, CollectorSettings(until_empty=True)).run(rabbitmq.url, [queue], lambda: False)


def offsets(log: Path) -> list[int]:
    """Return the offset of every row in every file."""
    return sorted(
        offset
        for file in log.rglob("*.parquet")
        for offset in pq.ParquetFile(file).read(["offset"])["offset"].to_pylist()
    )


def rows_of(batches: int) -> list[int]:
    """Return the offsets of the first so many batches."""
    return list(range(1, batches * ROWS + 1))


def test_what_was_told_is_kept(rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
    """Each row is in a file, and nothing is left in the queue."""
    tell_batches(rabbitmq, queue, *range(1, 31))
    collect(rabbitmq, queue, Folder(str(tmp_path)))
    assert offsets(tmp_path) == rows_of(30)
    collect(rabbitmq, queue, Folder(str(tmp_path)))
    assert offsets(tmp_path) == rows_of(30)


class Killed(BaseException):
    """Ends a collector where a kill would."""


class Dying(Folder):
    """Keeps rows, then dies before anybody hears of it."""

    def add(self, place: Place, rows: object, stretches: object) -> str:
        """Keep them and die."""
        super().add(place, rows, stretches)  # type: ignore[arg-type]
        raise Killed


def test_rows_that_are_in_a_file_already_are_not_kept_twice(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    """Killed between the file and the acknowledgement, with more to come behind: the files overlap nowhere."""
    tell_batches(rabbitmq, queue, 1, 2, 3)
    with pytest.raises(Killed):
        collect(rabbitmq, queue, Dying(str(tmp_path)))
    assert offsets(tmp_path) == rows_of(3)
    tell_batches(rabbitmq, queue, 4, 5)
    collect(rabbitmq, queue, Folder(str(tmp_path)))
    assert offsets(tmp_path) == rows_of(5)


def test_a_record_told_twice_is_kept_once(rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
    """A batch that was published again after a refusal is told again, with the same numbers."""
    tell_batches(rabbitmq, queue, 1, 2, 2, 3)
    collect(rabbitmq, queue, Folder(str(tmp_path)))
    assert offsets(tmp_path) == rows_of(3)


def test_what_is_no_record_is_put_aside(rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
    """Its bytes are kept, and the records around it too."""
    good = [encode_record(queue, record(number)) for number in (1, 2)]
    tell(rabbitmq, queue, good[0], b"junk", b"", good[1])
    collect(rabbitmq, queue, Folder(str(tmp_path)))
    assert offsets(tmp_path) == rows_of(2)
    aside = sorted(path.read_bytes() for path in (tmp_path / "_unreadable").iterdir())
    assert aside == [b"", b"junk"]


def test_a_record_of_another_queue_goes_nowhere_else(rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
    """Whoever may publish to one audit queue cannot write into another's partition."""
    tell(rabbitmq, queue, encode_record("../elsewhere", record(1)))
    collect(rabbitmq, queue, folder := Folder(str(tmp_path)))
    assert [place.queue for place in folder.places()] == [queue]
    assert folder.stretches(folder.places()[0]) == [Stretch(TOKEN, 1, ROWS)]


def start(rabbitmq: RabbitMQ, queue: str, log: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start a collector as a process of its own, which writes small files often."""
    options = ["--amqp", rabbitmq.url, "--queue", queue, "--into", str(log), "--age-s", "1", "--rows", "60"]
    return spawn(
        [sys.executable, "-m", "dedup.cli", "audit", "collect", *options, "--log-format", "json"],
        environment=dict(os.environ),
        output=output,
    )


def wait_for(log: Path, batches: int) -> None:
    """Wait until so many batches are in files."""
    until(lambda: offsets(log) == rows_of(batches))


def test_collectors_are_killed_and_each_row_is_kept_once(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    """SIGKILL at random moments while records come in; a standby takes over each time."""
    log, told = tmp_path / "log", 0
    chance = random.Random(11)
    running = [start(rabbitmq, queue, log, tmp_path / "0.log")]
    try:
        for round_number in range(1, 7):
            running.append(start(rabbitmq, queue, log, tmp_path / f"{round_number}.log"))
            more = range(told + 1, told + 41)
            tell_batches(rabbitmq, queue, *more)
            told = more[-1]
            time.sleep(chance.uniform(0.2, 2.0))
            running[0].kill()
            running.pop(0).wait()
        tell_batches(rabbitmq, queue, told + 1)  # only the last one is left to take it
        wait_for(log, told + 1)
        running[0].send_signal(signal.SIGTERM)
        assert running[0].wait(PATIENCE_S) == 0
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_while_the_log_cannot_be_written_the_queue_holds(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    """A place that takes no files keeps the collector waiting; when it does, nothing is missing."""
    log = tmp_path / "log"
    log.write_text("in the way")
    tell_batches(rabbitmq, queue, *range(1, 11))
    output = tmp_path / "collector.log"
    process = start(rabbitmq, queue, log, output)
    try:
        until(lambda: b"dedup.unavailable" in output.read_bytes() or process.poll() is not None)
        assert process.poll() is None, output.read_text()
        log.unlink()
        wait_for(log, 10)
    finally:
        process.kill()
        process.wait()
