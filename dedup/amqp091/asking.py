"""
Ask the shims how far a publisher has come, over AMQP 0.9.1.

On a channel of its own: a question awaits no confirm, and what the broker refuses there closes no channel that publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.encoding import encode
from dedup.amqp091.properties import CORRELATION_ID, short_text
from dedup.core.identity import ASK_HEADER
from dedup.core.in_band import ask_text
from dedup.core.reply_address import REPLY_TO
from dedup.errors import BrokerUnavailableError
from dedup.inquirer import Asked, Inquirer


class Asking(Inquirer):
    """
    Ask on one connection after the other.
    """

    def __init__(self, publisher_id: str, call: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(publisher_id, call)
        self._channel: RawChannel | None = None
        #: A channel was asked for and is not there yet.
        self._opening = False

    def _forget_link(self) -> None:
        self._channel = None
        self._opening = False

    def _ask(self, questions: Sequence[Asked]) -> None:
        """
        Publish *questions*; a channel that has to be opened first asks whatever is under way.
        """
        if self._channel is None or not self._channel.is_open:
            self._open()
            return
        for asked in questions:
            self._publish(self._channel, asked)

    def _open(self) -> None:
        connection = self._connection
        if connection is None or not connection.is_open or self._opening:
            return
        self._opening = True
        connection.channel(on_open_callback=partial(self._on_channel_open, connection))

    def _on_channel_open(self, connection: RawConnection, channel: Any) -> None:
        if connection is not self._connection:
            return
        channel.add_on_close_callback(partial(self._on_channel_closed, connection))
        raw = connection.attach(channel, on_deliveries=self._on_deliveries, on_return=self._on_return)
        channel.basic_consume(
            REPLY_TO, _nothing, auto_ack=True, callback=partial(self._on_consuming, connection, raw)
        )

    def _on_consuming(self, connection: RawConnection, raw: RawChannel, _: Any) -> None:
        if connection is not self._connection:
            return
        self._channel, self._opening = raw, False
        for asked in self._asked.values():
            self._publish(raw, asked)

    def _publish(self, raw: RawChannel, asked: Asked) -> None:
        properties = BasicProperties(
            app_id=self._publisher_id,
            user_id=asked.user_id,
            reply_to=REPLY_TO,
            correlation_id=asked.id,
            expiration=str(max(1, int(asked.patience_s * 1000))),
            delivery_mode=1,
            headers={ASK_HEADER: ask_text(asked.sequence)},
        )
        frames = (
            wire.publish_frame(
                raw.number, asked.exchange.encode(), asked.routing_key.encode(), mandatory=True
            ),
            wire.content_frames(encode(properties), b"", channel=raw.number, frame_max=raw.frame_max),
        )
        with suppress(BrokerUnavailableError):  # the callback that says so is on its way
            raw.send(b"".join(frames))

    # -- what comes back ----------------------------------------------------------------------

    def _on_deliveries(self, deliveries: list[wire.Delivery]) -> None:
        for delivery in deliveries:
            self._hear(_correlation(delivery.properties), delivery.body)

    def _on_return(self, returned: wire.Returned) -> None:
        self._returned(_correlation(returned.properties), returned.reply_code, returned.reply_text)

    def _on_channel_closed(self, connection: RawConnection, _: Any, reason: BaseException) -> None:
        """
        Tell whoever asks what the broker has against it; a channel that goes with its connection is followed by another.
        """
        if connection is not self._connection or not isinstance(reason, ChannelClosedByBroker):
            return
        self._forget_link()
        self._refused([*self._asked.values()], reason.reply_code, reason.reply_text)


def _correlation(properties: bytes) -> bytes:
    return short_text(properties, CORRELATION_ID) or b""


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback: its being called is all that is wanted.
    """
