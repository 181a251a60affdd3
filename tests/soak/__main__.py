"""
Soak dedup in faults, and check the history of such a run: ``python -m tests.soak run`` and ``python -m tests.soak check FILE``.

Exit codes: 0, every promise was kept; 1, one was broken, or the run proves nothing; 3, there is no whole history.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dedup.errors import DedupError
from dedup.testing.assembly import SUITES
from tests.soak.check import check as checked
from tests.soak.history import History, HistoryError
from tests.soak.run import Progress, Wishes
from tests.soak.run import run as soak

BROKEN, UNREADABLE = 1, 3
#: How often a terminal is redrawn, and how often a log gets a line; seconds.
_REDRAW_S, _LINE_S = 0.2, 15.0


@click.group()
def main() -> None:
    """Publish under hundreds of faults, keep a history, and check it."""


@main.command()
@click.option("--messages", type=click.IntRange(1, 10_000_000), default=100_000, show_default=True)
@click.option("--publishers", type=click.IntRange(1, 64), default=20, show_default=True)
@click.option("--faults", type=click.IntRange(1, 100_000), default=300, show_default=True)
@click.option("--seed", type=int, default=None, help="Decides the faults; a random one by default.")
@click.option("--rabbitmq", type=click.Choice(list(SUITES)), default=None)
@click.option("--forwarding", type=click.Choice(["exact", "confirmed"]), default="exact", show_default=True)
@click.option(
    "--marking",
    is_flag=True,
    help="Also crash the broker, empty Redis and roll it back, after which messages may be marked.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="The history, NAME.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON.")
def run(
    *,
    messages: int,
    publishers: int,
    faults: int,
    seed: int | None,
    rabbitmq: str | None,
    forwarding: str,
    marking: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Soak once on servers of its own, keep the history, and check it."""
    for name in ("DEDUP_AMQP_URL", "DEDUP_REDIS_URL"):
        if os.environ.get(name):
            raise click.UsageError(f"a soak kills its servers, so it takes no others: unset {name}")
    seed = random.randrange(10_000) if seed is None else seed
    wishes = Wishes(
        messages=-(-messages // publishers) * publishers,
        publishers=publishers,
        faults=faults,
        seed=seed,
        forwarding=forwarding,
        marking=marking,
        rabbitmq=rabbitmq,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    path = out or Path("build/soak") / f"{time.strftime('%Y%m%d-%H%M%S')}-{forwarding}-{seed}.jsonl"
    try:
        with History(path) as history, _directory() as directory:
            soak(wishes, history, directory, _Line().watch)
            path = history.end()
    except (DedupError, KeyboardInterrupt) as error:
        cause = str(error) or "interrupted"
        click.echo(f"\nThe run was cut off; its history as far as it went is {path}\n{cause}", err=True)
        sys.exit(UNREADABLE)
    click.echo(f"\nThe history is {path}", err=True)
    _judge(path, as_json=as_json)


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON.")
def check(*, path: Path, as_json: bool) -> None:
    """Check the history of an earlier soak; nothing else is needed."""
    _judge(path, as_json=as_json)


def _judge(path: Path, *, as_json: bool) -> None:
    try:
        verdict = checked(path)
    except HistoryError as error:
        click.echo(str(error), err=True)
        sys.exit(UNREADABLE)
    click.echo(json.dumps(verdict.as_dict(), indent=2) if as_json else verdict.text())
    sys.exit(0 if verdict.ok else BROKEN)


class _Line:
    """
    Show where a soak stands: a line that stays in place on a terminal, one now and then elsewhere.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._began = time.monotonic()
        self._due = 0.0

    def watch(self, progress: Progress) -> None:
        """
        Show *progress*, if it is time to.
        """
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (_REDRAW_S if self._live else _LINE_S)
        events = progress.events
        line = (
            f"{now - self._began:4.0f} s  faults {progress.faults:,}  asked {events['ask']:,}  "
            f"confirmed {events['confirmed']:,}  arrived {events['arrived']:,}  read {events['read']:,}  "
            f"| {progress.doing}"
        )
        click.echo(f"\r\x1b[K{line}" if self._live else line, err=True, nl=not self._live)


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dedup-soak-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(prog_name="python -m tests.soak")
