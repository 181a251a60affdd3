"""Take messages from queues and acknowledge them when they are safe elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pika
from pika.exceptions import AMQPError

from dedup.amqp091.failures import DRIVER_FAILURES, translate
from dedup.amqp091.parameters import connection_parameters
from dedup.errors import BrokerUnavailableError


class Taken(NamedTuple):
    """
    One message that is not acknowledged yet.
    """

    #: Delivery tag, ascending over all queues.
    tag: int
    queue: str
    body: bytes


class Intake:
    """
    One channel that consumes from several queues.
    """

    def __init__(self, connection: Any, queues: Iterable[str], prefetch: int) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._channel.basic_qos(prefetch_count=prefetch)
        self._queues = tuple(queues)
        self._taken: list[Taken] = []
        self._cancelled = ""
        self._channel.add_on_cancel_callback(self._on_cancel)
        self._by_tag = {self._channel.basic_consume(queue, self._on_message): queue for queue in self._queues}

    def take(self, timeout_s: float) -> list[Taken]:
        """
        Return what has come, in order; wait for it so long at the most.

        Raises:
            BrokerUnavailableError: the broker took a queue away.
        """
        if not self._taken:
            self._connection.process_data_events(time_limit=timeout_s)
        if self._cancelled:
            raise BrokerUnavailableError(
                f"the broker cancelled the consumer of {self._cancelled}: was it deleted?"
            )
        taken, self._taken = self._taken, []
        return taken

    def acknowledge(self, tag: int) -> None:
        """
        Acknowledge everything up to *tag*.
        """
        self._channel.basic_ack(tag, multiple=True)

    def is_empty(self) -> bool:
        """
        Say whether nothing waits in any of the queues.
        """
        return not any(
            self._channel.queue_declare(queue, passive=True).method.message_count for queue in self._queues
        )

    def _on_message(self, _: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._taken.append(Taken(method.delivery_tag, self._by_tag[method.consumer_tag], body))

    def _on_cancel(self, frame: Any) -> None:
        self._cancelled = self._by_tag.get(frame.method.consumer_tag, "a queue")


@contextmanager
def intake(amqp: str | Iterable[str], queues: Iterable[str], *, prefetch: int) -> Iterator[Intake]:
    """
    Connect, consume, and close; what is not acknowledged then comes again.

    Args:
        amqp: URLs of one cluster; the first host that answers is taken.
        prefetch: Messages of each queue that may be unacknowledged.

    Raises:
        BrokerUnavailableError: the broker cannot be reached, or was lost.
        TopologyError: a queue is missing.
        ConfigError: login, virtual host or URL is wrong.
    """
    parameters = connection_parameters(amqp, name="dedup collector")
    where = ", ".join(f"{single.host}:{single.port}" for single in parameters)
    connection = None
    try:
        connection = pika.BlockingConnection(parameters)
        yield Intake(connection, queues, prefetch)
    except DRIVER_FAILURES as error:
        raise translate(error, where=where) from error
    finally:
        if connection is not None and connection.is_open:
            with suppress(AMQPError):
                connection.close()
