"""
The relay, phase by phase; tests/simulation explores it as a whole.

A bench leads the relay to a phase and keeps every effect, so the order of effects can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core import steps
from dedup.core.publishers import Changes, Entry
from dedup.core.records import Batch, Marker, MarkerKind, State
from dedup.core.relay import Phase, Relay
from dedup.core.settings import RelaySettings
from dedup.core.steps import Effect, Event
from dedup.core.window import Verdict, Window
from tests.simulation.relay_world import freeze

NOW_S = 1_000.0
TOKEN = 1_000_000
SAVED, FORWARDED, ANCHORED, TICKED, STOP = (
    steps.Saved(),
    steps.Forwarded(),
    steps.Anchored(),
    steps.Ticked(),
    steps.StopRequested(),
)

E = TypeVar("E", bound=Effect)


class Bench:
    """A relay with a clock of its own; markers it publishes come back at once, as from the broker."""

    def __init__(
        self, state: State | None = None, *held: Marker, restarted: bool = False, **settings: Any
    ) -> None:
        self.relay = Relay(RelaySettings(**settings))
        self.now_s = NOW_S
        self.effects: list[Effect] = []
        self.state, self.restarted = state, restarted
        self.ledger_tag = 0
        self.tag = 0
        for marker in held:
            self.arrive_marker(marker)

    def tell(self, *events: Event) -> list[Effect]:
        """Tell the relay *events* and return what it asks for, reports and notices left out."""
        new = [effect for event in events for effect in self.relay.handle(event, self.now_s)]
        self.effects += new
        return [effect for effect in new if not isinstance(effect, steps.Report | steps.Notice)]

    def arrive_marker(self, marker: Marker | None) -> list[Effect]:
        self.ledger_tag += 1
        return self.tell(steps.MarkerArrived(self.ledger_tag, marker))

    def arrive(self, *sequences: int, publisher: str = "p") -> list[Effect]:
        """Deliver messages of one publisher, in one piece."""
        arrivals = []
        for sequence in sequences:
            self.tag += 1
            arrivals.append(steps.Arrival(self.tag, False, publisher, sequence, payload=sequence))
        return self.tell(steps.Arrived(arrivals))

    def start(self) -> Bench:
        """Lead the relay to work: claimed, ledger read, recovered, anchored."""
        self.tell(steps.Started())
        self.tell(steps.Claimed(TOKEN, self.state, self.restarted))
        self.anchored()
        self.tell(SAVED)
        self.anchored()
        assert self.relay.phase is Phase.IDLE
        return self

    def anchored(self) -> list[Effect]:
        """Store the markers of the last Anchor and answer it."""
        new = [effect for marker in self.last(steps.Anchor).markers for effect in self.arrive_marker(marker)]
        return [*new, *self.tell(ANCHORED)]

    def forwarded(self) -> list[Effect]:
        """Store the marker of the last Forward and answer it."""
        return [*self.arrive_marker(self.last(steps.Forward).marker), *self.tell(FORWARDED)]

    def last(self, kind: type[E]) -> E:
        """Return the newest effect of *kind*."""
        return next(effect for effect in reversed(self.effects) if isinstance(effect, kind))


def kinds(effects: Sequence[Effect]) -> list[type]:
    """Return the types of *effects*."""
    return [type(effect) for effect in effects]


# -- taking over ----------------------------------------------------------------------------------


def test_a_session_in_full() -> None:
    """Claim, read the ledger, recover, anchor, then intent, forward, persist, ack: in this order and no other."""
    bench = Bench()
    assert bench.tell(steps.Started()) == [steps.ClaimState(TOKEN)]
    first = Marker(MarkerKind.FIRST, Batch(TOKEN, 0))
    assert bench.tell(steps.Claimed(TOKEN, None, True)) == [steps.Anchor((first,))]
    assert bench.tell(ANCHORED) == []
    assert bench.arrive_marker(first) == [steps.Replace(TOKEN, State(0, TOKEN))]
    founding = Marker(MarkerKind.FOUNDING, Batch(TOKEN, 0))
    assert bench.tell(SAVED) == [steps.Anchor((founding, first)), steps.Consume()]
    assert bench.anchored() == []

    batch = Batch(TOKEN, 1, True, {"p": (1, 2)})
    assert bench.arrive(1, 2) == [steps.Save(TOKEN, 0, Changes({}), batch)]
    (forward,) = bench.tell(SAVED)
    assert isinstance(forward, steps.Forward)
    assert forward.marker == Marker(MarkerKind.BATCH, batch)
    assert [out.arrival.sequence for out in forward.outgoing] == [1, 2]
    entries = {"p": Entry(Window(2, 1), NOW_S)}
    assert bench.forwarded() == [steps.Save(TOKEN, 1, Changes(entries), None)]
    assert bench.tell(SAVED) == [steps.Ack(2)]
    assert bench.relay.phase is Phase.IDLE

    assert bench.tell(STOP) == [steps.Close()]
    assert bench.tell(steps.Closed()) == [steps.Save(TOKEN, 1, Changes({}), None, clean=True)]
    assert bench.tell(SAVED) == [steps.End("")]


def test_markers_that_lie_there_come_before_the_own_one() -> None:
    """The ledger is read up to the own first marker: what was there is in it when recovery begins."""
    old = Marker(MarkerKind.BATCH, Batch(5, 3, True, {"p": (7,)}))
    bench = Bench(State(2, 5, {}, Batch(5, 3, True, {"p": (7,)})))
    bench.tell(steps.Started(), steps.Claimed(TOKEN, bench.state, False))
    assert bench.arrive_marker(old) == []
    assert bench.arrive_marker(None) == []
    bench.anchored()
    replaced = bench.last(steps.Replace).state
    assert (replaced.batch, replaced.entries["p"].window.last, replaced.intent) == (3, 7, None)


def test_a_token_below_the_ledgers_is_raised() -> None:
    """Redis was emptied and the clock went back: claim again above what the ledger has seen."""
    bench = Bench(None, Marker(MarkerKind.FIRST, Batch(TOKEN + 50, 4)))
    bench.tell(steps.Started(), steps.Claimed(TOKEN, None, True))
    assert bench.anchored()[0] == steps.ClaimState(TOKEN + 51)
    assert bench.relay.phase is Phase.CLAIMING
    bench.tell(steps.Claimed(TOKEN + 51, None, True))
    assert kinds(bench.anchored()) == [steps.Replace]
    assert bench.last(steps.Replace).token == TOKEN + 51


def test_a_rollback_is_told() -> None:
    """An operator hears why messages are marked."""
    bench = Bench(None, Marker(MarkerKind.FOUNDING, Batch(5, 3))).start()
    notices = [effect.name for effect in bench.effects if isinstance(effect, steps.Notice)]
    assert notices == ["dedup.recovered", "dedup.rolled_back"]


# -- batches --------------------------------------------------------------------------------------


def test_what_arrives_meanwhile_is_the_next_batch() -> None:
    """Group commit: the persist of one batch carries the intent of the next."""
    bench = Bench().start()
    bench.arrive(1)
    assert bench.arrive(2) == []
    bench.tell(SAVED)
    assert bench.arrive(3) == []
    assert bench.relay.waiting == 2
    (save,) = bench.forwarded()
    assert isinstance(save, steps.Save)
    assert (save.batch, list(save.changes.entries)) == (1, ["p"])
    assert save.intent == Batch(TOKEN, 2, True, {"p": (2, 3)})
    assert kinds(bench.tell(SAVED)) == [steps.Ack, steps.Forward]


def test_duplicates_alone_are_acknowledged_at_once() -> None:
    """When what they copy is persisted, nothing has to be written."""
    bench = Bench(State(1, 5, {"p": Entry(Window(3, 1), 1.0)}, clean=True)).start()
    assert bench.arrive(3, 2) == [steps.Ack(2)]
    assert bench.relay.phase is Phase.IDLE
    report = bench.last(steps.Report)
    assert (report.verdicts, report.forwarded) == ({Verdict.DUPLICATE: 2}, 0)


def test_duplicates_of_what_is_not_persisted_wait_for_the_write() -> None:
    """Acknowledged before it, a crash would leave neither the message nor the memory of it."""
    bench = Bench(batch_max=1).start()
    bench.arrive(1)
    bench.tell(SAVED)
    bench.arrive(1)
    assert kinds(bench.forwarded()) == [steps.Save]
    assert bench.tell(SAVED) == [steps.Ack(2)]


def test_a_batch_without_sequences_has_an_intent_too() -> None:
    """Its number is used and its marker is written: markers follow one another without a hole."""
    bench = Bench().start()
    arrival = steps.Arrival(1, False, None, None)
    (save,) = bench.tell(steps.Arrived([arrival]))
    assert isinstance(save, steps.Save)
    assert save.intent == Batch(TOKEN, 1)


def test_the_report_says_what_a_batch_did() -> None:
    """One record feeds log and metrics."""
    bench = Bench(State(1, 5, {"p": Entry(Window(30, 20), 1.0)}, clean=True), window_size=8).start()
    bench.arrive(31, 30, 2)
    bench.tell(SAVED)
    bench.forwarded()
    report = bench.last(steps.Report)
    assert report.verdicts == {Verdict.NEW: 1, Verdict.DUPLICATE: 1, Verdict.TOO_OLD: 1}
    assert (report.forwarded, report.quarantined, report.marked) == (1, 1, 0)


def test_doubt_is_written_when_it_changed_only() -> None:
    """It can be large, and it is rarely there."""
    bench = Bench(State(1, 5, {}, doubt={"p": frozenset({1})})).start()
    bench.arrive(1)
    assert bench.last(steps.Save).doubt is None
    bench.tell(SAVED)
    assert bench.last(steps.Forward).outgoing[0].marked
    bench.forwarded()
    assert bench.last(steps.Save).doubt == {}
    bench.tell(SAVED)
    bench.arrive(2)
    assert bench.last(steps.Save).doubt is None


# -- the ledger -----------------------------------------------------------------------------------


def test_markers_are_kept_while_redis_may_lose_their_batch() -> None:
    """They go in a later transaction, when Redis has had them for long enough; the newest own one stays."""
    bench = Bench(marker_keep_s=5.0).start()
    tags = {}
    for sequence in (1, 2, 3):
        bench.arrive(sequence)
        bench.tell(SAVED)
        assert bench.last(steps.Forward).release == ()
        bench.forwarded()
        tags[sequence] = bench.ledger_tag
        bench.tell(SAVED)
        bench.now_s += 1.0
    bench.now_s += 2.0
    bench.arrive(4)
    bench.tell(SAVED)
    released = bench.last(steps.Forward).release
    assert tags[1] in released
    assert tags[2] not in released


def test_the_ledger_is_rewritten_in_time() -> None:
    """Markers held unacknowledged would run into the broker's timeout: a fresh pair replaces them all."""
    bench = Bench(anchor_every_s=60.0).start()
    bench.arrive(1)
    bench.tell(SAVED)
    bench.forwarded()
    bench.tell(SAVED)
    bench.now_s += 59.0
    assert bench.tell(TICKED) == []
    bench.now_s += 1.0
    (anchor,) = bench.tell(TICKED)
    assert isinstance(anchor, steps.Anchor)
    assert [(m.kind, m.batch.number) for m in anchor.markers] == [
        (MarkerKind.FOUNDING, 1),
        (MarkerKind.FIRST, 1),
    ]
    assert bench.arrive(2) == [], "nothing else may be sent until the broker has answered"
    assert kinds(bench.anchored()) == [steps.Save]


