"""Hostile properties by the thousand, and that the check which a million pass can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dedup.amqp091 import properties
from dedup.amqp091.properties import Stamp, amend, scan
from tests.hostile import fuzz
from tests.hostile.catalogue import entry, long, raw, sequence, text
from tests.hostile.mutator import hostile

#: What once broke the codec or the second reader, each with the reason it is here.
FOUND = {
    "the list ends right behind its table": b"\x21\x00" + long(b"", entry(b"dedup-reason", text(b"forged"))),
    "a table that claims one byte more": b"\x20\x00\x00\x00\x00\x04\x01nV",
    "a sequence twice, and a list that ends early": b"\x20\x08"
    + long(b"", sequence() + sequence())
    + b"\x09a",
    "an array that reaches into the next header": raw(
        entry(b"z", long(b"A", b"S\x00\x00\x00\x1aa")) + sequence()
    ),
    "more flags follow, says the list": b"\x68\x09\x01\x00\x00\x00\x00\x00\x00\x06shop-1",
    "a flag without meaning": b"\x00\x02",
    "a nested table longer than the headers": raw(entry(b"n", b"F\x00\x00\x01\x00")),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_found(name: str) -> None:
    """Each has its answer now."""
    fuzz.check(FOUND[name], fuzz.Tally(), counted=True)


def test_thousands_of_hostile_tables_get_an_answer() -> None:
    """No exception but a documented refusal, bounded work, every other byte in its place; and each refusal was met."""
    tally = fuzz.run(15_000, seed=2024)
    assert set(tally.faults) - {""} == fuzz.FAULTS
    assert min(tally.stamped, tally.unstamped, tally.reserved, tally.by_pika) > 500
    assert tally.bytes_max > 100_000


def test_a_seed_and_an_index_name_a_table() -> None:
    """A failure can be repeated by its two numbers."""
    assert [hostile(5, index) for index in range(50)] == [hostile(5, index) for index in range(50)]
    assert hostile(5, 7) != hostile(6, 7)


def _raising(raw: bytes) -> Stamp:
    """Raise on what it does not know, as decoders do."""
    if b"\xff\xff\xff\xff" in raw:
        raise ValueError("no such length")
    return scan(raw)


def _believing(raw: bytes) -> Stamp:
    """Believe a sequence of 0."""
    stamp = scan(raw)
    return stamp._replace(publisher="p", sequence=0, fault=None) if stamp.fault == "sequence-range" else stamp


def _guessing(raw: bytes) -> Stamp:
    """Take a text for a number."""
    stamp = scan(raw)
    return stamp._replace(publisher="p", sequence=7, fault=None) if stamp.fault == "sequence-kind" else stamp


def _looping(raw: bytes) -> Stamp:
    """Look at each byte again for each byte before it."""
    for end in range(len(raw)):
        for at in range(end):
            raw[at]
    return scan(raw)


def _losing(raw: bytes, **options: Any) -> bytes:
    """Lose what follows the list."""
    known, _ = properties.split(raw)
    return amend(properties.join(known), **options)


def _trusting(raw: bytes, **options: Any) -> bytes:
    """Leave a forged reason in."""
    return amend(raw, **{**options, "drop": frozenset()})


def _growing(raw: bytes, **options: Any) -> bytes:
    """Put a header in front again each time."""
    return amend(raw, **{**options, "headers": [*options.get("headers", ()), (f"n{len(raw)}", 1)]})


@pytest.mark.parametrize("mutant", [_raising, _believing, _guessing, _looping, _losing, _trusting, _growing])
def test_a_worse_codec_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: Callable[..., Any]) -> None:
    """The check can fail: for an exception, a stamp made up, too much work, lost bytes, a forged header, a second pass."""
    monkeypatch.setattr(fuzz, "amend" if mutant in (_losing, _trusting, _growing) else "scan", mutant)
    with pytest.raises(fuzz.HostileError, match="--first"):
        fuzz.run(1_000, seed=1)


def test_runs_from_the_command_line() -> None:
    """The exit code says whether all holds; the figures say what was met."""
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--count", "200", "--seed", "3"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("200 tables")
