"""What becomes of each arrival: every verdict and its action, marks, options, limits of a batch."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
from attrs import evolve

from dedup.core.identity import RANGE_SIZE
from dedup.core.judge import REFUSED_BY_BROKER, Judge, Judged
from dedup.core.message_ids import message_key
from dedup.core.publishers import Entry, forwarded
from dedup.core.records import BEGINNING, Batch, Belief, Leadership, State
from dedup.core.returns import UNKNOWN_S, reentry
from dedup.core.settings import RelaySettings
from dedup.core.steps import Arrival, Outgoing
from dedup.core.window import Verdict, Window

NOW_S = 100.0
KNOWN = State(1, 1, {"p": Entry(Window(10, 1, missing=0b1), 1.0)})


def judge(state: State = KNOWN, *, suspect: bool = False, **settings: Any) -> Judge:
    """Return a judge with a window of 8 that has seen 1 to 8 and 10 of publisher p."""
    return Judge(RelaySettings(window_size=8, **settings), state, NOW_S, suspect=suspect)


def arrival(sequence: int | None, tag: int = 1, publisher: str | None = "p", **facts: Any) -> Arrival:
    """Return a first delivery."""
    return Arrival(tag, facts.pop("redelivered", False), publisher, sequence, **facts)


def take(judge: Judge, *arrivals: Arrival) -> Judged:
    """Return the batch of all *arrivals*, which fit into one."""
    waiting = deque(arrivals)
    batch = judge.take(waiting, NOW_S)
    assert not waiting
    return batch


def only(judge: Judge, *arrivals: Arrival) -> Outgoing:
    """Return the one message that leaves."""
    (out,) = take(judge, *arrivals).outgoing
    return out


# -- verdict and action ---------------------------------------------------------------------------


def test_new_is_forwarded() -> None:
    """Above the last one, or a hole below it."""
    for sequence in (11, 9, 500):
        out = only(judge(), arrival(sequence))
        assert (out.verdict, out.reason, out.marked) == (Verdict.NEW, "", False)


def test_a_duplicate_is_dropped_and_counted() -> None:
    """It is a success for its publisher: acknowledged with its batch."""
    batch = take(judge(), arrival(10, tag=7))
    assert (batch.outgoing, batch.last_tag) == ([], 7)
    assert batch.verdicts == {Verdict.DUPLICATE: 1}
    assert batch.sequences == {}


def test_a_duplicate_can_be_parked() -> None:
    """Who wants to see them finds them in quarantine."""
    out = only(judge(park_duplicates=True), arrival(10))
    assert (out.verdict, out.reason, out.marked) == (Verdict.DUPLICATE, "duplicate", False)


def test_two_copies_in_one_batch_are_one_message() -> None:
    """The draft counts: the second is a duplicate of the first."""
    batch = take(judge(), arrival(11, 1), arrival(11, 2))
    assert [out.arrival.tag for out in batch.outgoing] == [1]
    assert batch.verdicts == {Verdict.NEW: 1, Verdict.DUPLICATE: 1}


def test_too_old_is_quarantined() -> None:
    """It may be the first of its kind: never dropped."""
    out = only(judge(), arrival(2))
    assert (out.verdict, out.reason) == (Verdict.TOO_OLD, "too-old")


def test_an_older_owner_is_fenced() -> None:
    """What lies in a lower range than the newest is too old, and its reason says that somebody else sent it."""
    base = 5 * RANGE_SIZE
    fenced = judge(State(batch=1, writer=1, entries={"p": Entry(Window(base + 3, base), NOW_S)}))
    own, zombie = take(fenced, arrival(base + 4, 1), arrival(base - 1, 2)).judged
    assert (own.verdict, own.reason) == (Verdict.NEW, "")
    assert (zombie.verdict, zombie.reason) == (Verdict.TOO_OLD, "fenced")
    # Before the newer owner has published here, nothing says that there is one.
    early = take(
        judge(State(batch=1, writer=1)), arrival(base - 900, 1), arrival(base + 1, 2), arrival(base - 899, 3)
    )
    assert [out.reason for out in early.judged] == ["", "", "fenced"]


def test_a_window_that_spans_two_ranges_fences_nothing_it_knows() -> None:
    """Numbers of the caller's own may run from one range into the next: what is in the window is judged as ever."""
    base = 5 * RANGE_SIZE
    batch = take(judge(State(batch=1, writer=1)), *(arrival(base + n, n + 10) for n in (-2, 0, -1, -2)))
    assert [out.verdict for out in batch.judged] == [Verdict.NEW, Verdict.NEW, Verdict.NEW, Verdict.DUPLICATE]


