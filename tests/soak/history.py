"""
Write and read the history of a soak: every event of one run, in the order in which the runner learned of it.

A history is a file of JSON lines, one event a line, compressed with gzip once the run has ended. Each line has ``event`` and
``at``, seconds since the run began; the rest depends on the event:

| event | facts |
|---|---|
| ``begin`` | the first line: ``format``, ``seed``, ``messages``, ``publishers``, ``faults`` (how many of each were wished for), ``forwarding`` (exact or confirmed), ``marking`` (whether faults that may mark were wished for), ``servers`` |
| ``ask`` | ``publisher`` is about to publish ``message`` (its body, unique) under ``sequence``; said again after a resume |
| ``confirmed`` | ``publisher`` was told that the broker has ``message``; ``attempts`` it took |
| ``failed`` | ``publisher`` was told that ``message`` was not published, and ``why`` |
| ``resume`` | ``publisher`` begins in a new process with ``sequence``, from its own record |
| ``arrived`` | a copy of ``message`` reached the broker: read from a queue beside the ingress |
| ``read`` | a copy of ``message`` was read from the target; ``marked``: as a possible duplicate |
| ``quarantined`` | a copy of ``message`` was read from the quarantine, and the ``reason`` in its header |
| ``fault`` | fault ``number`` begins: its ``kind`` (`tests.soak.plan`) |
| ``healed`` | fault ``number`` is over; ``facts`` say what it met, such as a kill inside a batch |
| ``shim`` | ``shim`` (its log's name) logged ``what`` with ``facts``: started, recovered, session ended, rolled back |
| ``end`` | the last line: ``lines``, how many there are with this one; its absence means that the run was cut off |

A process that is killed cannot tear a line: only the runner writes, and publishers tell it through pipes, in pieces that
are written whole or not at all.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from dedup.errors import DedupError

FORMAT: Final = 1

#: Which facts each event must have, and of what type.
FACTS: Final[dict[str, dict[str, type]]] = {
    "begin": {
        "format": int,
        "seed": int,
        "messages": int,
        "publishers": int,
        "faults": int,
        "forwarding": str,
        "marking": bool,
        "servers": str,
    },
    "ask": {"publisher": str, "message": str, "sequence": int},
    "confirmed": {"publisher": str, "message": str, "attempts": int},
    "failed": {"publisher": str, "message": str, "why": str},
    "resume": {"publisher": str, "sequence": int},
    "arrived": {"message": str},
    "read": {"message": str, "marked": bool},
    "quarantined": {"message": str, "reason": str},
    "fault": {"number": int, "kind": str},
    "healed": {"number": int, "facts": dict},
    "shim": {"shim": str, "what": str, "facts": dict},
    "end": {"lines": int},
}

Event = dict[str, Any]


class HistoryError(DedupError):
    """Raised when a file is no whole history; the message says where it stops to be one."""


class History:
    """
    Append to the history of a run; safe in threads.

    Args:
        path: Ends with ``.jsonl``; `end` compresses it to the same name with ``.gz``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("x", encoding="utf-8")
        self._lock = threading.Lock()
        self._began = time.monotonic()
        #: How many of each event were written.
        self.counts: Counter[str] = Counter()

    def write(self, event: str, **facts: Any) -> None:
        """
        Append one event.
        """
        assert FACTS[event].keys() <= facts.keys(), f"{event} lacks {FACTS[event].keys() - facts.keys()}"
        with self._lock:
            if not self._file.closed:  # a late confirm of a run that was broken off
                at = round(time.monotonic() - self._began, 4)
                self._file.write(
                    json.dumps({"event": event, "at": at, **facts}, separators=(",", ":")) + "\n"
                )
                self.counts[event] += 1

    def end(self) -> Path:
        """
        Append the last line, compress the file, and return its new path.
        """
        self.write("end", lines=self.counts.total() + 1)
        self.close()
        compressed = self.path.with_name(f"{self.path.name}.gz")
        with self.path.open("rb") as plain, gzip.open(compressed, "wb") as packed:
            while chunk := plain.read(1 << 20):
                packed.write(chunk)
        self.path.unlink()
        self.path = compressed
        return compressed

    def close(self) -> None:
        """
        Stop writing; what is there stays, and without its last line it is no whole history.
        """
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> Iterator[Event]:
    """
    Yield the events of a whole history.

    Raises:
        HistoryError: it cannot be read, a line is no event, or lines are missing.
    """
    number = 0
    event: Event = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, start=1):
                if event.get("event") == "end":
                    raise HistoryError(f"{path}: line {number} comes after the end")
                event = _event(line, f"{path}: line {number}")
                if (number == 1) != (event["event"] == "begin"):
                    raise HistoryError(f"{path}: line {number} is {event['event']}: a history begins once")
                yield event
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise HistoryError(f"{path} cannot be read after line {number}: {error}") from error
    if event.get("event") != "end":
        raise HistoryError(f"{path} stops after line {number}: the run was cut off, or the file was")
    if event["lines"] != number:
        raise HistoryError(f"{path} has {number} lines and was ended with {event['lines']}: it was changed")


def _event(line: str, where: str) -> Event:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise HistoryError(f"{where} is not JSON: {error}") from error
    wanted = FACTS.get(str(event.get("event"))) if isinstance(event, dict) else None
    if wanted is None:
        raise HistoryError(f"{where} is no event of a history")
    wrong = [name for name, kind in wanted.items() if type(event.get(name)) is not kind]
    if wrong:
        raise HistoryError(f"{where}: {event['event']} needs {', '.join(wrong)}")
    if event["event"] == "begin" and event["format"] != FORMAT:
        raise HistoryError(f"{where}: format {event['format']}; this program reads {FORMAT}")
    checked: Event = event
    return checked
