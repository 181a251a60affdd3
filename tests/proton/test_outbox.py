"""A publisher of AMQP 1.0 with an outbox, on a real broker; and outboxes that change from one protocol to the other."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from proton import symbol, ulong

import dedup
from dedup.amqp091 import stamping as amqp091
from dedup.cli.commands import dedup as cli
from dedup.errors import InvalidMessageError, OutboxError, ReturnedError
from dedup.testing.proxy import TO_SERVER, FaultProxy
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ
from proton_adapter import Outbox, Properties, Publisher, encoding
from proton_adapter.stamping import seal
from tests.looking import PATIENCE_S, channel, depth, drain, over, until
from tests.outbox_contract import OutboxContract
from tests.proton.looking import receive


@pytest.mark.each_version("long")
class TestOutbox(OutboxContract):
    """
    What it has in common with every publisher.
    """

    publisher = Publisher
    protocol = "amqp10"
    named = Properties(application_properties={"a": 1}, group_id="x")
    priced = Properties(application_properties={"price": "1.50"}, content_type="text/plain")
    hostile = (
        (b"\xff\xff\xff", "not encoded for AMQP 1.0"),
        (amqp091.seal(None, "orders-1").unstamped, "for 0.9.1, perhaps"),
        (b"\x00", "not encoded for AMQP 1.0"),
        (b"\x00\x53\x74\xd1\xff\xff\xff\xff\x00\x00\x00\x02", "not encoded for AMQP 1.0"),
        (b"\x00\x53\x99\x45", "not encoded for AMQP 1.0"),
        (seal(None, "orders-1").unstamped + encoding.section(0x75, encoding.binary(b"x")), "section 0x75"),
        (seal(None, "orders-1").stamp("/queues/q", 7, 1, 0.0), "'dedup-sequence' belongs to dedup"),
        (seal(None, "orders-2").named("orders-2").unstamped, "'dedup-publisher' belongs to dedup"),
    )


GIVEN = Properties(
    message_id=UUID(int=7), annotations={"x-opt-mine": symbol("s")}, application_properties={"n": ulong(1)}
)


def run(*arguments: str, code: int = 0) -> str:
    """Run a command of "dedup outbox" and return what it prints; of one that fails, what it complains with."""
    result = CliRunner().invoke(cli, ["outbox", *arguments])
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
    return result.stderr if code else result.stdout


def leave(type_: type[dedup.Publisher], link: FaultProxy, queue: str, file: Path, properties: Any) -> int:
    """Leave a message in an outbox: the broker does not hear of it; return its number."""
    sender = type_(over(link), "orders-1", outbox=file, registration="local", close_timeout_s=0.2)
    link.stall(TO_SERVER)
    sequence = sender.keep(b"left", routing_key=queue, properties=properties).sequence
    sender.close()
    link.cut()  # what it held back is gone
    link.heal()
    return sequence


def check(message: Any, sequence: int) -> None:
    """Check that a message came over AMQP 1.0 as it was given: types tell, which AMQP 0.9.1 does not know."""
    assert message.id == UUID(int=7)
    assert message.annotations["x-opt-mine"] == symbol("s")
    assert type(message.properties["n"]) is ulong
    assert message.properties["dedup-sequence"] == sequence
    assert message.group_id == "orders-1"


@pytest.mark.each_version
def test_what_is_left_is_flushed_over_its_own_protocol(
    broker: RabbitMQ, queue: str, link: FaultProxy, tmp_path: Path
) -> None:
    """The other publisher is refused until then, and may have the empty file; so it goes there and back."""
    file = tmp_path / "orders.db"
    database, amqp = ("--database", str(file)), ("--amqp", broker.url, "--registration", "local")
    sequence = leave(Publisher, link, queue, file, GIVEN)
    before = file.read_bytes()
    with pytest.raises(
        OutboxError, match=r"AMQP 1\.0 \(1\), this is AMQP 0\.9\.1: send them first with 'dedup outbox flush'"
    ):
        dedup.Publisher(broker.url, "orders-1", outbox=file, registration="local")
    assert file.read_bytes() == before
    shown = run("show", *database)
    assert "protocol     AMQP 1.0" in shown
    assert "to be sent   1" in shown
    assert run("flush", *database, *amqp) == "1 sent, 0 failed\n"
    (message,) = receive(broker, queue, 1)
    check(message, sequence)
    newer = leave(dedup.Publisher, link, queue, file, dedup.Properties(type="t"))
    assert newer > sequence, "numbers go on rising"
    with pytest.raises(OutboxError, match=r"AMQP 0\.9\.1 \(1\), this is AMQP 1\.0"):
        Publisher(broker.url, "orders-1", outbox=file, registration="local")
    assert run("flush", *database, *amqp) == "1 sent, 0 failed\n"
    with Publisher(broker.url, "orders-1", outbox=file, registration="local") as sender:
        sender.publish(b"new", routing_key=queue, timeout=PATIENCE_S)
    (old, properties), (new, _) = drain(broker, queue)
    assert (old, properties.type, properties.headers["dedup-sequence"], new) == (b"left", "t", newer, b"new")


def test_what_failed_is_retried_over_its_own_protocol(broker: RabbitMQ, queue: str, tmp_path: Path) -> None:
    """It is shown with its place and size, keeps its number, or is forgotten."""
    file = tmp_path / "orders.db"
    database, amqp = ("--database", str(file)), ("--amqp", broker.url, "--registration", "local")
    with (
        Publisher(broker.url, "orders-1", outbox=file, registration="local") as sender,
        channel(broker) as opened,
    ):
        for _ in range(2):
            with pytest.raises(ReturnedError) as caught:
                sender.publish(b"x", routing_key=f"{queue}-late", properties=GIVEN)
        opened.queue_declare(f"{queue}-late", durable=True)
    first, second = json.loads(run("show", *database, "--json"))["failures"]
    assert f"{first['id']}: {first['bytes']} bytes for default exchange {queue}-late" in run(
        "show", *database
    )
    run("discard", str(first["id"]), *database)
    assert run("retry", str(second["id"]), *database) == "1 keep their numbers, 0 get new ones\n"
    assert run("flush", *database, *amqp) == "1 sent, 0 failed\n"
    (message,) = receive(broker, f"{queue}-late", 1)
    check(message, caught.value.receipt.sequence)
    with channel(broker) as opened:
        opened.queue_delete(f"{queue}-late")


@pytest.mark.each_version
def test_what_applications_enqueue_is_sent_over_the_protocol_of_the_tables(
    broker: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    """Rows of plain SQL too; a row of the other protocol fails alone, certainly not stored, and is not sent as what it is not."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection:
        Outbox.create(connection)
        Outbox.enqueue(connection, b"typed", routing_key=queue, properties=GIVEN)
        Outbox.enqueue(connection, b"plain", routing_key=queue)
        connection.execute("INSERT INTO dedup_outbox (routing_key, body) VALUES (?, ?)", (queue, b"sql"))
        dedup.Outbox.enqueue(connection, b"wrong", routing_key=queue, properties=dedup.Properties(type="t"))
        connection.commit()
    database = ("--database", str(file))
    broker_options = ("--amqp", broker.url, "--registration", "local", "--publisher-id", "orders-1")
    run("flush", *database, *broker_options, code=1)
    typed, plain, sql = receive(broker, queue, 3)
    check(typed, typed.properties["dedup-sequence"])
    assert [message.body for message in (typed, plain, sql)] == [b"typed", b"plain", b"sql"]
    assert (plain.group_id, plain.durable, sql.group_id, sql.durable) == ("orders-1", True, "orders-1", True)
    shown = json.loads(run("show", *database, "--json"))
    assert (shown["protocol"], shown["failed"], shown["numbered"]) == ("amqp10", 1, 0)
    assert shown["failures"][0]["maybe_stored"] is False
    assert "not encoded for AMQP 1.0; for 0.9.1, perhaps" in shown["failures"][0]["reason"]


