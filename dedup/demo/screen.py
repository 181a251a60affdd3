"""Show a run to people: a few lines that stay in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from typing import TextIO

import click

from dedup.demo.outcome import Faults, Outcome, Progress

#: How often a terminal is redrawn, and how often a log gets a line; seconds.
_REDRAW_S = 0.1
_LINE_S = 5.0
_BAR_CELLS = 30


class Screen:
    """
    Watch a run.

    Args:
        stream: A terminal, or anything that takes text.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._due = 0.0
        self._doing = ""
        self._height = 0

    def watch(self, progress: Progress) -> None:
        """
        Show where the run stands, if it is time to.
        """
        now = time.monotonic()
        changed = progress.doing != self._doing
        if self._is_live:
            if now >= self._due or (changed and not progress.oracle.asked):
                self._due = now + _REDRAW_S
                self._redraw(_picture(progress))
        # Faults come thick and fast; what else happens is worth a line of its own.
        elif now >= self._due or (changed and not progress.elapsed_s):
            self._due = now + _LINE_S
            click.echo(_line(progress), file=self._stream)
        self._doing = progress.doing

    def clear(self) -> None:
        """
        Take the picture away.
        """
        if self._is_live:
            self._redraw([])

    def _redraw(self, lines: list[str]) -> None:
        width = os.get_terminal_size(self._stream.fileno()).columns or 80
        up = f"\x1b[{self._height}F" if self._height else ""
        shown = [
            line if len(click.unstyle(line)) < width else click.unstyle(line)[: width - 1] for line in lines
        ]
        self._stream.write(up + "\x1b[J" + "".join(f"{line}\n" for line in shown))
        self._stream.flush()
        self._height = len(shown)


def verdict(outcome: Outcome) -> str:
    """
    Return the table at the end, and the sentence that says what it means.
    """
    account, faults = outcome.account, outcome.faults
    dedup = outcome.wishes.with_dedup
    rows: list[tuple[str, str, bool | None]] = [
        ("messages", f"{account.messages:,}", None),
        ("copies that arrived", f"{account.copies:,}", account.copies > account.messages or None),
        ("forwarded", f"{account.forwarded:,}", None),
        ("dropped", f"{account.dropped:,}", None),
        ("marked", f"{account.marked:,}", None if not account.marked else not outcome.exact),
        ("quarantined", f"{account.quarantined:,}", None if not account.quarantined else False),
        ("lost", f"{account.lost:,}", not account.lost),
        ("duplicates", f"{account.duplicates:,}", not account.duplicates),
        ("out of order", f"{account.disordered:,}", None if not account.disordered else not dedup),
    ]
    lines = [f"  {name:<20}{_colored(number.rjust(10), good)}" for name, number, good in rows]
    if dedup:
        lines.append(f"  {'kills with -9':<20}{faults.kills:>10,}   {faults.kills_in_batch} inside a batch")
    lines += [
        f"  {'losses of confirms':<20}{faults.swallowed:>10,}",
        f"  {'resets of the link':<20}{faults.resets:>10,}",
        f"  {'seconds':<20}{outcome.seconds:>10.1f}   {outcome.servers}, seed {outcome.wishes.seed}",
    ]
    if outcome.audit is not None:
        audit = outcome.audit
        lines.append(
            f"  {'audit':<20}{_colored(audit.verdict.rjust(10), audit.verdict == 'clean')}   "
            f"{audit.events:,} arrivals, {audit.duplicates:,} of them duplicates: {audit.page}"
        )
    if outcome.audit_missing:
        lines.append(f"  {'audit':<20}{'none':>10}   {outcome.audit_missing}")
    lines += [f"  {example}" for example in account.examples if dedup]
    return "\n".join(["", *lines, "", _colored(outcome.sentence, outcome.ok)])


def _picture(progress: Progress) -> list[str]:
    wishes, oracle = progress.wishes, progress.oracle
    asked, delivered = len(oracle.asked), len(oracle.delivered)
    way = (
        "link -> orders.dedup -> shim -> orders"
        if wishes.with_dedup
        else "link -> orders (no shim: the control)"
    )
    done = min(1.0, asked / wishes.messages)
    full = round(done * _BAR_CELLS)
    twice = len(oracle.duplicates)
    return [
        click.style(f"{wishes.publishers} publishers -> {way} -> consumer", bold=True),
        f"  {progress.servers or '...'}, seed {wishes.seed}",
        "",
        f"  published   {asked:>10,}   {'█' * full}{'░' * (_BAR_CELLS - full)} {done:4.0%}  {progress.elapsed_s:.0f} s",
        f"  arrived     {len(oracle.arrived):>10,}   copies, {max(0, len(oracle.arrived) - asked):,} of them too many",
        f"  delivered   {delivered:>10,}   messages, " + _colored(f"{twice:,} twice", not twice),
        f"  faults      {_faults(progress.faults, shims=wishes.with_dedup)}",
        f"  {click.style(progress.doing, dim=True)}",
    ]


def _line(progress: Progress) -> str:
    oracle = progress.oracle
    if not oracle.asked:
        return progress.doing
    return (
        f"{progress.elapsed_s:3.0f} s  published {len(oracle.asked):,}  arrived {len(oracle.arrived):,}  "
        f"delivered {len(oracle.delivered):,}  twice {len(oracle.duplicates):,}  |  "
        f"{_faults(progress.faults, shims=progress.wishes.with_dedup)}"
    )


def _faults(faults: Faults, *, shims: bool) -> str:
    kills = f"{faults.kills} kills -9 ({faults.kills_in_batch} in a batch), " if shims else ""
    return f"{kills}{faults.swallowed} losses of confirms, {faults.resets} resets"


def _colored(text: str, good: bool | None) -> str:
    return text if good is None else click.style(text, fg="green" if good else "red", bold=True)
