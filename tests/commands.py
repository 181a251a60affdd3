"""Run a ``dedup`` command in a process of its own that starts in milliseconds, as everything is imported there already."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dedup.cli.commands import dedup
from tests.fault.child import Child, Tell


@contextmanager
def running(arguments: Sequence[str], log: Path | str = os.devnull) -> Iterator[Child]:
    """Run it until it ends, or the context; what it logs goes into *log*."""
    child = Child(_run, {"arguments": list(arguments), "log": str(log)})
    try:
        yield child
    finally:
        child.end()


def _run(settings: dict[str, Any], tell: Tell) -> None:
    """Be that process: its exit code is the command's."""
    del tell
    with Path(settings["log"]).open("wb") as log:
        os.dup2(log.fileno(), 2)
    dedup.main(args=settings["arguments"], prog_name="dedup")
