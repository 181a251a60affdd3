"""
Carry one AMQP 1.0 connection: proton keeps the protocol's state, this module moves its bytes.

The socket is connected, TLS included, before it comes here (:mod:`proton_adapter.connecting`), so certificates are checked as
everywhere in Python, whatever proton was built with. Nothing here waits, and proton's own reconnect is never used: who owns a
connection asks for what happened, with :meth:`Connection.events`, and drops it when it is over.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from itertools import takewhile
from secrets import token_hex
from typing import Any, Final

import proton
from proton import Collector, Event, Transport, symbol

#: Bytes read in one turn at the most: callers and timers get theirs in between.
_TURN_BYTES_MAX: Final = 256 * 1024
#: Frames as large as a session's buffers make sense of; RabbitMQ's own limit is far above.
_FRAME_BYTES_MAX: Final = 128 * 1024
_TLS_WAITS: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)

__all__ = ["Connection", "Event"]


class Connection:
    """
    One connection of a client, over a socket that is its own.

    Args:
        sock: connected; closed by :meth:`close`.
        parameters: pika's: virtual host, credentials and heartbeat are taken from them.
        name: what the management interface shows.
    """

    def __init__(self, sock: socket.socket, parameters: Any, name: str) -> None:
        sock.setblocking(False)
        self.socket = sock
        #: Why the link failed, when it was not proton who noticed.
        self.failure: OSError | None = None
        #: More was received than one turn reads: do not wait before the next one.
        self.has_more = False
        self._transport = Transport()
        # The broker is asked to send something each heartbeat (proton asks for half of this), two missed ones are too many.
        self._transport.idle_timeout = 2.0 * (parameters.heartbeat or 0)
        self._transport.max_frame_size = _FRAME_BYTES_MAX
        self._collector = Collector()
        self.endpoint = proton.Connection()
        self.endpoint.collect(self._collector)
        self.endpoint.container = f"{name} {token_hex(4)}"
        self.endpoint.hostname = f"vhost:{parameters.virtual_host}"
        self.endpoint.properties = {symbol("connection_name"): name, symbol("product"): "dedup"}
        self._login(parameters.credentials)
        self._transport.bind(self.endpoint)
        self.endpoint.open()

    def _login(self, credentials: Any) -> None:
        sasl = self._transport.sasl()
        sasl.allow_insecure_mechs = True  # as over AMQP 0.9.1: whether there is TLS is the URL's matter
        mechanism = credentials.TYPE
        sasl.allowed_mechs(mechanism)
        if mechanism == "PLAIN":
            self.endpoint.user, self.endpoint.password = credentials.username, credentials.password

    @property
    def condition(self) -> Any:
        """
        Why proton ended the transport; None while it has not.
        """
        return self._transport.condition

    @property
    def is_open(self) -> bool:
        """
        Whether the broker has let this client in, and not out.
        """
        return bool(self.endpoint.state & proton.Endpoint.REMOTE_ACTIVE)

    @property
    def version(self) -> tuple[int, ...]:
        """
        Return the broker's version, as far as it is numbers; empty: it does not say, or is not RabbitMQ.
        """
        told = {str(name): str(value) for name, value in (self.endpoint.remote_properties or {}).items()}
        if told.get("product") != "RabbitMQ":
            return ()
        numbers = takewhile(str.isdecimal, told.get("version", "").split("."))
        return tuple(int(number) for number in numbers)

    @property
    def waits_to_write(self) -> bool:
        """
        Whether bytes wait for the socket to take them.
        """
        return bool(self._transport.pending() > 0)

    @property
    def is_over(self) -> bool:
        """
        Whether nothing can come or go any more.
        """
        return self.failure is not None or bool(self._transport.closed)

    def receive(self) -> None:
        """
        Take what has arrived, up to the bytes of one turn.
        """
        self.has_more = False
        taken = 0
        while (capacity := self._transport.capacity()) > 0:
            if taken >= _TURN_BYTES_MAX:
                self.has_more = True
                return
            try:
                data = self.socket.recv(capacity)
            except (BlockingIOError, InterruptedError, *_TLS_WAITS):
                return
            except OSError as error:
                self._fail(error)
                return
            if not data:
                self._transport.close_tail()
                return
            taken += len(data)
            self._transport.push(data)

    def send(self) -> None:
        """
        Write what the socket takes of what is due.
        """
        while (pending := self._transport.pending()) > 0:
            try:
                sent = self.socket.send(self._transport.peek(pending) or b"")
            except (BlockingIOError, InterruptedError, *_TLS_WAITS):
                return
            except OSError as error:
                self._fail(error)
                return
            self._transport.pop(sent)

    def tick(self, now: float) -> float | None:
        """
        Let proton keep its heartbeats; return when it wants the next tick, on the clock of *now*.
        """
        return self._transport.tick(now) or None

    def events(self) -> Iterator[Any]:
        """
        Yield proton's events that have gathered; whoever deals with one may ask for the next ones itself.
        """
        while (event := self._collector.peek()) is not None:
            self._collector.pop()
            yield event

    def close(self) -> None:
        """
        Give the socket back at once; the peer is told nothing more.
        """
        self._transport.unbind()
        self.socket.close()

    def _fail(self, error: OSError) -> None:
        self.failure = error
        self._transport.close_tail()
