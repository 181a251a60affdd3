"""
What an outbox keeps whatever protocol it speaks: publishers, applications and relays are killed, everything kept is once in the target.

Real brokers, real shims; controls without an outbox, and with numbers that are not stored.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from dedup.core import names
from dedup.outbox.enqueue import Outbox
from dedup.testing.postgres import Postgres
from dedup.testing.proxy import Direction, FaultProxy
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Found, Guarded
from tests.fault.outbox_process import ApplicationProcess, PublishingProcess, RelayProcess

STEPS = [
    ("before", "claim", 2),
    ("after", "claim", 1),
    ("before", "delete", 1),
    ("after", "delete", 1),
    None,
    None,
]


def drain(guarded: Guarded) -> Found:
    """Wait until everything is through; return what is in the target. Nothing may be in quarantine."""
    guarded.wait_drained(guarded._children[-1])
    found = guarded.read()
    parked = guarded.read(names.quarantine(guarded.queue))
    assert not parked.copies, parked.reasons
    return found


def lives(found: Found) -> dict[int, list[int]]:
    """Return the numbers of each life in the order in which they are in the target."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for body, marked in found.copies:
        assert not marked, f"{body} is marked although nothing happened to the shim"
        life, n = body.split("-")
        numbers[int(life)].append(int(n))
    return numbers


def business(database: str) -> list[str]:
    """Return the business rows, in order: with each a message was committed."""
    connection: Any = (
        psycopg.connect(database) if database.startswith("postgresql") else sqlite3.connect(database)
    )
    with closing(connection):
        return [row[0] for row in connection.execute("SELECT body FROM business ORDER BY id").fetchall()]


