"""``dedup move`` on real servers: what is moved, where to, how fast, and what becomes of the rest."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import pika
import pytest
from click.testing import CliRunner, Result

from dedup import DeathHistory
from dedup.cli.commands import dedup
from dedup.config import Settings
from dedup.core import names
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import PATIENCE_S
from tests.fault.moved import Moves


@pytest.fixture
def moves(rabbitmq: RabbitMQ, redis_server: Redis) -> Iterator[Moves]:
    """Two classic queues."""
    with Moves(rabbitmq, redis_server) as found:
        yield found


def invoke(moves: Moves, *arguments: str) -> Result:
    """Run the command out of the source."""
    urls = (
        "--amqp",
        moves.rabbitmq.url,
        "--redis",
        moves.redis.url,
        "--management",
        moves.rabbitmq.management_url,
    )
    return CliRunner().invoke(dedup, ["move", moves.source, *arguments, *urls])


def moved(moves: Moves, *arguments: str) -> dict[str, Any]:
    """Run the command and return the facts it prints."""
    done = invoke(moves, *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_message_passes_as_it_is(moves: Moves) -> None:
    """Properties and headers of all kinds arrive as they were, marks and reasons of earlier ways included."""
    sent = pika.BasicProperties(
        content_type="text/x", content_encoding="z", delivery_mode=2, priority=3, correlation_id="c", reply_to="r",
        message_id="i", timestamp=77, type="t", app_id="a", expiration="90000000",
        headers={"n": 1, "CC": [moves.source], "deep": {"list": [True, None, b"\xff"]}, "dedup-reason": "malformed", "dedup-sequence": 5},
    )  # fmt: skip
    with moves.channel() as channel:
        channel.basic_publish("", moves.target, b"body", sent)
        assert channel.queue_purge(moves.source).method.message_count == 1
        method, before, _ = channel.basic_get(moves.target, auto_ack=True)
        channel.basic_publish("", moves.source, b"body", before)
    with moves.channel() as channel:  # of the copies for CC one is enough
        assert moved(moves, moves.target)["moved"] >= 1
        method, properties, body = channel.basic_get(moves.target, auto_ack=True)
    assert body == b"body"
    assert vars(properties) == vars(before)
    assert method.exchange == names.moves(moves.source)


def test_into_the_broker_it_comes_from(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's broker may be named by the environment; named like the source's, it is no other one."""
    monkeypatch.setenv("DEDUP_TO_AMQP", moves.rabbitmq.url)
    moves.fill(["a", "b"])
    assert moved(moves, moves.target)["moved"] == 2
    with moves.channel() as channel:
        method, _, _ = channel.basic_get(moves.target, auto_ack=True)
    assert method.exchange == names.moves(moves.source)


def test_no_password_of_the_other_broker_is_told(moves: Moves) -> None:
    """Neither of a broker that does not answer nor of a URL that cannot be."""
    for url in ("amqp://user:hidden@127.0.0.1:1/", "amqp://user:hidden@127.0.0.1:1/a/b"):
        done = invoke(moves, moves.target, "--to-amqp", url)
        assert done.exit_code in (1, 2), done.output
        assert "127.0.0.1:1" in done.output
        assert "hidden" not in done.output
    assert "hidden" not in repr(Settings(to_amqp=url))


def test_a_limit(moves: Moves) -> None:
    """So many move and no more; the next run goes on behind them."""
    moves.fill([f"m{number}" for number in range(10)])
    found = moved(moves, moves.target, "--limit", "4")
    assert (found["moved"], found["ended"], moves.depth(moves.source)) == (4, "limit", 6)
    assert moved(moves, moves.target, "--limit", "100")["ended"] == "empty"
    assert moves.read().order == [f"m{number}" for number in range(10)]


def test_a_limit_counts_what_moves_and_not_what_is_recognised(moves: Moves) -> None:
    """What a killed move had forwarded is dropped, and as many as were asked for move."""
    moves.fill([f"m{number}" for number in range(12)])
    moves.run_until_killed(("before", "Save", 2))
    had = moves.depth(moves.target)
    found = moved(moves, moves.target, "--limit", "3")
    assert had
    assert (found["moved"], found["recognised"]) == (3, had)


