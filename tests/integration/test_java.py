"""What the page about other languages shows for Java is compiled and run, where a JDK and RabbitMQ's client can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dedup.core import names
from dedup.testing.assembly import cache_directory, locked
from dedup.testing.servers import RabbitMQ, Redis
from tests.docs.snippets import ROOT, blocks
from tests.fault.guarded import Guarded

PAGE = ROOT / "docs/howto/publish-from-another-language.md"
#: Debian's packages with the client, and the files that are wanted of them.
PACKAGES = ("librabbitmq-client-java", "libslf4j-java")
JARS = ("amqp-client.jar", "slf4j-api.jar", "slf4j-nop.jar")
PATIENCE_S = 120.0
#: What the fragment stands in: a program that publishes one row, whose id is its second argument.
PROGRAM = """
import com.rabbitmq.client.*;
import java.util.Map;

public class Publish {{
    static void failed(String why) {{ throw new IllegalStateException(why); }}

    public static void main(String[] arguments) throws Exception {{
        var factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        long id = Long.parseLong(arguments[1]);
        byte[] body = ("java " + id).getBytes();
{fragment}
    }}
}}
"""


@pytest.fixture(scope="module")
def class_path() -> str:
    """The client's archives: the installed ones, else those of Debian's packages, unpacked into the cache once."""
    if shutil.which("javac") is None:
        pytest.skip("javac is missing: apt-get install openjdk-17-jdk-headless")
    directory = Path("/usr/share/java")
    if not all((directory / name).exists() for name in JARS):
        directory = _unpacked(cache_directory() / "java") / "usr/share/java"
    return os.pathsep.join(str(directory / name) for name in JARS)


def _unpacked(path: Path) -> Path:
    complete = path / "complete"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), print):
        if complete.exists():
            return path
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            _run(["apt-get", "-qq", "download", *PACKAGES], path)
            for package in path.glob("*.deb"):
                _run(["dpkg-deb", "--extract", package.name, "."], path)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"RabbitMQ's client is missing: apt-get install {' '.join(PACKAGES)} ({error})")
        complete.touch()
    return path


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def program(class_path: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How to start the page's fragment as a program."""
    directory = tmp_path_factory.mktemp("java")
    (fragment,) = [block.text for block in blocks(PAGE) if block.language == "java"]
    (directory / "Publish.java").write_text(PROGRAM.format(fragment=fragment))
    compiled = subprocess.run(
        ["javac", "-classpath", class_path, "Publish.java"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    return ["java", "-classpath", f"{directory}{os.pathsep}{class_path}", "Publish"]


@pytest.mark.long
def test_each_row_arrives_once_however_often_it_is_published(
    rabbitmq: RabbitMQ, redis_server: Redis, program: list[str]
) -> None:
    """Two rows, one of them twice under its number; where there is no queue the program fails, though the broker confirms."""

    def publish(row: int) -> int:
        command = [*program, rabbitmq.url, str(row)]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode

    with Guarded(rabbitmq, redis_server, "orders") as guarded:
        assert [publish(row) for row in (7, 7, 8)] == [0, 0, 0]
        assert guarded.depth(names.ingress("orders")) == 3, "nothing was doubled: this shows nothing"
        guarded.run_until_drained()
        found = guarded.assert_each_once(["java 7", "java 8"])
        assert found.order == ["java 7", "java 8"]
    assert publish(9) != 0
