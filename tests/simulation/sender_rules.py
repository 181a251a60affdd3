"""The rules a sender must keep, and what has to be known of its world to hold what it does against them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import Factory, define, frozen

from dedup.core.sending import Message
from dedup.errors import PublishError, PublishTimeoutError, ReceiptExpiredError, ReturnedError


class BrokenRuleError(AssertionError):
    """Raised when the sender said or did what it must not."""


def rule(holds: bool, name: str) -> None:
    """Raise unless *holds*."""
    if not holds:
        raise BrokenRuleError(name)


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
    #: How often each fault may happen: cut, nack, lie (a nack, though it is stored), silence, swallow, block,
    #: contradict; kill (another process goes on from a durable record), forget (another one, without a record).
    faults: Counter[str] = Factory(Counter)
    #: How many failed messages are retried.
    retries: int = 0
    unconfirmed_max: int = 4
    window_size: int = 8


def faults(**counts: int) -> Any:
    """
    Return the faults of a scenario by name.
    """
    return Counter(counts)


@define
class Rules:
    """
    What callers, link and broker know of a sender, and the rules for its effects.
    """

    scenario: Scenario
    #: The channel: asked for, open; None for neither.
    channel: str | None = None
    blocked: bool = False
    #: Publishes the broker has not seen yet: (tag, sequence).
    wire: list[tuple[int, int]] = Factory(list)
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
    #: The rule that was broken on the way here.
    broken: str = ""

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