def test_a_filter_leaves_the_rest_in_its_place(moves: Moves) -> None:
    """What does not meet it is in the source afterwards, in its order, and acknowledged is what moved and nothing else."""
    for number in range(6):
        moves.fill([f"m{number}"], team="blue" if number % 2 else "red")
    found = moved(moves, moves.target, "--filter", "header:team=blue")
    assert (found["moved"], found["skipped"]) == (3, 3)
    assert moves.read().order == ["m1", "m3", "m5"]
    assert moves.read(moves.source).order == ["m0", "m2", "m4"]


def test_a_filter_that_sees_no_further(moves: Moves) -> None:
    """When all that may be held is not wanted, it ends and says so."""
    moves.fill([f"m{number}" for number in range(6)], team="red")
    moves.fill(["behind"], team="blue")
    done = moves.run(filter=["header:team=blue"], move={"prefetch": 6})
    assert (done["why"], done["moved"], done["skipped"]) == ("held", 0, 6)
    assert moves.depth(moves.source) == 7


@pytest.mark.parametrize("kind", [pytest.param("classic", marks=pytest.mark.long), "quorum"])
def test_messages_that_grow_and_shrink(rabbitmq: RabbitMQ, redis_server: Redis, kind: str) -> None:
    """The broker is asked for fewer and for more of them on the way, and each comes once, in its order."""
    bodies = [f"m{number}{'x' * 200 * (number // 30 % 2)}" for number in range(180)]
    with Moves(rabbitmq, redis_server, source_type=kind) as moves:
        moves.fill(bodies)
        done = moves.run(batch_max=7, move={"ahead_bytes_max": 4_000})
        assert (done["why"], done["moved"], done["marked"]) == ("empty", 180, 0)
        assert moves.assert_each_once(bodies).order == bodies


def test_a_filter_that_leaves_more_than_may_be_held(moves: Moves) -> None:
    """What it leaves is held by the broker alone."""
    for number in range(6):
        moves.fill([f"m{number}-{each}{'x' * 200}" for each in range(20)])
        moves.fill([f"wanted {number}"], team="blue")
    done = moves.run(filter=["header:team=blue"], move={"ahead_bytes_max": 4_000})
    assert (done["why"], done["moved"], done["skipped"]) == ("empty", 6, 120)
    assert moves.depth(moves.source) == 120


def test_large_messages_take_no_more_memory_than_they_may(moves: Moves) -> None:
    """However many wait. The control: where all may be held, all are; as long as that took, the other one is watched."""
    size, count = 1 << 20, 40
    with moves.channel() as channel:
        for number in range(count):
            channel.basic_publish(
                "", moves.source, bytes(size), pika.BasicProperties(message_id=f"m{number}")
            )

    def watch(bytes_max: int, patience_s: float) -> tuple[bool, float]:
        """Run a move that goes slowly; say whether it takes the bytes of half of them, and how long that was watched."""
        child = moves.start(move={"rate_max": 1.0, "prefetch": count, "ahead_bytes_max": bytes_max})
        child.wait_for("dedup.recovered")
        before, began, took_s, found = child.memory_bytes(), time.monotonic(), 0.0, False
        while not found and took_s < patience_s:
            time.sleep(0.02)
            found = child.memory_bytes() - before > count // 2 * size
            took_s = time.monotonic() - began
        child.stop()
        return found, took_s

    held, took_s = watch(4 * count * size, PATIENCE_S / 2)
    assert held
    assert not watch(8 * size, 2 * took_s)[0]


def test_a_rate(moves: Moves) -> None:
    """No more than so many a second."""
    moves.fill([f"m{number}" for number in range(20)])
    began = time.monotonic()
    assert moved(moves, moves.target, "--rate", "20")["moved"] == 20
    assert time.monotonic() - began > 0.7  # a fifth of a second's worth may go at once


def test_a_dry_run(moves: Moves) -> None:
    """It counts what would move, by where it died, and moves nothing."""
    moves.fill(["a", "b"], (), **{"x-death": [{"queue": "orders", "reason": "rejected", "count": 1}]})
    moves.fill(["c"])
    found = moved(moves, moves.target, "--dry-run", "--filter", "reason=rejected")
    assert found == {
        "waiting": 3,
        "looked_at": 3,
        "wanted": 2,
        "deaths": [{"queue": "orders", "reason": "rejected", "messages": 2}],
    }
    assert (moves.depth(moves.source), moves.depth(moves.target)) == (3, 0)


