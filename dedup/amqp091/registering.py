"""
Register a publisher id over AMQP 0.9.1.

On a channel of its own: what the broker refuses there closes no channel that publishes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.encoding import encode
from dedup.core import registration as steps
from dedup.core.registry import REGISTRY, Request, encode_request
from dedup.core.reply_address import REPLY_TO
from dedup.errors import BrokerUnavailableError
from dedup.registrar import ANSWER_TIMEOUT_S, LOCK_ARGUMENTS, Registrar

_HELD: Final = 405
_NOT_FOUND: Final = 404


def request_properties(user_id: str | None) -> BasicProperties:
    """
    Return the properties of every request.
    """
    expiration = str(int(ANSWER_TIMEOUT_S * 1000))
    return BasicProperties(reply_to=REPLY_TO, expiration=expiration, delivery_mode=1, user_id=user_id)


class Registering(Registrar):
    """
    Hold a publisher id on one connection after the other; see :class:`Registrar` for the arguments that are not here.

    Args:
        user_id: the broker's user, if publishers are bound to users.
    """

    def __init__(self, *args: Any, user_id: str | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._properties = encode(request_properties(user_id))
        self._channel: RawChannel | None = None
        #: The channel that consumes from the lock's queue.
        self._consuming: RawChannel | None = None
        #: The lock was asked for on the channel of now, and not answered.
        self._locking = False

    def _forget_link(self) -> None:
        self._channel = None
        self._locking = False

    def _on_channel(self, act: Callable[[RawChannel], None]) -> None:
        """
        Do something on the channel, which is opened first where there is none.
        """
        if self._channel is not None and self._channel.is_open:
            act(self._channel)
        elif self._connection is not None and self._connection.is_open:
            self._connection.channel(on_open_callback=partial(self._on_channel_open, self._connection, act))

    def _on_channel_open(
        self, connection: RawConnection, act: Callable[[RawChannel], None], channel: Any
    ) -> None:
        if connection is not self._connection:
            return
        channel.add_on_close_callback(partial(self._on_channel_closed, connection))
        self._channel = raw = connection.attach(
            channel, on_deliveries=self._on_deliveries, on_return=partial(self._on_returned, channel)
        )
        channel.basic_consume(REPLY_TO, _nothing, auto_ack=True, callback=lambda _: act(raw))

    def _lock(self) -> None:
        self._on_channel(self._declare)

    def _declare(self, raw: RawChannel) -> None:
        self._locking = True
        raw.channel.queue_declare(
            self._lock_queue, exclusive=True, arguments=LOCK_ARGUMENTS, callback=partial(self._on_lock, raw)
        )

    def _on_lock(self, raw: RawChannel, _: Any) -> None:
        if raw is self._consuming:  # a try before this one had the lock, and no answer
            self._on_locked(raw, None)
            return
        raw.channel.basic_consume(
            self._lock_queue, _nothing, auto_ack=True, callback=partial(self._on_locked, raw)
        )

    def _on_locked(self, raw: RawChannel, _: Any) -> None:
        if raw is self._channel:
            self._consuming = raw
            self._locking = False
            self._tell(steps.Locked())

    def _request(self, request: Request) -> None:
        self._on_channel(partial(self._publish, request))

    def _publish(self, request: Request, raw: RawChannel) -> None:
        frames = (
            wire.publish_frame(raw.number, REGISTRY.encode(), b"", mandatory=True),
            wire.content_frames(
                self._properties, encode_request(request), channel=raw.number, frame_max=raw.frame_max
            ),
        )
        with suppress(BrokerUnavailableError):  # the callback that says so is on its way
            raw.send(b"".join(frames))

    def _on_returned(self, channel: Any, _: wire.Returned) -> None:
        if self._channel is not None and self._channel.channel is channel:
            self._tell(steps.Unanswered(f"the exchange {REGISTRY} leads to no queue"))

    def _on_deliveries(self, deliveries: list[wire.Delivery]) -> None:
        for delivery in deliveries:
            if delivery.routing_key == self._lock_queue.encode():
                self._hear_lock(delivery.body)
            else:
                self._hear_registry(delivery.body)

    def _on_channel_closed(self, connection: RawConnection, channel: Any, reason: BaseException) -> None:
        """
        Tell what the broker has refused; a channel that goes with its connection says nothing.
        """
        raw = self._channel
        if connection is not self._connection or raw is None or raw.channel is not channel:
            return
        self._channel = None
        locking, self._locking = self._locking, False
        code = reason.reply_code if isinstance(reason, ChannelClosedByBroker) else 0
        text = f"{code} {reason.reply_text}" if isinstance(reason, ChannelClosedByBroker) else str(reason)
        if not connection.is_open:
            return
        if locking:
            self._tell(steps.Held(text) if code == _HELD else steps.Barred(text))
        elif code == _NOT_FOUND:
            self._tell(steps.Unanswered("none has ever run on this virtual host"))
        else:
            self._tell(steps.Barred(text))


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback: its being called is all that is wanted.
    """
