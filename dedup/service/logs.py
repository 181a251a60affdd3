"""Set the log up: events with fields, for people on a terminal and in JSON elsewhere, never with a password."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Final

import structlog

from dedup.core.urls import mask_url

#: Their failures are translated and logged once; what they say beside it does not help.
_CHATTY: Final = ("pika", "redis")
#: Without its scheme, which has no secret: to look for the scheme's begin in a long word would take its square.
_URL: Final = re.compile(r"://\S*[^\s,;:]")


def configure(log_format: str = "auto", level: str = "info") -> None:
    """
    Send the events of structlog and the records of logging to stderr, in one format.

    Args:
        log_format: "console", "json", or "auto": console on a terminal.
        level: The least important one that is shown; with "debug" the drivers are heard too.
    """
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    colors = sys.stderr.isatty()
    if log_format == "console" or (log_format == "auto" and colors):
        # A traceback as plain text: structlog's own, where "rich" is installed, shows local variables.
        console = structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback
        )
        rendering: list[Any] = [mask, console]
    else:
        rendering = [structlog.processors.format_exc_info, mask, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet(heard=level == "debug")


def quiet(*, heard: bool = False) -> None:
    """
    Silence the drivers, or let them be *heard*.
    """
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.INFO if heard else logging.CRITICAL)


def mask(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """
    Take passwords out of a record.
    """
    return {key: mask_text(value) if isinstance(value, str) else value for key, value in event.items()}


def mask_text(text: str) -> str:
    """
    Take passwords out of the URLs in *text*, and leave everything else.
    """
    return _URL.sub(lambda found: mask_url(found[0]), text)
