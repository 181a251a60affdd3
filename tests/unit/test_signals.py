"""A signal ends what it is meant to end, whatever the main thread holds when it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from dedup.service.signals import ended_by_signals

#: Far longer than it takes.
_PATIENCE_S = 30.0
_TWICE = """
import os, signal
from dedup.service.signals import ended_by_signals
with ended_by_signals(lambda _: print("asked", flush=True)):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    print("goes on")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_what_needs_a_lock_that_the_main_thread_holds(number: signal.Signals) -> None:
    """The lock of an Event or of pika's loop is taken in such a moment now and then."""
    lock, stopped = threading.Lock(), threading.Event()
    heard: list[signal.Signals] = []

    def stop(by: signal.Signals) -> None:
        with lock:
            heard.append(by)
        stopped.set()

    with ended_by_signals(stop):
        with lock:
            os.kill(os.getpid(), number)
            assert not stopped.wait(0.05)
        assert stopped.wait(_PATIENCE_S)
    assert heard == [number]


def test_a_handler_that_takes_the_lock_itself_does_not_get_it() -> None:
    """The control: this is what the thread is for."""
    lock = threading.Lock()
    taken: list[bool] = []
    before = signal.signal(signal.SIGTERM, lambda *_: taken.append(lock.acquire(timeout=0.05)))
    try:
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
            while not taken:
                pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert taken == [False]


def test_without_a_signal_nothing_is_stopped_and_the_handlers_come_back() -> None:
    """Whoever used them before has them again, and no thread is left."""
    before, threads = signal.getsignal(signal.SIGTERM), threading.active_count()
    with ended_by_signals(lambda _: pytest.fail("nobody asked")):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert threading.active_count() == threads


def test_a_second_signal_ends_the_process_at_once() -> None:
    """A person who presses Ctrl-C again does not want to wait."""
    ended = subprocess.run(
        [sys.executable, "-c", _TWICE], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert "goes on" not in ended.stdout
