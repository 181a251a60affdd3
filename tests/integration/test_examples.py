"""Every example runs as its reader would run it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup import config
from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def orders(rabbitmq: RabbitMQ, redis_server: Redis) -> Iterator[Guarded]:
    """The guarded queue "orders", with a shim."""
    with Guarded(rabbitmq, redis_server, "orders") as guarded:
        child = guarded.start_shim(batch_max=500)
        child.wait_for("dedup.recovered")
        yield guarded
        child.stop()
        with guarded.channel() as channel:
            for queue in (
                "orders",
                *(name("orders") for name in (names.ingress, names.ledger, names.quarantine)),
            ):
                channel.queue_delete(queue)
            for exchange in (names.forward_exchange("orders"), names.quarantine_exchange("orders")):
                channel.exchange_delete(exchange)
    redis_server.cli("flushall")


def _run(example: str, url: str) -> str:
    command = [sys.executable, str(EXAMPLES / example), url]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_examples_publish_and_consume(orders: Guarded) -> None:
    """One order, four thousand, and three published twice by another client: each is consumed once, unmarked."""
    assert "confirmed as shop-1" in _run("publish.py", orders.amqp_url)
    assert _run("publish_many.py", orders.amqp_url) == "4000 orders confirmed, 4000 numbers\n"
    assert "3 of them again" in _run("publish_aio_pika.py", orders.amqp_url)
    assert _run("consume.py", orders.amqp_url) == "4004 orders, 0 of them marked\n"


def test_the_settings_can_be_read() -> None:
    """The example file has no unknown or wrong setting."""
    assert config.load({}, file=EXAMPLES / "dedup.toml", environ={}).queues == ("orders",)


def test_every_example_is_listed() -> None:
    """The index names each file of the folder."""
    index = (EXAMPLES / "README.md").read_text()
    assert all(f"({path.name})" in index for path in EXAMPLES.iterdir() if path.name != "README.md")
