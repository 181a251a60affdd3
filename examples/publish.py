"""Publish one order; when no confirm comes in time, send the same order again, safely."""

import sys

from dedup import Publisher, PublishTimeoutError

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"

with Publisher(url, "shop-1") as publisher:
    try:
        receipt = publisher.publish(b'{"order": 1}', queue="orders", timeout=5)
    except PublishTimeoutError as error:
        # Stored or not? Nobody knows. The retry carries the same number, so the shim does.
        receipt = publisher.retry(error.receipt, timeout=60)
    print(f"confirmed as {receipt.publisher_id} {receipt.sequence}, sent {receipt.attempts} times")
