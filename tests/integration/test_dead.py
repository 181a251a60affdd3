"""Queues of the dead: looked at, released and purged, on a real broker, by the program a person runs."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from pika.exceptions import AMQPConnectionError

from dedup.amqp091.conversation import Line, conversation
from dedup.amqp091.encoding import encode
from dedup.amqp091.properties import join
from dedup.cli.commands import dedup as command
from dedup.core import names
from dedup.core.deaths import Death, DeathHistory
from dedup.core.obituaries import Obituary, Reason
from dedup.deadletters import dead
from dedup.deadletters.letters import Selection
from dedup.errors import BrokerUnavailableError, TopologyError
from dedup.testing.proxy import FaultProxy
from dedup.testing.servers import RabbitMQ
from tests import looking
from tests.looking import PATIENCE_S

MARK = "dedup-possible-duplicate"
#: Headers with a time that no calendar has: the broker takes it, and pika's decoder raises on it for ever.
HOSTILE = join(
    {1 << 13: struct.pack(">I", 14) + b"\x04whenT" + (1 << 62).to_bytes(8, "big"), 1 << 12: b"\x02"}
)


@pytest.fixture
def channel(rabbitmq: RabbitMQ) -> Iterator[Any]:
    """A plain pika channel with confirms."""
    with looking.channel(rabbitmq) as opened:
        yield opened


@pytest.fixture
def queue(rabbitmq: RabbitMQ, queue: str) -> Iterator[str]:
    """A queue with its queue of the dead."""
    dead.declare(rabbitmq.url, queue)
    yield queue
    with looking.channel(rabbitmq) as opened:
        for name in (names.dead(queue), names.releasing(queue)):
            opened.queue_delete(name)


def bury(channel: Any, queue: str, number: int, *, reason: Reason = Reason.ATTEMPTS, at_ms: int = 1_000, **headers: Any) -> None:  # fmt: skip
    """Put a message among the dead as the retry service does."""
    history = DeathHistory((Death(queue, "rejected", 3, 1_000, 9_000, "shop", ("new",)),))
    obituary = Obituary(queue=queue, reason=reason, history=history, attempts=3, at_ms=at_ms, size=2)
    made = pika.BasicProperties(
        message_id=f"m-{number}",
        app_id="shop-1",
        content_type="application/json",
        delivery_mode=2,
        headers={"dedup-sequence": number, "dedup-retry": 3, **dict(obituary.stamp()), **headers},
    )
    channel.basic_publish("", names.dead(queue), b'{"n":%d}' % number, made)


def drain(channel: Any, queue: str) -> list[tuple[str, bool]]:
    """Take what is in a queue: message ids, and whether they are marked."""
    found: list[tuple[str, bool]] = []
    while True:
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((properties.message_id, bool((properties.headers or {}).get(MARK))))


def waiting(channel: Any, queue: str) -> int:
    """Count what is ready in a queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def run(rabbitmq: RabbitMQ, *arguments: str, code: int = 0) -> str:
    """Run ``dedup dead`` to its end; what it prints, errors too."""
    done = CliRunner().invoke(
        command, ["dead", *arguments], env={"DEDUP_AMQP": rabbitmq.url}, catch_exceptions=False
    )
    assert done.exit_code == code, done.output
    assert "guest:guest" not in done.output
    return done.output


