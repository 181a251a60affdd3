"""Publish a relay's batches: in a transaction with their marker (exact), or with a confirm for each message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel
from dedup.amqp091.framing import Framing
from dedup.amqp091.wire import Returned
from dedup.core import steps
from dedup.core.confirms import Confirms
from dedup.core.names import Route
from dedup.core.records import Marker
from dedup.core.steps import Outgoing
from dedup.errors import BrokerUnavailableError, TopologyError

Answer = Callable[[steps.Event], None]


class Forwarder(ABC):
    """
    One channel that forwards; it answers each effect with one event.
    """

    def __init__(self, channel: RawChannel, route: Route, answer: Answer) -> None:
        self._channel = channel
        self._framing = Framing(channel, route)
        self._answer = answer
        #: What came back of the batch under way.
        self._returned: list[Returned] = []

    def marker_in(self, body: bytes) -> Marker | None:
        """
        Return the marker that came out of the ledger; None: it is none.
        """
        return self._framing.marker_in(body)

    @abstractmethod
    def forward(self, effect: steps.Forward) -> None:
        """
        Publish a batch and its marker; the answer is Forwarded or Refused.
        """

    @abstractmethod
    def anchor(self, effect: steps.Anchor) -> None:
        """
        Publish markers; the answer is Anchored.
        """

    def on_commit(self) -> None:
        """
        Hear ``tx.commit-ok``.
        """
        raise AssertionError("this channel has no transactions")

    def on_confirms(self, confirms: Sequence[tuple[int, bool, bool]]) -> None:
        """
        Hear confirms: tag, multiple, and whether it is an ack.
        """
        raise AssertionError("this channel has no confirms")

    def on_return(self, returned: Returned) -> None:
        """
        Hear that no queue took a message; it comes before the answer to the message.

        Raises:
            TopologyError: it was a marker, or a record of the audit.
        """
        if not returned.exchange:
            raise TopologyError(
                f"queue {returned.routing_key.decode(errors='replace')!r} is gone: run 'dedup queue guard' again"
            )
        self._returned.append(returned)

    def _refuse_returns(self) -> None:
        """
        Raise when strays came back: what leads them to the ledger has been taken away.

        Raises:
            TopologyError: they did.
        """
        if self._returned:
            raise TopologyError(
                f"exchange {self._returned[0].exchange.decode(errors='replace')!r} leads nowhere, not even to the ledger: "
                "run 'dedup queue guard' again"
            )


class ExactForwarder(Forwarder):
    """
    Forward in transactions: a batch, its marker and the release of older markers, or nothing.

    Everything of a transaction is one write that ends in ``tx.commit``; until the answer
    nothing else may be sent on the channel (504).
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: The batch of this transaction; None when it has markers only.
        self._outgoing: Sequence[Outgoing] | None = None
        #: A commit is not answered yet.
        self._committing = False

    def forward(self, effect: steps.Forward) -> None:
        """
        Publish batch and marker in one transaction.
        """
        self._outgoing = effect.outgoing
        frames = self._framing.messages(effect.outgoing)
        frames += self._framing.record(effect.record) + self._framing.markers((effect.marker,))
        self._commit(frames, effect.release)

    def anchor(self, effect: steps.Anchor) -> None:
        """
        Publish markers in one transaction.
        """
        self._outgoing = None
        frames = self._framing.strays(effect.strays)
        frames += self._framing.markers(effect.markers) + self._framing.record(effect.record)
        self._commit(frames, effect.release)

    def on_commit(self) -> None:
        """
        Answer: the transaction is done.
        """
        self._committing = False
        if self._outgoing is None:
            self._refuse_returns()
            self._answer(steps.Anchored())
        elif self._returned:
            self._answer(steps.Refused(self._framing.returned(self._outgoing, self._returned)))
        else:
            self._answer(steps.Forwarded())

    def _commit(self, frames: list[bytes], release: Iterable[int]) -> None:
        assert not self._committing, "one transaction at a time"
        self._committing = True
        self._returned = []
        frames += self._framing.releases(release)
        frames.append(wire.commit_frame(self._channel.number))
        self._channel.send(frames)


