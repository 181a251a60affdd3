"""Death histories as RabbitMQ writes them: the table of the how-to, checked on the version at hand."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest

from dedup import DeathHistory
from dedup.amqp091.conversation import Line, conversation
from dedup.amqp091.decoding import decode, decode_value
from dedup.amqp091.properties import scan
from dedup.testing.servers import RabbitMQ
from tests.integration.deaths import SCENARIOS, Ways, ways

PAGE = Path(__file__).parents[2] / "docs/howto/read-death-histories.md"
_ROW = re.compile(r"^\| ([^|]+) \| ([a-z, ]+) \| ([\d., ]+) \| ([^|]+) \|$", re.MULTILINE)


def shown(title: str, kind: str, version: str) -> str:
    """What the page says of a scenario."""
    found = [
        told
        for row, kinds, versions, told in _ROW.findall(PAGE.read_text("utf-8"))
        if row == title and kind in kinds.split(", ") and version in versions.split(", ")
    ]
    assert len(found) == 1, (title, kind, version, found)
    return str(found[0])


@pytest.fixture
def queues(rabbitmq: RabbitMQ, kind: str) -> Iterator[Ways]:
    """Queues of one type."""
    with ways(rabbitmq.url, kind) as found:
        yield found


@pytest.mark.parametrize(
    ("title", "kind"), [(title, kind) for title, (_, kinds) in SCENARIOS.items() for kind in kinds]
)
def test_the_table_is_true(rabbitmq: RabbitMQ, queues: Ways, title: str, kind: str) -> None:
    """Every row of the page that is about this version."""
    version = ".".join(rabbitmq.version.split(".")[:2])
    if not any(version in versions for _, _, versions, _ in _ROW.findall(PAGE.read_text("utf-8"))):
        pytest.skip(f"the page says nothing of RabbitMQ {version}")
    assert SCENARIOS[title][0](queues) == shown(title, kind, version)


@pytest.mark.parametrize("kind", ["classic"])
@pytest.mark.usefixtures("kind")
def test_both_protocols_tell_the_same(rabbitmq: RabbitMQ, queues: Ways) -> None:
    """The annotation of AMQP 1.0 and the header of 0.9.1 make one history; 1.0 knows the last time too."""
    proton = pytest.importorskip("proton")
    utils = pytest.importorskip("proton.utils")
    if rabbitmq.version < "4":
        pytest.skip("AMQP 1.0 does not show deaths before RabbitMQ 4")
    queues.queue("A", "B")
    queues.queue("B", "A", message_ttl=1)
    queues.publish("A", {"CC": ["else"]}, expiration="60000")
    for _ in range(2):
        queues.reject("A")
    tag, headers = queues.take("A")
    queues.channel.basic_reject(tag, requeue=True)
    old = DeathHistory.read(headers)
    connection = utils.BlockingConnection(rabbitmq.url.replace("/%2F", ""), timeout=20)
    try:
        receiver = connection.create_receiver(f"/queues/{queues.name('A')}")
        message: Any = receiver.receive(timeout=20)
        receiver.accept()
    finally:
        connection.close()
    assert isinstance(message, proton.Message)
    new = DeathHistory.read(message.annotations, message.properties)
    assert not new.faults
    assert not old.faults
    assert len(old.deaths) == 2

    def common(history: DeathHistory) -> list[object]:
        return [
            (death.key, death.count, death.exchange, death.routing_keys, death.original_expiration_ms)
            for death in history.deaths
        ]

    assert common(new) == common(old)
    for early, late in zip(old.deaths, new.deaths, strict=True):
        assert early.first_ms is not None
        assert late.first_ms is not None
        assert late.last_ms is not None
        assert early.first_ms == late.first_ms // 1000 * 1000
        assert late.first_ms < late.last_ms <= time.time() * 1000


def test_what_pika_decodes_and_what_we_decode_is_the_same(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """The raw header of a broker, read by both; and what the shim's scanner finds of it is that very header."""
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq.url))) as connection:
        channel = connection.channel()
        dead = f"{queue_name}.dlq"
        channel.queue_declare(dead)
        channel.queue_declare(
            queue_name,
            arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead,
                "x-message-ttl": 1,
            },
        )
        channel.basic_publish(
            "", queue_name, b"body", pika.BasicProperties(headers={"CC": ["é"]}, expiration="1")
        )
        with conversation(rabbitmq.url, name="deaths") as talk:
            line = Line(talk)
            line.consume(dead, prefetch=1)
            delivery = line.take(20)
            assert delivery is not None
            ours = DeathHistory.read(decode(delivery.properties).headers)
            found = scan(delivery.properties).deaths
            assert found is not None
            assert DeathHistory.of(decode_value(delivery.properties[found])) == ours
        method = None
        while method is None:
            method, properties, _ = channel.basic_get(dead)
        assert ours == DeathHistory.read(properties.headers)
        assert ours.count(queue=queue_name, reason="expired") == 1
        channel.queue_delete(queue_name)
        channel.queue_delete(dead)
