"""Keep orders in a file until the broker has confirmed them: killed at any point, the next run sends what is left first."""

import sys
import tempfile
from pathlib import Path

from dedup import OutboxUnavailableError, Publisher

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"
file = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()) / "orders.db"

with Publisher(url, "shop-7", outbox=file) as publisher:
    try:
        futures = [publisher.keep(b"order %d" % order, queue="orders") for order in range(100)]
    except OutboxUnavailableError as error:
        sys.exit(f"not taken: {error}")  # the disk is full: nothing of that order was kept, nothing was sent
    print("100 orders are on disk: whoever ordered may be told")
    publisher.flush(timeout=60)
    print(f"{sum(future.done() for future in futures)} orders confirmed")
