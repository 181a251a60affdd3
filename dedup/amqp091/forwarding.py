"""Publish a relay's batches: in a transaction with their marker (exact), or with a confirm for each message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import frozen

from dedup.amqp091 import properties, wire
from dedup.amqp091.connection import RawChannel
from dedup.amqp091.wire import Delivery, Returned
from dedup.core import steps
from dedup.core.confirms import Confirms
from dedup.core.event_log import encode_record
from dedup.core.identity import MARK_HEADER, REASON_HEADER
from dedup.core.names import Route
from dedup.core.records import Marker, MarkerKind, decode_marker, encode_marker
from dedup.core.steps import Outgoing, Record
from dedup.errors import BrokerUnavailableError, InvalidMessageError, TopologyError

#: The reason of a message whose properties have no room for what the shim must add.
PROPERTIES_TOO_LARGE = "properties-too-large"

Answer = Callable[[steps.Event], None]

#: Markers are transient: that a broker restart empties the ledger is what they prove.
_TRANSIENT = properties.join({properties.DELIVERY_MODE: b"\x01"})
_PERSISTENT = properties.fresh()


@frozen
class Parcel:
    """
    What the source driver hands through the relay: a delivery, and how it may pass.
    """

    delivery: Delivery
    #: It carries headers that only the shim sets, or a user id: they are taken off.
    reserved: bool
    #: The properties it goes on with; None: its own.
    changed: bytes | None = None
    #: Headers that are taken off where something has to be added.
    drop: frozenset[str] = properties.SHIM_HEADERS
    #: The exchange that leads to its target; empty: the one that all go to.
    exchange: bytes = b""


class Framing:
    """
    Turn outgoing messages and markers into frames for one channel.
    """

    def __init__(self, channel: RawChannel, route: Route) -> None:
        self._queue = route.queue
        self._number = channel.number
        self._frame_max = channel.frame_max
        self._target = route.forward.encode()
        self._quarantine = route.aside.encode()
        self._ledger = route.ledger.encode()
        self._audit = route.audit.encode()
        #: Markers on their way into the ledger and back, by their bodies.
        self._under_way: dict[bytes, Marker] = {}

    def message(self, out: Outgoing) -> tuple[bytes, bytes]:
        """
        Return the frames of one message: its publish method, and its content.

        The routing key stays the one it came with; the exchanges are fanouts, so neither it
        nor a CC header leads anywhere else.
        """
        parcel: Parcel = out.arrival.payload
        delivery = parcel.delivery
        changed = parcel.changed
        if out.stripped:
            changed = properties.fresh(_stamps(out))
        elif out.reason or out.marked or parcel.reserved:
            raw = delivery.properties if changed is None else changed
            changed = properties.amend(raw, headers=_stamps(out), drop=parcel.drop)
        return self._published(delivery, self._exchange(out), changed)

    def _exchange(self, out: Outgoing) -> bytes:
        """
        Return where a message is published.
        """
        parcel: Parcel = out.arrival.payload
        return self._quarantine if out.reason else parcel.exchange or self._target

    def _published(self, delivery: Delivery, exchange: bytes, changed: bytes | None) -> tuple[bytes, bytes]:
        """
        Return the frames that publish *delivery* to *exchange*; to quarantine with fresh properties if they grew too large.
        """
        try:
            return self._framed(delivery, exchange, changed)
        except InvalidMessageError:
            changed = properties.fresh([(REASON_HEADER, PROPERTIES_TOO_LARGE)])
            return self._framed(delivery, self._quarantine, changed)

    def _framed(self, delivery: Delivery, exchange: bytes, changed: bytes | None) -> tuple[bytes, bytes]:
        """
        Return the frames that publish *delivery* to *exchange*.

        Raises:
            InvalidMessageError: the changed properties do not fit into one frame.
        """
        content = wire.forward_frames(
            delivery, channel=self._number, frame_max=self._frame_max, properties=changed
        )
        return wire.publish_frame(self._number, exchange, delivery.routing_key, mandatory=True), content

    def strays(self, deliveries: Iterable[Delivery]) -> list[bytes]:
        """
        Return the frames that send what found no queue to where it was going, marked: it may come here twice.
        """
        frames: list[bytes] = []
        for delivery in deliveries:
            exchange, marked = delivery.exchange, [(MARK_HEADER, True)]
            changed = properties.amend(delivery.properties, headers=marked, drop=frozenset())
            frames += self._published(delivery, exchange, changed)
        return frames

    def messages(self, outgoing: Iterable[Outgoing]) -> list[bytes]:
        """
        Return the frames of *outgoing*, in order.
        """
        frames: list[bytes] = []
        for out in outgoing:
            frames += self.message(out)
        return frames

    def returned(self, outgoing: Sequence[Outgoing], returned: Iterable[Returned]) -> list[int]:
        """
        Return which of *outgoing* the broker gave back; they come back in the order they were sent.
        """
        indexes = []
        position = 0
        for message in returned:
            while position < len(outgoing):
                out = outgoing[position]
                position += 1
                if (
                    message.exchange == self._exchange(out)
                    and message.body == out.arrival.payload.delivery.body
                ):
                    indexes.append(position - 1)
                    break
        return indexes

    def markers(self, markers: Iterable[Marker]) -> list[bytes]:
        """
        Return the frames that put *markers* into the ledger.
        """
        frames = []
        for marker in markers:
            kind = _PERSISTENT if marker.kind is MarkerKind.FOUNDING else _TRANSIENT
            body = encode_marker(marker)
            self._under_way[body] = marker
            frames.append(wire.publish_frame(self._number, b"", self._ledger, mandatory=True))
            frames.append(wire.content_frames(kind, body, channel=self._number, frame_max=self._frame_max))
        return frames

    def marker_in(self, body: bytes) -> Marker | None:
        """
        Return the marker in *body*, which need not be read if it was sent from here; None: it is none.
        """
        return self._under_way.pop(body, None) or decode_marker(body)

    def record(self, record: Record | None) -> list[bytes]:
        """
        Return the frames that put *record* into the queue of the audit.
        """
        if record is None:
            return []
        body = encode_record(self._queue, record)
        content = wire.content_frames(_PERSISTENT, body, channel=self._number, frame_max=self._frame_max)
        return [wire.publish_frame(self._number, b"", self._audit, mandatory=True), content]

    def releases(self, tags: Iterable[int]) -> list[bytes]:
        """
        Return the frames that acknowledge ledger deliveries.
        """
        return [wire.ack_frame(self._number, tag, multiple=False) for tag in tags]


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


def _stamps(out: Outgoing) -> list[tuple[str, properties.HeaderValue]]:
    """
    Return the headers the shim adds to *out*.
    """
    stamps: list[tuple[str, properties.HeaderValue]] = []
    if out.marked:
        stamps.append((MARK_HEADER, True))
    if out.reason:
        stamps.append((REASON_HEADER, out.reason))
    return stamps