def test_the_list_takes_nothing_away(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """Oldest first, with what a person needs; afterwards everything is where it was."""
    for number in range(1, 4):
        bury(channel, queue, number, reason=Reason.CYCLE if number == 2 else Reason.ATTEMPTS)
    listed = json.loads(run(rabbitmq, "list", queue, "--json"))
    assert [letter["message_id"] for letter in listed] == ["m-1", "m-2", "m-3"]
    assert listed[0] == {
        "position": 1,
        "reason": "attempts-exhausted",
        "attempts": 3,
        "deaths": 3,
        "given_up_at": "1970-01-01T00:00:01Z",
        "message_id": "m-1",
        "publisher_id": "shop-1",
        "sequence": 1,
        "bytes": 7,
    }
    assert [letter["position"] for letter in json.loads(run(rabbitmq, "list", queue, "--json", "--reason", "cycle"))] == [2]  # fmt: skip
    told = run(rabbitmq, "list", queue, "--limit", "2")
    assert "m-2" in told
    assert "m-3" not in told
    assert "the first 2" in told
    assert drain(channel, names.dead(queue)) == [("m-1", False), ("m-2", False), ("m-3", False)]
    assert "holds nothing" in run(rabbitmq, "list", queue)


def test_one_is_shown_whole(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """Deaths, properties, headers and body; nothing in them reaches the terminal as it is."""
    bury(channel, queue, 1, evil="\x1b[2J", table={"a": [1, None]})
    told = run(rabbitmq, "show", queue)
    assert f"died: in {queue}: rejected, 3 times, 1970-01-01T00:00:01Z to 1970-01-01T00:00:09Z; exchange 'shop', routing keys 'new'" in told  # fmt: skip
    assert "header evil: \\x1b[2J" in told
    assert 'header table: {"a": [1, null]}' in told
    assert 'body: json\n{\n  "n": 1\n}' in told
    shown = json.loads(run(rabbitmq, "show", queue, "--json", "--message-id", "m-1", "--as", "base64"))
    assert shown["body"] == {"as": "base64", "notes": [], "text": "eyJuIjoxfQ=="}
    assert shown["history"][0]["count"] == 3
    assert "holds no such message" in run(rabbitmq, "show", queue, "--position", "2", code=1)


def test_a_body_in_protobuf(rabbitmq: RabbitMQ, channel: Any, queue: str, tmp_path: Any) -> None:
    """By the descriptor set of the settings, and the first type that fits."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Order").field.add(name="id", number=1, type=9, label=1)
    (tmp_path / "shop.pb").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    (tmp_path / "dedup.toml").write_text(
        f'protobuf_descriptors = "{tmp_path}/shop.pb"\nprotobuf_types = ["shop.Other header.kind=other", "shop.Order exchange=shop"]\n'
    )
    made = pika.BasicProperties(headers={"x-death": [{"queue": queue, "reason": "rejected", "count": 1, "exchange": "shop"}]})  # fmt: skip
    channel.basic_publish("", names.dead(queue), b"\x0a\x02A7", made)
    told = run(rabbitmq, "show", queue, "--config", str(tmp_path / "dedup.toml"))
    assert 'body: protobuf shop.Order\nid: "A7"' in told


def test_a_hostile_message_stops_nobody(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """A header that pika cannot decode is listed, shown, released and purged like any other."""
    with conversation(rabbitmq.url, name="hostile") as talk:
        line = Line(talk, confirmed=True)
        for _ in range(2):
            line.publish(names.dead(queue), HOSTILE, b"\x00\x01")
        assert line.settle() == {}
    assert run(rabbitmq, "list", queue).count("\n") == 3
    assert f"header when: {1 << 62}" in run(rabbitmq, "show", queue)
    assert "1 released" in run(rabbitmq, "release", queue, "--limit", "1")
    assert "1 deleted" in run(rabbitmq, "purge", queue, "--all", "--yes")
    assert (waiting(channel, queue), waiting(channel, names.dead(queue))) == (1, 0)
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    with pytest.raises(
        (ValueError, OverflowError, AMQPConnectionError)
    ):  # the check can fail: this message is one that stops pika
        connection.channel().basic_get(queue)
    assert connection.is_closed


def test_what_is_released_begins_anew(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """Body and properties are what they were; deaths, reason and attempts are gone, and nothing is marked."""
    for number in range(1, 251):  # more than a batch
        bury(channel, queue, number, rate=7, CC=["elsewhere"])
    told = run(rabbitmq, "release", queue, "--all")
    assert "250 released" in told
    assert "marked" not in told
    assert waiting(channel, names.dead(queue)) == 0
    method, properties, body = channel.basic_get(queue)
    assert (properties.message_id, properties.app_id, properties.delivery_mode, body) == ("m-1", "shop-1", 2, b'{"n":1}')  # fmt: skip
    assert properties.headers == {"dedup-sequence": 1, "rate": 7}
    channel.basic_nack(method.delivery_tag)
    assert drain(channel, queue) == [(f"m-{number}", False) for number in range(1, 251)]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
        channel.queue_declare(names.releasing(queue), passive=True)


def test_only_what_is_meant_is_released(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """By reason, age, id and number; the rest stays, in order."""
    now_ms = int(time.time() * 1000)
    for number in range(1, 7):
        bury(channel, queue, number, reason=Reason.CYCLE if number % 2 else Reason.ATTEMPTS, at_ms=now_ms if number > 4 else 1)  # fmt: skip
    run(rabbitmq, "release", queue, "--reason", "cycle", "--older-than", "1h")
    assert drain(channel, queue) == [("m-1", False), ("m-3", False)]
    run(rabbitmq, "release", queue, "--message-id", "m-6")
    assert drain(channel, queue) == [("m-6", False)]
    run(rabbitmq, "release", queue, "--limit", "1")
    assert drain(channel, queue) == [("m-2", False)]
    assert "say which" in run(rabbitmq, "release", queue, code=2)
    assert "say which" in run(rabbitmq, "release", queue, "--all", "--limit", "1", code=2)
    assert drain(channel, names.dead(queue)) == [("m-4", False), ("m-5", False)]


def test_purge_deletes_what_is_meant_and_only_with_yes(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """Without --yes it counts."""
    for number in range(1, 5):
        bury(channel, queue, number, at_ms=1 if number < 3 else int(time.time() * 1000))
    assert "2 would be deleted" in run(rabbitmq, "purge", queue, "--older-than", "30d")
    assert waiting(channel, names.dead(queue)) == 4
    assert json.loads(run(rabbitmq, "purge", queue, "--older-than", "30d", "--yes", "--json")) == {"deleted": 2, "meant": 2}  # fmt: skip
    assert drain(channel, names.dead(queue)) == [("m-3", False), ("m-4", False)]


def test_a_full_queue_keeps_the_rest_among_the_dead(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """What the queue refuses goes back; the command says so and fails."""
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for number in range(1, 6):
        bury(channel, queue, number)
    told = run(rabbitmq, "release", queue, "--all", code=1)
    assert "refused by the queue" in told
    released, kept = drain(channel, queue), drain(channel, names.dead(queue))
    assert sorted(released + kept) == [(f"m-{number}", False) for number in range(1, 6)]
    assert len(released) >= 2


def test_two_releases_at_once_are_kept_apart(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """The second says that there is a first."""
    bury(channel, queue, 1)
    channel.queue_declare(names.releasing(queue), durable=True)
    consumer = channel.basic_consume(names.releasing(queue), lambda *_: None, exclusive=True)
    with pytest.raises(TopologyError, match="another release"):
        dead.release(rabbitmq.url, queue, Selection())
    channel.basic_cancel(consumer)
    assert dead.release(rabbitmq.url, queue, Selection()).released == 1


def test_what_is_not_there_is_said(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:
    """With the fix."""
    assert "dedup dead declare" in run(rabbitmq, "list", f"{queue}-none", code=1)
    channel.queue_delete(queue)
    bury(channel, queue, 1)
    assert "declare it first" in run(rabbitmq, "release", queue, "--all", code=1)
    assert waiting(channel, names.dead(queue)) == 1


def kill_at(rabbitmq: RabbitMQ, queue: str, step: str) -> None:
    """Start a release, and kill it as soon as it has come to *step*."""
    program = (
        "import os, signal, sys\n"
        "from dedup.deadletters import dead\n"
        "from dedup.deadletters.letters import Selection\n"
        "url, queue, step = sys.argv[1:]\n"
        "dead.release(url, queue, Selection(), step=lambda name: name == step and os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, rabbitmq.url, queue, step], timeout=PATIENCE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("step", ["staged", "taken", "released"])
def test_a_killed_release_loses_nothing_and_doubles_nothing_unmarked(rabbitmq: RabbitMQ, channel: Any, queue: str, step: str) -> None:  # fmt: skip
    """Killed at each step, and run again: each message comes, at most once without the mark."""
    for number in range(1, 6):
        bury(channel, queue, number)
    kill_at(rabbitmq, queue, step)
    kill_at(rabbitmq, queue, "released")
    done = dead.release(rabbitmq.url, queue, Selection())
    assert done.kept == 0
    found = drain(channel, queue)
    ids = {f"m-{number}" for number in range(1, 6)}
    assert {name for name, _ in found} == ids
    plain = [name for name, marked in found if not marked]
    assert len(plain) == len(set(plain)), found
    assert waiting(channel, names.dead(queue)) == 0
    if (
        step == "released"
    ):  # the check can fail: the kill leaves copies behind, and only the mark tells them apart
        assert len(found) > len(ids)


@pytest.mark.parametrize("step", ["staged", "taken", "released"])
def test_a_lost_connection_is_said_and_the_next_run_goes_on(rabbitmq: RabbitMQ, channel: Any, queue: str, step: str) -> None:  # fmt: skip
    """Cut at each step: an error that is worth trying again, and then each message at most once without the mark."""
    for number in range(1, 6):
        bury(channel, queue, number)
    with FaultProxy(rabbitmq.port) as link:
        through = rabbitmq.url.replace(str(rabbitmq.port), str(link.port))
        cut = False

        def cut_at(name: str) -> None:
            nonlocal cut
            if name == step and not cut:
                cut = True
                link.cut()

        with pytest.raises(BrokerUnavailableError):
            dead.release(through, queue, Selection(), step=cut_at)
        done = dead.release(through, queue, Selection())
    found = drain(channel, queue)
    assert {name for name, _ in found} == {f"m-{number}" for number in range(1, 6)}
    plain = [name for name, marked in found if not marked]
    assert len(plain) == len(set(plain)), (found, done)
    assert waiting(channel, names.dead(queue)) == 0


def test_properties_pass_as_they_are(rabbitmq: RabbitMQ, queue: str) -> None:
    """Byte for byte, down to a float, which pika would cut; but for the time to live, which could end it on the way."""
    kept: dict[str, Any] = {"rate": 0.75, "small": {"a": [1, None, b"x"]}}
    obituary = Obituary(queue=queue, reason=Reason.CYCLE, history=DeathHistory(), attempts=1, at_ms=1, size=1)
    buried = encode(
        pika.BasicProperties(
            headers={**kept, **dict(obituary.stamp())}, priority=3, timestamp=5, expiration="60000"
        )
    )
    with conversation(rabbitmq.url, name="raw") as talk:
        line = Line(talk, confirmed=True)
        line.publish(names.dead(queue), buried, b"body")
        assert line.settle() == {}
        assert dead.release(rabbitmq.url, queue, Selection()).released == 1
        line.consume(queue, prefetch=1)
        delivery = line.take(PATIENCE_S)
        assert delivery is not None
        assert delivery.properties == encode(pika.BasicProperties(headers=kept, priority=3, timestamp=5))
        line.ack(delivery.tag)


def test_a_quorum_queue_of_the_dead_can_be_looked_at_for_ever(rabbitmq: RabbitMQ, channel: Any, queue: str) -> None:  # fmt: skip
    """Each look is a delivery: without the limit off, RabbitMQ 4 would drop the message at the 21st."""
    channel.queue_delete(names.dead(queue))
    dead.declare(rabbitmq.url, queue, kind="quorum")
    bury(channel, queue, 1)
    for _ in range(23):
        # A quorum queue takes back what was looked at when it comes to it.
        looking.until(lambda: waiting(channel, names.dead(queue)) == 1)
        with closing(dead.look(rabbitmq.url, queue, Selection(limit=1))) as found:
            assert next(found)[0].text("message_id") == "m-1"
