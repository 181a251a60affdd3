"""A summary made by hand: every part of a report has something to show."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from dedup.audit.checks import NAMES, THRESHOLDS
from dedup.audit.summary import Cause, Curve, Offender, Standing, Step, Summary

_BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_HOURS = 48
#: A name that would run in a browser, were it not escaped, and one too long for any legend.
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
QUEUES = ("orders", "payments", HOSTILE, "shipping/eu-west/returns/" + "x" * 200)
_VALUES = {"lost": 2, "false_drops": 1, "escaped": 1, "log_holes": 3, "duplicate_share": 0.0312, "late": 41}


def _steps() -> tuple[Step, ...]:
    """Return two days of waves, with a burst of duplicates in one hour."""
    return tuple(
        Step(
            _BEGIN + dt.timedelta(hours=hour),
            queue,
            events := int(40_000 * (1.2 + math.sin(hour / 4 + index)) / (index + 1)),
            int(events * (0.03 + 0.2 * (hour == 30 and index == 1))),
            0,
        )
        for hour in range(_HOURS)
        for index, queue in enumerate(QUEUES)
    )


def _curve(measure: str, queue: str, middle: float, highest: int) -> Curve:
    """Return a curve that reaches one half at *middle*."""
    values = sorted({int(1.25**n) for n in range(100) if 1.25**n < highest})
    points = [(value, value / (value + middle)) for value in values]
    return Curve(measure, queue, 10_000, (*points, (highest, 1.0)))


def _finding(number: int, kind: str, queue: str) -> dict[str, Any]:
    """Return one finding."""
    stored = None if kind == "lost" else 1_767_250_800_000
    return {
        "kind": kind,
        "queue": queue,
        "publisher": HOSTILE,
        "sequence": 2**63 - number,
        "token": 1_767_250_800_000,
        "offset": 10_000 + number,
        "batch": 77 * number,
        "arrived_at": "2026-01-01T12:00:05.123456Z",
        "stored_token": stored,
        "stored_offset": stored and number,
        "copies": 2,
    }


SUMMARY = Summary(
    verdict="convicted",
    events=sum(step.events for step in _steps()),
    begins=_BEGIN,
    ends=_BEGIN + dt.timedelta(hours=_HOURS),
    step_s=3600,
    window_size=8192,
    standings=tuple(
        Standing(queue, 1_000_000, 31_200, 12, 4, 2, 1, 1, 0, 3 * (verdict == "incomplete"), verdict)
        for queue, verdict in zip(QUEUES, ("convicted", "incomplete", "unproven", "clean"), strict=True)
    ),
    queues=7,
    steps=_steps(),
    offenders=tuple(
        Offender(QUEUES[number % 4], f"shop-{number}", cause, 900 // (number + 1), 1800 // (number + 1))
        for number in range(12)
        for cause in ("publisher-retry", "broker-redelivery")
    ),
    causes=tuple(Cause(queue, cause, 500) for queue in QUEUES for cause in ("publisher-retry", "late")),
    curves=(
        *(_curve("retry-latency", queue, 2e5, 70_000_000) for queue in QUEUES),
        *(_curve("window-depth", queue, 60, 9_000) for queue in QUEUES),
    ),
    findings=tuple(
        _finding(number, kind, QUEUES[0]) for number, kind in enumerate(("lost", "false-drop", "escaped"))
    ),
    findings_total=1_234,
    gaps=({"queue": QUEUES[1], "kind": "offsets", "token": 5, "first": 101, "last": 103, "missing": 3},),
    gaps_total=1,
    checks=tuple(
        {
            "name": name,
            "value": float(_VALUES.get(name, 0)),
            "threshold": THRESHOLDS.get(name),
            "status": "fail" if _VALUES.get(name, 0) > THRESHOLDS.get(name, math.inf) else "pass",
        }
        for name in sorted(NAMES)
    ),
)
