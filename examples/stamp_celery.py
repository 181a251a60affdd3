"""
Send Celery tasks: a hook stamps each when it is published; workers stay as they are and consume from "orders"::

    celery --app stamp_celery --broker amqp://localhost worker --queues orders
"""

import sys
from typing import Any

from celery import Celery, signals
from kombu import Queue

from dedup import Stamp, Stamper

app = Celery(
    "shop", broker=sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else "amqp://localhost"
)
app.conf.update(
    # Tasks go to the queue in front, workers take them behind it; both queues are there, with arguments of their own.
    task_queues=[Queue("orders.dedup", no_declare=True), Queue("orders", no_declare=True)],
    task_default_queue="orders.dedup",
    task_create_missing_queues=False,
    # A publish ends when the broker has confirmed it, and is tried again until then.
    broker_transport_options={"confirm_publish": True},
    task_publish_retry_policy={
        "max_retries": 50,
        "interval_start": 0.1,
        "interval_step": 0.1,
        "interval_max": 1,
    },
)
stamper = Stamper("shop-8")
#: Task id -> stamp, while its publish has not succeeded.
stamps: dict[str, Stamp] = {}


def stamp_task(headers: dict[str, Any], properties: dict[str, Any], **_: Any) -> None:
    """Number a new task; one that is sent again under its task id keeps its number."""
    earlier = stamps.get(headers["id"])
    stamp = stamps[headers["id"]] = stamper.again(earlier) if earlier else stamper.stamp()
    headers.update(stamp.headers)
    properties |= {"app_id": stamp.app_id, "mandatory": True}


def confirm_task(headers: dict[str, Any], **_: Any) -> None:
    """Hear that the broker has it."""
    stamper.confirmed(stamps.pop(headers["id"]))


def take_order(number: int) -> None:
    """Do what a worker does with an order."""
    print(f"order {number}")


signals.before_task_publish.connect(stamp_task)
signals.after_task_publish.connect(confirm_task)
order = app.task(take_order, name="shop.order", ignore_result=True)

if __name__ == "__main__":
    for number in range(100):
        order.delay(number)
    print("100 tasks confirmed")
