"""The outbox in a file: against a model, locked, bound to its publisher, and what enqueue takes."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from attrs import evolve
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from dedup.amqp091.encoding import encode
from dedup.amqp091.publishing import AMQP091, Properties
from dedup.amqp091.stamping import seal, unseal, unstamped
from dedup.core.identity import SEQUENCE_MAX
from dedup.errors import ConfigError, InvalidMessageError, OutboxError, OutboxInUseError
from dedup.outbox import repair
from dedup.outbox.enqueue import Outbox
from dedup.outbox.lock import FileLock, holder
from dedup.outbox.messages import message_of
from dedup.outbox.opening import open_to_look, open_to_send
from dedup.outbox.sqlite import SQLiteStore, file_of
from dedup.outbox.store import Failure, Put, Store
from tests.unit.outbox_machine import OutboxMachine


class SQLiteMachine(OutboxMachine):
    """In a file of its own."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="dedup-outbox-")
        self.file = Path(self.directory.name) / "shop.db"
        super().__init__()

    def open(self) -> Store:
        """Open the file."""
        return SQLiteStore.of_application(self.file)

    def connect(self) -> Any:
        """Connect to the file."""
        return sqlite3.connect(self.file)

    def teardown(self) -> None:
        """Remove it."""
        super().teardown()
        self.directory.cleanup()


def test_the_table_in_sqlite_is_its_model() -> None:
    """Any order of what may happen."""
    run_state_machine_as_test(
        SQLiteMachine, settings=settings(max_examples=10, stateful_step_count=30, deadline=None)
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An application's file with an outbox."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        Outbox.create(connection)
        connection.commit()
    return path


def test_a_message_is_committed_with_the_transaction_or_not_at_all(file: Path) -> None:
    """Enqueue neither commits nor rolls back; creating the tables again changes nothing."""
    with closing(sqlite3.connect(file)) as connection:
        assert Outbox.enqueue(connection, b"one", queue="orders") == 1
        connection.rollback()
        Outbox.enqueue(connection, bytearray(b"two"), queue="orders", properties=Properties(priority=3))
        Outbox.create(connection)
        connection.commit()
    with open_to_send(str(file)) as store:
        store.bind("shop-1", "amqp091")
        with store.transaction():
            assert store.claim(99) == 1
        (row,) = store.read(0, body_bytes_max=10)
    assert (row.sequence, row.routing_key, row.body) == (100, "orders.dedup", b"two")
    message = message_of(row, AMQP091, "shop-1", 10, fresh=True)
    assert (
        message.content.envelope.unstamped
        == unseal(unstamped(Properties(priority=3)), "shop-1", sealed=False).unstamped
    )


@pytest.mark.parametrize("how", ["raw", "session"])
def test_sqlalchemys_connections_are_taken(file: Path, how: str) -> None:
    """The one of the pool, and the one behind a transaction of the engine."""
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    if how == "raw":
        raw = engine.raw_connection()
        Outbox.enqueue(raw, b"x", queue="orders")
        raw.commit()
        raw.close()
    else:
        with engine.begin() as connection:
            Outbox.enqueue(connection.connection, b"x", queue="orders")
    engine.dispose()
    with open_to_look(str(file)) as store:
        assert store.totals().unnumbered == 1


@pytest.mark.parametrize("connection", [None, object(), "orders.db", sqlite3.connect(":memory:").cursor()])
def test_any_other_connection_is_refused(connection: Any) -> None:
    """The error says what to pass."""
    with pytest.raises(ConfigError, match=r"session\.connection\(\)\.connection"):
        Outbox.enqueue(connection, b"x", queue="orders")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"body": "text", "queue": "q"}, "encode"),
        ({"body": b"x"}, "say where"),
        ({"body": b"x" * (16 * 1024 * 1024 + 1), "queue": "q"}, "body_bytes_max"),
        ({"body": b"x", "queue": "q", "properties": {"a": 1}}, "not dict"),
        (
            {"body": b"x", "queue": "q", "properties": Properties(headers={"dedup-sequence": 1})},
            "belongs to dedup",
        ),
        ({"body": b"x", "queue": "q", "properties": Properties(headers={"a": object()})}, "'a'"),
    ],
)
def test_what_cannot_be_sent_is_not_enqueued(file: Path, options: dict[str, Any], message: str) -> None:
    """It is refused at once, where its author sees it."""
    with closing(sqlite3.connect(file)) as connection:
        with pytest.raises(InvalidMessageError, match=message):
            Outbox.enqueue(connection, **options)
        assert not connection.in_transaction


