"""``dedup doctor``: look at everything once, and say what is wrong, each with its fix."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Final

import attrs
import click
from attrs import frozen

from dedup.amqp091.administration import administration
from dedup.amqp091.facts import QueueActivity
from dedup.amqp091.inspection import inspect
from dedup.amqp091.management import Management
from dedup.amqp091.topology import guarded
from dedup.cli.group import settings
from dedup.config import Settings
from dedup.core import names
from dedup.errors import DedupError
from dedup.service.logs import mask_text, quiet
from dedup.store.redis import RedisStore

#: A queue that nobody consumes, and from which nobody has taken a message for so long, is told of; seconds.
IDLE_S: Final = 15 * 60
#: Module -> the extra that brings it, and what it is for.
_EXTRAS: Final = {
    "click": ("shim", "the command line"),
    "structlog": ("shim", "the shim's log"),
    "prometheus_client": ("shim", "metrics"),
    "pyarrow": ("eventlog", "the event log of the audit"),
    "proton": (
        "amqp10",
        "AMQP 1.0 (python-qpid-proton is compiled: Debian, Ubuntu: apt-get install gcc python3-dev)",
    ),
    "pyspark": ("audit", "the audit"),
}
#: Ends of names of queues in which messages may wait for somebody.
_MAY_WAIT: Final = (
    names.audit(""),
    names.quarantine(""),
    names.dead(""),
    names.ledger(""),
    names.moving("", "").ledger,
    names.trash(""),
)


class Level(Enum):
    """
    How bad a finding is.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@frozen
class Finding:
    """
    One thing that was looked at.
    """

    level: Level
    #: What was looked at: "broker", "redis", "queue orders", ...
    about: str
    text: str


@click.command()
@settings("amqp", "redis", "management", "redis_prefix")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
def doctor(config: Settings, *, as_json: bool) -> None:
    """
    Look at broker, Redis, queues and what is installed, and say what is wrong.

    Changes nothing. Exit codes: 0 nothing to mend, 1 warnings only, 2 something that stops or loses messages.
    """
    quiet()
    config.require("amqp")
    findings = list(examine(config))
    if as_json:
        click.echo(
            json.dumps([{**attrs.asdict(found), "level": found.level.value} for found in findings], indent=2)
        )
    else:
        for found in findings:
            click.echo(f"{found.level.value:8}{found.about}: {found.text}")
    levels = {found.level for found in findings}
    sys.exit(2 if Level.ERROR in levels else 1 if Level.WARNING in levels else 0)


def examine(config: Settings) -> Iterator[Finding]:
    """
    Yield what is found; what cannot be reached is a finding too.
    """
    yield from _extras()
    yield from _asked("redis", lambda: _redis(config))
    broker = list(_asked("broker", lambda: _broker(config)))
    yield from broker
    management = config.management_api()
    if management is None:
        yield Finding(Level.NOTE, "management", "off: arguments, policies and consumers are not looked at")
    elif not any(found.level is Level.ERROR for found in broker):
        yield from _asked("management", lambda: _queues(config, management))


def _asked(about: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except DedupError as error:
        yield Finding(Level.ERROR, about, mask_text(str(error)))


def _extras() -> Iterator[Finding]:
    for module, (extra, purpose) in _EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            yield Finding(
                Level.NOTE,
                f"extra {extra}",
                f"{module} is not installed; for {purpose}: pip install 'dedup[{extra}]'",
            )


def _redis(config: Settings) -> Iterator[Finding]:
    if not config.redis:
        yield Finding(Level.NOTE, "redis", "not named (--redis): not looked at")
        return
    store = RedisStore(config.redis, vhost="doctor", queue="doctor", prefix=config.redis_prefix)
    try:
        warnings = store.check()
    finally:
        store.close()
    for warning in warnings:
        yield Finding(Level.WARNING, "redis", warning)
    if not warnings:
        yield Finding(Level.OK, "redis", f"{store.url} answers, and keeps what it is told")


def _broker(config: Settings) -> Iterator[Finding]:
    with administration(config.amqp) as broker:
        version = ".".join(map(str, broker.version))
        yield Finding(Level.OK, "broker", f"RabbitMQ {version}, virtual host {broker.vhost}")


def _queues(config: Settings, management: Management) -> Iterator[Finding]:
    with administration(config.amqp) as broker:
        vhost = broker.vhost
    shims = {listed.queue: listed.shim for listed in guarded(config.amqp, management)}
    for queue, runs in sorted(shims.items()):
        yield from _asked(f"queue {queue}", lambda queue=queue: _guarded(config, management, queue))  # type: ignore[misc]
        if not runs:
            yield Finding(
                Level.ERROR, f"queue {queue}", f"no shim forwards it; run: dedup shim --queue {queue}"
            )
    activities = {activity.name: activity for activity in management.activities(vhost)}
    behind = {name for queue in shims for name in (names.ingress(queue), names.ledger(queue))}
    dead = {target for activity in activities.values() if (target := activity.dead_letters_to)}
    for activity in activities.values():
        if activity.name in dead and activity.name in activities and not activity.consumers:
            yield Finding(
                Level.WARNING,
                f"queue {activity.name}",
                f"dead letters come here, {activity.messages} wait, and nobody takes them; run: dedup retry --dead-letter-queue {activity.name}",
            )
        elif activity.name not in behind and not activity.name.endswith(_MAY_WAIT):
            yield from _idle(activity, management, vhost)
    for target in sorted(dead - activities.keys()):
        yield Finding(
            Level.ERROR,
            f"queue {target}",
            "dead letters are sent here and it does not exist: they are lost; declare it",
        )


def _guarded(config: Settings, management: Management, queue: str) -> Iterator[Finding]:
    seen = inspect(config.amqp, queue, management=management)
    for warning in seen.warnings:
        yield Finding(Level.WARNING, f"queue {queue}", warning)
    if not seen.warnings:
        yield Finding(
            Level.OK,
            f"queue {queue}",
            f"guarded, forwarding {'exact' if seen.exact_possible else 'confirmed'}",
        )


def _idle(activity: QueueActivity, management: Management, vhost: str) -> Iterator[Finding]:
    """
    Tell of a queue that nobody consumes: of an idle classic one the broker knows since when, of others it remembers figures.
    """
    if activity.consumers or not activity.messages:
        return
    about = f"queue {activity.name}"
    idle_s = _seconds_since(activity.idle_since, dt.datetime.now(dt.UTC)) or 0.0
    if idle_s < IDLE_S and management.waits_untaken(vhost, activity.name, IDLE_S):
        idle_s = IDLE_S
    if idle_s >= IDLE_S:
        minutes = f"{idle_s / 60:.0f} minutes at least"
        text = f"no consumer, {activity.messages} messages wait, and nobody has taken one for {minutes}"
        yield Finding(Level.WARNING, about, text)
    else:
        yield Finding(Level.NOTE, about, f"no consumer just now, and {activity.messages} messages wait")


def _seconds_since(moment: str, now: dt.datetime) -> float | None:
    with suppress(ValueError):
        since = dt.datetime.fromisoformat(moment)
        return (now - (since if since.tzinfo else since.replace(tzinfo=dt.UTC))).total_seconds()
    return None
