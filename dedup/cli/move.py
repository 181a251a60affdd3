"""``dedup move``: the messages of one queue into another, or back to where they died."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import attrs
import click

from dedup.amqp091.move_sample import Sample, sample
from dedup.amqp091.move_session import Done
from dedup.cli.group import FAILED, settings
from dedup.config import Settings
from dedup.core import names
from dedup.core.filters import FORMS, read_filter
from dedup.core.steps import Report
from dedup.errors import ConfigError
from dedup.move import Move, Moved, MoveSettings
from dedup.ports import MoveFacts
from dedup.service.logs import configure, quiet
from dedup.service.signals import ended_by_signals

#: What is told on a terminal while it moves: the rest is for logs.
_TOLD: Final = {
    "dedup.blocked": "the broker is in alarm and takes nothing: waiting until it does",
    "dedup.unblocked": "the broker takes messages again",
    "dedup.refused": "the target refuses messages: trying again",
    "dedup.store_unavailable": "Redis does not answer: waiting until it does",
    "dedup.standby": "another move, or what is left of one, holds {queue}: waiting until it is free",
}


@click.command()
@click.argument("source")
@click.argument("target", required=False, default="")
@settings(
    "amqp", "redis", "management", "to_amqp", "to_management", "redis_prefix", "forwarding", "listen", "log_format", "log_level"
)  # fmt: skip
@click.option(
    "--to-origin", is_flag=True, help="Each message back to the queue it died in first, instead of TARGET."
)
@click.option("--limit", type=click.IntRange(1), metavar="NUMBER", help="So many messages at the most.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="CONDITION",
    help=f"Only what meets it: {FORMS}. Repeat it: all must be met.",
)
@click.option(
    "--rate", type=click.FloatRange(0.1, 1e6), metavar="NUMBER", help="Messages a second at the most."
)
@click.option(
    "--forever", is_flag=True, help="Go on when SOURCE is empty, as a service: until SIGTERM or Ctrl-C."
)
@click.option(
    "--deadline-s",
    type=click.FloatRange(0, 600),
    metavar="NUMBER",
    default=30.0,
    show_default=True,
    help="How long messages are tried that the target refuses; then they go to the trash. 0: without end.",
)
@click.option("--keep-topology", is_flag=True, help="Leave exchanges, ledger and state in place at the end.")
@click.option("--dry-run", is_flag=True, help="Move nothing: look at the messages and count what would move.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
def move(
    config: Settings,
    *,
    source: str,
    target: str,
    to_origin: bool,
    filters: tuple[str, ...],
    as_json: bool,
    dry_run: bool,
    limit: int | None,
    rate: float | None,
    forever: bool,
    deadline_s: float,
    keep_topology: bool,
) -> None:
    """
    Move the messages of SOURCE into TARGET, until SOURCE is empty; with --to-amqp into another broker.

    Killed at any moment and run again, it loses nothing, and doubles nothing that has a message id or a stamp; where forwarding cannot
    be exact, or a message has neither, a second copy carries dedup-possible-duplicate. Messages pass as they are. What no queue
    takes goes to the stream SOURCE.dedup.trash.

    Exit codes: 0 done, 1 failed or stopped before the end, 2 asked for what cannot be.
    """
    if bool(target) == to_origin:
        raise ConfigError("name TARGET, or say --to-origin")
    if forever and (filters or limit):
        raise ConfigError("--forever ends at nothing: leave out --limit and --filter")
    wanted = read_filter(filters)
    config.require("amqp")
    if dry_run:
        quiet()
        _print_sample(sample(config.amqp, source, wanted, limit), as_json=as_json)
        return
    config.require("redis")
    told = MoveSettings(
        config.amqp,
        config.redis,
        source,
        target,
        wanted,
        limit,
        rate,
        forever,
        deadline_s=deadline_s or None,
        keep_topology=keep_topology,
        forwarding=config.forwarding,
        redis_prefix=config.redis_prefix,
        to_amqp=config.to_amqp,
    )
    if forever:
        _serve(config, told)
    else:
        _run(config, told, as_json=as_json)


def _serve(config: Settings, told: MoveSettings) -> None:
    from dedup.service.workers import Service  # noqa: PLC0415 the other way needs no metrics

    def make(
        _: str, report: Callable[[Report | MoveFacts], None], notice: Callable[[str, dict[str, Any]], None]
    ) -> Move:
        return Move(
            told,
            management=config.management_api(),
            to_management=config.to_management_api(),
            report=report,
            notice=notice,
            on_look=report,
        )

    configure(config.log_format, config.log_level)
    Service(attrs.evolve(config, queues=(told.source,), registry="off"), make).run()


def _run(config: Settings, told: MoveSettings, *, as_json: bool) -> None:
    quiet()
    with ExitStack() as stack:
        shown = _Shown(stack, told)
        mover = Move(
            told,
            management=config.management_api(),
            to_management=config.to_management_api(),
            notice=shown.notice,
            on_progress=shown.progress,
        )
        with ended_by_signals(lambda _: mover.stop()):
            mover.run()
    moved = mover.moved
    if as_json:
        facts = attrs.asdict(moved, filter=attrs.filters.exclude("done"))
        click.echo(
            json.dumps(
                {
                    "source": told.source,
                    "target": told.target or None,
                    **facts,
                    "ended": moved.done.value if moved.done else "stopped",
                }
            )
        )
    else:
        _print(told, moved)
    if moved.done is None:
        sys.exit(FAILED)


class _Shown:
    """
    A progress bar on a terminal, and what an operator should know.
    """

    def __init__(self, stack: ExitStack, told: MoveSettings) -> None:
        self._stack = stack
        self._limit = told.limit
        self._bar: Any = None

    def progress(self, moved: Moved) -> None:
        """
        Show how far it is.
        """
        count = moved.moved + moved.trashed
        length = count + moved.backlog if self._limit is None else min(self._limit, count + moved.backlog)
        if self._bar is None:
            self._bar = self._stack.enter_context(
                click.progressbar(length=length, file=sys.stderr, show_pos=True)
            )
        self._bar.length = max(length, 1)
        self._bar.update(count - self._bar.pos)

    def notice(self, name: str, facts: dict[str, Any]) -> None:
        """
        Tell of what keeps it waiting, and of warnings.
        """
        text = facts["text"] if name == "dedup.warning" else _TOLD.get(name, "").format_map(facts)
        if text:
            click.echo(f"{'warning: ' * (name == 'dedup.warning')}{text}", err=True)


def _print(told: MoveSettings, moved: Moved) -> None:
    where = told.target or "where they died"
    click.echo(f"{moved.moved} messages moved from {told.source} to {where}")
    for count, text in (
        (moved.marked, "of them marked: a move that was killed may have forwarded them already"),
        (moved.recognised, "more were recognised: a move that was killed had forwarded them"),
        (moved.trashed, f"more could not be delivered: they are in {names.trash(told.source)}"),
        (moved.skipped, f"did not meet the filter and are back in {told.source}"),
    ):
        if count:
            click.echo(f"{count} {text}")
    if moved.done is Done.HELD:
        click.echo(
            f"no more can be looked at at once, and {moved.backlog} wait behind them: move what is in front first"
        )


def _print_sample(found: Sample, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(attrs.asdict(found)))
        return
    click.echo(f"{found.wanted} of {found.looked_at} messages looked at would move")
    for row in found.deaths:
        click.echo(
            f"  {row.messages} died first in {row.queue or 'no queue'}{f' ({row.reason})' * bool(row.reason)}"
        )
    if found.waiting > found.looked_at:
        click.echo(f"{found.waiting - found.looked_at} more were not looked at")
