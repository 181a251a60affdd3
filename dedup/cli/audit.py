"""The commands of the audit: passed on as they are, because they also run where there is nothing but Spark."""

from __future__ import annotations

import sys
from typing import Final

import click

from dedup.cli.group import Group
from dedup.errors import ConfigError

_ABOUT: Final = {
    "daily": "Reduce days of the log to state; again gives the same.",
    "stream": "Reduce new files of the log to state, in micro-batches.",
    "report": "Answer: what was lost, what came through twice, how many duplicates.",
    "watch": "Show live rates while a stream job runs.",
    "tables": "Print what each table and column means, as Markdown.",
}


@click.group(
    cls=Group,
    elsewhere={name: f"dedup.cli.eventlog:{name}" for name in ("collect", "compact")},
)
def audit() -> None:
    """
    Measure the duplicates, and check the shim, from the log of arrivals.

    Needs Java 17 or newer, and Spark: pip install 'dedup[audit]'. Exit codes of a report: 0 clean, 1 findings over a
    threshold, 2 the log is incomplete, 3 wrong usage.
    """


def _passed_on(name: str, about: str) -> click.Command:
    """
    Return a command whose arguments, --help among them, are the audit's own business.
    """

    @click.command(
        name,
        help=about,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        try:
            from dedup.audit.command import main  # noqa: PLC0415 (Spark is an extra)
        except ModuleNotFoundError as error:
            if error.name not in ("pyspark", "py4j"):
                raise
            raise ConfigError("the audit needs Spark: pip install 'dedup[audit]'") from error
        sys.exit(main([name, *arguments]))

    return command


for _name, _about in _ABOUT.items():
    audit.add_command(_passed_on(_name, _about))