class OutboxKills:
    """
    Nothing that was kept is lost, and nothing is doubled, over one protocol.
    """

    protocol: ClassVar[str]
    outbox: ClassVar[type[Outbox]]
    #: How often the publisher, and the relay, is killed.
    kills: ClassVar[int]
    relay_kills: ClassVar[int]

    @pytest.fixture
    def guarded(self, rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Guarded]:
        """A guarded queue with a shim that lives."""
        with Guarded(rabbitmq, redis_server, queue_name) as found:
            found.batch_max = 200
            child = found.start_shim()
            child.wait_for("dedup.recovered")
            yield found

    def test_a_killed_publisher_loses_and_doubles_nothing(self, guarded: Guarded, tmp_path: Path) -> None:
        """Killed at random: all that was kept or confirmed is there once, in order, and what is there has no hole."""
        file = tmp_path / "orders.db"
        chance = random.Random(20260)
        known: dict[int, int] = {}
        for life in range(self.kills):
            child = PublishingProcess(
                protocol=self.protocol, amqp=guarded.amqp_url, queue=guarded.queue, life=life, outbox=file
            )
            child.wait_for("open")
            time.sleep(chance.random() * 0.25)
            child.kill()
            child.wait()
            told = [notice["n"] for notice in child.notices if notice["event"] in ("kept", "confirmed")]
            known[life] = max(told, default=0)
        last = PublishingProcess(
            protocol=self.protocol,
            amqp=guarded.amqp_url,
            queue=guarded.queue,
            life=self.kills,
            outbox=file,
            count=1,
        )
        assert last.wait() == 0
        found = lives(drain(guarded))
        assert sum(known.values()) > self.kills, "hardly anything was published: this shows nothing"
        for life, least in known.items():
            assert found[life] == list(range(1, len(found[life]) + 1)), (
                f"life {life} has a hole, a double or is out of order"
            )
            assert len(found[life]) >= least, f"life {life}: {least} were kept, {len(found[life])} are there"
        assert found[self.kills] == [1]

    @pytest.mark.parametrize("kept", [True, False], ids=["outbox", "control"])
    def test_what_was_submitted_outlives_the_process_only_with_an_outbox(
        self, guarded: Guarded, tmp_path: Path, *, kept: bool
    ) -> None:
        """While the broker does not answer, a process publishes and is killed; without an outbox its messages are gone."""
        file = tmp_path / "orders.db" if kept else None
        with FaultProxy(guarded.rabbitmq.port) as link:
            url = f"amqp://guest:guest@127.0.0.1:{link.port}/%2F"
            first = PublishingProcess(
                protocol=self.protocol, amqp=url, queue=guarded.queue, life=0, outbox=file
            )
            first.wait_for("confirmed")
            link.stall(Direction.TO_SERVER)
            link.stall(Direction.TO_CLIENT)
            seen = max(notice["n"] for notice in first.notices if notice["event"] == "confirmed")
            deadline = time.monotonic() + 20
            while first.count("submitted") < seen + 20:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.2)
            first.kill()
            first.wait()
            link.cut()
        submitted = max(notice["n"] for notice in first.notices if notice["event"] == "submitted")
        least = max([notice["n"] for notice in first.notices if notice["event"] == "kept"], default=0)
        second = PublishingProcess(
            protocol=self.protocol, amqp=guarded.amqp_url, queue=guarded.queue, life=1, outbox=file, count=1
        )
        assert second.wait() == 0
        found = lives(drain(guarded))
        assert found[1] == [1]
        assert found[0] == list(range(1, len(found[0]) + 1))
        if kept:
            assert len(found[0]) >= least
            assert least > seen
        else:
            assert len(found[0]) < submitted, "the control lost nothing: the test cannot fail"

    @pytest.fixture(params=["SQLite", "PostgreSQL"])
    def database(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
        """An application's database with an outbox and a table of its own."""
        if request.param == "SQLite":
            file = tmp_path / "shop.db"
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("CREATE TABLE business (id INTEGER PRIMARY KEY, body TEXT)")
                self.outbox.create(connection)
                connection.commit()
            yield str(file)
            return
        server: Postgres = request.getfixturevalue("postgres")
        name = re.sub("[^a-z0-9]", "_", tmp_path.name.lower()) + f"_{time.time_ns()}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        url = server.url.rpartition("/")[0] + f"/{name}"
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE business (id SERIAL PRIMARY KEY, body TEXT)")
            self.outbox.create(connection)
        yield url

    def test_killed_relays_and_applications_lose_and_double_nothing(
        self, guarded: Guarded, database: str
    ) -> None:
        """Business rows and messages are the same set: each committed one is in the target once, each rolled back one is not."""
        chance = random.Random(20261)
        apps = 0
        app = ApplicationProcess(protocol=self.protocol, database=database, queue=guarded.queue, life=0)
        strikes = 0
        for turn in range(self.relay_kills):
            step = STEPS[turn % len(STEPS)]
            relay = RelayProcess(amqp=guarded.amqp_url, database=database, kill=step)
            if step is None:
                relay.wait_for("sent")
                time.sleep(chance.random() * 0.15)
                relay.kill()
            strikes += relay.wait() == -9
            if turn % 4 == 3:
                app.kill()
                app.wait()
                apps += 1
                app = ApplicationProcess(
                    protocol=self.protocol, database=database, queue=guarded.queue, life=apps
                )
                app.wait_for("committed")
        app.kill()
        app.wait()
        assert strikes == self.relay_kills
        assert RelayProcess(amqp=guarded.amqp_url, database=database, until_empty=True).wait() == 0
        found = drain(guarded)
        committed = business(database)
        assert len(committed) > 50
        assert found.order == committed, "each once, in the order of the commits of one application"
        assert not found.marked

    def test_a_relay_that_kept_numbers_in_memory_would_double(self, guarded: Guarded, tmp_path: Path) -> None:
        """The control: numbers that die with the process give what was sent a second identity."""
        file = tmp_path / "shop.db"
        with closing(sqlite3.connect(file)) as connection:
            self.outbox.create(connection)
            for n in range(20):
                self.outbox.enqueue(connection, b"0-%d" % n, queue=guarded.queue)
            connection.commit()
        strikes = [("before", "delete", 1)] * 2
        for kill in strikes:
            assert (
                RelayProcess(amqp=guarded.amqp_url, database=str(file), kill=kill, forgets=True).wait() == -9
            )
        assert (
            RelayProcess(amqp=guarded.amqp_url, database=str(file), until_empty=True, forgets=True).wait()
            == 0
        )
        assert len(drain(guarded).order) > 20, "nothing was doubled: the test cannot fail"

    def test_a_second_relay_waits_for_the_first(self, guarded: Guarded, database: str) -> None:
        """It is refused while the first lives, and may when that is killed."""
        first = RelayProcess(amqp=guarded.amqp_url, database=database)
        first.wait_for("open")
        second = RelayProcess(amqp=guarded.amqp_url, database=database)
        assert second.wait() == 1
        first.kill()
        first.wait()
        deadline = time.monotonic() + 10
        while True:
            third = RelayProcess(amqp=guarded.amqp_url, database=database, until_empty=True)
            if third.wait() == 0:
                return
            assert time.monotonic() < deadline, "the lock outlives its holder"
