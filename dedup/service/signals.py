"""End in order when a signal says so."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: What asks a process to end: service managers send the one, Ctrl-C the other.
ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def ended_by_signals(
    stop: Callable[[signal.Signals], None], signals: tuple[signal.Signals, ...] = ENDING
) -> Iterator[None]:
    """
    Call *stop* when one of *signals* comes, in a thread of its own; a second one ends the process at once.

    A handler interrupts the main thread between any two instructions, also while it holds a lock: of an Event, a log, pika's loop.
    If *stop* needed the same one there, the process would never end. So the handler only writes into a pipe.

    To be entered in the main thread.
    """
    reader, writer = os.pipe()
    signalled = False

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            os._exit(128 + number)
        signalled = True
        os.write(writer, bytes((number,)))

    def wait() -> None:
        if number := os.read(reader, 1):
            stop(signal.Signals(number[0]))

    thread = threading.Thread(target=wait, name="dedup-signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        thread.join()
        os.close(reader)
