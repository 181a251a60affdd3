"""
Cut the byte stream of a connection into frames and put messages together; pure: bytes in, calls out.

Only the content path of registered channels is handled here (deliver, return, confirms, ``tx.commit-ok``); every other
frame goes, still encoded, to *other*, in the order it came. Each byte is copied a bounded number of times whatever the
stream is cut into. The usual delivery (method, header and at most one body frame in a row, all of it received) takes
one slice; anything else is assembled piece by piece with the same result.

Deliveries and confirms are gathered until the data is used up or a frame for *other* follows, so that one call carries
everything that one read brought; a return comes after the confirms before it and before its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from attrs import define, field
from pika.exceptions import BodyTooLongError, InvalidFrameError, UnexpectedFrameError

from dedup.amqp091.wire import (
    ACK,
    BODY,
    COMMIT_OK,
    DELIVER,
    FRAME_END,
    FRAME_OVERHEAD,
    FRAME_SLACK,
    HEADER,
    HEADER_OVERHEAD,
    HEARTBEAT,
    METHOD,
    NACK,
    RETURN,
    Delivery,
    Returned,
    body_of,
    parse_confirm,
    parse_delivery,
    parse_return,
)

_FRAME = struct.Struct(">BHI").unpack_from
_HEADER = struct.Struct(">BHIHHQ").unpack_from
_METHOD = struct.Struct(">I").unpack_from
_TAG = struct.Struct(">QB").unpack_from
_KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})

OnDeliveries = Callable[[list[Delivery]], Any]
#: Tag, whether it stands for every tag up to it, and whether it is an ack (else a nack).
Confirm = tuple[int, bool, bool]
OnConfirms = Callable[[list[Confirm]], Any]
OnReturn = Callable[[Returned], Any]
OnCommit = Callable[[], Any]


@define(eq=False)
class Inbox:
    """
    What one channel's handlers are, and the message that is still arriving on it.

    An event whose handler is None goes to *other* with everything that belongs to it.
    """

    channel: int
    on_deliveries: OnDeliveries | None = None
    on_confirms: OnConfirms | None = None
    on_return: OnReturn | None = None
    on_commit: OnCommit | None = None
    #: What this read brought so far.
    deliveries: list[Delivery] = field(factory=list, init=False)
    confirms: list[Confirm] = field(factory=list, init=False)
    #: Payload of the deliver or return method whose content is arriving; empty when there is none.
    method: bytes = field(default=b"", init=False)
    #: The content's frames so far, verbatim; the header frame is the first.
    pieces: list[bytes] = field(factory=list, init=False)
    body_size: int = field(default=0, init=False)
    body_missing: int = field(default=0, init=False)

    def take(self, kind: int, frame: bytes) -> bool:
        """
        Use *frame* if it belongs to the content path that is handled here; say whether it does.

        Raises:
            UnexpectedFrameError, BodyTooLongError: the frames of a message are not in order.
        """
        if kind == METHOD:
            return self._take_method(frame)
        if not self.method:
            return False
        if kind == HEADER and not self.pieces:
            if len(frame) < FRAME_OVERHEAD + HEADER_OVERHEAD:
                raise InvalidFrameError("content header cut short")
            self.body_size = self.body_missing = _HEADER(frame)[5]
        elif kind == BODY and self.pieces:
            self.body_missing -= len(frame) - FRAME_OVERHEAD
            if self.body_missing < 0:
                raise BodyTooLongError(self.body_size - self.body_missing, self.body_size)
        else:
            raise UnexpectedFrameError(f"frame type {kind} on channel {self.channel} inside a message")
        self.pieces.append(frame)
        if not self.body_missing:
            self._complete()
        return True

    def _take_method(self, frame: bytes) -> bool:
        if self.method:
            raise UnexpectedFrameError(
                f"method on channel {self.channel} before the message ahead of it was complete"
            )
        payload = frame[7:-1]
        (method,) = _METHOD(payload)
        if method in (ACK, NACK) and self.on_confirms:
            self.confirms.append((*parse_confirm(payload), method == ACK))
        elif (method == DELIVER and self.on_deliveries) or (method == RETURN and self.on_return):
            self.method = payload
        elif method == COMMIT_OK and self.on_commit:
            self.flush()
            self.on_commit()
        else:
            return False
        return True

    def _complete(self) -> None:
        content = b"".join(self.pieces)
        properties = self.pieces[0][FRAME_OVERHEAD + HEADER_OVERHEAD - 1 : -1]
        method, self.method = self.method, b""
        self.pieces.clear()
        if _METHOD(method)[0] == DELIVER:
            self.deliveries.append(parse_delivery(method, properties, self.body_size, content))
        elif self.on_return:
            self.flush()
            self.on_return(parse_return(method, properties, body_of(content, self.body_size)))

    def flush(self) -> None:
        """
        Hand on the confirms and the deliveries gathered so far.
        """
        if self.confirms and self.on_confirms:
            confirms, self.confirms = self.confirms, []
            self.on_confirms(confirms)
        if self.deliveries and self.on_deliveries:
            deliveries, self.deliveries = self.deliveries, []
            self.on_deliveries(deliveries)


class FrameReader:
    """
    Read the frames of one connection, in pieces of any size.

    Attributes:
        inboxes: the channels handled here, by number.
        frame_max: a frame larger than it and FRAME_SLACK is refused; 0 for no limit.
    """

    def __init__(self, other: Callable[[bytes], Any], *, frame_max: int = 0) -> None:
        self.inboxes: dict[int, Inbox] = {}
        self.frame_max = frame_max
        self._frames = 0
        self._other = other
        self._partial: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> None:
        """
        Take the next bytes of the stream; hand on every frame and every message that is complete.

        Raises:
            InvalidFrameError, UnexpectedFrameError, BodyTooLongError: the stream breaks the protocol and cannot be read on.
        """
        if self._partial:
            self._partial.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._partial)
            self._partial.clear()
        try:
            used = self._read(data)
        except (struct.error, IndexError) as error:
            raise InvalidFrameError(f"method cut short: {error}") from error
        if used < len(data):
            self._partial.append(data[used:])
        self.flush()

    def take_count(self) -> int:
        """
        Return how many frames were handled here since the last call, those for *other* not counted.
        """
        count, self._frames = self._frames, 0
        return count

    def flush(self) -> None:
        """
        Hand on what was gathered so far, channel by channel.
        """
        for inbox in tuple(self.inboxes.values()):
            inbox.flush()

    def _read(self, data: bytes) -> int:
        """
        Handle the complete frames in *data* and return how many bytes they took.
        """
        position, limit = 0, len(data)
        while limit - position >= FRAME_OVERHEAD:
            kind, channel, size = _FRAME(data, position)
            if kind not in _KINDS:
                raise InvalidFrameError(f"unknown frame type {kind}")
            end = position + size + FRAME_OVERHEAD
            if end > limit:
                if 0 < self.frame_max < size + FRAME_OVERHEAD - FRAME_SLACK:
                    raise InvalidFrameError(f"frame of {size} bytes, over frame-max {self.frame_max}")
                self._missing = end - limit
                return position
            if data[end - 1] != FRAME_END:
                raise InvalidFrameError("no end marker")
            inbox = self.inboxes.get(channel)
            if inbox is None:
                self._pass_on(data[position:end])
            elif kind == METHOD and (whole := self._take_whole(inbox, data, position, end)):
                end = whole
            elif inbox.take(kind, data[position:end]):
                self._frames += 1
            else:
                self._pass_on(data[position:end])
            position = end
        self._missing = FRAME_OVERHEAD - (limit - position)
        return position

    def _take_whole(self, inbox: Inbox, data: bytes, position: int, header: int) -> int:
        """
        Take the delivery whose method frame is at *position* if all its frames follow; return where it ends, else 0.
        """
        if header + FRAME_OVERHEAD + HEADER_OVERHEAD > len(data) or inbox.method or not inbox.on_deliveries:
            return 0
        if _METHOD(data, position + 7)[0] != DELIVER:
            return 0
        kind, channel, size, _, _, body_size = _HEADER(data, header)
        body = end = header + size + FRAME_OVERHEAD
        if kind != HEADER or channel != inbox.channel or size < HEADER_OVERHEAD:
            return 0
        if body_size:
            end = body + body_size + FRAME_OVERHEAD
            if end > len(data) or _FRAME(data, body) != (BODY, channel, body_size):
                return 0
        elif end > len(data):
            return 0
        if data[body - 1] != FRAME_END or data[end - 1] != FRAME_END:
            return 0
        at = position + 12 + data[position + 11]
        tag, redelivered = _TAG(data, at)
        at += 10
        key = at + data[at - 1] + 1
        stop = key + data[key - 1]
        if stop >= header:
            return 0
        self._frames += 3 if body_size else 2
        inbox.deliveries.append(
            Delivery(
                tag,
                redelivered & 1 == 1,
                data[at : key - 1],
                data[key:stop],
                data[header + 19 : body - 1],
                body_size,
                data[header:end],
            )
        )
        return end

    def _pass_on(self, frame: bytes) -> None:
        self.flush()
        self._other(frame)
