"""Use of the asyncio publisher and of the stamper as users write it; only type-checked, never run."""

from __future__ import annotations

import asyncio

import dedup
from dedup import aio


async def publish_async() -> int:
    """Publish, retry after a timeout, and pipeline."""
    async with aio.Publisher("amqp://localhost", "orders-1", unconfirmed_max=100, base=0) as publisher:
        try:
            receipt: dedup.Receipt = await publisher.publish(b"body", queue="orders", timeout=5)
        except dedup.PublishTimeoutError as error:
            receipt = await publisher.retry(error.receipt, timeout=30.0)
        future: asyncio.Future[dedup.Receipt] = await publisher.submit(
            memoryview(b"x"), exchange="sales", properties=dedup.Properties(content_type="text/plain")
        )
        await publisher.flush(timeout=10)
        receipts: tuple[dedup.Receipt, ...] = await asyncio.gather(
            publisher.publish(b"y", queue="orders"), future
        )
        again: asyncio.Future[dedup.Receipt] = publisher.resubmit(receipts[0])
        return receipt.sequence + (await again).attempts


async def connect_first() -> None:
    """Connect apart from the block that closes."""
    async with await aio.Publisher.connect(["amqp://one", "amqp://two"], "orders-1") as publisher:
        await publisher.close()


def stamp(given: dedup.Properties) -> dedup.Properties:
    """Stamp, stamp again, settle."""
    stamper = dedup.Stamper("orders-1", base=0, window_size=1024, track=True)
    first: dedup.Stamp = stamper.stamp()
    receipt: dedup.Receipt = first
    again: dedup.Stamp = stamper.again(receipt)
    headers: dict[str, int] = again.headers
    stamper.confirmed(again)
    stamper.give_up(dedup.Receipt("orders-1", 7))
    due: list[dedup.Stamp] = stamper.lost()
    assert headers or due
    return stamper.properties(stamper.stamp(sequence=17), given)


# Each line below is wrong, and the type checker must say so: an unused ignore is an error.
async def misuse(publisher: aio.Publisher, stamper: dedup.Stamper) -> None:
    """Show what the types refuse, although the arguments are written down once, in dedup.Publisher."""
    await publisher.publish("text", queue="orders")  # type: ignore[arg-type]
    await publisher.publish(b"x", "orders")  # type: ignore[call-arg]
    await publisher.submit(b"x", que="orders")  # type: ignore[call-arg]
    await publisher.retry(17)  # type: ignore[arg-type]
    aio.Publisher("amqp://localhost", "orders-1", waiting=1)  # type: ignore[call-arg]
    await aio.Publisher.connect("amqp://localhost")  # type: ignore[call-arg]
    stamper.again(17)  # type: ignore[arg-type]
    stamper.stamp().sequence = 1  # type: ignore[misc]
