"""Decide which faults a soak meets, and when: the same seed makes the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

from attrs import frozen

#: How long before a fault a burst of messages may begin; seconds.
_BURST_BEFORE_S: Final = 0.08


class Place(Enum):
    """
    What a fault is done to; two faults at once never share a place.
    """

    PUBLISHER_LINK = "the link between the publishers and the broker"
    PUBLISHERS = "the processes of the publishers"
    SHIM_LINK = "the link between the shims and the broker"
    SHIMS = "the processes of the shims"
    STORE_LINK = "the link between the shims and Redis"
    STORE = "Redis"
    BROKER = "RabbitMQ"


@frozen
class Kind:
    """
    One kind of fault.
    """

    place: Place
    #: Out of all kinds, how often.
    weight: int
    #: How long it lasts at least and at most; seconds.
    lasts_s: tuple[float, float] = (0.0, 0.0)
    #: Forwardings in which a message may be marked as a possible duplicate after it.
    marks: frozenset[str] = frozenset()
    #: Needs a run that allows marks: it crashes the broker or takes the state back.
    marking: bool = False
    #: Makes sense only where the target may refuse.
    refuses: bool = False


#: Confirmed forwarding cannot tell what became of the batch of a session that was lost.
_SESSION_LOST: Final = frozenset({"confirmed"})
_ALWAYS: Final = frozenset({"exact", "confirmed"})

KINDS: Final[Mapping[str, Kind]] = {
    "publisher link reset": Kind(Place.PUBLISHER_LINK, 3),
    "publisher link torn within a message": Kind(Place.PUBLISHER_LINK, 3, (0.2, 0.6)),
    "confirms lost": Kind(Place.PUBLISHER_LINK, 5, (0.2, 0.8)),
    "publisher link silent": Kind(Place.PUBLISHER_LINK, 2, (0.3, 1.8)),
    "publisher link stalled": Kind(Place.PUBLISHER_LINK, 2, (0.3, 1.8)),
    "publisher link slow": Kind(Place.PUBLISHER_LINK, 2, (0.3, 1.2)),
    "publishers killed": Kind(Place.PUBLISHERS, 5),
    "shim link reset": Kind(Place.SHIM_LINK, 4, (0.0, 0.0), _SESSION_LOST),
    "shim link torn to the broker": Kind(Place.SHIM_LINK, 3, (0.2, 0.6), _SESSION_LOST),
    "shim link torn to the shim": Kind(Place.SHIM_LINK, 3, (0.2, 0.6), _SESSION_LOST),
    "answers to the shim lost": Kind(Place.SHIM_LINK, 4, (0.2, 0.8), _SESSION_LOST),
    "shim link silent": Kind(Place.SHIM_LINK, 2, (0.3, 1.8), _SESSION_LOST),
    "shim link stalled": Kind(Place.SHIM_LINK, 3, (0.3, 1.8), _SESSION_LOST),
    "shim link slow": Kind(Place.SHIM_LINK, 2, (0.3, 1.2), _SESSION_LOST),
    "shim killed": Kind(Place.SHIMS, 6, (0.0, 0.0), _SESSION_LOST),
    "shim killed inside a batch": Kind(Place.SHIMS, 7, (0.0, 0.0), _SESSION_LOST),
    "all shims killed": Kind(Place.SHIMS, 4, (0.0, 0.0), _SESSION_LOST),
    "shim frozen past the take-over": Kind(Place.SHIMS, 2, (6.0, 9.0), _SESSION_LOST),
    "store link reset": Kind(Place.STORE_LINK, 3),
    "store link torn to Redis": Kind(Place.STORE_LINK, 2, (0.2, 0.6)),
    "answers of Redis lost": Kind(Place.STORE_LINK, 3, (0.2, 0.8)),
    "store link silent": Kind(Place.STORE_LINK, 2, (0.3, 1.8)),
    "store link stalled": Kind(Place.STORE_LINK, 2, (0.3, 1.8)),
    "store link slow": Kind(Place.STORE_LINK, 2, (0.3, 1.2)),
    "Redis killed": Kind(Place.STORE, 4, (0.1, 1.0)),
    "Redis frozen": Kind(Place.STORE, 3, (0.2, 2.5)),
    "memory alarm": Kind(Place.BROKER, 2, (0.3, 1.5)),
    "target full": Kind(Place.BROKER, 5, (0.3, 2.0), refuses=True),
    "RabbitMQ killed": Kind(Place.BROKER, 3, (0.0, 0.5), _ALWAYS, marking=True),
    "Redis emptied": Kind(Place.STORE, 2, (0.0, 0.0), _ALWAYS, marking=True),
    "Redis emptied, all shims killed": Kind(Place.STORE, 3, (0.0, 0.0), _ALWAYS, marking=True),
    "Redis rolled back, all shims killed": Kind(Place.STORE, 3, (0.0, 0.0), _ALWAYS, marking=True),
}


@frozen
class Fault:
    """
    One fault of a plan.
    """

    number: int
    kind: str
    #: After the beginning of its step; seconds.
    begins_s: float
    lasts_s: float
    #: Of a link that is torn, how many more bytes go through.
    bytes_left: int

    @property
    def ends_s(self) -> float:
        """
        When it is over, after the beginning of its step.
        """
        return self.begins_s + self.lasts_s


@frozen
class Step:
    """
    One fault, or two that overlap, and a pause after them.
    """

    faults: tuple[Fault, ...]
    #: With the pause.
    seconds: float
    #: When all messages of the step are asked for at once; None: one after the other, all the time.
    burst_at_s: float | None


def plan(seed: int, faults: int, *, forwarding: str, marking: bool) -> Iterator[Step]:
    """
    Yield steps until they hold *faults* faults; one in ten is one of an overlapping pair.

    Kinds come out of shuffled decks, so that a short run meets many of them.
    """
    choose = random.Random(f"soak {seed}")
    deck: list[str] = []
    kinds = {
        name: kind
        for name, kind in KINDS.items()
        if (marking or not kind.marking) and (forwarding == "confirmed" or not kind.refuses)
    }
    number = 0
    while number < faults:
        if len(deck) < len(kinds):
            deck += _deck(choose, kinds)
        chosen = [deck.pop(0)]
        # A pair in 19 steps makes 2 faults in 20.
        if number + 1 < faults and choose.randrange(19) == 0:
            second = next(name for name in deck if _compatible(kinds[chosen[0]], kinds[name]))
            deck.remove(second)
            chosen.append(second)
        yield _step(choose, number, chosen)
        number += len(chosen)


def _compatible(first: Kind, second: Kind) -> bool:
    # What restarts a server and what kills the shims in one go would be in each other's way.
    return first.place is not second.place and not (first.marking and second.marking)


def _deck(choose: random.Random, kinds: Mapping[str, Kind]) -> list[str]:
    """
    Return the kinds in a random order, each once, and then the rest of their weights.
    """
    each = list(kinds)
    rest = [name for name, kind in kinds.items() for _ in range(kind.weight - 1)]
    choose.shuffle(each)
    choose.shuffle(rest)
    return each + rest


def _step(choose: random.Random, number: int, chosen: list[str]) -> Step:
    faults: list[Fault] = []
    for place, name in enumerate(chosen):
        low, high = KINDS[name].lasts_s
        # The second one begins while the first one is in force, or right after one that is over at once.
        begins_s = choose.uniform(0.0, 0.3) + place * min(0.1, faults[0].lasts_s / 2 if faults else 0.0)
        lasts_s = choose.uniform(low, high)
        faults.append(Fault(number + place + 1, name, begins_s, lasts_s, choose.randrange(1, 3000)))
    ends_s = max(fault.ends_s for fault in faults)
    # Just before a fault or while it is in force: nothing hurts those that rest.
    burst_at_s = max(0.0, choose.uniform(faults[0].begins_s - _BURST_BEFORE_S, ends_s))
    seconds = ends_s + choose.uniform(0.1, 1.2)
    return Step(tuple(faults), seconds, burst_at_s if choose.random() < 0.5 else None)
