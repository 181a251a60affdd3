"""
Serve the registry: take requests from ``dedup.registry``, and answer each by Direct Reply-To.

Any number of processes may serve one virtual host: they are competing consumers, and all state is in Redis. A request is
acknowledged after it was answered, so one that a killed process had taken is answered by the next; asking twice as the
same owner gives the same range. Requests come from whoever may write to the exchange: nothing in one may end this process,
come back for ever, or make it publish to a queue that the requester names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import pika
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError, ChannelClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.failures import translate
from dedup.amqp091.properties import DELIVERY_MODE, REPLY_TO, join, scan, short_text
from dedup.core.identity import UserBinding, fault_of_binding
from dedup.core.registry import (
    REGISTRY,
    Act,
    Answer,
    Refusal,
    Request,
    decode_request,
    encode_answer,
    lock_queue,
)
from dedup.core.reply_address import is_reply_address
from dedup.errors import BrokerUnavailableError, RegistryFormatError, StoreUnavailableError

#: The queue keeps requests this long, and so many; whoever asks has given up by then. Milliseconds.
_QUEUE_ARGUMENTS: Final = {
    "x-queue-type": "classic",
    "x-message-ttl": 10_000,
    "x-max-length": 20_000,
    "x-overflow": "reject-publish",
}
_PREFETCH: Final = 200
_TRANSIENT: Final = join({DELIVERY_MODE: b"\x01"})
_CLOSING_TURNS: Final = 4


class Registry(Protocol):
    """
    Who knows the newest owners: :class:`dedup.store.registry.RedisRegistry`.
    """

    def open(self) -> None:
        """
        Get ready.
        """

    def answer(self, request: Request) -> Answer:
        """
        Carry out one request.
        """

    def close(self) -> None:
        """
        Give connections back.
        """


class RegistryServer:
    """
    Serve until the connection is lost; run() once.

    Args:
        parameters: pika's; the first host that answers is taken.
        registry: carries requests out; nobody else uses it.
        binding: which publisher ids a user may register.
        count: told what became of each request: the value of an :class:`Act` or a :class:`Refusal`, or "dropped".
        notice: told what an operator should know.
    """

    def __init__(
        self,
        parameters: Sequence[pika.connection.Parameters],
        registry: Registry,
        *,
        binding: UserBinding = UserBinding.OFF,
        count: Callable[[str], None] = lambda _: None,
        notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None,
    ) -> None:
        self._parameters = parameters
        self._registry = registry
        self._binding = binding
        self._count = count
        self._notice = notice
        self._loop = IOLoop()
        self._connection: Any = None
        self._channel: RawChannel | None = None
        self._stopping = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """
        Serve until stop().

        Raises:
            BrokerUnavailableError: the broker cannot be reached, or was lost.
            StoreUnavailableError: Redis cannot be reached at the start.
            TopologyError: a permission is missing, or the queue is another one.
            ConfigError: the login or the virtual host is wrong.
        """
        try:
            self._registry.open()
            self._connection = RawConnection.create_connection(
                self._parameters, on_done=self._on_connected, custom_ioloop=self._loop
            )
            self._loop.activate_poller()
            while not self._stopping and self._error is None:
                self._loop.poll()
                self._loop.process_timeouts()
        except (AMQPError, OSError) as error:
            self._error = error
        finally:
            self._cut()
            self._registry.close()
        if self._error is not None and not self._stopping:
            where = ", ".join(f"{one.host}:{one.port}" for one in self._parameters)
            raise translate(self._error, where=where) from self._error

    def stop(self) -> None:
        """
        Return from run(); from any thread, before it too.
        """
        self._stopping = True
        with suppress(Exception):  # the loop may be closed already
            self._loop.add_callback_threadsafe(_nothing)

    # -- the connection -----------------------------------------------------------------------

    def _on_connected(self, result: Any) -> None:
        if isinstance(result, BaseException):
            self._fail(None, result)
            return
        self._connection = result
        result.add_on_close_callback(self._fail)
        result.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(lambda _: self._fail(None, _deleted()))
        channel.basic_qos(prefetch_count=_PREFETCH)
        channel.exchange_declare(REGISTRY, "fanout", durable=True, callback=_nothing)
        channel.queue_declare(REGISTRY, durable=True, arguments=_QUEUE_ARGUMENTS, callback=_nothing)
        channel.queue_bind(REGISTRY, REGISTRY, callback=_nothing)
        self._channel = self._connection.attach(channel, on_deliveries=self._on_deliveries)
        channel.basic_consume(REGISTRY, _nothing, callback=self._on_serving)

    def _on_serving(self, _: Any) -> None:
        self._notice("dedup.registry_serving", {"queue": REGISTRY})

    def _on_channel_closed(self, _: Any, error: BaseException) -> None:
        if isinstance(error, ChannelClosedByBroker):
            self._fail(None, error)

    def _fail(self, _: Any, error: BaseException) -> None:
        if self._error is None:
            self._error = error

    def _cut(self) -> None:
        """
        Free connection and loop, whatever state they are in.
        """
        with suppress(Exception):
            self._connection.abort()
        for _ in range(_CLOSING_TURNS):
            with suppress(Exception):
                self._loop.add_callback_threadsafe(_nothing)
                self._loop.poll()
                self._loop.process_timeouts()
        with suppress(Exception):
            self._loop.deactivate_poller()
        self._loop.close()

    # -- requests -----------------------------------------------------------------------------

    def _on_deliveries(self, deliveries: list[wire.Delivery]) -> None:
        channel = self._channel
        assert channel is not None
        frames: list[bytes] = []
        unavailable = ""
        for delivery in deliveries:
            address = short_text(delivery.properties, REPLY_TO) or b""
            reply_to = address.decode("utf-8", "replace")
            if not is_reply_address(address):
                self._count("dropped")
                self._notice(
                    "dedup.registry_dropped", {"reason": "no Direct Reply-To", "reply_to": reply_to[:64]}
                )
                continue
            answer, nudged = Answer(0), ""
            try:
                request = decode_request(delivery.body)
                answer, unavailable = self._answer(request, delivery.properties, unavailable)
                if request.act is Act.REGISTER and answer.refusal is None:
                    nudged = lock_queue(request.publisher_id)
            except RegistryFormatError as error:
                self._notice("dedup.registry_dropped", {"reason": str(error), "reply_to": reply_to[:64]})
                answer = Answer(0, refusal=Refusal.INVALID, text=str(error))
            self._count(answer.refusal.value if answer.refusal else request.act.value)
            for queue in (nudged, reply_to):
                if queue:
                    frames.append(wire.publish_frame(channel.number, b"", queue.encode()))
                    frames.append(
                        wire.content_frames(
                            _TRANSIENT,
                            encode_answer(answer),
                            channel=channel.number,
                            frame_max=channel.frame_max,
                        )
                    )
        with suppress(
            BrokerUnavailableError
        ):  # the callback that says so is on its way; the broker delivers again
            channel.send(frames)
            channel.ack(deliveries[-1].tag)

    def _answer(self, request: Request, properties: bytes, unavailable: str) -> tuple[Answer, str]:
        """
        Carry out *request*, unless Redis did not answer the one before: each would wait as long.
        """
        fault = fault_of_binding(request.publisher_id, scan(properties).user, self._binding)
        if fault:
            return Answer(request.id, refusal=Refusal.INVALID, text=fault), unavailable
        if not unavailable:
            try:
                answer = self._registry.answer(request)
            except StoreUnavailableError as error:
                unavailable = str(error)
                self._notice("dedup.registry_store_unavailable", {"reason": unavailable})
            else:
                if request.act is Act.REGISTER and answer.refusal is None:
                    facts = {"publisher_id": request.publisher_id, "base": answer.record.base}
                    self._notice("dedup.registered", {**facts, "holder": answer.record.holder})
                return answer, ""
        return Answer(request.id, refusal=Refusal.LATER, text="its Redis does not answer"), unavailable


def _deleted() -> BrokerUnavailableError:
    return BrokerUnavailableError(f"the broker cancelled the consumer of {REGISTRY}: was the queue deleted?")


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback.
    """
