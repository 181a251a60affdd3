"""The order of effects, whatever happens: a session answered at random, and a watch over what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from dedup.core import steps
from dedup.core.judge import Judge
from dedup.core.phase import Phase
from dedup.core.records import Batch, Marker
from dedup.core.relay import Relay
from dedup.core.steps import Effect, Event
from tests.unit.relay_bench import (
    ANCHORED,
    BELIEVING,
    FORWARDED,
    LEADER,
    SAVED,
    STOP,
    TICKED,
    TOKEN,
    Bench,
)

#: Sequences that BELIEVING names.
BELIEVED = (1, 2)


class Session:
    """A relay whose effects are answered in any way, one after the other, and checked for their order."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.draw = draw
        exact = self.chance(2)
        self.bench = Bench(
            BELIEVING if self.chance(2) else None,
            leadership=None if exact else LEADER,
            exact=exact,
            batch_max=1 + draw(st.integers(0, 2)),
            anchor_every_s=5.0,
        )
        #: Something is believed, and the oldest delivery of it: from there on acks have to wait.
        self.believing = self.bench.state is not None
        self.believed_tag = 0
        self.confirmed = False
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
            assert effect.marker.batch in [evolve(intent, parts=None) for intent in self.intents], (
                "no Forward before its intent is saved"
            )
            self.tags.setdefault(effect.marker.batch.number, effect.outgoing[0].arrival.tag)
        if isinstance(effect, steps.Ack):
            if self.believing and self.believed_tag:
                assert effect.tag < self.believed_tag, "no Ack of what is believed"
            unsettled = [tag for number, tag in self.tags.items() if number > self.persisted]
            assert all(effect.tag < tag for tag in unsettled), "no Ack before the batch is persisted"

    def perform(self) -> None:
        """Answer the oldest effect."""
        effect = self.pending.pop(0)
        match effect:
            case steps.ClaimState():
                self.hear(steps.Claimed(TOKEN, self.bench.state, False))
            case steps.Survey():
                self.survey()
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

    def survey(self) -> None:
        """Say who leads the target: the same as before, or somebody else."""
        if self.bench.leadership is not None and self.chance(10):
            self.bench.leadership = evolve(self.bench.leadership, term=self.bench.leadership.term + 1)
        same = self.bench.leadership == LEADER
        # Before work begins, another leader turns belief into doubt; afterwards it ends the session.
        if self.confirmed == same or (not same and not self.consuming):
            self.believing = False
        self.hear(steps.Surveyed(self.bench.leadership))

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
            self.publish([*(between for _, between in effect.between), effect.marker])
            self.confirmed = True
            self.hear(FORWARDED)

    def publish(self, markers: Sequence[Marker]) -> None:
        """Put markers into the ledger: they come back."""
        for marker in markers:
            self.bench.ledger_tag += 1
            self.hear(steps.MarkerArrived(self.bench.ledger_tag, marker))

    def arrive(self, sequence: int) -> None:
        """Deliver one message."""
        self.bench.tag += 1
        if sequence in BELIEVED and not self.believed_tag:
            self.believed_tag = self.bench.tag
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


def test_acks_of_what_is_believed_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch notices a relay that acknowledges what may still be lost."""
    monkeypatch.setattr(Judge, "ackable", lambda _, tag: tag)
    draws = iter([1, 2])  # with confirms, and believing
    session = Session(lambda _: next(draws, 0))
    session.hear(steps.Started())
    session.rest()
    with pytest.raises(AssertionError, match="no Ack of what is believed"):
        session.arrive(1)
