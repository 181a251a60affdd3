"""Find the fenced blocks of a page, and run a page as a reader would who does everything it says (CONTRIBUTING, Documentation)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from attrs import define, field, frozen

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: One command, one program; seconds.
PATIENCE_S = 40.0
#: Languages whose blocks are executed, or say why they are not.
EXECUTED = frozenset({"python", "console", "bash", "sh", "shell", "java", "go", "javascript"})

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")
_COMMENT = re.compile(r"<!--\s*(?P<kind>not executed:|setup\b)(?P<text>.*?)-->", re.DOTALL)


class WrongSnippetError(AssertionError):
    """A block of a page does not do what the page says."""


@frozen
class Block:
    """
    One fenced block, and what the comment before it says.
    """

    page: Path
    line: int
    language: str
    #: Behind the language: a file to write the block to.
    file: str
    text: str
    #: Why it is not executed; empty: it is.
    excuse: str = ""
    #: Lines of Python that go before it and before all later ones of the page.
    setup: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{self.line}"


@frozen
class Command:
    """
    One command of a console block, and the output shown below it.
    """

    text: str
    output: str


def blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    """Yield the fenced blocks of *page* in order."""
    lines = (page.read_text("utf-8") if text is None else text).split("\n")
    since = number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        number += 1
        if not opened:
            continue
        first = number
        while lines[number].strip() != "```":
            number += 1
        indent = len(opened["indent"])
        language, _, file = opened["info"].strip().partition(" ")
        content = "".join(line[indent:] + "\n" for line in lines[first:number])
        notes = {m["kind"]: m["text"].strip() for m in _COMMENT.finditer("\n".join(lines[since : first - 1]))}
        yield Block(
            page, first, language, file, content, notes.get("not executed:", ""), notes.get("setup", "")
        )
        number += 1
        since = number


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a console block; a backslash at the end continues a command."""
    command = output = ""
    for line in text.splitlines():
        if command.endswith("\\"):
            command += "\n" + line
        elif line.startswith("$ "):
            if command:
                yield Command(command, output)
            command, output = line[2:], ""
        elif not command:
            raise WrongSnippetError(f"output before any command: {line!r}")
        else:
            output += line + "\n"
    if command:
        yield Command(command, output)


def matches(shown: str, printed: str) -> bool:
    """Say whether *printed* is what is *shown*; "..." stands for anything, runs of blanks count as one."""
    parts = [re.escape(" ".join(part.split())) for part in " ".join(shown.split()).split("...")]
    pattern = r".*?".join(part.replace(r"\ ", " ").strip(" ") for part in parts)
    return re.fullmatch(r"\s*" + pattern + r"\s*", " ".join(printed.split()), re.DOTALL) is not None


@define
class Reader:
    """
    Do what a page says, in a directory of its own; everything started ends with the context.

    Args:
        replaced: What stands for a test's server in the pages -> what it is here.
    """

    directory: Path
    replaced: Mapping[str, str]
    environment: dict[str, str] = field(factory=dict)
    _setup: str = ""
    _groups: list[int] = field(factory=list)

    def __enter__(self) -> Self:
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DEDUP_")},
            **self.environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
        }
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def read(self, page: Path, text: str | None = None) -> None:
        """Do everything a page says, in order."""
        for block in blocks(page, text):
            self.do(block)

    def do(self, block: Block) -> None:
        """Write, run, or leave out one block."""
        text = self.fill_in(block.text)
        if block.setup:
            self._setup += self.fill_in(block.setup) + "\n"
        if block.file:
            (self.directory / block.file).write_text(text, "utf-8")
        elif block.excuse:
            return
        elif block.language == "python":
            self._run(block, [sys.executable, "-c", self._setup + text], "")
        elif block.language == "console":
            for command in commands(text):
                self._run(block, ["bash", "-c", _PERSISTENT, "bash", command.text], command.output)
        elif block.language in EXECUTED:
            raise WrongSnippetError(f"{block}: {block.language} is not executed: say why, or make it console")

    def fill_in(self, text: str) -> str:
        """Put the servers of this test in the place of those of the page."""
        for place, url in self.replaced.items():
            text = re.sub(re.escape(place) + r"(?![\w.])", url, text)
        return text

    def _run(self, block: Block, arguments: list[str], shown: str) -> None:
        output, errors = self.directory / f".output-{len(self._groups)}", self.directory / ".errors"
        with output.open("w") as stream, errors.open("a") as complaints:
            child = subprocess.Popen(
                arguments,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=complaints,
                start_new_session=True,
            )
        self._groups.append(child.pid)
        try:
            code: int | str = child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = "none in time"
        printed = output.read_text()
        told = f"{block}: {arguments[-1]}\nprinted:\n{printed}\n{errors.read_text()[-3000:]}"
        if code != 0:
            raise WrongSnippetError(f"{told}\nexit code: {code}")
        if shown and not matches(shown, printed):
            raise WrongSnippetError(f"{told}\nshown:\n{shown}")


#: Variables and the working directory last from one command to the next, as in a terminal.
_PERSISTENT = """
if [ -e .environment ]; then . ./.environment; fi
eval "$1"
code=$?
export -p > .environment
exit $code
"""
