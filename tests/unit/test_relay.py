"""
The relay at work: taking over, batches, the ledger, a Redis that is behind, a target that refuses.

Its phases are in test_relay_phases.py, what it believes of a killed channel in test_relay_proof.py, the order of its effects in
test_relay_order.py; tests/simulation explores it as a whole.
"""

from __future__ import annotations

from dedup.core import steps
from dedup.core.phase import Phase
from dedup.core.publishers import Changes, Entry
from dedup.core.records import Batch, Marker, MarkerKind, State
from dedup.core.window import Verdict, Window
from tests.unit.relay_bench import (
    ANCHORED,
    NOW_S,
    SAVED,
    STOP,
    TICKED,
    TOKEN,
    Bench,
    kinds,
    refused,
)

# -- taking over ----------------------------------------------------------------------------------


def test_a_session_in_full() -> None:
    """Claim, read the ledger, survey, recover, anchor, then intent, forward, persist, ack: in this order and no other."""
    bench = Bench()
    assert bench.tell(steps.Started()) == [steps.ClaimState(TOKEN)]
    first = Marker(MarkerKind.FIRST, Batch(TOKEN, 0))
    assert bench.tell(steps.Claimed(TOKEN, None, True)) == [steps.Anchor((first,))]
    assert bench.tell(ANCHORED) == []
    assert bench.arrive_marker(first) == [steps.Survey()]
    assert bench.surveyed() == [steps.Replace(TOKEN, State(0, TOKEN))]
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
    assert bench.anchored() == [steps.Survey()]
    bench.surveyed()
    replaced = bench.last(steps.Replace).state
    assert (replaced.batch, replaced.entries["p"].window.last, replaced.intent) == (3, 7, None)


def test_a_token_below_the_ledgers_is_raised() -> None:
    """Redis was emptied and the clock went back: claim again above what the ledger has seen."""
    bench = Bench(None, Marker(MarkerKind.FIRST, Batch(TOKEN + 50, 4)))
    bench.tell(steps.Started(), steps.Claimed(TOKEN, None, True))
    bench.anchored()
    assert bench.surveyed() == [steps.ClaimState(TOKEN + 51)]
    assert bench.relay.phase is Phase.CLAIMING
    bench.tell(steps.Claimed(TOKEN + 51, None, True))
    assert bench.anchored() == [steps.Survey()], "the leader may be another one by now"
    assert kinds(bench.surveyed()) == [steps.Replace]
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
