"""The command ``dedup demo``."""

from __future__ import annotations

import json
import logging
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from dedup.demo.outcome import Wishes
from dedup.demo.run import run
from dedup.demo.screen import Screen, verdict
from dedup.errors import DedupError
from dedup.testing.assembly import DEFAULT_VERSION, SUITES


@click.command("demo")
@click.option(
    "--messages",
    metavar="N",
    type=click.IntRange(1, 10_000_000),
    default=40_000,
    show_default=True,
    help="How many messages, shared by the publishers.",
)
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(5, 86_400),
    default=40.0,
    show_default=True,
    help="How long to publish, under faults.",
)
@click.option(
    "--seed",
    metavar="N",
    type=int,
    default=None,
    help="Decides the faults; a random one, which is shown, by default.",
)
@click.option("--publishers", metavar="N", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--without-dedup",
    is_flag=True,
    help="The control: the same faults of the link and no shim. Expected to exit with 1.",
)
@click.option(
    "--rabbitmq",
    type=click.Choice(list(SUITES)),
    default=None,
    help=f"Which RabbitMQ to start; {DEFAULT_VERSION} by default.",
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Audit the run from the shims' own event log, and write a page (HTML); needs Java 17 or newer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option("--keep", is_flag=True, help="Keep data and logs, and say where.")
def command(
    *,
    messages: int,
    seconds: float,
    seed: int | None,
    publishers: int,
    without_dedup: bool,
    rabbitmq: str | None,
    report: Path | None,
    as_json: bool,
    keep: bool,
) -> None:
    """
    Lose confirms, cut connections, kill the shim, and count.

    Starts a RabbitMQ and a Redis of its own (or takes those of DEDUP_AMQP_URL and DEDUP_REDIS_URL), publishes through a
    link that fails again and again, and holds what is in the queue against what was sent. Exits with 0 if nothing is
    lost and nothing is there twice.
    """
    wishes = Wishes(
        messages=messages,
        seconds=seconds,
        seed=random.randrange(10_000) if seed is None else seed,
        publishers=min(publishers, messages),
        with_dedup=not without_dedup,
        rabbitmq=rabbitmq,
        report=report,
    )
    screen = Screen(sys.stderr)
    with _directory(keep=keep) as directory, _logs_in(directory), _ended_by(signal.SIGTERM, signal.SIGHUP):
        try:
            outcome = run(wishes, directory, screen.watch)
        except DedupError as error:
            raise click.ClickException(str(error)) from error
        finally:
            screen.clear()
    click.echo(json.dumps(outcome.as_dict(), indent=2) if as_json else verdict(outcome))
    sys.exit(0 if outcome.ok else 1)


@contextmanager
def _directory(*, keep: bool) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dedup-demo-"))
    try:
        yield directory
    finally:
        if keep:
            click.echo(f"data and logs are kept in {directory}", err=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _logs_in(directory: Path) -> Iterator[None]:
    """
    Write what the publishers log into a file: each of the faults makes them warn.
    """
    handler = logging.FileHandler(directory / "publishers.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("dedup", "pika")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


@contextmanager
def _ended_by(*signals: signal.Signals) -> Iterator[None]:
    """
    Clean up when one of *signals* ends the process, as after Ctrl-C.
    """

    def end(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
