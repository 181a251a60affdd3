"""
Owners of one publisher id in small worlds explored whole: cut off, killed, frozen, unheard and forgotten at every step.

The mutants are the reason to believe the rest: each takes one safeguard away, and a world must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from dedup.core import registration as steps
from dedup.core.ranges import Handed, next_range
from dedup.core.registration import Registration
from dedup.core.registry import Act, Answer, Record, Request
from dedup.testing import registry
from dedup.testing.registry import MemoryRegistry
from tests.simulation.exploring import explore
from tests.simulation.registration_rules import RegistrationRules
from tests.simulation.registration_world import Faults

#: From one state in so many, everything must come to rest.
REST_EVERY = 30

WORLDS: dict[str, Callable[[], RegistrationRules]] = {
    "one, cut off twice": lambda: RegistrationRules("a", Faults(cuts=2, ticks=1)),
    "two who wait": lambda: RegistrationRules("a b", Faults(ticks=2)),
    "two who wait, one is killed": lambda: RegistrationRules("a b", Faults(kills=1, ticks=1)),
    "two who wait, one is cut off": lambda: RegistrationRules("a b", Faults(cuts=1)),
    "a takeover": lambda: RegistrationRules("a b!", Faults(looks=1, ticks=1)),
    "two takeovers, one is cut off": lambda: RegistrationRules("a! b!", Faults(cuts=1)),
    "three, two take over": lambda: RegistrationRules("a b! c!", Faults()),
    "a takeover, one freezes": lambda: RegistrationRules("a b!", Faults(freezes=1)),
    "a takeover, something is lost": lambda: RegistrationRules("a b!", Faults(losses=1)),
    "a takeover, an answer is late": lambda: RegistrationRules("a b!", Faults(silences=1)),
    "a takeover, Redis is emptied": lambda: RegistrationRules("a b!", Faults(emptied=1, ticks=1)),
    "two who wait, one freezes": lambda: RegistrationRules("a b", Faults(freezes=1)),
    "two who wait, a request is carried out twice": lambda: RegistrationRules("a b", Faults(repeats=1)),
    "a takeover, a request is carried out twice": lambda: RegistrationRules("a b!", Faults(repeats=1)),
    "a takeover, two shims, an answer is late": lambda: RegistrationRules(
        "a b!", Faults(silences=1), shims=2
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_whoever_registers_later_is_the_one_that_publishes(name: str) -> None:
    """In every state ranges are one owner's and in order; without more faults one publishes, and the others know why not."""
    explored = explore(WORLDS[name](), rest_every=REST_EVERY)
    assert not explored.reason, explored
    assert explored.states > 100
    print(f"{name}: {explored.states} states, {explored.depth} steps deep, {explored.seconds:.1f} s")


_answer, _handle, _refused, _heard, _go_on = (
    MemoryRegistry.answer,
    Registration.handle,
    Registration._refused,
    Registration._heard,
    Registration._go_on,
)


def _forgets_that_it_forgot(now_s: int, _: int, newest: Handed, last: int = 0) -> int | None:
    return next_range(now_s, 0, evolve(newest, at_s=1), last)


def _takes_the_clock_alone(now_s: int, *_: Any) -> int | None:
    return now_s


def _fences_nobody(self: MemoryRegistry, request: Request) -> Answer:
    answer = _answer(self, request)
    if request.act is Act.RENEW:
        return evolve(answer, record=Record(request.last, request.owner))
    return answer


def _minds_no_refusal(self: Registration, text: str, now: float) -> list[steps.Effect]:
    self._takeover = True
    return _refused(self, text, now)


def _trusts_its_base(self: Registration, text: str, now: float) -> list[steps.Effect]:
    if self.base and not self._ready:
        self._ready = True
        return [steps.Ready()]
    return _refused(self, text, now)


def _believes_every_answer(self: Registration, event: steps.Event, now: float) -> list[steps.Effect]:
    if isinstance(event, steps.Answered):
        event = steps.Answered(evolve(event.answer, id=self._asked_count))
    return _handle(self, event, now)


def _is_never_told(self: Registration, act: Act, answer: Answer, now: float) -> list[steps.Effect]:
    return self._unheard(act, "", now) if act is Act.RENEW else _heard(self, act, answer, now)


def _begins_with_the_lock(self: Registration) -> list[steps.Effect]:
    return [steps.Ready(), *_go_on(self)]


MUTANTS: dict[str, tuple[Any, str, Any, str, str]] = {
    "the registry forgets that it forgot": (
        registry,
        "next_range",
        _forgets_that_it_forgot,
        "a takeover, Redis is emptied",
        "its range is not higher",
    ),
    "a range is the clock": (
        registry,
        "next_range",
        _takes_the_clock_alone,
        "a takeover",
        "its range is not higher",
    ),
    "the registry fences nobody": (
        MemoryRegistry,
        "answer",
        _fences_nobody,
        "a takeover",
        "both publish for ever",
    ),
    "a refused lock means nothing": (
        Registration,
        "_refused",
        _minds_no_refusal,
        "two who wait",
        "publishes without the lock",
    ),
    "a base is enough": (
        Registration,
        "_refused",
        _trusts_its_base,
        "two who wait, one is cut off",
        "neither the lock nor the registry's word",
    ),
    "answers to older questions are believed": (
        Registration,
        "handle",
        _believes_every_answer,
        "a takeover, an answer is late",
        "a question that it had given up",
    ),
    "a newer owner's record is not looked at": (
        Registration,
        "_heard",
        _is_never_told,
        "a takeover",
        "was told of a newer owner and goes on",
    ),
    "the lock is enough": (
        Registration,
        "_go_on",
        _begins_with_the_lock,
        "two who wait",
        "publishes and has no base",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard there is a story that ends badly, and its reason is the right one."""
    owner, attribute, function, world, reason = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, function)
    explored = explore(WORLDS[world](), rest_every=REST_EVERY if "for ever" in reason else 0)
    assert reason in explored.reason, explored
    assert explored.story
    print(f"{name}: {explored}")
