"""Have the run audited: from the shims' own event log, by Spark, with a page to look at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from attrs import frozen

from dedup.demo.shims import DemoError

#: Exit codes of a report that tell of the log, and not of a failure.
_ANSWERS = (0, 1, 2)


@frozen
class Audited:
    """
    What the audit says.
    """

    #: ``clean``, or what is wrong.
    verdict: str
    #: Rows of the log: arrivals at the shims.
    events: int
    #: Of them, copies that were dropped.
    duplicates: int
    #: Of all checks, those that failed, each with its value.
    failed: dict[str, float]
    page: Path


def audited(amqp: str, queue: str, log: Path, page: Path) -> Audited:
    """
    Collect what the shims of *queue* told into *log*, and audit it.

    Raises:
        DemoError: no answer, because Java or an extra is missing, for example.
        DedupError: the event log cannot be collected.
    """
    try:
        from dedup.eventlog.collector import Collector, CollectorSettings  # noqa: PLC0415 (an extra)
        from dedup.eventlog.folder import Folder  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise DemoError(f"a report needs {error.name}: pip install 'dedup[eventlog,audit]'") from error
    Collector(Folder(str(log)), CollectorSettings(until_empty=True)).run(amqp, [queue], lambda: False)
    page = page.absolute()
    command = [sys.executable, "-m", "dedup.cli", "audit", "report", str(log), "--html", str(page), "--json"]
    ended = subprocess.run(command, cwd=log, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode not in _ANSWERS:
        raise DemoError(
            f"there is no report: {ended.stderr.strip().rpartition('error: ')[2] or ended.returncode}"
        )
    return _answer(json.loads(ended.stdout), page)


def _answer(found: dict[str, Any], page: Path) -> Audited:
    standings = found["standings"]
    return Audited(
        verdict=found["verdict"],
        events=found["events"],
        duplicates=sum(standing["duplicates"] for standing in standings),
        failed={check["name"]: check["value"] for check in found["checks"] if check["status"] != "pass"},
        page=page,
    )
