"""``dedup dead``: look at the messages that were given up, and let them go."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

import attrs
import click

from dedup.amqp091.administration import QueueType
from dedup.cli.group import FAILED, Command, Group, settings
from dedup.cli.letters import all_of, print_json, print_letter, print_table, told_of
from dedup.config import Settings
from dedup.core import names
from dedup.core.choices import Choice, choose
from dedup.deadletters import dead as deaths
from dedup.deadletters.decoders import CHARACTERS_MAX, WAYS, printable, show
from dedup.deadletters.letters import Letter, Selection
from dedup.deadletters.protobuf import Descriptors
from dedup.errors import ConfigError, DedupError
from dedup.service.logs import quiet

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
_QUEUE: Final = click.argument("queue")


class _Age(click.ParamType[int]):
    """
    A length of time, as 90s, 15m, 12h or 7d; converted to the moment so long ago, in unix milliseconds.
    """

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """
        Read it.
        """
        found = re.fullmatch(r"(\d{1,9})([smhd])", str(value))
        if not found:
            self.fail(f"{value!r} is no age: write 90s, 15m, 12h or 7d", param, ctx)
        return int(time.time() * 1000) - int(found[1]) * _UNITS[found[2]] * 1000


def _selecting(command: Command) -> Command:
    """
    Give a command the options that say which messages are meant; it is passed a Selection.
    """

    @wraps(command)
    def select_and_call(
        config: Settings,
        *,
        reason: str,
        message_id: str,
        older_than: int | None,
        limit: int | None,
        **options: Any,
    ) -> None:
        command(config, selection=Selection(reason, message_id, None, older_than, limit), **options)

    decorated: Command = select_and_call
    for option in (
        click.option("--limit", type=click.IntRange(1), metavar="N", help="So many at the most, the oldest."),
        click.option("--older-than", type=_Age(), help="Given up so long ago, as 90s, 15m, 12h or 7d."),
        click.option("--message-id", default="", metavar="ID", help="With this message id."),
        click.option("--reason", default="", metavar="REASON", help="Given up for this reason."),
    ):
        decorated = option(decorated)
    return decorated


@click.group(cls=Group)
def dead() -> None:
    """
    Look at the messages that were given up, in QUEUE.dead, and let them go.

    Looking takes messages and puts them back where they were; the broker flags them as redelivered.
    """
    quiet()


@dead.command("declare")
@_QUEUE
@settings("amqp")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["classic", "quorum"]),
    default="classic",
    show_default=True,
    help="Quorum survives the loss of a node.",
)
def declare_command(config: Settings, *, queue: str, kind: QueueType) -> None:
    """
    Declare QUEUE.dead, durable.
    """
    config.require("amqp")
    deaths.declare(config.amqp, queue, kind=kind)
    click.echo(f"{names.dead(queue)} is there")


@dead.command("list")
@_QUEUE
@settings("amqp")
@_selecting
@_AS_JSON
def list_command(config: Settings, *, queue: str, selection: Selection, as_json: bool) -> None:
    """
    List the messages that were given up, oldest first; 100 of them, unless --limit says more.
    """
    config.require("amqp")
    if selection.limit is None:
        selection = attrs.evolve(selection, limit=100)
    with closing(deaths.look(config.amqp, queue, selection)) as found:
        letters = [letter for letter, _ in found]
    if as_json:
        print_json([told_of(letter) for letter in letters])
    elif letters:
        print_table(letters)
        if len(letters) == selection.limit and not selection.filters:
            click.echo(f"the first {selection.limit}; --limit shows more", err=True)
    else:
        click.echo(f"{names.dead(queue)} holds {'nothing that fits' if selection.filters else 'nothing'}")


@dead.command("show")
@_QUEUE
@settings("amqp", "protobuf_descriptors", "protobuf_types")
@click.option("--message-id", default="", metavar="ID", help="The first with this message id.")
@click.option("--position", type=click.IntRange(1), metavar="N", help="The one at this place of the list.")
@click.option(
    "--as", "way", type=click.Choice(WAYS), default="auto", show_default=True, help="How to show the body."
)
@click.option(
    "--characters",
    type=click.IntRange(1, 10_000_000),
    default=CHARACTERS_MAX,
    show_default=True,
    metavar="N",
    help="Of the body at the most.",
)
@_AS_JSON
def show_command(
    config: Settings,
    *,
    queue: str,
    message_id: str,
    position: int | None,
    way: str,
    characters: int,
    as_json: bool,
) -> None:
    """
    Show one message that was given up: its deaths, properties, headers and body.

    Without an option the oldest. What a terminal would obey is escaped.
    """
    config.require("amqp")
    protobuf = Descriptors(Path(config.protobuf_descriptors)) if config.protobuf_descriptors else None
    selection = Selection(message_id=message_id, position=position, limit=1)
    with closing(deaths.look(config.amqp, queue, selection)) as found:
        letter, delivery = next(found, (None, None))
        body = b"" if delivery is None else delivery.body
    if letter is None:
        raise DedupError(f"{names.dead(queue)} holds no such message")
    shown = show(
        body,
        way=way,
        content_type=letter.text("content_type"),
        content_encoding=letter.text("content_encoding"),
        characters_max=characters,
        protobuf=protobuf,
        message_type=_type_of(config.protobuf_types, queue, letter),
    )
    if as_json:
        about = {"as": shown.way, "notes": list(shown.notes), "text": shown.text}
        print_json({**told_of(letter), **all_of(letter), "body": about})
    else:
        print_letter(letter, shown)


@dead.command("release")
@_QUEUE
@settings("amqp")
@_selecting
@click.option("--all", "everything", is_flag=True, help="All of them.")
@_AS_JSON
def release_command(
    config: Settings, *, queue: str, selection: Selection, everything: bool, as_json: bool
) -> None:
    """
    Publish messages back to QUEUE, the queue they died in, and take them out of QUEUE.dead.

    Their deaths are forgotten: each begins anew. Killed in between, run it again: nothing is lost, and what may have been
    released before carries the header dedup-possible-duplicate.
    """
    config.require("amqp")
    _require_meaning(selection, everything=everything)
    with _progress(config.amqp, queue, selection) as progress:
        done = deaths.release(config.amqp, queue, selection, progress=progress)
    if as_json:
        print_json(attrs.asdict(done))
    else:
        click.echo(f"{done.released} released to {queue}")
        if done.marked:
            click.echo(f"{done.marked} of them marked: a run before had them in its hands")
    if done.kept:
        click.echo(f"error: {done.kept} stay in {names.dead(queue)}: {printable(done.reason)}", err=True)
        sys.exit(FAILED)


@dead.command("purge")
@_QUEUE
@settings("amqp")
@_selecting
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--yes", is_flag=True, help="Delete them; without it they are counted.")
@_AS_JSON
def purge_command(
    config: Settings, *, queue: str, selection: Selection, everything: bool, yes: bool, as_json: bool
) -> None:
    """
    Delete messages that were given up, for good.
    """
    config.require("amqp")
    _require_meaning(selection, everything=everything)
    if yes:
        with _progress(config.amqp, queue, selection) as progress:
            count = deaths.purge(config.amqp, queue, selection, progress)
    elif selection.filters:
        with closing(deaths.look(config.amqp, queue, selection)) as found:
            count = sum(1 for _ in found)
    else:
        waiting = deaths.count(config.amqp, queue)
        count = min(waiting, selection.limit or waiting)
    if as_json:
        print_json({"deleted": count if yes else 0, "meant": count})
    else:
        click.echo(f"{count} deleted" if yes else f"{count} would be deleted: give --yes")


def _require_meaning(selection: Selection, *, everything: bool) -> None:
    if everything == (selection != Selection()):
        raise ConfigError(
            "say which messages are meant: --reason, --older-than, --message-id, --limit, or else --all"
        )


@contextmanager
def _progress(amqp: str, queue: str, selection: Selection) -> Iterator[Callable[[int], None]]:
    """
    Show on a terminal how far it is, as far as that is known before.
    """
    length = deaths.count(amqp, queue) if sys.stderr.isatty() and not selection.filters else None
    if length is None:
        yield lambda _: None
        return
    with click.progressbar(length=min(length, selection.limit or length), file=sys.stderr) as bar:
        yield bar.update


def _type_of(rules: tuple[str, ...], queue: str, letter: Letter) -> str | None:
    oldest = letter.history.deaths[-1] if letter.history.deaths else None
    exchange = oldest.exchange if oldest else letter.exchange
    return choose([Choice.parse(rule) for rule in rules], queue, exchange, letter.headers)