@pytest.mark.parametrize(
    "properties",
    [
        None,
        Properties(),
        Properties(app_id="mine", headers={"a": [1, {"b": "c"}]}, priority=3, delivery_mode=2),
        Properties(content_type="a/b", content_encoding="gzip", message_id="m", timestamp=7, type="t"),
    ],
)
def test_properties_are_kept_to_the_byte(properties: Properties | None) -> None:
    """What was sealed comes out as it went in; what was not gets the publisher id in a header, and nothing else changes."""
    sealed = seal(properties, "shop-1")
    assert unseal(sealed.unstamped, "shop-1", sealed=True) == sealed
    raw = unstamped(properties)
    again = unseal(raw, "shop-1", sealed=False)
    if raw:
        entry = b"\x0fdedup-publisherS\x00\x00\x00\x06shop-1"
        assert again.table.startswith(entry)
        assert again.tail == again._replace(table=again.table[len(entry) :]).tail
        assert again.table[len(entry) :] + again.tail in raw or not properties or properties.headers is None


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00",
        b"\xff\xff",
        b"\x20\x00\xff\xff\xff\xff",
        b"\x80\x00\x05ab",
        b"\x00\x01",
        b"\x00\x00x",
    ],
)
def test_properties_that_nobody_can_read_are_refused(raw: bytes) -> None:
    """Whatever somebody has written into the table."""
    with pytest.raises(InvalidMessageError):
        unseal(raw, "shop-1", sealed=False)


def test_sections_of_the_other_protocol_are_called_that() -> None:
    """Also where they could be read as a timestamp and a user id, as a broker would."""
    header = b"\x00\x53\x70\xc0\x06\x04\x41\x50\x05\x40\x42"
    raw = header + b"\x00\x53\x73\xc0\x3d\x01\xa1\x3a" + b"m" * 58
    for sealed in (True, False):
        with pytest.raises(InvalidMessageError, match=r"not encoded for AMQP 0\.9\.1; for 1\.0, perhaps"):
            unseal(raw, "shop-1", sealed=sealed)


def test_a_row_cannot_speak_for_another_publisher() -> None:
    """Properties that carry a stamp, or an id of their own, are refused."""
    stamped = seal(None, "shop-2").stamp(7, 1, 0.0)
    for sealed in (True, False):
        with pytest.raises(InvalidMessageError, match="cannot be sent as they are"):
            unseal(stamped, "shop-1", sealed=sealed)
    with pytest.raises(InvalidMessageError, match="another publisher"):
        unseal(seal(None, "shop-2").unstamped, "shop-1", sealed=True)
    half = encode(Properties(app_id="shop-1", headers={"dedup-attempt": 7}))
    with pytest.raises(InvalidMessageError, match="attempt-repeated"):
        unseal(half, "shop-1", sealed=True)


def test_an_outbox_belongs_to_one_publisher(file: Path) -> None:
    """For good, and the error names it; nor does a version that nobody knows open."""
    with open_to_send(str(file)) as store:
        assert store.bind("shop-1", "amqp091") == 0
        with pytest.raises(OutboxError, match="belongs to publisher 'shop-1'"):
            store.bind("shop-2", "amqp091")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE dedup_outbox_state SET version = 99")
        connection.commit()
    with open_to_send(str(file)) as store, pytest.raises(OutboxError, match="version 99"):
        store.bind("shop-1", "amqp091")


def version(file: Path) -> int:
    """Return what the file says of its rows."""
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT version FROM dedup_outbox_state").fetchone()[0])


def test_an_empty_outbox_may_change_its_protocol(file: Path) -> None:
    """Its version says which one it is of, so that an older dedup leaves one of AMQP 1.0 alone."""
    assert version(file) == 1
    for protocol, wanted in (("amqp10", 2), ("amqp10", 2), ("amqp091", 1)):
        with open_to_send(str(file)) as store:
            store.bind("shop-1", protocol)
            assert (store.protocol, store.totals().protocol) == (protocol, protocol)
        assert version(file) == wanted


