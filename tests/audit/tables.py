"""Take tables as plain, sorted tuples, the same from either engine."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from dedup.audit.schema import Table
from dedup.core.event_log import Kind


def rows(frame: DataFrame, table: Table) -> list[tuple[Any, ...]]:
    """
    Return the rows of *frame*: timestamps as microseconds and days as text, which no time zone of this machine can shift.
    """
    assert [(field.name, field.dataType) for field in frame.schema] == [
        (field.name, field.dataType) for field in table.schema
    ]
    shown = {Kind.TIMESTAMP: "unix_micros({})", Kind.DATE: "string({})"}
    plain = frame.selectExpr(*(shown.get(c.kind, "{}").format(f"`{c.name}`") for c in table.columns))
    return in_order(tuple(row) for row in plain.collect())


def in_order(found: Any) -> list[tuple[Any, ...]]:
    """
    Sort tuples that may hold None.
    """
    return sorted(found, key=lambda row: [(value is not None, value) for value in row])


def as_dicts(found: list[tuple[Any, ...]], table: Table) -> list[dict[str, Any]]:
    """
    Return rows with the names of their columns.
    """
    return [dict(zip((column.name for column in table.columns), row, strict=True)) for row in found]
