"""The commands: exit codes, messages, and queue names that are hard on file systems."""

from __future__ import annotations

import csv
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from pyspark.sql import SparkSession

from dedup.audit import session
from dedup.audit.command import main
from dedup.audit.report import exit_code
from dedup.audit.schema import RESULTS
from dedup.cli.audit import audit
from dedup.cli.commands import dedup
from dedup.errors import ConfigError
from tests.audit.samples import SUMMARY
from tests.audit.test_controls import CLEAN, drop, frame

#: Path separators, what Hive escapes, what looks like a number or a null.
_QUEUES = ["a/b/../c", "100%=?*:#'\"\\", "007", "null", "ürgent 😀", "."]


@pytest.mark.long
def test_hard_queue_names_and_exit_codes(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names come back as they were; 0 is clean, 1 is convicted, 2 is incomplete."""
    events, state, out = (str(tmp_path / name) for name in ("events", "state", "out"))
    arrivals = [row | {"queue": queue} for queue in _QUEUES for row in CLEAN]
    arrivals.append(drop(5, 14, depth=-1, queue=_QUEUES[0]))
    arrivals += [row | {"queue": "torn"} for row in CLEAN if row["offset"] != 2]
    frame(spark, arrivals).write.partitionBy("date", "queue").parquet(events)
    assert main(["daily", events, state]) == 0
    assert capsys.readouterr().out == "reduced 1 day: 2026-01-01 to 2026-01-01\n"

    page, tables = tmp_path / "new folder/report.html", tmp_path / "csv"
    writing = ["--out", out, "--html", str(page), "--csv", str(tables)]
    assert main(["report", events, "--state", state, *writing]) == 1
    told = capsys.readouterr().out
    assert (
        "lost: queue 'a/b/../c', publisher 'shop', sequence 14, token 5, offset 5, 2026-01-01T12:00:05.000000Z\n"
        in told
    )
    assert told.endswith("verdict: convicted\n")
    judged = {row.queue: row.verdict for row in spark.read.parquet(f"{out}/verdict").collect()}
    assert judged == dict.fromkeys(_QUEUES, "clean") | {_QUEUES[0]: "convicted", "torn": "incomplete"}
    for table in RESULTS:
        names = [column.name for column in table.columns]
        assert spark.read.parquet(f"{out}/{table.name}").columns == names
        with (tables / f"{table.name}.csv").open(newline="") as file:
            assert next(csv.reader(file)) == names
    with (tables / "findings.csv").open(newline="") as file:
        (finding,) = csv.DictReader(file)
    assert (finding["kind"], finding["queue"], finding["stored_token"]) == ("lost", _QUEUES[0], "")
    assert finding["arrived_at"] == "2026-01-01T12:00:05.000000Z"
    assert "<h1>" in page.read_text("utf-8")
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]

    limits = tmp_path / "checks.toml"
    limits.write_text("log_holes = 5\nduplicate_share = 0.4\n")
    assert main(["report", events, "--queue", "torn", "--checks", str(limits), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["events"], told["findings_total"]) == ("incomplete", 3, 0)
    assert {row["threshold"] for row in told["checks"] if row["name"] == "duplicate_share"} == {0.4}
    assert {row["status"] for row in told["checks"]} == {"pass", "incomplete"}


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ({"lost": "pass"}, 0),
        ({"lost": "pass", "escaped": "fail"}, 1),
        ({"lost": "incomplete"}, 2),
        ({"a": "incomplete", "b": "fail"}, 1),
    ],
)
def test_exit_codes(statuses: dict[str, str], code: int) -> None:
    """Scripts learn it from the code: a failure weighs more than a hole in the log."""
    checks = tuple({"name": name, "status": status} for name, status in statuses.items())
    assert exit_code(evolve(SUMMARY, checks=checks)) == code


def test_where_nothing_can_be_written_it_says_so_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after an hour of Spark."""
    (tmp_path / "file").touch()
    assert main(["report", "nowhere", "--html", str(tmp_path / "file/report.html")]) == 3
    assert "cannot write to" in capsys.readouterr().err


def test_the_command_line_passes_everything_on() -> None:
    """``dedup audit`` knows the commands of the audit by name, and its help and exit codes are theirs."""
    ran = CliRunner().invoke(dedup, ["audit", "report", "--help"])
    assert ran.exit_code == 0
    assert "--html FILE" in ran.output
    assert CliRunner().invoke(dedup, ["audit", "daily"]).exit_code == 3
    listed = CliRunner().invoke(dedup, ["audit", "--help"]).output
    own = main_help()
    for name in audit.commands:
        assert name in own
        assert name in listed


def main_help() -> str:
    """Return what the audit says of its commands."""
    told = io.StringIO()
    with redirect_stdout(told), pytest.raises(SystemExit):
        main(["--help"])
    return told.getvalue()


def test_without_spark_the_command_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is an extra, and half a gigabyte."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [name for name in sys.modules if name.startswith("dedup.audit")]:
        monkeypatch.delitem(sys.modules, name)
    ran = CliRunner().invoke(dedup, ["audit", "report", "x"])
    assert ran.exit_code == 2
    assert "pip install 'dedup[audit]'" in ran.output


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("losst = 1", "there is no check 'losst'"),
        ("lost = true", "lost is a number"),
        ("lost = ", "cannot read thresholds"),
        (None, "cannot read thresholds"),
    ],
)
def test_wrong_thresholds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str | None, message: str
) -> None:
    """They are refused before Spark starts."""
    limits = tmp_path / "checks.toml"
    if written is not None:
        limits.write_text(written)
    assert main(["report", "nowhere", "--checks", str(limits)]) == 3
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["weekly"],
        ["daily"],
        ["daily", "a", "b", "--from", "tomorrow"],
        ["stream", "a", "b", "--every", "0"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    """Exit code 3: 2 says that a log is incomplete."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 3


def test_without_java_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody has to read a stack trace to learn that Java is missing."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(ConfigError, match="openjdk-17"):
        session()
