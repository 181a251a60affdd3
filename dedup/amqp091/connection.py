"""
Connect to a broker: pika keeps the connection, this module the content path.

pika does what is rare: it connects, authenticates, keeps heartbeats, opens channels and makes requests. Messages and
confirms of a :class:`RawChannel` pass beside it: pika 1.4 decodes every property table, which loses what it cannot
express, raises on a hostile one and copies its buffer for every frame.

Whatever raises while data is read, a broken frame or a handler, closes the connection; ``on_close_callback`` gets that
very exception. After a broken frame nothing more is sent (AMQP 0.9.1, section 4.2.3). As everywhere in pika, only the
thread that runs the loop may call anything here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pika
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.nbio_interface import AbstractIOServices
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter
from pika.exceptions import AMQPError, IncompatibleProtocolError, InvalidFrameError, StreamLostError
from pika.frame import decode_frame

from dedup.amqp091 import wire
from dedup.amqp091.reader import FrameReader, Inbox, OnCommit, OnConfirms, OnDeliveries, OnReturn
from dedup.errors import BrokerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pika.channel import Channel

#: Bytes asked of the socket at once: some hundred small messages, so that a batch is worth its commit.
RECEIVE_BYTES: Final = 128 * 1024


class RawChannel:
    """
    The content path of one pika channel; requests stay on :attr:`channel`.

    Attributes:
        channel: pika's channel.
        number: its number on the wire, for the functions of :mod:`dedup.amqp091.wire`.
    """

    def __init__(self, connection: RawConnection, channel: Channel) -> None:
        self.channel = channel
        self.number: int = channel.channel_number
        self._connection = connection

    @property
    def is_open(self) -> bool:
        """
        Tell whether frames may still be sent.
        """
        return bool(self.channel.is_open) and self._connection.is_open

    @property
    def frame_max(self) -> int:
        """
        Return the largest frame in bytes that was negotiated; 0 for no limit.
        """
        return self._connection.frame_max

    def send(self, frames: bytes | Iterable[bytes]) -> None:
        """
        Send *frames* of this channel in one write.

        Raises:
            BrokerUnavailableError: the channel or its connection is closed or closing; nothing was sent.
        """
        if not self.is_open:
            raise BrokerUnavailableError(
                f"channel {self.number} is closed; open a new one and repeat what was not confirmed"
            )
        self._connection.send(frames)

    def ack(self, tag: int, *, multiple: bool = True) -> None:
        """
        Acknowledge everything up to *tag*, or *tag* alone.

        Raises:
            BrokerUnavailableError: the channel or its connection is closed; the broker will deliver again.
        """
        self.send(wire.ack_frame(self.number, tag, multiple=multiple))


class _Services(SelectorIOServicesAdapter):
    """
    pika's view of a loop, except that a socket which is reset as soon as it is connected is a failed attempt.

    pika 1.4 raises a ValueError for it out of the loop, which would end the thread that runs it.
    """

    def create_streaming_connection(
        self, protocol_factory: Any, sock: Any, on_done: Callable[[BaseException], None], **options: Any
    ) -> Any:
        try:
            return super().create_streaming_connection(protocol_factory, sock, on_done, **options)
        except ValueError as error:
            return self.call_later(0, partial(on_done, ConnectionResetError(str(error))))


class RawConnection(pika.SelectConnection):
    """
    A ``SelectConnection`` with channels whose content is handed over as it came from the socket.
    """

    def __init__(self, *args: Any, custom_ioloop: Any = None, **kwargs: Any) -> None:
        if not isinstance(custom_ioloop, AbstractIOServices):  # create_connection() brings its own
            custom_ioloop = _Services(custom_ioloop or IOLoop())
        super().__init__(*args, custom_ioloop=custom_ioloop, **kwargs)

    def attach(
        self,
        channel: Channel,
        *,
        on_deliveries: OnDeliveries | None = None,
        on_confirms: OnConfirms | None = None,
        on_return: OnReturn | None = None,
        on_commit: OnCommit | None = None,
    ) -> RawChannel:
        """
        Take over the content path of an open *channel*; what has no handler stays with pika.

        Consume with pika's ``basic_consume``, one consumer a channel; its message callback is never called. The channel
        leaves again when it closes. Cancels, channel and connection closes and ``connection.blocked``
        come through pika's own callbacks, after every delivery that arrived before them.

        Args:
            channel: an open one of this connection.
            on_deliveries: called once a socket read with every message it completed; silent once the channel closes.
            on_confirms: called once a socket read with every (tag, multiple, whether it is an ack) it brought, in order.
            on_return: called with a returned message, before the confirm of the same message.
            on_commit: called on ``tx.commit-ok``, for commits sent as a raw frame.
        """
        assert channel.connection is self, "a channel of another connection"
        raw = RawChannel(self, channel)

        def deliver(batch: list[wire.Delivery]) -> None:
            if on_deliveries and channel.is_open:
                on_deliveries(batch)

        handler = deliver if on_deliveries else None
        self._reader.inboxes[raw.number] = Inbox(raw.number, handler, on_confirms, on_return, on_commit)
        return raw

    def send(self, frames: bytes | Iterable[bytes]) -> None:
        """
        Send *frames* in one write; they wait in memory while the socket is full (see :attr:`write_buffer_size`).

        Raises:
            BrokerUnavailableError: the connection is closed or closing; nothing was sent.
        """
        data = frames if isinstance(frames, bytes) else b"".join(frames)
        if not self.is_open:
            raise BrokerUnavailableError(
                "the connection to the broker is closed; connect again and repeat what was not confirmed"
            )
        if not data:
            return
        self.bytes_sent += len(data)
        # A view, because the transport cuts off what was sent and would copy the rest each time.
        self._transport.write(memoryview(data))

    def abort(self) -> None:
        """
        Cut the connection without waiting for its peer, whatever state it is in; its callbacks follow.
        """
        if self.is_open or self.is_closing:
            self._terminate_stream(StreamLostError("cut by this side"))  # pika has no public way
        elif not self.is_closed:
            self.close()

    @property
    def write_buffer_size(self) -> int:
        """
        Return how many bytes wait for the socket: stop sending when they grow.
        """
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def frame_max(self) -> int:
        """
        Return the largest frame in bytes that was negotiated; 0 for no limit.
        """
        return int(self.params.frame_max or 0)

    # What follows overrides pika 1.4; tests/integration/test_connection.py tells when a new pika breaks it.

    def _init_connection_state(self) -> None:
        super()._init_connection_state()
        self._reader = FrameReader(self._on_other_frame)

    def _proto_connection_made(self, transport: Any) -> None:
        transport._MAX_RECV_BYTES = RECEIVE_BYTES  # noqa: SLF001 - pika reads 4 KiB at a time: 20 messages, one system call
        super()._proto_connection_made(transport)

    def _on_data_available(self, data: bytes) -> None:
        self.bytes_received += len(data)  # what heartbeats look at
        reader = self._reader
        reader.frame_max = self.frame_max
        try:
            reader.feed(data)
        except Exception as error:  # noqa: BLE001 - on_close_callback tells it; raised, it would end as a text in a log
            self._fail(error)
        finally:
            self.frames_received += reader.take_count()

    def _on_other_frame(self, data: bytes) -> None:
        try:
            _, frame = decode_frame(data)
        except AMQPError:
            raise
        except Exception as error:
            raise InvalidFrameError(f"frame that pika cannot decode: {error!r}") from error
        if frame is not None:  # never None: the frame is complete
            self._process_frame(frame)

    def _fail(self, error: Exception) -> None:
        if self.connection_state == self.CONNECTION_PROTOCOL:
            error = IncompatibleProtocolError(f"this is no AMQP 0.9.1 server: {error!r}")
        self._terminate_stream(error)

    def _on_channel_cleanup(self, channel: Channel) -> None:
        self._reader.inboxes.pop(channel.channel_number, None)
        super()._on_channel_cleanup(channel)
