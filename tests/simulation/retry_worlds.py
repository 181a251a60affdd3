"""
The worlds around production retriers: small ones that every run of the tests explores, and larger ones.

``python -m tests.simulation.explore --world retry:`` explores all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.retry_rules import RetryRules
from tests.simulation.retry_world import Dead, Faults

STAMPED = Dead("a", b"a")
OTHER = Dead("b", b"b")
TWINS = [Dead("x", b"x", stamped=False), Dead("y", b"x", stamped=False)]
LARGE = Dead("l", b"l", size=1000)
GONE = Dead("g", b"g", gone=True)

#: From one state in so many, everything must arrive.
REST_EVERY = 5

SMALL: dict[str, Callable[[], RetryRules]] = {
    "killed": lambda: RetryRules([STAMPED], Faults(kills=1)),
    "unstamped, killed": lambda: RetryRules(TWINS[:1], Faults(kills=1)),
    "cut off, and slow to see it": lambda: RetryRules([STAMPED], Faults(cuts=1)),
    "acks are long on their way": lambda: RetryRules([STAMPED], Faults(kills=1), slow=True),
    "two sessions": lambda: RetryRules([STAMPED], Faults(), at_once=2),
    "past the schedule, killed": lambda: RetryRules([LARGE], Faults(kills=1)),
    "the queue is gone": lambda: RetryRules([GONE], Faults(kills=1)),
    "answers are lost": lambda: RetryRules([STAMPED, OTHER], Faults(lost_answers=1)),
    "an answer is lost, killed": lambda: RetryRules(TWINS[:1], Faults(lost_answers=1, kills=1)),
    "refused, killed": lambda: RetryRules([STAMPED], Faults(refusals=1, kills=1)),
    "past the schedule, refused": lambda: RetryRules([LARGE], Faults(refusals=1, kills=1)),
    "the broker restarts": lambda: RetryRules([STAMPED], Faults(broker_restarts=1)),
}
MORE: dict[str, Callable[[], RetryRules]] = {
    "killed twice": lambda: RetryRules([STAMPED], Faults(kills=2)),
    "two letters, killed": lambda: RetryRules([STAMPED, OTHER], Faults(kills=1)),
    "twins, killed": lambda: RetryRules(TWINS, Faults(kills=1)),
    "cut off and killed": lambda: RetryRules([STAMPED], Faults(cuts=1, kills=1)),
    "two sessions, one is cut off": lambda: RetryRules([STAMPED], Faults(cuts=1), at_once=2),
    "past the schedule, killed twice": lambda: RetryRules([LARGE], Faults(kills=2)),
    "the broker restarts, killed": lambda: RetryRules([STAMPED], Faults(broker_restarts=1, kills=1)),
    "the broker restarts among twins": lambda: RetryRules(TWINS, Faults(broker_restarts=1)),
    "full": lambda: RetryRules([STAMPED, OTHER], Faults(kills=1), capacity=1),
}
ALL: dict[str, Callable[[], RetryRules]] = SMALL | MORE
