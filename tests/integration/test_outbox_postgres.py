"""The outbox in PostgreSQL: against the model of its table, one relay at a time, transactions that commit out of order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy
from attrs import evolve
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from dedup.amqp091.publishing import AMQP091
from dedup.errors import ConfigError, OutboxError, OutboxInUseError, OutboxUnavailableError
from dedup.outbox.enqueue import Outbox
from dedup.outbox.opening import holder, open_to_look, open_to_send
from dedup.outbox.store import Store
from dedup.testing.postgres import Postgres
from tests.unit.outbox_machine import OutboxMachine


def sending(url: str) -> Store:
    """Open it as a relay; the server frees the lock of the session before a moment after that ended."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return open_to_send(url)
        except OutboxInUseError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    """A database of this test's own, without an outbox."""
    name = f"outbox_{time.time_ns()}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres.url.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def outbox(url: str) -> str:
    """The same with an outbox."""
    with psycopg.connect(url) as connection:
        Outbox.create(connection)
    return url


def test_the_table_in_postgresql_is_its_model(url: str) -> None:
    """Any order of what may happen: the machine that SQLite passes too."""

    class PostgresMachine(OutboxMachine):
        def open(self) -> Store:
            return sending(url)

        def connect(self) -> Any:
            with psycopg.connect(url) as connection:
                connection.execute("DROP TABLE IF EXISTS dedup_outbox, dedup_outbox_state")
            return psycopg.connect(url)

    run_state_machine_as_test(
        PostgresMachine, settings=settings(max_examples=5, stateful_step_count=25, deadline=None)
    )


def test_an_empty_outbox_may_change_its_protocol(outbox: str) -> None:
    """And one that is not may not."""
    with psycopg.connect(outbox) as connection:
        OtherOutbox.create(connection)
        OtherOutbox.enqueue(connection, b"x", queue="orders")
    with psycopg.connect(outbox) as connection, pytest.raises(OutboxError, match=r"AMQP 1\.0 \(1\), this is"):
        Outbox.create(connection)
    with closing(sending(outbox)) as store:
        assert store.protocol == "amqp10"
        with pytest.raises(OutboxError, match="outbox flush"):
            store.bind("shop-1", "amqp091")
        assert store.bind("shop-1", "amqp10") == 0


class OtherOutbox(Outbox):
    """One of AMQP 1.0, as far as its tables go."""

    _wire = evolve(AMQP091, name="amqp10")


def test_a_transaction_in_flight_is_passed_over_by_nobody(outbox: str) -> None:
    """What commits later has a lower id and gets a higher number: it is found, whatever was numbered meanwhile."""
    with (
        psycopg.connect(outbox) as slow,
        psycopg.connect(outbox) as quick,
        closing(sending(outbox)) as store,
    ):
        first = Outbox.enqueue(slow, b"slow", queue="orders")
        second = Outbox.enqueue(quick, b"quick", queue="orders")
        quick.commit()
        store.bind("shop-1", "amqp091")
        with store.transaction():
            assert store.claim(0) == 1
        slow.commit()
        with store.transaction():
            assert store.claim(0) == 1
        assert first < second
        assert [row.body for row in store.read(0, body_bytes_max=10)] == [b"quick", b"slow"]


def test_one_relay_at_a_time(outbox: str) -> None:
    """The second is refused with the holder; readers are not; the lock goes with the session."""
    with closing(sending(outbox)) as first:
        with pytest.raises(OutboxInUseError) as caught:
            open_to_send(outbox)
        with closing(open_to_look(outbox)) as reader:
            assert holder(outbox, reader) == caught.value.pid
        assert "secret" not in str(caught.value)
        with psycopg.connect(outbox, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (caught.value.pid,))
        with pytest.raises(OutboxUnavailableError) as lost, first.transaction():
            first.claim(0)
        assert "secret" not in str(lost.value)
    sending(outbox).close()


def test_a_server_that_is_away_is_named_without_its_password(url: str) -> None:
    """Also a database without an outbox, and an asynchronous connection."""
    with pytest.raises(OutboxError, match=r"Outbox\.create"):
        open_to_send(url)
    with pytest.raises(OutboxUnavailableError) as caught:
        open_to_send("postgresql://dedup:secret@127.0.0.1:1/test")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="asynchronous"):
        Outbox.enqueue(object.__new__(psycopg.AsyncConnection), b"x", queue="orders")


def test_a_careless_default_does_not_weaken_the_relay(outbox: str) -> None:
    """A relay's commits are durable whatever the role's default is."""
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute("ALTER ROLE dedup SET synchronous_commit = off")
        try:
            with closing(sending(outbox)) as store:
                assert store._ask("SHOW synchronous_commit") == [("on",)]
        finally:
            connection.execute("ALTER ROLE dedup RESET synchronous_commit")


def test_a_read_only_server_refuses_and_recovers(outbox: str) -> None:
    """The error is one that is worth trying again."""
    with closing(sending(outbox)) as store:
        store._do("SET default_transaction_read_only = on")
        with pytest.raises(OutboxUnavailableError):
            store.bind("shop-1", "amqp091")
        store._do("SET default_transaction_read_only = off")
        assert store.bind("shop-1", "amqp091") == 0


def test_sqlalchemys_connections_are_taken(outbox: str) -> None:
    """In the transaction of a session, beside the ORM's own rows."""
    engine = sqlalchemy.create_engine(outbox.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        assert Outbox.enqueue(connection.connection, b"x", queue="orders") == 1
    engine.dispose()
    with closing(open_to_look(outbox)) as store:
        assert store.totals().unnumbered == 1


def test_any_language_can_enqueue(outbox: str) -> None:
    """Plain SQL with two columns is enough."""
    with psycopg.connect(outbox) as connection:
        connection.execute("INSERT INTO dedup_outbox (routing_key, body) VALUES ('orders.dedup', 'hello')")
    with closing(sending(outbox)) as store:
        store.bind("shop-1", "amqp091")
        with store.transaction():
            store.claim(0)
        (row,) = store.read(0, body_bytes_max=10)
    assert (row.exchange, row.properties, row.body) == ("", b"", b"hello")