def test_unadmitted_is_quarantined() -> None:
    """No room for one more publisher, and nobody idle."""
    out = only(judge(publishers_max=1), arrival(1, publisher="q"))
    assert (out.verdict, out.reason) == (Verdict.UNADMITTED, "unadmitted")


def test_malformed_is_quarantined_with_its_fault() -> None:
    """The stamp cannot be believed, whatever it says."""
    out = only(judge(), arrival(10, fault="sequence is text"))
    assert (out.verdict, out.reason) == (Verdict.MALFORMED, "sequence is text")


def test_returning_is_forwarded_and_never_a_publishers_duplicate() -> None:
    """Dead-lettered from the target and routed back: its sequence is known and it must pass, without a re-entry each time."""
    for way in (None, reentry("p", 10, 0)):
        out = only(judge(), arrival(10, returning=True, reentry=way))
        assert (out.verdict, out.reason, out.marked) == (Verdict.RETURNING, "", False)
    assert len(take(judge(), *(arrival(10, tag, returning=True) for tag in (1, 2))).outgoing) == 2


def back(returns: int, tag: int = 1, *, died_s: float = 0.0, **facts: Any) -> Arrival:
    """Return message 10 on its way back, after it has come back so many times."""
    return arrival(10, tag, returning=True, reentry=reentry("p", 10, returns, died_s=died_s), **facts)


def test_a_copy_of_a_re_entry_is_a_duplicate_and_the_next_death_is_not() -> None:
    """In one batch, in a later one, and for a relay that knows it from Redis; each return is another key."""
    judging = judge()
    batch = take(judging, back(0, 1), back(0, 2), back(1, 3))
    assert [out.arrival.tag for out in batch.outgoing] == [1, 3]
    assert batch.verdicts == {Verdict.RETURNING: 2, Verdict.DUPLICATE: 1}
    keys = {reentry("p", 10, returns).key: (1,) for returns in (0, 1)}
    assert batch.sequences == keys, "the intent names what may be forwarded"
    batch.remaining = ()
    changes = judging.settle(batch, NOW_S)
    assert changes.entries.keys() == keys.keys()
    later = judge(State(2, 1, judging.publishers.entries()))
    assert [out.arrival.tag for out in take(later, back(1, 1), back(2, 2), back(0, 3)).outgoing] == [2]


def test_a_copy_of_a_re_entry_is_parked_where_duplicates_are() -> None:
    """With the reason; a parked one is no news for its publisher, who has sent it once."""
    batch = take(judge(park_duplicates=True), back(0, 1), back(0, 2, wants_receipt=True))
    assert [(out.verdict, out.reason) for out in batch.outgoing] == [
        (Verdict.RETURNING, ""),
        (Verdict.DUPLICATE, "duplicate"),
    ]
    assert batch.receipts() == []


def test_what_died_after_its_re_entry_was_forwarded_may_be_another_message() -> None:
    """Where the count may have been taken off: it goes on, marked, as often as it comes. What died before is a copy."""
    judging = judge()
    batch = take(judging, back(0, died_s=NOW_S - 1))
    batch.remaining = ()
    judging.settle(batch, NOW_S)
    again = take(
        judging,
        *(
            back(0, tag, died_s=died_s)
            for tag, died_s in enumerate((NOW_S - 1, NOW_S, NOW_S + 0.5, UNKNOWN_S, NOW_S + 0.5), 1)
        ),
    )
    assert [(out.arrival.tag, out.verdict, out.marked) for out in again.outgoing] == [
        (tag, Verdict.RETURNING, True) for tag in (3, 4, 5)
    ]


def test_a_re_entry_in_doubt_is_forwarded_marked_once() -> None:
    """It may be in the target already, and the one that goes now is the last."""
    state = State(1, 1, KNOWN.entries, doubt={reentry("p", 10, 0).key: frozenset({1})})
    outgoing = take(judge(state), back(0, 1), back(0, 2), back(1, 3)).outgoing
    assert [(out.arrival.tag, out.marked) for out in outgoing] == [(1, True), (3, False)]


