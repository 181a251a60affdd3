"""
Draw the charts of a report: Vega-Lite specifications, rendered to SVG here, without a browser and without a script in it.

Colours are CSS variables of the page around the chart, so dark mode and print are a matter of the style sheet.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import vl_convert

from dedup.audit.summary import OTHERS, Summary

Specification = dict[str, Any]

_WIDTH, _HEIGHT = 440, 230
#: Colours of lines and bars, by their order; the last one is for what has no colour of its own.
_COLOURS: Final = [f"var(--series-{number})" for number in range(1, 8)]
#: Causes in the order of their bars, with what a reader calls them.
_CAUSES: Final = {
    "publisher-retry": "publisher's retry",
    "broker-redelivery": "redelivery",
    "same-message-id": "same message id",
    "second-owner": "second owner",
    "late": "too late",
    "dead-letter": "dead letter",
}
_CONFIGURATION: Final[Specification] = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "labelFontSize": 11,
        "labelLimit": 150,
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "titleColor": "var(--muted)",
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    },
    "axisX": {"grid": False, "labelFlush": True},
    "axisY": {"domain": False, "ticks": False, "tickCount": 5},
    "legend": {
        "orient": "top",
        "direction": "horizontal",
        "columns": 3,
        "title": None,
        "labelColor": "var(--ink)",
        "labelFontSize": 11,
        "labelLimit": 110,
        "symbolSize": 70,
        "columnPadding": 14,
        "offset": 6,
    },
}


def duplicate_shares(summary: Summary) -> str:
    """
    Draw the share of duplicates over time, a line for each queue.
    """
    values = [
        {"at": step.at.isoformat(), "queue": step.queue, "share": step.duplicates / step.events}
        for step in summary.steps
        if step.events
    ]
    lonely = len({value["at"] for value in values}) < 25
    return _svg(
        values,
        mark={
            "type": "line",
            "strokeWidth": 2,
            "interpolate": "monotone",
            "point": {"size": 22} if lonely else False,
        },
        encoding={
            "x": _time(summary),
            "y": {"field": "share", "type": "quantitative", "title": None, "axis": {"format": "~%"}},
            "color": _by_queue(str(value["queue"]) for value in values),
        },
    )


def arrivals(summary: Summary) -> str:
    """
    Draw arrivals per second over time, the queues on top of each other.
    """
    values: list[dict[str, Any]] = [
        {"at": step.at.isoformat(), "queue": step.queue, "rate": step.events / summary.step_s}
        for step in summary.steps
    ]
    return _svg(
        values,
        mark={"type": "area", "interpolate": "step-after", "opacity": 0.85, "line": False},
        encoding={
            "x": _time(summary),
            "y": {
                "field": "rate",
                "type": "quantitative",
                "stack": "zero",
                "title": None,
                "axis": {"format": "~g" if all(value["rate"] < 1000 for value in values) else "~s"},
            },
            "color": _by_queue((str(value["queue"]) for value in values), lines=False),
        },
    )


def offenders(summary: Summary) -> str:
    """
    Draw the publishers with the most duplicates, their causes side by side.
    """
    publishers = {(offender.publisher, offender.queue) for offender in summary.offenders}
    often = Counter(publisher for publisher, _ in publishers)
    values = [
        {
            "publisher": o.publisher if often[o.publisher] == 1 else f"{o.publisher} · {o.queue}",
            "cause": _CAUSES.get(o.cause, o.cause),
            "events": o.events,
            "order": list(_CAUSES).index(o.cause),
            "total": o.total,
        }
        for o in summary.offenders
    ]
    return _svg(
        values,
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "y": {
                "field": "publisher",
                "type": "nominal",
                "title": None,
                "sort": {"field": "total", "op": "max", "order": "descending"},
            },
            "x": {
                "field": "events",
                "type": "quantitative",
                "title": None,
                "axis": {"format": "~s", "grid": True, "tickCount": 5, "domain": False},
            },
            **_by_cause(str(value["cause"]) for value in values),
        },
        height=max(90, 50 + 21 * len(publishers)),
    )


def causes(summary: Summary) -> str:
    """
    Draw where what is not simply first comes from, queue by queue.
    """
    values = [
        {
            "queue": c.queue,
            "cause": _CAUSES.get(c.cause, c.cause),
            "events": c.events,
            "order": list(_CAUSES).index(c.cause),
        }
        for c in summary.causes
    ]
    return _svg(
        values,
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "y": {
                "field": "queue",
                "type": "nominal",
                "title": None,
                "sort": {"op": "sum", "field": "events"},
            },
            "x": {
                "field": "events",
                "type": "quantitative",
                "title": None,
                "stack": "normalize",
                "axis": {"format": "~%", "grid": True, "tickCount": 5, "domain": False},
            },
            **_by_cause(str(value["cause"]) for value in values),
        },
        height=max(90, 50 + 26 * len({value["queue"] for value in values})),
    )


def latencies(summary: Summary) -> str:
    """
    Draw which share of re-sends has arrived so long after the first send.
    """
    values = _points(summary, "retry-latency", scale=1e-6, least=1e-3)
    return _svg(
        values,
        mark={"type": "line", "strokeWidth": 2, "interpolate": "step-after"},
        encoding={
            "x": {
                "field": "value",
                "type": "quantitative",
                "scale": {"type": "log", "nice": False},
                "title": "seconds after the first send",
                "axis": {"format": "~g", "tickCount": 6},
            },
            "y": _share(),
            "color": _by_queue(str(value["queue"]) for value in values),
        },
    )


def depths(summary: Summary) -> str:
    """
    Draw which share of what came behind was so far behind, and where the window ends.
    """
    values = _points(summary, "window-depth", scale=1, least=1)
    line = {"value": summary.window_size, "text": f"window {summary.window_size:,}"}
    x = {
        "field": "value",
        "type": "quantitative",
        "scale": {"type": "log", "base": 2, "nice": False, "domainMax": _beyond(values, summary.window_size)},
        "title": "sequences behind the publisher's last",
        "axis": {"format": ",d", "tickCount": 7},
    }
    shown = {"data": {"values": [line]}, "encoding": {"x": x}}
    return _svg(
        values,
        layer=[
            {
                "mark": {"type": "line", "strokeWidth": 2, "interpolate": "step-after"},
                "encoding": {
                    "x": x,
                    "y": _share(),
                    "color": _by_queue(str(value["queue"]) for value in values),
                },
            },
            {
                **shown,
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--accent)", "strokeWidth": 1.5},
            },
            {
                **shown,
                "mark": {
                    "type": "text",
                    "align": "right",
                    "baseline": "bottom",
                    "dx": -5,
                    "y": _HEIGHT / 2,
                    "color": "var(--accent)",
                    "fontSize": 11,
                },
                "encoding": {"x": x, "text": {"field": "text"}},
            },
        ],
    )


def _points(summary: Summary, measure: str, *, scale: float, least: float) -> list[Mapping[str, Any]]:
    """
    Return the points of all curves of one measure; what is below *least* is drawn there: the axis is logarithmic.
    """
    return [
        {"queue": curve.queue, "value": max(high * scale, least), "share": share}
        for curve in summary.curves
        if curve.measure == measure
        for high, share in curve.points
    ]


def _beyond(values: Sequence[Mapping[str, Any]], window_size: int) -> float:
    """
    Return where the axis of depths ends: some way beyond the window and the deepest arrival.
    """
    return 2.0 * max(window_size, *(float(value["value"]) for value in values), 1.0)


def _time(summary: Summary) -> Specification:
    """
    Return an axis of time in UTC: days, or times of the day with the day below midnight.
    """
    if summary.begins and summary.ends and summary.ends - summary.begins > dt.timedelta(days=4):
        label = "utcFormat(datum.value, '%d %b')"
    else:
        clock = "%H:%M:%S" if summary.step_s < 60 else "%H:%M"
        midnight = "utcFormat(datum.value, '%H:%M:%S') == '00:00:00'"
        label = f"[utcFormat(datum.value, '{clock}'), {midnight} ? utcFormat(datum.value, '%d %b') : '']"
    return {
        "field": "at",
        "type": "temporal",
        "title": None,
        "scale": {"type": "utc"},
        "axis": {"tickCount": 5, "labelExpr": label, "labelFlush": False},
    }


def _share() -> Specification:
    """
    Return an axis from nothing to everything.
    """
    return {
        "field": "share",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, 1]},
        "axis": {"format": "~%"},
    }


def _by_queue(names: Iterable[str], *, lines: bool = True) -> Specification:
    """
    Return a colour for each queue, and the last one for the rest; without a legend when there is one queue.
    """
    queues = sorted({*names}, key=lambda name: (name == OTHERS, name))
    colours = [_COLOURS[-1] if name == OTHERS else _COLOURS[index] for index, name in enumerate(queues)]
    encoding: Specification = {
        "field": "queue",
        "type": "nominal",
        "scale": {"domain": queues, "range": colours},
    }
    shown = {"symbolType": "stroke", "symbolStrokeWidth": 3} if lines else {"symbolType": "circle"}
    return {**encoding, "legend": shown if len(queues) > 1 else None}


def _by_cause(names: Iterable[str]) -> Specification:
    """
    Return a colour and a place in the bar for each cause.
    """
    shown = {*names}
    found = [
        (name, colour) for name, colour in zip(_CAUSES.values(), _COLOURS, strict=False) if name in shown
    ]
    return {
        "color": {
            "field": "cause",
            "type": "nominal",
            "scale": {"domain": [name for name, _ in found], "range": [colour for _, colour in found]},
            "legend": {"symbolType": "circle"},
        },
        "order": {"field": "order", "type": "quantitative"},
    }


def _svg(values: Sequence[Mapping[str, Any]], *, height: float = _HEIGHT, **chart: Any) -> str:
    """
    Render one chart; nothing to show is an empty text.
    """
    if not values:
        return ""
    return vl_convert.vegalite_to_svg(
        {
            "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
            "width": _WIDTH,
            "height": height,
            "autosize": {"type": "fit", "contains": "padding"},
            "padding": 4,
            "data": {"values": list(values)},
            "config": _CONFIGURATION,
            **chart,
        }
    )
