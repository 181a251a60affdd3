"""Erlang's name server, by which nodes and tools find each other."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from dedup.testing.process import ServerError, spawn

_START_TIMEOUT_S = 5.0


class NameServer:
    """
    One epmd on loopback, as a child: one that Erlang finds missing and starts would outlive everybody.

    Args:
        program: Path of epmd.
        port: Where it listens.
        directory: Gets its log.
    """

    def __init__(self, program: Path, port: int, directory: Path) -> None:
        self.port = port
        self._program = program
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()  # the nodes of a cluster start at the same time

    @property
    def pid(self) -> int | None:
        """Process id; None before the start and after the end."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """
        Start it and return once it answers; nothing happens when it runs.

        Raises:
            ServerError: it does not answer.
        """
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._launch()

    def end(self) -> None:
        """End it with SIGKILL; safe to repeat."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _launch(self) -> None:
        command = [str(self._program), "-port", str(self.port), "-address", "127.0.0.1"]
        environment = {"HOME": str(self._directory), "LANG": "C.UTF-8"}
        self._process = spawn(command, environment=environment, output=self._directory / "epmd.log")
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.01)
        raise ServerError(f"epmd did not answer on port {self.port}")
