"""Answer, and write the answer: for people, for scripts, as a page, as tables."""

from __future__ import annotations

import csv
import datetime as dt
import json
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession

from dedup.audit.jobs import results
from dedup.audit.progress import Progress
from dedup.audit.schema import RESULTS, Table
from dedup.audit.session import session
from dedup.audit.storage import read_events
from dedup.audit.summary import Summary, summarise
from dedup.errors import ConfigError

#: Exit codes: findings over a threshold, the log is incomplete.
FAILED: Final = 1
INCOMPLETE: Final = 2
#: Findings that are printed; all of them are in the table.
_SHOWN_MAX: Final = 20

_Page = Callable[..., str]


@frozen
class Wishes:
    """
    What a report is to be made of, and where it goes.
    """

    #: Folder of the event log, or its URL.
    events: str
    #: State of the daily or the streaming job; None: reduce the log now.
    state: str | None
    first: dt.date | None
    last: dt.date | None
    queues: tuple[str, ...]
    thresholds: Mapping[str, float]
    window_size: int
    #: File of the page; folder of CSV files; folder or URL of Parquet files; None: not wanted.
    html: Path | None
    csv: Path | None
    out: str | None
    as_json: bool


def report(wishes: Wishes) -> int:
    """
    Answer and write the answer; return the exit code.

    Raises:
        ConfigError: something is not there, or a place cannot be written to.
    """
    page = _page() if wishes.html else None
    _make_places(wishes)
    with Progress(sys.stderr) as progress:
        progress.step("starting Spark")
        spark = session()
        progress.step("reading the log", spark.sparkContext)
        chosen: dict[str, Any] = {"first": wishes.first, "last": wishes.last, "queues": wishes.queues}
        tables = results(spark, wishes.events, wishes.state, thresholds=wishes.thresholds, **chosen)
        progress.step("judging")
        events = read_events(spark, wishes.events, **chosen)
        summary = summarise(tables, events, window_size=wishes.window_size)
        if wishes.out:
            progress.step(f"writing {wishes.out}")
            for table in RESULTS:
                tables[table].write.mode("overwrite").parquet(f"{wishes.out}/{table.name}")
        if wishes.csv:
            progress.step(f"writing {wishes.csv}")
            _write_csv(tables, wishes.csv)
        if wishes.html and page:
            progress.step(f"drawing {wishes.html}")
            _write_page(page, summary, wishes, spark)
    spark.catalog.clearCache()
    if wishes.as_json:
        print(json.dumps(attrs.asdict(summary), indent=2, default=lambda at: at.isoformat()))
    else:
        _print(summary)
    return exit_code(summary)


def exit_code(summary: Summary) -> int:
    """
    Return 0 when every check passed, else what scripts are told.
    """
    statuses = {check["status"] for check in summary.checks}
    return FAILED if "fail" in statuses else INCOMPLETE if "incomplete" in statuses else 0


def _page() -> _Page:
    """
    Return what writes the page; its libraries are needed for nothing else, so a cluster can do without.
    """
    try:
        from dedup.audit.page import page  # noqa: PLC0415 (see above)
    except ImportError as error:
        raise ConfigError(
            f"--html needs {error.name}, which is not installed: pip install 'dedup[audit]'"
        ) from error
    return page


def _make_places(wishes: Wishes) -> None:
    """
    Make sure that files can be written, before a long run and not after it.
    """
    try:
        if wishes.html:
            wishes.html.parent.mkdir(parents=True, exist_ok=True)
            _unfinished(wishes.html).touch()
        if wishes.csv:
            wishes.csv.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {error.filename}: {error.strerror}") from error


def _write_csv(tables: Mapping[Table, DataFrame], folder: Path) -> None:
    """
    Write each table as one file; rows pass through this process one partition at a time.
    """
    for table in RESULTS:
        with (folder / f"{table.name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(column.name for column in table.columns)
            writer.writerows(table.readable(tables[table].orderBy(*table.key_names)).toLocalIterator())


def _write_page(page: _Page, summary: Summary, wishes: Wishes, spark: SparkSession) -> None:
    """
    Write the page over what was there, in one piece.
    """
    assert wishes.html
    text = page(
        summary,
        source=wishes.events,
        version=f"dedup{_version()} on Spark {spark.version}",
        made_at=dt.datetime.now(dt.UTC),
    )
    _unfinished(wishes.html).write_text(text, "utf-8")
    _unfinished(wishes.html).replace(wishes.html)


def _version() -> str:
    """
    Return the version that is installed; nothing when the package came in a zip file.
    """
    try:
        return f" {metadata.version('dedup')}"
    except metadata.PackageNotFoundError:
        return ""


def _unfinished(path: Path) -> Path:
    """
    Return what a file is called until it is complete.
    """
    return path.with_name(f".{path.name}.unfinished")


def _print(summary: Summary) -> None:
    """
    Print checks and the first findings.
    """
    for check in summary.checks:
        limit = "" if check["threshold"] is None else f" (at most {check['threshold']:g})"
        print(f"{check['status']:10}  {check['name']:16} {check['value']:>14,.6g}{limit}")
    for finding in summary.findings[:_SHOWN_MAX]:
        print(
            f"{finding['kind']}: queue {finding['queue']!r}, publisher {finding['publisher']!r}, sequence {finding['sequence']}, "
            f"token {finding['token']}, offset {finding['offset']}, {finding['arrived_at']}"
        )
    if summary.findings_total > _SHOWN_MAX:
        print(
            f"... and {summary.findings_total - _SHOWN_MAX:,} more findings; --csv and --out write all of them"
        )
    print(f"verdict: {summary.verdict}")
