"""Look into the queues of a broker, and wait for what is to come: what the tests of every protocol share."""

from __future__ import annotations

import inspect
import json
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pika

from dedup.core.identity import Receipt
from dedup.testing.proxy import FaultProxy
from dedup.testing.servers import RabbitMQ

#: Nothing takes this long unless it hangs, on the busiest machine; seconds.
PATIENCE_S = 60.0
#: A quorum queue keeps the rest back when 2,000 are not settled.
_SETTLED_TOGETHER = 500

#: Messages in order: (body, properties).
Found = list[tuple[bytes, Any]]
T = TypeVar("T")


@contextmanager
def channel(broker: RabbitMQ | str, *, confirms: bool = True) -> Iterator[Any]:
    """Open a channel of AMQP 0.9.1 to a server, or to a URL; its connection closes with it."""
    url = broker if isinstance(broker, str) else broker.url
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        opened = connection.channel()
        if confirms:
            opened.confirm_delivery()
        yield opened
    finally:
        with suppress(pika.exceptions.AMQPError):  # the test may have killed the broker
            connection.close()


def depth(broker: RabbitMQ | str, queue: str) -> int:
    """Return how many messages are ready in *queue*."""
    with channel(broker, confirms=False) as opened:
        return int(opened.queue_declare(queue, passive=True).method.message_count)


def drain(broker: RabbitMQ | str, queue: str) -> Found:
    """Take everything out of *queue*."""
    messages: Found = []
    with channel(broker, confirms=False) as opened:
        while True:
            while ready := opened.queue_declare(queue, passive=True).method.message_count:
                messages += _take(opened, queue, ready)
            # A count may lag behind on a queue that has changed its leader; to get is certain.
            try:
                method, properties, body = opened.basic_get(queue, auto_ack=True)
            except pika.exceptions.ChannelClosedByBroker:
                return messages  # nobody may get from a quorum queue that lets one consumer at a time in
            if method is None:
                return messages
            messages.append((body, properties))


def _take(opened: Any, queue: str, ready: int) -> Found:
    """Take so many messages out of *queue* at once, as to get each would cost a round trip; what follows them goes back."""
    messages: Found = []
    for method, properties, body in opened.consume(queue, inactivity_timeout=PATIENCE_S):
        if method is None:  # somebody else has taken the rest
            break
        messages.append((body, properties))
        last = method.delivery_tag
        if not len(messages) % _SETTLED_TOGETHER:
            opened.basic_ack(last, multiple=True)
        if len(messages) == ready:
            break
    assert messages, f"{ready} messages are in {queue} and do not come: does somebody else consume it?"
    if len(messages) % _SETTLED_TOGETHER:
        opened.basic_ack(last, multiple=True)
    opened.cancel()
    return messages


def read_stream(broker: RabbitMQ | str, stream: str, count: int) -> Found:
    """Read the first *count* messages of *stream*, and whatever follows at once."""
    messages: Found = []
    with channel(broker) as opened:
        opened.basic_qos(prefetch_count=100)
        end = time.monotonic() + PATIENCE_S
        start = {"x-stream-offset": "first"}
        for method, properties, body in opened.consume(stream, arguments=start, inactivity_timeout=0.5):
            if method is None and (len(messages) >= count or time.monotonic() > end):
                return messages
            if method is not None:
                opened.basic_ack(method.delivery_tag)
                messages.append((body, properties))
    return messages


def bodies(messages: Found) -> list[bytes]:
    """Return the bodies of *messages* in order."""
    return [body for body, _ in messages]


def sequences(messages: Found) -> list[int]:
    """Return the sequences of *messages* in order."""
    return [properties.headers["dedup-sequence"] for _, properties in messages]


def check_copies(messages: Found, receipts: list[Receipt]) -> None:
    """Everything confirmed is there, and copies are the same message with a higher attempt."""
    lost = {receipt.sequence for receipt in receipts} - set(sequences(messages))
    assert not lost, f"confirmed and not there: {sorted(lost)[:10]} of {len(lost)}"
    first: dict[int, bytes] = {}
    attempts = set()
    for body, properties in messages:
        sequence = properties.headers["dedup-sequence"]
        assert first.setdefault(sequence, body) == body, f"two messages are number {sequence}"
        attempt = (sequence, properties.headers.get("dedup-attempt", 1))
        assert attempt not in attempts, f"attempt {attempt[1]} of {sequence} is there twice"
        attempts.add(attempt)


def over(link: FaultProxy, user: str = "guest:guest") -> str:
    """Return the URL of the broker behind *link*."""
    return f"amqp://{user}@127.0.0.1:{link.port}/%2F"


def administer(broker: RabbitMQ, method: str, path: str, body: object = None) -> None:
    """Ask the management API of *broker* for something: the tool for it would have to start an Erlang node first."""
    parts = urlsplit(broker.management_url)
    credentials = b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://{parts.hostname}:{parts.port}/api/{path}", data, headers, method=method)
    with urlopen(request, timeout=PATIENCE_S):
        pass


def in_alarm(broker: RabbitMQ) -> bool:
    """Tell whether *broker* takes no publishes."""
    try:
        administer(broker, "GET", "health/checks/local-alarms")
    except HTTPError as error:
        error.close()
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return True
    return False


def listens(port: int) -> bool:
    """Tell whether somebody listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
        return True
    return False


def until(holds: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """Wait for something that is neither None nor false, and return it; what was waited for is in the error."""
    end = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {timeout_s} s: {inspect.getsource(holds).strip()}"
        time.sleep(0.01)
    return found
