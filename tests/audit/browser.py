"""A headless Chromium: find it, ask it for the page as it is laid out, for a picture, for paper."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

#: The first one is Debian's, made for this and the smallest.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_MEASURE = """
<script>
addEventListener("load", () => {
  const charts = [...document.querySelectorAll("figure svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")];
    const heights = texts.map(text => text.getBoundingClientRect().height).filter(height => height > 0);
    return {width: box.width, height: box.height, right: box.right, text: Math.min(...heights),
            ink: getComputedStyle(texts[0]).fill};
  });
  const told = {screen: innerWidth, page: document.documentElement.scrollWidth,
                ground: getComputedStyle(document.body).backgroundColor, charts};
  document.documentElement.setAttribute("data-measured", JSON.stringify(told));
});
</script></head>"""


def find() -> str | None:
    """Return the program, if one is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def install() -> str:
    """Install it with apt as root, as a fresh CI machine needs it; return what went wrong, or nothing."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "no Chromium is installed (Debian: apt-get install chromium)"
    quiet = {"DEBIAN_FRONTEND": "noninteractive", **os.environ}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", PROGRAMS[0]]):
        done = subprocess.run(
            ["apt-get", "-qq", *arguments], env=quiet, capture_output=True, text=True, check=False
        )
    return done.stderr if done.returncode else ""


def measured(program: str, page: str, folder: Path, *, width: int, dark: bool = False) -> dict[str, Any]:
    """
    Lay *page* out and return how wide it is, its colours, and the boxes of its charts.

    The page allows no script, so a copy is measured that does.
    """
    file = folder / "measured.html"
    opened = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    file.write_text(opened.replace("</head>", _MEASURE), "utf-8")
    # Chromium's own names for the two schemes are 0 and 1.
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    shown = _run(program, f"--window-size={width},2000", scheme, "--dump-dom", file.as_uri()).stdout
    found = re.search(r'data-measured="([^"]*)"', shown)
    assert found, shown[:500]
    told: dict[str, Any] = json.loads(found[1].replace("&quot;", '"'))
    return told


def complaints(program: str, page: Path) -> list[str]:
    """Open *page* without a network and return what Chromium complains of: scripts, blocked or missing files."""
    shown = _run(
        program,
        "--dump-dom",
        "--enable-logging=stderr",
        "--log-level=0",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        page.as_uri(),
    ).stderr
    return [line for line in shown.splitlines() if "CONSOLE" in line]


def printed(program: str, page: Path, folder: Path) -> int:
    """Print *page* and return the number of sheets."""
    paper = folder / "page.pdf"
    _run(program, "--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri())
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", paper.read_bytes()))


def pictured(program: str, page: Path, file: Path, *, width: int) -> bytes:
    """Return a picture of the top of *page*."""
    _run(program, f"--window-size={width},1600", f"--screenshot={file}", page.as_uri())
    return file.read_bytes()


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Chromium to its end."""
    # As root it refuses to start in its sandbox; it opens nothing but the page made here.
    fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
    done = subprocess.run(
        [program, *fixed, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done
