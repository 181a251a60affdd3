"""Publish with aio-pika, ten messages on their way at once: after a failure the oldest go first, under their own numbers."""

import asyncio
import sys
from collections import deque

import aio_pika
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPError, PublishError

from dedup import Stamp, Stamper

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"
stamper = Stamper("shop-6")
waiting = deque(b"aio-pika, order %d" % number for number in range(100))
#: Sequence -> order, until it is confirmed.
sent: dict[int, bytes] = {}
sent_again = 0


async def publish(channel: AbstractChannel, stamp: Stamp) -> None:
    """Publish one order and wait for its confirm; aio-pika's channels confirm by default."""
    message = aio_pika.Message(
        sent[stamp.sequence],
        app_id=stamp.app_id,
        headers={**stamp.headers},
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    await channel.default_exchange.publish(message, "orders.dedup")
    stamper.confirmed(stamp)
    del sent[stamp.sequence]


async def publish_all(channel: AbstractChannel) -> None:
    """Publish what was not confirmed, then what is new."""
    global sent_again  # noqa: PLW0603 - a script counts
    stamps = [stamper.again(stamp) for stamp in stamper.lost()]
    sent_again += len(stamps)
    while stamps or waiting:
        while waiting and len(stamps) < 10:
            stamps.append(stamper.stamp())
            sent[stamps[-1].sequence] = waiting.popleft()
        async with asyncio.TaskGroup() as tasks:
            for stamp in stamps:
                tasks.create_task(publish(channel, stamp))
        stamps = []


async def main() -> None:
    """Publish a hundred orders, over as many connections as it takes."""
    while waiting or sent:
        try:
            async with await aio_pika.connect(url) as connection:
                await publish_all(await connection.channel(on_return_raises=True))
        except* PublishError:
            raise  # no queue takes it: sending it again would not help
        except* (AMQPError, OSError):
            await asyncio.sleep(0.2)
    print(f"100 orders confirmed, {sent_again} sent again")


asyncio.run(main())
