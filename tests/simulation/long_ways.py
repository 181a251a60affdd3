"""What each seed stands for: a world too large to explore, and one long way through it, first with faults, then to rest."""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from attrs import frozen

from tests.simulation.live_relay import LiveExplorer
from tests.simulation.sender_rules import Scenario, faults
from tests.simulation.sender_states import Senders
from tests.simulation.whole_world import WINDOW_SIZE, LiveGuarded, WholeExplorer

#: A way takes so many steps at the most before it comes to rest; most run out of faults and messages earlier.
STEPS_MAX = 400
#: One seed in so many leads through a whole world, the others through a relay's.
WHOLE_EVERY = 4
#: Publishers' sides are remembered up to this many states, then begun anew.
SENDER_STATES_MAX = 100_000

S = TypeVar("S")


class Rules(Protocol[S]):
    """
    The rules of a world for one way through it.
    """

    @property
    def start(self) -> S: ...

    def choices(self, state: S, *, faulty: bool) -> list[tuple[str, S]]:
        """Return what may happen next: faults, or everything else."""

    def settle(self, state: S) -> S:
        """Make up for what was put off until *state* was chosen."""

    def wrong(self, state: S) -> str:
        """Say what is wrong with *state*, or nothing."""

    def stuck(self, state: S) -> str:
        """Say what is wrong after the faults have ended and everything has had its time, or nothing."""


@frozen
class Way:
    """
    What happened on one long way.
    """

    seed: int
    story: tuple[str, ...]
    #: What is wrong at its end; empty when all went well.
    reason: str

    def __str__(self) -> str:
        return "\n  ".join([f"seed {self.seed}: {self.reason or 'all went well'}", *self.story])


def way(seed: int) -> Way:
    """
    Take the long way of *seed*.
    """
    choose = random.Random(seed)
    fault_chance = choose.choice((0.03, 0.05, 0.1, 0.2))
    if seed % WHOLE_EVERY == WHOLE_EVERY - 1:
        return wander(_whole(choose), choose, seed, fault_chance)
    return wander(LiveExplorer(**relay_world(choose)), choose, seed, fault_chance)


def relay_world(choose: random.Random) -> dict[str, Any]:
    """
    Return the settings of a relay's world.

    No publisher has more messages than a window holds: what is older than that nobody promises anything for.
    """
    exact = choose.random() < 0.5
    publishers = choose.randint(1, 3)
    messages = choose.randint(1, min(8, WINDOW_SIZE * publishers))
    servers = _servers(choose, exact=exact)
    # Only a target that cannot refuse is surveyed.
    refusals = 0 if exact or servers["surveyed"] else choose.choice((0, 5))
    return {
        **servers,
        "messages": messages,
        "copies": choose.randint(1, 3),
        "publishers": publishers,
        "untracked": choose.choice((0, 0, min(2, messages))),
        "stops": choose.randint(0, 2),
        "refusals": refusals,
        "partial_commits": choose.choice((0, 0, 1)) if exact else 0,
    }


def _servers(choose: random.Random, *, exact: bool) -> dict[str, Any]:
    """
    Return how the relay works, and what its process and its servers do to it.
    """
    surveyed = not exact and choose.random() < 0.5
    return {
        "exact": exact,
        "surveyed": surveyed,
        "elections": choose.randint(0, 3) if surveyed else 0,
        "batch_max": choose.randint(1, 3),
        "anchor_every_s": choose.choice((1.0, 2.0, 5.0, math.inf)),
        "kills": choose.randint(1, 4),
        "broker_restarts": choose.randint(0, 2),
        "redis_regressions": choose.randint(0, 3),
        "lost_writes": choose.randint(1, 4),
        "redis_emptied": choose.choice((0, 0, 1)),
        "lost_replies": choose.choice((0, 5)),
        "lost_fences": choose.randint(0, 2),
    }


def _whole(choose: random.Random) -> WholeExplorer:
    """
    Return a whole world.
    """
    kind = choose.randrange(len(SCENARIOS))
    exact = choose.random() < 0.5
    return WholeExplorer(
        SCENARIOS[kind],
        senders=_senders(kind),
        publishers=choose.randint(1, 2),
        guarded=LiveGuarded,
        **_servers(choose, exact=exact),
    )


#: Publishers' sides; few and small, so that a process knows each of their states before long.
SCENARIOS = [
    Scenario(messages=4, unconfirmed_max=2, window_size=WINDOW_SIZE, **more)
    for more in (
        {"faults": faults(cut=2, nack=1)},
        {"faults": faults(cut=1, lie=1, nack=1)},
        {"faults": faults(nack=2, contradict=1, kill=1)},
        {"faults": faults(swallow=1, silence=2, cut=1)},
        {"faults": faults(kill=2, cut=1)},
        {"faults": faults(kill=1, block=1, lie=1)},
        {"faults": faults(cut=2), "unroutable": frozenset({2}), "retries": 1},
        {"faults": faults(cut=1, kill=1), "bad": frozenset({3})},
    )
] + [Scenario(messages=2, unconfirmed_max=2, window_size=WINDOW_SIZE, faults=faults(forget=1, cut=1, lie=1))]


@lru_cache(maxsize=len(SCENARIOS))
def _known_senders(kind: int) -> Senders:
    return Senders(SCENARIOS[kind])


def _senders(kind: int) -> Senders:
    """
    Return the publishers' side, with what is known of it from other seeds.
    """
    senders = _known_senders(kind)
    if senders.states > SENDER_STATES_MAX:
        _known_senders.cache_clear()
        senders = _known_senders(kind)
    return senders


def wander(rules: Rules[S], choose: random.Random, seed: int, fault_chance: float) -> Way:
    """
    Take one way of at most STEPS_MAX steps, then let the faults end and everything come to rest.
    """
    state = rules.start
    story: list[str] = []
    try:
        for _ in range(STEPS_MAX):
            faulty = choose.random() < fault_chance
            choices = rules.choices(state, faulty=faulty) or rules.choices(state, faulty=not faulty)
            if not choices:
                break
            action, chosen = choose.choice(choices)
            story.append(action)
            state = rules.settle(chosen)
            if reason := rules.wrong(state):
                return Way(seed, tuple(story), reason)
        return Way(seed, tuple(story), rules.stuck(state))
    except Exception as error:  # noqa: BLE001 - whatever a machine raises, its story must be told
        return Way(seed, tuple(story), f"{type(error).__name__}: {error}")
