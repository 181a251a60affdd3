"""A question is answered from what is written, before it is acknowledged, and is no message; receipts follow the same way."""

from __future__ import annotations

from typing import Any

from dedup.core import steps
from dedup.core.phase import Phase
from dedup.core.publishers import Entry
from dedup.core.questions import Question, Standing, Status
from dedup.core.records import State
from dedup.core.window import Verdict, Window
from tests.unit.relay_bench import LEADER, SAVED, STOP, TICKED, Bench, believing, forward_new, kinds, refused


def deliver(
    bench: Bench, *what: int | Question, wants_receipt: bool = False, **fields: Any
) -> list[steps.Effect]:
    """Deliver messages of publisher p, and questions, in one piece."""
    arrivals = []
    for one in what:
        bench.tag += 1
        question = one if isinstance(one, Question) else None
        sequence = one if isinstance(one, int) else None
        arrivals.append(
            steps.Arrival(
                bench.tag,
                False,
                "p",
                sequence,
                question=question,
                wants_receipt=wants_receipt,
                payload=one,
                **fields,
            )
        )
    return bench.tell(steps.Arrived(arrivals))


RESUME = Question("p")


def test_a_question_alone_is_answered_at_once() -> None:
    """Nothing is written or forwarded for it, with an audit or without, and it is counted apart from messages."""
    for audit in (False, True):
        bench = Bench(State(4, 5, {"p": Entry(Window(7, 1, 0b10), 1.0)}), audit=audit).start()
        answer, ack = deliver(bench, RESUME)
        assert answer == steps.Answer(RESUME, Standing(7, 1, ((5, 5),)))
        assert ack == steps.Ack(1)
        report = bench.last(steps.Report)
        assert (report.questions, dict(report.verdicts), report.forwarded) == (1, {}, 0)


def test_the_answer_waits_for_what_is_in_front() -> None:
    """It is given when all of the batch is in the target and written, and before the batch is acknowledged."""
    bench = Bench().start()
    (save,) = deliver(bench, 1, 2, RESUME, 3)
    assert isinstance(save, steps.Save)
    (forward,) = bench.tell(SAVED)
    assert isinstance(forward, steps.Forward)
    assert [out.arrival.sequence for out in forward.outgoing] == [1, 2, 3]
    assert kinds(bench.forwarded()) == [steps.Save]
    answer, ack = bench.tell(SAVED)
    assert answer == steps.Answer(RESUME, Standing(3, 1))
    assert ack == steps.Ack(4)


def test_the_answer_says_nothing_of_the_next_batch() -> None:
    """That is judged by then, and not forwarded."""
    bench = Bench().start()
    deliver(bench, 1, RESUME)
    bench.tell(SAVED)
    deliver(bench, 2)
    bench.forwarded()
    answer, _, forward = bench.tell(SAVED)
    assert answer == steps.Answer(RESUME, Standing(1, 1))
    assert isinstance(forward, steps.Forward)


def test_what_the_target_refuses_is_not_answered_for() -> None:
    """A session that gives up leaves the question to the next one."""
    bench = Bench().start()
    deliver(bench, 1, RESUME)
    bench.tell(SAVED)
    refused(bench, 0)
    bench.tell(STOP)
    assert not [effect for effect in bench.effects if isinstance(effect, steps.Answer | steps.Ack)]


def test_the_audit_has_no_row_of_a_question() -> None:
    """Rows are numbered without a hole, and none is of anything but a message."""
    bench = Bench(audit=True).start()
    deliver(bench, RESUME, 1, RESUME, 2, RESUME)
    bench.tell(SAVED)
    record = bench.last(steps.Forward).record
    assert record is not None
    assert [out.arrival.sequence for out in record.rows] == [1, 2]
    bench.forwarded()
    assert kinds(bench.tell(SAVED)) == [steps.Answer, steps.Answer, steps.Answer, steps.Ack]
    assert bench.relay.phase is Phase.IDLE


def test_a_malformed_question_goes_to_quarantine() -> None:
    """With its reason, like any message whose stamp cannot be believed."""
    bench = Bench().start()
    deliver(bench, RESUME, fault="ask-reply-to")
    bench.tell(SAVED)
    (out,) = bench.last(steps.Forward).outgoing
    assert (out.verdict, out.reason) == (Verdict.MALFORMED, "ask-reply-to")


def test_what_is_believed_is_uncertain_until_it_is_proven() -> None:
    """An election may take it away; behind a copy of it the question waits, in front of it the answer says so."""
    bench = believing()
    question = Question("p", 2)
    answer, _ = deliver(bench, question)
    assert answer == steps.Answer(question, Standing(2, 1, ((1, 2),), status=Status.UNCERTAIN))
    assert deliver(bench, 1, RESUME) == []
    told = [*forward_new(bench, 3), *bench.tell(steps.Surveyed(LEADER)), *bench.tell(SAVED)]
    assert steps.Answer(RESUME, Standing(3, 1)) in told


def test_what_is_in_doubt_is_missing() -> None:
    """It may be in the target or not: who resumes sends it again, and it comes out marked."""
    bench = Bench(State(4, 5, {"p": Entry(Window(7, 1), 1.0)}, doubt={"p": frozenset({6})})).start()
    answer, _ = deliver(bench, RESUME)
    assert answer == steps.Answer(RESUME, Standing(7, 1, ((6, 6),)))


def test_receipts_are_one_piece_for_each_publisher_and_batch() -> None:
    """Duplicates and quarantined messages of those that asked for them, when the batch is written."""
    bench = Bench().start()
    deliver(bench, 20_000, 20_000, 3, 20_001, wants_receipt=True)
    deliver(bench, 20_001)
    bench.tell(SAVED)
    assert kinds(bench.forwarded()) == [steps.Save]
    told = bench.tell(SAVED)
    assert told[0] == steps.Receipts("p", [(20_000, "duplicate", ""), (3, "quarantined", "too-old")])
    assert isinstance(told[1], steps.Ack)
    assert not [effect for effect in bench.tell(TICKED) if isinstance(effect, steps.Receipts)]
    assert deliver(bench, 20_000, wants_receipt=True) == [
        steps.Receipts("p", [(20_000, "duplicate", "")]),
        steps.Ack(6),
    ]


def test_a_fenced_message_is_told_as_such() -> None:
    """Its number lies in a lower range than the newest."""
    bench = Bench(State(4, 5, {"p": Entry(Window(2**33 + 1, 2**33), 1.0)})).start()
    deliver(bench, 2**32 + 5, wants_receipt=True)
    bench.tell(SAVED)
    bench.forwarded()
    assert bench.tell(SAVED)[0] == steps.Receipts("p", [(2**32 + 5, "fenced", "fenced")])
