"""
A small world around the real sender: callers, a link that breaks and a broker that may be any way a broker can be.

The world offers choices, and compares what the sender says with what it knows. Faults cost: a world has a few of each, so
that it ends; then a fair broker must be able to finish.

Its clock stands still: after each event the sender's times are turned back by what has passed, so that states that differ
in nothing but the hour are one. Short pauses count as nothing against the patience for a confirm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from attrs import Factory, define

from dedup.core import sending
from dedup.core.sender import Sender
from dedup.core.sending import Event, Message, SenderSettings
from tests.simulation.sender_rules import BrokenRuleError, Rules, rule

#: Turns a fair broker gets to finish; far more than any world here needs.
FAIR_TURNS_MAX = 200

#: A pause the sender plans; longer ones mean that the broker is silent.
SHORT_S = 5.0

#: Sequences of a later owner of the publisher id lie this much higher.
RANGE = 2**32


@define
class World(Rules):
    """
    Sender, link and broker at one moment.
    """

    make_sender: Callable[[SenderSettings], Sender] = Sender
    #: None: the process is dead.
    sender: Sender | None = None
    #: Sequences of the owner of now lie above this.
    base: int = 0
    next: int = 1
    faults: Counter[str] = Factory(Counter)
    retries: int = 0
    #: What the broker has said and the sender has not heard.
    replies: list[tuple[str, int, int]] = Factory(list)
    #: What was stored since somebody asked, copies included.
    arrivals: list[int] = Factory(list)

    # -- choices ------------------------------------------------------------------------------

    def choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """
        Yield everything that can happen next, by name.
        """
        if self.sender is None:
            yield "resume with what was not confirmed", lambda world: world.resume(world.waiting)
            if set(self.fates.values()) & {"confirmed"}:
                yield "resume with everything", lambda world: world.resume(world.waiting | set(world.fates))
            return
        yield from self._process_choices()
        if self.channel == "asked":
            yield "open", World.open
            if self.faults["cut"]:
                yield "no connection", lambda world: world.spend("cut").lose("refused")
        if self.channel == "open":
            yield from self._channel_choices()
        due = self.sender.wake_at()
        if due is not None and due < SHORT_S:
            yield "time", World.pass_time
        elif due is not None and self.faults["silence"]:
            yield "silence", lambda world: world.spend("silence").pass_time()

    def _process_choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        if self.faults["kill"]:
            yield "KILL THE PUBLISHER", lambda world: world.spend("kill").kill()
        if self.faults["forget"]:
            yield "KILL THE PUBLISHER, it forgets", lambda world: world.spend("forget").forget()
        if self.next <= self.scenario.messages:
            yield "submit", World.submit
        if self.retries:
            for sequence in sorted(
                s for s, fate in self.fates.items() if fate in {"timeout", "returned", "refused"}
            ):
                yield f"retry {sequence}", partial(World.retry, sequence=sequence)

    def _channel_choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        if self.wire and not self.blocked:
            yield "serve", World.serve
            if self.faults["nack"] and self.wire[0][1] not in self.scenario.bad | self.scenario.unroutable:
                yield "nack", lambda world: world.spend("nack").refuse()
            if self.faults["lie"] and self.wire[0][1] not in self.scenario.bad | self.scenario.unroutable:
                yield "nack, though it is stored", lambda world: world.spend("lie").lie()
        if self.replies:
            yield "hear all", lambda world: world.hear(len(world.replies))
            if len(self.replies) > 1:
                yield "hear one", lambda world: world.hear(1)
            if self.faults["swallow"] and all(
                kind == "ack" and s in self.stored for kind, _, s in self.replies
            ):
                yield "swallow", lambda world: world.spend("swallow").swallow()
            if self.faults["contradict"] and any(kind == "nack" for kind, _, _ in self.replies):
                yield "contradict", lambda world: world.spend("contradict").contradict()
        if self.faults["cut"]:
            yield "cut", lambda world: world.spend("cut").lose("cut")
        if self.blocked:
            yield "unblock", World.unblock
        elif self.faults["block"]:
            yield "block", lambda world: world.spend("block").block()

    def spend(self, fault: str) -> World:
        self.faults[fault] -= 1
        return self

    # -- callers ------------------------------------------------------------------------------

    def submit(self) -> None:
        sequence, self.next = self.base + self.next, self.next + 1
        deadline = 1.0 if sequence in self.scenario.hasty else None
        self.waiting.add(sequence)
        self.tell(sending.Submitted([Message(sequence, "e", "k", sequence, 1, deadline)]))

    def retry(self, sequence: int) -> None:
        self.retries -= 1
        del self.fates[sequence]
        self.waiting.add(sequence)
        self.retried.add(sequence)
        self.tell(sending.RetryAsked(sequence))

    def pass_time(self) -> None:
        assert self.sender is not None
        due = self.sender.wake_at()
        assert due is not None
        self.tell(sending.Tick(), passed_s=max(0.0, due))

    def start(self) -> None:
        """Begin with a sender that knows nothing."""
        scenario = self.scenario
        settings = SenderSettings(
            "orders",
            window_size=scenario.window_size,
            unconfirmed_max=scenario.unconfirmed_max,
            confirm_timeout_s=100.0,
        )
        self.sender = self.make_sender(settings)
        self.attempts, self.retried = {}, set()

    def kill(self) -> None:
        """End the process; what callers were promised stays on record."""
        self.forget_channel()
        self.sender = None

    def resume(self, asked: set[int]) -> None:
        """Begin again with *asked*, from a durable record, under the same sequences."""
        self.start()
        for sequence in asked:
            self.fates.pop(sequence, None)
        self.waiting = set(asked)
        if asked:
            self.tell(sending.Submitted([Message(s, "e", "k", s, 1) for s in sorted(asked)]))

    def forget(self) -> None:
        """Begin again as a later owner of the id, who knows of nothing that was asked for before."""
        self.kill()
        self.base, self.next = self.base + RANGE, 1
        self.waiting, self.fates = set(), {}
        self.start()

    # -- link and broker ----------------------------------------------------------------------

    def open(self) -> None:
        self.channel = "open"
        self.tell(sending.Opened())

    def lose(self, reason: str) -> None:
        self.forget_channel()
        self.tell(sending.Lost(reason))

    def block(self) -> None:
        self.blocked = True
        self.tell(sending.Blocked("alarm"))

    def unblock(self) -> None:
        self.blocked = False
        self.tell(sending.Unblocked())

    def serve(self) -> None:
        """Take the next publish as its scenario says."""
        tag, sequence = self.wire.pop(0)
        if sequence in self.scenario.bad:
            self.forget_channel()
            self.tell(sending.Refused(406, "PRECONDITION_FAILED"))
            return
        if sequence in self.scenario.unroutable:
            self.replies.append(("return", tag, sequence))
        else:
            self.store(sequence)
        self.replies.append(("ack", tag, sequence))

    def store(self, sequence: int) -> None:
        self.stored.add(sequence)
        self.arrivals.append(sequence)

    def lie(self) -> None:
        self.store(self.wire[0][1])
        self.refuse()

    def refuse(self) -> None:
        tag, sequence = self.wire.pop(0)
        self.replies.append(("nack", tag, sequence))

    def hear(self, count: int) -> None:
        """Let the sender read *count* replies at once; acks without a gap become one ack of many."""
        heard, self.replies = self.replies[:count], self.replies[count:]
        confirms: list[tuple[int, bool, bool]] = []
        for kind, tag, sequence in heard:
            if kind == "return":
                self._hear_confirms(confirms)
                confirms = []
                self.tell(sending.Returned(sequence, 312, "NO_ROUTE"))
                continue
            multiple = (
                kind == "ack"
                and bool(self.outstanding)
                and tag > min(self.outstanding)
                and not self._refused(tag)
            )
            confirms.append((tag, multiple, kind == "ack"))
            self.outstanding -= {t for t in self.outstanding if t <= tag} if multiple else {tag}
        self._hear_confirms(confirms)

    def _refused(self, tag: int) -> bool:
        """Whether something up to *tag* is unserved or refused, so that an ack of many would lie."""
        unserved = any(t < tag for t, _ in self.wire)
        return unserved or any(t < tag for kind, t, _ in self.replies if kind != "ack")

    def swallow(self) -> None:
        """Lose confirms on a connection that lives on."""
        self.replies = []

    def contradict(self) -> None:
        """Acknowledge everything up to the newest reply, then nack what was refused: pika issue 911, in one read."""
        heard, self.replies = self.replies, []
        for kind, _, sequence in heard:
            if kind == "return":
                self.tell(sending.Returned(sequence, 312, "NO_ROUTE"))
        nacks = [(tag, False, False) for kind, tag, _ in heard if kind == "nack"]
        newest = max(tag for _, tag, _ in heard)
        self.outstanding = {tag for tag in self.outstanding if tag > newest}
        self._hear_confirms([(newest, True, True), *nacks])

    def _hear_confirms(self, confirms: list[tuple[int, bool, bool]]) -> None:
        if confirms:
            self.tell(sending.Confirms(confirms))

    def forget_channel(self) -> None:
        self.channel, self.blocked, self.tag = None, False, 0
        self.wire, self.replies = [], []
        self.outstanding, self.on_channel = set(), set()

    # -- the sender ----------------------------------------------------------------------------

    def tell(self, event: Event, passed_s: float = 0.0) -> None:
        """
        Hand *event*, *passed_s* after the one before, to the sender and hold its effects against the rules.
        """
        assert self.sender is not None
        effects = self.sender.handle(event, passed_s)
        turn_back(self.sender, passed_s)
        for effect in effects:
            match effect:
                case sending.Open():
                    rule(self.channel is None, "one channel at a time")
                    self.channel = "asked"
                case sending.Drop():
                    self.forget_channel()
                case sending.Send():
                    for message in effect.messages:
                        self._sent(message)
                case sending.Confirmed():
                    for message in effect.messages:
                        self._confirmed(message.sequence)
                case sending.Failed():
                    self._failed(effect.sequence, effect.error)


def turn_back(sender: Sender, passed_s: float) -> None:
    """
    Turn the clock of *sender* back to zero.
    """
    link, in_flight, kept = sender._link, sender._in_flight, sender._given_up
    if link._ask_at is not None:
        link._ask_at = max(0.0, link._ask_at - passed_s)
    link.listening_since = link._opened_at = link._asked_at = 0.0
    sender._nacked = [(due - passed_s, sequence) for due, sequence in sender._nacked]
    sender._deadlines = [(due - passed_s, sequence) for due, sequence in sender._deadlines]
    held = [*sender._live.values(), *kept._messages.values(), *in_flight._items, *in_flight._doubtful]
    for message in {id(message): message for message in held if isinstance(message, Message)}.values():
        message.sent_at = 0.0
        if message.deadline is not None:
            message.deadline -= passed_s


def finish(world: World) -> None:
    """
    Let the faults stop and a fair broker serve: every caller must be told, and what was good must be stored.
    """
    for _ in range(FAIR_TURNS_MAX):
        if world.sender is None:
            world.resume(world.waiting)
        elif world.next <= world.scenario.messages:
            world.submit()
        elif not world.waiting:
            return
        elif world.channel == "asked":
            world.open()
        elif world.blocked:
            world.unblock()
        elif world.wire:
            world.serve()
        elif world.replies:
            world.hear(len(world.replies))
        elif world.sender.wake_at() is not None:
            world.pass_time()
        else:
            break
    raise BrokenRuleError(f"when faults stop everything settles: {sorted(world.waiting)} did not")
