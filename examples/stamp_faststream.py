"""Publish with FastStream: a middleware stamps whatever the broker publishes, and sends it again when its confirm is missed."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aio_pika.exceptions import AMQPError, PublishError
from faststream import BaseMiddleware, PublishCommand
from faststream.rabbit import Channel, RabbitBroker

from dedup import Stamper

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"
stamper = Stamper("shop-9")
sent_again = 0


class Stamping(BaseMiddleware):
    """Put a stamp into each message, and keep publishing it until the broker has confirmed it."""

    async def publish_scope(
        self, call_next: Callable[[PublishCommand], Awaitable[Any]], cmd: PublishCommand
    ) -> Any:
        """Number the message once, whatever becomes of the first try."""
        global sent_again  # noqa: PLW0603 - a script counts
        stamp = stamper.stamp()
        while True:
            cmd.headers = {**(cmd.headers or {}), **stamp.headers_alone}
            try:
                result = await call_next(cmd)
            except PublishError:
                raise  # no queue takes it: sending it again would not help
            except (AMQPError, OSError, RuntimeError):
                await asyncio.sleep(0.2)
                stamp = stamper.again(stamp)
                sent_again += 1
            else:
                stamper.confirmed(stamp)
                return result


async def main() -> None:
    """Publish a hundred orders, one after the other."""
    async with RabbitBroker(
        url, middlewares=[Stamping], default_channel=Channel(on_return_raises=True)
    ) as broker:
        for number in range(100):
            await broker.publish({"shop": "faststream", "order": number}, "orders.dedup", persist=True)
    print(f"100 orders confirmed, {sent_again} sent again")


asyncio.run(main())