class ConfirmedForwarder(Forwarder):
    """
    Forward with a confirm for each message; record and marker follow when all of them are stored.

    The intent runs ahead of them, and each marker of a part right behind the messages it speaks of.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Publish tag -> index in the batch; None: a marker.
        self._confirms: Confirms[int | None] = Confirms()
        self._next_tag = 1
        #: What the confirms still to come decide; None: nothing.
        self._effect: steps.Forward | steps.Anchor | None = None
        self._nacked: list[int] = []
        #: The record of a batch that is stored.
        self._recording = False

    def forward(self, effect: steps.Forward) -> None:
        """
        Publish the batch and the markers in between; the marker of the whole follows the confirms.
        """
        self._publish_batch(effect, [self._framing.message(out) for out in effect.outgoing])

    def anchor(self, effect: steps.Anchor) -> None:
        """
        Publish markers and wait for their confirms.
        """
        frames = self._framing.strays(effect.strays)
        frames += self._framing.markers(effect.markers) + self._framing.record(effect.record)
        messages = len(effect.strays) + len(effect.markers) + (effect.record is not None)
        self._publish(effect, frames, [None] * messages)

    def on_confirms(self, confirms: Sequence[tuple[int, bool, bool]]) -> None:
        """
        Settle what is confirmed; answer when nothing is awaited any more.
        """
        for tag, multiple, positive in confirms:
            if positive:
                self._confirms.confirm(tag, multiple=multiple)
            else:
                self._refuse(self._confirms.reject(tag, multiple=multiple))
        self._answer_when_confirmed()

    def _answer_when_confirmed(self) -> None:
        if not len(self._confirms) and self._effect is not None:
            effect, self._effect = self._effect, None
            self._all_confirmed(effect)

    def _refuse(self, indexes: Iterable[int | None]) -> None:
        for index in indexes:
            if index is None:
                raise BrokerUnavailableError(
                    "the broker refuses markers, records or strays: is its disk or the target full?"
                )
            self._nacked.append(index)

    def _publish_batch(
        self,
        effect: steps.Forward,
        messages: Iterable[Sequence[bytes]],
        refused: Iterable[int] = (),
    ) -> None:
        """
        Publish the frames of a batch's messages, of some maybe none, and the markers in between.

        Args:
            refused: Indexes of messages that were refused before.
        """
        frames: list[bytes] = []
        indexes: list[int | None] = []
        between = deque(effect.between)
        for index, message in enumerate(messages):
            while between and between[0][0] <= index:
                frames += self._framing.markers((between.popleft()[1],))
                indexes.append(None)
            if message:
                frames += message
                indexes.append(index)
        frames += self._framing.markers(marker for _, marker in between)
        indexes += [None] * len(between)
        self._publish(effect, frames, indexes, refused)

    def _publish(
        self,
        effect: steps.Forward | steps.Anchor,
        frames: list[bytes],
        indexes: Iterable[int | None],
        refused: Iterable[int] = (),
    ) -> None:
        self._effect = effect
        self._nacked = list(refused)
        self._returned = []
        for index in indexes:
            self._expect(index)
        self._channel.send(self._framing.releases(effect.release) + frames)
        self._answer_when_confirmed()

    def _all_confirmed(self, effect: steps.Forward | steps.Anchor) -> None:
        if isinstance(effect, steps.Anchor):
            self._refuse_returns()
            self._answer(steps.Anchored())
            return
        if self._recording:
            self._recording = False
            self._answer(steps.Forwarded())
            return
        refused = {*self._nacked, *self._framing.returned(effect.outgoing, self._returned)}
        if refused:
            self._answer(steps.Refused(sorted(refused)))
            return
        record = self._framing.record(effect.record)
        if record:
            self._effect, self._recording = effect, True
            self._expect(None)
        # The marker is not waited for: it only repairs a Redis that loses writes.
        self._expect(None)
        self._channel.send(record + self._framing.markers((effect.marker,)))
        if not record:
            self._answer(steps.Forwarded())

    def _expect(self, index: int | None) -> None:
        self._confirms.insert(self._next_tag, index)
        self._next_tag += 1