def test_a_re_entry_does_not_move_its_publishers_window() -> None:
    """And costs no publisher a place in the map."""
    judging = judge(publishers_max=1)
    batch = take(judging, back(0), arrival(10, 2), arrival(11, 3))
    assert [out.verdict for out in batch.judged] == [Verdict.RETURNING, Verdict.DUPLICATE, Verdict.NEW]
    assert len(judging.publishers) == 1
    assert [out.depth for out in take(judge(audit=True), back(0)).judged] == [None]


@pytest.mark.parametrize(("publisher", "sequence"), [(None, None), (None, 5), ("p", None)])
def test_untracked_is_forwarded(publisher: str | None, sequence: int | None) -> None:
    """Without publisher id or sequence nothing can be told, and nothing is remembered."""
    batch = take(judge(), arrival(sequence, publisher=publisher))
    assert [(out.verdict, out.reason) for out in batch.outgoing] == [(Verdict.UNTRACKED, "")]
    assert batch.sequences == {}


def test_untracked_can_be_quarantined() -> None:
    """Where everybody should be tracked."""
    out = only(judge(quarantine_untracked=True), arrival(None))
    assert (out.verdict, out.reason) == (Verdict.UNTRACKED, "untracked")


# -- marks ----------------------------------------------------------------------------------------


def test_what_is_in_doubt_is_forwarded_marked() -> None:
    """It may be in the target already; others of its publisher are not touched."""
    state = State(1, 1, KNOWN.entries, doubt={"p": frozenset({11})})
    batch = take(judge(state), arrival(11, 1), arrival(12, 2))
    assert [out.marked for out in batch.outgoing] == [True, False]
    assert (batch.marked, batch.quarantined) == (1, 0)


def test_what_a_rollback_made_uncertain_is_marked() -> None:
    """Up to the sequence the window says."""
    state = State(1, 1, {"p": Entry(Window(10, 1, uncertain_to=11), 1.0)})
    assert [out.marked for out in take(judge(state), arrival(11, 1), arrival(12, 2)).outgoing] == [
        True,
        False,
    ]


def test_unknown_publishers_are_uncertain_for_a_time() -> None:
    """While they may be ones that Redis has lost."""
    for until_s, marked in ((NOW_S + 1, True), (NOW_S, False)):
        state = State(unknown_uncertain_until_s=until_s)
        assert only(judge(state), arrival(1, publisher="q")).marked is marked


def test_suspicion_marks_what_no_sequence_tells_apart() -> None:
    """A redelivered message may have been forwarded; a window knows, without one it is marked."""
    for fact in ({"fault": "text"}, {"returning": True}):
        assert only(judge(suspect=True), arrival(11, redelivered=True, **fact)).marked
    assert not only(judge(suspect=True), back(0, redelivered=True)).marked
    assert only(judge(suspect=True), arrival(None, redelivered=True)).marked
    assert only(judge(suspect=True), arrival(2, redelivered=True)).marked
    assert not only(judge(suspect=True), arrival(11, redelivered=True)).marked


def test_suspicion_ends_with_the_first_fresh_delivery() -> None:
    """What was returned comes first, so nothing after a fresh one can be a copy."""
    suspicious = judge(suspect=True)
    outgoing = take(
        suspicious,
        arrival(None, 1, redelivered=True),
        arrival(None, 2),
        arrival(None, 3, redelivered=True),
    ).outgoing
    assert [out.marked for out in outgoing] == [True, False, False]
    assert not suspicious.suspect


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_has_a_largest_count() -> None:
    """What is above it waits for the next batch; duplicates count too."""
    strict, waiting = judge(batch_max=2), deque(arrival(n, tag=n) for n in (10, 11, 12))
    assert strict.take(waiting, NOW_S).last_tag == 11
    assert [a.tag for a in waiting] == [12]


def test_a_batch_has_a_largest_size() -> None:
    """A message that would go above it waits, and one that is larger by itself goes alone."""
    strict = judge(batch_bytes_max=100)
    waiting = deque(
        arrival(n, tag=n, size=size) for n, size in ((11, 60), (12, 40), (13, 1), (14, 500), (15, 1))
    )
    tags = []
    while waiting:
        tags.append(strict.take(waiting, NOW_S).last_tag)
    assert tags == [12, 13, 14, 15]