def test_back_to_where_it_died(moves: Moves) -> None:
    """Dead letters go back to their queues with their history, and what has none goes into the trash with the reason."""
    queues = [f"{moves.target}-{number}" for number in range(2)]
    with moves.channel() as channel:
        for queue in queues:
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": moves.source}
            channel.queue_declare(queue, durable=True, arguments=arguments)
            for number in range(3):
                properties = pika.BasicProperties(delivery_mode=2, message_id=f"{queue}-{number}")
                channel.basic_publish("", queue, f"{queue}-{number}".encode(), properties)
                method, _, _ = channel.basic_get(queue)
                channel.basic_nack(method.delivery_tag, requeue=False)
        channel.basic_publish("", moves.source, b"never died", pika.BasicProperties(delivery_mode=2))
    while moves.depth(moves.source) != 7:
        time.sleep(0.02)
    try:
        found = moved(moves, "--to-origin")
        assert (found["moved"], found["trashed"], found["marked"]) == (6, 1, 0)
        with moves.channel() as channel:
            for queue in queues:
                for number in range(3):
                    _, properties, body = channel.basic_get(queue, auto_ack=True)
                    assert body == f"{queue}-{number}".encode()
                    assert DeathHistory.read(properties.headers).count(queue=queue, reason="rejected") == 1
        assert moves.read_trash(1) == [("never died", "no-origin")]
    finally:
        with moves.channel() as channel:
            for queue in queues:
                channel.queue_delete(queue)


def test_what_the_target_goes_on_refusing(moves: Moves) -> None:
    """A full target that refuses: what it has no room for goes into the trash with the reason."""
    full = f"{moves.target}-full"
    with moves.channel() as channel:
        arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
        channel.queue_declare(full, durable=True, arguments=arguments)
    try:
        moves.fill([f"m{number}" for number in range(5)])
        done = moves.run(target=full, move={"deadline_s": 0.2})
        assert (done["moved"], done["trashed"], done["marked"]) == (2, 3, 0)
        assert moves.read_trash(3) == [(f"m{number}", "refused-by-target") for number in range(2, 5)]
    finally:
        with moves.channel() as channel:
            channel.queue_delete(full)


def test_it_waits_while_the_broker_is_in_alarm(moves: Moves) -> None:
    """Nothing is forwarded meanwhile, and it goes on by itself."""
    moves.assert_waits_in_alarm(moves.rabbitmq)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "name TARGET, or say --to-origin"),
        (("x", "--to-origin"), 2, "name TARGET, or say --to-origin"),
        (("no-such-queue",), 1, "does not exist"),
        (("SOURCE",), 2, "source and target are one queue"),
        (("TARGET", "--filter", "colour=red"), 2, "is no condition"),
        (("TARGET", "--forever", "--limit", "1"), 2, "leave out --limit and --filter"),
    ],
    ids=["nothing", "both", "missing", "one", "filter", "endless"],
)
def test_what_cannot_be(moves: Moves, arguments: tuple[str, ...], code: int, says: str) -> None:
    """It is refused at once, with what to do."""
    named = {"SOURCE": moves.source, "TARGET": moves.target}
    done = invoke(moves, *(named.get(argument, argument) for argument in arguments))
    assert (done.exit_code, says in done.output) == (code, True), done.output


