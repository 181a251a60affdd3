"""Run a function in a process of its own that can be killed, frozen and listened to, and that starts in milliseconds."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attrs import Factory, define

#: Nothing here takes this long unless it hangs; seconds.
PATIENCE_S = 60.0
_PR_SET_PDEATHSIG = 1

#: Children are forked from one process that has imported everything and done nothing else.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    # What is missing, as the last one may be, is left out.
    ["dedup.publisher", "dedup.shim", "tests.fault.shim_process", "proton_adapter.relaying"]
)
#: Whoever starts a process or asks for an exit code reaps others too; two threads at once lose a code.
_ONE_AT_A_TIME = threading.Lock()

Notice = dict[str, Any]
Tell = Callable[[str, Notice], None]


class Child:
    """
    One process, and what it has told so far.

    Args:
        run: Called in the child with *settings* and a function that tells the parent something.
        settings: Passed to *run*.
    """

    def __init__(self, run: Callable[[Any, Tell], None], settings: Any) -> None:
        self.notices: list[Notice] = []
        self._heard = threading.Condition()
        self._ended = False
        self._read = 0
        reader, writer = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_run, args=(run, settings, writer), daemon=True)
        with _ONE_AT_A_TIME:
            self._process.start()
        writer.close()
        self._listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return how it ended, a signal as a negative number; None while it lives."""
        with _ONE_AT_A_TIME:
            return self._process.exitcode

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end and return how it ended, a signal as a negative number."""
        deadline = time.monotonic() + timeout_s
        self._listener.join(timeout_s)
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"the child does not end; it told last {self.notices[-3:]}"
            time.sleep(0.002)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait_for(self, *events: str, timeout_s: float = PATIENCE_S) -> Notice:
        """Return the next notice of one of these names; those in between count as read."""
        found = self.next_of(*events, timeout_s=timeout_s)
        assert found is not None, f"the child has ended before {' or '.join(events)}"
        return found

    def next_of(self, *events: str, timeout_s: float = PATIENCE_S) -> Notice | None:
        """Return the next notice of one of these names, or None when it has ended before."""
        deadline = time.monotonic() + timeout_s
        with self._heard:
            while True:
                while self._read < len(self.notices):
                    self._read += 1
                    if self.notices[self._read - 1]["event"] in events:
                        return self.notices[self._read - 1]
                if self._ended:
                    return None
                assert self._heard.wait(deadline - time.monotonic()), (
                    f"no {' or '.join(events)} for {timeout_s:g} s"
                )

    def count(self, *events: str) -> int:
        """Return how many notices of these names it has told."""
        with self._heard:
            return sum(notice["event"] in events for notice in self.notices)

    @property
    def judged(self) -> int:
        """How many deliveries it has reported on."""
        with self._heard:
            reports = [n for n in self.notices if n["event"] == "report"]
        return sum(sum(report["verdicts"].values()) for report in reports)

    @property
    def believes(self) -> bool:
        """Whether its recovery believed messages to be in the target, and nothing has proven it since."""
        with self._heard:
            told = [n for n in self.notices if n["event"] in ("dedup.recovered", "proven")]
        return bool(told) and bool(told[-1].get("believed"))

    def wait_until_frozen(self) -> None:
        """Wait until it has stopped itself with SIGSTOP."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.poll() is None, "the child has ended before it came to this step"
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in "Tt":
                return
            time.sleep(0.005)
        raise AssertionError("the child does not come to this step")

    def stop(self) -> list[Notice]:
        """Stop it in order and return all it has told, of which "started" is the first: then it hears signals."""
        with self._heard:
            assert self._heard.wait_for(lambda: self.notices or self._ended, PATIENCE_S), "it does not start"
        self.send_signal(signal.SIGTERM)
        assert self.wait() == 0, self.notices[-5:]
        return self.notices

    def end(self) -> None:
        """Leave nothing running."""
        if self.poll() is None:
            self.kill()
        self.wait()

    def _listen(self, reader: Connection) -> None:
        with reader, suppress(EOFError, OSError):
            while True:
                notice = reader.recv()
                with self._heard:
                    self.notices.append(notice)
                    self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()


@define
class Trap:
    """Sends its own process a signal at one step."""

    #: When, what and the how many-th time: ("after", "Forward", 1); None: never.
    place: tuple[str, str, int] | None = None
    signal: signal.Signals = signal.SIGKILL
    _seen: Counter[tuple[str, str]] = Factory(Counter)

    def step(self, when: str, name: str) -> None:
        """Pass one step; the signal may end the process here."""
        self._seen[when, name] += 1
        if self.place == (when, name, self._seen[when, name]):
            os.kill(os.getpid(), self.signal)


def trap_of(settings: dict[str, Any]) -> Trap:
    """Return the trap that "kill" and "signal" of *settings* ask for."""
    place = settings.get("kill")
    return Trap(tuple(place) if place else None, signal.Signals(settings.get("signal", signal.SIGKILL)))


def _run(run: Callable[[Any, Tell], None], settings: Any, writer: Connection) -> None:
    """Run in the child, which ends with its parent however that dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C in a terminal is for the parent, which then ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(settings, lambda event, facts: writer.send({"event": event, **facts}))
