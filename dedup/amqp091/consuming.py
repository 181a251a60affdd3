"""Consume as any application does: plain pika, and nothing in it knows of de-duplication."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pika

from dedup.amqp091.failures import FAILURES, translate
from dedup.amqp091.parameters import connection_parameters
from dedup.errors import DedupError

_PREFETCH: Final = 500
_POLL_S: Final = 0.1
#: A broker that no longer answers is not waited for any longer; seconds.
_LEAVE_TIMEOUT_S: Final = 5.0

#: Told of a body and the headers of its message.
OnMessage = Callable[[bytes, Mapping[str, Any]], None]


class PlainConsumer:
    """
    Take messages from queues in a thread of its own, and acknowledge each after its callable has returned.

    Args:
        url: Of the broker.
        queues: Who is told of the messages of which queue; called in the thread.
    """

    def __init__(self, url: str, queues: Mapping[str, OnMessage]) -> None:
        self._parameters = connection_parameters(url, name="plain consumer")[0]
        self._queues = dict(queues)
        self._finishing = threading.Event()
        self._leaving = threading.Event()
        self._newest = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="plain-consumer", daemon=True)

    def start(self) -> None:
        """
        Begin to consume.
        """
        self._thread.start()

    def check(self) -> None:
        """
        Raise what the thread died of.

        Raises:
            DedupError: the connection was lost or refused.
        """
        if self._failure is not None:
            raise self._failure

    def finish(self, timeout_s: float) -> bool:
        """
        Take what is left, then end; False when there was more than could be taken in time.
        """
        self._finishing.set()
        self._thread.join(timeout_s)
        finished = not self._thread.is_alive()
        self.leave()
        self.check()
        return finished

    def leave(self) -> None:
        """
        End now; what is left stays.
        """
        self._leaving.set()
        if self._thread.ident is not None:
            self._thread.join(_LEAVE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            connection = pika.BlockingConnection(self._parameters)
            try:
                self._consume(connection)
            finally:
                if connection.is_open:
                    connection.close()
        except FAILURES as error:
            self._failure = self._translated(error)
        except Exception as error:  # noqa: BLE001 - check() raises it where somebody listens
            self._failure = error

    def _consume(self, connection: Any) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        for queue, on_message in self._queues.items():
            channel.basic_consume(queue, partial(self._on_message, on_message))
        acknowledged = 0
        while not self._leaving.is_set():
            connection.process_data_events(time_limit=_POLL_S)
            if self._newest > acknowledged:
                acknowledged = self._newest
                channel.basic_ack(acknowledged, multiple=True)
            elif self._finishing.is_set() and not self._waiting(channel):
                return

    def _waiting(self, channel: Any) -> int:
        """
        Return how many messages are left; nothing is unacknowledged when this is asked.
        """
        declared = [channel.queue_declare(queue, passive=True).method for queue in self._queues]
        return sum(method.message_count for method in declared)

    def _on_message(self, on_message: OnMessage, _: Any, method: Any, properties: Any, body: bytes) -> None:
        on_message(body, properties.headers or {})
        self._newest = method.delivery_tag

    def _translated(self, error: BaseException) -> DedupError:
        return translate(error, where=f"{self._parameters.host}:{self._parameters.port}")
