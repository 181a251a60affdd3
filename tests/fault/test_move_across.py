"""Moves between two brokers of different versions: what holds in one broker holds between two, whichever of them dies."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pika
import pytest
from click.testing import CliRunner

from dedup.amqp091.management import Management
from dedup.amqp091.move_brokers import Brokers
from dedup.amqp091.move_topology import build, look
from dedup.cli.commands import dedup
from dedup.testing.assembly import InstallError
from dedup.testing.proxy import FaultProxy
from dedup.testing.servers import RabbitMQ, Redis
from tests.conftest import not_available
from tests.fault.moved import Moves
from tests.fault.naive import NaiveProcess

#: The version of the other broker, and which of the two the source is in.
WAYS = [
    "into 3.10",
    "out of 3.10",
    pytest.param("into 4.3", marks=pytest.mark.long),
    pytest.param("out of 4.3", marks=pytest.mark.long),
]
STEPS = [
    ("after", "Save", 1),
    ("after", "Forward", 1),
    ("before", "Save", 2),
    ("after", "Save", 2),
]
#: The others; what it does without any of these kills is tested as well.
LONG_STEPS = [
    *(("after", effect, 1) for effect in ("ClaimState", "Replace", "Anchor", "Consume", "Close", "Ack")),
    *(("before", effect, n) for effect in ("Forward", "Ack") for n in (1, 2)),
]
IDENTIFIED = [f"m{number}" for number in range(10)]
UNIDENTIFIED = ["u1", "twin", "twin", "u2", "u3"]
_BATCH = 4


@pytest.fixture(scope="module")
def others() -> Iterator[dict[str, RabbitMQ]]:
    """The other brokers, each started when it is asked for first."""
    found: dict[str, RabbitMQ] = {}
    yield found
    for server in found.values():
        server.__exit__(None, None, None)


@pytest.fixture
def moves(
    request: pytest.FixtureRequest, rabbitmq: RabbitMQ, redis_server: Redis, others: dict[str, RabbitMQ]
) -> Iterator[Moves]:
    """Two classic queues in two brokers."""
    way, _, version = getattr(request, "param", "into 3.10").rpartition(" ")
    if version not in others:
        try:
            others[version] = RabbitMQ(version).__enter__()
        except InstallError as error:
            not_available(request.config, version, error)
    other = others[version]
    other.ensure_running()
    source, target = (rabbitmq, other) if way == "into" else (other, rabbitmq)
    with Moves(source, redis_server, into=target) as moves:
        yield moves


both_ways = pytest.mark.parametrize("moves", WAYS, indirect=True)


@both_ways
def test_without_a_fault_nothing_is_marked_and_nothing_stays(moves: Moves) -> None:
    """Everything moves raw and in its order, and what was built for it is gone from both brokers."""
    sent = pika.BasicProperties(
        content_type="text/x", delivery_mode=2, priority=3, correlation_id="c", message_id="raw", timestamp=77, app_id="a",
        headers={"n": 1, "CC": [moves.target], "deep": {"list": [True, None]}, "dedup-reason": "malformed", "dedup-sequence": 5},
    )  # fmt: skip
    moves.fill(IDENTIFIED, UNIDENTIFIED)
    with moves.channel() as channel:
        channel.basic_publish("", moves.source, b"raw", sent)
    done = moves.run()
    assert (done["why"], done["moved"], done["marked"]) == ("empty", 16, 0)
    assert [moves.depth(queue) for queue in (moves.source, moves.route.ledger)] == [0, None]
    with moves.channel(moves.into) as channel:
        for body in IDENTIFIED + UNIDENTIFIED:
            assert channel.basic_get(moves.target, auto_ack=True)[2] == body.encode()
        method, properties, _ = channel.basic_get(moves.target, auto_ack=True)
    assert vars(properties) == vars(sent)
    assert (method.exchange, method.routing_key) == (moves.route.forward, moves.source)


@pytest.mark.parametrize(
    "place", [*STEPS, *(pytest.param(step, marks=pytest.mark.long) for step in LONG_STEPS)], ids=lambda place: "-".join(map(str, place))
)  # fmt: skip
@pytest.mark.parametrize(
    "moves", ["into 3.10", pytest.param("out of 4.3", marks=pytest.mark.long)], indirect=True
)
def test_killed_at_a_step(moves: Moves, place: tuple[str, str, int]) -> None:
    """
    Whatever step the kill comes at, nothing is lost and nothing doubled unmarked.

    Of what has an identity one is marked at the most: the markers beside the target tell of all others.
    """
    moves.fill(IDENTIFIED, UNIDENTIFIED)
    moves.run_until_killed(place, batch_max=_BATCH)
    assert moves.run()["why"] == "empty"
    found = moves.assert_each_once(IDENTIFIED + UNIDENTIFIED, marks=True)
    assert sum(found.marked[body] for body in IDENTIFIED) <= 1, found.marked
    assert moves.depth(moves.source) == 0


@pytest.mark.long
@both_ways
def test_many_kills_in_flow(moves: Moves) -> None:
    """A dozen kills while messages flow mark one message each at the most."""
    bodies = [f"m{number}" for number in range(600)]
    moves.fill(bodies)
    for number in range(12):
        effect = ("Forward", "Save", "Ack")[number % 3]
        moves.run_until_killed((("before", "after")[number // 4 % 2], effect, 1 + number % 3), batch_max=40)
    moves.run(batch_max=200)
    assert sum(moves.assert_each_once(bodies, marks=True).marked.values()) <= 12


def test_it_waits_while_the_target_is_in_alarm(moves: Moves) -> None:
    """Nothing is forwarded meanwhile, and it goes on by itself."""
    moves.assert_waits_in_alarm(moves.into)


@pytest.mark.parametrize("dying", ["target", pytest.param("source", marks=pytest.mark.long)])
def test_a_broker_dies(moves: Moves, dying: str) -> None:
    """One of the two is killed and started again while messages flow: the move waits for it and ends what it began."""
    bodies = [f"m{number}" for number in range(200)]
    moves.fill(bodies)
    child = moves.start(move={"rate_max": 100.0})
    child.wait_for("report")
    broker = moves.into if dying == "target" else moves.rabbitmq
    broker.kill()
    child.wait_for("dedup.session_ended")
    broker.start()
    done = child.next_of("done")
    assert done is not None
    assert done["why"] == "empty"
    found = moves.assert_each_once(bodies, marks=True)
    # The source proves nothing: what it gives again is recognised. The target's markers die with it.
    assert sum(found.marked.values()) <= (_BATCH if dying == "target" else 1), found.marked


@pytest.mark.parametrize("link", ["target", pytest.param("source", marks=pytest.mark.long)])
def test_a_link_is_lost(moves: Moves, link: str) -> None:
    """One of the two connections is cut again and again while the other one lives."""
    bodies = [f"m{number}" for number in range(200)]
    moves.fill(bodies)
    cut = moves.rabbitmq if link == "source" else moves.into
    with FaultProxy(cut.port) as proxy:
        through = cut.url.replace(f":{cut.port}", f":{proxy.port}")
        settings = {"amqp" if link == "source" else "to_amqp": through, "move": {"rate_max": 100.0}}
        child = moves.start(None, **settings)
        for _ in range(3):
            child.wait_for("report")
            proxy.cut()
            child.wait_for("dedup.session_ended")
        done = child.next_of("done")
    assert done is not None
    assert done["why"] == "empty"
    found = moves.assert_each_once(bodies, marks=True)
    assert sum(found.marked.values()) <= 3, found.marked


def test_what_the_target_never_takes(moves: Moves) -> None:
    """A message too large for the other broker goes to the trash beside the source, as it is, and the rest goes on."""
    limit = moves.into.evaluate("application:get_env(rabbit, max_message_size).")
    large = "x" * 20_000
    moves.fill(["a", "b"])
    moves.fill((), [large], team="blue")
    moves.fill(["c"])
    moves.into.evaluate("application:set_env(rabbit, max_message_size, 10000).")
    try:
        done = moves.run()
        assert done["trashed"] == 1
        moves.assert_each_once(["a", "b", "c"], marks=True)
        ((body, headers),) = moves.trashed(1)
        # It has no identity, and nobody knows whether the target took it before.
        told = {"dedup-reason": "refused-by-broker", "dedup-possible-duplicate": True}
        assert (body, headers) == (large, {"team": "blue", **told})
    finally:
        value = limit.removeprefix("{ok,").removesuffix("}")
        moves.into.evaluate(f"application:set_env(rabbit, max_message_size, {value}).")


def test_back_to_where_it_died_in_another_broker(moves: Moves) -> None:
    """Each goes into the queue of that name there, and what has none there into the trash beside the source."""
    deaths = [
        {"queue": moves.target, "reason": "rejected", "count": 1, "exchange": "", "routing-keys": ["k"]}
    ]
    moves.fill(["died"], (), **{"x-death": deaths})
    moves.fill(["elsewhere"], (), **{"x-death": [{**deaths[0], "queue": "no-such-queue"}]})
    moves.fill(["never died"])
    done = moves.run(target="")
    assert (done["moved"], done["trashed"], done["marked"]) == (1, 2, 0)
    assert moves.read().order == ["died"]
    assert moves.read_trash(2) == [("elsewhere", "no-origin"), ("never died", "no-origin")]


def test_a_target_that_refuses(moves: Moves) -> None:
    """What a full one has no room for goes into the trash beside the source when the deadline has passed."""
    full = f"{moves.target}-full"
    with moves.channel(moves.into) as channel:
        channel.queue_declare(
            full, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
        )
    try:
        moves.fill([f"m{number}" for number in range(5)])
        done = moves.run(target=full, move={"deadline_s": 0.2})
        assert (done["moved"], done["trashed"], done["marked"]) == (2, 3, 0)
        assert moves.read_trash(3) == [(f"m{number}", "refused-by-target") for number in range(2, 5)]
    finally:
        with moves.channel(moves.into) as channel:
            channel.queue_delete(full)


def test_the_management_api_of_another_broker_is_not_believed(moves: Moves) -> None:
    """By default it is looked for beside the target's broker, where the source's may be: its queues are others."""
    build(moves.brokers, moves.route)
    wrong, right = (Management(str(b.management_url), amqp=b.url) for b in (moves.rabbitmq, moves.into))
    found = look(moves.brokers, moves.route, wrong, wrong)
    assert (found.exact_possible, found.target_type) == (False, "")
    assert "belongs to cluster" in found.reason
    assert look(moves.brokers, moves.route, wrong, right).exact_possible


def test_the_command(moves: Moves) -> None:
    """It does the same, tells the same, and does not promise transactions."""
    moves.fill(IDENTIFIED)
    urls = ("--amqp", moves.rabbitmq.url, "--redis", moves.redis.url, "--to-amqp", moves.into.url)
    apis = (
        "--management",
        str(moves.rabbitmq.management_url),
        "--to-management",
        str(moves.into.management_url),
    )
    command = ["move", moves.source, moves.target, *urls, *apis]
    done = CliRunner().invoke(dedup, [*command, "--forwarding", "exact"])
    assert (done.exit_code, "forwarding is confirmed" in done.output) == (2, True), done.output
    done = CliRunner().invoke(dedup, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["moved"] == len(IDENTIFIED)
    moves.assert_each_once(IDENTIFIED)


def test_two_urls_of_one_broker(rabbitmq: RabbitMQ) -> None:
    """They are seen to be one, however they are spelled; another virtual host or another broker is another one."""
    spelled = rabbitmq.url.replace("127.0.0.1", "localhost")
    assert spelled != rabbitmq.url
    for url in (rabbitmq.url, spelled):
        assert not Brokers(rabbitmq.url, url).settled("orders").across


def test_a_naive_loop_doubles(moves: Moves) -> None:
    """The control: consume here, publish there, acknowledge here doubles what it was killed behind."""
    moves.fill(IDENTIFIED)
    settings = {
        "amqp": moves.rabbitmq.url,
        "to_amqp": moves.into.url,
        "source": moves.source,
        "target": moves.target,
        "redis": None,
    }
    assert NaiveProcess({**settings, "kill": ("after", "Publish", 3)}).wait() == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while moves.depth(moves.source) != len(IDENTIFIED) - 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    moves.run()
    assert moves.read().unmarked["m2"] == 2
