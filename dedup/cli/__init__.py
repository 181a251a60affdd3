"""The command line: ``dedup shim``, ``dedup queue``, ``dedup audit``, ``dedup demo``."""

from __future__ import annotations

import sys
from typing import Final

#: What the extra "shim" brings.
_EXTRA: Final = frozenset({"click", "prometheus_client", "structlog"})


def main() -> None:
    """
    Run the command that the arguments name; the entry point of the program ``dedup``.
    """
    try:
        from dedup.cli.commands import dedup  # noqa: PLC0415 the SDK alone does not bring click
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"error: {error.name} is not installed; the command line needs: pip install 'dedup[shim]'")
    dedup(prog_name="dedup")
