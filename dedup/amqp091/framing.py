"""Turn outgoing messages and markers into frames for one channel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from attrs import frozen

from dedup.amqp091 import properties, wire
from dedup.amqp091.connection import RawChannel
from dedup.amqp091.wire import Delivery, Returned
from dedup.core.event_log import encode_record
from dedup.core.identity import MARK_HEADER, REASON_HEADER
from dedup.core.names import Route
from dedup.core.records import Marker, MarkerKind, decode_marker, encode_marker
from dedup.core.steps import Outgoing, Record
from dedup.errors import InvalidMessageError

#: The reason of a message whose properties have no room for what the shim must add.
PROPERTIES_TOO_LARGE: Final = "properties-too-large"

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
