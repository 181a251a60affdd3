"""
A world around production retriers: a broker, a schedule, sessions that are killed or cut off at every step.

What is modelled is what the protocol leans on: the broker takes what a connection sent in order, until it notices that the
connection is dead; then it drops the fence, gives back what was not acknowledged and takes nothing more of it. After a restart
it may give back what was acknowledged lately. The schedule's calls are atomic, and an answer may be lost.
"""

from __future__ import annotations

from typing import Any

from attrs import Factory, define, evolve, frozen

from dedup.core import retry_steps as steps
from dedup.core.deaths import Death, DeathHistory
from dedup.core.retrier import Retrier
from dedup.core.retry_settings import RetrySettings
from dedup.core.retry_steps import Entry, Item, Kept, Letter, Sent
from dedup.core.schedule import Backoff

#: Queue names of the world.
TARGET, DEAD = "orders", "orders.dead"
_HISTORY = DeathHistory((Death("orders", "rejected"),))
_GONE = DeathHistory((Death("gone", "rejected"),))
#: So long a broker may need to write an ack down: what is kept for a tick less is kept from the answer to a probe on, a tick
#: after the ack.
_TICKS_TO_DISK = 3
_NAMES = tuple(f"s{number}" for number in range(1, 100))
_QUIET = (steps.Consume, steps.Pause, steps.Look)
SETTINGS = RetrySettings(
    "orders.dlq",
    Backoff((0.001,), 5),
    batch_max=2,
    message_bytes_max=100,
    rate_max=1e9,
    poll_s=1.0,
    keep_s=_TICKS_TO_DISK - 1.0,
    sweep_s=1.0,
    hold_s=1e9,
    refused_delay_s_min=1.0,
    refused_delay_s_max=1.0,
)


@frozen
class Dead:
    """One dead letter: who it is, and what a retrier sees of it."""

    name: str
    digest: bytes
    stamped: bool = True
    size: int = 1
    #: The queue it died in is not there any more.
    gone: bool = False


@frozen
class Faults:
    """How many of each fault may happen."""

    kills: int = 0
    cuts: int = 0
    lost_answers: int = 0
    broker_restarts: int = 0
    refusals: int = 0


@define
class Live:
    """One session: its process, while it lives, and its connections, until the broker notices that they are dead."""

    retrier: Retrier | None
    effects: list[steps.Effect] = Factory(list)
    consuming: bool = False
    #: Tag -> letter.
    unacked: dict[int, Dead] = Factory(dict)
    next_tag: int = 1
    #: Sent and not taken by the broker: acks, then publishes; each has its own connection.
    acks: list[int] = Factory(list)
    publishes: list[Item] = Factory(list)
    #: A probe follows the acks.
    probe: bool = False
    batch: int = 0
    sent: list[Sent] = Factory(list)
    #: The broker has noticed that the connections are dead.
    noticed: bool = False


@define
class Waiting:
    """What the schedule holds of one message."""

    dead: Dead
    queue: str
    reason: Any
    attempt: int


