"""
The relay: move messages from an ingress to a target so that nothing is lost or doubled.

Theory of operation
-------------------
One relay owns one queue for one *session*: from taking the fence to the loss of a connection.
A session never reconnects; the next one recovers as after kill -9, so there is one way to come
back and it is used every day. Work goes in batches of whatever has arrived:

    1 judge    every arrival, in memory; verdicts go into a draft of the map
    2 intent   one Redis write: what the batch will forward (with the windows of the batch before)
    3 forward  to the target or to quarantine, then a marker into the ledger; all or nothing
               where the broker can (exact), else each with a confirm and markers in between
    4 persist  one Redis write: windows, batch number, no intent (with the intent of the next batch)
    5 ack      the deliveries, on the other connection

What a crash after each step leaves, and what recovery (recovery.py) makes of it:

    1          nothing: the broker delivers again
    2          intent without marker: not forwarded (exact) or in doubt save what parts prove
    3          marker (exact: of the same transaction): windows are replayed from it
    4          redeliveries are duplicates
    5          nothing

Invariants: no Forward before its intent is written; no Ack before the batch is persisted; one
Forward or Anchor in flight at a time, and nothing else on its channel meanwhile; at least one
transient marker of the own token stays in the ledger from the first intent to the end.

A marker would lie of a message that its transaction could not route. So there is no such message: what
neither the target nor the quarantine takes ends in the ledger itself, beside its marker (a *stray*), and
whoever recovers sends it on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from dedup.core import steps
from dedup.core.judge import Judge, Judged
from dedup.core.ledger import Ledger
from dedup.core.moving import Mover
from dedup.core.parts import marker_behind, markers_between, still_led
from dedup.core.phase import UNREAD, UNRECOVERED, Phase
from dedup.core.proof import Proof
from dedup.core.publishers import Changes
from dedup.core.recorder import Recorder
from dedup.core.records import Batch, Marker, MarkerKind, State
from dedup.core.recovery import newest_number, recover
from dedup.core.settings import RelaySettings
from dedup.core.steps import Arrival, Effect, Event


class Relay:
    """
    One session of forwarding one queue; see the theory of operation above.

    handle() is total: an event that its phase does not wait for changes nothing, except
    deliveries and markers, which are taken note of in every phase.
    """

    def __init__(self, settings: RelaySettings) -> None:
        self.settings = settings
        self.phase = Phase.NEW
        self.token = 0
        #: Number of the newest settled batch.
        self.batch = 0
        self._policy = Mover if settings.moving else Judge
        self.judge = self._policy(settings, State(), 0.0, suspect=False)
        self.ledger = Ledger(settings.marker_keep_s)
        self._claimed = steps.Claimed(0, None, restarted=False)
        #: The own first marker: the broker has said that it is stored, and it has been delivered.
        self._first_stored = self._first_read = False
        self._proof = Proof()
        self._recorder = Recorder(on=settings.audit)
        self._waiting: deque[Arrival] = deque()
        self._current: Judged | None = None
        #: What Redis is told of it before it goes out.
        self._intent: Batch | None = None
        #: Changes settled in memory and not yet written.
        self._unwritten: Changes | None = None
        #: Answers and receipts, each with the tag that must be settled and written before it is told.
        self._questions: deque[Arrival] = deque()
        self._receipts: deque[tuple[int, steps.Receipts]] = deque()
        #: Up to this tag everything is settled after the next write; up to that one it is acknowledged.
        self._ackable = self._acked = 0
        self._anchored_s = self._surveyed_s = 0.0
        self._retry_at_s = 0.0
        self._stopping = False
        #: The target has refused one batch too often.
        self._giving_up = False
        #: Everything is settled and acknowledged when this session ends by a stop.
        self._clean = True
        self._handlers: Mapping[type, Callable[[Any, float], list[Effect]]] = {
            steps.Started: self._on_started,
            steps.Claimed: self._on_claimed,
            steps.MarkerArrived: self._on_marker,
            steps.StrayArrived: self._on_stray,
            steps.Surveyed: self._on_surveyed,
            steps.Anchored: self._on_anchored,
            steps.Saved: self._on_saved,
            steps.StoreBehind: self._on_store_behind,
            steps.Arrived: self._on_arrived,
            steps.Forwarded: self._on_forwarded,
            steps.Refused: self._on_refused,
            steps.CommitPartial: self._on_commit_partial,
            steps.Ticked: self._on_tick,
            steps.StopRequested: self._on_stop,
            steps.Closed: self._on_closed,
        }

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """
        Take note of *event* at *now_s* (unix seconds) and return what to do, in order.
        """
        return self._handlers[type(event)](event, now_s)

    # -- taking over ------------------------------------------------------------------------------

    def _on_started(self, _: steps.Started, now_s: float) -> list[Effect]:
        return self._claim(int(now_s * 1000)) if self.phase is Phase.NEW else []

    def _claim(self, token_min: int) -> list[Effect]:
        self.phase = Phase.CLAIMING
        return [steps.ClaimState(token_min)]

    def _on_claimed(self, event: steps.Claimed, now_s: float) -> list[Effect]:
        if self.phase is not Phase.CLAIMING:
            return []
        self.phase = Phase.READING_LEDGER
        self._first_stored = self._first_read = False
        self.token = self.ledger.token = event.token
        self._claimed = event
        first = Marker(MarkerKind.FIRST, Batch(self.token, newest_number(event.state), self.settings.exact))
        return [steps.Anchor((first,))]

    def _on_marker(self, event: steps.MarkerArrived, now_s: float) -> list[Effect]:
        if self.ledger.add(event.tag, event.marker) and self.phase is Phase.READING_LEDGER:
            self._first_read = True
            return self._survey_when_read()
        return []

    def _survey_when_read(self) -> list[Effect]:
        """
        Go on when the own first marker has come back and its answer too; either may be the first.
        """
        if not (self._first_stored and self._first_read):
            return []
        self.phase = Phase.SURVEYING
        return [steps.Survey()]

    def _on_stray(self, event: steps.StrayArrived, now_s: float) -> list[Effect]:
        """
        Keep a message that found no queue: of a relay before, until there is an anchor to send it on with.

        One that this session has sent itself ends it: the next one begins when the queues are there again.
        """
        self.ledger.add_stray(event.tag, event.payload)
        if self.phase in UNREAD or self.phase is Phase.ENDED:
            return []
        return self._end("a message found no queue: neither the target nor the quarantine took it")

    def _on_surveyed(self, event: steps.Surveyed, now_s: float) -> list[Effect]:
        self._surveyed_s = now_s
        self._proof.surveyed(event, published=self.phase is not Phase.SURVEYING)
        if self.phase is Phase.SURVEYING:
            return self._recover(now_s)
        believed = self.judge.believed
        if believed is not None and not still_led(believed.leadership, event.leadership):
            return self._end("the target came to be led by somebody else before it was sure what it holds")
        if self.phase is not Phase.PROVING:
            return []
        self.judge.prove()
        return self._stored(now_s)

    def _recover(self, now_s: float) -> list[Effect]:
        """
        Settle what the relay before left; the ledger has been read up to the own first marker.
        """
        before = self.ledger.markers()[:-1]
        newest = max((marker.batch.token for marker in before), default=0)
        if newest >= self.token:
            # Redis forgot the token and the clock went back: rise above what the ledger has seen.
            return self._claim(newest + 1)
        found = recover(
            self._claimed.state,
            before,
            token=self.token,
            redis_restarted=self._claimed.restarted,
            trust_exact=self.settings.trust_exact,
            source_witnessed=self.settings.source_witnessed,
            leadership=self._proof.leadership,
            size=self.settings.window_size,
            idle_s=self.settings.publisher_idle_s,
            message_id_keep_s=self.settings.message_id_keep_s,
            check_bodies=self.settings.check_bodies,
            now_s=now_s,
        )
        self.phase = Phase.RECOVERING
        # What it was, recovery has changed; with many publishers it is large.
        self._claimed = steps.Claimed(self.token, None, restarted=False)
        self.batch = found.state.batch
        self.judge = self._policy(self.settings, found.state, now_s, suspect=found.suspect)
        self._recorder.begin(found.state)
        return [*found.notices(), steps.Replace(self.token, found.state)]

    # -- the ledger -------------------------------------------------------------------------------

    def _anchor(self, now_s: float) -> list[Effect]:
        """
        Send strays on, and write the durable founding marker and a first marker; all older ones may go afterwards.
        """
        self.phase = Phase.ANCHORING
        self._anchored_s = now_s
        markers, release = self.ledger.anchors(exact=self.settings.exact), self.ledger.release(now_s)
        return [steps.Anchor(markers, release, strays=self.ledger.strays())]

    def _on_anchored(self, _: steps.Anchored, now_s: float) -> list[Effect]:
        if self.phase is Phase.READING_LEDGER:
            self._first_stored = True
            return self._survey_when_read()
        if self.phase is Phase.ANCHORING and (strays := self.ledger.release_strays()):
            # Not in one transaction with sending them on: a broker that dies may keep of it what it likes.
            return [steps.Anchor((), strays)]
        if self.phase is Phase.RECORDING:
            self._settle(now_s)
        return self._advance(now_s) if self.phase in (Phase.ANCHORING, Phase.RECORDING) else []

    # -- batches ----------------------------------------------------------------------------------

    def _on_arrived(self, event: steps.Arrived, now_s: float) -> list[Effect]:
        self._waiting.extend(event.arrivals)
        return self._advance(now_s) if self.phase is Phase.IDLE else []

    def _advance(self, now_s: float) -> list[Effect]:
        """
        Start the next thing there is to do: a batch, a write that is due, the end, or nothing.
        """
        if now_s - self._anchored_s >= self.settings.anchor_every_s and not self._stopping:
            return self._anchor(now_s)
        effects: list[Effect] = []
        if now_s - self._surveyed_s >= self.settings.survey_every_s:
            self._surveyed_s = now_s
            effects.append(steps.Survey())
        while self._waiting and self._current is None and not (self._stopping or self._giving_up):
            batch = self.judge.take(self._waiting, now_s)
            self._questions.extend(batch.questions)
            if batch.outgoing or (batch.judged and self._recorder.on):
                self._intend(batch)
            else:
                effects.append(self.judge.report(batch, (), len(self._waiting)))
                self._finish(batch)
        if self._current is not None or self._unwritten is not None:
            self.phase = Phase.SAVING
            return [*effects, self._save()]
        # Nothing is unwritten, so whatever these duplicates are copies of is persisted.
        effects.extend(self._ack())
        self.phase = Phase.IDLE
        if self._stopping:
            self.phase = Phase.CLOSING
            effects.append(steps.Close())
        return effects

    def _intend(self, batch: Judged) -> None:
        """
        Make *batch* the current one.
        """
        self._current = batch
        batch.number = self.batch + 1
        parts = self._proof.parts(batch.outgoing, self.settings.marker_every)
        self._intent = Batch(self.token, batch.number, self.settings.exact, batch.sequences, parts)

    def _save(self) -> steps.Save:
        """
        Write what is settled, and the intent of the batch that comes next.
        """
        written = self._unwritten or Changes({})
        return self.judge.save(self.token, self.batch, written, self._intent, self._recorder.position)

    def _on_saved(self, _: steps.Saved, now_s: float) -> list[Effect]:
        """
        Redis has it: what is settled may be acknowledged, what is intended may be forwarded.
        """
        self.ledger.saved(self.batch, now_s)
        if self.phase is Phase.RECOVERING:
            return [*self._anchor(now_s), steps.Consume()]
        if self.phase is Phase.FAILING:
            return self._end("the broker refused part of a transaction", partial=True)
        if self.phase is Phase.MARKING_CLEAN:
            return self._end()
        if self.phase is not Phase.SAVING:
            return []
        self._unwritten = None
        self.judge.saved()
        if self._giving_up:
            return self._end("the target refuses for too long")
        acks = self._ack()
        if self._current is None:
            return [*acks, *self._advance(now_s)]
        return [*acks, self._forward(now_s)]

    def _on_store_behind(self, _: steps.StoreBehind, now_s: float) -> list[Effect]:
        """
        Redis has lost writes while this relay lives: memory knows better.
        """
        if self.phase not in (Phase.SAVING, Phase.FAILING, Phase.MARKING_CLEAN):
            return []
        self.ledger.lost()
        clean, logged = self.phase is Phase.MARKING_CLEAN, self._recorder.position
        state = self.judge.state(self.token, self.batch, self._intent, logged, clean=clean)
        return [steps.Notice("dedup.store_behind", {"batch": self.batch}), steps.Replace(self.token, state)]

    def _forward(self, now_s: float) -> Effect:
        assert self._current is not None and self._intent is not None  # noqa: PT018
        self.phase = Phase.FORWARDING
        outgoing = self._current.remaining
        record = self._recorder.record(self.batch + 1, self._current.at_s, self._current.judged)
        marker, between = marker_behind(self._intent, record), markers_between(outgoing, self._intent)
        return steps.Forward(outgoing, marker, self.ledger.release(now_s), between, record)

    def _on_forwarded(self, _: steps.Forwarded, now_s: float) -> list[Effect]:
        if self.phase is not Phase.FORWARDING:
            return []
        assert self._current is not None
        self._current.remaining = ()
        if len(self._current.outgoing) > self._current.quarantined:
            self._proof.stored()
            if self.judge.believed is not None:
                self.phase = Phase.PROVING
                return [steps.Survey()]
        return self._stored(now_s)

    def _stored(self, now_s: float) -> list[Effect]:
        """
        Go on after the current batch: all of it is stored.
        """
        batch = self._settle(now_s)
        assert self._unwritten is not None
        self._finish(batch)
        report = self.judge.report(batch, self._unwritten.evicted, len(self._waiting))
        return [report, *self._advance(now_s)]

    def _settle(self, now_s: float) -> Judged:
        """
        Take the current batch as stored, except what remains, and return it; it waits for the next write.
        """
        batch = self._current
        assert batch is not None
        assert self._unwritten is None, "a batch is saved before the next one is forwarded"
        self.batch += 1
        self._unwritten = self.judge.settle(batch, now_s)
        self._recorder.stored()
        self._current = self._intent = None
        return batch

    def _finish(self, batch: Judged) -> None:
        """
        Take note that after the next write all of *batch* may be acknowledged.
        """
        self._ackable = max(self._ackable, batch.last_tag)
        self._receipts.extend((batch.last_tag, receipts) for receipts in batch.receipts())

    def _ack(self) -> list[Effect]:
        """
        Acknowledge what is settled and written, and before that tell what it allows to be told.

        A question that is delivered again, because this relay dies in between, is answered again.
        """
        tag = self.judge.ackable(self._ackable)
        if tag <= self._acked:
            return []
        self._acked = tag
        told: list[Effect] = []
        while self._questions and self._questions[0].tag <= tag:
            question = self._questions.popleft().question
            assert question is not None
            told.append(steps.Answer(question, self.judge.stand(question)))
        while self._receipts and self._receipts[0][0] <= tag:
            told.append(self._receipts.popleft()[1])
        return [*told, steps.Ack(tag)]

    # -- when the target refuses ------------------------------------------------------------------

    def _on_refused(self, event: steps.Refused, now_s: float) -> list[Effect]:
        """
        Some of the batch is stored; publish the rest again after a pause, for as long as it takes.
        """
        if self.phase is not Phase.FORWARDING:
            return []
        assert self._current is not None
        batch = self._current
        batch.refuse(event.indexes)
        pause_s = self.settings.refused_pause_s(batch.refusals)
        self.phase = Phase.REFUSED
        self._retry_at_s = now_s + pause_s
        # A target that refuses after all makes liars of the markers of parts: no second try with these.
        if self._proof.leadership is not None:
            self._giving_up = True
        elif self._is_overdue(batch, now_s):
            batch.put_aside()
        elif batch.refusals >= self.settings.refusals_max:
            self._giving_up = True
        notice = steps.Notice("dedup.refused", {"messages": len(batch.remaining), "retry_in_s": pause_s})
        return [notice, *(self._give_up_refused(now_s) if self._stopping or self._giving_up else [])]

    def _is_overdue(self, batch: Judged, now_s: float) -> bool:
        """
        Say whether what the target refuses of *batch* is to be put aside.
        """
        aside_s = self.settings.refused_aside_s
        return aside_s is not None and batch.refusals > 1 and now_s - batch.at_s >= aside_s

    def _give_up_refused(self, now_s: float) -> list[Effect]:
        """
        End while the target refuses: remember what it took, leave everything to the next session.
        """
        batch = self._current
        assert batch is not None
        self._clean = False
        record = self._recorder.record(self.batch + 1, batch.at_s, batch.stored())
        if record is not None:
            self.phase = Phase.RECORDING
            return [steps.Anchor((), record=record)]
        self._settle(now_s)
        return self._advance(now_s)

    def _on_commit_partial(self, _: steps.CommitPartial, now_s: float) -> list[Effect]:
        """
        The broker stored an unknown part and the marker with it: the marker must not be believed.
        """
        if self.phase is not Phase.FORWARDING:
            return []
        assert self._current is not None
        self.judge.doubt_all(self._current)
        self._current = self._intent = None
        self.batch += 1
        self.phase = Phase.FAILING
        return [self._save()]

    def _on_tick(self, _: steps.Ticked, now_s: float) -> list[Effect]:
        if self.phase is Phase.REFUSED and now_s >= self._retry_at_s:
            return [self._forward(now_s)]
        if self.phase is not Phase.IDLE:
            return []
        if (arrival := self.judge.disbelieve(now_s)) is not None:
            self._waiting.appendleft(arrival)
        return self._advance(now_s)

    # -- the end ----------------------------------------------------------------------------------

    def _on_stop(self, _: steps.StopRequested, now_s: float) -> list[Effect]:
        """
        Finish what is in flight, forget what was not begun: the broker delivers it again.
        """
        if self._stopping:
            return []
        self._stopping = True
        self._waiting.clear()
        if self.phase in UNRECOVERED:
            return self._end()
        if self.phase is Phase.IDLE:
            return self._advance(now_s)
        return self._give_up_refused(now_s) if self.phase is Phase.REFUSED else []

    def _on_closed(self, _: steps.Closed, now_s: float) -> list[Effect]:
        if self.phase is not Phase.CLOSING:
            return []
        if not self._clean or self.judge.suspect or self.judge.believed is not None:
            return self._end()
        self.phase = Phase.MARKING_CLEAN
        return [evolve(self._save(), clean=True)]

    def _end(self, reason: str = "", *, partial: bool = False) -> list[Effect]:
        self.phase = Phase.ENDED
        return [steps.End(reason, partial)]
