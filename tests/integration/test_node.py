"""Node's packages are installed once, and an installation that failed is not taken for one."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from dedup.testing import node
from dedup.testing.assembly import InstallError
from dedup.testing.node import ensure_node_modules
from tests.conftest import in_ci

DIRECTORY = Path(__file__).parents[2] / "examples/node"


def test_packages_are_there_the_second_time_without_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was installed is used as it is: no process, no network."""
    try:
        first = ensure_node_modules(DIRECTORY)
    except InstallError as error:
        (pytest.fail if in_ci() else pytest.skip)(str(error))
    monkeypatch.setattr(node, "run", None)
    assert ensure_node_modules(DIRECTORY) == first
    told = subprocess.run(
        [first.node, "-p", "typeof require('amqplib').connect"],
        env={"NODE_PATH": str(first.modules)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "function\n"


def test_a_failed_installation_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that is not what the lock file says is refused, twice."""
    program = tmp_path / "program"
    program.mkdir()
    monkeypatch.setenv("DEDUP_CACHE", str(tmp_path / "cache"))
    (program / "package.json").write_text('{"name": "x", "dependencies": {"amqplib": "1.0.0"}}')
    (program / "package-lock.json").write_text('{"name": "x", "lockfileVersion": 3, "packages": {}}')
    for _ in range(2):
        with pytest.raises(InstallError, match="npm failed"):
            ensure_node_modules(program)


def test_a_machine_without_node_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One sentence names the extra that brings it."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(InstallError, match=r"node is missing: pip install 'dedup\[dev\]'"):
        ensure_node_modules(DIRECTORY)
