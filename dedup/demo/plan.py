"""Decide which faults happen when: the same seed makes the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum

from attrs import frozen

#: Nothing breaks before everybody has had time to connect; seconds.
QUIET_S = 1.0


class Fault(Enum):
    """
    What happens at one moment; the value is said to the spectator.
    """

    #: The broker hears everything, the publishers hear nothing: confirms are lost.
    SWALLOW = "the link swallows confirms"
    #: The end of SWALLOW: what lost bytes is reset.
    RESTORE = "the link is reset"
    #: Every publisher's connection is reset.
    RESET = "every connection is reset"
    #: The link is reset in the middle of a message.
    TEAR = "the link is torn within a message"
    #: The shim that forwards is killed; the standby takes over.
    KILL = "kill -9 of the shim"
    #: The same, at a moment inside a batch.
    KILL_IN_BATCH = "kill -9 of the shim inside a batch"
    #: No shim is left for a moment.
    KILL_ALL = "kill -9 of shim and standby"


@frozen
class Act:
    """
    One fault at its time.
    """

    #: Seconds since the publishers began.
    at_s: float
    fault: Fault
    #: TEAR: how many more bytes go through.
    bytes_left: int = 0


#: What is done to shims; a run without them leaves it out.
KILLS = frozenset({Fault.KILL, Fault.KILL_IN_BATCH, Fault.KILL_ALL})


def plan(seed: int, seconds: float) -> list[Act]:
    """
    Return the faults of a run in order; those of the link do not depend on those of the shim.
    """
    acts = [*_link(random.Random(f"link {seed}"), seconds), *_shim(random.Random(f"shim {seed}"), seconds)]
    return sorted(acts, key=lambda act: act.at_s)


def _link(choose: random.Random, seconds: float) -> Iterator[Act]:
    """
    Deal faults from a shuffled deck, so that a short run has some of each.
    """
    at_s = QUIET_S
    while True:
        deck = ["swallow", "swallow", "silence", "reset", "tear"]
        choose.shuffle(deck)
        for card in deck:
            at_s += choose.uniform(0.3, 1.2)
            # Silence is longer than the publishers' patience, so they reconnect by themselves.
            lasts_s = {"swallow": choose.uniform(0.1, 0.6), "silence": choose.uniform(1.2, 1.8)}.get(
                card, 0.0
            )
            if at_s + lasts_s >= seconds:
                return
            if lasts_s:
                yield Act(at_s, Fault.SWALLOW)
                at_s += lasts_s
                yield Act(at_s, Fault.RESTORE)
            elif card == "reset":
                yield Act(at_s, Fault.RESET)
            else:
                yield Act(at_s, Fault.TEAR, choose.randrange(1, 4000))


def _shim(choose: random.Random, seconds: float) -> Iterator[Act]:
    at_s = QUIET_S
    while (at_s := at_s + choose.uniform(0.8, 2.4)) < seconds:
        yield Act(at_s, choose.choice([Fault.KILL, Fault.KILL_IN_BATCH, Fault.KILL_IN_BATCH, Fault.KILL_ALL]))
