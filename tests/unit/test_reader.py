"""The byte stream comes out as messages, confirms and frames, however it is cut."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pika import spec
from pika.exceptions import AMQPError, BodyTooLongError, InvalidFrameError, UnexpectedFrameError
from pika.frame import Heartbeat, Method

from dedup.amqp091 import wire
from dedup.amqp091.reader import FrameReader, Inbox

PROPERTIES = b"\x10\x00\x02"


class Recorder:
    """
    A reader with two channels, 1 and 2, that notes everything it hands on, in order.
    """

    def __init__(self, *, handlers: bool = True, frame_max: int = 4096) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.reader = FrameReader(lambda frame: self.calls.append(("other", frame)), frame_max=frame_max)
        for number in (1, 2) if handlers else ():
            self.reader.inboxes[number] = Inbox(
                number,
                self.note("deliveries", number),
                self.note("confirms", number),
                self.note("return", number),
            )
        self.reader.inboxes.setdefault(1, Inbox(1)).on_commit = lambda: self.calls.append(("commit", 1))

    def note(self, what: str, number: int) -> Any:
        return lambda value: self.calls.append((what, number, value))

    def feed(self, data: bytes, cuts: Iterable[int]) -> None:
        """
        Feed *data* in pieces that begin at *cuts*.
        """
        for start, end in pairwise([*cuts, len(data)]):
            self.reader.feed(data[start:end])

    def events(self) -> list[tuple[Any, ...]]:
        """
        Return what was handed on, item by item: how it was gathered depends on the reads.
        """
        return [
            (what, rest[0], item)
            for what, *rest in self.calls
            for item in (rest[1] if what in {"deliveries", "confirms"} else rest[-1:])
        ]


def deliver(tag: int, body: bytes = b"body", channel: int = 1, frame_max: int = 4096) -> bytes:
    """Return the frames of a delivery."""
    method = Method(channel, spec.Basic.Deliver("ctag", tag, False, "", "orders")).marshal()
    return bytes(method) + wire.content_frames(PROPERTIES, body, channel=channel, frame_max=frame_max)


def expected(tag: int, body: bytes = b"body", channel: int = 1, frame_max: int = 4096) -> wire.Delivery:
    """Return what comes of the frames of the same delivery."""
    content = wire.content_frames(PROPERTIES, body, channel=channel, frame_max=frame_max)
    return wire.Delivery(tag, False, b"", b"orders", PROPERTIES, len(body), content)


def method(what: object, channel: int = 1) -> bytes:
    """Return a method frame."""
    return bytes(Method(channel, what).marshal())


RETURN = method(spec.Basic.Return(312, "NO_ROUTE", "", "nowhere")) + wire.content_frames(
    PROPERTIES, b"back", channel=1, frame_max=4096
)
RETURNED = wire.Returned(312, "NO_ROUTE", b"", b"nowhere", PROPERTIES, b"back")


def test_one_call_carries_everything_that_one_read_brought() -> None:
    """A batch is what arrived together."""
    recorder = Recorder()
    recorder.reader.feed(deliver(1) + deliver(2, b"") + deliver(3, b"x" * 10_000))
    assert recorder.calls == [("deliveries", 1, [expected(1), expected(2, b""), expected(3, b"x" * 10_000)])]
    assert recorder.reader.take_count() == 3 + 2 + 5


def test_a_message_that_is_still_arriving_waits_for_its_rest() -> None:
    """The next read completes it."""
    recorder = Recorder()
    data = deliver(1) + deliver(2)
    recorder.reader.feed(data[:-3])
    recorder.reader.feed(data[-3:])
    assert recorder.calls == [("deliveries", 1, [expected(1)]), ("deliveries", 1, [expected(2)])]


def test_messages_of_two_channels_may_be_interleaved() -> None:
    """Frames of one message are in order on their channel, but not alone on the connection."""
    first, second = deliver(1, b"x" * 5000, 1), deliver(1, b"y" * 5000, 2)
    cuts = [split(first), split(second)]
    recorder = Recorder()
    recorder.reader.feed(b"".join(frame for pair in zip(*cuts, strict=True) for frame in pair))
    assert recorder.calls == [
        ("deliveries", 1, [expected(1, b"x" * 5000, 1)]),
        ("deliveries", 2, [expected(1, b"y" * 5000, 2)]),
    ]


def test_a_header_frame_of_another_channel_may_come_next() -> None:
    """A method frame and the header frame behind it need not belong together."""
    (method_1, *content_1), (method_2, *content_2) = split(deliver(1)), split(deliver(2, channel=2))
    recorder = Recorder()
    recorder.reader.feed(b"".join((method_2, method_1, *content_2, *content_1)))
    assert recorder.calls == [("deliveries", 1, [expected(1)]), ("deliveries", 2, [expected(2, channel=2)])]


def test_a_body_that_looks_like_the_end_of_a_frame_is_still_a_body() -> None:
    """Where a single body frame would end, a second one has the byte that ends frames."""
    body = b"a" * 15 + b"\xce" * 15
    recorder = Recorder()
    recorder.reader.feed(deliver(1, body, frame_max=23))
    assert recorder.calls == [("deliveries", 1, [expected(1, body, frame_max=23)])]
    assert recorder.calls[0][2][0].body == body


def test_the_brokers_redelivered_flag_is_passed_on() -> None:
    """A hint that recovery after a lost Redis goes by."""
    recorder = Recorder()
    redelivered = method(spec.Basic.Deliver("ctag", 1, True, "", "orders")) + HEADER
    recorder.reader.feed(redelivered + deliver(2))
    assert [delivery.redelivered for delivery in recorder.calls[0][2]] == [True, False]


def test_a_return_comes_between_the_confirms_it_came_between() -> None:
    """The ack of a returned message follows its return: success must not be told first."""
    recorder = Recorder()
    acks = [
        method(spec.Basic.Ack(1, False)),
        method(spec.Basic.Nack(3, True, False)),
        method(spec.Basic.Ack(4, False)),
    ]
    recorder.reader.feed(acks[0] + acks[1] + RETURN + acks[2])
    assert recorder.calls == [
        ("confirms", 1, [(1, False, True), (3, True, False)]),
        ("return", 1, RETURNED),
        ("confirms", 1, [(4, False, True)]),
    ]


def test_other_frames_are_passed_on_in_order() -> None:
    """What came before a cancel, a close or a commit's answer is handed on before it."""
    cancel = method(spec.Basic.Cancel("ctag", True))
    blocked = method(spec.Connection.Blocked("low on memory"), 0)
    heartbeat = Heartbeat().marshal()
    recorder = Recorder()
    recorder.reader.feed(
        deliver(1) + cancel + heartbeat + deliver(2) + blocked + deliver(3) + method(spec.Tx.CommitOk())
    )
    assert recorder.calls == [
        ("deliveries", 1, [expected(1)]),
        ("other", cancel),
        ("other", heartbeat),
        ("deliveries", 1, [expected(2)]),
        ("other", blocked),
        ("deliveries", 1, [expected(3)]),
        ("commit", 1),
    ]


