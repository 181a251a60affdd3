"""Visit every state of a world breadth first, so that what goes wrong is told by its shortest story."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from time import perf_counter
from typing import Protocol, TypeVar

from attrs import frozen

#: States between two reports of progress.
REPORT_EVERY = 50_000

S = TypeVar("S", bound=Hashable)


class Rules(Protocol[S]):
    """
    The rules of one world: what may happen next, and what must never be.
    """

    @property
    def start(self) -> S: ...

    def successors(self, state: S) -> Iterable[tuple[str, S]]:
        """Yield every next state and what led to it."""

    def wrong(self, state: S) -> str:
        """Say what is wrong with *state*, or nothing."""

    def stuck(self, state: S) -> str:
        """Say what is wrong after the faults have ended and everything has had its time, or nothing."""


@frozen
class Explored:
    """
    What a visit to every state has shown.
    """

    #: Distinct states.
    states: int
    #: Steps to the state that is furthest from the start.
    depth: int
    seconds: float
    #: What is wrong; empty when every state is right.
    reason: str = ""
    #: The shortest way to a wrong state.
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([self.reason, *self.story])


def explore(
    rules: Rules[S],
    *,
    rest_every: int = 0,
    states_max: int = 10_000_000,
    report: Callable[[Explored], None] = lambda _: None,
) -> Explored:
    """
    Visit every state, up to the first wrong one.

    Args:
        rest_every: From each so-manieth state on, see whether everything ends well; 0: from none.
        report: Told from time to time how far it is.
    """
    began = perf_counter()
    # Hashes stand for the states seen: 64 bits tell a few million of them apart.
    parents: dict[int, tuple[int, str] | None] = {hash(rules.start): None}
    queue = deque([(rules.start, 0)])
    visited = depth = 0
    while queue:
        state, depth = queue.popleft()
        key = hash(state)
        visited += 1
        reason = rules.wrong(state)
        if not reason and rest_every and visited % rest_every == 0:
            reason = rules.stuck(state)
        if reason:
            return Explored(len(parents), depth, perf_counter() - began, reason, _story(parents, key))
        if visited % REPORT_EVERY == 0:
            report(Explored(len(parents), depth, perf_counter() - began))
        for action, following in rules.successors(state):
            following_key = hash(following)
            if following_key not in parents:
                parents[following_key] = (key, action)
                queue.append((following, depth + 1))
        assert len(parents) <= states_max, f"the world has more than {states_max} states"
    return Explored(len(parents), depth, perf_counter() - began)


def _story(parents: dict[int, tuple[int, str] | None], key: int) -> tuple[str, ...]:
    story: list[str] = []
    while (parent := parents[key]) is not None:
        key, action = parent
        story.append(action)
    return tuple(reversed(story))
