"""The checker of histories believes nothing: each thing that must not happen, done to a good history, is told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.soak.check import Verdict, check
from tests.soak.history import History, HistoryError
from tests.soak.plan import KINDS

Events = list[dict[str, Any]]


@pytest.fixture
def events() -> Events:
    """A good history in small: two publishers, three messages each, one copy too many, one kill."""
    history: Events = [
        {
            "event": "begin",
            "format": 1,
            "seed": 1,
            "messages": 6,
            "publishers": 2,
            "faults": 1,
            "forwarding": "exact",
            "marking": False,
            "servers": "RabbitMQ, Redis",
        }
    ]
    for number in (1, 2, 3):
        for publisher in ("a", "b"):
            message = f"{publisher} {number}"
            history += [
                {"event": "ask", "publisher": publisher, "message": message, "sequence": number},
                {"event": "arrived", "message": message},
                {"event": "confirmed", "publisher": publisher, "message": message, "attempts": 1},
                {"event": "read", "message": message, "marked": False},
            ]
    history[9:9] = [
        {"event": "fault", "number": 1, "kind": "shim killed"},
        {"event": "healed", "number": 1, "facts": {"kills": 1, "in_batch": 1}},
        {"event": "shim", "shim": "shim-2", "what": "dedup.recovered", "facts": {}},
        {"event": "arrived", "message": "a 1"},
    ]
    return history


@pytest.fixture
def judge(tmp_path: Path) -> Callable[[Events], Verdict]:
    """Write events as a whole history, so that only what they say can be wrong, and check it."""

    def written(events: Events) -> Verdict:
        with History(tmp_path / "history.jsonl") as history:
            for event in events:
                history.write(**event)
            return check(history.end())

    return written


def place(events: Events, name: str, message: str) -> int:
    """Return where the first event of this name and message is."""
    return next(
        at for at, event in enumerate(events) if (event["event"], event.get("message")) == (name, message)
    )


def hurt(kind: str) -> Events:
    """Return a fault that begins and ends."""
    return [
        {"event": "fault", "number": 2, "kind": kind},
        {"event": "healed", "number": 2, "facts": {}},
    ]


def said(*names: str) -> Events:
    """Return what a shim logs."""
    return [{"event": "shim", "shim": "shim-2", "what": what, "facts": {}} for what in names]


def test_a_good_history_is_clean(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """Everything is counted, and nothing speaks against it."""
    verdict = judge(events)
    assert verdict.ok, verdict.failures
    told = verdict.as_dict()
    assert (told["messages"], told["copies"], told["forwarded"], told["dropped"]) == (6, 7, 6, 1)
    assert told["faults"] == {"shim killed": 1}
    assert told["met"] == {"kills": 1, "in_batch": 1}
    assert told["shims"] == {"dedup.recovered": 1}
    assert "Every promise was kept" in verdict.text()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ask", "only 5 of 6 messages were asked for"),
        ("ask", "copies are of messages that nobody asked for"),
        ("arrived", "had never arrived"),
        ("confirmed", "never confirmed"),
        ("read", "1 messages are lost"),
    ],
)
def test_a_dropped_line_is_told(
    events: Events, judge: Callable[[Events], Verdict], name: str, told: str
) -> None:
    """Without one of its lines a message is unasked, unsent, unconfirmed or lost."""
    del events[place(events, name, "b 2")]
    verdict = judge(events)
    assert not verdict.ok
    assert told in verdict.text()


def test_a_doubled_read_is_a_duplicate(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """The second copy is unmarked, so it is counted."""
    events.append(events[place(events, "read", "a 2")])
    assert judge(events).failures == ("1 duplicates are not marked",)


def test_a_mark_without_a_cause_is_told(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """The kill of a shim is no cause where forwarding is exact, and one where it is confirmed; before it nothing is."""
    late, early = place(events, "read", "b 3"), place(events, "read", "a 1")
    events[late]["marked"] = True
    assert "1 messages are marked and no fault allows it (b 3)" in judge(events).failures
    events[0]["forwarding"] = "confirmed"
    assert judge(events).ok
    events[early]["marked"] = True
    assert "1 messages are marked and no fault allows it (a 1)" in judge(events).failures


@pytest.mark.parametrize("kind", sorted(name for name, kind in KINDS.items() if kind.marking))
def test_a_crash_or_a_rollback_allows_marks_after_it(
    events: Events, judge: Callable[[Events], Verdict], kind: str
) -> None:
    """What comes before the fault stays forbidden."""
    events[place(events, "read", "b 3")]["marked"] = True
    assert judge(events[:-4] + hurt(kind) + events[-4:]).ok
    assert not judge(events + hurt(kind)).ok


def test_a_marked_duplicate_is_no_duplicate(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """A consumer can tell it by its mark."""
    copy = {"event": "read", "message": "a 1", "marked": True}
    verdict = judge([*events, *hurt("RabbitMQ killed"), copy])
    assert verdict.ok
    assert (verdict.account.marked, verdict.account.duplicates) == (1, 0)


def test_an_invented_message_is_told(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """Nobody had asked for it."""
    events.append({"event": "read", "message": "c 1", "marked": False})
    assert "1 copies are of messages that nobody asked for" in judge(events).failures


def test_a_swapped_order_is_told(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """The second message of a publisher has overtaken the first; only a target that refuses may do that."""
    first, second = place(events, "read", "a 1"), place(events, "read", "a 2")
    events[first], events[second] = events[second], events[first]
    assert judge(events).failures == ("1 messages were overtaken by later ones of their publisher",)
    assert judge(events + hurt("target full")).ok


def test_one_sequence_stands_for_one_message(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """A publisher that resumes says the same again, and nothing else."""
    again = events[place(events, "ask", "a 2")]
    assert judge([*events, again]).ok
    assert any("stand for two" in told for told in judge([*events, {**again, "sequence": 1}]).failures)


def test_quarantine_needs_a_reason_and_a_cause(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """An honest publisher's message is judged, unless the state was lost."""
    at = place(events, "read", "b 3")
    events[at] = {"event": "quarantined", "message": "b 3", "reason": "too-old"}
    assert judge(events).failures == ("1 messages are in quarantine and no fault allows it (b 3 (too-old))",)
    cause = hurt("Redis emptied, all shims killed")
    assert judge(events[:at] + cause + events[at:]).ok
    events[at]["reason"] = ""
    assert any("without a reason" in told for told in judge(events[:at] + cause + events[at:]).failures)


