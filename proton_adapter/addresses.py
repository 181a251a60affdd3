"""Write where a message goes as RabbitMQ 4 reads it: addresses of version 2."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote


@lru_cache(maxsize=1024)
def target_address(exchange: str, routing_key: str) -> str:
    """
    Return the address that leads to *exchange* with *routing_key*; the default exchange leads to a queue.

    Each part is percent-encoded, so names with ``/`` or ``%`` in them are reached too.
    """
    if not exchange:
        return queue_address(routing_key)
    address = f"/exchanges/{quote(exchange, safe='')}"
    return f"{address}/{quote(routing_key, safe='')}" if routing_key else address


def queue_address(queue: str) -> str:
    """
    Return the address of *queue*, to send to or to receive from.
    """
    return f"/queues/{quote(queue, safe='')}"
