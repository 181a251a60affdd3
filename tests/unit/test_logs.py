"""The log is readable by people or by machines, and by nobody who looks for passwords."""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stderr
from typing import Any

import pytest
import structlog

from dedup.service.logs import configure, mask_text


class Terminal(io.StringIO):
    """What stderr is to a person."""

    def isatty(self) -> bool:
        return True


Stderr = pytest.CaptureFixture[str]


def fail(password: str) -> None:
    """Raise with a secret among the local variables."""
    raise RuntimeError(f"broken for {len(password)} reasons")


def lines(capsys: Stderr) -> list[dict[str, Any]]:
    """Return what was logged in JSON since the last time."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_has_the_event_its_fields_and_no_password(capsys: Stderr) -> None:
    """One object a line, with time and level; URLs in any field are masked, the text around them stays."""
    configure("auto", "info")

    structlog.get_logger("dedup").warning("dedup.lost", reason="at amqp://u:s3cret@h/v, and gone", count=3)

    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "dedup.lost",
        "level": "warning",
        "count": 3,
        "reason": "at amqp://u:***@h/v, and gone",
    }


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_shows_no_local_variables(capsys: Stderr, log_format: str) -> None:
    """A bug is told with its traceback, and not with what the variables held."""
    configure(log_format)

    password = bytes([115, 51, 99, 114, 101, 116]).decode()  # not in the source: tracebacks quote it
    try:
        fail(password)
    except RuntimeError:
        structlog.get_logger("dedup").critical("dedup.failed", exc_info=True)

    shown = capsys.readouterr().err
    assert "broken for 6 reasons" in shown
    assert "s3cret" not in shown


def test_people_at_a_terminal_get_text() -> None:
    """On a terminal "auto" is the console format."""
    with redirect_stderr(Terminal()) as terminal:
        configure("auto")
        structlog.get_logger("dedup").info("dedup.started", queues=["orders"])

    assert "dedup.started" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_levels_and_drivers(capsys: Stderr) -> None:
    """Below the level nothing is shown; drivers are heard only when debugging; logging's records come in the same form."""
    configure("json", "warning")
    structlog.get_logger("dedup").info("dedup.unimportant")
    logging.getLogger("pika.connection").error("chatter")
    logging.getLogger("application").error("from %s", "redis://:s3cret@h")
    assert [line["event"] for line in lines(capsys)] == ["from redis://:***@h"]

    configure("json", "debug")
    logging.getLogger("pika.connection").warning("chatter")
    assert lines(capsys)[-1]["event"] == "chatter"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("nothing to hide: a/b @c", "nothing to hide: a/b @c"),
        ("x amqp://u:p@h: refused, e@mail", "x amqp://u:***@h: refused, e@mail"),
        ("amqp://u:p@a,amqp://u:q@b end", "amqp://u:***@a, amqp://u:***@b end"),
        ("already amqp://u:***@h/v; '@' is fine", "already amqp://u:***@h/v; '@' is fine"),
        ("('redis://:p@h',)", "('redis://:***@h',)"),
    ],
)
def test_only_passwords_are_masked(text: str, masked: str) -> None:
    """Whatever is not part of a URL stays readable."""
    assert mask_text(text) == masked
