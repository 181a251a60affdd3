"""Print messages that were given up: as a table, whole, or as JSON; nothing in them reaches a terminal as it is."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import Any, Final

import click

from dedup.core.deaths import Death
from dedup.deadletters.decoders import CHARACTERS_MAX, Shown, printable
from dedup.deadletters.letters import Letter

#: Headers that are shown as what they mean.
_TOLD: Final = frozenset({"x-death", "dedup-deaths", "dedup-obituary", "dedup-reason"})
#: Characters of a cell of the list.
_CELL_MAX: Final = 64


def _when(unix_ms: int | None) -> str:
    """
    Return a moment for people and JSON; "" when there is none, or none of this calendar.
    """
    if unix_ms is None:
        return ""
    try:
        moment = dt.datetime.fromtimestamp(unix_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{unix_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def told_of(letter: Letter) -> dict[str, Any]:
    """
    Return what the list tells of a message.
    """
    return {
        "position": letter.position,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "deaths": letter.history.count(),
        "given_up_at": _when(letter.at_ms),
        "message_id": letter.text("message_id"),
        "publisher_id": letter.headers.get("dedup-publisher") or letter.text("app_id"),
        "sequence": letter.headers.get("dedup-sequence"),
        "bytes": letter.size,
    }


def print_table(letters: list[Letter]) -> None:
    """
    Print one line for each message.
    """
    columns = ("position", "given_up_at", "reason", "attempts", "deaths", "bytes", "message_id", "publisher_id")  # fmt: skip
    rows = [["#", "GIVEN UP AT", "REASON", "ATTEMPTS", "DEATHS", "BYTES", "MESSAGE ID", "PUBLISHER ID"]]
    for letter in letters:
        told = told_of(letter)
        rows.append(["?" if told[name] is None else _cell(told[name]) for name in columns])
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    """
    Return *value* as one cell of a table, bounded; a message may say anything of itself.
    """
    text = _line(str(value))
    return (text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 3]}...") or "-"


def _line(text: str) -> str:
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def all_of(letter: Letter) -> dict[str, Any]:
    """
    Return what is told of one message beside the list's.
    """
    return {
        "exchange": letter.exchange,
        "routing_key": letter.routing_key,
        "redelivered": letter.redelivered,
        "history": [_death(death) for death in letter.history.deaths],
        "properties": _plain(letter.properties),
        "headers": _plain({name: value for name, value in letter.headers.items() if name not in _TOLD}),
        "faults": [*letter.history.faults, *([letter.fault] if letter.fault else [])],
    }


def _death(death: Death) -> dict[str, Any]:
    return {
        "queue": death.queue,
        "reason": death.reason,
        "count": death.count,
        "first": _when(death.first_ms),
        "last": _when(death.last_ms),
        "exchange": death.exchange,
        "routing_keys": list(death.routing_keys),
        "original_expiration_ms": death.original_expiration_ms,
    }


def _plain(value: Any) -> Any:
    """
    Return what JSON can hold in the place of *value*.
    """
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return value if isinstance(value, str | int | bool | None) else str(value)


def print_letter(letter: Letter, shown: Shown) -> None:
    """
    Print all there is to one message, its body last.
    """
    told, more = told_of(letter), all_of(letter)
    for name in ("reason", "attempts", "given_up_at", "message_id", "publisher_id", "sequence", "bytes"):
        if told[name] not in (None, ""):
            _print_line(name.replace("_", " "), told[name])
    for death in letter.history.deaths:
        way = f"exchange {death.exchange!r}, routing keys {', '.join(death.routing_keys)!r}"
        since = " to ".join(dict.fromkeys(filter(None, (_when(death.first_ms), _when(death.last_ms)))))
        _print_line("died", f"in {death.queue}: {death.reason}, {death.count} times, {since}; {way}")
    for name, value in more["properties"].items():
        if name not in ("message_id", "app_id"):
            _print_line(name.replace("_", " "), value)
    for name, value in more["headers"].items():
        _print_line(f"header {name}", value if isinstance(value, str) else json.dumps(value))
    for fault in more["faults"]:
        _print_line("fault", fault)
    _print_line("body", "; ".join((shown.way, *shown.notes)))
    click.echo(shown.text)


def _print_line(name: str, value: object) -> None:
    text = _line(str(value))
    click.echo(f"{_line(name)}: {text if len(text) <= CHARACTERS_MAX else text[:CHARACTERS_MAX] + '...'}")


def print_json(value: object) -> None:
    """
    Print *value*, in whatever of JSON comes closest to it.
    """
    # ASCII only: nothing in it is obeyed by a terminal.
    json.dump(value, sys.stdout, indent=2, default=str)
    click.echo()
