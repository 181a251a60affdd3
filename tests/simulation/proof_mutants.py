"""Mutants of the marker proof: what a relay believes of a killed channel's work, and when it takes that for proven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from dedup.core import parts, recovery, relay, steps
from dedup.core.judge import Judge
from dedup.core.phase import Phase
from dedup.core.proof import Proof
from dedup.core.records import Batch, Leadership, Marker, MarkerKind, State
from dedup.core.relay import Relay
from dedup.core.window import Verdict, judge
from tests.simulation.mutants import LOST, STAYS, UNALLOWED, UNMARKED, Mutant, knowing, replaced

_on_forwarded = Relay._on_forwarded
_on_surveyed = Relay._on_surveyed
_surveyed = Proof.surveyed
_judge = Judge._judge
_fate = parts.fate
_markers_between = parts.markers_between


def _proven_unasked(self: Relay, event: steps.Forwarded, now_s: float) -> list[steps.Effect]:
    if self.phase is Phase.FORWARDING and self.judge.believed is not None:
        self.judge.prove()
    return _on_forwarded(self, event, now_s)


def _belief_renewed(self: Relay, event: steps.Surveyed, now_s: float) -> list[steps.Effect]:
    believed, now = self.judge.believed, event.leadership
    if self.phase not in (Phase.SURVEYING, Phase.PROVING) and believed is not None and now is not None:
        self.judge.believed = evolve(believed, leadership=now)
    return _on_surveyed(self, event, now_s)


def _somebody_leads(self: Proof, survey: steps.Surveyed, *, published: bool) -> None:
    somebody = survey.leadership or Leadership("", 1, 0)
    _surveyed(self, evolve(survey, leadership=somebody), published=published)


def _acquainted_at_once(self: Proof, survey: steps.Surveyed, *, published: bool) -> None:
    _surveyed(self, survey, published=published and False)


def _no_parts(*_: Any) -> None:
    return None


def _windows_outweigh_doubt(
    self: Judge, arrival: steps.Arrival, now_s: float, taken: set[tuple[str, int]]
) -> steps.Outgoing:
    publisher, sequence = arrival.publisher or "", arrival.sequence or 0
    entry = self.publishers.entries().get(publisher)
    if entry is not None and sequence and self.believed is None:
        verdict, _ = judge(entry.window, sequence, self._settings.window_size)
        if verdict is Verdict.DUPLICATE:
            taken = {*taken, (publisher, sequence)}
    return _judge(self, arrival, now_s, taken)


def _nothing_to_spare(
    self: Judge, arrival: steps.Arrival, now_s: float, taken: set[tuple[str, int]]
) -> steps.Outgoing:
    out = _judge(self, arrival, now_s, taken)
    self.spare = None
    return out


def _forgets_what_was_believed(state: State | None) -> State | None:
    return state and evolve(state, believed=None)


def _parts_only(outgoing: Sequence[steps.Outgoing], intent: Batch) -> list[tuple[int, Marker]]:
    markers = _markers_between(outgoing, intent)
    return [(position, marker) for position, marker in markers if marker.kind is MarkerKind.PART]


def _no_tail(intent: Batch, markers: Sequence[Marker], leadership: Leadership | None) -> parts.Fate:
    found = _fate(intent, markers, leadership)
    return evolve(found, doubtful={}) if intent.parts is not None else found


#: A kill where it is known who leads the target.
SURVEYED: dict[str, Any] = {"exact": False, "surveyed": True, "copies": 1, "kills": 1}
#: The same with another leader, and with a relay that asks who leads all the time.
ELECTED: dict[str, Any] = {**SURVEYED, "elections": 1, "batch_max": 1, "prefetch": 2}
ASKING: dict[str, Any] = {**ELECTED, "anchor_every_s": 1.0}

MUTANTS = {
    "acks not held back while something is believed": Mutant(
        replaced(Judge, "ackable", lambda _, tag: tag), {**SURVEYED, "messages": 1, "elections": 1}, LOST
    ),
    "a belief proven without asking again who leads": Mutant(
        replaced(Relay, "_on_forwarded", _proven_unasked), ELECTED, LOST
    ),
    "a belief that goes over to the leader found later": Mutant(
        replaced(Relay, "_on_surveyed", _belief_renewed), ASKING, LOST
    ),
    "a belief that no message is spared to prove": Mutant(
        replaced(Judge, "_judge", _nothing_to_spare), {**SURVEYED, "messages": 1}, STAYS, rest_every=1
    ),
    "what was believed forgotten by the next relay": Mutant(
        knowing(_forgets_what_was_believed), {**SURVEYED, "messages": 1, "kills": 2, "elections": 1}, LOST
    ),
    "doubt that does not outweigh windows": Mutant(
        replaced(Judge, "_judge", _windows_outweigh_doubt),
        {**SURVEYED, "messages": 1, "kills": 2, "elections": 1},
        LOST,
    ),
    "the leader ignored": Mutant(replaced(Leadership, "holds_since", lambda *_: True), ELECTED, LOST),
    "markers of parts believed without a survey": Mutant(
        replaced(Proof, "surveyed", _somebody_leads), {"exact": False, "copies": 1, "kills": 1}, UNMARKED
    ),
    "a survey that finds another leader used at once": Mutant(
        replaced(Proof, "surveyed", _acquainted_at_once),
        {**ASKING, "messages": 3, "anchor_every_s": 3.0},
        LOST,
    ),
    "no markers of parts": Mutant(replaced(Proof, "parts", _no_parts), SURVEYED, f"marked {UNALLOWED}"),
    "the part after the newest marker not doubted": Mutant(
        replaced(recovery, "fate", _no_tail), {**SURVEYED, "messages": 1}, UNMARKED
    ),
    "intents in Redis only": Mutant(
        replaced(relay, "markers_between", _parts_only),
        {"exact": False, "messages": 1, "kills": 1, "redis_regressions": 1, "batch_max": 1},
        UNMARKED,
    ),
}
