"""
A world of the relay in which a publisher asks how far it has come, and goes by the answer.

A question lies in the ingress between messages. Of what an answer says the queue has had, everything must be there and stay
there, else the publisher never sends it again: lost. And it must speak of everything that was in front of the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dedup.core import steps
from dedup.core.questions import Question, Standing
from tests.simulation.relay_state import Answers, World
from tests.simulation.relay_world import Explorer

#: Faults after which a shim need not know what it had forwarded.
FORGETTING = ("redis_regressions", "redis_emptied", "broker_restarts")


class QuestionExplorer(Explorer):
    """
    The rules of a world with questions; all messages are one publisher's.

    Args:
        questions: How often it may ask.
        settings: What Explorer takes.
    """

    def __init__(self, *, questions: int = 1, **settings: Any) -> None:
        super().__init__(**settings)
        self._questions = questions
        #: What stands for the question among messages.
        self._question = self.messages
        self.start = self.start._replace(sent=(*self.start.sent, 0))

    def _publishes(self, world: World) -> Iterator[tuple[str, World]]:
        yield from super()._publishes(world)
        asked = world.sent[self._question]
        if asked < self._questions:
            ahead = tuple(m for m in range(self.messages) if world.sent[m])
            yield (
                "ask",
                world._replace(
                    sent=(*world.sent[: self._question], asked + 1),
                    ingress=(*world.ingress, (self._question, False)),
                    answers=world.answers if asked else world.answers._replace(ahead=ahead),
                ),
            )

    def _arrival(self, tag: int, m: int, redelivered: bool) -> steps.Arrival:
        if m != self._question:
            return super()._arrival(tag, m, redelivered)
        return steps.Arrival(tag, redelivered, "p0", None, payload=m, question=Question("p0"))

    def _performs(self, world: World) -> Iterator[tuple[str, World]]:
        effect = self.catalog[world.pending[0]] if world.pending else None
        if not isinstance(effect, steps.Answer):
            yield from super()._performs(world)
            return
        after = world._replace(pending=world.pending[1:], answers=self._judged(world, effect.standing))
        yield f"answer: up to {effect.standing.last} but {list(effect.standing.missing)}", after

    def _judged(self, world: World, standing: Standing) -> Answers:
        """
        Hold an answer against what there is.
        """
        claimed = [m for m in range(self.messages) if self._claims(standing, m)]
        wrong = ""
        unknown = set(world.answers.ahead) - {*claimed, *world.quarantine}
        if unknown and not self.happened(world, *FORGETTING):
            wrong = f"an answer does not know of {sorted(unknown)} in front of its question"
        return Answers(world.answers.ahead, tuple(sorted({*world.answers.claimed, *claimed})), wrong)

    def _claims(self, standing: Standing, m: int) -> bool:
        number = self._sequence(m)
        return standing.base <= number <= standing.last and not any(
            first <= number <= last for first, last in standing.missing
        )

    def wrong(self, world: World) -> str:
        """
        Say what is wrong with *world*, or nothing.
        """
        there = {m for m, _ in world.target} | {*world.quarantine} | {m for _, m in world.strays}
        if gone := set(world.answers.claimed) - there:
            return f"an answer claims {sorted(gone)}, which the queue has not"
        return world.answers.wrong or super().wrong(world)
