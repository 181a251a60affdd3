"""Show how far a long run is: which step, and how many of Spark's tasks are done."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self, TextIO

from pyspark import SparkContext

#: How often a terminal is redrawn; seconds.
_REDRAW_S: Final = 0.5


class Progress:
    """
    Show the steps of a run while it lasts; use it as a context manager.

    A terminal gets one line that changes, anything else a line for each step.

    Args:
        stream: Where to, standard error as a rule: standard output is for the answer.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_live = stream.isatty()
        self._step = ""
        self._begun = time.monotonic()
        self._context: SparkContext | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._is_live:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._is_live:
            self._thread.join()
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def step(self, text: str, context: SparkContext | None = None) -> None:
        """
        Begin a step.

        Args:
            context: Where its tasks run; None: as before.
        """
        self._step = text
        self._context = context or self._context
        if not self._is_live:
            print(f"{text} ...", file=self._stream, flush=True)

    def _redraw(self) -> None:
        while not self._done.wait(_REDRAW_S):
            elapsed_s = time.monotonic() - self._begun
            self._stream.write(f"\r\x1b[K{elapsed_s:4.0f} s  {self._step}{self._tasks()}")
            self._stream.flush()

    def _tasks(self) -> str:
        """
        Tell how many tasks of the stages that run now are done.
        """
        if self._context is None:
            return ""
        tracker = self._context.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        total = sum(stage.numTasks for stage in stages if stage)
        done = sum(stage.numCompletedTasks for stage in stages if stage)
        return f", {done} of {total} tasks" if total else ""
