"""What a relay believes of the work of a killed channel: markers of parts, acks held back, and the message that proves them."""

from __future__ import annotations

import pytest
from attrs import evolve

from dedup.core import steps
from dedup.core.phase import Phase
from dedup.core.publishers import Entry
from dedup.core.records import Batch, Leadership, Marker, MarkerKind, Parts
from dedup.core.window import Window
from tests.unit.relay_bench import (
    BELIEVING,
    ELECTED,
    LATER,
    LEADER,
    SAVED,
    STOP,
    TICKED,
    TOKEN,
    Bench,
    believing,
    forward_new,
    kinds,
    refused,
)


def test_a_confirmed_batch_has_markers_of_its_parts() -> None:
    """The intent says in which order and under whom and goes ahead; the markers run behind the messages."""
    bench = Bench(leadership=LEADER, exact=False, marker_every=2).start()
    (save,) = bench.arrive(3, 1, 2)
    assert isinstance(save, steps.Save)
    parts = Parts([("p", 3), ("p", 1), ("p", 2)], 2, LEADER)
    assert save.intent == Batch(TOKEN, 1, False, {"p": (1, 2, 3)}, parts)
    (forward,) = bench.tell(SAVED)
    assert isinstance(forward, steps.Forward)
    assert forward.marker == Marker(MarkerKind.BATCH, Batch(TOKEN, 1, False, {"p": (1, 2, 3)}))
    assert forward.between == [
        (0, Marker(MarkerKind.INTENT, save.intent)),
        (2, Marker(MarkerKind.PART, Batch(TOKEN, 1, False), 2)),
    ]


def test_without_a_leader_there_are_no_parts() -> None:
    """They would cost ledger messages and prove nothing; the intent is there in case Redis forgets it."""
    bench = Bench(exact=False).start()
    bench.arrive(1)
    intent = Batch(TOKEN, 1, False, {"p": (1,)})
    assert bench.last(steps.Save).intent == intent
    bench.tell(SAVED)
    assert bench.last(steps.Forward).between == [(0, Marker(MarkerKind.INTENT, intent))]


def test_a_leader_beyond_a_link_between_nodes_gives_no_parts() -> None:
    """Such a link may lose messages and pass the marker; who leads is known all the same."""
    bench = Bench(BELIEVING, exact=False)
    bench.tell(steps.Started(), steps.Claimed(TOKEN, BELIEVING, False))
    bench.anchored()
    bench.tell(steps.Surveyed(LEADER, local=False))
    assert bench.last(steps.Replace).state.believed == BELIEVING.believed
    bench.tell(SAVED)
    bench.anchored()
    bench.arrive(3)
    assert bench.last(steps.Save).intent == Batch(TOKEN, 2, False, {"p": (3,)})
    bench.tell(SAVED)
    bench.forwarded()
    assert kinds(bench.tell(steps.Surveyed(LATER, local=False))) == [steps.Save]
    assert bench.last(steps.Save).proven


def test_markers_of_parts_go_when_redis_has_their_batch() -> None:
    """The next Forward lets them go."""
    bench = Bench(leadership=LEADER, exact=False).start()
    bench.arrive(1, 2)
    bench.tell(SAVED)
    first = bench.ledger_tag + 2
    bench.forwarded()
    bench.tell(SAVED)
    bench.arrive(3)
    bench.tell(SAVED)
    assert bench.last(steps.Forward).release == (first, first + 1)


def test_a_new_leader_found_at_work_proves_nothing_until_a_message_is_stored() -> None:
    """Until then the channel may hand messages to the old one."""
    bench = Bench(leadership=LEADER, exact=False, survey_every_s=10.0).start()
    forward_new(bench, 1)
    bench.tell(SAVED)
    bench.now_s += 9.9
    assert bench.tell(TICKED) == []
    bench.now_s += 0.2
    assert bench.tell(TICKED) == [steps.Survey()]
    assert bench.tell(TICKED) == [], "one survey at a time"
    bench.leadership = ELECTED
    assert bench.surveyed() == []
    bench.arrive(2)
    intent = bench.last(steps.Save).intent
    assert intent is not None
    assert intent.parts is None
    bench.tell(SAVED)
    bench.forwarded()
    bench.tell(SAVED)
    bench.arrive(3)
    intent = bench.last(steps.Save).intent
    assert intent is not None
    assert intent.parts == Parts([("p", 3)], 1, ELECTED)


def test_acks_wait_until_what_is_believed_is_proven() -> None:
    """A confirm under the same leader proves it; then everything is acknowledged together."""
    bench = believing()
    assert bench.last(steps.Replace).state.believed == BELIEVING.believed
    assert bench.arrive(1, 2) == []
    assert forward_new(bench, 3) == [steps.Survey()]
    assert bench.relay.phase is Phase.PROVING
    bench.leadership = LATER
    (save,) = bench.surveyed()
    assert isinstance(save, steps.Save)
    assert save.proven
    assert (save.batch, save.doubt) == (2, None)
    assert bench.tell(SAVED) == [steps.Ack(3)]
    forward_new(bench, 4)
    assert not bench.last(steps.Save).proven, "it is said once"


def test_a_quarantined_message_proves_nothing() -> None:
    """It went into another queue."""
    bench = believing(quarantine_untracked=True)
    bench.tell(steps.Arrived([steps.Arrival(1, False, None, None)]))
    bench.tell(SAVED)
    assert kinds(bench.forwarded()) == [steps.Save]
    assert not bench.last(steps.Save).proven
    assert bench.tell(SAVED) == [steps.Ack(1)]
    bench.tag = 1
    assert bench.arrive(1, 2) == []


