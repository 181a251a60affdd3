"""Run a shim and its standby as processes of their own, and kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import Factory, define, frozen

from dedup.errors import DedupError
from dedup.testing.process import spawn

#: How long a shim may take to finish its batch and settle; seconds.
STOP_TIMEOUT_S = 20.0
#: How long a moment inside a batch is waited for; seconds.
HUNT_S_MAX = 1.0
_HUNT_EVERY_S = 0.003
_LOG_LINES = 15
#: In the log of a shim once it has read what the one before had left, and begins to forward; and once it no longer does.
_TAKEN_OVER = b'"dedup.recovered"'
_GIVEN_UP = b'"dedup.session_ended"'
_COMMAND = ("-m", "dedup.cli", "shim")


class DemoError(DedupError):
    """Raised when a run cannot go on; the message says where it stood and ends with the last lines of a shim's log."""


@frozen
class Child:
    """
    One shim.
    """

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def forwards(self) -> bool:
        """
        Whether it has taken the queue over; the others stand by.
        """
        with suppress(OSError):
            log = self.log.read_bytes()
            return log.rfind(_TAKEN_OVER) > log.rfind(_GIVEN_UP)
        return False


@define
class Shims:
    """
    A shim that forwards, and a standby.
    """

    #: What they are told, as variables of the environment: a password in an argument is there for all to see.
    settings: Mapping[str, str]
    #: Where their logs go.
    directory: Path
    #: Tells whether a batch was begun and not settled.
    in_batch: Callable[[], bool]
    kills: int = 0
    #: Kills that hit the forwarding shim inside a batch.
    kills_in_batch: int = 0
    _children: list[Child] = Factory(list)
    _started: int = 0

    def start(self) -> None:
        """
        Have two shims run.
        """
        while len(self._children) < 2:
            self._started += 1
            log = self.directory / f"shim-{self._started}.log"
            process = spawn(
                [sys.executable, *_COMMAND], environment=_environment() | {**self.settings}, output=log
            )
            self._children.append(Child(process, log))

    @property
    def forwarding(self) -> Child | None:
        """
        The one that has taken the queue over; None while the standby is about to.
        """
        return next((child for child in self._children if child.forwards), None)

    def kill(self, *, standby: bool = False, hunt: bool = False) -> None:
        """
        Kill with SIGKILL the shim that forwards, note whether that was inside a batch, and start another.

        Args:
            standby: Kill the standby too, so that none is left.
            hunt: Wait for a moment inside a batch, for a short time.
        """
        self.check()
        if hunt:
            self._freeze_in_batch()
        forwarding = self.forwarding
        victims = self._children if standby else [forwarding or self._children[0]]
        for child in victims:
            child.process.kill()
        for child in victims:
            child.process.wait()
        self.kills += len(victims)
        # Nobody else can have settled the batch yet: the broker has only now seen the connection end.
        self.kills_in_batch += forwarding is not None and self.in_batch()
        self._children = [child for child in self._children if child not in victims]
        self.start()

    def _freeze_in_batch(self) -> None:
        """
        Leave the shim that forwards stopped inside a batch, unless none comes.
        """
        deadline = time.monotonic() + HUNT_S_MAX
        while time.monotonic() < deadline:
            child = self.forwarding
            if child is not None:
                child.process.send_signal(signal.SIGSTOP)
                if self.in_batch():
                    return
                child.process.send_signal(signal.SIGCONT)
            time.sleep(_HUNT_EVERY_S)

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
            # One that has logged nothing has taken nothing: it had not begun to listen to signals.
            if code and (code != -signal.SIGTERM or child.log.stat().st_size):
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
        child = self.forwarding or next(iter(self._children), None)
        return _tail(child.log) if child else ""


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
