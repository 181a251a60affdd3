"""
Ask the shims how far a publisher has come, whatever the protocol: hold what is asked, and hand the answers on.

Whatever is under way when a connection is lost is asked again on the next. A protocol's driver is a subclass: how to send a question,
in the connection's thread.
"""

from __future__ import annotations

import abc
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from attrs import define, field

from dedup.core.failures import unanswered
from dedup.core.identity import Receipt
from dedup.core.in_band import decode_answer
from dedup.core.questions import Answer, Standing
from dedup.errors import (
    DedupError,
    PublisherClosedError,
    PublishError,
    QuestionFormatError,
    ReturnedError,
)

#: How long to listen for more answers where nobody says how many there will be; seconds.
SETTLE_S: Final = 0.2


@define(eq=False)
class Asked:
    """
    One question under way, and what comes back: answers, or the error that ends it.
    """

    exchange: str
    routing_key: str
    #: The message whose status is asked for; 0: where to resume.
    sequence: int
    #: How long the question may lie in a queue; seconds.
    patience_s: float
    #: The broker's user, if publishers are bound to users.
    user_id: str | None
    id: str = field(factory=lambda: uuid.uuid4().hex)
    heard: SimpleQueue[Answer | DedupError] = field(factory=SimpleQueue)


class Inquirer(abc.ABC):
    """
    Ask on one connection after the other; everything but :meth:`inquire` is called in the connection's thread.

    Args:
        publisher_id: valid.
        call: has something done in the connection's thread.
    """

    def __init__(self, publisher_id: str, call: Callable[[Callable[[], None]], None]) -> None:
        self._publisher_id = publisher_id
        self._call = call
        self._asked: dict[bytes, Asked] = {}
        self._connection: Any = None

    # -- any thread ---------------------------------------------------------------------------

    def inquire(self, asked: Asked, queues: Collection[str] | None) -> dict[str, Standing]:
        """
        Ask, and wait for the answers of *queues*; None: for the first one, and a moment for others.

        Raises:
            NoAnswerError: not all of them came in time.
            ReturnedError: no queue took the question.
            PublishError: the broker refused it.
            PublisherClosedError: the publisher was closed meanwhile.
        """
        self._call(partial(self._begin_one, asked))
        try:
            return _collect(asked, queues)
        finally:
            self._call(partial(self._forget, asked))

    # -- the connection -----------------------------------------------------------------------

    def begin(self, connection: Any) -> None:
        """
        Ask whatever is under way on *connection*, which is open.
        """
        self._connection = connection
        if self._asked:
            self._ask([*self._asked.values()])

    def end(self) -> None:
        """
        Take note that the connection is gone.
        """
        self._connection = None
        self._forget_link()

    def close(self) -> None:
        """
        Leave nobody waiting for a thread that is no more.
        """
        self.end()
        for asked in self._asked.values():
            asked.heard.put(PublisherClosedError("the publisher was closed before its question was answered"))

    @abc.abstractmethod
    def _ask(self, questions: Sequence[Asked]) -> None:
        """Send *questions* on the connection of now."""

    @abc.abstractmethod
    def _forget_link(self) -> None:
        """Have nothing more to do with whatever the connection that is gone had open."""

    def _begin_one(self, asked: Asked) -> None:
        self._asked[asked.id.encode()] = asked
        if self._connection is not None:
            self._ask([asked])

    def _forget(self, asked: Asked) -> None:
        self._asked.pop(asked.id.encode(), None)

    # -- what comes back ----------------------------------------------------------------------

    def _hear(self, correlation: bytes, body: bytes) -> None:
        """
        Take an answer.
        """
        asked = self._asked.get(correlation)
        if asked is None:
            return
        try:
            asked.heard.put(decode_answer(body))
        except QuestionFormatError as error:
            asked.heard.put(error)

    def _returned(self, correlation: bytes, code: int, text: str) -> None:
        """
        Take note that no queue took a question.
        """
        asked = self._asked.get(correlation)
        if asked is not None:
            asked.heard.put(
                ReturnedError(
                    f"the question was returned ({code} {text}): no queue is bound to exchange {asked.exchange!r} for routing key "
                    f"{asked.routing_key!r}; guard the queue, or ask where you publish",
                    code=code,
                    receipt=self._receipt(asked),
                )
            )

    def _refused(self, questions: Sequence[Asked], code: int, text: str) -> None:
        """
        Tell whoever asks what the broker has against it.
        """
        for asked in questions:
            self._forget(asked)
            asked.heard.put(
                PublishError(
                    f"the broker refused the question: {code} {text}; correct what it names",
                    code=code,
                    receipt=self._receipt(asked),
                )
            )

    def _receipt(self, asked: Asked) -> Receipt | None:
        """
        Return what names the message that is asked for, if there is one.
        """
        return Receipt(self._publisher_id, asked.sequence) if asked.sequence else None


def _collect(asked: Asked, queues: Collection[str] | None) -> dict[str, Standing]:
    answers: dict[str, Standing] = {}
    deadline = time.monotonic() + asked.patience_s
    while not (queues is not None and answers.keys() >= set(queues)):
        try:
            heard = asked.heard.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        if isinstance(heard, DedupError):
            raise heard
        if queues is None or heard.queue in queues:
            answers[heard.queue] = heard.standing
        if queues is None:
            deadline = min(deadline, time.monotonic() + SETTLE_S)
    silent = sorted(set(queues or ()) - answers.keys())
    if silent or not answers:
        raise unanswered(silent, asked.patience_s)
    return answers
