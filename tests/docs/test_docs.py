"""What README and docs say works: snippets run, links lead somewhere, tests that are named exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import pytest

from dedup.config import load
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ, Redis
from tests.docs.snippets import (
    EXECUTED,
    PAGES,
    ROOT,
    Block,
    Reader,
    WrongSnippetError,
    blocks,
    commands,
    matches,
)

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<text>.+)$", re.MULTILINE)


def name(page: Path) -> str:
    """Return what a page is called in test ids."""
    return str(page.relative_to(ROOT))


# -- snippets -------------------------------------------------------------------------------------

_RUNNING = [
    page for page in PAGES if any(not b.excuse and b.language in ("python", "console") for b in blocks(page))
]


@pytest.fixture
def databases(request: pytest.FixtureRequest) -> dict[str, str]:
    """A PostgreSQL, where the page talks of one."""
    place = "postgresql://localhost/shop"
    if place not in request.node.callspec.params["page"].read_text("utf-8"):
        return {}
    return {place: request.getfixturevalue("postgres").url}


@pytest.fixture
def reader(
    tmp_path: Path, rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, databases: dict[str, str]
) -> Iterator[Reader]:
    """A reader with a virtual host of its own."""
    host = f"{rabbitmq.management_url}/api/vhosts/{quote(queue_name, safe='')}"
    request(host, "PUT")
    request(
        host.replace("/vhosts/", "/permissions/") + "/guest", "PUT", configure=".*", write=".*", read=".*"
    )
    with closing(Ports()) as ports:
        replaced = {
            "amqp://localhost": urlunsplit(
                urlsplit(rabbitmq.url)._replace(path=f"/{quote(queue_name, safe='')}")
            ),
            "redis://localhost": redis_server.url,
            "127.0.0.1:9464": f"127.0.0.1:{ports.free}",
            **databases,
        }
        environment = {"DEDUP_MANAGEMENT": rabbitmq.management_url}
        with Reader(tmp_path, replaced, environment) as found:
            yield found
    request(host, "DELETE")


class Ports:
    """A port that nobody else of this machine's tests takes."""

    def __init__(self) -> None:
        self._block = reserve_ports(1)
        self.free = self._block.ports[0]

    def close(self) -> None:
        """Give it back."""
        self._block.release()


def request(url: str, method: str, **body: str) -> None:
    """Make one request to the management API."""
    parts = urlsplit(url)
    credentials, _, place = parts.netloc.rpartition("@")
    headers = {
        "Authorization": "Basic " + b64encode(credentials.encode()).decode(),
        "Content-Type": "application/json",
    }
    made = Request(
        urlunsplit(parts._replace(netloc=place)), json.dumps(body).encode(), headers, method=method
    )
    with urlopen(made, timeout=30):
        pass


@pytest.mark.integration
@pytest.mark.parametrize("page", _RUNNING, ids=name)
def test_every_snippet_works(reader: Reader, page: Path) -> None:
    """Every command and program of the page succeeds, in order, and prints what the page shows."""
    reader.read(page)


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ false\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ dedup queue guard\n```\n",
        "```console\noutput without a command\n```\n",
        "```python\nraise SystemExit(3)\n```\n",
        "```python\nfrom dedup import Pubisher\n```\n",
        "```python\nassert False\n```\n",
        "```java\nint i;\n```\n",
        "```sh\nls\n```\n",
    ],
)
def test_a_wrong_snippet_is_caught(tmp_path: Path, text: str) -> None:
    """A page that is wrong fails: this test can fail."""
    with Reader(tmp_path, {}) as reader, pytest.raises(WrongSnippetError):
        reader.read(tmp_path / "page.md", text)


def test_a_page_is_read_as_a_terminal_works(tmp_path: Path) -> None:
    """Variables last, files are written, what goes on in the background ends with the page, "..." is anything."""
    page = """
```python hello.py
import os
print("hello", os.environ["WHO"], end="!")
```

```console
$ sleep 1000 & echo $! > pid
$ export WHO=world
$ python hello.py
hello ...!
$ printf '1\\n2\\n3\\n' | \\
  tail -2