@pytest.mark.parametrize("state", ["enqueued", "numbered", "failed"])
def test_messages_of_one_protocol_are_not_given_to_the_other(file: Path, state: str) -> None:
    """Whatever became of them so far; the error says what to do, and the outbox stays what it was."""
    with closing(sqlite3.connect(file)) as connection:
        Outbox.enqueue(connection, b"x", queue="orders")
        connection.commit()
    with open_to_send(str(file)) as store:
        store.bind("shop-1", "amqp091")
        with store.transaction():
            if state != "enqueued":
                store.claim(0)
            if state == "failed":
                store.fail([Failure(1, "no")])
    words = (
        r"keeps messages of AMQP 0\.9\.1 \(1\), this is AMQP 1\.0: send them first with 'dedup outbox flush'"
    )
    with open_to_send(str(file)) as store, pytest.raises(OutboxError, match=words):
        store.bind("shop-1", "amqp10")
    with closing(sqlite3.connect(file)) as connection, pytest.raises(OutboxError, match=words):
        OtherOutbox.create(connection)
    assert version(file) == 1
    with open_to_send(str(file)) as store:
        assert store.bind("shop-1", "amqp091") == (0 if state == "enqueued" else 1)


class OtherOutbox(Outbox):
    """One of AMQP 1.0, as far as its tables go."""

    _wire = evolve(AMQP091, name="amqp10")


def test_a_relay_notices_that_the_protocol_was_changed_under_it(file: Path) -> None:
    """Somebody's migration finds the tables empty while a relay is at work: nothing is numbered, let alone sent."""
    with open_to_send(str(file)) as store:
        store.bind("shop-1", "amqp091")
        with closing(sqlite3.connect(file)) as connection:
            OtherOutbox.create(connection)
            OtherOutbox.enqueue(connection, b"x", queue="orders")
            connection.commit()
        with pytest.raises(OutboxError, match=r"is of AMQP 1\.0 now.*start again"), store.transaction():
            store.claim(0)
    assert version(file) == 2
    with open_to_look(str(file)) as store:
        assert store.totals().unnumbered == 1


def test_one_at_a_time(file: Path) -> None:
    """The lock is exclusive also inside a process, and survives that the refused one closes its files."""
    assert holder(file) is None
    with open_to_send(str(file)):
        for _ in range(2):
            with pytest.raises(OutboxInUseError):
                open_to_send(str(file))
            assert holder(file)
        with open_to_look(str(file)) as reader:
            assert reader.totals().rows == 0
    with open_to_send(str(file)):
        pass


def test_all_names_of_a_file_meet_at_one_lock(tmp_path: Path, file: Path) -> None:
    """A symbolic link leads to the file; a hard link, to which SQLite would give a log of its own, is refused."""
    link = tmp_path / "current"
    link.symlink_to(file)
    with open_to_send(str(link)):
        assert holder(file)
        with pytest.raises(OutboxInUseError):
            open_to_send(str(file))
    with open_to_send(str(file)), pytest.raises(OutboxInUseError):
        open_to_send(str(link))
    (tmp_path / "second.db").hardlink_to(file)
    for name in (file, tmp_path / "second.db", link):
        with pytest.raises(OutboxError, match="2 names"):
            open_to_send(str(name))


