"""``dedup audit collect`` and ``dedup audit compact``."""

from __future__ import annotations

import datetime as dt
import importlib.util
import random
import threading
from typing import TYPE_CHECKING, Any, Final

import click
import structlog

from dedup.cli.group import settings
from dedup.config import Settings
from dedup.core.backoff import delay_s
from dedup.errors import ConfigError, UnavailableError
from dedup.service.logs import configure
from dedup.service.signals import ended_by_signals

if TYPE_CHECKING:
    from dedup.eventlog.collector import CollectorSettings

#: Longest pause before the broker or the folder is tried again; seconds.
_PAUSE_S_MAX: Final = 30.0
_AGE_S: Final = click.FloatRange(1, 600)
_DAY: Final = click.DateTime(["%Y-%m-%d"])


@click.command()
@settings("amqp", "queues", "log_format", "log_level")
@click.option("--into", required=True, metavar="FOLDER", help="Folder of the event log, or s3://BUCKET/PATH.")
@click.option(
    "--age-s", type=_AGE_S, default=60.0, show_default=True, help="Write at least so often; seconds."
)
@click.option(
    "--rows", type=click.IntRange(1, 5_000_000), default=500_000, show_default=True, help="Rows of one file."
)
@click.option("--until-empty", is_flag=True, help="End when nothing waits any more, for cron.")
def collect(config: Settings, into: str, age_s: float, rows: int, until_empty: bool) -> None:
    """
    Keep what shims tell the audit, in Parquet files below FOLDER.

    Takes the queues' QUEUE.dedup.audit until SIGTERM or Ctrl-C, and acknowledges what is in files. Several collectors are
    fine: one collects, the others take over. While the broker or FOLDER cannot be reached it waits: the queue holds.
    """
    _need_arrow()
    from dedup.eventlog.collector import CollectorSettings  # noqa: PLC0415

    config.require("amqp", "queues")
    configure(config.log_format, config.log_level)
    stopping = threading.Event()
    wanted = CollectorSettings(rows_max=rows, age_s_max=age_s, until_empty=until_empty)
    with ended_by_signals(lambda _: stopping.set()):
        _collect(config, into, wanted, stopping)


def _need_arrow() -> None:
    """
    Refuse to go on without what writes Parquet; it is an extra.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("the event log needs pyarrow: pip install 'dedup[eventlog]'")


def _collect(config: Settings, into: str, wanted: CollectorSettings, stopping: threading.Event) -> None:
    from dedup.eventlog.collector import Collector  # noqa: PLC0415
    from dedup.eventlog.folder import Folder  # noqa: PLC0415

    log = structlog.get_logger("dedup")
    folder = Folder(into)
    failures = 0

    def notice(name: str, facts: dict[str, Any]) -> None:
        nonlocal failures
        failures = 0
        tell = log.warning if name == "dedup.record_unreadable" else log.info
        tell(name, **facts)

    while True:
        try:
            return Collector(folder, wanted, notice=notice).run(config.amqp, config.queues, stopping.is_set)
        except UnavailableError as error:
            if wanted.until_empty:
                raise
            pause_s = delay_s(failures, random.random(), max_s=_PAUSE_S_MAX)
            failures += 1
            log.warning("dedup.unavailable", reason=str(error), retry_in_s=round(pause_s, 1))
        if stopping.wait(pause_s):
            return None


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.option("--from", "first", type=_DAY, help="First day, UTC, as 2026-01-31.")
@click.option("--to", "last", type=_DAY, help="Last day, included; by default yesterday.")
def compact(folder: str, first: dt.datetime | None, last: dt.datetime | None) -> None:
    """
    Put the files of each day and queue of the event log into one, each row once.

    Leaves today alone unless it is asked for: a collector is writing there.
    """
    _need_arrow()
    from dedup.eventlog.folder import Folder  # noqa: PLC0415

    until = last.date() if last is not None else dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)
    log = Folder(folder)
    for place in log.places(first=first.date() if first is not None else None, last=until):
        before, after = log.compact(place)
        click.echo(f"{place.path}: {before} files, now {after}")
