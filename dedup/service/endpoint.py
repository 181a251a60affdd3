"""Answer over HTTP how the process is: /metrics, /livez and /readyz."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from dedup.errors import ConfigError

#: A client that says nothing is hung up on; seconds.
_TIMEOUT_S: Final = 5.0

#: Returns the state of each queue, and whether all is well.
Health = Callable[[], tuple[bool, Mapping[str, str]]]
_StartResponse = Callable[..., Any]


@contextmanager
def endpoint(listen: str, registry: CollectorRegistry, *, live: Health, ready: Health) -> Iterator[str]:
    """
    Serve in a thread of its own as long as the context is open.

    Args:
        listen: host:port; port 0 takes a free one; empty: nothing is served.

    Returns:
        Where it listens, as host:port.

    Raises:
        ConfigError: nobody can listen there.
    """
    if not listen:
        yield ""
        return
    host, _, port = listen.rpartition(":")
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)

    def application(environ: dict[str, Any], start: _StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            return metrics(environ, start)
        health = {"/livez": live, "/readyz": ready}.get(str(path))
        well, states = health() if health else (False, {"": "there are /metrics, /livez and /readyz"})
        status = "404 Not Found" if health is None else "200 OK" if well else "503 Service Unavailable"
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return ["".join(f"{queue}: {state}\n".removeprefix(": ") for queue, state in states.items()).encode()]

    server = _listen(host.strip("[]"), int(port), application)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="endpoint", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(host: str, port: int, application: Callable[..., Iterable[bytes]]) -> WSGIServer:
    kind = _Server6 if ":" in host else _Server
    try:
        return make_server(host, port, application, server_class=kind, handler_class=_Handler)
    except OSError as error:
        raise ConfigError(
            f"listen: {host}:{port} cannot be listened on: {error.strerror or error}"
        ) from error


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # WSGIServer asks the name service for its own name here, which may take long and tell nobody.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, *_: Any) -> None:
        """
        Say nothing: a probe every few seconds is no event.
        """
