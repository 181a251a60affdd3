"""The commands about outboxes: send what is in them, look at them, decide about what failed."""

from __future__ import annotations

import datetime as dt
import json
import logging
import random
import sys
import threading
from contextlib import closing
from typing import Any, Final

import attrs
import click
import structlog

from dedup.cli.group import FAILED, Group, settings
from dedup.config import Settings
from dedup.core.backoff import delay_s
from dedup.errors import ConfigError, OutboxInUseError, UnavailableError
from dedup.outbox import repair
from dedup.outbox.formats import TITLES
from dedup.outbox.opening import holder, open_to_look, open_to_send
from dedup.outbox.relay import Relay, RelaySettings, Sent
from dedup.protocols import wire_of
from dedup.service.logs import configure, quiet
from dedup.service.signals import ended_by_signals

#: Longest pause before an outbox or the broker is tried again, or a lock; seconds.
_PAUSE_S_MAX: Final = 30.0
_STANDBY_S: Final = 1.0
_SHOWN_MAX: Final = 100

_DATABASE: Final = click.option(
    "--database",
    required=True,
    envvar="DEDUP_OUTBOX_DATABASE",
    metavar="URL|FILE",
    help="postgresql://..., or an SQLite file; also DEDUP_OUTBOX_DATABASE.",
)
_AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
_USER: Final = click.option(
    "--user-id", metavar="NAME", help="The broker's user, if publisher ids are bound to users."
)
_REGISTRATION: Final = click.option(
    "--registration",
    type=click.Choice(["broker", "local"]),
    default="broker",
    show_default=True,
    help="broker: hold the publisher id, and get numbers from a registry; local: numbers from the clock.",
)


@click.group(cls=Group)
def outbox() -> None:
    """
    Send what is in an outbox, look at it, and decide about what failed.

    An outbox is a publisher's own file (Publisher(outbox=...)) or the tables in an application's database (dedup.Outbox).
    """


@outbox.command()
@settings("amqp", "window_size", "log_format", "log_level")
@_DATABASE
@click.option(
    "--publisher-id",
    required=True,
    envvar="DEDUP_OUTBOX_PUBLISHER_ID",
    metavar="ID",
    help="Whose messages they are; stays the same for ever. Also DEDUP_OUTBOX_PUBLISHER_ID.",
)
@_REGISTRATION
@_USER
def run(config: Settings, database: str, publisher_id: str, registration: str, user_id: str | None) -> None:
    """
    Send what applications enqueue, as soon as it is committed, until SIGTERM or Ctrl-C.

    It speaks the protocol that the outbox was made for. Several relays of one outbox are fine: one sends, the others wait to take over.
    """
    config.require("amqp")
    configure(config.log_format, config.log_level)
    stopping = threading.Event()
    wanted = RelaySettings(window_size=config.window_size, register=registration == "broker", user_id=user_id)
    with ended_by_signals(lambda _: stopping.set()):
        _run(config.amqp, database, publisher_id, wanted, stopping)


def _run(
    amqp: str, database: str, publisher_id: str, wanted: RelaySettings, stopping: threading.Event
) -> None:
    log = structlog.get_logger("dedup")
    failures, waits = 0, False

    def progress(sent: Sent) -> None:
        nonlocal failures
        failures = 0
        log.debug("dedup.outbox_sent", confirmed=sent.confirmed, failed=sent.failed)

    while not stopping.is_set():
        try:
            with closing(open_to_send(database)) as store:
                wire = wire_of(store.protocol)
                relay = Relay(store, wire, amqp, publisher_id, wanted, progress=progress)
                log.info(
                    "dedup.outbox_open",
                    outbox=store.name,
                    publisher_id=publisher_id,
                    protocol=wire.name,
                )
                waits = False
                relay.run(stopping.is_set)
            log.info("dedup.outbox_closed", confirmed=relay.sent.confirmed, failed=relay.sent.failed)
        except OutboxInUseError as error:
            if not waits:
                log.info("dedup.outbox_waiting", reason=str(error))
            waits = True
            stopping.wait(_STANDBY_S)
        except UnavailableError as error:
            pause_s = delay_s(failures, random.random(), max_s=_PAUSE_S_MAX)
            failures += 1
            log.warning("dedup.unavailable", reason=str(error), retry_in_s=round(pause_s, 1))
            stopping.wait(pause_s)


