"""What finds no queue on its way ends in the ledger beside its marker, and arrives in the end: on real servers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dedup.amqp091.administration import administration
from dedup.amqp091.topology import unguard
from dedup.core import names
from dedup.errors import TopologyError
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded

BODIES = [f"order {number}" for number in range(1, 6)]
MESSAGES = [(body, number) for number, body in enumerate(BODIES, start=1)]


@pytest.fixture(params=[True, False], ids=["exact", "confirmed"])
def guarded(
    request: pytest.FixtureRequest, rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str
) -> Iterator[Guarded]:
    """Return a guarded queue, forwarded exactly or with confirms."""
    with ExitStack() as stack:
        yield stack.enter_context(Guarded(rabbitmq, redis_server, queue_name, exact=request.param))


def take_queues_away(guarded: Guarded) -> None:
    """Leave the exchanges of *guarded* without target and quarantine."""
    queue = guarded.queue
    with guarded.channel() as channel:
        channel.queue_unbind(queue, names.forward_exchange(queue), "")
        channel.queue_unbind(names.quarantine(queue), names.quarantine_exchange(queue), "")


def strays(guarded: Guarded) -> int:
    """Return how many messages lie in the ledger."""
    with administration(guarded.amqp_url) as broker:
        return broker.count_from(names.ledger(guarded.queue), names.leading(guarded.queue))


def lose_way(guarded: Guarded) -> None:
    """Publish to a queue without target and quarantine, and kill its shim as soon as it hears of it."""
    child = guarded.start_shim(("before", "End", 1))
    child.wait_for("dedup.recovered")
    take_queues_away(guarded)
    guarded.publish(MESSAGES)
    assert child.wait(30) == -signal.SIGKILL


def test_what_found_no_queue_survives_a_kill(guarded: Guarded) -> None:
    """The marker says that the batch was forwarded; nothing of it is lost although no queue took it."""
    lose_way(guarded)
    left = strays(guarded)
    assert left
    assert not guarded.depth(guarded.queue)
    guarded.build()
    guarded.run_until_drained()
    assert sum(guarded.assert_each_once(BODIES, marks=True).marked.values()) >= left
    assert not guarded.depth(names.quarantine(guarded.queue))
    assert not strays(guarded)


@pytest.mark.parametrize("anchor", [1, 2, 3], ids=["first", "sending-on", "releasing"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_while_strays_are_sent_on_loses_nothing(guarded: Guarded, when: str, anchor: int) -> None:
    """They are released only when they are stored; what comes twice is marked."""
    lose_way(guarded)
    guarded.build()
    guarded.run_until_killed((when, "Anchor", anchor))
    guarded.run_until_drained()
    guarded.assert_each_once(BODIES, marks=True)
    assert not strays(guarded)


def test_a_living_shim_begins_anew_and_sends_on(guarded: Guarded) -> None:
    """A stray ends the session; the next one finds the target bound again and sends it on, marked."""
    child = guarded.start_shim()
    child.wait_for("dedup.recovered")
    take_queues_away(guarded)
    guarded.publish(MESSAGES)
    child.wait_for("dedup.session_ended")
    guarded.build()
    guarded.publish([("later", 6)])
    guarded.wait_drained(child)
    notices = guarded.stop(child)
    # One that found no queue again, a moment before there was one, waits for a session that is not stopped at once.
    rounds = 0
    while strays(guarded):
        rounds += 1
        assert rounds < 20
        guarded.run_until_drained()
    assert any("found no queue" in notice.get("reason", "") for notice in notices)
    # Guarding binds the quarantine first: what is sent on in that moment ends there, as while a target is missing.
    aside = guarded.read(names.quarantine(guarded.queue))
    wanted = [body for body in (*BODIES, "later") if body not in aside.order]
    found = guarded.assert_each_once(wanted, marks=True)
    assert "order 1" in found.marked or "order 1" in aside.marked


def test_unguard_refuses_to_delete_what_found_no_queue(guarded: Guarded) -> None:
    """Messages in the ledger are nobody's to throw away."""
    lose_way(guarded)
    with guarded.channel() as channel:
        channel.queue_purge(names.ingress(guarded.queue))  # copies of what has its marker
    left = strays(guarded)
    with pytest.raises(TopologyError, match=f"holds {left} messages that found neither"):
        unguard(guarded.amqp_url, guarded.queue, bindings="drop")
    guarded.build()
    guarded.run_until_drained()
    assert sum(guarded.assert_each_once(BODIES[:left], marks=True).marked.values()) == left
