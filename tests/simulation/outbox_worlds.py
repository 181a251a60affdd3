"""
The worlds around production outboxes: small ones that every run of the tests explores, and larger ones.

``python -m tests.simulation.explore --world outbox:`` explores all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.outbox_rules import Scenario
from tests.simulation.outbox_states import Outboxes

#: From one state in so many, everything must arrive and the table empty.
REST_EVERY = 20

_FIRST = frozenset({b"m1"})

SMALL: dict[str, Callable[[], Outboxes]] = {
    "killed twice, a new range of numbers": lambda: Outboxes(Scenario(2), kill=2, range=1),
    "three messages, a window of two": lambda: Outboxes(Scenario(3), kill=1),
    "a transaction fails": lambda: Outboxes(Scenario(2), kill=1, disk=1),
    "no queue takes the first": lambda: Outboxes(Scenario(2, unroutable=_FIRST), kill=1),
    "the queue is unbound": lambda: Outboxes(Scenario(2), kill=1, unbind=1),
    "relay: killed": lambda: Outboxes(Scenario(2, relayed=True), kill=1),
}
MORE: dict[str, Callable[[], Outboxes]] = {
    "the connection is lost, killed": lambda: Outboxes(Scenario(2), kill=1, cut=1),
    "the connection is lost, stopped": lambda: Outboxes(Scenario(2), stop=1, cut=1),
    "four messages, a window of four": lambda: Outboxes(Scenario(4, window_size=4), kill=1),
    "nacked": lambda: Outboxes(Scenario(2), kill=1, nack=1),
    "nacked in a window of four": lambda: Outboxes(Scenario(3, window_size=4), kill=1, nack=1),
    "an operator retries": lambda: Outboxes(Scenario(3), kill=2, unbind=1, retry=1),
    "an operator retries the first": lambda: Outboxes(Scenario(3, unroutable=_FIRST), kill=2, retry=1),
    "relay: killed twice": lambda: Outboxes(Scenario(2, relayed=True), kill=2),
    "relay: rolled back, stopped": lambda: Outboxes(Scenario(2, relayed=True), kill=1, rollback=1, stop=1),
    "relay: no queue takes the first": lambda: Outboxes(Scenario(2, relayed=True, unroutable=_FIRST), kill=1),
    "relay: a new range of numbers": lambda: Outboxes(Scenario(2, relayed=True), kill=1, range=1),
    "relay: the connection is lost": lambda: Outboxes(Scenario(2, relayed=True), kill=1, cut=1),
    "relay: three messages": lambda: Outboxes(Scenario(3, relayed=True), kill=1),
    "relay: an operator retries": lambda: Outboxes(Scenario(2, relayed=True), kill=2, unbind=1, retry=1),
}
ALL: dict[str, Callable[[], Outboxes]] = SMALL | MORE
