"""Questions and receipts of a publisher of AMQP 1.0, behind shims of either protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dedup.core.questions import Status, Told
from dedup.errors import NoAnswerError, PublisherClosedError, PublishError, ReturnedError
from dedup.testing.proxy import FaultProxy
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ
from proton_adapter import Publisher
from tests.fault.child import PATIENCE_S
from tests.fault.guarded import Guarded
from tests.looking import over, until

Make = Callable[..., Guarded]


@pytest.mark.each_version
@pytest.mark.parametrize("shim", ["amqp091", "amqp10"])
def test_a_publisher_asks_and_is_told(make: Make, broker: RabbitMQ, shim: str) -> None:
    """Where to resume, what became of a message, and that a copy was dropped."""
    guarded, told = make(), list[Told]()
    child = guarded.start_shim(protocol=shim)
    with (
        serving(broker.url, MemoryRegistry(time.time)),
        Publisher(broker.url, "p", receipts=told.append) as publisher,
    ):
        for number in (1, 2, 5, 5):
            receipt = publisher.publish(b"%d" % number, queue=guarded.queue, sequence=number)
        point = publisher.resume_point(queue=guarded.queue, queues=[guarded.queue])
        assert (point.next, point.missing) == (6, ((3, 4),))
        assert publisher.status(receipt, queue=guarded.queue) == {guarded.queue: Status.SEEN}
        until(lambda: told)
        assert [(one.receipt.sequence, one.queue, one.what) for one in told] == [
            (5, guarded.queue, "duplicate")
        ]
    guarded.stop(child)
    guarded.assert_each_once(["1", "2", "5"])


def test_without_a_shim_nothing_answers(make: Make, broker: RabbitMQ) -> None:
    """The control: the error says after how long, and the publisher goes on."""
    guarded = make()
    with Publisher(broker.url, "p", registration="local") as publisher:
        with pytest.raises(NoAnswerError):
            publisher.resume_point(queue=guarded.queue, timeout=0.5)
        publisher.publish(b"1", queue=guarded.queue)


def test_a_question_survives_a_lost_connection(make: Make, link: FaultProxy) -> None:
    """It is asked again on the next one, whose address is another."""
    guarded = make()
    with ThreadPoolExecutor() as pool, Publisher(over(link), "p", registration="local") as publisher:
        publisher.publish(b"1", queue=guarded.queue, sequence=1)
        asking = pool.submit(publisher.resume_point, queue=guarded.queue, timeout=PATIENCE_S)
        time.sleep(0.3)
        link.cut()
        child = guarded.start_shim()
        assert asking.result(PATIENCE_S).next == 2
    guarded.stop(child)


@pytest.mark.each_version("long")
def test_a_question_that_reaches_no_queue_is_an_error_at_once(make: Make, broker: RabbitMQ) -> None:
    """Returned, or refused because the exchange is missing; the next one is answered."""
    guarded = make()
    child = guarded.start_shim()
    with Publisher(broker.url, "p", registration="local") as publisher:
        with pytest.raises(ReturnedError, match="the question was returned"):
            publisher.resume_point(routing_key="nowhere")
        with pytest.raises(PublishError, match="refused the question: 404"):
            publisher.resume_point(exchange="nowhere")
        publisher.publish(b"1", queue=guarded.queue, sequence=1)
        assert publisher.resume_point(queue=guarded.queue).next == 2
    guarded.stop(child)


def test_closing_leaves_nobody_waiting(make: Make, broker: RabbitMQ) -> None:
    """Whoever waits for an answer hears that none will come."""
    guarded = make()
    with ThreadPoolExecutor() as pool:
        publisher = Publisher(broker.url, "p", registration="local")
        asking = pool.submit(publisher.resume_point, queue=guarded.queue, timeout=PATIENCE_S)
        time.sleep(0.3)
        publisher.close()
        with pytest.raises(PublisherClosedError):
            asking.result(PATIENCE_S)
