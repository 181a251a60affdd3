"""
Ask the shims how far a publisher has come: publish questions in its connection's thread, and hand their answers on.

On a channel of its own: a question awaits no confirm, and what the broker refuses there closes no channel that publishes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from attrs import define, field
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.encoding import encode
from dedup.amqp091.properties import CORRELATION_ID, short_text
from dedup.core.failures import unanswered
from dedup.core.identity import ASK_HEADER, Receipt
from dedup.core.questions import Answer, Standing, ask_text, decode_answer
from dedup.core.reply_address import REPLY_TO
from dedup.errors import (
    BrokerUnavailableError,
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


class Asking:
    """
    Ask on one connection after the other: whatever is under way when a connection is lost is asked again on the next.

    Everything but :meth:`inquire` is called in the connection's thread.

    Args:
        publisher_id: valid.
        call: has something done in the connection's thread.
    """

    def __init__(self, publisher_id: str, call: Callable[[Callable[[], None]], None]) -> None:
        self._publisher_id = publisher_id
        self._call = call
        self._asked: dict[bytes, Asked] = {}
        self._connection: RawConnection | None = None
        self._channel: RawChannel | None = None
        #: A channel was asked for and is not there yet.
        self._opening = False

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

    def begin(self, connection: RawConnection) -> None:
        """
        Ask whatever is under way on *connection*, which is open.
        """
        self._connection = connection
        if self._asked:
            self._open()

    def end(self) -> None:
        """
        Take note that the connection is gone.
        """
        self._connection = self._channel = None
        self._opening = False

    def close(self) -> None:
        """
        Leave nobody waiting for a thread that is no more.
        """
        self.end()
        for asked in self._asked.values():
            asked.heard.put(PublisherClosedError("the publisher was closed before its question was answered"))

    def _forget(self, asked: Asked) -> None:
        self._asked.pop(asked.id.encode(), None)

    def _begin_one(self, asked: Asked) -> None:
        self._asked[asked.id.encode()] = asked
        if self._channel is not None and self._channel.is_open:
            self._publish(self._channel, asked)
        else:
            self._open()

    def _open(self) -> None:
        connection = self._connection
        if connection is None or not connection.is_open or self._opening:
            return
        self._opening = True
        connection.channel(on_open_callback=partial(self._on_channel_open, connection))

    def _on_channel_open(self, connection: RawConnection, channel: Any) -> None:
        if connection is not self._connection:
            return
        channel.add_on_close_callback(partial(self._on_channel_closed, connection))
        raw = connection.attach(channel, on_deliveries=self._on_deliveries, on_return=self._on_return)
        channel.basic_consume(
            REPLY_TO, _nothing, auto_ack=True, callback=partial(self._on_consuming, connection, raw)
        )

    def _on_consuming(self, connection: RawConnection, raw: RawChannel, _: Any) -> None:
        if connection is not self._connection:
            return
        self._channel, self._opening = raw, False
        for asked in self._asked.values():
            self._publish(raw, asked)

    def _publish(self, raw: RawChannel, asked: Asked) -> None:
        properties = BasicProperties(
            app_id=self._publisher_id,
            user_id=asked.user_id,
            reply_to=REPLY_TO,
            correlation_id=asked.id,
            expiration=str(max(1, int(asked.patience_s * 1000))),
            delivery_mode=1,
            headers={ASK_HEADER: ask_text(asked.sequence)},
        )
        frames = (
            wire.publish_frame(
                raw.number, asked.exchange.encode(), asked.routing_key.encode(), mandatory=True
            ),
            wire.content_frames(encode(properties), b"", channel=raw.number, frame_max=raw.frame_max),
        )
        try:
            raw.send(b"".join(frames))
        except BrokerUnavailableError:
            return  # the callback that says so is on its way

    def _receipt(self, asked: Asked) -> Receipt | None:
        """
        Return what names the message that is asked for, if there is one.
        """
        return Receipt(self._publisher_id, asked.sequence) if asked.sequence else None

    # -- what comes back ----------------------------------------------------------------------

    def _of(self, properties: bytes) -> Asked | None:
        return self._asked.get(short_text(properties, CORRELATION_ID) or b"")

    def _on_deliveries(self, deliveries: list[wire.Delivery]) -> None:
        for delivery in deliveries:
            asked = self._of(delivery.properties)
            if asked is None:
                continue
            try:
                asked.heard.put(decode_answer(delivery.body))
            except QuestionFormatError as error:
                asked.heard.put(error)

    def _on_return(self, returned: wire.Returned) -> None:
        asked = self._of(returned.properties)
        if asked is not None:
            asked.heard.put(
                ReturnedError(
                    f"the question was returned ({returned.reply_code} {returned.reply_text}): no queue is bound to exchange "
                    f"{asked.exchange!r} for routing key {asked.routing_key!r}; guard the queue, or ask where you publish",
                    code=returned.reply_code,
                    receipt=self._receipt(asked),
                )
            )

    def _on_channel_closed(self, connection: RawConnection, _: Any, reason: BaseException) -> None:
        """
        Tell whoever asks what the broker has against it; a channel that goes with its connection is followed by another.
        """
        if connection is not self._connection or not isinstance(reason, ChannelClosedByBroker):
            return
        self._channel, self._opening = None, False
        text = (
            f"the broker refused the question: {reason.reply_code} {reason.reply_text}; correct what it names"
        )
        for asked in self._asked.values():
            asked.heard.put(PublishError(text, code=reason.reply_code, receipt=self._receipt(asked)))
        self._asked.clear()


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


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback: its being called is all that is wanted.
    """
