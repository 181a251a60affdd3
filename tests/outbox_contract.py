"""What a publisher with an outbox keeps whatever protocol it speaks, on a real broker: what is sent again, what is refused."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dedup.core.identity import RANGE_SIZE
from dedup.errors import (
    ClosedUnconfirmedError,
    ConfigError,
    OutboxError,
    OutboxFullError,
    OutboxInUseError,
    OutboxUnavailableError,
    PublishTimeoutError,
    ReturnedError,
)
from dedup.outbox import repair
from dedup.outbox.sqlite import SQLiteStore
from dedup.publisher import Publisher
from dedup.testing.proxy import Direction, FaultProxy
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ
from tests import looking
from tests.looking import PATIENCE_S

_FORKS = multiprocessing.get_context("fork")


def taken(url: str, queue: str) -> list[tuple[int, bytes, Any]]:
    """Take everything out of the queue: (sequence, body, properties), in order."""
    return [
        (properties.headers["dedup-sequence"], body, properties)
        for body, properties in looking.drain(url, queue)
    ]


def rows(outbox: Path) -> int:
    """Return how many rows an outbox has."""
    with SQLiteStore.look(outbox) as store:
        return store.totals().rows


class OutboxContract:
    """
    Nothing that was kept is lost, and what cannot be kept or sent is said.
    """

    publisher: ClassVar[type[Publisher]]
    #: As the outbox calls it.
    protocol: ClassVar[str]
    #: For a reader of AMQP 0.9.1: an app_id "x", and a header "a" that is 1.
    named: ClassVar[Any]
    #: For a reader of AMQP 0.9.1: the content type text/plain, and a header "price" that is "1.50".
    priced: ClassVar[Any]
    #: Bytes that are no properties of a message of this protocol, and why.
    hostile: ClassVar[Sequence[tuple[bytes, str]]]

    def keeping(self, url: str, outbox: Path, **options: Any) -> Publisher:
        """Return a publisher with an outbox that needs no registry."""
        options.setdefault("registration", "local")
        return self.publisher(url, "orders-1", outbox=outbox, **options)

    def test_what_is_confirmed_is_deleted(self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
        """Messages pass through the outbox as they are, and nothing is left in it."""
        file = tmp_path / "orders.db"
        with self.keeping(rabbitmq.url, file) as sender:
            receipt = sender.publish(b"one", routing_key=queue, properties=self.named)
            futures = [sender.submit(b"%d" % n, routing_key=queue) for n in range(2000)]
            sender.flush(PATIENCE_S)
            looking.until(lambda: rows(file) == 0)
            assert [future.result().attempts for future in futures] == [1] * 2000
        found = taken(rabbitmq.url, queue)
        assert [body for _, body, _ in found] == [b"one", *(b"%d" % n for n in range(2000))]
        assert [sequence for sequence, _, _ in found] == list(
            range(receipt.sequence, receipt.sequence + 2001)
        )
        assert found[0][2].app_id == "x"
        assert found[0][2].headers["a"] == 1
        assert file.stat().st_mode & 0o077 == 0, "orders are nobody else's business"

    def test_what_is_unconfirmed_is_sent_again_first(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """A publisher that never hears a confirm leaves its messages; the next one sends them as themselves, before its own."""
        file = tmp_path / "orders.db"
        with FaultProxy(rabbitmq.port) as link:
            url = looking.over(link)
            sender = self.keeping(url, file, close_timeout_s=0.2)
            link.drop(Direction.TO_CLIENT)
            futures = [
                sender.submit(b"%d" % n, routing_key=queue, properties=self.priced) for n in range(300)
            ]
            looking.until(lambda: rows(file) == 300)
            time.sleep(0.2)  # for the broker to store them
            sender.close()
            for future in futures:
                assert isinstance(future.exception(), ClosedUnconfirmedError)
        first = taken(rabbitmq.url, queue)
        with self.keeping(rabbitmq.url, file, base=0) as sender:
            newest = sender.publish(b"new", routing_key=queue, timeout=PATIENCE_S)
        again = taken(rabbitmq.url, queue)
        numbers = [future.sequence for future in futures]
        assert [sequence for sequence, _, _ in again] == [*numbers, newest.sequence]
        assert newest.sequence == numbers[-1] + 1, "a clock that went back gives no number twice"
        assert [body for _, body, _ in again] == [*(b"%d" % n for n in range(300)), b"new"]
        assert [sequence for sequence, _, _ in first] == numbers[: len(first)]
        for _, _, found in again[:-1]:
            assert found.headers.keys() == {"price", "dedup-sequence", "dedup-attempt", "dedup-first-sent"}
            assert found.headers["dedup-attempt"] == 2
            assert (found.content_type, found.headers["price"], found.app_id) == (
                "text/plain",
                "1.50",
                "orders-1",
            )
        assert rows(file) == 0

    def test_a_registered_publisher_keeps_old_numbers_below_its_new_range(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """After a restart it has a higher range; what is left goes first, under the old range; a fenced one's messages stay."""
        file = tmp_path / "orders.db"
        with serving(rabbitmq.url, MemoryRegistry(time.time)), FaultProxy(rabbitmq.port) as link:
            url = looking.over(link)
            sender = self.keeping(url, file, registration="broker", close_timeout_s=0.2)
            link.stall(Direction.TO_SERVER)
            old = [sender.keep(b"old", routing_key=queue).sequence for _ in range(3)]
            sender.close()
            link.heal()
            looking.until(lambda: not link.connections)
            taken(rabbitmq.url, queue)
            with self.keeping(rabbitmq.url, file, registration="broker", takeover=True) as sender:
                new = sender.publish(b"new", routing_key=queue, timeout=PATIENCE_S).sequence
        found = [sequence for sequence, _, _ in taken(rabbitmq.url, queue)]
        assert found == [*old, new]
        assert new - old[-1] >= RANGE_SIZE - 3
        assert rows(file) == 0

    def test_the_timeout_ends_the_wait_and_not_the_message(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """What is kept stays on its way; retry waits for it, and it is sent once more under its own number only if it must."""
        with FaultProxy(rabbitmq.port) as link:
            url = looking.over(link)
            with self.keeping(url, tmp_path / "orders.db", confirm_timeout_s=60) as sender:
                link.stall(Direction.TO_SERVER)
                with pytest.raises(PublishTimeoutError, match="stays on its way") as caught:
                    sender.publish(b"one", routing_key=queue, timeout=0.3)
                with pytest.raises(PublishTimeoutError):
                    sender.retry(caught.value.receipt, timeout=0.2)
                link.heal()
                assert (
                    sender.retry(caught.value.receipt, timeout=PATIENCE_S).sequence
                    == caught.value.receipt.sequence
                )
        assert [body for _, body, _ in taken(rabbitmq.url, queue)] == [b"one"]

    def test_a_confirm_that_nobody_waited_for_makes_the_retry_a_success(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """The time was up, then the broker had it: the retry says so and sends no copy."""
        file = tmp_path / "orders.db"
        with FaultProxy(rabbitmq.port) as link, self.keeping(looking.over(link), file) as sender:
            link.stall(Direction.TO_SERVER)
            with pytest.raises(PublishTimeoutError, match="stays on its way") as caught:
                sender.publish(b"one", routing_key=queue, timeout=0.3)
            link.heal()
            looking.until(lambda: rows(file) == 0)
            receipt = sender.retry(caught.value.receipt, timeout=PATIENCE_S)
            assert (receipt.sequence, receipt.attempts) == (caught.value.receipt.sequence, 1)
        assert [body for _, body, _ in taken(rabbitmq.url, queue)] == [b"one"]

    def test_what_the_broker_refuses_is_kept_with_the_reason(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """A returned message stays, is not sent at the next start, and goes once an operator says so."""
        file = tmp_path / "orders.db"
        missing = f"{queue}-missing"
        with self.keeping(rabbitmq.url, file) as sender, pytest.raises(ReturnedError) as caught:
            sender.publish(b"lost?", routing_key=missing)
        with self.keeping(rabbitmq.url, file) as sender:
            sender.publish(b"other", routing_key=queue)
        with SQLiteStore.own(file) as store:
            (failed,) = store.failed(10)
            assert (failed.sequence, failed.routing_key, failed.maybe_stored) == (
                caught.value.receipt.sequence,
                missing,
                False,
            )
            assert "no queue" in failed.reason
            done = repair.retry(store, None)
            assert done.renumbered == (failed.id,), "it is far behind, and was certainly never stored"
        with looking.channel(rabbitmq) as channel:
            channel.queue_declare(missing, durable=True)
        with self.keeping(rabbitmq.url, file):
            looking.until(lambda: rows(file) == 0)
        assert [body for _, body, _ in taken(rabbitmq.url, missing)] == [b"lost?"]
        with looking.channel(rabbitmq) as channel:
            channel.queue_delete(missing)

    def test_its_caller_may_retry_what_the_broker_refused(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """After the retry has succeeded the row is gone."""
        file = tmp_path / "orders.db"
        with self.keeping(rabbitmq.url, file) as sender:
            with pytest.raises(ReturnedError) as caught:
                sender.publish(b"one", routing_key=f"{queue}-late")
            looking.until(lambda: rows(file) == 1)
            with looking.channel(rabbitmq) as channel:
                channel.queue_declare(f"{queue}-late")
                sender.retry(caught.value.receipt, timeout=PATIENCE_S)
                looking.until(lambda: rows(file) == 0)
                channel.queue_delete(f"{queue}-late")

    def test_a_full_outbox_makes_publishers_wait(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """No room in time: refused, and nothing kept; then there is room, and it goes on."""
        file = tmp_path / "orders.db"
        with FaultProxy(rabbitmq.port) as link:
            url = looking.over(link)
            with self.keeping(url, file, outbox_rows_max=5) as sender:
                link.stall(Direction.TO_SERVER)
                for n in range(5):
                    sender.submit(b"%d" % n, routing_key=queue)
                with pytest.raises(OutboxFullError, match="no room in time"):
                    sender.submit(b"too many", routing_key=queue, timeout=0.2)
                looking.until(lambda: rows(file) == 5)
                link.heal()
                sender.publish(b"5", routing_key=queue, timeout=PATIENCE_S)
        assert [body for _, body, _ in taken(rabbitmq.url, queue)] == [b"%d" % n for n in range(6)]

    def test_an_outbox_full_of_failures_says_so(self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
        """Waiting would not help: it is refused at once, with what to do."""
        file = tmp_path / "orders.db"
        with self.keeping(rabbitmq.url, file, outbox_rows_max=1) as sender:
            with pytest.raises(ReturnedError):
                sender.publish(b"one", routing_key=f"{queue}-missing")
            journal: Any = sender._pipeline.journal
            looking.until(lambda: journal._failed_rows == 1)
            with pytest.raises(OutboxFullError, match="dedup outbox show"):
                sender.publish(b"two", routing_key=queue)

    def test_two_publishers_cannot_share_an_outbox(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path
    ) -> None:
        """The second is refused at once, in this process and in another one, with the holder's process id; then it may."""
        file = tmp_path / "orders.db"
        with self.keeping(rabbitmq.url, file):
            with pytest.raises(OutboxInUseError) as here:
                self.keeping(rabbitmq.url, file)
            assert here.value.pid == os.getpid()
            reader, writer = _FORKS.Pipe(duplex=False)
            child = _FORKS.Process(target=_try_to_open, args=(file, writer))
            child.start()
            assert reader.recv() == ("OutboxInUseError", os.getpid())
            child.join()
            with pytest.raises(OutboxInUseError):
                self.keeping(rabbitmq.url, file)
        with self.keeping(rabbitmq.url, file) as sender:
            sender.publish(b"mine now", routing_key=queue)
        with pytest.raises(OutboxError, match="belongs to publisher 'orders-1'"):
            self.publisher(rabbitmq.url, "orders-2", outbox=file, registration="local")

    @pytest.mark.parametrize("limit", ["file size", "read-only"])
    def test_a_disk_without_room_refuses_and_recovers(
        self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path, limit: str
    ) -> None:
        """The error is precise, nothing half is in the file, what was kept before is sent, and it goes on when there is room."""
        file = tmp_path / "orders.db"
        reader, writer = _FORKS.Pipe(duplex=False)
        child = _FORKS.Process(
            target=_fill, args=(partial(self.keeping, rabbitmq.url, file), queue, limit, writer)
        )
        child.start()
        writer.close()
        accepted, refused, later = reader.recv()
        child.join(PATIENCE_S)
        assert child.exitcode == 0
        assert refused, "the limit was never felt: this test shows nothing"
        assert {name for _, name in refused} == {"OutboxUnavailableError"}
        bodies = [body for _, body, _ in taken(rabbitmq.url, queue)]
        assert bodies == [_body(n) for n in (*accepted, *later)]
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("SELECT COUNT(*) FROM dedup_outbox").fetchall() == [(0,)]

    def test_a_damaged_file_is_refused_and_left_alone(self, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
        """Garbage, a torn page, a file of something else: an error that says what to do, before anything connects."""
        garbage = tmp_path / "garbage.db"
        garbage.write_bytes(b"this is no database" * 1000)
        with pytest.raises(OutboxError, match="damaged, or no SQLite file"):
            self.keeping(rabbitmq.url, garbage)
        assert garbage.read_bytes() == b"this is no database" * 1000
        torn = tmp_path / "torn.db"
        with self.keeping(rabbitmq.url, torn):
            pass
        content = bytearray(torn.read_bytes())
        content[4096:8192] = os.urandom(4096)
        torn.write_bytes(content)
        with pytest.raises(OutboxError, match="damaged"):
            self.keeping(rabbitmq.url, torn)
        with pytest.raises(OutboxUnavailableError, match="cannot be made"):
            self.keeping(rabbitmq.url, tmp_path / "missing" / "orders.db")

    def test_hostile_rows_fail_alone(self, rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
        """Rows that somebody wrote by hand and that cannot be sent are marked with the reason; the others go out."""
        file = tmp_path / "orders.db"
        with self.keeping(rabbitmq.url, file):
            pass
        bad: list[tuple[str, Any, Any, str]] = [
            ("", b"\xff\xff\xff", b"x", "properties"),
            *((queue, properties, b"x", reason) for properties, reason in self.hostile),
            (queue, "{not bytes", b"x", "properties are bytes"),
            (queue, b"", "text", "body is bytes"),
            (queue, b"", b"x" * (17 * 1024 * 1024), "body has 17825792 bytes"),
            ("k" * 300, b"", b"x", "routing key has 300 bytes"),
        ]
        with closing(sqlite3.connect(file)) as connection:
            for place, properties, body, _ in bad:
                connection.execute(
                    "INSERT INTO dedup_outbox (routing_key, properties, body) VALUES (?, ?, ?)",
                    (place, properties, body),
                )
            connection.execute(
                "INSERT INTO dedup_outbox (routing_key, body) VALUES (CAST(? AS TEXT), ?)",
                (b"\xff\xfe", b"x"),
            )
            connection.execute("INSERT INTO dedup_outbox (routing_key, body) VALUES (?, ?)", (queue, b"good"))
            connection.commit()
        with self.keeping(rabbitmq.url, file) as sender:
            sender.publish(b"new", routing_key=queue, timeout=PATIENCE_S)
            looking.until(lambda: rows(file) == len(bad) + 1)
        found = taken(rabbitmq.url, queue)
        assert [body for _, body, _ in found] == [b"good", b"new"]
        assert found[0][2].app_id == "orders-1"
        with SQLiteStore.look(file) as store:
            failed = store.failed(100)
        for (_, _, _, reason), row in zip(bad[1:], failed[1:], strict=False):
            assert reason in row.reason
        assert not any(row.maybe_stored for row in failed)

    def test_a_closed_publisher_frees_the_file(self, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
        """A constructor that fails does too, whatever it fails of."""
        file = tmp_path / "orders.db"
        for wrong in ({"base": -1}, {"base": 1, "registration": "broker"}, {"outbox_rows_max": 0}):
            with pytest.raises(ConfigError):
                self.keeping(rabbitmq.url, file, **wrong)
        with suppress(Exception):
            self.keeping("amqp://guest:guest@127.0.0.1:1/%2F", file, connect_timeout_s=0.2)
        with self.keeping(rabbitmq.url, file), SQLiteStore.look(file) as store:
            assert store.totals().publisher_id == "orders-1"


def _try_to_open(file: Path, writer: Any) -> None:
    try:
        SQLiteStore.own(file)
    except OutboxInUseError as error:
        writer.send((type(error).__name__, error.pid))


def _body(n: int) -> bytes:
    return b"%d:" % n + b"x" * 50_000


def _fill(opened: Callable[[], Publisher], queue: str, limit: str, writer: Any) -> None:
    """Publish until the disk refuses, then with room again; tell which were taken."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    accepted, refused = [], []
    with opened() as sender:
        sender.publish(_body(0), routing_key=queue)
        accepted.append(0)
        journal: Any = sender._pipeline.journal
        store = journal._store._connection
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit == "file size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
        else:
            store.execute("PRAGMA query_only = 1")
        futures = [(n, sender.submit(_body(n), routing_key=queue)) for n in range(1, 60)]
        for n, future in futures:
            error = future.exception(PATIENCE_S)
            if error is None:
                accepted.append(n)
            else:
                refused.append((n, type(error).__name__))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        if limit == "read-only":
            store.execute("PRAGMA query_only = 0")
        later = [100, 101]
        for n in later:
            sender.publish(_body(n), routing_key=queue, timeout=PATIENCE_S)
    writer.send((accepted, refused, later))