def test_what_has_no_handler_is_passed_on_with_its_content() -> None:
    """A channel that is not taken over, or a basic.get on one that is, stays with pika."""
    recorder = Recorder(handlers=False)
    stream = deliver(1) + method(spec.Basic.Ack(1, False)) + RETURN + deliver(1, channel=9)
    recorder.reader.feed(stream)
    assert recorder.calls == [("other", frame) for frame in split(stream)]
    recorder = Recorder()
    got = method(spec.Basic.GetOk(1, False, "", "orders", 0)) + deliver(1)[len(split(deliver(1))[0]) :]
    recorder.reader.feed(got + deliver(2))
    assert recorder.calls == [*(("other", frame) for frame in split(got)), ("deliveries", 1, [expected(2)])]


def test_a_handler_may_close_its_channel_while_it_is_called() -> None:
    """The table of channels changes under the reader."""
    recorder = Recorder()
    recorder.reader.inboxes[1].on_deliveries = lambda _: recorder.reader.inboxes.clear()
    recorder.reader.feed(deliver(1) + deliver(1, channel=2))
    recorder.reader.feed(deliver(3))
    assert [call[0] for call in recorder.calls] == ["deliveries", "other", "other", "other"]


HEADER = wire.content_frames(PROPERTIES, b"body", channel=1, frame_max=4096)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HTTP/1.1 400 Bad Request", InvalidFrameError),
        (b"AMQP\x00\x00\x09\x01", InvalidFrameError),
        (struct.pack(">BHI", 3, 1, 5000) + b"x", InvalidFrameError),
        (deliver(1)[:-1] + b"\x00", InvalidFrameError),
        (deliver(1)[:-13] + b"\x00" + deliver(1)[-12:], InvalidFrameError),
        (deliver(1).replace(b"\x06orders", b"\x60orders"), InvalidFrameError),
        (
            deliver(1)[: -len(HEADER)] + struct.pack(">BHIB", 2, 1, 1, 0) + b"\xce" + deliver(2),
            InvalidFrameError,
        ),
        (method(spec.Basic.Ack(1))[:-1] + b"\x00", InvalidFrameError),
        (struct.pack(">BHIIB", 1, 1, 5, wire.DELIVER, 200) + b"\xce" + HEADER, InvalidFrameError),
        (struct.pack(">BHIIB", 1, 1, 5, wire.ACK, 0) + b"\xce", InvalidFrameError),
        (struct.pack(">BHI", 1, 1, 0) + b"\xce", InvalidFrameError),
        (deliver(1)[: -len(HEADER)] + struct.pack(">BHIB", 2, 1, 1, 0) + b"\xce", InvalidFrameError),
        (deliver(1)[: -len(HEADER)] + method(spec.Basic.Ack(1)), UnexpectedFrameError),
        (deliver(1)[: -len(HEADER)] + deliver(2), UnexpectedFrameError),
        (deliver(1)[: -len(HEADER)] + struct.pack(">BHI", 3, 1, 0) + b"\xce", UnexpectedFrameError),
        (deliver(1)[:-12] + HEADER, UnexpectedFrameError),
        (deliver(1)[:-12] + struct.pack(">BHI", 3, 1, 5) + b"bodyX\xce", BodyTooLongError),
    ],
)
def test_a_stream_that_breaks_the_protocol_is_refused(data: bytes, error: type[Exception]) -> None:
    """Each of them raises, whole or byte by byte; none is waited for, and no message comes of it."""
    for step in (len(data), 1):
        recorder = Recorder()
        with pytest.raises(error):
            recorder.feed(data, range(0, len(data), step))
        assert recorder.calls == []


