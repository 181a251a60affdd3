"""
Every example that publishes with somebody else's client misses confirms, sends again, and what it sent arrives once.

All of them publish while no shim runs, each over a link of its own that swallows confirms and is then reset. So the queue in front
holds copies, which is the control: without the stamp they would be consumed. Then a shim runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from attrs import define, field

from dedup.core import names
from dedup.testing.assembly import InstallError
from dedup.testing.node import ensure_node_modules
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from dedup.testing.servers import RabbitMQ, Redis
from tests.conftest import in_ci
from tests.fault.guarded import Guarded

EXAMPLES = Path(__file__).parents[2] / "examples"
#: The publisher id of each example, and how it is run.
CLIENTS: dict[str, Sequence[str]] = {
    "shop-4": [sys.executable, "stamp_pika.py"],
    "shop-5": [sys.executable, "stamp_pika_select.py"],
    "shop-6": [sys.executable, "stamp_aio_pika.py"],
    "shop-7": [sys.executable, "stamp_kombu.py"],
    "shop-8": [sys.executable, "stamp_celery.py"],
    "shop-9": [sys.executable, "stamp_faststream.py"],
    "shop-11": ["node", "node/publish.js"],
}
ORDERS = 100
#: Each answer of the broker is late by this, so that nobody is done before the link breaks; seconds.
DELAY_S = 0.03
#: More than the way to an open channel, less than all orders; bytes.
BROKEN_AFTER = 6000
QUIET_S = 0.3
PATIENCE_S = 60.0


@define
class Outcome:
    """What became of all examples: publisher id -> what it printed, and how often each sequence came."""

    printed: dict[str, str] = field(factory=dict)
    #: Why a client could not be run.
    missing: dict[str, str] = field(factory=dict)
    #: Those that told success although no queue was there.
    deceived: list[str] = field(factory=list)
    ingress: dict[str, Counter[int]] = field(factory=dict)
    target: dict[str, Counter[int]] = field(factory=dict)
    marked: int = 0
    unstamped: int = 0


@pytest.fixture(scope="module")
def outcome(rabbitmq: RabbitMQ, redis_server: Redis) -> Iterator[Outcome]:
    """Run every example over a link that breaks, then the shim."""
    rabbitmq.ensure_running()
    redis_server.ensure_running()
    told = Outcome()
    environment = dict(os.environ)
    clients = dict(CLIENTS)
    try:
        program = ensure_node_modules(EXAMPLES / "node")
    except InstallError as error:
        told.missing["shop-11"] = str(error)
        del clients["shop-11"]
    else:
        clients["shop-11"] = [str(program.node), *CLIENTS["shop-11"][1:]]
        environment["NODE_PATH"] = str(program.modules)
    with ThreadPoolExecutor(len(clients)) as pool:
        run = partial(_run, environment=environment, url=rabbitmq.url)
        codes = dict(zip(clients, pool.map(run, clients.values()), strict=True))
        told.deceived = [publisher for publisher, code in codes.items() if code == 0]
    with Guarded(rabbitmq, redis_server, "orders") as guarded:
        guarded.publish([("unstamped", None)] * 2)
        with ThreadPoolExecutor(len(clients)) as pool:
            run_broken = partial(_run_broken, environment=environment, port=rabbitmq.port)
            told.printed = dict(zip(clients, pool.map(run_broken, clients.values()), strict=True))
        told.ingress = _sequences(guarded, names.ingress("orders"), told, keep=True)
        guarded.run_until_drained(batch_max=500)
        told.target = _sequences(guarded, "orders", told, keep=False)
        yield told
    redis_server.cli("flushall")


def _run(command: Sequence[str], environment: dict[str, str], url: str) -> int:
    """Run an example as it is and return how it ended."""
    ended = subprocess.run(
        [*command, url], cwd=EXAMPLES, env=environment, capture_output=True, timeout=PATIENCE_S, check=False
    )
    return ended.returncode


def _run_broken(command: Sequence[str], environment: dict[str, str], port: int) -> str:
    """Run an example whose confirms are swallowed in the middle; its connection is reset when it has fallen silent."""
    with FaultProxy(port) as link:
        link.delay(DELAY_S, TO_CLIENT)
        url = f"amqp://guest:guest@127.0.0.1:{link.port}/%2F"
        with subprocess.Popen(
            [*command, url],
            cwd=EXAMPLES,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                _wait_for_traffic(link, process)
                link.drop(TO_CLIENT)
                _wait_for_silence(link)
                link.heal()
                printed, complaints = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
    return printed if process.returncode == 0 else complaints


def _wait_for_traffic(link: FaultProxy, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while link.forwarded(TO_SERVER) < BROKEN_AFTER and process.poll() is None:
        assert time.monotonic() < deadline, link.forwarded(TO_SERVER)
        time.sleep(0.002)


def _wait_for_silence(link: FaultProxy) -> None:
    seen = -1
    while seen != link.forwarded(TO_SERVER):
        seen = link.forwarded(TO_SERVER)
        time.sleep(QUIET_S)


def _sequences(guarded: Guarded, queue: str, told: Outcome, *, keep: bool) -> dict[str, Counter[int]]:
    """Count the sequences of each publisher in *queue*; what is kept goes back as it was when the channel closes."""
    found: dict[str, Counter[int]] = {publisher: Counter() for publisher in CLIENTS}
    with guarded.channel() as channel:
        while True:
            method, properties, _ = channel.basic_get(queue, auto_ack=not keep)
            if method is None:
                return found
            headers = properties.headers or {}
            told.marked += "dedup-possible-duplicate" in headers
            if "dedup-sequence" in headers:
                found[headers.get("dedup-publisher") or properties.app_id][headers["dedup-sequence"]] += 1
            elif not keep:
                told.unstamped += 1


@pytest.mark.parametrize("publisher", CLIENTS)
def test_a_foreign_client_retries_and_each_message_arrives_once(outcome: Outcome, publisher: str) -> None:
    """It ended well, copies were in front of the shim, and behind it each message is there once."""
    if publisher in outcome.missing:
        assert not in_ci(), outcome.missing[publisher]
        pytest.skip(outcome.missing[publisher])
    assert "confirmed" in outcome.printed[publisher], outcome.printed[publisher]
    assert len(outcome.ingress[publisher]) == ORDERS
    assert outcome.ingress[publisher].total() > ORDERS, "no confirm was missed: this proves nothing"
    assert outcome.target[publisher] == dict.fromkeys(outcome.ingress[publisher], 1)


def test_a_message_that_no_queue_takes_is_no_success(outcome: Outcome) -> None:
    """Run without the queue in front, every example ends with an error: the broker confirms what it returns."""
    assert outcome.deceived == []


def test_without_a_stamp_a_retry_is_a_duplicate(outcome: Outcome) -> None:
    """The control; and nothing is marked, as no fault of the shim happened."""
    assert outcome.unstamped == 2
    assert outcome.marked == 0
