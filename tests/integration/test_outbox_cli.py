"""The commands about outboxes, as a person or a script runs them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from dedup import protocols
from dedup.cli.commands import dedup
from dedup.errors import ReturnedError
from dedup.outbox.enqueue import Outbox
from dedup.outbox.opening import open_to_look, open_to_send
from dedup.publisher import Publisher
from dedup.testing.postgres import Postgres
from dedup.testing.servers import RabbitMQ
from tests.looking import PATIENCE_S, channel, depth, drain, until

DEDUP = str(Path(sys.executable).parent / "dedup")


def run(*arguments: str, code: int = 0) -> str:
    """Run a command of "dedup outbox" and return what it prints; of one that fails, what it complains with."""
    result = CliRunner().invoke(dedup, ["outbox", *arguments])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
    return result.stderr if code else result.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An application's file with three messages."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        Outbox.create(connection)
        connection.commit()
    return path


def enqueue(file: Path, *places: str) -> None:
    """Enqueue one message for each place."""
    with closing(sqlite3.connect(file)) as connection:
        for place in places:
            Outbox.enqueue(connection, b"x", routing_key=place)
        connection.commit()


def test_show_flush_retry_discard(rabbitmq: RabbitMQ, queue: str, file: Path) -> None:
    """What is there, sent; what failed, with its reason, retried and discarded; each with its exit code."""
    database = ("--database", str(file))
    broker = ("--amqp", rabbitmq.url, "--registration", "local")
    enqueue(file, queue, f"{queue}-missing", queue)
    shown_text = run("show", *database)
    assert "protocol     AMQP 0.9.1" in shown_text
    assert "to be sent   3, the oldest since" in shown_text
    assert "give --publisher-id" in run("flush", *database, *broker, code=2)
    run("flush", *database, *broker, "--publisher-id", "shop-1", "--json", code=1)
    assert depth(rabbitmq, queue) == 2
    shown = json.loads(run("show", *database, "--json"))
    assert (shown["publisher_id"], shown["failed"], shown["numbered"], shown["holder"]) == (
        "shop-1",
        1,
        0,
        None,
    )
    (failure,) = shown["failures"]
    assert failure["routing_key"] == f"{queue}-missing"
    assert "2: 1 bytes for default exchange" in run("show", *database)
    assert "give row ids" in run("retry", *database, code=2)
    assert json.loads(run("retry", "2", *database, "--json"))["reopened"] == [2]
    run("flush", *database, *broker, code=1)
    assert run("discard", "--all", *database) == "1 discarded\n"
    assert run("flush", *database, *broker) == "0 sent, 0 failed\n"


def test_a_publishers_own_outbox_is_shown_and_flushed(rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
    """While the publisher lives it can be looked at, and is held; then what it left can be sent."""
    file = tmp_path / "orders.db"
    with Publisher(rabbitmq.url, "shop-1", outbox=file, registration="local") as publisher:
        with pytest.raises(ReturnedError):
            publisher.publish(b"x", routing_key=f"{queue}-missing")
        publisher.publish(b"y", routing_key=queue)
        assert "held by      process" in run("show", "--database", str(file))
        complaint = run("retry", "--all", "--database", str(file), code=1)
        assert "is in use by process" in complaint
    assert run("retry", "--all", "--database", str(file)) == "1 keep their numbers, 0 get new ones\n"
    flush = ("flush", "--database", str(file), "--amqp", rabbitmq.url, "--registration", "local")
    run(*flush, code=1)
    with channel(rabbitmq) as opened:
        opened.queue_declare(f"{queue}-missing")
        run("retry", "--all", "--database", str(file))
        assert run(*flush) == "1 sent, 0 failed\n"
        opened.queue_delete(f"{queue}-missing")


def test_what_is_too_old_is_left_alone(file: Path) -> None:
    """Unless the operator says that it may come twice."""
    enqueue(file, "a")
    with closing(open_to_send(str(file))) as store:
        store.bind("shop-1", "amqp091")
        with store.transaction():
            store.claim(10)
        store._do("UPDATE dedup_outbox SET failure = 'no' || char(27)")
        store._do("UPDATE dedup_outbox_state SET newest = 100000")
    assert "\x1b" not in run("show", "--database", str(file))
    assert "1 stay as they are" in run("retry", "1", "--database", str(file), code=1)
    assert "1 get new ones" in run("retry", "1", "--as-new", "--database", str(file))


def test_what_cannot_be_spoken_is_not_sent(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outbox of AMQP 1.0 where the extra is missing: refused with the remedy, and shown all the same."""
    with closing(open_to_send(str(file))) as store:
        store.bind("shop-1", "amqp10")
    enqueue(file, "a")
    broken = EntryPoint("amqp10", "a_package_that_is_not_there:WIRE", protocols.PUBLISHERS)
    monkeypatch.setattr(protocols, "entry_points", lambda group: EntryPoints([broken]).select(group=group))
    for command in ("flush", "run"):
        broker = ("--amqp", "amqp://127.0.0.1:1", "--publisher-id", "shop-1")
        assert "install dedup[amqp10]" in run(command, "--database", str(file), *broker, code=2)
    assert "protocol     AMQP 1.0" in run("show", "--database", str(file))
    assert json.loads(run("show", "--database", str(file), "--json"))["protocol"] == "amqp10"


