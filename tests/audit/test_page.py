"""The page of a report: it holds everything, needs nothing, runs nothing, and fits screen, phone and paper."""

from __future__ import annotations

import datetime as dt
import html
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from attrs import evolve

from dedup.audit import page as module
from dedup.audit.page import duration, page, share
from dedup.audit.summary import Summary
from tests.audit import browser
from tests.audit.samples import HOSTILE, QUEUES, SUMMARY

_DESKTOP, _PHONE = 1180, 390


def written(summary: Summary) -> str:
    """Return the page of *summary*."""
    return page(
        summary, source="s3a://bucket/a&b", version="test", made_at=dt.datetime(2026, 2, 3, tzinfo=dt.UTC)
    )


@pytest.fixture(scope="module")
def text() -> str:
    """The page that shows everything there is to show."""
    return written(SUMMARY)


@pytest.fixture(scope="module")
def file(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture(scope="module")
def chromium() -> str:
    """Chromium; CI installs it, a laptop without it skips."""
    in_ci = os.environ.get("CI", "").lower() in ("1", "true")
    problem = browser.install() if in_ci and browser.find() is None else ""
    found = browser.find()
    if found is None and in_ci:
        pytest.fail(problem, pytrace=False)
    if found is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    return found


class _Tags(HTMLParser):
    """Count elements and collect every attribute that could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Counter[str]()
        self.risky: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.risky += [
            (name, value)
            for name, value in attrs
            if name.startswith("on") or name in ("src", "href", "xlink:href")
        ]


def test_nothing_runs_and_nothing_is_loaded(text: str) -> None:
    """No script, no picture, no link, no style sheet from elsewhere; a queue's name stays text, in charts too."""
    tags = _Tags()
    tags.feed(text)
    assert tags.risky == []
    assert not {"script", "img", "link", "iframe", "object"} & set(tags.seen)
    assert tags.seen["svg"] == 6
    assert {*re.findall(r"https?://[^\s\"'<]+", text)} <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert html.escape(HOSTILE, quote=False) in text.replace("&#34;", '"').replace("&#39;", "'")
    assert len(text) < 400_000


def test_everything_is_said(text: str) -> None:
    """Verdict, numbers, findings with their place in the log, holes, checks; and how much is not shown."""
    plain = html.unescape(re.sub(r"<[^>]+>", " ", text))
    plain = re.sub(r"\s+", " ", plain)
    for words in (
        "Convicted",
        "2026-01-01 00:00:00 to 2026-01-03 00:00:00 UTC",
        "s3a://bucket/a&b",
        "3.12 %",
        "The first 3 of 1 234",
        str(2**63 - 2),
        "10002 token 1767250800000",
        "nowhere",
        "window 8,192",
        "The window of 8 192 covers 99.",
        "50 % within 2",
        "has holes",
        "The gravest 4 of 7 queues",
    ):
        assert words in plain, words
    for queue in QUEUES:
        assert queue.split()[0] in plain
    for check in SUMMARY.checks:
        assert str(check["name"]) in plain


@pytest.mark.parametrize("verdict", ["clean", "unproven", "incomplete", "empty"])
def test_every_verdict_has_its_sentence(verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report with little to show is a page all the same."""
    monkeypatch.setattr(module, "charts", _NoCharts())
    bare = evolve(
        SUMMARY,
        verdict=verdict,
        standings=(),
        steps=(),
        begins=None,
        ends=None,
        curves=(),
        findings=(),
        gaps=(),
    )
    shown = written(bare)
    assert f'verdict {verdict}" id="verdict"' in shown
    assert "No message was treated wrongly." in shown
    assert "<figure" not in shown


class _NoCharts:
    """What draws nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda _: ""


def test_a_log_without_anything_draws_nothing() -> None:
    """An empty chart is left out, not drawn."""
    empty = evolve(
        SUMMARY, verdict="empty", steps=(), begins=None, ends=None, offenders=(), causes=(), curves=()
    )
    assert "<svg" not in written(empty)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.0312, "3.12 %"),
        (0.5, "50 %"),
        (0.000012, "0.001 %"),
        (0.999999, "99.9999 %"),
        (1e-9, "0 %"),
    ],
)
def test_shares_keep_what_tells_them_from_nothing_and_everything(value: float, shown: str) -> None:
    """A window that covers 99.9999 % does not cover all."""
    assert share(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 µs"), (1e-6, "1 µs"), (0.0021, "2.1 ms"), (0.5, "500 ms"), (90, "1.5 min"), (86_400 * 3, "3 d")],
)
def test_durations_have_a_unit_that_suits_them(seconds: float, shown: str) -> None:
    """Nobody counts zeros."""
    assert duration(seconds).replace("\u202f", " ") == shown


def test_a_browser_has_nothing_to_complain_of(chromium: str, file: Path, tmp_path: Path) -> None:
    """Without a network, and with scripts forbidden by the page itself; a page with a script is complained of."""
    assert browser.complaints(chromium, file) == []
    wrong = tmp_path / "wrong.html"
    wrong.write_text(file.read_text("utf-8").replace("</main>", "<script>1</script></main>"), "utf-8")
    assert browser.complaints(chromium, wrong)


@pytest.mark.parametrize("width", [_DESKTOP, _PHONE])
def test_it_fits(chromium: str, text: str, tmp_path: Path, width: int) -> None:
    """Nothing sticks out on a desk or on a phone, and the smallest text of a chart can be read."""
    told = browser.measured(chromium, text, tmp_path, width=width)
    assert told["screen"] == width
    assert told["page"] <= width
    assert len(told["charts"]) == 6
    for chart in told["charts"]:
        assert chart["right"] <= width
        assert chart["width"] > (300 if width == _PHONE else 400)
        assert chart["text"] > 8


def test_the_measure_can_fail(chromium: str, text: str, tmp_path: Path) -> None:
    """Tables that do not scroll by themselves make the page too wide for a phone, and that is seen."""
    broken = text.replace(".scroll { overflow-x: auto;", ".scroll {")
    assert broken != text
    assert browser.measured(chromium, broken, tmp_path, width=_PHONE)["page"] > _PHONE


def test_dark_mode_reaches_the_charts(chromium: str, text: str, tmp_path: Path) -> None:
    """Ground and ink change places, inside the pictures too."""
    light, dark = (
        browser.measured(chromium, text, tmp_path, width=_DESKTOP, dark=dark) for dark in (False, True)
    )
    assert light["ground"] == "rgb(246, 247, 249)"
    assert dark["ground"] == "rgb(16, 19, 23)"
    assert light["charts"][0]["ink"] != dark["charts"][0]["ink"]


def test_it_prints_on_a_few_sheets(chromium: str, file: Path, tmp_path: Path) -> None:
    """A picture is cut nowhere, and ten sheets are not used for it."""
    assert 2 <= browser.printed(chromium, file, tmp_path) <= 5
    picture = browser.pictured(chromium, file, tmp_path / "page.png", width=_DESKTOP)
    assert picture.startswith(b"\x89PNG")
