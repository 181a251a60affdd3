"""A queue that is out of reach is not taken for one that is missing; what is asked of real brokers is in the integration tests."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

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


def test_a_missing_queue_or_exchange_is_not_there() -> None:
    """What the broker knows nothing of is an answer and no error."""
    assert Answering(404, "NOT_FOUND - no queue 'orders' in vhost '/'").count("orders") is None
    assert not Answering(404, "NOT_FOUND - no exchange 'orders' in vhost '/'").has_exchange("orders")
