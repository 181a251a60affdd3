"""
The loop everybody writes: take, publish with a confirm, acknowledge. It stands in the shim's place in every control.

With a Redis it is the other loop everybody writes: it skips what ``SET NX`` says was seen before.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, closing
from typing import Any

import pika
import redis

from dedup.service.signals import ended_by_signals
from tests.fault.child import Child, Tell, trap_of

#: Pause after something went wrong, and between two looks at an empty queue; seconds.
_PAUSE_S = 0.05
#: How long Redis and a broker that blocks publishers are waited for; seconds.
_PATIENCE_S = 0.5
#: Deliveries the broker may send ahead.
_PREFETCH = 8


class NaiveProcess(Child):
    """A plain loop in a process of its own; it tells the same notices as a shim, and "trouble"."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(run, settings)


def run(settings: dict[str, Any], tell: Tell) -> None:
    """
    Forward until SIGTERM, with a new connection after whatever goes wrong.

    Args:
        settings: amqp, source, target; to_amqp, where the target is another broker's; redis, or None to skip nothing; kill and
            signal as for the shim, with the steps "Claim" (in Redis) and "Publish".
        tell: Told of each message forwarded, and of each failure.
    """
    loop = _Loop(settings, tell)
    with ended_by_signals(lambda _: loop.stopping.set(), (signal.SIGTERM,)):
        tell("started", {})
        while not loop.stopping.is_set():
            try:
                loop.connect_and_forward()
            except (pika.exceptions.AMQPError, redis.RedisError, OSError) as error:
                tell("trouble", {"reason": repr(error)})
                loop.stopping.wait(_PAUSE_S)


class _Loop:
    def __init__(self, settings: dict[str, Any], tell: Tell) -> None:
        self.stopping = threading.Event()
        self._tell = tell
        self._trap = trap_of(settings)
        self._source, self._target = settings["source"], settings["target"]
        self._parameters = pika.URLParameters(settings["amqp"])
        self._parameters.blocked_connection_timeout = _PATIENCE_S
        self._into = pika.URLParameters(settings["to_amqp"]) if settings.get("to_amqp") else None
        self._seen = None
        if settings["redis"] is not None:
            self._seen = redis.Redis.from_url(settings["redis"], socket_timeout=_PATIENCE_S)

    def connect_and_forward(self) -> None:
        with ExitStack() as stack:
            channel = publishing = self._channel(stack, self._parameters)
            if self._into is not None:
                publishing = self._channel(stack, self._into)
            channel.basic_qos(prefetch_count=_PREFETCH)
            self._tell("dedup.recovered", {})
            for method, properties, body in channel.consume(self._source, inactivity_timeout=_PAUSE_S):
                if self.stopping.is_set():
                    return
                if method is not None:
                    self._forward(publishing, properties, body)
                    channel.basic_ack(method.delivery_tag)
                    self._tell("report", {"verdicts": {"new": 1}})
            self._tell("trouble", {"reason": "the broker has cancelled the consumer"})

    def _channel(self, stack: ExitStack, parameters: pika.connection.Parameters) -> Any:
        connection = stack.enter_context(closing(pika.BlockingConnection(parameters)))
        channel = connection.channel()
        channel.confirm_delivery()
        return channel

    def _forward(self, channel: Any, properties: Any, body: bytes) -> None:
        if self._seen is None or self._seen.set(f"{self._target} {body.decode()}", 1, nx=True):
            self._trap.step("after", "Claim")
            self._trap.step("before", "Publish")
            channel.basic_publish("", self._target, body, properties)
        self._trap.step("after", "Publish")
