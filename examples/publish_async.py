"""Publish many orders from one event loop, without waiting for each confirm; a missed confirm is retried as itself."""

import asyncio
import sys

from dedup import PublishTimeoutError, Receipt, aio

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"


async def publish(publisher: aio.Publisher, order: int) -> Receipt:
    """Publish one order; any number of tasks may do so at once."""
    try:
        return await publisher.publish(b"asyncio, order %d" % order, queue="orders", timeout=10)
    except PublishTimeoutError as error:
        return await publisher.retry(error.receipt)


async def main() -> None:
    """Publish a thousand orders at once."""
    async with aio.Publisher(url, "shop-10") as publisher:
        receipts = await asyncio.gather(*(publish(publisher, order) for order in range(1000)))
    sent_again = sum(receipt.attempts > 1 for receipt in receipts)
    print(f"{len(receipts)} orders confirmed, {sent_again} of them sent again")


asyncio.run(main())
