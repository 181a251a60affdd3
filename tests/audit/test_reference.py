"""The reference of the tables is that of the code."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from dedup.audit.command import parser
from dedup.audit.reference import markdown
from dedup.audit.schema import EVENTS, RESULTS, STATE
from dedup.core.window import Verdict

_ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_the_code_makes() -> None:
    """``python -m dedup.audit tables > docs/reference/audit-tables.md`` was run after the last change."""
    assert (_ROOT / "docs/reference/audit-tables.md").read_text("utf-8") == markdown()


def test_every_option_is_described() -> None:
    """The command line's page has a section for each command, with its arguments and no others."""
    page = (_ROOT / "docs/reference/cli.md").read_text("utf-8")
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        section = re.search(rf"^## dedup audit {name}\b(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        assert section, name
        described = set(re.findall(r"^- `([\w-]+)", section[1], re.MULTILINE))
        options = {word for action in command._actions for word in action.option_strings or [action.metavar]}
        assert described == options - {"-h", "--help"}, name


def test_every_column_says_what_it_is() -> None:
    """Each table has a key, no column is named twice, and each has a sentence."""
    for table in (EVENTS, *STATE, *RESULTS):
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names), table.name
        assert 0 < table.keys <= len(names), table.name
        assert all(column.about.endswith(".") for column in table.columns), table.name


def test_the_verdicts_are_those_of_the_shim() -> None:
    """A verdict that is added to the shim must be added to the audit."""
    counted = {column.name for table in STATE for column in table.columns}
    named = {verdict.value.replace("-", "_") for verdict in Verdict} - {"new", "duplicate"}
    assert named | {"duplicates"} <= counted
