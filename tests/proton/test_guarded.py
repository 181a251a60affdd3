"""One guarded queue, its shim of AMQP 0.9.1, and publishers of both protocols."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dedup
import proton_adapter
from dedup.core import names
from dedup.core.identity import Receipt
from dedup.testing.proxy import TO_CLIENT, FaultProxy
from dedup.testing.servers import RabbitMQ
from tests.fault.guarded import Guarded
from tests.looking import channel, drain, over, until

Make = Callable[..., Guarded]


def _publish_with_missed_answers(
    broker: RabbitMQ, link: FaultProxy, queue: str, count: int, caplog: pytest.LogCaptureFixture
) -> list[Receipt]:
    """Publish *count* messages whose first answers are all lost; each is stored twice in the ingress."""
    ingress = names.ingress(queue)
    with proton_adapter.Publisher(
        over(link), "orders-1", registration="local", confirm_timeout_s=4.0
    ) as publisher:
        link.drop(TO_CLIENT)
        futures = [publisher.submit(b"%d" % n, queue=queue) for n in range(count)]
        with channel(broker) as opened:
            until(lambda: opened.queue_declare(ingress, passive=True).method.message_count == count)
        until(lambda: "publisher_connection_dropped" in caplog.text)
        link.heal()
        receipts = [future.result(30) for future in futures]
    with channel(broker) as opened:
        assert opened.queue_declare(ingress, passive=True).method.message_count == 2 * count
    return receipts


@pytest.mark.each_version
def test_missed_outcomes_double_nothing_behind_a_shim(
    make: Make, broker: RabbitMQ, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Every message is twice in the ingress and once in the target, in order and without a mark."""
    guarded = make()
    receipts = _publish_with_missed_answers(broker, link, guarded.queue, 50, caplog)
    assert {receipt.attempts for receipt in receipts} == {2}
    guarded.run_until_drained()
    found = guarded.assert_each_once([str(n) for n in range(50)])
    assert found.order == [str(n) for n in range(50)]


def test_without_a_shim_they_double(
    make: Make, broker: RabbitMQ, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The control: the same publishes, read straight from the queue they went to."""
    guarded = make()
    _publish_with_missed_answers(broker, link, guarded.queue, 50, caplog)
    bodies = [body for body, _ in drain(broker, names.ingress(guarded.queue))]
    assert sorted(bodies) == sorted(2 * [b"%d" % n for n in range(50)])


def test_publishers_of_both_protocols_share_a_queue(make: Make, broker: RabbitMQ) -> None:
    """Each is told from the other by its id alone, and each one's retries are dropped."""
    guarded = make()
    base = 7 << 32
    with (
        dedup.Publisher(broker.url, "old", base=base) as old,
        proton_adapter.Publisher(broker.url, "new", base=base) as new,
    ):
        for n in range(20):
            old.submit(b"old %d" % n, queue=guarded.queue)
            new.submit(b"new %d" % n, queue=guarded.queue)
    # As a second process would that has missed every confirm, and now speaks the other protocol.
    with (
        dedup.Publisher(broker.url, "new", base=base) as old,
        proton_adapter.Publisher(broker.url, "old", base=base) as new,
    ):
        for n in range(25):
            old.submit(b"new %d" % n, queue=guarded.queue)
            new.submit(b"old %d" % n, queue=guarded.queue)
    guarded.run_until_drained()
    found = guarded.assert_each_once([f"{who} {n}" for who in ("old", "new") for n in range(25)])
    for who in ("old", "new"):
        assert [body for body in found.order if body.startswith(who)] == [f"{who} {n}" for n in range(25)]