def test_the_first_marker_says_what_redis_has() -> None:
    """Not the batch that is being settled: a marker must not claim more than Redis can hold."""
    bench = Bench(anchor_every_s=60.0).start()
    bench.arrive(1)
    bench.tell(SAVED)
    bench.now_s += 60.0
    assert kinds(bench.forwarded()) == [steps.Anchor]
    assert {m.batch.number for m in bench.last(steps.Anchor).markers} == {0}
    assert kinds(bench.anchored()) == [steps.Save]


def test_a_relay_that_stops_does_not_anchor() -> None:
    """It would only be in the way."""
    bench = Bench(anchor_every_s=60.0).start()
    bench.arrive(1)
    bench.tell(SAVED)
    bench.now_s += 60.0
    bench.tell(STOP)
    assert kinds(bench.forwarded()) == [steps.Save]


# -- Redis is behind ------------------------------------------------------------------------------


def test_a_redis_that_is_behind_is_rewritten_from_memory() -> None:
    """It has lost writes, memory has not: everything is written and work goes on."""
    bench = Bench().start()
    bench.arrive(1)
    bench.tell(SAVED)
    bench.forwarded()
    assert bench.tell(steps.StoreBehind()) == [
        steps.Replace(TOKEN, State(1, TOKEN, {"p": Entry(Window(1, 1), NOW_S)}))
    ]
    assert bench.tell(SAVED) == [steps.Ack(1)]


