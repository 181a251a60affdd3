"""The audit's commands: daily, stream, report, watch, tables."""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from dedup.audit.checks import NAMES, THRESHOLDS
from dedup.audit.failures import sentence
from dedup.audit.jobs import FILES_MAX, daily, stream
from dedup.audit.progress import Progress
from dedup.audit.reference import markdown
from dedup.audit.report import Wishes, report
from dedup.audit.session import session
from dedup.audit.watch import watch
from dedup.core.window import WINDOW_SIZE, WINDOW_SIZE_MAX
from dedup.errors import ConfigError, DedupError

#: Exit code of wrong usage; 1 and 2 are those of a report.
USAGE = 3
#: As shells have it for Ctrl-C.
INTERRUPTED = 130
_EVENTS = "folder of the event log, or its URL: holds date=.../queue=..."


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command that *arguments* name and return the exit code.
    """
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except DedupError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (PySparkException, Py4JJavaError) as error:
        told = sentence(error)
        if told is None:
            raise
        print(f"error: {told}", file=sys.stderr)
        return USAGE


class _Parser(argparse.ArgumentParser):
    """
    A parser whose usage errors have an exit code of their own: 2 says that the log is incomplete.
    """

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


def parser() -> argparse.ArgumentParser:
    """
    Return what takes the commands apart.
    """
    whole = _Parser(prog="dedup audit", description=__doc__)
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, about: str, run: object) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=about, description=about)
        found.set_defaults(run=run)
        return found

    def paths(found: argparse.ArgumentParser) -> None:
        found.add_argument("events", metavar="EVENTS", help=_EVENTS)
        found.add_argument("state", metavar="STATE", help="folder of the audit's state, or its URL")

    def days(found: argparse.ArgumentParser) -> None:
        found.add_argument(
            "--from", dest="first", type=_day, metavar="DAY", help="first day, UTC, as 2026-01-31"
        )
        found.add_argument("--to", dest="last", type=_day, metavar="DAY", help="last day, included")

    found = command("daily", "Reduce days of the log to state; again gives the same.", _daily)
    paths(found)
    days(found)

    found = command("stream", "Reduce new files of the log to state, in micro-batches.", _stream)
    paths(found)
    found.add_argument(
        "--every",
        type=_seconds,
        metavar="SECONDS",
        help="go on for ever; default: take what is there and end",
    )
    found.add_argument(
        "--files-max",
        type=_positive,
        default=FILES_MAX,
        metavar="N",
        help="files a micro-batch takes at most",
    )

    found = command(
        "report",
        "Answer: what was lost, what came through twice, how many duplicates. Exit code 0: clean, 1: findings, "
        "2: log incomplete, 3: usage.",
        _report,
    )
    found.add_argument("events", metavar="EVENTS", help=_EVENTS)
    found.add_argument(
        "--state", metavar="STATE", help="state of the daily or the stream job; default: reduce the log now"
    )
    days(found)
    found.add_argument(
        "--queue", action="append", default=[], metavar="NAME", help="queue to look at; again for more"
    )
    found.add_argument(
        "--window",
        type=_window_size,
        default=WINDOW_SIZE,
        metavar="N",
        help="the shim's window_size, drawn beside the depths",
    )
    found.add_argument("--checks", metavar="FILE", help="TOML file with thresholds: lost = 0")
    found.add_argument("--html", metavar="FILE", type=Path, help="write one page that needs nothing else")
    found.add_argument("--csv", metavar="DIR", type=Path, help="write every table as CSV")
    found.add_argument("--out", metavar="OUT", help="folder or URL to write every table to, as Parquet")
    found.add_argument("--json", action="store_true", help="print what the page says as JSON")

    found = command("watch", "Show live rates while a stream job runs.", _watch)
    found.add_argument("state", metavar="STATE", help="state of the stream job")
    found.add_argument(
        "--every", type=_seconds, default=5.0, metavar="SECONDS", help="how often to look; default: 5"
    )
    found.add_argument("--times", type=_positive, metavar="N", help="look so many times; default: for ever")

    command("tables", "Print what each table and column means, as Markdown.", _tables)
    return whole


def _daily(options: argparse.Namespace) -> int:
    with Progress(sys.stderr) as progress:
        progress.step("starting Spark")
        spark = session()
        progress.step("reducing the log", spark.sparkContext)
        done = daily(spark, options.events, options.state, first=options.first, last=options.last)
    print(
        f"reduced {len(done)} day{'s' * (len(done) != 1)}"
        + (f": {done[0]} to {done[-1]}" if done else ": the log is empty")
    )
    return 0


def _stream(options: argparse.Namespace) -> int:
    query = stream(
        session(), options.events, options.state, every_s=options.every, files_max=options.files_max
    )
    query.awaitTermination()
    return 0


def _report(options: argparse.Namespace) -> int:
    return report(
        Wishes(
            events=options.events,
            state=options.state,
            first=options.first,
            last=options.last,
            queues=tuple(options.queue),
            thresholds=_thresholds(options.checks),
            window_size=options.window,
            html=options.html,
            csv=options.csv,
            out=options.out,
            as_json=options.json,
        )
    )


def _watch(options: argparse.Namespace) -> int:
    return watch(options.state, every_s=options.every, times=options.times)


def _tables(_options: argparse.Namespace) -> int:
    print(markdown(), end="")
    return 0


def _thresholds(path: str | None) -> Mapping[str, float]:
    """
    Read thresholds over the built-in ones.

    Raises:
        ConfigError: the file cannot be read, or names what is not checked.
    """
    if path is None:
        return THRESHOLDS
    try:
        given = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read thresholds from {path}: {error}") from error
    for name, value in given.items():
        if name not in NAMES:
            raise ConfigError(f"{path}: there is no check {name!r}; there are {', '.join(NAMES)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{path}: {name} is a number, the highest value that passes, not {value!r}")
    return {**THRESHOLDS, **given}


def _day(text: str) -> dt.date:
    """
    Take a day as 2026-01-31.
    """
    return dt.date.fromisoformat(text)


def _seconds(text: str) -> float:
    """
    Take a number of seconds above 0.
    """
    value = float(text)
    if not value > 0:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    """
    Take a whole number above 0.
    """
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _window_size(text: str) -> int:
    """
    Take the size of a window that a shim may have.
    """
    value = _positive(text)
    if value > WINDOW_SIZE_MAX:
        raise argparse.ArgumentTypeError(
            f"a shim's window has at most {WINDOW_SIZE_MAX:,} sequences, not {value:,}"
        )
    return value
