"""Questions in small worlds, each explored whole: an answer never says too much, and nothing is lost or doubled over it."""

from __future__ import annotations

from typing import Any

import pytest

from dedup.core import steps
from dedup.core.judge import Judge
from dedup.core.questions import Question, Standing, stand
from dedup.core.relay import Relay
from tests.simulation.exploring import explore
from tests.simulation.mutants import replaced
from tests.simulation.question_world import QuestionExplorer

WORLDS: dict[str, dict[str, Any]] = {
    "two kills": {"messages": 1, "copies": 1, "kills": 2, "batch_max": 2},
    "a kill within a batch": {"copies": 1, "kills": 1, "prefetch": 3, "batch_max": 3},
    "two questions": {"messages": 1, "questions": 2, "copies": 1, "kills": 1, "batch_max": 2},
    "the audit is told, and a stop": {
        "messages": 1,
        "copies": 1,
        "kills": 1,
        "stops": 1,
        "audited": True,
        "batch_max": 2,
    },
    "the broker restarts": {"messages": 1, "copies": 1, "broker_restarts": 1, "batch_max": 2},
    "Redis loses a write": {"messages": 1, "copies": 1, "kills": 1, "redis_regressions": 1, "batch_max": 1},
    "Redis is emptied": {"messages": 1, "copies": 1, "kills": 1, "redis_emptied": 1, "batch_max": 1},
    "a fence is lost": {"messages": 1, "copies": 1, "kills": 1, "lost_fences": 1, "batch_max": 1},
    "a commit is partial": {"copies": 1, "partial_commits": 1, "batch_max": 3, "prefetch": 3},
    "there is no queue": {"messages": 1, "copies": 1, "missing_queues": 1, "kills": 1, "batch_max": 1},
    "confirmed: a kill": {"exact": False, "copies": 1, "kills": 1, "batch_max": 2, "prefetch": 2},
    "confirmed: the target refuses": {
        "exact": False,
        "copies": 1,
        "refusals": 1,
        "batch_max": 3,
        "prefetch": 3,
    },
    "surveyed: another leader": {
        "exact": False,
        "surveyed": True,
        "messages": 1,
        "copies": 1,
        "kills": 1,
        "elections": 1,
        "batch_max": 2,
    },
}


@pytest.mark.parametrize("name", WORLDS)
def test_an_answer_never_says_too_much(name: str) -> None:
    """In every state what an answer claims is there; where nothing was forgotten it knows of all in front of it."""
    found = explore(QuestionExplorer(**WORLDS[name]), rest_every=50)
    assert not found.reason, found
    assert found.states > 100
    print(f"{name}: {found.states} states")


def _stand_on_the_draft(self: Judge, question: Question) -> Standing:
    return stand(self.publishers._window(question.publisher), 0, size=4)


def _stand_on_belief(self: Judge, question: Question) -> Standing:
    return stand(self.publishers.settled(question.publisher), 0, size=4)


_advance = Relay._advance


def _answer_what_is_judged(self: Relay, now_s: float) -> list[steps.Effect]:
    effects = _advance(self, now_s)
    asked = [arrival.question for arrival in self._questions if arrival.question is not None]
    self._questions.clear()
    return [*(steps.Answer(question, self.judge.stand(question)) for question in asked), *effects]


MUTANTS: dict[str, tuple[Any, str, str]] = {
    "speaks of what is judged and not forwarded": (
        replaced(Judge, "stand", _stand_on_the_draft),
        "a kill within a batch",
        "which the queue has not",
    ),
    "answers before what is in front is written": (
        replaced(Relay, "_advance", _answer_what_is_judged),
        "a kill within a batch",
        "does not know of",
    ),
    "takes what it believes for proven": (
        replaced(Judge, "stand", _stand_on_belief),
        "surveyed: another leader",
        "which the queue has not",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is a story that ends badly."""
    patch, world, reason = MUTANTS[name]
    patch(monkeypatch)
    found = explore(QuestionExplorer(**WORLDS[world]), rest_every=50)
    assert reason in found.reason, found
    print(f"{name}: {found}")
