"""The link that breaks on request, against an echo server."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from dedup.testing.process import ServerError, reserve_ports
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy


class Echo(socketserver.BaseRequestHandler):
    """Send back what comes, and remember it on the server."""

    def handle(self) -> None:
        """Echo until the client leaves."""
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.server.heard += data  # type: ignore[attr-defined]  # socketserver's way to share state
                self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    """An echo server that keeps all it heard."""

    daemon_threads = True
    heard = b""


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    """Run an echo server for one test."""
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def link(echo: EchoServer) -> Iterator[FaultProxy]:
    """Put a fault proxy in front of the echo server."""
    with FaultProxy(echo.server_address[1]) as proxy:
        yield proxy


@contextlib.contextmanager
def connected(link: FaultProxy, timeout_s: float = 5.0) -> Iterator[socket.socket]:
    """Connect through *link*."""
    with socket.create_connection(("127.0.0.1", link.port), timeout=timeout_s) as client:
        yield client


def exchange(client: socket.socket, data: bytes) -> bytes:
    """Send *data* and return as many bytes of the answer."""
    client.sendall(data)
    answer = b""
    while len(answer) < len(data):
        received = client.recv(65536)
        if not received:
            break
        answer += received
    return answer


def exchange_only(client: socket.socket, count: int) -> bytes:
    """Return the next *count* bytes."""
    answer = bytearray()
    while len(answer) < count:
        received = client.recv(65536)
        assert received
        answer += received
    return bytes(answer)


def wait_for(echo: EchoServer, heard: bytes) -> None:
    """Wait until the server has *heard* exactly this."""
    deadline = time.monotonic() + 5
    while echo.heard != heard and time.monotonic() < deadline:
        time.sleep(0.005)
    assert echo.heard == heard


def test_healthy_link_carries_every_byte(link: FaultProxy) -> None:
    """A megabyte comes back unchanged and is counted in both directions."""
    data = bytes(range(256)) * 4096
    with connected(link) as client:
        threading.Thread(target=client.sendall, args=(data,)).start()
        answer = exchange_only(client, len(data))
    assert answer == data
    assert link.forwarded(TO_SERVER) == link.forwarded(TO_CLIENT) == len(data)


def test_closing_client_ends_its_connection(link: FaultProxy) -> None:
    """A connection whose client leaves is gone from the count."""
    with connected(link) as client:
        assert exchange(client, b"hello") == b"hello"
        assert link.connections == 1
    deadline = time.monotonic() + 5
    while link.connections and time.monotonic() < deadline:
        time.sleep(0.005)
    assert link.connections == 0


def test_cut_resets_every_connection_and_lets_new_ones_through(link: FaultProxy) -> None:
    """Clients get a reset, not an end of stream, and may come back at once."""
    with connected(link) as one, connected(link) as two:
        for client in (one, two):
            assert exchange(client, b"hello") == b"hello"
        assert link.cut() == 2
        for client in (one, two):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    with connected(link) as client:
        assert exchange(client, b"again") == b"again"


def test_dropped_answers_are_lost_while_requests_arrive(link: FaultProxy, echo: EchoServer) -> None:
    """A missed confirm: the server heard the message, the client hears nothing and stays connected."""
    with connected(link, timeout_s=0.2) as client:
        assert exchange(client, b"one") == b"one"
        link.drop(TO_CLIENT)
        client.sendall(b"two")
        with pytest.raises(TimeoutError):
            client.recv(1)
        wait_for(echo, b"onetwo")


def test_dropped_requests_never_arrive(link: FaultProxy, echo: EchoServer) -> None:
    """The other direction: the server hears nothing at all."""
    with connected(link, timeout_s=0.2) as client:
        link.drop(TO_SERVER)
        client.sendall(b"lost")
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert echo.heard == b""


def test_heal_resets_a_connection_that_lost_bytes_and_only_that(link: FaultProxy, echo: EchoServer) -> None:
    """A stream with a hole in it must not go on as if it were whole."""
    with connected(link) as whole, connected(link) as torn:
        assert exchange(whole, b"1") == exchange(torn, b"1") == b"1"
        link.drop(TO_CLIENT)
        torn.sendall(b"2")
        wait_for(echo, b"112")
        time.sleep(0.05)  # the echo comes back after it was heard
        link.heal()
        with pytest.raises(ConnectionResetError):
            torn.recv(1)
        assert exchange(whole, b"3") == b"3"


def test_stalled_answers_come_late_and_whole(link: FaultProxy) -> None:
    """A stalled direction delays everything until it heals and loses nothing."""
    with connected(link, timeout_s=0.2) as client:
        link.stall(TO_CLIENT)
        client.sendall(b"late")
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(5)
        link.heal()
        assert exchange_only(client, 4) == b"late"


def test_delay_slows_one_direction(link: FaultProxy) -> None:
    """An exchange takes at least the delay, and no longer after healing."""
    with connected(link) as client:
        link.delay(0.2, TO_CLIENT)
        started = time.monotonic()
        assert exchange(client, b"slow") == b"slow"
        assert time.monotonic() - started >= 0.2
        link.heal()
        started = time.monotonic()
        assert exchange(client, b"fast") == b"fast"
        assert time.monotonic() - started < 0.2


def test_cut_after_lets_exactly_so_many_bytes_through(link: FaultProxy, echo: EchoServer) -> None:
    """The server gets the first bytes of a message and the client a reset; the next connection is whole."""
    with connected(link) as client:
        assert exchange(client, b"ab") == b"ab"
        link.cut_after(5, TO_SERVER)
        client.sendall(b"cde")
        assert exchange_only(client, 3) == b"cde"
        client.sendall(b"fghi")
        with pytest.raises(ConnectionResetError):
            exchange_only(client, 1000)
    wait_for(echo, b"abcdefg")
    with connected(link) as client:
        assert exchange(client, b"!") == b"!"


def test_refused_clients_get_no_connection_until_healed(link: FaultProxy) -> None:
    """New connections are refused, old ones go on, and healing listens on the same port again."""
    with connected(link) as old:
        assert exchange(old, b"1") == b"1"
        link.refuse()
        with pytest.raises(ConnectionRefusedError), connected(link):
            pass
        assert exchange(old, b"2") == b"2"
        link.heal()
        with connected(link) as new:
            assert exchange(new, b"3") == b"3"


def test_client_is_reset_while_the_server_is_down() -> None:
    """A server that does not listen looks like a broken link, and like nothing worse."""
    nobody = reserve_ports(1)
    # The reset may come before the client has even noticed that it is connected.
    with FaultProxy(nobody.ports[0]) as link, pytest.raises(ConnectionResetError), connected(link) as client:
        client.recv(1)
    nobody.release()


def test_closed_proxy_says_so(link: FaultProxy) -> None:
    """Closing twice is fine; a fault afterwards is an error and does not hang."""
    link.close()
    link.close()
    with pytest.raises(ServerError, match="closed"):
        link.cut()
