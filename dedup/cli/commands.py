"""The commands: wire settings to the service and to what surrounds a guarded queue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import attrs
import click

from dedup import __version__
from dedup.amqp091.administration import QueueType, TargetType
from dedup.amqp091.facts import Binding
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.topology import Listed, guard, guarded, unguard
from dedup.cli.group import Group, settings
from dedup.config import DEAD_LETTER_FIELDS, FIELDS, MOVE_FIELDS, Settings
from dedup.core import names
from dedup.errors import ConfigError
from dedup.service.logs import configure, quiet
from dedup.store.forget import forget

_TYPES: Final = click.Choice(["classic", "quorum"])
_AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@click.group(
    cls=Group,
    elsewhere={
        "audit": "dedup.cli.audit:audit",
        "dead": "dedup.cli.dead:dead",
        "demo": "dedup.demo:command",
        "move": "dedup.cli.move:move",
        "outbox": "dedup.cli.outbox:outbox",
        "registry": "dedup.cli.registry:registry",
        "retry": "dedup.cli.retry:retry",
        "doctor": "dedup.cli.doctor:doctor",
        "publishers": "dedup.cli.registry:publishers",
    },
)
@click.version_option(__version__, prog_name="dedup", message="%(prog)s %(version)s")
def dedup() -> None:
    """
    De-duplicate what publishers send again, in front of a RabbitMQ queue.

    Exit codes: 0 fine, 1 failed, 2 asked for what cannot be.
    """


@dedup.command()
@settings(*(name for name in FIELDS if name not in (*DEAD_LETTER_FIELDS, *MOVE_FIELDS)))
def shim(config: Settings) -> None:
    """
    Forward guarded queues, each message once.

    Runs until SIGTERM or Ctrl-C, which lets the batch finish; a second one ends it at once. Several
    shims of one queue are fine: one forwards, the others take over within about a second.

    Every flag is also a setting of dedup.toml and an environment variable: --window-size, window_size
    = 8192, DEDUP_WINDOW_SIZE. Flags go before the environment, which goes before the file.
    """
    from dedup.service.workers import Service  # noqa: PLC0415 the other commands need no metrics

    configure(config.log_format, config.log_level)
    Service(config).run()


@dedup.group(cls=Group)
def queue() -> None:
    """
    Guard queues: build, take down and list what surrounds them.
    """
    quiet()


@queue.command("guard")
@click.argument("name")
@settings("amqp", "management")
@click.option(
    "--declare",
    type=click.Choice(["classic", "quorum", "stream"]),
    help="Declare the queue itself too, durable, of this type.",
)
@click.option(
    "--type",
    "kind",
    type=_TYPES,
    default="classic",
    show_default=True,
    help="Type of ingress and quarantine; quorum rules out exact forwarding.",
)
@click.option(
    "--bindings",
    type=click.Choice(["leave", "copy", "move"]),
    default="leave",
    show_default=True,
    help="What to do about the queue's bindings to exchanges.",
)
@_AS_JSON
def guard_command(
    config: Settings,
    *,
    name: str,
    declare: TargetType | None,
    kind: QueueType,
    bindings: Literal["leave", "copy", "move"],
    as_json: bool,
) -> None:
    """
    Build what surrounds queue NAME; running it again changes nothing.

    Afterwards publishers publish to NAME.dedup, and a shim forwards to NAME. Bindings to exchanges:

    \b
    leave  they still lead straight to NAME
    copy   they lead to both: each message comes twice until the old ones are removed
    move   each is made at NAME.dedup first and removed from NAME then: nothing is lost, but a
           message published in that moment is in NAME twice; pause publishers if that matters
    """  # noqa: D301 to click a line that is a backspace keeps the lines below it as they are
    config.require("amqp")
    done = guard(
        config.amqp, name, management=config.management_api(), declare=declare, kind=kind, bindings=bindings
    )
    if as_json:
        _print_json(
            {
                "queue": name,
                "ingress": names.ingress(name),
                "quarantine": names.quarantine(name),
                "bindings": _bindings(done.bindings),
                "warnings": done.warnings,
            }
        )
        return
    click.echo(
        f"{name} is guarded: publish to queue {names.ingress(name)}, and run: dedup shim --queue {name}"
    )
    _tell(
        done.bindings,
        f"{'moved' if bindings == 'move' else 'copied'} to {names.ingress(name)}",
        done.warnings,
    )


@queue.command("unguard")
@click.argument("name")
@settings("amqp", "management", "redis", "redis_prefix")
@click.option(
    "--bindings",
    type=click.Choice(["refuse", "move", "drop"]),
    default="refuse",
    show_default=True,
    help="What to do about bindings of the ingress: move them to the queue, drop them, or refuse.",
)
@click.option("--force", is_flag=True, help="Delete messages in ingress and quarantine too.")
@_AS_JSON
def unguard_command(
    config: Settings, *, name: str, bindings: Literal["refuse", "move", "drop"], force: bool, as_json: bool
) -> None:
    """
    Delete what surrounds queue NAME, never NAME itself.

    First stop the publishers, then the shim once NAME.dedup is empty. With --redis what the shim
    remembered is deleted too.
    """
    config.require("amqp")
    done = unguard(config.amqp, name, management=config.management_api(), bindings=bindings, force=force)
    vhost = str(connection_parameters(config.amqp, name="dedup")[0].virtual_host)
    forgotten = bool(config.redis) and forget(
        config.redis, vhost=vhost, queue=name, prefix=config.redis_prefix
    )
    if as_json:
        _print_json(
            {
                "queue": name,
                "bindings": _bindings(done.bindings),
                "state_deleted": forgotten,
                "warnings": done.warnings,
            }
        )
        return
    kept = "" if config.redis else "; what the shim remembered is still in Redis (--redis deletes it)"
    click.echo(f"{name} is guarded no longer{kept}")
    _tell(done.bindings, f"moved to {name}", done.warnings)


@queue.command("list")
@settings("amqp", "management")
@_AS_JSON
def list_command(config: Settings, *, as_json: bool) -> None:
    """
    List the guarded queues of the virtual host, and how full they are.
    """
    config.require("amqp")
    management = config.management_api()
    if management is None:
        raise ConfigError("the list comes from the management API: management must not be off")
    found = guarded(config.amqp, management)
    if as_json:
        _print_json([attrs.asdict(listed) for listed in found])
    elif found:
        _print_table(found)
    else:
        click.echo("no queue is guarded here; guard one with: dedup queue guard NAME")


def _print_table(found: Sequence[Listed]) -> None:
    rows: list[Sequence[object]] = [
        ("QUEUE", "TYPE", "WAITING", "MESSAGES", "QUARANTINED", "SHIM", "FORWARDING")
    ]
    for listed in found:
        forwarding = "exact" if listed.exact_possible else f"confirmed: {listed.reason}"
        counts = ("?" if n is None else n for n in (listed.waiting, listed.messages, listed.quarantined))
        running = "yes" if listed.shim else "no"
        rows.append((listed.queue, listed.target_type or "missing", *counts, running, forwarding))
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo(
            "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _tell(bindings: Iterable[Binding], what: str, warnings: Iterable[str]) -> None:
    for binding in bindings:
        click.echo(f"{what}: exchange {binding.source!r}, routing key {binding.routing_key!r}")
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _bindings(bindings: Iterable[Binding]) -> list[dict[str, Any]]:
    return [attrs.asdict(binding, filter=attrs.filters.exclude("key", "destination")) for binding in bindings]


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    click.echo()
