"""Publish with pika's blocking channel: a Stamper numbers the orders, so that sending one again is safe."""

import sys
import time

import pika
from pika.adapters.blocking_connection import BlockingChannel

from dedup import Stamper

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"


def connect() -> BlockingChannel:
    """Return a channel in confirm mode."""
    while True:
        try:
            channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
        except pika.exceptions.AMQPConnectionError:
            time.sleep(0.2)
        else:
            channel.confirm_delivery()
            return channel


stamper = Stamper("shop-4")
channel = connect()
sent_again = 0
for number in range(100):
    order = b"pika, order %d" % number
    stamp = stamper.stamp()
    while True:
        try:
            channel.basic_publish("", "orders.dedup", order, stamper.properties(stamp), mandatory=True)
        except pika.exceptions.AMQPConnectionError:
            # Stored or not? Nobody knows. The same number makes it the same message.
            channel = connect()
            stamp = stamper.again(stamp)
            sent_again += 1
        else:
            stamper.confirmed(stamp)
            break
channel.connection.close()
print(f"100 orders confirmed, {sent_again} sent again")
