"""Every example runs as its reader would run it."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup import config
from dedup.core import names
from dedup.store.registry import RedisRegistry
from dedup.testing.registry import serving
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import Child, Tell
from tests.fault.guarded import Guarded
from tests.looking import until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def orders(rabbitmq: RabbitMQ, redis_server: Redis) -> Iterator[Guarded]:
    """The guarded queue "orders", with a shim."""
    with (
        Guarded(rabbitmq, redis_server, "orders") as guarded,
        serving(rabbitmq.url, RedisRegistry(redis_server.url, vhost="/")),
    ):
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
    """One order, four thousand, a thousand of asyncio, three published twice by another client: each is consumed once, unmarked."""
    assert "confirmed as shop-1" in _run("publish.py", orders.amqp_url)
    assert _run("publish_many.py", orders.amqp_url) == "4000 orders confirmed, 4000 numbers\n"
    assert "1000 orders confirmed" in _run("publish_async.py", orders.amqp_url)
    assert "3 of them again" in _run("publish_aio_pika.py", orders.amqp_url)
    assert _run("consume.py", orders.amqp_url) == "5004 orders, 0 of them marked\n"


def test_examples_of_outboxes(orders: Guarded) -> None:
    """A hundred kept on disk first, three committed with their rows; the fourth is rolled back with its row."""
    assert _run("outbox_publish.py", orders.amqp_url).endswith("100 orders confirmed\n")
    assert _run("outbox_enqueue.py", orders.amqp_url).endswith("3 sent, 0 failed\n")
    assert _run("consume.py", orders.amqp_url) == "103 orders, 0 of them marked\n"


def _ship(arguments: list[str], tell: Tell) -> None:
    sys.argv = ["ship_a_file.py", *arguments]
    tell("started", {})
    runpy.run_path(str(EXAMPLES / "ship_a_file.py"))


def test_a_file_is_shipped_by_a_process_that_is_killed_again_and_again(
    orders: Guarded, tmp_path: Path
) -> None:
    """Twelve times with SIGKILL, most of them in the middle: in the end each line is there once, in order and unmarked."""
    lines = [f"line {number}" for number in range(1, 10_001)]
    file = tmp_path / "orders.csv"
    file.write_text("\n".join(lines))
    shipped = [0]
    chance = random.Random(7)
    for _ in range(12):
        child = Child(_ship, [orders.amqp_url, str(file)])
        child.wait_for("started")
        until(lambda: orders.depth("orders") > min(shipped[-1], len(lines) - 1))
        time.sleep(chance.uniform(0, 0.005))
        child.end()
        shipped.append(orders.depth("orders"))
    assert len({count for count in shipped if 0 < count < len(lines)}) >= 3, shipped
    last = Child(_ship, [orders.amqp_url, str(file)])
    assert last.wait() == 0
    until(lambda: orders.depth("orders") >= len(lines))
    found = orders.read()
    assert [body.rstrip("\n") for body in found.order] == lines
    assert not found.marked
    assert not orders.depth(names.quarantine("orders"))
    print(f"in the queue after each kill: {shipped[1:]}")


def test_the_settings_can_be_read() -> None:
    """The example file has no unknown or wrong setting."""
    assert config.load({}, file=EXAMPLES / "dedup.toml", environ={}).queues == ("orders",)


def test_every_example_is_listed() -> None:
    """The index names each file of the folder."""
    index = (EXAMPLES / "README.md").read_text()
    assert all(f"({path.name})" in index for path in EXAMPLES.iterdir() if path.name != "README.md")
