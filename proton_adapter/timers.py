"""Call back later, in the thread that owns the connection."""

from __future__ import annotations

import sched
import time
from collections.abc import Callable
from contextlib import suppress


class Timers:
    """
    Calls that are to be made later; :class:`dedup.registrar.Timers` for a loop that is not pika's.
    """

    def __init__(self) -> None:
        self._scheduler = sched.scheduler(time.monotonic)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> sched.Event:
        """
        Call *callback* after *delay* seconds; return what cancels that.
        """
        return self._scheduler.enter(delay, 0, callback)

    def remove_timeout(self, timeout: sched.Event, /) -> None:
        """
        Forget a call; one that was made is forgotten already.
        """
        with suppress(ValueError):
            self._scheduler.cancel(timeout)

    def run(self) -> float | None:
        """
        Make the calls that are due, and return in how many seconds the next one is; None: there is none.
        """
        return self._scheduler.run(blocking=False)