def test_a_batch_keeps_the_order() -> None:
    """First copies enter the target as they came in; its record has the sequences ascending."""
    batch = take(judge(), arrival(12, 1), arrival(9, 2), arrival(None, 3), arrival(11, 4))
    assert [out.arrival.tag for out in batch.outgoing] == [1, 2, 3, 4]
    assert batch.sequences == {"p": (9, 11, 12)}
    assert batch.remaining is batch.outgoing


# -- settling -------------------------------------------------------------------------------------


def test_settling_merges_the_draft_and_ends_the_doubt() -> None:
    """What is stored is seen; the rest of the doubt stays, and is written only when it changed."""
    doubtful = judge(State(1, 1, KNOWN.entries, doubt={"p": frozenset({11, 12}), "q": frozenset({1})}))
    batch = take(doubtful, arrival(11))
    batch.remaining = ()
    changes = doubtful.settle(batch, NOW_S)
    assert changes.entries == {"p": Entry(Window(11, 1, missing=0b10), NOW_S)}
    assert doubtful.doubt == {"p": frozenset({12}), "q": frozenset({1})}
    assert doubtful.doubt_changed
    untouched = judge()
    batch = take(untouched, arrival(11))
    batch.remaining = ()
    untouched.settle(batch, NOW_S)
    assert not untouched.doubt_changed


def test_what_was_refused_is_as_if_never_judged() -> None:
    """Its redelivery must be new: recorded, it would be dropped and lost."""
    refusing = judge()
    batch = take(refusing, arrival(11, 1), arrival(12, 2), arrival(13, 3))
    batch.remaining = [batch.outgoing[1]]
    refusing.settle(batch, NOW_S)
    again = take(refusing, arrival(11, 4), arrival(12, 5), arrival(13, 6))
    assert [out.arrival.tag for out in again.outgoing] == [5]


def test_a_refused_message_stays_in_doubt() -> None:
    """Only what was stored leaves it."""
    refusing = judge(State(1, 1, KNOWN.entries, doubt={"p": frozenset({11, 12})}))
    batch = take(refusing, arrival(11, 1), arrival(12, 2))
    batch.remaining = [batch.outgoing[0]]
    refusing.settle(batch, NOW_S)
    assert refusing.doubt == {"p": frozenset({11})}


def test_everything_can_come_into_doubt() -> None:
    """A partial commit: the draft is forgotten, and each copy that comes again is marked."""
    doubtful = judge()
    doubtful.doubt_all(take(doubtful, arrival(11, 1), arrival(10, 2), arrival(None, 3)))
    assert doubtful.doubt == {"p": frozenset({11})}
    assert doubtful.doubt_changed
    assert only(doubtful, arrival(11, 4)).marked


def test_the_state_leaves_the_draft_out() -> None:
    """What goes to Redis is what was settled."""
    drafting = judge()
    take(drafting, arrival(11))
    intent = Batch(7, 2, sequences={"p": (11,)})
    assert drafting.state(7, 1, intent, BEGINNING, clean=False) == State(1, 7, KNOWN.entries, intent)


# -- what markers of parts prove ------------------------------------------------------------------

BELIEF = Belief({"p": (7, 10)}, Leadership("rabbit@a", 3, 70))


def test_doubt_weighs_more_than_the_window() -> None:
    """What was believed may be lost: its window says seen, and it is forwarded marked, once."""
    doubtful = judge(State(1, 1, KNOWN.entries, doubt={"p": frozenset({7, 10})}))
    batch = take(doubtful, arrival(10, 1), arrival(10, 2), arrival(7, 3), arrival(8, 4))
    assert [(out.arrival.tag, out.marked) for out in batch.outgoing] == [(1, True), (3, True)]
    assert batch.verdicts == {Verdict.NEW: 2, Verdict.DUPLICATE: 2}
    assert batch.sequences == {"p": (7, 10)}
    batch.remaining = ()
    doubtful.settle(batch, NOW_S)
    assert doubtful.doubt == {}
    assert take(doubtful, arrival(10, 5)).outgoing == []


def test_doubt_below_the_window_stays_too_old() -> None:
    """It is quarantined, not forwarded: nothing is known of what lies around it."""
    doubtful = judge(State(1, 1, KNOWN.entries, doubt={"p": frozenset({2})}))
    assert only(doubtful, arrival(2)).verdict is Verdict.TOO_OLD
    assert doubtful.doubt == {"p": frozenset({2})}


