"""Write a summary as one HTML file: no script, nothing loaded from elsewhere, for screen, phone and paper."""

from __future__ import annotations

import datetime as dt
from importlib.resources import files
from typing import Any, Final

import jinja2
from markupsafe import Markup

from dedup.audit import charts
from dedup.audit.checks import NAMES
from dedup.audit.summary import Curve, Summary

#: What a verdict means, in a sentence.
_SENTENCES: Final = {
    "clean": "Nothing was lost, nothing came through twice, and the log is complete.",
    "unproven": "Nothing is proven wrong, but drops of messages from before the log cannot be judged.",
    "incomplete": "The log has holes, so nothing is proven: what is missing may be what was lost.",
    "convicted": "The shim dropped what was no duplicate, or let a copy through unmarked.",
    "empty": "There were no arrivals in this time.",
}
#: Shares of re-sends that the text names.
_SHARES: Final = (0.5, 0.99, 1.0)


def page(summary: Summary, *, source: str, version: str, made_at: dt.datetime) -> str:
    """
    Return the report as HTML.

    Args:
        source: Where the log is, for the reader.
        version: What made it: of dedup and of Spark.
        made_at: Now.
    """
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "count": lambda number: f"{number:,}".replace(",", "\u202f"),
        "share": share,
        "duration": duration,
        "moment": lambda at: f"{at:%Y-%m-%d %H:%M:%S}",
    }
    template = environment.from_string(files("dedup.audit").joinpath("page.html").read_text("utf-8"))
    drawn = {
        name: Markup(draw(summary))  # noqa: S704 (the renderer escapes what it is given)
        for name, draw in (
            ("duplicate_shares", charts.duplicate_shares),
            ("arrivals", charts.arrivals),
            ("offenders", charts.offenders),
            ("causes", charts.causes),
            ("latencies", charts.latencies),
            ("depths", charts.depths),
        )
    }
    return template.render(
        summary=summary,
        sentence=_SENTENCES[summary.verdict],
        totals=_totals(summary),
        charts=drawn,
        latency=_quantiles(summary, "retry-latency"),
        inside=_inside_window(summary),
        about={name: text.replace("`", "") for name, text in NAMES.items()},
        source=source,
        version=version,
        made_at=made_at,
    )


def share(value: float) -> str:
    """
    Write a share of 1 as a percentage: enough digits to tell it from nothing, and from everything.
    """
    for digits in range(2, 6):
        text = f"{value * 100:.{digits}f}"
        if value in (0, 1) or float(text) not in (0, 100):
            break
    return f"{text.rstrip('0').rstrip('.')} %"


def duration(seconds: float) -> str:
    """
    Write a duration with two digits and the unit that suits it.
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.3g}\u202f{unit}"
    return f"{seconds * 1e6:.0f}\u202fµs"


def _totals(summary: Summary) -> dict[str, Any]:
    """
    Add the queues up.
    """
    names = ("duplicates", "marked", "quarantined")
    wrong = {name: int(summary.check(name)) for name in ("lost", "false_drops", "escaped", "log_holes")}
    return {name: sum(getattr(s, name) for s in summary.standings) for name in names} | wrong


def _together(summary: Summary, measure: str) -> list[tuple[int, float]]:
    """
    Return how many arrivals of all queues are in each bucket: its highest value, and their number.
    """
    counted: dict[int, float] = {}
    for curve in summary.curves:
        if curve.measure == measure:
            for high, events in _buckets(curve):
                counted[high] = counted.get(high, 0) + events
    return sorted(counted.items())


def _buckets(curve: Curve) -> list[tuple[int, float]]:
    """
    Take a curve apart into its buckets again.
    """
    before = [0.0, *(below for _, below in curve.points)]
    return [
        (high, (reached - below) * curve.total)
        for (high, reached), below in zip(curve.points, before, strict=False)
    ]


def _quantiles(summary: Summary, measure: str) -> list[tuple[str, float]]:
    """
    Return shares and the seconds within which they came.
    """
    counted = _together(summary, measure)
    total = sum(events for _, events in counted)
    found, reached, wanted = [], 0.0, list(_SHARES)
    for high, events in counted:
        reached += events
        while wanted and reached >= wanted[0] * total - 1e-6:
            found.append((share(wanted.pop(0)), max(high, 0) / 1e6))
    return found


def _inside_window(summary: Summary) -> float | None:
    """
    Return the share of arrivals behind the last sequence that are inside the window; None: there were none.
    """
    counted = _together(summary, "window-depth")
    total = sum(events for _, events in counted)
    return sum(n for high, n in counted if high <= summary.window_size) / total if total else None
