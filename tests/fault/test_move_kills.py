"""Kill moves with SIGKILL at each step, on real servers: nothing is lost, nothing is doubled without a mark."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.moved import Moves
from tests.fault.naive import NaiveProcess

#: Each step that changes something outside, in the first batch and in the second.
STEPS = [
    *(("after", effect, 1) for effect in ("ClaimState", "Replace", "Anchor", "Consume", "Close")),
    *((when, effect, n) for effect in ("Save", "Forward", "Ack") for when, n in (("before", 1), ("after", 1), ("after", 2))),
]  # fmt: skip
IDENTIFIED = [f"m{number}" for number in range(10)]
UNIDENTIFIED = ["u1", "twin", "twin", "u2", "u3"]


@pytest.fixture
def moves(rabbitmq: RabbitMQ, redis_server: Redis) -> Iterator[Moves]:
    """Two classic queues."""
    with Moves(rabbitmq, redis_server) as found:
        yield found


def test_without_a_fault_nothing_is_marked_and_nothing_stays(moves: Moves) -> None:
    """Everything moves in its order, and what was built for it is gone."""
    moves.fill(IDENTIFIED, UNIDENTIFIED)
    done = moves.run()
    assert (done["why"], done["moved"], done["marked"]) == ("empty", 15, 0)
    assert moves.assert_each_once(IDENTIFIED + UNIDENTIFIED).order == IDENTIFIED + UNIDENTIFIED
    route = names.moving(moves.source, moves.target)
    assert (moves.depth(moves.source), moves.depth(route.ledger)) == (0, None)


@pytest.mark.parametrize("place", STEPS, ids=lambda place: "-".join(map(str, place)))
def test_killed_at_a_step(moves: Moves, place: tuple[str, str, int]) -> None:
    """Whatever step the kill comes at: what has an identity comes once, what has none is doubled only with a mark."""
    moves.fill(IDENTIFIED, UNIDENTIFIED)
    moves.run_until_killed(place)
    assert moves.run()["why"] == "empty"
    found = moves.assert_each_once(IDENTIFIED + UNIDENTIFIED, marks=True)
    assert not {*found.marked} & {*IDENTIFIED}
    assert moves.depth(moves.source) == 0


@pytest.mark.long
def test_many_kills_in_flow(moves: Moves) -> None:
    """Two dozen kills while messages flow leave no loss, no duplicate and no mark."""
    bodies = [f"m{number}" for number in range(900)]
    moves.fill(bodies)
    for number in range(22):
        effect = ("Forward", "Save", "Ack", "Forward")[number % 4]
        moves.run_until_killed((("before", "after")[number // 4 % 2], effect, 1 + number % 3), batch_max=40)
    moves.run(batch_max=200)
    moves.assert_each_once(bodies)


def test_what_has_no_identity_is_doubled_only_with_a_mark(moves: Moves) -> None:
    """Kills in flow may double such messages, never unmarked; twins are all there."""
    bodies = [f"u{number // 2}" for number in range(300)]
    moves.fill((), bodies)
    for number in range(6):
        moves.run_until_killed(("after", ("Forward", "Save")[number % 2], 2), batch_max=20)
    moves.run(batch_max=100)
    found = moves.assert_each_once(bodies, marks=True)
    assert found.marked


@pytest.mark.parametrize(("source_type", "target_type"), [("classic", "quorum"), ("quorum", "classic")])
def test_kills_with_a_quorum_queue(
    rabbitmq: RabbitMQ, redis_server: Redis, source_type: str, target_type: str
) -> None:
    """Into one each kill marks a message at the most; out of one, what a delivery adds makes no other message of it."""
    bodies = [f"m{number}" for number in range(300)]
    with Moves(rabbitmq, redis_server, source_type=source_type, target_type=target_type) as moves:
        moves.fill(bodies)
        for number in range(6):
            moves.run_until_killed(("after", ("Forward", "Save", "Ack")[number % 3], 2), batch_max=20)
        moves.run(batch_max=100)
        found = moves.assert_each_once(bodies, marks=target_type == "quorum")
        assert sum(found.marked.values()) <= 6 * 20
        print(f"{source_type} to {target_type}: {sum(found.marked.values())} marked")


@pytest.mark.parametrize("kind", ["classic", pytest.param("quorum", marks=pytest.mark.long)])
def test_kills_while_consumers_follow_one_another(rabbitmq: RabbitMQ, redis_server: Redis, kind: str) -> None:
    """What one consumer was given and the next one too comes back in the right order: none is lost, doubled or marked."""
    bodies = [f"m{number}{'x' * 200 * (number // 30 % 2)}" for number in range(400)]
    with Moves(rabbitmq, redis_server, source_type=kind) as moves:
        moves.fill(bodies)
        for number in range(6):
            kill = (("before", "after")[number // 3], ("Forward", "Save", "Ack")[number % 3], 3)
            moves.run_until_killed(kill, batch_max=10, move={"ahead_bytes_max": 4_000})
        moves.run(move={"rate_max": 5_000.0})
        moves.assert_each_once(bodies)


def test_a_naive_loop_doubles(moves: Moves) -> None:
    """The control: consume, publish, acknowledge doubles what it was killed behind."""
    moves.fill(IDENTIFIED)
    settings = {"amqp": moves.rabbitmq.url, "source": moves.source, "target": moves.target, "redis": None}
    assert NaiveProcess({**settings, "kill": ("after", "Publish", 3)}).wait() == -signal.SIGKILL
    moves.run()
    found = moves.read()
    assert found.unmarked["m2"] == 2
