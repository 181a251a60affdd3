"""Every phase of a relay and every event it may hear in it; and how each of them ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dedup.core import steps
from dedup.core.phase import Phase
from dedup.core.records import Batch, Marker, MarkerKind, State
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from dedup.core.steps import Event
from tests.simulation.catalog import freeze
from tests.unit.relay_bench import (
    ANCHORED,
    FORWARDED,
    LEADER,
    SAVED,
    STOP,
    TICKED,
    TOKEN,
    Bench,
    believing,
    forward_new,
    kinds,
)


def _led(*events: Event, state: State | None = None) -> Callable[[], Bench]:
    """Return a maker of benches that have heard *events*."""

    def make() -> Bench:
        bench = Bench(state)
        bench.tell(*events)
        return bench

    return make


def _started(*events: Event, **settings: Any) -> Callable[[], Bench]:
    """Return a maker of benches that work, have one message and then hear *events*."""

    def make() -> Bench:
        bench = Bench(refused_delay_s_min=50.0, refused_delay_s_max=50.0, **settings).start()
        if events:
            bench.arrive(1)
            bench.tell(*events)
        return bench

    return make


def _proving() -> Bench:
    """Return a bench that asks who leads, to prove what it believes."""
    bench = believing()
    forward_new(bench, 3)
    return bench


def _recording() -> Bench:
    """Return a bench that tells the audit what the target took of a batch before it gave up."""
    bench = Bench(exact=False, audit=True, refusals_max=1).start()
    bench.arrive(1, 2)
    bench.tell(SAVED, steps.Refused([1]))
    return bench


_FIRST = Marker(MarkerKind.FIRST, Batch(TOKEN, 0))
_CLAIMED = (steps.Started(), steps.Claimed(TOKEN, None, True))
_READ = (*_CLAIMED, steps.MarkerArrived(1, _FIRST), ANCHORED)
_SURVEYED = (*_READ, steps.Surveyed(None))
_NOTHING_YET = steps.Ticked()

PHASES: dict[Phase, Callable[[], Bench]] = {
    Phase.NEW: _led(),
    Phase.CLAIMING: _led(steps.Started()),
    Phase.READING_LEDGER: _led(*_CLAIMED),
    Phase.SURVEYING: _led(*_READ),
    Phase.RECOVERING: _led(*_SURVEYED),
    Phase.ANCHORING: _led(*_SURVEYED, SAVED),
    Phase.IDLE: _started(),
    Phase.SAVING: _started(_NOTHING_YET),
    Phase.FORWARDING: _started(SAVED),
    Phase.PROVING: _proving,
    Phase.REFUSED: _started(SAVED, steps.Refused([0]), exact=False),
    Phase.FAILING: _started(SAVED, steps.CommitPartial()),
    Phase.RECORDING: _recording,
    Phase.CLOSING: _started(SAVED, FORWARDED, SAVED, STOP),
    Phase.MARKING_CLEAN: _started(SAVED, FORWARDED, SAVED, STOP, steps.Closed()),
    Phase.ENDED: _started(SAVED, FORWARDED, SAVED, STOP, steps.Closed(), SAVED),
}

EVENTS: dict[str, Event] = {
    "Started": steps.Started(),
    "Claimed": steps.Claimed(TOKEN + 1, State(7, 1), True),
    "MarkerArrived": steps.MarkerArrived(99, None),
    "StrayArrived": steps.StrayArrived(98, None),
    "Surveyed": steps.Surveyed(LEADER),
    "Anchored": ANCHORED,
    "Saved": SAVED,
    "StoreBehind": steps.StoreBehind(),
    "Arrived": steps.Arrived([steps.Arrival(50, False, "q", 1)]),
    "Forwarded": FORWARDED,
    "Refused": steps.Refused([0]),
    "CommitPartial": steps.CommitPartial(),
    "Ticked": TICKED,
    "StopRequested": STOP,
    "Closed": steps.Closed(),
}

#: What found no queue ends every session that has begun to publish.
_STRAY: dict[str, list[type]] = {"StrayArrived": [steps.End]}

#: What each phase answers with effects; everything else it hears changes nothing but its notes.
ANSWERS: dict[Phase, dict[str, list[type]]] = {
    Phase.NEW: {"Started": [steps.ClaimState], "StopRequested": [steps.End]},
    Phase.CLAIMING: {"Claimed": [steps.Anchor], "StopRequested": [steps.End]},
    Phase.READING_LEDGER: {"Anchored": [], "StopRequested": [steps.End]},
    Phase.SURVEYING: {"Surveyed": [steps.Replace], "StopRequested": [steps.End], **_STRAY},
    Phase.RECOVERING: {"Saved": [steps.Anchor, steps.Consume], "StopRequested": [steps.End], **_STRAY},
    Phase.ANCHORING: {"Anchored": [], **_STRAY},
    Phase.IDLE: {"Arrived": [steps.Save], "Ticked": [], "StopRequested": [steps.Close], **_STRAY},
    Phase.SAVING: {"Saved": [steps.Forward], "StoreBehind": [steps.Replace], **_STRAY},
    Phase.FORWARDING: {"Forwarded": [steps.Save], "Refused": [], "CommitPartial": [steps.Save], **_STRAY},
    Phase.PROVING: {"Surveyed": [steps.Save], **_STRAY},
    Phase.REFUSED: {"StopRequested": [steps.Save], **_STRAY},
    Phase.FAILING: {"Saved": [steps.End], "StoreBehind": [steps.Replace], **_STRAY},
    Phase.RECORDING: {"Anchored": [steps.Save], **_STRAY},
    Phase.CLOSING: {"Closed": [steps.Save], **_STRAY},
    Phase.MARKING_CLEAN: {"Saved": [steps.End], "StoreBehind": [steps.Replace], **_STRAY},
    Phase.ENDED: {},
}

#: Taken note of in every phase, whatever is being waited for.
NOTED = {"MarkerArrived", "StrayArrived", "Surveyed", "Arrived", "StopRequested"}


def test_the_table_is_complete() -> None:
    """Every phase there is, reached as it says, and every event there is."""
    assert set(PHASES) == set(ANSWERS) == set(Phase)
    assert set(EVENTS) == {kind.__name__ for kind in Relay(RelaySettings())._handlers}
    for phase, make in PHASES.items():
        assert make().relay.phase is phase


@pytest.mark.parametrize("phase", Phase, ids=[phase.value for phase in Phase])
@pytest.mark.parametrize("name", EVENTS)
def test_each_phase_hears_each_event(phase: Phase, name: str) -> None:
    """handle() is total: what a phase does not wait for has no effect and moves it nowhere."""
    bench = PHASES[phase]()
    before = freeze(bench.relay)
    effects = bench.tell(EVENTS[name])
    assert kinds(effects) == ANSWERS[phase].get(name, [])
    if name in ANSWERS[phase]:
        return
    assert bench.relay.phase is phase
    if name not in NOTED and name != "Saved":
        assert freeze(bench.relay) == before


# -- the end --------------------------------------------------------------------------------------


def test_a_stop_finishes_the_batch_and_forgets_what_was_not_begun() -> None:
    """What waits is delivered again to the next session; what is in flight is settled."""
    bench = Bench(batch_max=1).start()
    bench.arrive(1, 2)
    assert bench.tell(STOP) == []
    assert kinds(bench.tell(SAVED)) == [steps.Forward]
    assert kinds(bench.forwarded()) == [steps.Save]
    assert bench.tell(SAVED) == [steps.Ack(1), steps.Close()]


def test_a_suspicious_relay_does_not_end_clean() -> None:
    """Redelivered messages may still come: the next session must go on marking them."""
    bench = Bench(State(1, 5, {})).start()
    bench.tell(STOP)
    assert bench.tell(steps.Closed()) == [steps.End("")]


@pytest.mark.parametrize(
    "phase", [Phase.NEW, Phase.CLAIMING, Phase.READING_LEDGER, Phase.SURVEYING, Phase.RECOVERING]
)
def test_a_stop_before_work_began_ends_at_once(phase: Phase) -> None:
    """Nothing was taken, so nothing is left."""
    bench = PHASES[phase]()
    assert bench.tell(STOP) == [steps.End("")]
    assert bench.relay.phase is Phase.ENDED


def test_a_stop_while_anchoring_waits_for_the_broker() -> None:
    """A transaction is in flight: its answer comes first."""
    bench = PHASES[Phase.ANCHORING]()
    assert bench.tell(STOP) == []
    assert bench.anchored() == [steps.Close()]


@pytest.mark.parametrize("first_heard", [steps.MarkerArrived(1, _FIRST), ANCHORED], ids=["marker", "answer"])
def test_nothing_is_published_between_a_first_marker_and_its_answer(first_heard: Event) -> None:
    """The broker may deliver the marker before it answers; whoever commits again then loses the connection (504)."""
    bench = Bench(None)
    bench.tell(*_CLAIMED)
    assert not bench.tell(first_heard)
    other = ANCHORED if first_heard is not ANCHORED else steps.MarkerArrived(1, _FIRST)
    assert kinds(bench.tell(other)) == [steps.Survey]