def test_acks_do_not_wait_for_what_is_believed_further_back() -> None:
    """A copy of something certain is acknowledged, also when nothing ever comes that proves the rest."""
    state = evolve(BELIEVING, entries={"p": Entry(Window(3, 1), 1.0)})
    bench = believing(state)
    assert bench.arrive(3) == [steps.Ack(1)]
    assert bench.arrive(2, 3) == []
    assert bench.tell(TICKED) == []


@pytest.mark.parametrize(
    "found", [ELECTED, None, Leadership("rabbit@a", 3, 69)], ids=["other", "nobody", "anew"]
)
def test_another_leader_ends_the_session_while_something_is_believed(found: Leadership | None) -> None:
    """What was handed to the old one may be lost: the next session begins with it in doubt."""
    bench = believing()
    bench.arrive(1, 2)
    forward_new(bench, 3)
    bench.leadership = found
    (end,) = bench.surveyed()
    assert isinstance(end, steps.End)
    assert "led by somebody else" in end.reason
    assert not any(isinstance(effect, steps.Ack) for effect in bench.effects)


def test_another_leader_is_noticed_without_a_message() -> None:
    """Nothing has to arrive for it: it is looked for from time to time."""
    bench = believing(survey_every_s=10.0)
    bench.now_s += 10.0
    assert bench.tell(TICKED) == [steps.Survey()]
    bench.leadership = ELECTED
    assert kinds(bench.surveyed()) == [steps.End]


def test_that_nobody_else_leads_proves_nothing_by_itself() -> None:
    """Nothing was handed over behind what is believed yet, so nothing is confirmed."""
    bench = believing(survey_every_s=10.0, proof_wait_s=1e9)
    bench.arrive(1, 2)
    bench.now_s += 10.0
    assert bench.tell(TICKED) == [steps.Survey()]
    assert bench.surveyed() == []
    assert not any(isinstance(effect, steps.Ack) for effect in bench.effects)


def test_one_message_is_forwarded_marked_when_no_other_comes() -> None:
    """The newest of them goes again after a while: its confirm proves the rest, and the acks go."""
    bench = believing(proof_wait_s=5.0)
    bench.arrive(1, 2)
    bench.now_s += 4.9
    assert bench.tell(TICKED) == []
    bench.now_s += 0.1
    (save,) = bench.tell(TICKED)
    assert isinstance(save, steps.Save)
    assert (save.doubt, save.intent and save.intent.sequences) == ({"p": frozenset({2})}, {"p": (2,)})
    (forward,) = bench.tell(SAVED)
    assert isinstance(forward, steps.Forward)
    assert [(out.arrival.sequence, out.marked) for out in forward.outgoing] == [(2, True)]
    assert bench.forwarded() == [steps.Survey()]
    (save,) = bench.surveyed()
    assert isinstance(save, steps.Save)
    assert (save.doubt, save.proven) == ({}, True)
    assert bench.tell(SAVED) == [steps.Ack(2)]
    bench.now_s += 60.0
    assert bench.tell(TICKED) == []


def test_no_spare_is_forwarded_while_something_is_in_doubt() -> None:
    """What is in doubt comes again, goes out marked, and proves the rest as well."""
    bench = believing(evolve(BELIEVING, doubt={"p": frozenset({3})}))
    bench.arrive(1)
    bench.now_s += 60.0
    assert bench.tell(TICKED) == []
    assert forward_new(bench, 3) == [steps.Survey()]
    assert [out.marked for out in bench.last(steps.Forward).outgoing] == [True]
    bench.surveyed()
    assert bench.tell(SAVED) == [steps.Ack(2)]


def test_no_spare_is_forwarded_before_one_has_come_back() -> None:
    """There is nothing to forward: what is believed waits for its redelivery."""
    bench = believing()
    bench.now_s += 60.0
    assert bench.tell(TICKED) == []


def test_the_rewrite_carries_what_is_believed() -> None:
    """A Redis that is behind is told everything, what is not proven yet too."""
    bench = believing()
    bench.arrive(3)
    (replace,) = bench.tell(steps.StoreBehind())
    assert isinstance(replace, steps.Replace)
    assert replace.state.believed == BELIEVING.believed
    bench.tell(SAVED)
    bench.forwarded()
    bench.surveyed()
    (replace,) = bench.tell(steps.StoreBehind())
    assert isinstance(replace, steps.Replace)
    assert replace.state.believed is None


def test_a_stop_while_something_is_believed_does_not_end_clean() -> None:
    """It is not acknowledged, so it comes again."""
    bench = believing(evolve(BELIEVING, clean=True), anchor_every_s=1e9)
    bench.arrive(1, 2)
    assert not bench.relay.judge.suspect, "nothing else keeps it from ending clean"
    assert bench.tell(STOP) == [steps.Close()]
    assert bench.tell(steps.Closed()) == [steps.End("")]
    assert not any(isinstance(effect, steps.Ack | steps.Save) for effect in bench.effects)


def test_a_stop_while_proving_acknowledges_first() -> None:
    """The survey is on its way: its answer comes first."""
    bench = believing()
    forward_new(bench, 3)
    assert bench.tell(STOP) == []
    assert kinds(bench.surveyed()) == [steps.Save]
    assert kinds(bench.tell(SAVED)) == [steps.Ack, steps.Close]


def test_a_refusal_where_parts_prove_something_ends_the_session() -> None:
    """A target that refuses after all makes their markers say more than is true: they are not used twice."""
    bench = Bench(leadership=LEADER, exact=False).start()
    bench.arrive(1, 2)
    bench.tell(SAVED)
    (save,) = refused(bench, 1)
    assert isinstance(save, steps.Save)
    assert save.changes.entries["p"].window == Window(1, 1)
    (end,) = bench.tell(SAVED)
    assert isinstance(end, steps.End)
    assert "refuses" in end.reason
