"""
A small world around the real sender: callers, a link that breaks and a broker that may be any way a broker can be.

The world offers choices; :func:`explore` takes every one of them in every order and compares what the sender says with what
the world knows. Faults cost: a world has a few of each, so that it ends; then a fair broker must be able to finish.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attrs import Factory, define, frozen

from dedup.core import sending
from dedup.core.sender import Sender
from dedup.core.sending import Event, Message, SenderSettings
from dedup.errors import PublishError, PublishTimeoutError, ReceiptExpiredError, ReturnedError

#: Turns a fair broker gets to finish; far more than any world here needs.
FAIR_TURNS_MAX = 200

#: A pause the sender plans; longer ones mean that the broker is silent.
SHORT_S = 5.0


class BrokenRuleError(AssertionError):
    """Raised when the sender said or did what it must not."""


@frozen
class Scenario:
    """
    What a world starts with.
    """

    messages: int = 2
    #: Sequences no queue takes, and sequences the broker closes the channel for.
    unroutable: frozenset[int] = frozenset()
    bad: frozenset[int] = frozenset()
    #: Sequences whose callers wait a second only.
    hasty: frozenset[int] = frozenset()
    #: How often each fault may happen: cut, nack, silence, swallow, block, contradict.
    faults: Counter[str] = Factory(Counter)
    #: How many failed messages are retried.
    retries: int = 0
    unconfirmed_max: int = 4
    window_size: int = 8


@define
class World:
    """
    Sender, link and broker at one moment.
    """

    scenario: Scenario
    sender: Sender
    now: float = 0.0
    next: int = 1
    faults: Counter[str] = Factory(Counter)
    retries: int = 0
    #: The channel: asked for, open; None for neither.
    channel: str | None = None
    blocked: bool = False
    #: Publishes the broker has not seen yet: (tag, sequence).
    wire: list[tuple[int, int]] = Factory(list)
    #: What the broker has said and the sender has not heard.
    replies: list[tuple[str, int, int]] = Factory(list)
    tag: int = 0
    #: Tags of this channel whose reply was not heard.
    outstanding: set[int] = Factory(set)
    #: Sequences sent on this channel.
    on_channel: set[int] = Factory(set)
    stored: set[int] = Factory(set)
    attempts: dict[int, int] = Factory(dict)
    #: Callers that wait, and how the others ended.
    waiting: set[int] = Factory(set)
    fates: dict[int, str] = Factory(dict)
    retried: set[int] = Factory(set)

    # -- choices ------------------------------------------------------------------------------

    def choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """
        Yield everything that can happen next, by name.
        """
        if self.next <= self.scenario.messages:
            yield "submit", World.submit
        if self.retries:
            for sequence in sorted(
                s for s, fate in self.fates.items() if fate in {"timeout", "returned", "refused"}
            ):
                yield f"retry {sequence}", partial(World.retry, sequence=sequence)
        if self.channel == "asked":
            yield "open", World.open
            if self.faults["cut"]:
                yield "no connection", lambda world: world.spend("cut").lose("refused")
        if self.channel == "open":
            yield from self._channel_choices()
        due = self.sender.wake_at()
        if due is not None and due < self.now + SHORT_S:
            yield "time", World.pass_time
        elif due is not None and self.faults["silence"]:
            yield "silence", lambda world: world.spend("silence").pass_time()

    def _channel_choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        if self.wire and not self.blocked:
            yield "serve", World.serve
            if self.faults["nack"] and self.wire[0][1] not in self.scenario.bad | self.scenario.unroutable:
                yield "nack", lambda world: world.spend("nack").refuse()
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
        sequence, self.next = self.next, self.next + 1
        deadline = self.now + 1.0 if sequence in self.scenario.hasty else None
        self.waiting.add(sequence)
        self.tell(sending.Submitted([Message(sequence, "e", "k", sequence, 1, deadline)]))

    def retry(self, sequence: int) -> None:
        self.retries -= 1
        del self.fates[sequence]
        self.waiting.add(sequence)
        self.retried.add(sequence)
        self.tell(sending.RetryAsked(sequence))

    def pass_time(self) -> None:
        due = self.sender.wake_at()
        assert due is not None
        self.now = max(self.now, due)
        self.tell(sending.Tick())

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
            self.stored.add(sequence)
        self.replies.append(("ack", tag, sequence))

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

    # -- the sender, and the rules ------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """
        Hand *event* to the sender and hold its effects against the rules.
        """
        for effect in self.sender.handle(event, self.now):
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

    def _sent(self, message: Message) -> None:
        sequence = message.sequence
        rule(self.channel == "open" and not self.blocked, "send on an open channel that is not blocked")
        rule(message.content == sequence, "a sequence never changes")
        rule(message.attempts == self.attempts.get(sequence, 0) + 1, "each send has the next attempt")
        rule(sequence in self.waiting or sequence in self.stored, "what is settled is not sent")
        if sequence not in self.attempts and sequence not in self.retried:
            rule(
                all(s < sequence for s in self.attempts if s not in self.retried),
                "first sends follow the sequence",
            )
            behind = [s for s in self.attempts if s in self.waiting and s not in self.on_channel]
            rule(not behind, "nothing new before everything that was sent before")
            oldest = min((s for s in self.attempts if s in self.waiting), default=sequence)
            rule(
                sequence - oldest <= self.scenario.window_size // 2,
                "nothing is half a window above the oldest",
            )
        first_on_channel = sequence not in self.on_channel and sequence not in self.retried
        if first_on_channel and self.attempts.get(sequence):
            older = [
                s for s in self.attempts if s in self.waiting - self.retried and s not in self.on_channel
            ]
            rule(sequence == min(older, default=sequence), "after a loss the oldest goes first")
        self.attempts[sequence] = message.attempts
        self.tag += 1
        self.on_channel.add(sequence)
        self.outstanding.add(self.tag)
        rule(len(self.outstanding) <= self.scenario.unconfirmed_max, "the bound holds")
        self.wire.append((self.tag, sequence))

    def _confirmed(self, sequence: int) -> None:
        rule(sequence in self.stored, "what is reported confirmed is stored")
        rule(sequence in self.waiting, "a caller is told once")
        self.waiting.discard(sequence)
        self.fates[sequence] = "confirmed"

    def _failed(self, sequence: int, error: Exception) -> None:
        rule(sequence in self.waiting, "a caller is told once")
        scenario = self.scenario
        if isinstance(error, ReturnedError):
            rule(sequence in scenario.unroutable, "only what no queue takes is returned")
            fate = "returned"
        elif isinstance(error, PublishTimeoutError):
            rule(sequence in scenario.hasty, "only who asked for a timeout gets one")
            fate = "timeout"
        elif isinstance(error, ReceiptExpiredError):
            rule(sequence in self.retried, "only a retry expires")
            fate = "expired"
        else:
            rule(type(error) is PublishError and sequence in scenario.bad, "no innocent message is refused")
            fate = "refused"
        self.waiting.discard(sequence)
        self.fates[sequence] = fate


def rule(holds: bool, name: str) -> None:
    """Raise unless *holds*."""
    if not holds:
        raise BrokenRuleError(name)


def finish(world: World) -> None:
    """
    Let the faults stop and a fair broker serve: every caller must be told, and what was good must be stored.
    """
    for _ in range(FAIR_TURNS_MAX):
        if world.next <= world.scenario.messages:
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


def explore(scenario: Scenario, sender: type[Sender] = Sender) -> int:
    """
    Take every choice in every order, and from every state the fair end; return the number of states.

    Raises:
        BrokenRuleError: with the choices that lead to it, the first ones found.
    """
    settings = SenderSettings(
        "orders",
        window_size=scenario.window_size,
        unconfirmed_max=scenario.unconfirmed_max,
        confirm_timeout_s=100.0,
    )
    start = World(scenario, sender(settings), faults=Counter(scenario.faults), retries=scenario.retries)
    todo: list[tuple[bytes, tuple[str, ...]]] = [(pickle.dumps(start), ())]
    seen = {todo[0][0]}
    while todo:
        frozen_world, path = todo.pop()
        try:
            finish(pickle.loads(frozen_world))
        except BrokenRuleError as error:
            raise BrokenRuleError(f"{error}; after {' > '.join(path)} > fair end") from error
        for index, (name, _) in enumerate(pickle.loads(frozen_world).choices()):
            world: World = pickle.loads(frozen_world)
            _, act = list(world.choices())[index]
            try:
                act(world)
            except BrokenRuleError as error:
                raise BrokenRuleError(f"{error}; after {' > '.join((*path, name))}") from error
            key = pickle.dumps(world)
            if key not in seen:
                seen.add(key)
                todo.append((key, (*path, name)))
    return len(seen)


def faults(**counts: int) -> Any:
    """
    Return the faults of a scenario by name.
    """
    return Counter(counts)
