"""
Drive one retrier over two connections to one broker, from holding its fence to the first failure.

As in :mod:`dedup.amqp091.session`, everything happens in the thread that calls :meth:`RetrySession.run`: callbacks turn into
events, effects are performed in order, and one that the schedule cannot answer stays at the head of the line while the
connections live on, for ten minutes at the most: the broker takes back what is unacknowledged for thirty.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import pika
from attrs import define

from dedup.amqp091.driver import Driver, Ended, Outcome
from dedup.amqp091.links import Link
from dedup.amqp091.retry_links import LetterLink, PublishingLink
from dedup.core import retry_steps as steps
from dedup.core.obituaries import Obituary
from dedup.core.retrier import Retrier
from dedup.errors import StoreUnavailableError
from dedup.ports import Schedule, ScheduleFacts

#: How long letters are held for a schedule that does not answer; seconds.
STORE_PATIENCE_S: Final = 600.0


@define
class RetryObserver:
    """
    Who is told what a session does; every callable is called in its thread.
    """

    notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None
    #: An obituary is stored.
    obituary: Callable[[Obituary], None] = lambda _: None
    #: How full the schedule is, every few seconds.
    facts: Callable[[ScheduleFacts], None] = lambda _: None
    #: "before" or "after", and the effect: fault tests end the process here.
    step: Callable[[str, steps.Effect], None] = lambda _when, _effect: None


class RetrySession(Driver):
    """
    One session of one retrier; run() once.

    Args:
        parameters: pika's, for the one broker both connections go to.
        retrier: A new machine.
        schedule: Shared with other sessions.
        prefetch: Deliveries the broker may send ahead.
        observer: Who is told.
    """

    store_patience_s: ClassVar[float] = STORE_PATIENCE_S

    def __init__(
        self,
        parameters: pika.connection.Parameters,
        retrier: Retrier,
        schedule: Schedule,
        *,
        prefetch: int,
        observer: RetryObserver,
    ) -> None:
        super().__init__(parameters, observer)
        self.name = uuid.uuid4().hex
        self._retrier = retrier
        self._schedule = schedule
        self._prefetch = prefetch
        self._observer = observer
        self._publishing: PublishingLink | None = None
        self._letters: LetterLink | None = None
        #: Sessions whose fence was gone when it was looked for last.
        self._unfenced: set[str] = set()

    # -- what a retrier has of its own ------------------------------------------------------------

    def _open(self) -> None:
        self._publishing = PublishingLink(
            self._parameters,
            self._loop,
            self._retrier.settings.dead_letter_queue,
            tell=self._tell,
            on_failed=self._on_failed,
            session=self.name,
            on_obituary=self._observer.obituary,
            on_dead=self._on_dead,
            notice=self._observer.notice,
        )

    def _links(self) -> Sequence[Link | None]:
        return self._letters, self._publishing

    def _handle(self, event: Any) -> list[steps.Effect]:
        return self._retrier.handle(event, time.monotonic())

    def _on_stop(self) -> None:
        self._tell(steps.StopRequested())

    def _closed(self) -> Any:
        return steps.Closed()

    def _ticked(self) -> Any:
        return steps.Ticked()

    def _awaits_answer(self) -> bool:
        return self._publishing is not None and self._publishing.publishing

    def _perform(self, effect: steps.Effect) -> bool:
        """
        Perform *effect*; False when the schedule has to be asked again later.
        """
        assert self._publishing is not None
        match effect:
            case steps.Notice(name, facts):
                self._observer.notice(name, dict(facts))
            case steps.Publish(items):
                self._publishing.publish(items)
            case steps.Consume() | steps.Pause() | steps.Ack() | steps.Probe() | steps.GiveBack():
                self._take(effect)
            case steps.Close():
                self._close()
            case steps.End():
                self._end(Ended(Outcome.STOPPED, progressed=self._progressed))
            case _:
                return self._ask_store(effect)
        return True

    def _take(self, effect: steps.Consume | steps.Pause | steps.Ack | steps.Probe | steps.GiveBack) -> None:
        if self._letters is None:
            self._letters = LetterLink(
                self._parameters,
                self._loop,
                self._retrier.settings.dead_letter_queue,
                tell=self._tell,
                on_failed=self._on_failed,
                prefetch=self._prefetch,
            )
        match effect:
            case steps.Consume():
                self._letters.consume()
            case steps.Pause():
                self._letters.pause()
            case steps.Ack(tags):
                self._letters.ack(tags)
            case steps.Probe():
                self._letters.probe()
            case steps.GiveBack(tags):
                self._letters.give_back(tags)

    def _asked(self, effect: steps.Effect) -> steps.Event | None:
        schedule = self._schedule
        match effect:
            case steps.Register():
                schedule.enter(self.name)
                return steps.Registered(self._look())
            case steps.Store(number, entries):
                kept = schedule.store(self.name, number, entries)
                self._progressed = True
                return steps.Stored(kept)
            case steps.Forget(digests):
                schedule.forget(self.name, digests)
            case steps.Claim(at_most, bytes_at_most):
                return steps.Claimed(schedule.claim(self.name, at_most, bytes_at_most))
            case steps.Settle(done, refused, delay):
                schedule.settle(self.name, done, refused, delay)
                self._progressed = True
                return steps.Settled()
            case steps.Look():
                return steps.Looked(self._look())
            case steps.Sweep():
                assert self._publishing is not None
                self._publishing.look_at(name for name in schedule.sessions() if name != self.name)
            case steps.Unregister():
                schedule.recover(self.name)
        return None

    def _look(self) -> bool:
        facts = self._schedule.facts()
        self._observer.facts(facts)
        return facts.room

    def _on_dead(self, session: str) -> None:
        """
        Take over from a session whose connection is dead, when its fence is gone for the second time.

        The broker deletes an exclusive queue as soon as the connection is gone, and ends its channels then: what one has
        in hand at that moment may still arrive. From one sweep to the next it has.
        """
        if session not in self._unfenced:
            self._unfenced.add(session)
            return
        with suppress(StoreUnavailableError):  # the next sweep finds it again
            messages = self._schedule.recover(session)
            self._unfenced.discard(session)
            self._observer.notice("dedup.retry_recovered", {"session": session, "doubtful": messages})
