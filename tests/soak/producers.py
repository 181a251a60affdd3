"""Run the publishers of a soak in a few processes, at the pace of its faults, and kill and resume them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from attrs import define, frozen

from dedup.errors import DedupError
from tests.soak import publishing
from tests.soak.history import History

#: How often the processes are told how far they may go; seconds.
_PACE_EVERY_S: Final = 0.02
_PROCESSES_MAX: Final = 5


class SoakError(DedupError):
    """Raised when a run cannot go on; the message says where it stood."""


@frozen
class Stretch:
    """
    How many messages each publisher has asked for, from one moment to a later one.
    """

    first: float = 0.0
    last: float = 0.0
    since_s: float = 0.0
    seconds: float = 0.0

    def at(self, now_s: float) -> int:
        """
        Return how many it may have asked for at *now_s*.
        """
        if now_s < self.since_s:
            return int(self.first)
        done = min(1.0, (now_s - self.since_s) / self.seconds) if self.seconds else 1.0
        return int(self.first + (self.last - self.first) * done)


@define
class Group:
    """
    The publishers of one process.
    """

    options: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    listener: threading.Thread
    told: int = 0

    def say(self, word: str) -> None:
        """
        Write one line to the process, if it lives.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{word}\n".encode())
            self.process.stdin.flush()


class Producers:
    """
    The publishers of one run, shared by a few processes; a context manager that leaves none behind.

    Args:
        url: Of the link, not of the broker.
        exchange: Where to publish.
        publishers: How many there are.
        directory: For their records and what they print.
        history: Told what they do.
    """

    def __init__(self, url: str, exchange: str, publishers: int, directory: Path, history: History) -> None:
        self._history = history
        self._directory = directory
        self._ending = threading.Event()
        self._stretch = Stretch()
        self._lock = threading.Lock()
        processes = min(_PROCESSES_MAX, publishers)
        names = [f"shop-{number}" for number in range(1, publishers + 1)]
        directory.mkdir()
        self._groups: list[Group] = []
        for number in range(processes):
            options = {
                "url": url,
                "exchange": exchange,
                "publishers": names[number::processes],
                "directory": str(directory),
            }
            self._groups.append(self._group(options))
        self._pacer = threading.Thread(target=self._pace, name="pacer", daemon=True)
        self._pacer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._pacer.join()
        for group in self._groups:
            self._kill(group)

    def go(self, stretch: Stretch) -> None:
        """
        Let each publisher ask for its messages of *stretch*.
        """
        self._stretch = stretch

    def kill(self, number: int) -> int:
        """
        Kill one of the processes with SIGKILL, start it again, and return how many publishers it has.
        """
        with self._lock:
            place = number % len(self._groups)
            group = self._groups[place]
            self._kill(group)
            self._groups[place] = self._group(group.options)
            return len(group.options["publishers"])

    def check(self) -> None:
        """
        Make sure that no process has failed.

        Raises:
            SoakError: one has.
        """
        for group in self._groups:
            if group.process.poll():
                raise SoakError(
                    f"publishers ended with {group.process.returncode}; they said:\n{self._said()}"
                )

    def finish(self, timeout_s: float) -> None:
        """
        Wait until everything that was asked for is confirmed, and the processes have ended.

        Raises:
            SoakError: they did not in time, or with an error.
        """
        self._ending.set()
        self._pacer.join()
        deadline = time.monotonic() + timeout_s
        for group in self._groups:
            group.say(str(int(self._stretch.last)))
            group.say("end")
        for group in self._groups:
            try:
                code = group.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise SoakError(f"publishers wait for confirms after {timeout_s:g} s") from None
            group.listener.join()
            if code:
                raise SoakError(f"publishers ended with {code}; they said:\n{self._said()}")

    @property
    def _output(self) -> Path:
        return self._directory / "publishers.log"

    def _said(self) -> str:
        return "\n".join(self._output.read_text(errors="replace").splitlines()[-20:])

    def _group(self, options: Mapping[str, Any]) -> Group:
        with self._output.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, publishing.__file__, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={name: value for name, value in os.environ.items() if not name.startswith("DEDUP_")},
                start_new_session=True,  # Ctrl-C is for the runner
            )
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        return Group(options, process, listener)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._history.write(**json.loads(line))

    def _kill(self, group: Group) -> None:
        group.process.kill()
        group.process.wait()
        group.listener.join()  # what it had told before is still in the pipe
        assert group.process.stdin is not None
        with suppress(BrokenPipeError):
            group.process.stdin.close()

    def _pace(self) -> None:
        while not self._ending.wait(_PACE_EVERY_S):
            up_to = self._stretch.at(time.monotonic())
            with self._lock:
                for group in self._groups:
                    if up_to > group.told:
                        group.told = up_to
                        group.say(str(up_to))