@outbox.command()
@settings("amqp", "window_size")
@_DATABASE
@click.option("--publisher-id", metavar="ID", help="Needed where nobody has sent from this outbox yet.")
@_REGISTRATION
@_USER
@_AS_JSON
def flush(
    config: Settings,
    database: str,
    publisher_id: str | None,
    registration: str,
    user_id: str | None,
    *,
    as_json: bool,
) -> None:
    """
    Send everything that is in an outbox, over the protocol it was made for, then end.

    Exits with 1 when messages failed. Refused while a publisher or a relay works on the outbox.
    """
    quiet()
    # Each failure is counted here, and told by "show".
    logging.getLogger("dedup.publisher").setLevel(logging.ERROR)
    config.require("amqp")
    with closing(open_to_send(database)) as store:
        totals = store.totals()
        publisher_id = publisher_id or totals.publisher_id
        if publisher_id is None:
            raise ConfigError("nobody has sent from this outbox yet: give --publisher-id")
        wanted = RelaySettings(
            window_size=config.window_size,
            register=registration == "broker",
            user_id=user_id,
            until_empty=True,
        )
        bar: Any = click.progressbar(
            length=totals.numbered + totals.unnumbered, label="sending", file=sys.stderr
        )
        with bar:
            relay = Relay(
                store,
                wire_of(totals.protocol),
                config.amqp,
                publisher_id,
                wanted,
                progress=lambda sent: bar.update(sent.confirmed + sent.failed - bar.pos),
            )
            relay.run(lambda: False)
    if as_json:
        click.echo(json.dumps({"confirmed": relay.sent.confirmed, "failed": relay.sent.failed}, indent=2))
    else:
        click.echo(f"{relay.sent.confirmed} sent, {relay.sent.failed} failed")
    if relay.sent.failed:
        click.get_current_context().exit(FAILED)


@outbox.command()
@_DATABASE
@_AS_JSON
def show(database: str, *, as_json: bool) -> None:
    """
    Show how much is in an outbox, who works on it, and what failed, the oldest 100.
    """
    quiet()
    with closing(open_to_look(database)) as store:
        totals, failed = store.totals(), store.failed(_SHOWN_MAX)
        pid = holder(database, store)
        name = store.name
    if as_json:
        told = {"outbox": name, "holder": pid, **attrs.asdict(totals)}
        click.echo(json.dumps({**told, "failures": [attrs.asdict(row) for row in failed]}, indent=2))
        return
    click.echo(f"outbox       {name}")
    click.echo(f"protocol     {TITLES[totals.protocol]}")
    click.echo(f"publisher id {totals.publisher_id or 'none yet'}")
    click.echo(f"held by      {f'process {pid}' if pid else 'nobody'}")
    click.echo(f"to be sent   {totals.unnumbered + totals.numbered}{_since(totals.oldest_at)}")
    click.echo(f"failed       {totals.failed}")
    click.echo(f"bytes        {totals.bytes}")
    for row in failed:
        place = f"{row.exchange or 'default exchange'} {row.routing_key}"
        click.echo(f"\n{row.id}: {row.bytes} bytes for {_printable(place)}\n  {_printable(row.reason)}")


def _since(unix_s: float | None) -> str:
    if unix_s is None:
        return ""
    return f", the oldest since {dt.datetime.fromtimestamp(unix_s, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _printable(text: object) -> str:
    """
    Return text that somebody else wrote, fit for a terminal.
    """
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(text)
    )


def _chosen(ids: tuple[int, ...], *, every: bool) -> tuple[int, ...] | None:
    if bool(ids) == every:
        raise ConfigError("give row ids, as 'dedup outbox show' prints them, or --all")
    return None if every else ids


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=int)
@settings("window_size")
@_DATABASE
@click.option("--all", "every", is_flag=True, help="Every message that failed.")
@click.option("--as-new", is_flag=True, help="New numbers where the old ones are too old; may duplicate.")
@_AS_JSON
def retry(
    config: Settings, ids: tuple[int, ...], database: str, *, every: bool, as_new: bool, as_json: bool
) -> None:
    """
    Let messages that failed be sent again, when the publisher or relay starts the next time, or by flush.

    Exits with 1 when some are too old to be told from duplicates; they stay as they are.
    """
    quiet()
    chosen = _chosen(ids, every=every)
    with closing(open_to_send(database)) as store:
        done = repair.retry(store, chosen, as_new=as_new, window_size=config.window_size)
    if as_json:
        click.echo(json.dumps(attrs.asdict(done), indent=2))
    else:
        click.echo(f"{len(done.reopened)} keep their numbers, {len(done.renumbered)} get new ones")
    if done.refused:
        click.echo(
            f"error: {len(done.refused)} stay as they are: the broker may have them, and their numbers are more than half a "
            "window behind; look whether they arrived, then discard them or retry --as-new",
            err=True,
        )
        click.get_current_context().exit(FAILED)


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=int)
@_DATABASE
@click.option("--all", "every", is_flag=True, help="Every message that failed.")
@_AS_JSON
def discard(ids: tuple[int, ...], database: str, *, every: bool, as_json: bool) -> None:
    """
    Forget messages that failed. They are gone.
    """
    quiet()
    chosen = _chosen(ids, every=every)
    with closing(open_to_send(database)) as store:
        gone = repair.discard(store, chosen)
    click.echo(json.dumps({"discarded": gone}, indent=2) if as_json else f"{len(gone)} discarded")