def test_markers_wait_for_the_rewrite() -> None:
    """What Redis has lost once may be lost again: the rewrite has to be old before a marker goes."""
    bench = Bench(marker_keep_s=5.0).start()
    bench.arrive(1)
    bench.tell(SAVED)
    bench.forwarded()
    bench.tell(SAVED)
    bench.now_s += 60.0
    bench.arrive(2)
    bench.tell(steps.StoreBehind(), SAVED)
    assert bench.last(steps.Forward).release == ()


def test_the_rewrite_carries_the_intent() -> None:
    """Without it the forward that follows would be unknown to a recovery."""
    bench = Bench().start()
    bench.arrive(1)
    (replace,) = bench.tell(steps.StoreBehind())
    assert isinstance(replace, steps.Replace)
    assert replace.state.intent == Batch(TOKEN, 1, True, {"p": (1,)})
    assert replace.state.entries == {}
    assert kinds(bench.tell(SAVED)) == [steps.Forward]


def test_the_clean_end_survives_a_redis_that_is_behind() -> None:
    """The rewrite says clean too."""
    bench = Bench().start()
    bench.tell(STOP, steps.Closed())
    (replace,) = bench.tell(steps.StoreBehind())
    assert isinstance(replace, steps.Replace)
    assert replace.state.clean
    assert bench.tell(SAVED) == [steps.End("")]