def test_what_is_too_large_for_the_broker_fails_alone(broker: RabbitMQ, queue: str, tmp_path: Path) -> None:
    """Its body alone was not: it is refused with its address and stamp around it."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection:
        Outbox.create(connection)
        Outbox.enqueue(connection, bytes(16 * 1024 * 1024), routing_key=queue)
        Outbox.enqueue(connection, b"small", routing_key=queue)
        connection.commit()
    options = ("--amqp", broker.url, "--registration", "local", "--publisher-id", "orders-1")
    run("flush", "--database", str(file), *options, code=1)
    assert [body for body, _ in drain(broker, queue)] == [b"small"]
    (failure,) = json.loads(run("show", "--database", str(file), "--json"))["failures"]
    assert "message-size-exceeded" in failure["reason"]


def test_tables_of_the_other_protocol_are_not_taken_over_by_an_application(tmp_path: Path) -> None:
    """Its first row would be sent as what it is not; and one that did not ask has its rows fail, not sent."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        dedup.Outbox.create(connection)
        dedup.Outbox.enqueue(connection, b"x", queue="orders")
        with pytest.raises(OutboxError, match=r"AMQP 0\.9\.1 \(1\), this is AMQP 1\.0"):
            Outbox.create(connection)
        with pytest.raises(InvalidMessageError, match=r"proton_adapter\.Properties"):
            Outbox.enqueue(connection, b"x", queue="orders", properties=dedup.Properties())
    row = seal(GIVEN, "orders-1").unstamped
    with pytest.raises(InvalidMessageError, match=r"not encoded for AMQP 0\.9\.1; for 1\.0, perhaps"):
        amqp091.unseal(row, "orders-1", sealed=True)


def test_a_relay_sends_what_is_committed_until_it_is_told_to_end(
    broker: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    """It finds the protocol by itself, holds its publisher id, and says both."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection:
        Outbox.create(connection)
        Outbox.enqueue(connection, b"1", routing_key=queue, properties=GIVEN)
        connection.commit()
        command = [
            str(Path(sys.executable).parent / "dedup"),
            "outbox",
            "run",
            "--database",
            str(file),
            "--publisher-id",
            "orders-1",
        ]
        with serving(broker.url, MemoryRegistry(time.time)):
            relay = subprocess.Popen(
                [*command, "--amqp", broker.url, "--log-format", "json"], stderr=subprocess.PIPE, text=True
            )
            try:
                assert relay.stderr is not None
                told = json.loads(relay.stderr.readline())
                assert (told["event"], told["protocol"]) == ("dedup.outbox_open", "amqp10")
                until(lambda: depth(broker, queue) == 1)
                Outbox.enqueue(connection, b"2", routing_key=queue)
                connection.commit()
                until(lambda: depth(broker, queue) == 2)
            finally:
                relay.terminate()
                assert relay.wait(PATIENCE_S) == 0
                assert relay.stderr is not None
                relay.stderr.close()
    first, second = receive(broker, queue, 2)
    check(first, first.properties["dedup-sequence"])
    assert second.properties == {"dedup-sequence": first.properties["dedup-sequence"] + 1}
