"""Run a shim and its standby as processes of their own, and kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import Factory, define, frozen

from dedup.errors import DedupError
from dedup.testing.process import spawn

#: How long a shim may take to finish its batch and settle; seconds.
STOP_TIMEOUT_S = 20.0
_LOG_LINES = 15


class DemoError(DedupError):
    """Raised when a run cannot go on; the message says where it stood and ends with the last lines of a shim's log."""


@frozen
class _Child:
    process: subprocess.Popen[bytes]
    log: Path


@define
class Shims:
    """
    A shim and a standby. The older one forwards: the standby waits for its place.
    """

    #: Arguments of ``python``.
    command: Sequence[str]
    #: Where their logs go.
    directory: Path
    #: Tells whether a batch was begun and not settled.
    in_batch: Callable[[], bool]
    kills: int = 0
    #: Kills that hit the forwarding shim inside a batch.
    kills_in_batch: int = 0
    _children: list[_Child] = Factory(list)
    _started: int = 0

    def start(self, count: int = 2) -> None:
        """
        Have *count* shims run.
        """
        while len(self._children) < count:
            self._started += 1
            log = self.directory / f"shim-{self._started}.log"
            process = spawn([sys.executable, *self.command], environment=_environment(), output=log)
            self._children.append(_Child(process, log))

    def kill(self, count: int) -> None:
        """
        Kill the *count* oldest with SIGKILL, note whether that was inside a batch, and start others.
        """
        self.check()
        victims, self._children = self._children[:count], self._children[count:]
        for child in victims:
            child.process.kill()
        for child in victims:
            child.process.wait()
        self.kills += len(victims)
        self.kills_in_batch += self.in_batch()
        self.start()

    def check(self) -> None:
        """
        Make sure that none has ended by itself.

        Raises:
            DemoError: one has.
        """
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                raise DemoError(f"a shim ended by itself with {code}{_tail(child.log)}")

    def stop(self) -> None:
        """
        Stop all in order, the standby first.

        Raises:
            DemoError: one did not settle in time, or ended with an error.
        """
        self.check()
        while self._children:
            child = self._children[-1]
            child.process.send_signal(signal.SIGTERM)
            try:
                code = child.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise DemoError(f"a shim did not stop in {STOP_TIMEOUT_S:g} s{_tail(child.log)}") from None
            if code:
                raise DemoError(f"a shim that was asked to stop ended with {code}{_tail(child.log)}")
            self._children.pop()

    def end(self) -> None:
        """
        Leave nothing running.
        """
        for child in self._children:
            child.process.kill()
            child.process.wait()
        self._children.clear()

    def log_tail(self) -> str:
        """
        Return the last lines of the log of the shim that forwards.
        """
        return _tail(self._children[0].log) if self._children else ""


def _environment() -> dict[str, str]:
    """
    Return this process's environment without settings of dedup: a shim of the demo knows only what it is told.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("DEDUP_")}


def _tail(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "; it logged:\n" + "\n".join(lines) if lines else "; it logged nothing"
    return ""