@define
class World:
    """Everything there is."""

    faults: Faults
    ready: list[Dead]
    capacity: int = 100
    now_s: float = 0.0
    sessions: dict[str, Live] = Factory(dict)
    #: Acknowledged and not on the broker's disk, with the ticks until it is.
    lately: list[tuple[Dead, int]] = Factory(list)
    #: Queue -> copies in order: who, and whether it is marked.
    queues: dict[str, list[tuple[str, bool]]] = Factory(lambda: {TARGET: [], DEAD: [], "gone.dead": []})
    # the schedule
    known: dict[str, tuple[int, tuple[Kept, ...]]] = Factory(dict)
    messages: dict[str, Waiting] = Factory(dict)
    due: list[str] = Factory(list)
    claimed: dict[str, list[str]] = Factory(dict)
    digests: dict[bytes, int] = Factory(dict)
    doubtful: set[str] = Factory(set)
    number: int = 0

    # -- the schedule -----------------------------------------------------------------------------

    def store(self, session: str, number: int, entries: list[Entry]) -> tuple[Kept, ...] | None:
        """What retry_store.lua does."""
        if session not in self.known:
            return None
        if self.known[session][0] == number:
            return self.known[session][1]
        answers = []
        for entry in entries:
            letter = entry.letter
            kept = Kept.NEW
            if self.digests.get(letter.digest, 0) > entry.own:
                kept = Kept.KNOWN if letter.stamped and not entry.direct else Kept.DOUBTFUL
            if kept is not Kept.KNOWN and not entry.direct:
                if len(self.messages) >= self.capacity:
                    break
                self.number += 1
                name = f"{self.number:04}"
                self.messages[name] = Waiting(letter.payload, entry.queue, entry.reason, entry.attempt)
                self.due.append(name)
                if kept is Kept.DOUBTFUL:
                    self.doubtful.add(name)
            if kept is Kept.NEW:
                self.digests[letter.digest] = self.digests.get(letter.digest, 0) + 1
            answers.append(kept)
        self.known[session] = number, tuple(answers)
        return tuple(answers)

    def claim(self, session: str, at_most: int) -> list[Item] | None:
        """What retry_claim.lua does."""
        if session not in self.known:
            return None
        if not self.claimed.get(session):
            self.claimed[session], self.due = self.due[:at_most], self.due[at_most:]
        items = []
        for name in self.claimed[session]:
            waiting = self.messages[name]
            items.append(
                Item(
                    name, waiting.queue, waiting.reason, waiting.attempt, name in self.doubtful, waiting.dead
                )
            )
        return items

    def settle(self, session: str, done: list[str], refused: list[str]) -> bool:
        """What retry_settle.lua does."""
        if session not in self.known:
            return False
        for name in (*done, *refused):
            if name in self.claimed.get(session, []):
                self.claimed[session].remove(name)
                if name in done:
                    del self.messages[name]
                    self.doubtful.discard(name)
                else:
                    self.due.append(name)
        return True

    def recover(self, session: str) -> None:
        """What retry_recover.lua does."""
        self.known.pop(session, None)
        claimed = self.claimed.pop(session, [])
        self.due = sorted({*self.due, *claimed})
        self.doubtful.update(claimed)

    # -- sessions ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a session; the broker holds its fence."""
        # Who is dead, and known to be, needs no name any more.
        for name, dead in [*self.sessions.items()]:
            if dead.retrier is None and dead.noticed and name not in self.known:
                del self.sessions[name]
        live = Live(Retrier(SETTINGS))
        self.sessions[next(name for name in _NAMES if name not in self.sessions)] = live
        self.tell(live, steps.Started())

    def tell(self, live: Live, event: steps.Event) -> None:
        """Let a session hear something."""
        assert live.retrier is not None
        live.effects += [
            effect
            for effect in live.retrier.handle(event, self.now_s)
            if not isinstance(effect, steps.Notice)
        ]
        # What changes nothing outside is done at once: a kill in between would show nothing new.
        while live.effects and isinstance(live.effects[0], _QUIET):
            self._perform_quietly(live)

    def _perform_quietly(self, live: Live) -> None:
        effect = live.effects.pop(0)
        if isinstance(effect, steps.Look):
            self.tell(live, steps.Looked(room=len(self.messages) < self.capacity))
        else:
            live.consuming = isinstance(effect, steps.Consume) and not live.noticed

    def perform(self, name: str, *, heard: bool = True) -> None:
        """Perform the next effect of a session; unless its answer is *heard*, it will be performed again."""
        live = self.sessions[name]
        effect = live.effects[0]
        fenced, answer = self._ask(name, effect)
        self._send(name, effect)
        if not heard:
            return
        live.effects.pop(0)
        if fenced:
            live.retrier, live.effects = None, []
        elif answer is not None:
            self.tell(live, answer)
        while live.effects and isinstance(live.effects[0], _QUIET):
            self._perform_quietly(live)

    def _ask(self, name: str, effect: steps.Effect) -> tuple[bool, steps.Event | None]:
        """Ask the schedule; return whether the session is fenced off, and the answer."""
        match effect:
            case steps.Register():
                self.known.setdefault(name, (0, ()))
                return False, steps.Registered(room=True)
            case steps.Store(number, entries):
                kept = self.store(name, number, list(entries))
                return kept is None, steps.Stored(kept or ())
            case steps.Claim(at_most, _):
                items = self.claim(name, at_most)
                return items is None, steps.Claimed(items or [])
            case steps.Settle(done, refused):
                return not self.settle(name, list(done), list(refused)), steps.Settled()
            case steps.Forget(digests):
                for digest in digests:
                    left = self.digests.pop(digest, 0) - 1
                    if left > 0:
                        self.digests[digest] = left
            case steps.Sweep():
                for other in [
                    other for other in self.known if other != name and self.sessions[other].noticed
                ]:
                    self.recover(other)
        return False, None

    def _send(self, name: str, effect: steps.Effect) -> None:
        """Send something to the broker; on a connection that it knows to be dead that goes nowhere."""
        live = self.sessions[name]
        match effect:
            case steps.Ack(tags) if not live.noticed:
                live.acks += tags
            case steps.Probe():
                live.probe = not live.noticed
            case steps.Publish(items):
                live.batch, live.sent = len(items), []
                live.publishes = [] if live.noticed else [evolve(item) for item in items]

    def fail(self, fault: str) -> None:
        """Use up one fault."""
        self.faults = evolve(self.faults, **{fault: getattr(self.faults, fault) - 1})

    def kill(self, name: str) -> None:
        """End the process of a session; the broker does not know yet."""
        live = self.sessions[name]
        live.retrier, live.effects, live.consuming = None, [], False

    def tick(self) -> None:
        """Let time pass."""
        self.now_s += 1.0
        self.lately = [(dead, left - 1) for dead, left in self.lately if left > 1]
        for live in self.sessions.values():
            if live.retrier is not None and not live.noticed:
                self.tell(live, steps.Ticked())

    # -- the broker -------------------------------------------------------------------------------

    def deliver(self, name: str) -> None:
        """Deliver the next dead letter."""
        live = self.sessions[name]
        dead = self.ready.pop(0)
        tag, live.next_tag = live.next_tag, live.next_tag + 1
        live.unacked[tag] = dead
        history = _GONE if dead.gone else _HISTORY
        letter = Letter(tag, dead.digest, dead.stamped, history, 0, dead.size, payload=dead)
        self.tell(live, steps.Arrived([letter]))

    def take_acks(self, name: str) -> None:
        """Take the acks a session has sent."""
        live = self.sessions[name]
        for tag in live.acks:
            if tag in live.unacked:  # a mutant acknowledges twice
                self.lately.append((live.unacked.pop(tag), _TICKS_TO_DISK))
        live.acks = []
        if live.probe:
            live.probe = False
            if live.retrier is not None:
                self.tell(live, steps.Probed())

    def take_publish(self, name: str, *, refuse: bool = False) -> None:
        """Take the next message a session has sent, and answer when it was the last of a batch."""
        live = self.sessions[name]
        item = live.publishes.pop(0)
        queue = item.queue if item.reason is None else f"{item.queue}.dead"
        if refuse:
            live.sent.append(Sent.REFUSED)
        elif queue not in self.queues:
            live.sent.append(Sent.RETURNED)
        else:
            self.queues[queue].append((item.payload.name, item.marked))
            live.sent.append(Sent.STORED)
        if len(live.sent) == live.batch and live.retrier is not None and not live.noticed:
            self.tell(live, steps.Published(tuple(live.sent)))

    def notice(self, name: str) -> None:
        """See that the connections of a session are dead."""
        live = self.sessions[name]
        live.noticed, live.consuming = True, False
        live.acks, live.publishes, live.probe = [], [], False
        self.ready = [*live.unacked.values(), *self.ready]
        live.unacked = {}

    def restart(self) -> None:
        """End every connection, and bring back what was acknowledged and is not on disk."""
        for name, live in self.sessions.items():
            if not live.noticed:
                self.notice(name)
        self.ready, self.lately = [*(dead for dead, _ in self.lately), *self.ready], []
