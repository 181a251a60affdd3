"""``dedup retry`` and ``dedup retry guide``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import attrs
import click

from dedup.amqp091.administration import administration
from dedup.cli.group import Group, settings
from dedup.config import Settings
from dedup.core.obituaries import severity_rules
from dedup.core.steps import Report
from dedup.deadletters.reporting import Obituaries
from dedup.deadletters.webhook import Webhook
from dedup.errors import ConfigError
from dedup.ports import ScheduleFacts
from dedup.retry.guide import Guide, guide
from dedup.retry.service import Retry
from dedup.retry.settings import RetryTable, read_table
from dedup.service.logs import configure, quiet

#: How long news of obituaries may still take when the service has ended; seconds.
_WEBHOOK_CLOSE_S: Final = 5.0


class _Delays(click.ParamType):  # type: ignore[type-arg]
    """
    Seconds, separated by commas.
    """

    name = "SECONDS,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        """
        Return the numbers.
        """
        try:
            return [float(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of seconds, such as 10,100,1000", param, ctx)


@click.group(cls=Group, invoke_without_command=True)
@settings(
    "amqp",
    "redis",
    "management",
    "redis_prefix",
    "listen",
    "log_format",
    "log_level",
    "obituary_webhook",
    "obituary_severity",
    "retry",
)
@click.option(
    "--dead-letter-queue",
    "dead_letter_queues",
    metavar="NAME",
    multiple=True,
    help="A dead-letter queue to serve. Repeat it for several.",
)
@click.option(
    "--delays-s",
    type=_Delays(),
    help="Seconds before each retry; the last one serves for all later ones.  [default: 10,100,1000]",
)
@click.option(
    "--attempts-max",
    type=int,
    metavar="NUMBER",
    help="Retries until the obituary; by default one for each delay.",
)
@click.option(
    "--doubling",
    is_flag=True,
    default=None,
    help="Double the delay from the first to the last of them, with jitter.",
)
@click.option(
    "--rate-max",
    type=int,
    metavar="NUMBER",
    help="Messages sent back in a second at the most.  [default: 500]",
)
@click.option(
    "--messages-max",
    type=int,
    metavar="NUMBER",
    help="Messages in the schedule at the most.  [default: 1000000]",
)
@click.option(
    "--bytes-max",
    type=int,
    metavar="NUMBER",
    help="Bytes in the schedule at the most.  [default: 1073741824]",
)
@click.option(
    "--sync",
    type=click.Choice(["server", "disk", "replica"]),
    help="What the acknowledgement of a dead letter waits for: Redis, its disk, or a replica.  [default: server]",
)
@click.pass_context
def retry(context: click.Context, /, config: Settings, **flags: Any) -> None:
    """
    Send dead letters back to the queue they died in, after a delay.

    Runs until SIGTERM or Ctrl-C. Several of them share the work. A message that is out of attempts goes to QUEUE.dead. Nothing but
    a dead-letter exchange is needed in front: "dedup retry guide QUEUE" shows how a queue comes to have one.
    """
    if context.invoked_subcommand is not None:
        return
    from dedup.service.workers import Service  # noqa: PLC0415 the guide needs no metrics

    table = read_table(config.retry, flags)
    configure(config.log_format, config.log_level)
    queues = attrs.evolve(config, queues=table.dead_letter_queues, registry="off")
    webhooks: dict[str, Webhook] = {}
    try:
        Service(queues, retry_maker(config, table, webhooks)).run()
    finally:
        for webhook in webhooks.values():
            webhook.close(_WEBHOOK_CLOSE_S)


def retry_maker(config: Settings, table: RetryTable, webhooks: dict[str, Webhook]) -> Callable[..., Retry]:
    """
    Return who makes the service of one dead-letter queue, as a worker runs it; one that is made again keeps its webhook.

    Args:
        webhooks: Dead-letter queue -> where its obituaries go; whoever calls closes them in the end.
    """

    def make(
        queue: str,
        report: Callable[[Report | ScheduleFacts], None],
        notice: Callable[[str, dict[str, Any]], None],
    ) -> Retry:
        if config.obituary_webhook and queue not in webhooks:
            webhooks[queue] = Webhook(config.obituary_webhook, notice=notice)
        rules = severity_rules(config.obituary_severity)
        obituaries = Obituaries(rules, notice=notice, webhook=webhooks.get(queue))
        return Retry(
            table.service(queue, amqp=config.amqp, redis=config.redis, prefix=config.redis_prefix),
            notice=notice,
            obituary=lambda obituary: (obituaries.report(obituary), None)[1],
            facts=report,
        )

    return make


@retry.command("guide")
@click.argument("queue")
@settings("amqp", "management")
@click.option(
    "--dead-letter-queue",
    default="",
    metavar="NAME",
    help="Where its dead letters are to go; by default QUEUE.dlq.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
def guide_command(config: Settings, *, queue: str, dead_letter_queue: str, as_json: bool) -> None:
    """
    Print what QUEUE needs for its dead letters to be retried.

    Changes nothing. A policy is proposed and not another declaration: consumers and publishers go on as they are.
    """
    quiet()
    config.require("amqp")
    management = config.management_api()
    if management is None:
        raise ConfigError("the guide reads arguments and policies: management must not be off")
    with administration(config.amqp) as broker:
        vhost, version = broker.vhost, broker.version
    found = guide(management, vhost, queue, dead_letter_queue=dead_letter_queue, version=version)
    if as_json:
        click.echo(json.dumps(attrs.asdict(found), indent=2))
    else:
        _print(found)


def _print(found: Guide) -> None:
    click.echo(
        f"{found.queue} is a {found.type} queue; its dead letters are to go to {found.dead_letter_queue}"
    )
    for line in found.found:
        click.echo(f"in force: {line}")
    for number, step in enumerate(found.steps, 1):
        click.echo(f"\n{number}. {step.why}")
        if step.command:
            click.echo(f"   {step.command}")
    if found.native:
        click.echo("\nInstead:")
        for line in found.native:
            click.echo(f"  {line}")
