"""
Look into a queue of the dead, and let messages go: back to the queue they died in, or for good.

Looking takes messages and puts them back where they were; the broker flags them as redelivered. A release goes through a
queue of its own, ``QUEUE.dead.releasing``::

    QUEUE.dead --1--> QUEUE.dead.releasing --2--> QUEUE

Each step publishes, waits for the confirm, and acknowledges then. Step 2 begins when the broker has carried out the
acknowledgements of step 1, so a message that this run has put there has no other copy. Killed at any point:

==================================  ==========================================================================
killed                              the next run finds
==================================  ==========================================================================
before the confirm of step 1        the message where it was; it may be in QUEUE.dead.releasing too
between confirm and ack of step 1   both; neither has been released
between the steps                   it in QUEUE.dead.releasing
between confirm and ack of step 2   it in QUEUE.dead.releasing, and released before
==================================  ==========================================================================

What a run finds there that is not its own is released with the mark ``dedup-possible-duplicate``, what it takes from
QUEUE.dead without. So of all copies of a message one at the most comes without the mark, and nothing is lost. Two runs at
once are kept apart by an exclusive consumer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from attrs import define, field, frozen

from dedup.amqp091.administration import QueueType, administration
from dedup.amqp091.conversation import Line, conversation
from dedup.amqp091.dead_letters import lasting
from dedup.amqp091.decoding import decode
from dedup.amqp091.properties import HeaderValue, amend
from dedup.amqp091.wire import Delivery
from dedup.core import names
from dedup.core.deaths import BROKER_HEADERS
from dedup.core.identity import (
    DEATHS_HEADER,
    MARK_HEADER,
    OBITUARY_HEADER,
    REASON_HEADER,
    RELEASING_HEADER,
    RETRY_HEADER,
)
from dedup.deadletters.letters import Letter, Selection
from dedup.errors import ConfigError, InvalidMessageError, TopologyError

#: Messages among which others may be looked for: all of them are held meanwhile, and a channel can hold so many.
HELD_MAX: Final = 65_535
#: Messages and bytes between two confirms.
BATCH_MAX: Final = 100
BATCH_BYTES_MAX: Final = 8 << 20
#: How long a message that was counted is waited for; somebody else may have taken it. Seconds.
_IDLE_S: Final = 3.0
#: The same, of what a killed run may have left.
_LEFT_S: Final = 0.3
_NAME: Final = "dedup dead"
#: A message that is released begins anew: nothing of its deaths goes with it, and nothing that would lead it elsewhere.
_LEFT_BEHIND: Final = BROKER_HEADERS | {
    DEATHS_HEADER,
    OBITUARY_HEADER,
    REASON_HEADER,
    RELEASING_HEADER,
    RETRY_HEADER,
    "x-delivery-count",
    "x-acquired-count",
    "CC",
    "BCC",
}

#: Told how many more were dealt with.
Progress = Callable[[int], None]


@frozen
class Released:
    """
    What a release did.
    """

    released: int
    #: Those of them that a run before had in its hands.
    marked: int
    #: Messages that stayed, and why the first of them did.
    kept: int = 0
    reason: str = ""


def declare(amqp: str, queue: str, *, kind: QueueType = "classic") -> None:
    """
    Declare the queue of the dead of *queue*, durable; one that is there stays as it is.

    Raises:
        TopologyError: it is there with other arguments.
    """
    arguments: dict[str, Any] = {"x-queue-type": kind}
    with administration(amqp) as broker:
        if kind == "quorum" and broker.version >= (4,):
            arguments["x-delivery-limit"] = -1  # looking counts as a delivery
        broker.declare_queue(names.dead(queue), arguments)


def count(amqp: str, queue: str) -> int:
    """
    Return how many messages wait in the queue of the dead of *queue*.

    Raises:
        TopologyError: there is no such queue.
    """
    with administration(amqp) as broker:
        counted = broker.count(names.dead(queue))
    if counted is None:
        raise TopologyError(
            f"there is no queue {names.dead(queue)!r}: nothing was given up yet, or declare it with: dedup dead declare {queue}"
        )
    return counted.messages


def look(amqp: str, queue: str, selection: Selection) -> Generator[tuple[Letter, Delivery], None, None]:
    """
    Yield the messages that are meant, oldest first; all of them go back when the iterator ends.

    Raises:
        TopologyError: there is no such queue.
        BrokerUnavailableError: the broker is lost.
    """
    waiting = _countable(amqp, queue, selection)
    if min(waiting, selection.limit or waiting) > HELD_MAX:
        raise ConfigError(f"so many cannot be held at once: give --limit, at most {HELD_MAX}")
    with conversation(amqp, name=_NAME) as talk:
        dead = Line(talk)
        try:
            for letter, delivery in _taken(dead, queue, selection, waiting):
                if letter is not None:
                    yield letter, delivery
        finally:
            _give_back(dead)


def purge(amqp: str, queue: str, selection: Selection, progress: Progress = lambda _: None) -> int:
    """
    Delete the messages that are meant, of those that wait now; return how many.

    Raises:
        TopologyError: there is no such queue.
        BrokerUnavailableError: the broker is lost; what was deleted is.
    """
    waiting = _countable(amqp, queue, selection)
    deleted = 0
    with conversation(amqp, name=_NAME) as talk:
        dead = Line(talk)
        for letter, delivery in _taken(dead, queue, selection, waiting):
            if letter is not None:
                dead.ack(delivery.tag)
                deleted += 1
                progress(1)
        dead.count(names.dead(queue))  # what was acknowledged is gone then
        _give_back(dead)
    return deleted


def release(
    amqp: str,
    queue: str,
    selection: Selection,
    *,
    progress: Progress = lambda _: None,
    step: Callable[[str], None] = lambda _: None,
) -> Released:
    """
    Publish the messages that are meant back to *queue*, through the default exchange, and take them out of the dead.

    Args:
        step: Called with the name of each step, for fault tests.

    Raises:
        TopologyError: *queue* or its queue of the dead is not there, or another release is under way.
        BrokerUnavailableError: the broker is lost; run it again.
    """
    waiting = _countable(amqp, queue, selection)
    staged = names.releasing(queue)
    with administration(amqp) as broker:
        if broker.count(queue) is None:
            raise TopologyError(f"there is no queue {queue!r} to release to: declare it first")
        broker.declare_queue(staged, {"x-queue-type": "classic"})
    with conversation(amqp, name=_NAME) as talk:
        staging = Line(talk)
        try:
            staging.consume(staged, prefetch=2 * BATCH_MAX, exclusive=True)
        except TopologyError as error:
            if "exclusive" not in getattr(error, "reply_text", ""):
                raise
            raise TopologyError(
                f"another release of {queue!r} is under way: wait until it has ended"
            ) from error
        dead = Line(talk)
        run = _Release(queue, dead, staging, Line(talk, confirmed=True), progress, step)
        run.finish_what_was_left()
        run.release(_taken(dead, queue, selection, waiting))
        _give_back(dead)
        staging.cancel()
    with administration(amqp) as broker, suppress(TopologyError):
        broker.delete_queue(staged, if_idle=True)
    return Released(run.released, run.marked, run.kept, run.reason)


def _countable(amqp: str, queue: str, selection: Selection) -> int:
    waiting = count(amqp, queue)
    if selection.filters and waiting > HELD_MAX:
        raise ConfigError(
            f"{names.dead(queue)!r} holds {waiting:,} messages, a filter looks at {HELD_MAX:,} at most: "
            "give --limit and no filter"
        )
    return waiting


def _taken(
    dead: Line, queue: str, selection: Selection, waiting: int
) -> Iterator[tuple[Letter | None, Delivery]]:
    """
    Yield what is in the queue of the dead, None for a letter that is not meant; it stays unacknowledged.
    """
    left = waiting if selection.limit is None else min(selection.limit, waiting)
    dead.consume(names.dead(queue), prefetch=HELD_MAX if selection.filters else min(max(left, 1), HELD_MAX))
    for position in range(1, waiting + 1):
        if not left:
            return
        delivery = dead.take(_IDLE_S)
        if delivery is None:
            return
        letter = Letter.of(delivery, position)
        fits = selection.fits(letter)
        left -= fits
        yield (letter if fits else None), delivery


def _give_back(dead: Line) -> None:
    """
    Put back everything that is held, and what is still coming.
    """
    dead.cancel()
    dead.give_back(0, multiple=True)


@define
class _Release:
    """
    One run.
    """

    queue: str
    _dead: Line
    _staging: Line
    _out: Line
    _progress: Progress
    _step: Callable[[str], None]
    released: int = 0
    marked: int = 0
    kept: int = 0
    reason: str = ""
    _token: str = field(factory=lambda: secrets.token_hex(8))

    def finish_what_was_left(self) -> None:
        """
        Release what a run before has left between the steps.
        """
        while left := list(_until_idle(self._staging, BATCH_MAX)):
            self._forward(left)

    def release(self, taken: Iterable[tuple[Letter | None, Delivery]]) -> None:
        """
        Release what is meant, batch by batch, until something stays.
        """
        batch: list[Delivery] = []
        for letter, delivery in taken:
            if letter is None:
                continue
            batch.append(delivery)
            if len(batch) >= BATCH_MAX or sum(one.body_size for one in batch) >= BATCH_BYTES_MAX:
                self._release(batch)
                batch = []
            if self.kept:
                return
        if batch:
            self._release(batch)

    def _release(self, batch: list[Delivery]) -> None:
        own: list[tuple[str, HeaderValue]] = [(RELEASING_HEADER, self._token)]
        stored = self._publish(batch, names.releasing(self.queue), own, frozenset({RELEASING_HEADER}))
        self._step("staged")
        for delivery in stored:
            self._dead.ack(delivery.tag)
        # The answer comes after the acknowledgements were carried out: from here on there is no other copy.
        self._dead.count(names.dead(self.queue))
        self._step("taken")
        self._forward([staged for _ in stored if (staged := self._staging.take(_IDLE_S))])

    def _forward(self, staged: list[Delivery]) -> None:
        """
        Release what is between the steps; what the queue does not take goes back to the dead.
        """
        groups: tuple[list[Delivery], list[Delivery]] = ([], [])
        for one in staged:
            groups[decode(one.properties).headers.get(RELEASING_HEADER) != self._token].append(one)
        marks: tuple[list[tuple[str, HeaderValue]], ...] = ([], [(MARK_HEADER, True)])
        for group, mark in zip(groups, marks, strict=True):
            stored = self._publish(group, self.queue, mark, _LEFT_BEHIND)
            self._step("released")
            tags = {one.tag for one in stored}
            refused = [one for one in group if one.tag not in tags]
            back = self._publish(refused, names.dead(self.queue), mark, frozenset({RELEASING_HEADER}))
            for one in (*stored, *back):
                self._staging.ack(one.tag)
            self.released += len(stored)
            self.marked += len(stored) if mark else 0
            self._progress(len(stored))
        self._staging.count(names.releasing(self.queue))

    def _publish(
        self, batch: list[Delivery], to: str, headers: list[tuple[str, HeaderValue]], drop: frozenset[str]
    ) -> list[Delivery]:
        """
        Publish with confirms; return what is stored, and note why something is not.
        """
        sent: dict[int, Delivery] = {}
        for delivery in batch:
            changed = amend(lasting(delivery.properties), headers=headers, drop=drop)
            try:
                sent[self._out.publish(to, changed, delivery.body)] = delivery
            except InvalidMessageError as error:
                self._keep(str(error))
        refused = self._out.settle()
        for why in refused.values():
            self._keep(f"queue {to!r}: {why}")
        return [delivery for number, delivery in sent.items() if number not in refused]

    def _keep(self, reason: str) -> None:
        self.kept += 1
        self.reason = self.reason or reason


def _until_idle(line: Line, at_most: int) -> Iterator[Delivery]:
    for _ in range(at_most):
        delivery = line.take(_LEFT_S)
        if delivery is None:
            return
        yield delivery
