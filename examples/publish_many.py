"""Publish many orders from several threads through one publisher, without waiting for each confirm."""

import sys
from concurrent.futures import Future, ThreadPoolExecutor

from dedup import Publisher, Receipt

url = sys.argv[1] if len(sys.argv) > 1 else "amqp://localhost"


def submit(publisher: Publisher, shop: int) -> list[Future[Receipt]]:
    """Submit a thousand orders of one shop; blocks only while the buffer is full."""
    return [publisher.submit(b"shop %d, order %d" % (shop, order), queue="orders") for order in range(1000)]


with Publisher(url, "shop-2") as publisher, ThreadPoolExecutor(4) as pool:
    batches = list(pool.map(lambda shop: submit(publisher, shop), range(4)))
    publisher.flush(timeout=60)
    receipts = [future.result() for batch in batches for future in batch]
    print(f"{len(receipts)} orders confirmed, {len({r.sequence for r in receipts})} numbers")
