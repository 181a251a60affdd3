"""What a mutant of the relay is: one safeguard taken away, and the smallest world that must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import frozen

from dedup.core import recovery, relay
from dedup.core.records import Marker, State

#: From one state in so many, a world must come to rest with everything where it belongs.
REST_EVERY = 50

#: Parts of what a world has to say of a mutant.
LOST = "is lost"
UNMARKED = "doubled without a mark"
UNALLOWED = "although no fault allows it"
STAYS = "stay in the ingress"


@frozen
class Mutant:
    """
    One safeguard taken away, and the world that must notice.
    """

    patch: Callable[[pytest.MonkeyPatch], None]
    world: dict[str, Any]
    #: Part of what the world has to say.
    reason: str
    #: From one state in so many, the world must come to rest with everything where it belongs.
    rest_every: int = REST_EVERY


def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """
    Return the patch that puts *function* in the place of a method or function.
    """
    function.__name__ = name  # relays are pickled, their handlers by name
    return lambda patch: patch.setattr(owner, name, function)


def recovering(
    change: Callable[..., tuple[State | None, Sequence[Marker], dict[str, Any]]],
) -> Callable[[pytest.MonkeyPatch], None]:
    """
    Return the patch that lets recovery see what *change* makes of state, markers and the rest.
    """
    real = recovery.recover

    def recover(state: State | None, markers: Sequence[Marker], **facts: Any) -> recovery.Recovered:
        changed_state, changed_markers, changed_facts = change(state, markers, facts)
        return real(changed_state, changed_markers, **changed_facts)

    return replaced(relay, "recover", recover)


def knowing(change: Callable[[State | None], State | None]) -> Callable[[pytest.MonkeyPatch], None]:
    """
    Return the patch that lets recovery see what *change* makes of the state.
    """
    return recovering(lambda state, markers, facts: (change(state), markers, facts))


def reading(
    change: Callable[[Sequence[Marker]], Sequence[Marker]],
) -> Callable[[pytest.MonkeyPatch], None]:
    """
    Return the patch that lets recovery see what *change* makes of the ledger.
    """
    return recovering(lambda state, markers, facts: (state, change(markers), facts))