def test_what_is_refused_stays_in_doubt_though_the_window_has_it() -> None:
    """Its next copy is forwarded marked again."""
    doubtful = judge(State(1, 1, KNOWN.entries, doubt={"p": frozenset({10})}))
    batch = take(doubtful, arrival(10, 1))
    batch.refuse([0])
    assert (batch.remaining, batch.refusals) == (batch.outgoing, 1)
    doubtful.settle(batch, NOW_S)
    assert only(doubtful, arrival(10, 2)).marked


def test_the_newest_copy_of_what_is_believed_is_the_spare() -> None:
    """Other duplicates are copies whatever becomes of the belief."""
    believing = judge(State(1, 1, KNOWN.entries, believed=BELIEF))
    assert take(believing, arrival(8, 1), arrival(7, 2), arrival(10, 3), arrival(6, 4)).outgoing == []
    assert believing.spare is not None
    assert believing.spare.tag == 3
    certain = judge()
    take(certain, arrival(10, 1))
    assert certain.spare is None


def test_acks_wait_from_the_oldest_copy_of_what_is_believed_on() -> None:
    """What came before it is certain; once the belief is proven everything is."""
    believing = judge(State(1, 1, KNOWN.entries, believed=BELIEF))
    take(believing, arrival(8, 1), arrival(8, 2))
    assert believing.ackable(2) == 2
    take(believing, arrival(10, 3), arrival(8, 4), arrival(7, 5))
    assert [believing.ackable(tag) for tag in (1, 2, 3, 5)] == [1, 2, 2, 2]
    believing.prove()
    assert believing.ackable(5) == 5


def test_the_spare_is_forwarded_marked_once_it_is_not_believed() -> None:
    """It goes again so that its confirm proves the rest."""
    believing = judge(State(1, 1, KNOWN.entries, believed=BELIEF))
    take(believing, arrival(10, 1))
    assert believing.disbelieve(NOW_S) is None, "another message may come and prove it"
    spare = believing.disbelieve(NOW_S + 5.0)
    assert spare is not None
    assert (spare.tag, believing.spare, believing.doubt) == (1, None, {"p": frozenset({10})})
    assert believing.doubt_changed
    assert only(believing, spare).marked
    assert believing.believed == BELIEF, "the rest is still to be proven"


def test_what_is_proven_is_said_once() -> None:
    """The next write clears the belief in Redis."""
    believing = judge(State(1, 1, KNOWN.entries, believed=BELIEF))
    take(believing, arrival(10, 1))
    believing.prove()
    assert (believing.believed, believing.spare, believing.proven) == (None, None, True)
    believing.saved()
    assert (believing.proven, believing.doubt_changed) == (False, False)
    take(believing, arrival(10, 2))
    assert believing.spare is None


def test_the_state_has_what_is_believed() -> None:
    """Redis has to know it when everything is written again."""
    believing = judge(State(1, 1, KNOWN.entries, believed=BELIEF))
    assert believing.state(7, 1, None, BEGINNING, clean=False).believed == BELIEF
    believing.prove()
    assert believing.state(7, 1, None, BEGINNING, clean=False).believed is None


# -- a message the broker closes channels for -----------------------------------------------------


def test_strip_first_quarantines_the_first_message_that_leaves() -> None:
    """It is passed on with fresh properties; dropped duplicates before it do not count, and it happens once."""
    strict = judge(strip_first=True)
    batch = take(strict, arrival(10, 1), arrival(11, 2), arrival(12, 3))
    assert [(out.reason, out.stripped) for out in batch.outgoing] == [(REFUSED_BY_BROKER, True), ("", False)]
    assert batch.remaining[0].stripped
    assert Counter(batch.verdicts) == {Verdict.DUPLICATE: 1, Verdict.NEW: 2}
    assert not only(strict, arrival(13, 4)).stripped


def test_strip_first_waits_for_a_message_that_leaves() -> None:
    """A batch of duplicates does not use it up."""
    strict = judge(strip_first=True)
    take(strict, arrival(10, 1))
    assert only(strict, arrival(11, 2)).stripped


# -- bodies ---------------------------------------------------------------------------------------


def settled(judge: Judge, *arrivals: Arrival) -> Judged:
    """Return the batch of *arrivals* when all of it is stored."""
    batch = take(judge, *arrivals)
    batch.remaining = ()
    judge.settle(batch, NOW_S)
    return batch


