"""A queue that is out of reach is not taken for one that is missing; what is asked of real brokers is in the integration tests."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from pika.frame import Method
from pika.spec import Queue

from dedup.amqp091.administration import Administration
from dedup.amqp091.failures import translate
from dedup.errors import BrokerUnavailableError


class Answering(Administration):
    """A broker that closes the channel with one reply, whatever is asked."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__([pika.ConnectionParameters()])
        self._reply = ChannelClosedByBroker(code, text)

    def _request(self, *_: Any, **__: Any) -> Any:
        raise translate(self._reply)


@pytest.mark.parametrize(
    "text",
    [
        "home node 'rabbit@b' of durable queue 'orders.dedup.ledger' in vhost '/' is down or inaccessible",
        "queue 'orders.dedup.ledger' in vhost '/' process is stopped by supervisor",
        "queue 'orders.dedup.ledger' in vhost '/' has crashed and failed to restart",
        "failed to perform operation on queue 'orders.dedup.ledger' in vhost '/' due to timeout",
    ],
)
def test_a_queue_out_of_reach_is_not_missing(text: str) -> None:
    """RabbitMQ says 404 for these too; whoever asks waits for the queue to come back instead of declaring it."""
    with pytest.raises(
        BrokerUnavailableError, match=r"'orders\.dedup\.ledger' cannot be reached: NOT_FOUND"
    ) as raised:
        Answering(404, f"NOT_FOUND - {text}").count("orders.dedup.ledger")
    assert text in str(raised.value)
    assert raised.value.reply_code == 404  # type: ignore[attr-defined]


class Leaderless(Administration):
    """A broker whose quorum queue has no leader: it counts nothing in it, and takes no consumer."""

    def __init__(self) -> None:
        super().__init__([pika.ConnectionParameters()])
        self.deleted = False

    def _request(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "queue_declare":
            return Method(1, Queue.DeclareOk(arguments[0], message_count=0, consumer_count=0))
        if method == "queue_delete":
            if options:
                raise translate(
                    ConnectionClosedByBroker(540, "NOT_IMPLEMENTED - cannot delete queue with ifUnused")
                )
            self.deleted = True
        raise translate(ConnectionClosedByBroker(541, "INTERNAL_ERROR - failed consuming from quorum queue"))


def test_a_queue_without_a_leader_is_not_taken_for_empty() -> None:
    """RabbitMQ counts 0 messages in it, whatever it holds; it is not deleted on the strength of that."""
    broker = Leaderless()
    with pytest.raises(BrokerUnavailableError, match="failed consuming"):
        broker.delete_queue("orders.dedup", if_idle=True)
    assert not broker.deleted


def test_a_missing_queue_or_exchange_is_not_there() -> None:
    """What the broker knows nothing of is an answer and no error."""
    assert Answering(404, "NOT_FOUND - no queue 'orders' in vhost '/'").count("orders") is None
    assert not Answering(404, "NOT_FOUND - no exchange 'orders' in vhost '/'").has_exchange("orders")
