"""Mutants of what the relay tells the audit: each makes the log say something that is not so."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from dedup.core import steps
from dedup.core.judge import Judged
from dedup.core.recorder import Recorder
from dedup.core.records import State
from tests.simulation.mutants import Mutant, replaced
from tests.simulation.relay_worlds import AUDITED

_begin = Recorder.begin
_record = Recorder.record
_stored = Recorder.stored


def _believed_untold(self: Recorder, state: State) -> None:
    _begin(self, evolve(state, believed=None))


def _numbers_used_up(self: Recorder, batch: int, at_s: float, rows: Any) -> steps.Record | None:
    record = _record(self, batch, at_s, rows)
    if record is not None:
        _stored(self)
    return record


def _stored_and_judged(self: Judged) -> list[steps.Outgoing]:
    remaining = {id(out) for out in self.remaining}
    return [out for out in self.judged if id(out) not in remaining]


def _audited(name: str) -> dict[str, Any]:
    return {**AUDITED[name], "audited": True}


FALSE_LOSS = "was dropped and never forwarded"

MUTANTS = {
    "what markers prove is not told": Mutant(
        replaced(Recorder, "begin", _believed_untold), _audited("surveyed: a kill"), FALSE_LOSS
    ),
    "numbers of rows that were not stored are used up": Mutant(
        replaced(Recorder, "record", _numbers_used_up),
        _audited("confirmed: the target refuses"),
        "there is no row",
    ),
    "copies of a message that was refused are told with the batch": Mutant(
        replaced(Judged, "stored", _stored_and_judged),
        _audited("confirmed: the target refuses one of two copies"),
        FALSE_LOSS,
    ),
}
