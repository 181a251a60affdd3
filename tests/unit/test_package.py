"""The package as its users meet it."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources


def test_import_loads_no_extra() -> None:
    """A publisher pays for pika and redis at most: neither Spark, AMQP 1.0, the command line nor the test servers load."""
    program = "import sys, dedup; print(*sorted({name.partition('.')[0] for name in sys.modules}), 'dedup.testing' in sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "dedup" in loaded
    assert not {"pyspark", "proton", "click", "structlog", "prometheus_client", "True"} & set(loaded)


def test_types_are_shipped() -> None:
    """Type checkers of users see our annotations."""
    assert resources.files("dedup").joinpath("py.typed").is_file()