# -- the target refuses ---------------------------------------------------------------------------


def refused(bench: Bench, *indexes: int) -> list[Effect]:
    """Let the target refuse these of the last Forward."""
    return bench.tell(steps.Refused(indexes))


def test_what_is_refused_is_published_again_after_a_pause() -> None:
    """Only the refused ones, with the same marker, for as long as it takes, ever more slowly."""
    bench = Bench(exact=False, refused_delay_s_min=1.0, refused_delay_s_max=4.0).start()
    bench.arrive(1, 2, 3)
    bench.tell(SAVED)
    marker = bench.last(steps.Forward).marker
    assert refused(bench, 0, 2) == []
    pauses = []
    for _ in range(5):
        before_s = bench.now_s
        while not bench.tell(TICKED):
            bench.now_s += 0.125
        pauses.append(bench.now_s - before_s)
        forward = bench.last(steps.Forward)
        assert [out.arrival.sequence for out in forward.outgoing] == [1, 3]
        assert forward.marker == marker
        refused(bench, 0, 1)
    assert pauses == [0.5, 1.0, 2.0, 2.0, 2.0]


def test_refused_messages_hold_back_the_ack() -> None:
    """Nothing of the batch is acknowledged before all of it is stored and persisted."""
    bench = Bench(exact=False).start()
    bench.arrive(1, 2)
    bench.tell(SAVED)
    refused(bench, 1)
    bench.now_s += 10.0
    bench.tell(TICKED)
    bench.forwarded()
    assert not any(isinstance(effect, steps.Ack) for effect in bench.effects)
    assert bench.last(steps.Save).changes.entries["p"].window == Window(2, 1)
    assert bench.tell(SAVED) == [steps.Ack(2)]


def test_a_stop_while_the_target_refuses_remembers_what_it_took() -> None:
    """The rest is left to the next session: not recorded, not acknowledged, and the end is not clean."""
    bench = Bench(exact=False).start()
    bench.arrive(1, 2, 3)
    bench.tell(SAVED)
    refused(bench, 1)
    (save,) = bench.tell(STOP)
    assert isinstance(save, steps.Save)
    assert save.changes.entries["p"].window == Window(3, 1, missing=0b1)
    assert bench.tell(SAVED) == [steps.Close()]
    assert bench.tell(steps.Closed()) == [steps.End("")]
    assert not any(isinstance(effect, steps.Ack) for effect in bench.effects)


def test_a_refusal_after_a_stop_ends_the_session_too() -> None:
    """A relay that was told to stop does not wait for a target to recover."""
    bench = Bench(exact=False).start()
    bench.arrive(1)
    bench.tell(SAVED)
    assert bench.tell(STOP) == []
    assert kinds(refused(bench, 0)) == [steps.Save]
    assert kinds(bench.tell(SAVED)) == [steps.Close]


