"""The demo proves what it says, and its control shows that it could fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dedup.testing.servers import RabbitMQ, Redis

SHORT = ("--seed", "7", "--messages", "3000", "--seconds", "9")


@pytest.fixture
def environment(rabbitmq: RabbitMQ, redis_server: Redis) -> Mapping[str, str]:
    """Let the demo use servers that were given, where there are no others; else it starts its own."""
    given = {}
    if rabbitmq.external:
        given["DEDUP_AMQP_URL"] = rabbitmq.url
    if redis_server.external:
        given["DEDUP_REDIS_URL"] = redis_server.url
    return os.environ | given


@pytest.fixture
def command(rabbitmq_version: str | None) -> list[str]:
    """The demo's command line for this version."""
    return [
        sys.executable,
        "-m",
        "dedup.demo",
        *SHORT,
        *(["--rabbitmq", rabbitmq_version] if rabbitmq_version else []),
    ]


def run(command: list[str], *options: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Return exit code and standard output."""
    done = subprocess.run(
        [*command, *options], env=dict(environment), capture_output=True, text=True, timeout=100, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout or done.stderr


def test_each_message_is_delivered_once(command: list[str], environment: Mapping[str, str]) -> None:
    """Confirms are lost, connections cut and shims killed inside batches, and nothing is lost, twice, marked or late."""
    code, output = run(command, "--json", environment=environment)
    told: dict[str, Any] = json.loads(output)
    assert code == 0, told
    assert told["copies"] > told["messages"] == told["forwarded"] == told["confirmed"] == 3000
    assert told["dropped"] == told["copies"] - told["messages"]
    assert [told[name] for name in ("lost", "duplicates", "marked", "quarantined", "disordered")] == [0] * 5
    assert told["faults"]["kills_in_batch"] > 0


@pytest.mark.long
def test_the_control_has_the_duplicates(command: list[str], environment: Mapping[str, str]) -> None:
    """The same faults of the link without dedup leave duplicates in the queue, and the run fails."""
    code, output = run(command, "--json", "--without-dedup", environment=environment)
    told: dict[str, Any] = json.loads(output)
    assert code == 1, told
    assert told["duplicates"] == told["copies"] - told["messages"] > 0
    assert told["lost"] == 0


@pytest.mark.long
def test_an_interrupted_run_leaves_nothing_behind(
    command: list[str], environment: Mapping[str, str], tmp_path: Path
) -> None:
    """Ctrl-C in the middle ends servers and shims and removes their data."""
    process = subprocess.Popen(
        command, env={**environment, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "publishing\n" in iter(process.stderr.readline, "")
    time.sleep(2)
    assert list(tmp_path.iterdir())
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1, told
    assert "Aborted" in told
    assert list(tmp_path.iterdir()) == []
