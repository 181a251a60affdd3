"""Use of the public API as users write it; only type-checked, never run."""

from __future__ import annotations

import sqlite3
import ssl
from concurrent.futures import Future
from pathlib import Path

import dedup


def publish_blocking() -> int:
    """Publish, and retry after a timeout."""
    with dedup.Publisher("amqp://localhost", "orders-1") as publisher:
        try:
            receipt: dedup.Receipt = publisher.publish(
                b"body", exchange="sales", routing_key="new", timeout=5
            )
        except dedup.PublishTimeoutError as error:
            receipt = publisher.retry(error.receipt, timeout=30.0)
        except dedup.ReturnedError as error:
            return error.receipt.attempts
        return receipt.sequence


def take_over(url: str) -> str:
    """Register, wait for nobody, and tell who was there."""
    try:
        with dedup.Publisher(url, "orders-1", registration="broker", takeover=True) as publisher:
            publisher.publish(b"1", queue="orders")
    except dedup.PublisherAlreadyRegisteredError as error:
        return error.holder
    except dedup.FencedError as error:
        return "" if error.receipt is None else error.receipt.publisher_id
    except dedup.RegistryUnavailableError:
        dedup.Publisher(url, "orders-1", registration="local").close()
    return ""


def publish_pipelined(bodies: list[bytes]) -> list[dedup.Receipt]:
    """Submit many, then look at each."""
    publisher = dedup.Publisher(
        ["amqps://one", "amqps://two"],
        publisher_id="orders-1",
        confirm_timeout_s=10,
        connect_timeout_s=5.0,
        close_timeout_s=5,
        unconfirmed_max=100,
        waiting_max=1000,
        buffer_bytes_max=2**20,
        body_bytes_max=2**16,
        window_size=8192,
        ssl_context=ssl.create_default_context(),
        user_id="orders",
        base=0,
    )
    futures: list[Future[dedup.Receipt]] = [publisher.submit(body, queue="orders") for body in bodies]
    futures.append(
        publisher.submit(
            memoryview(b"x"),
            queue="orders",
            properties=dedup.Properties(content_type="text/plain"),
            timeout=None,
        )
    )
    publisher.flush(timeout=10)
    publisher.close()
    return [future.result() for future in futures]


def catch_them_all() -> None:
    """One family; what can be tried again is one branch."""
    try:
        publish_blocking()
    except dedup.UnavailableError:
        pass
    except dedup.DedupError as error:
        raise SystemExit(str(error)) from error


# Each line below is wrong, and the type checker must say so: an unused ignore is an error.
def misuse(publisher: dedup.Publisher) -> None:
    """Show what the types refuse."""
    publisher.publish("text", queue="orders")  # type: ignore[arg-type]
    publisher.publish(b"x", "orders")  # type: ignore[call-arg]
    publisher.submit(b"x", queue="orders").result().sequence = 1  # type: ignore[misc]
    publisher.retry(17)  # type: ignore[arg-type]


def keep_in_an_outbox(path: Path, connection: sqlite3.Connection) -> int:
    """Keep a message in the publisher's own file, and in the application's transaction."""
    try:
        with dedup.Publisher("amqp://localhost", "orders-1", outbox=path, outbox_rows_max=10) as publisher:
            future: Future[dedup.Receipt] = publisher.keep(b"body", queue="orders", timeout=5)
            future.result()
    except dedup.OutboxInUseError as error:
        return error.pid or 0
    dedup.Outbox.create(connection)
    return dedup.Outbox.enqueue(connection, b"body", queue="orders", properties=dedup.Properties())