def test_threads_that_open_it_at_once_get_it_once(tmp_path: Path) -> None:
    """To the kernel they are one holder."""
    taken: list[FileLock] = []
    at_once = threading.Barrier(4)

    def take() -> None:
        at_once.wait()
        with suppress(OutboxInUseError):
            taken.append(FileLock(tmp_path / "orders.db"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(100):
            threads = [threading.Thread(target=take) for _ in range(at_once.parties)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(taken) == 1, f"turn {turn}"
            taken.pop().release()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("path", "message"), [(b"o.db", "bytes"), (3, "int"), ("", "not ''"), ("a\0b", "path of a file")]
)
def test_a_path_is_text(path: Any, message: str) -> None:
    """Whatever else somebody passes is named."""
    with pytest.raises(ConfigError, match=message):
        file_of(path)


def test_another_programs_database_is_left_as_it_is(tmp_path: Path, file: Path) -> None:
    """A publisher makes its tables in no file of somebody else's; neither in one whose outbox `dedup outbox run` sends."""
    other = tmp_path / "other.db"
    for database in (other, file):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE business (id INTEGER)")
            connection.commit()
        before = database.read_bytes()
        with pytest.raises(OutboxError, match=r"another program: it has 'business' in it.*outbox run"):
            SQLiteStore.own(database)
        assert database.read_bytes() == before
    with pytest.raises(OutboxError, match="is a directory"):
        SQLiteStore.own(tmp_path)


@pytest.mark.parametrize(("column", "value"), [("newest", "x"), ("newest", 1.5), ("publisher_id", b"shop-1")])
def test_a_state_of_the_wrong_type_is_told(file: Path, column: str, value: object) -> None:
    """Somebody has written it by hand."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE dedup_outbox_state SET {column} = ?", (value,))
        connection.commit()
    with open_to_send(str(file)) as store, pytest.raises(OutboxError, match="written by something else"):
        store.bind("shop-1", "amqp091")


@pytest.mark.parametrize(
    ("database", "message"),
    [("missing.db", "no outbox"), ("mysql://x", "postgresql:// or in an SQLite file"), ("", "no outbox")],
)
def test_what_is_no_outbox_is_named(tmp_path: Path, database: str, message: str) -> None:
    """A typo makes no empty outbox."""
    for opened in (open_to_send, open_to_look):
        with pytest.raises((ConfigError, OutboxError), match=message):
            opened(database if "://" in database else str(tmp_path / database))


def test_a_commit_is_on_disk(tmp_path: Path, file: Path) -> None:
    """The publisher's own file is in WAL mode; a commit of either returns after fsync; the application's mode is its own."""
    with SQLiteStore.own(tmp_path / "orders.db") as store:
        assert store._ask("PRAGMA journal_mode") == [("wal",)]
        assert store._ask("PRAGMA synchronous") == [(2,)]
    with open_to_send(str(file)) as other:
        assert other._ask("PRAGMA journal_mode") == [("delete",)]
        assert other._ask("PRAGMA synchronous") == [(2,)]


def test_numbers_end(file: Path) -> None:
    """Behind the last one there is none."""
    with closing(sqlite3.connect(file)) as connection:
        Outbox.enqueue(connection, b"x", queue="orders")
        connection.commit()
    with (
        open_to_send(str(file)) as store,
        pytest.raises(OutboxError, match="every number"),
        store.transaction(),
    ):
        store.claim(SEQUENCE_MAX)


def test_repair_keeps_a_number_only_where_the_shim_can_judge_it(file: Path) -> None:
    """Near the newest: the same number. Far behind: a new one if it was never stored, or if the operator says so."""
    body = (b"\x20\x00\x00\x00\x00\x00", b"x")
    with open_to_send(str(file)) as store:
        with store.transaction():
            store.put([Put(n, "", "q", *body) for n in (1, 2, 10)])
            store.fail(
                [Failure(1, "returned", maybe_stored=False), Failure(2, "refused"), Failure(10, "refused")]
            )
        assert repair.retry(store, [4]) == repair.Repaired()
        assert repair.retry(store, None, window_size=8) == repair.Repaired((3,), (1,), (2,))
        assert repair.retry(store, [2], window_size=8, as_new=True) == repair.Repaired(renumbered=(2,))
        assert store.totals().failed == 0
        assert repair.discard(store, None) == ()


def test_what_is_read_at_once_is_bounded(file: Path) -> None:
    """By bytes as well as by rows, and one large message is read alone."""
    with open_to_send(str(file)) as store:
        with store.transaction():
            store.put([Put(n, "", "q", b"", b"x" * 6_000_000) for n in range(1, 6)])
        assert [row.sequence for row in store.read(0, body_bytes_max=2**24)] == [1, 2]
        assert [row.sequence for row in store.read(4, body_bytes_max=2**24)] == [5]
        assert [row.body for row in store.read(0, body_bytes_max=10)] == [None] * 5