def test_another_body_under_the_same_sequence_is_quarantined() -> None:
    """It is another message, and to drop it would lose it; a copy is dropped as ever."""
    checking = judge(check_bodies=True)
    settled(checking, arrival(11, digest=b"aaaa"))
    batch = take(checking, arrival(11, 2, digest=b"bbbb"), arrival(11, 3, digest=b"aaaa"))
    assert [(out.arrival.tag, out.reason) for out in batch.outgoing] == [(2, "conflict")]
    assert (batch.conflicts, batch.verdicts, batch.sequences) == (1, {Verdict.DUPLICATE: 2}, {})
    assert checking.report(batch, (), 0).conflicts == 1


def test_within_one_batch_bodies_are_compared_too() -> None:
    """The draft counts; and when the batch comes to nothing, so do its bodies."""
    checking = judge(check_bodies=True)
    out = take(checking, arrival(11, digest=b"aaaa"), arrival(11, 2, digest=b"bbbb")).outgoing
    assert [o.reason for o in out] == ["", "conflict"]


def test_what_was_refused_is_no_body_to_compare_with() -> None:
    """It is as if never judged: another message may come first."""
    checking = judge(check_bodies=True)
    batch = take(checking, arrival(11, digest=b"aaaa"))
    batch.refuse([0])
    assert checking.settle(batch, NOW_S).bodies == {}
    assert only(checking, arrival(11, 2, digest=b"bbbb")).reason == ""


def test_without_the_setting_nothing_is_compared() -> None:
    """Whatever the driver tells."""
    careless = judge()
    batch = settled(careless, arrival(11, digest=b"aaaa"))
    assert careless.settle(batch, NOW_S).bodies == {}
    assert take(careless, arrival(11, 2, digest=b"bbbb")).outgoing == []


def test_a_conflict_in_doubt_is_forwarded_marked() -> None:
    """Nobody knows what is in the target: the first that comes may be new, and only the next is compared with it."""
    checking = judge(evolve(KNOWN, doubt={"p": frozenset({11})}), check_bodies=True)
    first, second = take(checking, arrival(11, digest=b"aaaa"), arrival(11, 2, digest=b"bbbb")).outgoing
    assert (first.reason, first.marked, second.reason, second.marked) == ("", True, "conflict", False)


def test_a_conflict_is_never_parked_as_a_duplicate() -> None:
    """Whoever empties the parked ones must not lose it."""
    checking = judge(check_bodies=True, park_duplicates=True)
    settled(checking, arrival(11, digest=b"aaaa"))
    out = take(checking, arrival(11, 2, digest=b"bbbb"), arrival(11, 3, digest=b"aaaa")).outgoing
    assert [o.reason for o in out] == ["conflict", "duplicate"]


# -- message ids ----------------------------------------------------------------------------------


def test_a_message_is_told_by_its_id() -> None:
    """Its key is a publisher with one sequence; what is told of publishers does not name it."""
    before, first, second = (message_key(b"event-%d" % number) for number in range(3))
    ids = judge(State(6, 1, {**KNOWN.entries, before: forwarded(NOW_S, 6)}), message_ids_max=2, audit=True)
    batch = take(ids, arrival(1, 1, first), arrival(1, 2, first), arrival(1, 3, second))
    assert [out.arrival.tag for out in batch.outgoing] == [1, 3]
    assert batch.sequences == {first: (1,), second: (1,)}
    batch.remaining, batch.number = (), 7
    changes = ids.settle(batch, NOW_S)
    assert changes.entries.keys() == {first, second}
    assert changes.forgotten == (6,)
    report = ids.report(batch, changes.evicted, 0)
    assert (report.evicted, report.publishers) == ((), 1)
    assert (report.message_ids, report.message_ids_forgotten) == (2, 1)
    assert ids.report(batch, (), 0).message_ids_forgotten == 0


def test_a_message_id_in_doubt_is_forwarded_marked_once() -> None:
    """As a sequence in doubt is; the copy that follows it is a duplicate."""
    key = message_key(b"event-1")
    doubtful = judge(evolve(KNOWN, doubt={key: frozenset({1})}))
    batch = take(doubtful, arrival(1, 1, key, redelivered=True), arrival(1, 2, key))
    assert [(out.arrival.tag, out.marked) for out in batch.outgoing] == [(1, True)]
    batch.remaining = ()
    doubtful.settle(batch, NOW_S)
    assert doubtful.doubt == {}
