"""The publisher of asyncio against a real broker, over a link that breaks: as the one of threads, and the loop is never held."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dedup import (
    BrokerUnavailableError,
    ClosedUnconfirmedError,
    ConfigError,
    DedupError,
    InvalidMessageError,
    Publisher,
    PublisherClosedError,
    PublishTimeoutError,
    Receipt,
    aio,
)
from dedup.core.questions import Status
from dedup.errors import OutboxFullError
from dedup.testing.proxy import TO_CLIENT, FaultProxy
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded
from tests.looking import PATIENCE_S, bodies, drain, over, sequences


def _drain(rabbitmq: RabbitMQ, queue: str) -> list[tuple[int, bytes]]:
    """Take everything out of *queue*: (sequence, body) in order, copies of a re-send included."""
    messages = drain(rabbitmq, queue)
    return list(zip(sequences(messages), bodies(messages), strict=True))


async def _until(holds: Callable[[], bool]) -> None:
    """Wait for it as `until` does, and let the loop go on."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "timed out"
        await asyncio.sleep(0.01)


# -- many tasks -----------------------------------------------------------------------------------


def test_thousands_of_tasks_publish_at_once(rabbitmq: RabbitMQ, queue: str) -> None:
    """Every task gets the receipt of its own message, in the order in which they began, with a buffer far too small for all."""

    async def main() -> list[Receipt]:
        async with aio.Publisher(
            rabbitmq.url, "orders-1", base=0, unconfirmed_max=50, waiting_max=50
        ) as publisher:
            return await asyncio.gather(
                *(publisher.publish(b"%d" % n, routing_key=queue) for n in range(3000))
            )

    receipts = asyncio.run(main())
    assert receipts == [Receipt("orders-1", n + 1) for n in range(3000)]
    assert _drain(rabbitmq, queue) == [(n + 1, b"%d" % n) for n in range(3000)]


