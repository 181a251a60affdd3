"""Publish with kombu: its own retries send the same stamp again, so they are safe too."""

import sys

import kombu

from dedup import Stamper

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"
stamper = Stamper("shop-7")

with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
    producer = connection.Producer()
    for number in range(100):
        stamp = stamper.stamp()
        # Returns when the broker has confirmed, at the second or third try if need be.
        producer.publish(
            {"shop": "kombu", "order": number},
            exchange="",
            routing_key="orders.dedup",
            app_id=stamp.app_id,
            headers=stamp.headers,
            mandatory=True,
            retry=True,
            retry_policy={"max_retries": 50, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 1},
            confirm_timeout=30,
        )
        stamper.confirmed(stamp)
print("100 orders confirmed")
