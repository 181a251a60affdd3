"""
A TCP link that breaks on request, between a client and a server.

::

    with FaultProxy(rabbitmq.port) as link:
        publisher = connect(port=link.port)
        link.drop(TO_CLIENT)  # messages arrive, their confirms do not
        link.cut()  # RST on every connection
        link.heal()

A fault is in force when its call returns, and stays so until `heal` or another call: together with a seed that decides when,
a run can be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from attrs import Factory, define

from dedup.testing.process import ServerError, reserve_ports

_CHUNK_BYTES = 65536
#: Linger on, for 0 s: closing sends RST.
_RESET = struct.pack("ii", 1, 0)

T = TypeVar("T")


class Direction(enum.Enum):
    """One way through the link."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT


@define
class _Way:
    """What is done to the bytes of one direction, and how many went through since the link was made."""

    dropping: bool = False
    stalled: bool = False
    delay_s: float = 0.0
    cut_after: int | None = None
    forwarded: int = 0
    healed: asyncio.Event = Factory(asyncio.Event)


@define(eq=False)
class _Pair:
    """A client's connection, the one it was given to the server, and whether bytes between them are missing."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    torn: bool = False


class FaultProxy:
    """
    Listen on a loopback port of its own and pass bytes on to *target_port* of *host*; a context manager, safe in threads.

    Args:
        target_port: Where the server listens; while it is down, clients are reset.
        host: Where the server is.
    """

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, target_port)
        self._block = reserve_ports(1)
        self._ways = {direction: _Way() for direction in Direction}
        #: In the order in which clients connected.
        self._pairs: dict[_Pair, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self.heal()

    @property
    def port(self) -> int:
        """The port clients connect to; it stays the same."""
        return self._block.ports[0]

    @property
    def connections(self) -> int:
        """How many connections go through now."""
        return len(self._pairs)

    def forwarded(self, direction: Direction) -> int:
        """Return how many bytes went through in *direction* so far."""
        return self._ways[direction].forwarded

    def cut(self, number: int | None = None) -> int:
        """
        Reset every connection, both ends; return how many. New ones are let through.

        Args:
            number: Reset only this one of those that go through now, counted from 0 in the order of connecting.
        """
        return self._run(self._cut(number=number))

    def drop(self, direction: Direction) -> None:
        """Swallow what comes in *direction*; connections stay, and `heal` resets those that lost bytes."""
        self._run(self._set(direction, dropping=True))

    def stall(self, direction: Direction) -> None:
        """Hold back what comes in *direction*; connections stay, and `heal` lets the bytes through, late."""
        self._run(self._set(direction, stalled=True))

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Make each chunk of bytes wait *seconds*, in one direction or both."""
        for way in Direction if direction is None else [direction]:
            self._run(self._set(way, delay_s=seconds))

    def cut_after(self, count: int, direction: Direction) -> None:
        """Let *count* more bytes through in *direction*, of all connections together, then reset all of them, once."""
        self._run(self._set(direction, cut_after=count))

    def refuse(self) -> None:
        """Refuse new connections; those that are there stay."""
        self._run(self._refuse())

    def heal(self) -> None:
        """End every fault; a connection that lost bytes is reset, as nothing sensible could follow on it."""
        self._run(self._heal())

    def close(self) -> None:
        """Reset every connection and free the port; safe to repeat."""
        if not self._loop.is_closed():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._block.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, act: Coroutine[Any, Any, T]) -> T:
        """Run *act* in the link's own thread and return what it returns."""
        if self._loop.is_closed():
            act.close()
            raise ServerError("the fault proxy is closed")
        return asyncio.run_coroutine_threadsafe(act, self._loop).result()

    async def _set(self, direction: Direction, **faults: float | bool) -> None:
        for name, value in faults.items():
            setattr(self._ways[direction], name, value)

    async def _cut(self, *, only_torn: bool = False, number: int | None = None) -> int:
        pairs = [pair for pair in self._pairs if pair.torn or not only_torn]
        if number is not None:
            pairs = pairs[number : number + 1]
        for pair in pairs:
            self._pairs.pop(pair, None)
            _reset(pair.client, pair.server)
        return len(pairs)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _heal(self) -> None:
        for way in self._ways.values():
            way.dropping, way.stalled, way.delay_s, way.cut_after = False, False, 0.0, None
            way.healed.set()
            way.healed = asyncio.Event()
        await self._cut(only_torn=True)
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _close(self) -> None:
        await self._refuse()
        await self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(from_client, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_server, server = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(client)
            return
        pair = _Pair(client, server)
        self._pairs[pair] = None
        await asyncio.gather(
            self._carry(pair, self._ways[TO_SERVER], from_client, server),
            self._carry(pair, self._ways[TO_CLIENT], from_server, client),
        )

    async def _carry(
        self, pair: _Pair, way: _Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one direction of *pair* until it ends; that ends the other direction too."""
        writer.transport.set_write_buffer_limits(high=0)  # so that drained means sent
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._hold(way)
                if way.dropping:
                    pair.torn = True
                    continue
                limit, data = way.cut_after, data[: way.cut_after]
                way.forwarded += len(data)
                way.cut_after = None if limit is None else limit - len(data)
                writer.write(data)
                await writer.drain()
                if way.cut_after == 0:
                    way.cut_after = None
                    await self._cut()
        await self._hold(way)
        if way.dropping:
            pair.torn = True  # on a dead link the other end does not learn that this one closed
        elif pair in self._pairs:
            self._pairs.pop(pair, None)
            pair.client.close()
            pair.server.close()

    async def _hold(self, way: _Way) -> None:
        if way.delay_s:
            await asyncio.sleep(way.delay_s)
        if way.stalled:
            await way.healed.wait()


def _reset(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