2
3
```
"""
    with Reader(tmp_path, {}) as reader:
        reader.read(tmp_path / "page.md", page)
        pid = int((tmp_path / "pid").read_text())
        assert Path(f"/proc/{pid}").exists()
    subprocess.run(
        ["bash", "-c", f"while kill -0 {pid} 2>/dev/null; do sleep 0.05; done"], timeout=10, check=True
    )


def test_output_is_compared_word_by_word() -> None:
    """Blanks do not matter, words do."""
    assert matches("a  b\n", "a b\n")
    assert matches("a\n...\nd", "a\nb\nc\nd\n")
    assert not matches("a b", "a b c")
    assert not matches("a.c", "abc")


def test_setup_goes_before_a_program(tmp_path: Path) -> None:
    """Lines of a comment are run with every later program of the page."""
    page = "<!-- setup\nimport json\n-->\n```python\njson.dumps(1)\n```\n\n```python\njson.dumps(2)\n```\n"
    with Reader(tmp_path, {}) as reader:
        reader.read(tmp_path / "page.md", page)


def test_what_is_not_executed_says_why() -> None:
    """An excuse is a sentence, and excuses are few."""
    found = [block for page in PAGES for block in blocks(page) if block.language in EXECUTED]
    excused = [block for block in found if block.excuse]
    assert excused
    assert not [str(block) for block in excused if len(block.excuse.split()) < 4]
    assert len(excused) * 2 < len(found), [str(block) for block in excused]


def test_every_excuse_and_setup_is_in_use() -> None:
    """A comment that stands before no block is a slip."""
    for page in PAGES:
        text = page.read_text("utf-8")
        written = len(re.findall(r"^<!-- (?:not executed:|setup$)", text, re.MULTILINE))
        assert written == sum(bool(block.excuse) + bool(block.setup) for block in blocks(page)), name(page)


def test_console_blocks_hold_commands() -> None:
    """Commands are marked, also in blocks that are not executed."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "console":
                assert list(commands(block.text)), str(block)


@pytest.mark.parametrize(
    "block", [b for page in PAGES for b in blocks(page) if b.language == "toml"], ids=str
)
def test_settings_shown_are_settings(tmp_path: Path, block: Block) -> None:
    """A TOML block is a file that dedup takes."""
    file = tmp_path / "dedup.toml"
    file.write_text(block.text, "utf-8")
    read = load({}, file=file, environ={})
    assert read.queues or read.retry


# -- links ----------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors GitHub gives to the headings of a page."""
    found = set()
    for heading in _HEADING.finditer(re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)):
        plain = re.sub(r"[^\w\- ]", "", heading["text"].strip().lower())
        found.add(plain.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link into the repository leads to a file, and to a heading of it."""
    for link in _LINK.finditer(page.read_text("utf-8")):
        target = link["target"]
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name(page)}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{name(page)}: {target}"


def test_every_page_is_found_from_the_index() -> None:
    """Nobody has to know that a page exists."""
    index = ROOT / "docs/index.md"
    linked = {
        (index.parent / m["target"].partition("#")[0]).resolve() for m in _LINK.finditer(index.read_text())
    }
    assert {page for page in PAGES if page.parent != ROOT} - {index} <= linked


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_are_named_exist(page: Path) -> None:
    """A guarantee names the test that proves it; the name is right."""
    text = page.read_text("utf-8")
    for path in re.findall(r"(?<![\w/])(?:tests|dedup)/[\w/]+\.(?:py|lua)", text):
        assert (ROOT / path).exists(), f"{name(page)}: {path}"
    defined = "\n".join(file.read_text("utf-8") for file in ROOT.glob("tests/**/test_*.py"))
    for function in re.findall(r"`(test_\w+)`", text):
        assert f"def {function}(" in defined, f"{name(page)}: {function}"


# -- slips ----------------------------------------------------------------------------------------


def test_the_docs_know_no_machine_but_the_readers() -> None:
    """No page names a path or a port of whoever wrote it."""
    for page in PAGES:
        assert not re.search(r"/(?:work|root|home|tmp)/|127\.0\.0\.1:(?!9464)\d", page.read_text("utf-8")), (
            name(page)
        )


def test_the_program_of_this_run_is_the_one_described() -> None:
    """Snippets run "dedup" from beside the interpreter; it is there."""
    assert (Path(sys.executable).parent / "dedup").exists()