def test_somebody_else_takes_from_the_source(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer is not pushed aside; a move that runs is not joined by another."""
    monkeypatch.setattr("dedup.amqp091.move_topology.WAIT_S", 0.3)
    with moves.channel() as channel:
        channel.basic_consume(moves.source, lambda *_: None)
        done = invoke(moves, moves.target)
        assert (done.exit_code, "has consumers" in done.output) == (1, True), done.output
    child = moves.start(move={"forever": True})
    child.wait_for("dedup.recovered")
    done = invoke(moves, moves.target)
    assert (done.exit_code, "another move" in done.output) == (1, True), done.output
    child.stop()


def test_what_is_left_of_a_session_is_waited_for(moves: Moves) -> None:
    """While the source still counts another consumer nothing is taken: what that one holds has to come back first."""
    moves.fill([f"m{number}" for number in range(8)])
    child = moves.start(("before", "Consume", 1), signal=signal.SIGSTOP)
    child.wait_until_frozen()
    with moves.channel() as channel:
        channel.basic_qos(prefetch_count=3)
        channel.basic_consume(moves.source, lambda *_: None)
        child.send_signal(signal.SIGCONT)
        assert child.wait_for("dedup.standby")["queue"] == moves.source
        time.sleep(0.5)
        assert (child.judged, moves.depth(moves.target)) == (0, 0)
    found = child.next_of("done")
    assert found is not None
    assert (found["moved"], found["marked"]) == (8, 0)
    moves.assert_each_once([f"m{number}" for number in range(8)])


def test_another_target_after_a_kill(moves: Moves) -> None:
    """What was on its way into one queue is recognised when the rest goes into another one."""
    other = f"{moves.target}-other"
    with moves.channel() as channel:
        channel.queue_declare(other, durable=True)
    try:
        moves.fill([f"m{number}" for number in range(8)])
        moves.run_until_killed(("after", "Forward", 1))
        first = moves.read().order
        moves.run(target=other)
        assert first + moves.read(other).order == [f"m{number}" for number in range(8)]
        assert not moves.depth(moves.target)
    finally:
        with moves.channel() as channel:
            channel.queue_delete(other)


def test_a_target_that_is_unbound_on_the_way(moves: Moves) -> None:
    """What no queue takes goes to the trash as it is, in the same transactions: everything is in one of the two."""
    bodies = [f"m{number}" for number in range(40)]
    moves.fill(bodies)
    child = moves.start(move={"rate_max": 20.0})
    child.wait_for("report")
    with moves.channel() as channel:
        channel.queue_unbind(moves.target, names.moves(moves.source), "")
    found = child.next_of("done")
    assert found is not None
    came = moves.read().order
    assert 0 < len(came) < 40
    assert came + [body for body, _ in moves.read_trash(40 - len(came))] == bodies


def test_a_target_that_is_declared_anew_on_the_way(moves: Moves) -> None:
    """It is waited for, and what comes then goes into it again."""
    moves.fill([f"m{number}" for number in range(60)])
    child = moves.start(move={"rate_max": 30.0})
    child.wait_for("report")
    with moves.channel() as channel:
        channel.queue_delete(moves.target)
    child.wait_for("dedup.unavailable")
    with moves.channel() as channel:
        channel.queue_declare(moves.target, durable=True)
    found = child.next_of("done")
    assert found is not None
    assert (found["why"], moves.depth(moves.source)) == ("empty", 0)
    assert moves.read().order[-1] == "m59"


def test_as_a_service(moves: Moves, free_port: int) -> None:
    """It waits at an empty source, shows backlog and what is in flight, and ends in order on SIGTERM."""
    management = str(moves.rabbitmq.management_url)
    urls = ["--amqp", moves.rabbitmq.url, "--redis", moves.redis.url, "--management", management]
    command = [sys.executable, "-m", "dedup.cli", "move", moves.source, moves.target, *urls]
    options = ["--forever", "--rate", "5", "--listen", f"127.0.0.1:{free_port}"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        moves.fill([f"m{number}" for number in range(60)])
        backlog = _metric(free_port, moves.source, "dedup_move_backlog", lambda value: value > 0)
        assert backlog <= 60
        _metric(free_port, moves.source, "dedup_forwarded_total", lambda value: value >= 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert 3 <= (moves.depth(moves.target) or 0) < 60
        assert moves.run()["why"] == "empty"
        moves.assert_each_once([f"m{number}" for number in range(60)])
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody else of this machine's tests takes."""
    block = reserve_ports(1)
    yield block.ports[0]
    block.release()


def _metric(port: int, queue: str, name: str, wanted: Callable[[float], bool]) -> float:
    """Wait until a metric of *queue* is as *wanted*, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    start = f'{name}{{queue="{queue}"}} '
    while time.monotonic() < deadline:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
            found = [float(line.removeprefix(start)) for line in lines if line.startswith(start)]
            if found and wanted(found[0]):
                return found[0]
        time.sleep(0.05)
    raise AssertionError(f"{name} does not come to what is wanted")
