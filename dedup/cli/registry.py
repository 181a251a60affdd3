"""Serve the registry of publishers without a shim, and look into it."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

import click

from dedup.cli.group import Group, settings
from dedup.config import Settings
from dedup.core.registry import Act, Record, Request
from dedup.service.logs import configure, quiet
from dedup.service.registry import open_registry

_SERVED: Final = (
    "amqp",
    "redis",
    "bind_publisher_to_user",
    "registrations_max",
    "registration_idle_s",
    "redis_prefix",
    "listen",
    "log_format",
    "log_level",
)
_AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@click.command()
@settings(*_SERVED)
def registry(config: Settings) -> None:
    """
    Serve the registry of a virtual host, where publishers get their ranges of numbers.

    Every shim does so too, unless registry = "off". Any number may serve one virtual host. Runs until
    SIGTERM or Ctrl-C.
    """
    from dedup.service.workers import Service  # noqa: PLC0415 the other commands need no metrics

    configure(config.log_format, config.log_level)
    Service(config, shims=False).run()


@click.group(cls=Group)
def publishers() -> None:
    """
    Look up who has registered which publisher id.
    """
    quiet()


@publishers.command("list")
@settings("amqp", "redis", "redis_prefix")
@click.option("--count", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many.")
@_AS_JSON
def list_command(config: Settings, *, count: int, as_json: bool) -> None:
    """
    List the publisher ids heard of last, newest first, and who registered each.

    A registration does not end with its publisher: whether one lives is what the broker knows, as the
    queue dedup.publisher.ID.
    """
    config.require("amqp", "redis")
    known = open_registry(config)
    try:
        found = known.newest(count)
    finally:
        known.close()
    if as_json:
        _print_json([_facts(*one) for one in found])
        return
    for publisher_id, record in found:
        click.echo(f"{publisher_id}  base {record.base}  {_when(record)}  {record.holder}")
    if not found:
        click.echo("no publisher has registered here")


@publishers.command("show")
@click.argument("publisher_id")
@settings("amqp", "redis", "redis_prefix")
@_AS_JSON
def show_command(config: Settings, *, publisher_id: str, as_json: bool) -> None:
    """
    Show who registered PUBLISHER_ID last.
    """
    config.require("amqp", "redis")
    known = open_registry(config)
    try:
        record = known.answer(Request(Act.SHOW, publisher_id, "")).record
    finally:
        known.close()
    if as_json:
        _print_json(_facts(publisher_id, record))
    elif record.base:
        click.echo(f"{publisher_id}  base {record.base}  {_when(record)}  {record.holder}")
    else:
        click.echo(f"{publisher_id} has not registered here")


def _facts(publisher_id: str, record: Record) -> dict[str, Any]:
    return {
        "publisher_id": publisher_id,
        "base": record.base,
        "registered_at": record.at_s,
        "holder": record.holder,
    }


def _when(record: Record) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.at_s)) if record.at_s else "before a loss"


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    click.echo()
