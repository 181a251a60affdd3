"""
Hold the history of a soak against what dedup promises; nothing but the file is believed.

A mark is allowed only after a fault that may lead to one (`tests.soak.plan`): in exact forwarding after a crash of the broker
or a rollback of the state, in confirmed forwarding also after a session of a shim was lost. A message in quarantine needs a
crash or a rollback before it in both. So does a rollback that a shim reports; but in confirmed forwarding nobody can tell a
Redis that restarted from one that lost its last second (guarantees, row 6), so it may be reported until a shim has recovered
without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, asdict, define

from dedup.testing.oracle import EXAMPLES_MAX, Account, Oracle
from tests.soak.history import Event, HistoryError, read
from tests.soak.plan import KINDS

#: What a shim says when it takes over, and right after that when it had to give its windows up.
_ROLLED_BACK = "dedup.rolled_back"


@define
class Found:
    """
    What a history says, event by event.
    """

    wishes: Event = Factory(dict)
    oracle: Oracle = Factory(Oracle)
    #: Faults by kind.
    faults: Counter[str] = Factory(Counter)
    #: What faults met, added up: kills, kills inside a batch, take-overs.
    met: Counter[str] = Factory(Counter)
    #: What shims said, by the name of the event.
    shims: Counter[str] = Factory(Counter)
    resumed: int = 0
    failed: list[str] = Factory(list)
    #: What is wrong, in the order of the history; *oracle* knows of the rest.
    marked_without_cause: list[str] = Factory(list)
    quarantined_without_cause: list[str] = Factory(list)
    quarantined_without_reason: list[str] = Factory(list)
    rolled_back_without_cause: list[str] = Factory(list)
    numbered_twice: list[str] = Factory(list)
    _sequences: dict[tuple[str, int], str] = Factory(dict)
    _open: dict[int, str] = Factory(dict)

    @property
    def healed(self) -> bool:
        """
        Whether every fault was over in the end.
        """
        return not self._open

    def take(self, event: Event) -> None:
        """
        Take the next event.
        """
        take = _TAKES.get(event["event"])
        if take is not None:
            take(self, event)

    def _begun(self, event: Event) -> None:
        self.wishes = event

    def _asked(self, event: Event) -> None:
        publisher, message, sequence = event["publisher"], event["message"], event["sequence"]
        if message not in self.oracle.asked:
            self.oracle.ask(publisher, message)
        # A publisher that resumes asks again, and must say the same.
        first = self._sequences.setdefault((publisher, sequence), message)
        if first != message or self.oracle.asked[message] != publisher:
            self.numbered_twice.append(f"{publisher} {sequence}: {first!r} and {message!r}")

    def _confirmed(self, event: Event) -> None:
        self.oracle.confirm(event["message"])

    def _failed(self, event: Event) -> None:
        self.failed.append(f"{event['message']}: {event['why']}")

    def _resumed(self, _: Event) -> None:
        self.resumed += 1

    def _arrived(self, event: Event) -> None:
        self.oracle.arrive(event["message"])

    def _read(self, event: Event) -> None:
        self.oracle.deliver(event["message"], marked=event["marked"])
        if event["marked"] and not self._may_mark():
            self.marked_without_cause.append(event["message"])

    def _quarantined(self, event: Event) -> None:
        message, reason = event["message"], event["reason"]
        self.oracle.quarantine(message)
        if not reason:
            self.quarantined_without_reason.append(message)
        if not self._state_in_danger():
            self.quarantined_without_cause.append(f"{message} ({reason})")

    def _hurt(self, event: Event) -> None:
        number, kind = event["number"], event["kind"]
        if kind not in KINDS:
            raise HistoryError(f"fault {number} is of no kind this program knows: {kind}")
        self.faults[kind] += 1
        self._open[number] = kind

    def _healed(self, event: Event) -> None:
        number = event["number"]
        if self._open.pop(number, None) is None:
            raise HistoryError(f"fault {number} is healed and had not begun")
        self.met.update({name: int(count) for name, count in event["facts"].items()})

    def _logged(self, event: Event) -> None:
        what = event["what"]
        self.shims[what] += 1
        if what == _ROLLED_BACK and not self._state_in_danger():
            self.rolled_back_without_cause.append(f"{event['shim']} at {event['at']} s")

    def _may_mark(self) -> bool:
        return any(self.wishes["forwarding"] in KINDS[kind].marks for kind in self.faults)

    def _state_in_danger(self) -> bool:
        return any(KINDS[kind].marking for kind in self.faults)


_TAKES: Mapping[str, Callable[[Found, Event], None]] = {
    "begin": Found._begun,
    "ask": Found._asked,
    "confirmed": Found._confirmed,
    "failed": Found._failed,
    "resume": Found._resumed,
    "arrived": Found._arrived,
    "read": Found._read,
    "quarantined": Found._quarantined,
    "fault": Found._hurt,
    "healed": Found._healed,
    "shim": Found._logged,
}


@define
class Verdict:
    """
    What a history proves.
    """

    found: Found
    account: Account

    @property
    def failures(self) -> tuple[str, ...]:
        """
        What speaks against it, a clause each.
        """
        return (*self._proves_nothing(), *self._broken())

    @property
    def ok(self) -> bool:
        """
        Whether every promise was kept, under the faults that were wished for.
        """
        return not self.failures

    def _proves_nothing(self) -> Iterator[str]:
        wishes, account = self.found.wishes, self.account
        if account.messages < wishes["messages"]:
            yield f"only {account.messages:,} of {wishes['messages']:,} messages were asked for"
        if self.found.faults.total() < wishes["faults"]:
            yield f"only {self.found.faults.total()} of {wishes['faults']} faults happened"
        if not self.found.healed:
            yield "a fault was never healed"
        if account.copies <= account.messages:
            yield "no message arrived twice"

    def _broken(self) -> Iterator[str]:
        found, account = self.found, self.account
        oracle = found.oracle
        refused = any(KINDS[kind].refuses for kind in found.faults)
        unconfirmed = [message for message in oracle.asked if message not in oracle.confirmed]
        ghosts = sorted({*oracle.delivered, *oracle.quarantined} - {*oracle.arrived})
        yield from _said(unconfirmed, "messages were never confirmed")
        yield from _said(found.failed, "messages failed")
        if account.lost:
            yield f"{account.lost:,} messages are lost"
        if account.duplicates:
            yield f"{account.duplicates:,} duplicates are not marked"
        if account.unexpected:
            yield f"{account.unexpected:,} copies are of messages that nobody asked for"
        # What a target refused is published again, behind what it took meanwhile.
        if account.disordered and not refused:
            yield f"{account.disordered:,} messages were overtaken by later ones of their publisher"
        yield from _said(ghosts, "messages were read and had never arrived")
        yield from _said(found.marked_without_cause, "messages are marked and no fault allows it")
        yield from _said(found.quarantined_without_cause, "messages are in quarantine and no fault allows it")
        yield from _said(found.quarantined_without_reason, "messages are in quarantine without a reason")
        yield from _said(found.rolled_back_without_cause, "rollbacks were reported that nothing had caused")
        yield from _said(found.numbered_twice, "sequences stand for two messages")

    def as_dict(self) -> dict[str, Any]:
        """
        Return all of it for machines.
        """
        found = self.found
        asked_for = ("seed", "messages", "publishers", "faults", "forwarding", "marking", "servers")
        return {
            "ok": self.ok,
            "wished": {name: found.wishes[name] for name in asked_for},
            **asdict(self.account),
            "marked_without_cause": len(found.marked_without_cause),
            "resumed": found.resumed,
            "faults": dict(sorted(found.faults.items())),
            "met": dict(found.met),
            "shims": dict(sorted(found.shims.items())),
            "failures": list(self.failures),
        }

    def text(self) -> str:
        """
        Return all of it for people.
        """
        told = self.as_dict()
        wished = told["wished"]
        marks = "allowed" if wished["marking"] else "no fault took state back"
        lines = [
            f"{wished['forwarding']} forwarding, {wished['servers']}, seed {wished['seed']}, {marks}",
            "",
            *_rows(asdict(self.account), leave_out={"examples"}),
            *_rows({"marked without cause": told["marked_without_cause"], "resumed": told["resumed"]}),
            "",
            *_rows({"faults": self.found.faults.total()} | told["faults"]),
            "",
            *_rows(told["met"] | told["shims"]),
            "",
            *(f"  {example}" for example in self.account.examples),
        ]
        said = "Every promise was kept." if self.ok else f"BROKEN: {'; '.join(self.failures)}."
        return "\n".join([*lines, said])


def check(path: Path) -> Verdict:
    """
    Return what the history at *path* proves.

    Raises:
        HistoryError: it is no whole history.
    """
    found = Found()
    for event in read(path):
        found.take(event)
    return Verdict(found, found.oracle.account())


def _said(wrong: list[str], what: str) -> Iterator[str]:
    if wrong:
        yield f"{len(wrong):,} {what} ({', '.join(wrong[:EXAMPLES_MAX])})"


def _rows(numbers: dict[str, Any], leave_out: frozenset[str] | set[str] = frozenset()) -> list[str]:
    return [f"  {name:<36}{number:>10,}" for name, number in numbers.items() if name not in leave_out]
