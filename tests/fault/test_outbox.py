"""A publisher, an application and a relay of AMQP 0.9.1 are killed: everything kept is once in the target, and none lost."""

from __future__ import annotations

import time

import psycopg

from dedup.outbox.enqueue import Outbox
from dedup.testing.postgres import Postgres
from tests.fault.guarded import Guarded
from tests.fault.outbox_kills import OutboxKills, drain, lives
from tests.fault.outbox_process import RelayProcess


class TestOutbox(OutboxKills):
    """
    What it has in common with every protocol.
    """

    protocol = "amqp091"
    outbox = Outbox
    kills = 22
    relay_kills = 10

    def test_commits_out_of_order_are_all_sent(self, guarded: Guarded, postgres: Postgres) -> None:
        """A transaction with a lower id that commits after one with a higher id is passed over by nobody."""
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE gaps_{(name := time.time_ns())}")
        url = postgres.url.rpartition("/")[0] + f"/gaps_{name}"
        with psycopg.connect(url) as connection:
            Outbox.create(connection)
        with psycopg.connect(url) as slow, psycopg.connect(url) as quick:
            assert Outbox.enqueue(slow, b"0-2", queue=guarded.queue) < Outbox.enqueue(
                quick, b"0-1", queue=guarded.queue
            )
            quick.commit()
            relay = RelayProcess(amqp=guarded.amqp_url, database=url)
            relay.wait_for("sent")
            slow.commit()
            relay.wait_for("sent")
            relay.kill()
            relay.wait()
        assert lives(drain(guarded)) == {0: [1, 2]}