def test_a_frame_of_any_size_is_read_where_no_limit_was_agreed() -> None:
    """A frame-max of 0 means no limit."""
    recorder = Recorder(frame_max=0)
    data = deliver(1, b"x" * 300_000, frame_max=0)
    recorder.feed(data, range(0, len(data), 1000))
    assert recorder.calls == [("deliveries", 1, [expected(1, b"x" * 300_000, frame_max=0)])]


STREAM = b"".join(
    (
        deliver(1),
        Heartbeat().marshal(),
        deliver(2, b"", 2),
        RETURN,
        method(spec.Basic.Ack(1, True)),
        deliver(3, b"x" * 90, frame_max=40),
        method(spec.Basic.Cancel("ctag", True)),
        deliver(1, channel=3),
        method(spec.Basic.Nack(2), 2),
        deliver(4),
    )
)


@given(st.sets(st.integers(1, len(STREAM) - 1)))
@example(set(range(1, len(STREAM))))
def test_the_same_comes_out_however_the_stream_is_cut(cuts: set[int]) -> None:
    """Reads end anywhere; the events per channel, and their order with what is passed on, are always the same."""
    whole, pieces = Recorder(), Recorder()
    whole.reader.feed(STREAM)
    pieces.feed(STREAM, [0, *sorted(cuts)])
    for channel in (1, 2):
        assert of(pieces, channel) == of(whole, channel)
    assert pieces.reader.take_count() == whole.reader.take_count()


def of(recorder: Recorder, channel: int) -> list[tuple[Any, ...]]:
    """
    Return the events of one channel and the frames that were passed on; deliveries and confirms separately, since only
    returns and other frames are ordered with both.
    """
    events = [event for event in recorder.events() if event[0] == "other" or event[1] == channel]
    return sorted(events, key=lambda event: event[0])


@given(st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_stream_never_raises_anything_else(damage: list[tuple[int, int]]) -> None:
    """Whatever a byte is changed into, the reader goes on or says that the protocol is broken."""
    data = bytearray(STREAM)
    for at, value in damage:
        data[at] = value
    recorder = Recorder()
    with suppress(AMQPError):
        recorder.reader.feed(bytes(data))


def split(data: bytes) -> list[bytes]:
    """
    Cut *data* into its frames.
    """
    found = []
    while data:
        end = 8 + struct.unpack_from(">BHI", data)[2]
        found.append(data[:end])
        data = data[end:]
    return found