def test_a_partial_commit_puts_the_batch_in_doubt_and_ends_the_session() -> None:
    """Nobody knows what was stored, and the marker in the ledger says more than is true."""
    bench = Bench().start()
    bench.arrive(1, 2)
    bench.tell(SAVED)
    assert bench.tell(steps.CommitPartial()) == [
        steps.Save(TOKEN, 1, Changes({}), None, {"p": frozenset({1, 2})})
    ]
    assert bench.tell(SAVED) == [steps.End("the broker refused part of a transaction", partial=True)]
    assert not any(isinstance(effect, steps.Ack) for effect in bench.effects)


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


@pytest.mark.parametrize("phase", [Phase.NEW, Phase.CLAIMING, Phase.READING_LEDGER, Phase.RECOVERING])
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


# -- every phase and every event ------------------------------------------------------------------


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


_FIRST = Marker(MarkerKind.FIRST, Batch(TOKEN, 0))
_CLAIMED = (steps.Started(), steps.Claimed(TOKEN, None, True))
_READ = (*_CLAIMED, steps.MarkerArrived(1, _FIRST))
_NOTHING_YET = steps.Ticked()

PHASES: dict[Phase, Callable[[], Bench]] = {
    Phase.NEW: _led(),
    Phase.CLAIMING: _led(steps.Started()),
    Phase.READING_LEDGER: _led(*_CLAIMED),
    Phase.RECOVERING: _led(*_READ),
    Phase.ANCHORING: _led(*_READ, SAVED),
    Phase.IDLE: _started(),
    Phase.SAVING: _started(_NOTHING_YET),
    Phase.FORWARDING: _started(SAVED),
    Phase.REFUSED: _started(SAVED, steps.Refused([0]), exact=False),
    Phase.FAILING: _started(SAVED, steps.CommitPartial()),
    Phase.CLOSING: _started(SAVED, FORWARDED, SAVED, STOP),
    Phase.MARKING_CLEAN: _started(SAVED, FORWARDED, SAVED, STOP, steps.Closed()),
    Phase.ENDED: _started(SAVED, FORWARDED, SAVED, STOP, steps.Closed(), SAVED),
}