def test_a_rollback_is_reported_for_a_cause(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """A shim that gives its windows up although nothing took state back is wrong."""
    rollback = said("dedup.recovered", "dedup.rolled_back")
    uncaused = "1 rollbacks were reported that nothing had caused (shim-2 at "
    assert any(told.startswith(uncaused) for told in judge(events + rollback).failures)
    assert judge(events + hurt("Redis emptied") + rollback).ok


@pytest.mark.parametrize("forwarding", ["exact", "confirmed"])
def test_a_restart_of_redis_is_no_cause_for_a_rollback(
    events: Events, judge: Callable[[Events], Verdict], forwarding: str
) -> None:
    """The ledger repeats what Redis may lose, whichever way batches are forwarded."""
    events[0]["forwarding"] = forwarding
    restart, recovered, rollback = hurt("Redis killed"), said("dedup.recovered"), said("dedup.rolled_back")
    assert judge(events + restart + recovered).ok
    assert not judge(events + restart + recovered + rollback).ok


def test_a_run_that_proves_nothing_is_no_success(events: Events, judge: Callable[[Events], Verdict]) -> None:
    """Too few faults, one without an end, or no copy to drop."""
    extra = len(events) - 1 - events[::-1].index({"event": "arrived", "message": "a 1"})
    assert judge(events[:extra] + events[extra + 1 :]).failures == ("no message arrived twice",)
    open_ended = [event for event in events if event["event"] != "healed"]
    assert judge(open_ended).failures == ("a fault was never healed",)
    events[0]["faults"] = 2
    assert judge(events).failures == ("only 1 of 2 faults happened",)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines[:-1], "stops after line"),
        (lambda lines: lines[:5] + lines[6:], "it was changed"),
        (lambda lines: lines[:5] + lines[4:], "it was changed"),
        (lambda lines: [*lines, lines[3]], "comes after the end"),
        (lambda lines: lines[1:], "a history begins once"),
        (lambda lines: [*lines[:3], lines[3][:20], *lines[4:]], "is not JSON"),
        (lambda lines: [*lines[:3], '{"event":"made up"}', *lines[4:]], "no event of a history"),
        (
            lambda lines: [*lines[:3], '{"event":"read","message":1}', *lines[4:]],
            "read needs message, marked",
        ),
        (lambda lines: [lines[0].replace('"format":1', '"format":2'), *lines[1:]], "format 2"),
        (lambda _: [], "stops after line 0"),
    ],
)
def test_what_is_no_whole_history_is_refused(
    events: Events, tmp_path: Path, change: Callable[[list[str]], list[str]], told: str
) -> None:
    """A file that was cut off or edited proves nothing, whatever it says."""
    lines = [json.dumps({"at": 0, **event}, separators=(",", ":")) for event in events]
    lines.append(json.dumps({"event": "end", "lines": len(lines) + 1}))
    whole, changed = tmp_path / "whole.jsonl", tmp_path / "changed.jsonl"
    whole.write_text("\n".join(lines) + "\n")
    changed.write_text("\n".join(change(lines)) + "\n" if change(lines) else "")
    assert check(whole).ok
    with pytest.raises(HistoryError, match=told):
        check(changed)


def test_a_compressed_history_that_was_cut_is_refused(
    events: Events, judge: Callable[[Events], Verdict], tmp_path: Path
) -> None:
    """So is one that is not there."""
    judge(events)
    packed = tmp_path / "history.jsonl.gz"
    whole = gzip.decompress(packed.read_bytes())
    packed.write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(HistoryError, match="cannot be read"):
        check(packed)
    with pytest.raises(HistoryError, match="cannot be read"):
        check(tmp_path / "missing.jsonl")
