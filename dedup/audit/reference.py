"""Write the reference of the tables from their schemas."""

from __future__ import annotations

from dedup.audit.checks import NAMES, THRESHOLDS
from dedup.audit.schema import EVENTS, RESULTS, STATE, Table
from dedup.core.event_log import Kind

_TYPES = {Kind.LONG: "long", Kind.TIMESTAMP: "timestamp, µs UTC"}

_HEAD = """# Tables of the audit

Made by `python -m dedup.audit tables`: what the jobs read, what they keep and what they answer. [Audit the
shim](../howto/audit.md) tells how to run them, and what the numbers cannot see. Columns in bold name a row.

"""


def markdown() -> str:
    """
    Return the page that describes every table, column and check.
    """
    groups = (("What is read", (EVENTS,)), ("What is kept", STATE), ("What is answered", RESULTS))
    seen: set[str] = set()
    parts = [_HEAD]
    for title, tables in groups:
        parts.append(f"## {title}\n\n")
        parts += [_section(table) for table in tables if table.name not in seen]
        seen.update(table.name for table in tables)
    parts.append("## What is checked\n\n| check | passes up to | what it counts |\n|---|---|---|\n")
    for name, about in NAMES.items():
        limit = f"{THRESHOLDS[name]:g}" if name in THRESHOLDS else "for information"
        parts.append(f"| `{name}` | {limit} | {about} |\n")
    return "".join(parts)


def _section(table: Table) -> str:
    """
    Return the section of one table.
    """
    lines = [f"### {table.name}", "", table.about, "", "| column | type | |", "|---|---|---|"]
    keys = set(table.key_names)
    for column in table.columns:
        shown = f"**`{column.name}`**" if column.name in keys else f"`{column.name}`"
        kind = _TYPES.get(column.kind, column.kind.value) + (", nullable" if column.nullable else "")
        lines.append(f"| {shown} | {kind} | {column.about} |")
    return "\n".join([*lines, "", ""])