EVENTS: dict[str, Event] = {
    "Started": steps.Started(),
    "Claimed": steps.Claimed(TOKEN + 1, State(7, 1), True),
    "MarkerArrived": steps.MarkerArrived(99, None),
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

#: What each phase answers with effects; everything else it hears changes nothing but its notes.
ANSWERS: dict[Phase, dict[str, list[type]]] = {
    Phase.NEW: {"Started": [steps.ClaimState], "StopRequested": [steps.End]},
    Phase.CLAIMING: {"Claimed": [steps.Anchor], "StopRequested": [steps.End]},
    Phase.READING_LEDGER: {"StopRequested": [steps.End]},
    Phase.RECOVERING: {"Saved": [steps.Anchor, steps.Consume], "StopRequested": [steps.End]},
    Phase.ANCHORING: {"Anchored": []},
    Phase.IDLE: {"Arrived": [steps.Save], "Ticked": [], "StopRequested": [steps.Close]},
    Phase.SAVING: {"Saved": [steps.Forward], "StoreBehind": [steps.Replace]},
    Phase.FORWARDING: {"Forwarded": [steps.Save], "Refused": [], "CommitPartial": [steps.Save]},
    Phase.REFUSED: {"StopRequested": [steps.Save]},
    Phase.FAILING: {"Saved": [steps.End], "StoreBehind": [steps.Replace]},
    Phase.CLOSING: {"Closed": [steps.Save]},
    Phase.MARKING_CLEAN: {"Saved": [steps.End], "StoreBehind": [steps.Replace]},
    Phase.ENDED: {},
}

#: Taken note of in every phase, whatever is being waited for.
NOTED = {"MarkerArrived", "Arrived", "StopRequested"}


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


# -- order, whatever happens ----------------------------------------------------------------------


class Session:
    """A relay whose effects are answered in any way, one after the other, and checked for their order."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.draw = draw
        self.bench = Bench(exact=self.chance(2), batch_max=1 + draw(st.integers(0, 2)), anchor_every_s=5.0)
        self.pending: list[Effect] = []
        self.intents: list[Batch] = []
        #: Highest delivery tag of each batch, and the newest batch that is persisted.
        self.tags: dict[int, int] = {}
        self.persisted = 0
        self.in_flight = 0
        self.consuming = False

    def chance(self, one_in: int) -> bool:
        """Say yes once in so many times."""
        return self.draw(st.integers(1, one_in)) == one_in

    def hear(self, *events: Event) -> None:
        """Tell the relay and check what it asks for."""
        for event in events:
            ended = self.bench.relay.phase is Phase.ENDED
            for effect in self.bench.tell(event):
                assert not ended, f"{effect} after the end"
                self.check(effect)
                self.pending.append(effect)

    def check(self, effect: Effect) -> None:
        """Check the order of *effect* against what was answered so far."""
        if isinstance(effect, steps.Forward | steps.Anchor):
            assert self.in_flight == 0, "one Forward or Anchor in flight"
            self.in_flight += 1
        if isinstance(effect, steps.Forward):
            assert effect.marker.batch in self.intents, "no Forward before its intent is saved"
            self.tags.setdefault(effect.marker.batch.number, effect.outgoing[0].arrival.tag)
        if isinstance(effect, steps.Ack):
            unsettled = [tag for number, tag in self.tags.items() if number > self.persisted]
            assert all(effect.tag < tag for tag in unsettled), "no Ack before the batch is persisted"

    def perform(self) -> None:
        """Answer the oldest effect."""
        effect = self.pending.pop(0)
        match effect:
            case steps.ClaimState():
                self.hear(steps.Claimed(TOKEN, None, True))
            case steps.Anchor(markers):
                self.in_flight -= 1
                self.publish(markers)
                self.hear(ANCHORED)
            case steps.Save() if self.chance(10):
                self.hear(steps.StoreBehind())
            case steps.Save(batch=batch, intent=intent):
                self.write(batch, intent)
            case steps.Replace(state=state):
                self.write(state.batch, state.intent)
            case steps.Forward():
                self.in_flight -= 1
                self.forward(effect)
            case steps.Consume():
                self.consuming = True
            case steps.Close():
                self.hear(steps.Closed())
            case _:
                pass

    def rest(self) -> None:
        """Answer until nothing is asked for any more."""
        while self.pending:
            self.perform()

    def write(self, batch: int, intent: Batch | None) -> None:
        """Let Redis have it."""
        self.persisted = batch
        if intent is not None:
            self.intents.append(intent)
        self.hear(SAVED)

    def forward(self, effect: steps.Forward) -> None:
        """Store a batch, or refuse its last message, or commit an unknown part."""
        if self.chance(6):
            self.hear(steps.Refused([len(effect.outgoing) - 1]))
        elif self.chance(20):
            self.hear(steps.CommitPartial())
        else:
            self.publish([effect.marker])
            self.hear(FORWARDED)

    def publish(self, markers: Sequence[Marker]) -> None:
        """Put markers into the ledger: they come back."""
        for marker in markers:
            self.bench.ledger_tag += 1
            self.hear(steps.MarkerArrived(self.bench.ledger_tag, marker))

    def arrive(self, sequence: int) -> None:
        """Deliver one message."""
        self.bench.tag += 1
        self.hear(steps.Arrived([steps.Arrival(self.bench.tag, False, "p", sequence)]))


@given(st.data())
def test_the_order_of_effects_holds_in_any_session(data: st.DataObject) -> None:
    """No Forward before its intent, no Ack before the persist, one transaction at a time, nothing after the end."""
    session = Session(data.draw)
    session.hear(steps.Started())
    for _ in range(data.draw(st.integers(0, 80))):
        session.bench.now_s += data.draw(st.sampled_from([0.0, 0.4, 3.0]))
        match data.draw(st.sampled_from(["perform"] * 5 + ["arrive", "tick", "stop"])):
            case "perform" if session.pending:
                session.perform()
            case "arrive" if session.consuming:
                session.arrive(data.draw(st.integers(1, 12)))
            case "stop" if session.chance(10):
                session.hear(STOP)
            case _:
                session.hear(TICKED)


def test_the_order_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch notices a relay that acknowledges before the persist."""
    real = Relay._on_forwarded

    def _on_forwarded(self: Relay, event: steps.Forwarded, now_s: float) -> list[Effect]:
        effects = real(self, event, now_s)
        return [*self._ack(), *effects]

    monkeypatch.setattr(Relay, "_on_forwarded", _on_forwarded)
    session = Session(lambda _: 0)
    session.hear(steps.Started())
    session.rest()
    session.arrive(1)
    with pytest.raises(AssertionError, match="no Ack before the batch is persisted"):
        session.rest()