def test_a_connection_cut_again_and_again_loses_nothing(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """Tasks under cuts: each is confirmed, and what was sent again is the same message under the same number."""

    async def main() -> list[Receipt]:
        async with await aio.Publisher.connect(over(link), "orders-1", base=0) as publisher:
            tasks = [
                asyncio.create_task(publisher.publish(b"%d" % n, routing_key=queue)) for n in range(2000)
            ]
            for done in (1, 500, 1000):
                await _until(lambda done=done: sum(task.done() for task in tasks) >= done)  # type: ignore[misc]
                link.cut()
            return await asyncio.gather(*tasks)

    receipts = asyncio.run(main())
    stored = _drain(rabbitmq, queue)
    assert [receipt.sequence for receipt in receipts] == list(range(1, 2001))
    assert {(receipt.sequence, b"%d" % n) for n, receipt in enumerate(receipts)} == set(stored)


def test_a_broker_killed_and_restarted_has_everything_confirmed(rabbitmq: RabbitMQ, queue: str) -> None:
    """A kill -9 under load and the same broker again: all tasks end well, and the loop runs all the while."""

    async def main() -> list[Receipt]:
        async with aio.Publisher(rabbitmq.url, "orders-1", base=0) as publisher:
            tasks = [
                asyncio.create_task(publisher.publish(b"%d" % n, routing_key=queue)) for n in range(3000)
            ]
            await _until(lambda: any(task.done() for task in tasks))
            rabbitmq.kill()
            tasks += [
                asyncio.create_task(publisher.publish(b"%d" % n, routing_key=queue))
                for n in range(3000, 3500)
            ]
            await asyncio.to_thread(rabbitmq.start)
            return await asyncio.gather(*tasks)

    receipts = asyncio.run(main())
    assert {(receipt.sequence, b"%d" % n) for n, receipt in enumerate(receipts)} <= set(
        _drain(rabbitmq, queue)
    )


# -- room -----------------------------------------------------------------------------------------


def test_a_full_buffer_is_awaited_and_the_loop_goes_on(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """Without confirms the third message waits for room, other tasks run, and order is kept when confirms come."""

    async def main() -> None:
        async with aio.Publisher(
            over(link), "orders-1", base=0, unconfirmed_max=1, waiting_max=1
        ) as publisher:
            link.stall(TO_CLIENT)
            taken = [await publisher.submit(b"%d" % n, routing_key=queue) for n in range(2)]
            waiting = [
                asyncio.create_task(publisher.submit(b"%d" % n, routing_key=queue)) for n in range(2, 6)
            ]
            steps = 0
            while steps < 20:
                await asyncio.sleep(0.01)
                steps += 1
            assert not any(task.done() for task in waiting)
            waiting[1].cancel()
            link.heal()
            futures = taken + [await task for task in waiting if task is not waiting[1]]
            assert [(await future).sequence for future in futures] == [1, 2, 3, 4, 5]

    asyncio.run(main())
    assert [body for _, body in _drain(rabbitmq, queue)] == [b"0", b"1", b"2", b"4", b"5"]


@pytest.mark.parametrize("limit", [{"unconfirmed_max": 1, "waiting_max": 1}, {"buffer_bytes_max": 400}])
def test_no_room_in_time_is_an_error_with_a_receipt(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy, limit: dict[str, Any]
) -> None:
    """As in threads: the message has a number, was never sent, and can be retried."""

    async def main() -> None:
        async with aio.Publisher(over(link), "orders-1", base=0, **limit) as publisher:
            link.stall(TO_CLIENT)
            futures = [await publisher.submit(bytes(100), routing_key=queue) for _ in range(2)]
            results = await asyncio.gather(
                *(publisher.publish(b"late", routing_key=queue, timeout=0.2) for _ in range(2)),
                return_exceptions=True,
            )
            for sequence, error in enumerate(results, 3):
                assert isinstance(error, PublishTimeoutError)
                assert error.receipt == Receipt("orders-1", sequence, 0)
            link.heal()
            await asyncio.gather(*futures)
            assert await publisher.retry(Receipt("orders-1", 4), timeout=20) == Receipt("orders-1", 4)

    asyncio.run(main())
    assert [sequence for sequence, _ in _drain(rabbitmq, queue)] == [1, 2, 4]


# -- cancelling -----------------------------------------------------------------------------------


def test_a_cancelled_publish_stays_on_its_way(rabbitmq: RabbitMQ, queue: str, link: FaultProxy) -> None:
    """Its task ends at once, the message arrives, flush waits for it, and the next one has the next number."""

    async def main() -> Receipt:
        async with aio.Publisher(over(link), "orders-1", base=0) as publisher:
            link.stall(TO_CLIENT)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(publisher.publish(b"cancelled", routing_key=queue), 0.1)
            with pytest.raises(PublishTimeoutError, match="1 messages are not confirmed") as caught:
                await publisher.flush(timeout=0.1)
            assert (caught.value.receipt.sequence, vars(caught.value)["unconfirmed"]) == (1, 1)
            with pytest.raises(InvalidMessageError, match="still on its way"):
                await publisher.retry(Receipt("orders-1", 1))
            link.heal()
            await publisher.flush(timeout=20)
            return await publisher.publish(b"next", routing_key=queue)

    assert asyncio.run(main()).sequence == 2
    assert _drain(rabbitmq, queue) == [(1, b"cancelled"), (2, b"next")]


def test_a_failure_that_nobody_awaits_is_logged_and_can_be_retried(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Cancelled, then given up: the log has the number, and the publisher still has the message."""

    async def main() -> None:
        async with aio.Publisher(over(link), "orders-1", base=0) as publisher:
            link.stall(TO_CLIENT)
            task = asyncio.create_task(publisher.publish(b"x", routing_key=queue, timeout=0.3))
            await asyncio.sleep(0.05)
            task.cancel()
            with caplog.at_level(logging.WARNING, "dedup.publisher"):
                await _until(lambda: "publish_failed_unheard" in caplog.text)
            assert "publisher_id='orders-1' sequence=1" in caplog.text
            link.heal()
            assert (await publisher.retry(Receipt("orders-1", 1), timeout=20)).sequence == 1

    asyncio.run(main())
    assert set(_drain(rabbitmq, queue)) == {(1, b"x")}


# -- with an outbox -------------------------------------------------------------------------------


def test_a_message_that_is_kept_stays_on_its_way(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy, tmp_path: Path
) -> None:
    """keep() ends when it is on disk; a publish whose time is up says that it stays, and retry() waits for the same message."""

    async def main() -> None:
        async with aio.Publisher(
            over(link), "orders-1", registration="local", outbox=tmp_path / "orders.db"
        ) as publisher:
            link.stall(TO_CLIENT)
            kept = await publisher.keep(b"kept", routing_key=queue)
            assert not kept.done()
            with pytest.raises(PublishTimeoutError, match="stays on its way") as caught:
                await publisher.publish(b"late", routing_key=queue, timeout=0.2)
            retries = [asyncio.create_task(publisher.retry(caught.value.receipt)) for _ in range(2)]
            await asyncio.sleep(0.05)
            retries[0].cancel()
            link.heal()
            assert (await retries[1]).sequence == caught.value.receipt.sequence
            assert (await kept).sequence == kept.sequence

    asyncio.run(main())
    assert {body for _, body in _drain(rabbitmq, queue)} == {b"kept", b"late"}


def test_room_in_an_outbox_is_awaited(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy, tmp_path: Path
) -> None:
    """A full outbox holds tasks back, not the loop, until rows are gone; in time or with an error."""

    async def main() -> None:
        async with aio.Publisher(
            over(link),
            "orders-1",
            registration="local",
            outbox=tmp_path / "orders.db",
            outbox_rows_max=3,
        ) as publisher:
            link.stall(TO_CLIENT)
            kept = [await publisher.keep(b"%d" % n, routing_key=queue) for n in range(3)]
            with pytest.raises(OutboxFullError):
                await publisher.publish(b"no room", routing_key=queue, timeout=0.2)
            waiting = [
                asyncio.create_task(publisher.publish(b"%d" % n, routing_key=queue)) for n in range(3, 9)
            ]
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in waiting)
            link.heal()
            await asyncio.gather(*kept, *waiting)

    asyncio.run(main())
    assert [body for _, body in _drain(rabbitmq, queue)] == [b"%d" % n for n in range(9)]


def test_keeping_without_an_outbox_is_told(rabbitmq: RabbitMQ, queue: str) -> None:
    """As in threads, before anything is sent."""

    async def main() -> None:
        async with aio.Publisher(rabbitmq.url, "orders-1", base=0) as publisher:
            with pytest.raises(ConfigError, match="needs an outbox"):
                await publisher.keep(b"x", routing_key=queue)

    asyncio.run(main())
    assert _drain(rabbitmq, queue) == []


# -- questions ------------------------------------------------------------------------------------


def test_questions_are_answered_and_the_loop_goes_on(
    rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str
) -> None:
    """Behind a shim: how far it has come, and what became of a message; other tasks publish meanwhile."""

    async def main() -> None:
        async with aio.Publisher(rabbitmq.url, "orders-1", base=0) as publisher:
            receipts = [await publisher.publish(b"%d" % n, queue=queue_name) for n in range(3)]
            point, seen, _ = await asyncio.gather(
                publisher.resume_point(queue=queue_name),
                publisher.status(receipts[0], queue=queue_name),
                publisher.publish(b"meanwhile", queue=queue_name),
            )
            assert point.maximum >= 3
            assert seen == {queue_name: Status.SEEN}

    with Guarded(rabbitmq, redis_server, queue_name) as guarded:
        child = guarded.start_shim()
        child.wait_for("dedup.recovered")
        asyncio.run(main())
        guarded.wait_drained(child)
        guarded.stop(child)
        guarded.assert_each_once(["0", "1", "2", "meanwhile"])


# -- closing --------------------------------------------------------------------------------------


def test_closing_in_time_fails_what_is_unconfirmed(queue: str, link: FaultProxy) -> None:
    """Close is bounded, tells each task, wakes those that wait for room, and goes on when it is cancelled."""

    async def main() -> None:
        publisher = await aio.Publisher.connect(
            over(link), "orders-1", base=0, close_timeout_s=0.5, unconfirmed_max=2, waiting_max=1
        )
        link.stall(TO_CLIENT)
        futures = [await publisher.submit(b"%d" % n, routing_key=queue) for n in range(3)]
        waiting = asyncio.create_task(publisher.submit(b"no room", routing_key=queue))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        await asyncio.wait([closing])
        with pytest.raises(PublisherClosedError):
            await waiting
        with pytest.raises(PublisherClosedError):
            await publisher.publish(b"late", routing_key=queue)
        await publisher.close()
        await publisher.close()
        for future in futures:
            error = future.exception()
            assert isinstance(error, ClosedUnconfirmedError)
            assert error.receipt.publisher_id == "orders-1"
        await publisher.flush()

    asyncio.run(main())


def test_a_publisher_that_was_not_closed_is_closed_with_its_loop(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy
) -> None:
    """What was submitted before asyncio.run ended is confirmed by then, and the connection is gone."""

    async def main() -> list[asyncio.Future[Receipt]]:
        publisher = await aio.Publisher.connect(over(link), "orders-1", base=0)
        return [await publisher.submit(b"%d" % n, routing_key=queue) for n in range(1000)]

    futures = asyncio.run(main())
    assert all(future.result().attempts == 1 for future in futures)
    asyncio.run(_until(lambda: link.connections == 0))  # the proxy hears of it a moment later
    assert len(_drain(rabbitmq, queue)) == 1000


# -- connecting and misuse ------------------------------------------------------------------------


def test_connecting_fails_as_the_one_of_threads_does() -> None:
    """Errors come from entering, and a setting is checked there too."""

    async def main(**options: Any) -> None:
        async with aio.Publisher("amqp://guest:secret@127.0.0.1:1", "orders-1", **options):
            raise AssertionError

    with pytest.raises(BrokerUnavailableError, match="within"):
        asyncio.run(main(connect_timeout_s=0.3))
    with pytest.raises(ConfigError, match="waiting_max"):
        asyncio.run(main(waiting_max=0))


def test_connecting_that_is_cancelled_leaves_no_connection(link: FaultProxy) -> None:
    """A connection that nobody waits for any more is closed."""

    async def main() -> None:
        link.stall(TO_CLIENT)
        task = asyncio.create_task(aio.Publisher.connect(over(link), "orders-1", base=0))
        await _until(lambda: link.connections > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        link.heal()
        await _until(lambda: link.connections == 0)

    asyncio.run(main())


def test_misuse_is_told(rabbitmq: RabbitMQ, queue: str) -> None:
    """Not connected, another loop, bad input: each is an error at once and uses no number."""
    unconnected = aio.Publisher(rabbitmq.url, "orders-1", base=0)
    with pytest.raises(PublisherClosedError, match="async with"):
        asyncio.run(unconnected.submit(b"x", routing_key=queue))

    async def main() -> None:
        async with aio.Publisher(rabbitmq.url, "orders-1", base=0) as publisher:
            elsewhere = asyncio.to_thread(asyncio.run, publisher.publish(b"x", routing_key=queue))
            with pytest.raises(DedupError, match="another event loop"):
                await elsewhere
            for wrong in ({"body": "text"}, {"timeout": 0}, {"queue": "orders"}):
                with pytest.raises(InvalidMessageError):
                    await publisher.submit(**{"body": b"x", "routing_key": queue, **wrong})  # type: ignore[arg-type]
            assert (await publisher.publish(b"x", routing_key=queue)).sequence == 1

    asyncio.run(main())


# -- both give the same answers -------------------------------------------------------------------

#: What is done in turn: publish to here or nowhere, with how long a timeout; retry the receipt of a failure; break or heal.
Step = tuple[str, Any]
_SCRIPTS: dict[str, list[Step]] = {
    "no fault": [("publish", None), ("publish", 5), ("flush", 5)],
    "a missed confirm": [("stall", None), ("publish", 0.2), ("heal", None), ("retry", 20), ("publish", 20)],
    "a cut": [
        ("publish", 20),
        ("stall", None),
        ("submit", None),
        ("cut", None),
        ("heal", None),
        ("flush", 20),
    ],
    "nobody takes it": [("publish", 20), ("nowhere", 20), ("retry", 20), ("publish", 20)],
    "bad input": [("bad", None), ("publish", 20)],
    "another's receipt": [("stranger", None), ("publish", 20)],
    "closed unconfirmed": [
        ("stall", None),
        ("submit", None),
        ("submit", None),
        ("close", None),
        ("publish", 1),
    ],
    "no room": [("stall", None), *[("submit", None)] * 3, ("publish", 0.2), ("heal", None), ("flush", 20)],
}

Call = Callable[..., Any]


def _play(
    script: list[Step], link: FaultProxy, queue: str, publisher: Any, wait: Callable[[Any], Any]
) -> list[str]:
    """Play *script* and tell what came of each step; *wait* gets the result of whatever a method returned."""
    told: list[str] = []
    futures: list[Any] = []
    receipt = Receipt("another", 1)
    for act, seconds in script:
        calls: dict[str, Call] = {
            "publish": lambda s=seconds: publisher.publish(b"x", routing_key=queue, timeout=s),
            "nowhere": lambda s=seconds: publisher.publish(b"x", routing_key=queue + ".nowhere", timeout=s),
            "bad": lambda: publisher.publish("text", routing_key=queue),
            "stranger": lambda: publisher.retry(Receipt("another", 1)),
            "retry": lambda s=seconds, r=receipt: publisher.retry(r, timeout=s),
            "submit": lambda: publisher.submit(b"x", routing_key=queue),
            "flush": lambda s=seconds: publisher.flush(s),
            "close": publisher.close,
            "stall": lambda: link.stall(TO_CLIENT),
            "cut": link.cut,
            "heal": link.heal,
        }
        try:
            result = wait(calls[act]())
            if act == "submit":
                futures.append(result)
                result = None  # asked at the end
            told.append(f"{act}: {result.sequence}" if isinstance(result, Receipt) else act)
        except DedupError as error:
            receipt = getattr(error, "receipt", receipt)
            told.append(f"{act}: {type(error).__name__} {receipt.sequence}")
    wait(publisher.close())
    for future in futures:
        try:
            told.append(f"future: {wait(future).sequence}")
        except DedupError as error:
            told.append(f"future: {type(error).__name__}")
    return told


@pytest.mark.parametrize("name", _SCRIPTS)
def test_both_publishers_tell_the_same_of_the_same_faults(
    rabbitmq: RabbitMQ, queue: str, link: FaultProxy, name: str
) -> None:
    """A script of faults, played to the publisher of threads and to this one: the same answers, the same messages stored."""
    options: dict[str, Any] = {"base": 0, "unconfirmed_max": 2, "waiting_max": 1, "close_timeout_s": 0.3}
    with Publisher(over(link), "orders-1", **options) as publisher:
        blocking = _play(_SCRIPTS[name], link, queue, publisher, _result)
    link.heal()
    stored = _drain(rabbitmq, queue)
    with asyncio.Runner() as runner:

        async def wait(awaitable: Awaitable[Any]) -> Any:
            return await awaitable

        def result(value: Any) -> Any:
            return runner.run(wait(value)) if isinstance(value, Coroutine | asyncio.Future) else value

        connected = result(aio.Publisher.connect(over(link), "orders-1", **options))
        awaiting = _play(_SCRIPTS[name], link, queue, connected, result)
    assert awaiting == blocking
    assert set(_drain(rabbitmq, queue)) == set(stored)


def _result(value: Any) -> Any:
    """Return *value*, or what became of it where it is the future of a message that is settled."""
    return value.result() if isinstance(value, Future) and value.done() else value
