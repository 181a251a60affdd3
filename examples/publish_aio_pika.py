"""Publish with aio-pika: app_id names the publisher, the header dedup-sequence numbers the message."""

import asyncio
import sys

import aio_pika

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"


async def main() -> None:
    """Publish each of three orders twice, as a client that has missed confirms would."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        for sequence in (1, 2, 3, 1, 2, 3):
            message = aio_pika.Message(
                b"order %d" % sequence,
                app_id="shop-3",
                headers={"dedup-sequence": sequence},
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await channel.default_exchange.publish(message, "orders.dedup")
    print("6 messages published, 3 of them again")


asyncio.run(main())