def test_run_sends_what_is_committed_until_it_is_told_to_end(
    rabbitmq: RabbitMQ, queue: str, file: Path
) -> None:
    """A second one waits for the lock and takes over; SIGTERM ends both in order."""
    command = [
        *(DEDUP, "outbox", "run", "--database", str(file), "--publisher-id", "shop-1"),
        *("--amqp", rabbitmq.url, "--registration", "local", "--log-format", "json"),
    ]
    relays = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for n in range(3):
            enqueue(file, queue)
            wait_for_depth(rabbitmq, queue, n + 1)
        lines = []
        for relay in relays:
            assert relay.stderr is not None
            lines.append(json.loads(relay.stderr.readline())["event"])
        assert sorted(lines) == ["dedup.outbox_open", "dedup.outbox_waiting"]
        first = relays[lines.index("dedup.outbox_open")]
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 0
        enqueue(file, queue)
        wait_for_depth(rabbitmq, queue, 4)
    finally:
        for relay in relays:
            relay.terminate()
            assert relay.wait(PATIENCE_S) == 0
            assert relay.stderr is not None
            relay.stderr.close()


def test_a_relay_outlives_its_database(
    rabbitmq: RabbitMQ, queue: str, postgres: Postgres, tmp_path: Path
) -> None:
    """PostgreSQL is killed under a relay at work and comes back: each time it says so, waits, and every message keeps its number."""
    with psycopg.connect(postgres.url) as connection:
        connection.execute("DROP TABLE IF EXISTS dedup_outbox, dedup_outbox_state")
        Outbox.create(connection)
    command = [
        *(DEDUP, "outbox", "run", "--database", postgres.url, "--publisher-id", "shop-1"),
        *("--amqp", rabbitmq.url, "--registration", "local", "--log-format", "json"),
    ]
    log = tmp_path / "log"
    with log.open("w") as output:
        relay = subprocess.Popen(command, stderr=output)
    committed: list[bytes] = []
    try:
        for turn in range(3):
            bodies = [b"%d-%d" % (turn, n) for n in range(300)]
            before = depth(rabbitmq, queue)
            with psycopg.connect(postgres.url) as connection:
                for body in bodies:
                    Outbox.enqueue(connection, body, routing_key=queue)
            committed += bodies
            # What is sent by now may not be deleted yet, and is sent again.
            until(partial(has_more, rabbitmq, queue, before))
            postgres.kill()
            until(partial(says_unavailable, log, turn + 1))
            postgres.start()
        with open_to_look(postgres.url) as store:
            until(lambda: store.totals().rows == 0)
    finally:
        relay.terminate()
        assert relay.wait(PATIENCE_S) == 0
    assert "secret" not in log.read_text()
    first_copies: dict[int, bytes] = {}
    for body, properties in drain(rabbitmq, queue):
        number = properties.headers["dedup-sequence"]
        assert first_copies.setdefault(number, body) == body, f"{number} names two messages"
    assert list(first_copies.values()) == committed
    assert sorted(first_copies) == list(first_copies)


def has_more(rabbitmq: RabbitMQ, queue: str, before: int) -> bool:
    """Say whether *queue* has more than it had."""
    return depth(rabbitmq, queue) > before


def says_unavailable(log: Path, times: int) -> bool:
    """Say whether *log* tells so often that the database is away."""
    return log.read_text().count("dedup.unavailable") >= times


def wait_for_depth(rabbitmq: RabbitMQ, queue: str, wanted: int) -> None:
    """Wait until so many messages are there."""
    deadline = time.monotonic() + PATIENCE_S
    while depth(rabbitmq, queue) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.02)
