"""
Drive a sender with pika: one thread, one connection, one channel in confirm mode.

What came in one read and what was submitted meanwhile is one batch, and what the machine sends is one write. Callbacks only
queue; everything is decided in :meth:`SenderThread._turn`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pika import BasicProperties as Properties
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.asking import Asking
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.endpoints import Endpoints
from dedup.amqp091.properties import scan
from dedup.amqp091.registering import Registering
from dedup.amqp091.stamping import STAMP_BYTES_MAX, Content, publish_frames, seal, unseal, unstamped
from dedup.core import sending
from dedup.core.refusals import FINAL_CODES
from dedup.core.sending import Message
from dedup.errors import BrokerUnavailableError, InvalidMessageError
from dedup.sender_thread import SenderThread
from dedup.wire import Wire

__all__ = ["AMQP091", "Content", "Endpoints", "Properties", "PublishingThread", "seal"]

_LOG = logging.getLogger("dedup.publisher")
_CLOSING_TURNS = 5
#: The reply the sender hears for a message that cannot be framed for the broker of now.
_CANNOT_FRAME = 501


class PublishingThread(SenderThread):
    """
    Own the connection of one sender, in a thread; see :class:`SenderThread` for the arguments.
    """

    def __init__(self, publisher_id: str, *args: Any, **options: Any) -> None:
        super().__init__(publisher_id, *args, **options)
        #: Largest frame of the broker of now; of the settings before the first connection.
        self.frame_max = int(self.endpoints.parameters[0].frame_max)
        self._loop = IOLoop()
        #: Asks shims; any thread may.
        self.asking = Asking(publisher_id, self._loop.add_callback_threadsafe)
        self._hold_by(Registering, self._loop)
        self._connection: RawConnection | None = None
        self._channel: RawChannel | None = None
        self._timer_at: float | None = None

    # -- the loop -----------------------------------------------------------------------------

    def _wake(self) -> None:
        self._loop.add_callback_threadsafe(_nothing)

    def _begin(self) -> None:
        self._loop.activate_poller()

    def _wait(self, until: float | None) -> None:
        if until is not None and (self._timer_at is None or until < self._timer_at):
            self._timer_at = until
            self._loop.call_later(max(0.0, until - time.monotonic()), partial(self._on_timer, until))
        self._loop.poll()
        self._loop.process_timeouts()

    def _on_timer(self, due: float) -> None:
        if self._timer_at == due:
            self._timer_at = None

    @property
    def _is_closed(self) -> bool:
        return self._connection is None or bool(self._connection.is_closed)

    def _release(self) -> None:
        self.asking.close()
        self._abandon()
        for _ in range(_CLOSING_TURNS):  # pika closes a socket by way of callbacks that ask for callbacks
            self._loop.add_callback_threadsafe(_nothing)
            # pika 1.4 asserts in one of them when it is closed in the middle of a handshake; the others free the rest.
            with suppress(AssertionError):
                self._loop.poll()
                self._loop.process_timeouts()
        self._loop.deactivate_poller()
        self._loop.close()

    def _send(self, messages: Sequence[Message]) -> None:
        channel = self._channel
        if channel is None:
            return
        frames: list[bytes] = []
        try:
            for message in messages:
                frames += publish_frames(message, channel=channel.number, frame_max=channel.frame_max)
            channel.send(frames)
        except InvalidMessageError as error:
            # Checked when it was submitted, but this broker takes smaller frames. Nothing was sent.
            self._channel = None
            channel.channel.close()
            self._events.append(sending.Refused(_CANNOT_FRAME, str(error), random.random()))
        except BrokerUnavailableError:
            self._log(logging.DEBUG, "send_on_closed_channel")  # the callback that says so is on its way

    # -- the connection -----------------------------------------------------------------------

    def _open(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._prepare(self._connection)
            return
        self._abandon()
        parameters = self.endpoints.next()
        try:
            self._connection = RawConnection(
                parameters,
                on_open_callback=self._on_connected,
                on_open_error_callback=self._on_closed,
                on_close_callback=self._on_closed,
                custom_ioloop=self._loop,
            )
        except (AMQPError, OSError, ValueError) as error:
            self._lose(error)

    def _open_channel(self, connection: RawConnection) -> None:
        connection.channel(on_open_callback=partial(self._on_channel_open, connection))

    def _on_connected(self, connection: RawConnection) -> None:
        if connection is not self._connection:
            connection.abort()
            return
        connection.add_on_connection_blocked_callback(partial(self._on_blocked, connection))
        connection.add_on_connection_unblocked_callback(partial(self._on_unblocked, connection))
        self._prepare(connection)

    def _on_channel_open(self, connection: RawConnection, channel: Any) -> None:
        if connection is not self._connection:
            return
        channel.add_on_close_callback(partial(self._on_channel_closed, connection))
        channel.confirm_delivery(_nothing, callback=partial(self._on_confirm_mode, connection, channel))

    def _on_confirm_mode(self, connection: RawConnection, channel: Any, _frame: Any) -> None:
        if connection is not self._connection or not channel.is_open:
            return
        self._channel = raw = connection.attach(
            channel,
            on_confirms=partial(self._on_confirms, channel),
            on_return=partial(self._on_return, channel),
        )
        self.frame_max = raw.frame_max or self.frame_max
        self.asking.begin(connection)
        self._opened()

    def _on_confirms(self, channel: Any, confirms: Sequence[tuple[int, bool, bool]]) -> None:
        if self._is_current(channel):
            self._events.append(sending.Confirms(confirms, random.random()))

    def _on_return(self, channel: Any, returned: wire.Returned) -> None:
        sequence = scan(returned.properties).sequence
        if self._is_current(channel) and sequence is not None:
            self._events.append(sending.Returned(sequence, returned.reply_code, returned.reply_text))

    def _on_blocked(self, connection: RawConnection, _: Any, frame: Any) -> None:
        if connection is self._connection:
            self._blocked(str(frame.method.reason))

    def _on_unblocked(self, connection: RawConnection, _: Any, _frame: Any) -> None:
        if connection is self._connection:
            self._unblocked()

    def _on_channel_closed(self, connection: RawConnection, channel: Any, reason: BaseException) -> None:
        """
        Tell why the broker closed the channel; when it went down with its connection, that one tells.
        """
        if connection is not self._connection or not isinstance(reason, ChannelClosedByBroker):
            return
        if self._channel is None or self._is_current(channel):
            self._channel = None
            self._refuse(reason.reply_code, reason.reply_text)

    def _on_closed(self, connection: RawConnection, error: BaseException) -> None:
        """
        Tell why a connection ended or could not be made.
        """
        if connection is not self._connection:
            return
        was_open = self._channel is not None
        self._forget()
        if was_open and isinstance(error, ConnectionClosedByBroker) and error.reply_code in FINAL_CODES:
            self._refuse(error.reply_code, error.reply_text)
        else:
            self._lose(error)

    def _abandon(self) -> None:
        """
        Have nothing more to do with the connection there is.
        """
        connection = self._connection
        self._forget()
        if connection is not None:
            connection.abort()

    def _forget(self) -> None:
        self._connection = self._channel = None
        self.asking.end()
        if self._registrar is not None:
            self._registrar.end()

    def _close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        else:
            self._abandon()

    def _is_current(self, channel: Any) -> bool:
        return self._channel is not None and self._channel.channel is channel


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback: its being called is all that is wanted.
    """


#: How publishers and outboxes use AMQP 0.9.1.
AMQP091: Final = Wire(
    name="amqp091",
    thread=PublishingThread,
    seal=seal,
    unstamped=unstamped,
    unseal=unseal,
    content=Content,
    stamp_bytes_max=STAMP_BYTES_MAX,
)
