"""One session after the other on a real broker: how one ends must not be in the way of the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dedup.amqp091.driver import Outcome
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.session import Observer, Session
from dedup.core import names, steps
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from dedup.errors import BrokerUnavailableError
from dedup.store.redis import RedisStore
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded

#: A broker that is left with a dead connection notices it after this; longer than a test may take.
_HEARTBEAT_S = 300


@pytest.fixture
def guarded(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Guarded]:
    """A guarded queue without a shim."""
    with Guarded(rabbitmq, redis_server, queue_name) as made:
        yield made


@pytest.mark.parametrize("rounds", range(8))
def test_a_session_that_ends_while_it_connects_frees_the_fence(guarded: Guarded, rounds: int) -> None:
    """The second connection is still being made when the first one fails: the broker hears at once that both are gone."""
    assert _ends_while_connecting(guarded, rounds) is Outcome.LOST
    assert _ends_while_connecting(guarded, 0) is Outcome.LOST


def _ends_while_connecting(guarded: Guarded, rounds: int) -> Outcome:
    """Run a session that holds the fence and fails so many rounds of its loop after it began to connect to the ingress."""
    parameters = connection_parameters(guarded.amqp_url, name="test", heartbeat_s=_HEARTBEAT_S)[0]

    def fail(left: int) -> None:
        if left:
            session._loop.add_callback_threadsafe(lambda: fail(left - 1))
        else:
            assert session._forwarding is not None
            session._on_failed(session._forwarding, BrokerUnavailableError("a fault of this test"))

    def step(when: str, effect: steps.Effect) -> None:
        if when == "after" and isinstance(effect, steps.Consume):
            fail(rounds)

    with closing(RedisStore(guarded.redis_url, vhost="/", queue=guarded.queue)) as store:
        session = Session(
            names.guarding(guarded.queue),
            parameters=parameters,
            relay=Relay(RelaySettings()),
            store=store,
            prefetch=8,
            survey=lambda: steps.Surveyed(None),
            observer=Observer(step=step),
        )
        return session.run().outcome
