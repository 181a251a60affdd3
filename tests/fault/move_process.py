"""
A move as a process of its own, which kills itself at a named step if it is told to.

Its settings: amqp, redis, management or null, to_amqp and to_management or null, source, target; kill [when, effect, n] or null; the others as those of a move.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from dedup.amqp091.management import Management
from dedup.core import steps
from dedup.core.filters import read_filter
from dedup.move import Move, MoveSettings
from dedup.service.signals import ended_by_signals
from tests.fault.child import Child, Tell, trap_of


def run(settings: dict[str, Any], tell: Tell) -> None:
    """Run one move as *settings* say, until it is done or SIGTERM."""
    trap = trap_of(settings)

    def step(when: str, effect: steps.Effect) -> None:
        trap.step(when, type(effect).__name__)

    def report(report: steps.Report) -> None:
        verdicts = {verdict.value: count for verdict, count in report.verdicts.items()}
        tell("report", {"verdicts": verdicts, "forwarded": report.forwarded, "marked": report.marked})

    management, to_management = settings.get("management"), settings.get("to_management")
    to_amqp = settings.get("to_amqp") or settings["amqp"]
    move = Move(
        MoveSettings(
            settings["amqp"],
            settings["redis"],
            settings["source"],
            settings["target"],
            read_filter(settings.get("filter", ())),
            batch_max=settings.get("batch_max", 4),
            to_amqp=settings.get("to_amqp", ""),
            **settings.get("move", {}),
        ),
        management=Management(management, amqp=settings["amqp"]) if management else None,
        to_management=Management(to_management, amqp=to_amqp) if to_management else None,
        report=report,
        notice=tell,
        step=step,
    )
    with ended_by_signals(lambda _: move.stop(), (signal.SIGTERM,)):
        tell("started", {})
        move.run()
    moved = move.moved
    tell(
        "done",
        {
            "why": moved.done.value if moved.done else "",
            "moved": moved.moved,
            "marked": moved.marked,
            "trashed": moved.trashed,
            "recognised": moved.recognised,
            "skipped": moved.skipped,
        },
    )


class MoveProcess(Child):
    """A move in a process of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(run, settings)

    def memory_bytes(self) -> int:
        """Return how much memory it has."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
