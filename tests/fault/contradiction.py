"""A link to the broker that contradicts its confirms: what was acked is nacked, what will be acked is nacked first."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from dedup.amqp091 import wire
from dedup.testing.process import address

#: Of a frame: type, channel, size of its payload.
_HEADER = struct.Struct(">BHI")


class ContradictingLink:
    """
    Pass everything on, and after (or before) each of the first confirms say the opposite; a context manager.

    RabbitMQ has been seen to do so: pika issue 911.

    Args:
        url: The broker's.
        contradictions: How many confirms are contradicted, over all connections.
    """

    def __init__(self, url: str, contradictions: int) -> None:
        self._broker = address(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._left = contradictions
        #: How many confirms were contradicted.
        self.contradicted = 0
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"amqp://guest:guest@127.0.0.1:{self._listener.getsockname()[1]}/%2F"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for open_socket in self._sockets:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker)
                self._sockets += [client, broker]
                threading.Thread(target=self._carry, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._edit, args=(broker, client), daemon=True).start()

    def _carry(self, source: socket.socket, destination: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                destination.sendall(data)
            destination.shutdown(socket.SHUT_WR)

    def _edit(self, broker: socket.socket, client: socket.socket) -> None:
        with suppress(OSError), broker.makefile("rb") as stream:
            while header := stream.read(_HEADER.size):
                kind, channel, size = _HEADER.unpack(header)
                payload = stream.read(size + 1)
                frame = header + payload
                if self._left and kind == wire.METHOD and payload[:4] == struct.pack(">I", wire.ACK):
                    frame = self._contradict(channel, payload, frame)
                client.sendall(frame)
            client.shutdown(socket.SHUT_WR)

    def _contradict(self, channel: int, payload: bytes, ack: bytes) -> bytes:
        """Return *ack* with a nack of the same messages behind it, or before it, in turn."""
        tag, multiple = wire.parse_confirm(payload[:-1])
        nack = wire.nack_frame(channel, tag, multiple=multiple, requeue=False)
        self._left -= 1
        self.contradicted += 1
        return ack + nack if self.contradicted % 2 else nack + ack
