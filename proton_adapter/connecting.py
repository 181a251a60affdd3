"""Connect a socket, TLS included, beside the thread that will own it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final

#: For the whole of TCP and TLS; seconds.
_CONNECT_TIMEOUT_S: Final = 10.0

OnSocket = Callable[["Attempt", "socket.socket | OSError"], None]


class Attempt:
    """
    One try to connect, in a thread of its own: names are resolved and certificates exchanged without holding anybody up.

    Args:
        parameters: pika's: host, port and TLS are taken from them.
        on_done: called in that thread with the attempt and its socket, or what it failed with; the socket is then the receiver's.
    """

    def __init__(self, parameters: Any, on_done: OnSocket) -> None:
        self.parameters = parameters
        self._on_done = on_done
        threading.Thread(target=self._run, name="dedup-connect", daemon=True).start()

    def _run(self) -> None:
        try:
            connected: socket.socket | OSError = connect(self.parameters)
        except OSError as error:
            connected = error
        except ValueError as error:  # a host name that IDNA cannot encode
            connected = OSError(str(error))
        self._on_done(self, connected)


def connect(parameters: Any) -> socket.socket:
    """
    Return a connected socket.

    Raises:
        OSError: nobody there, or TLS failed; a certificate's error among them.
    """
    sock = socket.create_connection((parameters.host, parameters.port), _CONNECT_TIMEOUT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = parameters.ssl_options
        if secure is not None:
            sock = secure.context.wrap_socket(sock, server_hostname=secure.server_hostname or parameters.host)
    except BaseException:
        sock.close()
        raise
    return sock
