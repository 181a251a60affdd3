"""Child processes that do not outlive this one, on ports that stay theirs."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from attrs import frozen

from dedup.errors import DedupError

#: Ports are handed out in blocks of this many.
PORT_BLOCK = 8
_FIRST_PORT = 10240
_STOP_TIMEOUT_S = 30.0

# The kernel ends a child with its parent *thread*, so one thread that lives as long as the process starts them all. A
# launcher asks for it, and not code between fork and exec, which is unsafe in a program with threads.
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="dedup-testing-spawner")
_LAUNCHER = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
user = int(sys.argv[2])
if user >= 0:  # first: the kernel forgets the wish when the user changes
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[3], sys.argv[3:])
"""


class ServerError(DedupError):
    """Raised when a server does not start, stop or answer; the message ends with the last lines it logged."""


class ExternalServerError(ServerError):
    """Raised when a server that was given by URL is asked for what only a private one can do, such as to be killed."""


@frozen
class PortBlock:
    """
    Loopback ports of one server, the same over restarts.

    They lie outside the range from which the kernel takes ports for outgoing connections: one of those would sooner or
    later sit on the port while its server is down.
    """

    ports: tuple[int, ...]
    _reservation: socket.socket

    def release(self) -> None:
        """Let others have these ports."""
        self._reservation.close()


def reserve_ports(count: int) -> PortBlock:
    """
    Return *count* free ports, at most `PORT_BLOCK`, that no other process which asks here gets until they are released.

    Raises:
        ServerError: every port is taken.
    """
    low, high = _ephemeral_range()
    starts = range(_FIRST_PORT, 65536 - PORT_BLOCK, PORT_BLOCK)
    outside = [start for start in starts if start + PORT_BLOCK <= low or start > high] or list(starts)
    turn = os.getpid() % len(outside)  # neighbours begin at different places, not all at the first
    for start in outside[turn:] + outside[:turn]:
        ports = tuple(range(start, start + count))
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if sys.platform == "linux":
                # an abstract name: one per network namespace, as ports are, and gone with its holder
                reservation.bind(f"\0dedup-testing-ports-{start}")
            for port in ports:
                _bind_once(port)
        except OSError:
            reservation.close()
            continue
        return PortBlock(ports, reservation)
    raise ServerError("no free ports on 127.0.0.1; stop what listens there")


def _bind_once(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 32768, 65535
    return int(low), int(high)


def spawn(
    command: Sequence[str], *, environment: Mapping[str, str], output: Path, user: int | None = None
) -> subprocess.Popen[bytes]:
    """
    Start *command* so that the kernel kills it when this process dies, however it dies.

    Args:
        command: Absolute path of a program and its arguments.
        environment: All of it; nothing is inherited.
        output: File that gets standard output and error, appended.
        user: Number of the user, and of the group, to run as; only root can choose (Linux).
    """
    launcher = (
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(-1 if user is None else user)]
        if sys.platform == "linux"
        else []
    )
    with output.open("ab") as file:
        return _SPAWNER.submit(
            subprocess.Popen,
            [*launcher, *command],
            env=dict(environment),
            cwd=output.parent,  # for what it may leave behind, such as a core
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal is for the program, which then stops its servers itself
        ).result()


class Startable(ABC):
    """
    What runs inside a ``with`` statement; a start that fails leaves nothing behind.
    """

    @abstractmethod
    def start(self) -> Self:
        """
        Start what does not run.
        """

    @abstractmethod
    def close(self) -> None:
        """
        End it and remove what belongs to it; safe to repeat.
        """

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Server(Startable):
    """
    One server: a private child process with its own ports and data, or an external one that was given by URL.

    A context manager: entering starts it, leaving ends it and removes its data. Only what was started here is ever
    signalled, by process id.
    """

    #: What it is called in messages.
    name: str
    #: Full version; of an external server as far as it tells.
    version: str
    #: Seconds until a start counts as failed.
    start_timeout_s = 60.0

    def __init__(self, url: str | None, port_count: int, directory: Path | None) -> None:
        self.external = url is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._temporary = False
        if self.external:
            self.start_timeout_s = 10.0  # it is there or it is not
        if url is None:
            self._block = reserve_ports(port_count)
            self._temporary = directory is None
            directory = directory or Path(tempfile.mkdtemp(prefix=f"dedup-{self.name.lower()}-"))
            self.directory = directory.absolute()
            self.directory.mkdir(parents=True, exist_ok=True)
            atexit.register(self.close)

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients."""

    @abstractmethod
    def _launch(self) -> subprocess.Popen[bytes]:
        """Start the child."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Tell whether it answers as a client needs it; OSError counts as no."""

    @property
    @abstractmethod
    def _logs(self) -> Sequence[Path]:
        """Where it logs to."""

    def log_tail(self, lines: int = 60) -> str:
        """Return the last *lines* of what it logged; those of each of its logs."""
        self._own("asked for its log")
        return "\n".join(line for file in self._logs for line in _last_lines(file, lines))

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        self._own("asked for its process")
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"{self.name} is not running{self._tail()}")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server runs (a paused one does); an external one is believed to."""
        return self.external or (self._process is not None and self._process.poll() is None)

    def start(self) -> Self:
        """
        Start on the data that is there and return once clients are answered; nothing happens when it runs.

        Raises:
            ServerError: it ended or did not answer in `start_timeout_s`.
        """
        deadline = time.monotonic() + self.start_timeout_s
        if not self.running:
            self._process, self._paused = self._launch(), False
        while not self._answers():
            if not self.running:
                self._end(signal.SIGKILL)
                raise ServerError(f"{self.name} ended while starting{self._tail()}")
            if time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise ServerError(
                    f"{self.name} did not answer within {self.start_timeout_s:g} s{self._tail()}"
                )
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """Stop cleanly and keep the data; nothing happens when it is down."""
        self._own("stopped")
        if self.running:
            self.resume()
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill with SIGKILL and keep the data; nothing happens when it is down."""
        self._own("killed")
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze with SIGSTOP: connections stay, nothing answers."""
        self._own("paused")
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a frozen server go on."""
        self._own("resumed")
        if self._paused:
            os.kill(self.pid, signal.SIGCONT)
            self._paused = False

    def ensure_running(self) -> None:
        """Resume or start again when a test left it frozen or dead."""
        if not self.external:
            if self.running:
                self.resume()
            self.start()

    def close(self) -> None:
        """End it at once, remove its data when the directory was not given, free its ports; safe to repeat."""
        if self.external:
            return
        atexit.unregister(self.close)
        self._end(signal.SIGKILL)
        self._block.release()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self._is_ready()
        return False

    def _end(self, how: signal.Signals) -> None:
        """Send *how* and wait; what does not end in time is killed."""
        process = self._process
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process, self._paused = None, False

    def _own(self, done: str) -> None:
        if self.external:
            raise ExternalServerError(f"{self.name} was given by URL; only a private one can be {done}")

    def _tail(self) -> str:
        if self.external:
            return " at {}:{}".format(*address(self.url))  # the whole URL has a password in it
        return f"; it logged:\n{self.log_tail()}"


def _last_lines(file: Path, lines: int) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def address(url: str) -> tuple[str, int]:
    """Return host and port of *url*, of the first where it lists several."""
    parts = urlsplit(url.partition(",")[0].strip())
    default = {"amqps": 5671, "redis": 6379, "rediss": 6379}.get(parts.scheme, 5672)
    return parts.hostname or "127.0.0.1", parts.port or default
