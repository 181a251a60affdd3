"""A bench for the relay: it leads one to work and keeps every effect, so that their order can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from dedup.core import steps
from dedup.core.phase import Phase
from dedup.core.publishers import Entry
from dedup.core.records import Belief, Leadership, Marker, State
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from dedup.core.steps import Effect, Event
from dedup.core.window import Window

NOW_S = 1_000.0
TOKEN = 1_000_000
SAVED, FORWARDED, ANCHORED, TICKED, STOP = (
    steps.Saved(),
    steps.Forwarded(),
    steps.Anchored(),
    steps.Ticked(),
    steps.StopRequested(),
)

#: Who leads the target, later in the same term, and after an election.
LEADER, LATER, ELECTED = (
    Leadership("rabbit@a", 3, 70),
    Leadership("rabbit@a", 3, 90),
    Leadership("rabbit@b", 4, 91),
)
#: What a killed relay left that had handed sequences 1 and 2 over, unconfirmed.
BELIEVING = State(1, 5, {"p": Entry(Window(2, 1), 1.0)}, believed=Belief({"p": (1, 2)}, LEADER))

E = TypeVar("E", bound=Effect)


class Bench:
    """A relay with a clock of its own; markers it publishes come back at once, as from the broker."""

    def __init__(
        self,
        state: State | None = None,
        *held: Marker,
        restarted: bool = False,
        leadership: Leadership | None = None,
        **settings: Any,
    ) -> None:
        self.relay = Relay(RelaySettings(**{"survey_every_s": 1e9} | settings))
        self.leadership = leadership
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
        """Lead the relay to work: claimed, ledger read, target surveyed, recovered, anchored."""
        self.tell(steps.Started())
        self.tell(steps.Claimed(TOKEN, self.state, self.restarted))
        self.anchored()
        self.surveyed()
        self.tell(SAVED)
        self.anchored()
        assert self.relay.phase is Phase.IDLE
        return self

    def anchored(self) -> list[Effect]:
        """Store the markers of the last Anchor and answer it."""
        new = [effect for marker in self.last(steps.Anchor).markers for effect in self.arrive_marker(marker)]
        return [*new, *self.tell(ANCHORED)]

    def surveyed(self) -> list[Effect]:
        """Answer a Survey with who leads now."""
        return self.tell(steps.Surveyed(self.leadership))

    def forwarded(self) -> list[Effect]:
        """Store the markers of the last Forward and answer it."""
        forward = self.last(steps.Forward)
        markers = [*(between for _, between in forward.between), forward.marker]
        new = [effect for marker in markers for effect in self.arrive_marker(marker)]
        return [*new, *self.tell(FORWARDED)]

    def last(self, kind: type[E]) -> E:
        """Return the newest effect of *kind*."""
        return next(effect for effect in reversed(self.effects) if isinstance(effect, kind))


def kinds(effects: Sequence[Effect]) -> list[type]:
    """Return the types of *effects*."""
    return [type(effect) for effect in effects]


def believing(state: State = BELIEVING, **settings: Any) -> Bench:
    """Return a relay at work that believes what its predecessor handed over, under the same leader."""
    return Bench(state, leadership=LEADER, exact=False, **settings).start()


def forward_new(bench: Bench, sequence: int) -> list[Effect]:
    """Let one new message arrive and be stored; return what is asked for then."""
    assert kinds(bench.arrive(sequence)) == [steps.Save]
    bench.tell(SAVED)
    return bench.forwarded()


def refused(bench: Bench, *indexes: int) -> list[Effect]:
    """Let the target refuse these of the last Forward."""
    return bench.tell(steps.Refused(indexes))
