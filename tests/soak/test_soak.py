"""A small soak on real servers keeps every promise, and one that is interrupted leaves nothing but its history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dedup.testing.servers import RabbitMQ, Redis
from tests.soak.__main__ import UNREADABLE

#: A plan with a publisher killed, confirms lost, a shim killed inside a batch and one of the links torn, and nothing long.
SEED = 178


@pytest.fixture
def command(rabbitmq: RabbitMQ, redis_server: Redis, rabbitmq_version: str | None) -> list[str]:
    """The command line for this version; a soak needs servers that it may kill."""
    if rabbitmq.external or redis_server.external:
        pytest.skip("a soak kills its servers, so it takes none that were given")
    version = ["--rabbitmq", rabbitmq_version] if rabbitmq_version else []
    return [sys.executable, "-m", "tests.soak", "run", "--seed", str(SEED), "--publishers", "8", *version]


@pytest.mark.long
def test_a_small_soak_keeps_every_promise(command: list[str], tmp_path: Path) -> None:
    """Faults of every place, copies that arrive twice, and each message once; a later check says the same."""
    out = tmp_path / "small.jsonl"
    small = ["--messages", "2000", "--faults", "12", "--out", str(out), "--json"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["copies"] > told["messages"] == told["forwarded"] == told["confirmed"] == 2000
    assert (told["marked"], told["quarantined"]) == (0, 0)
    assert sum(told["faults"].values()) == 12
    assert told["resumed"] > 0 < told["met"]["kills"]
    again = [sys.executable, "-m", "tests.soak", "check", f"{out}.gz", "--json"]
    checked = subprocess.run(again, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, json.loads(checked.stdout)) == (0, told)


def test_an_interrupted_soak_leaves_its_history(command: list[str], tmp_path: Path) -> None:
    """Ctrl-C ends servers, shims and publishers; what was written so far stays, and is no whole history."""
    out, temporary = tmp_path / "cut.jsonl", tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [*command, "--messages", "800", "--faults", "100", "--out", str(out)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while '"event":"healed"' not in (out.read_text() if out.exists() else ""):
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    assert list(temporary.iterdir())
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == UNREADABLE, told
    assert str(out) in told
    assert list(temporary.iterdir()) == []
    again = [sys.executable, "-m", "tests.soak", "check", str(out)]
    checked = subprocess.run(again, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == UNREADABLE
    assert "cut off" in checked.stderr
