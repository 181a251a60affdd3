"""What is written is what pika would write, and what is read is what was written."""

from __future__ import annotations

import struct
from functools import partial

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec
from pika.frame import Body, Header, Method, decode_frame

from dedup.amqp091 import wire
from dedup.errors import InvalidMessageError

PERSISTENT = b"\x10\x00\x02"


def frames(data: bytes) -> list[Method[spec.Basic.Publish] | Header | Body]:
    """
    Take *data* apart with pika's decoder.
    """
    found = []
    while data:
        used, frame = decode_frame(data)
        assert used, "a frame is cut short"
        found.append(frame)
        data = data[used:]
    return found


def delivery(
    body: bytes = b"body", properties: bytes = PERSISTENT, channel: int = 1, frame_max: int = 4096
) -> wire.Delivery:
    """
    Make what a broker would deliver.
    """
    content = wire.content_frames(properties, body, channel=channel, frame_max=frame_max)
    return wire.Delivery(1, False, b"", b"orders", properties, len(body), content)


# -- publishing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mandatory", [True, False])
def test_publish_is_what_pika_would_send(mandatory: bool) -> None:
    """The method frame equals pika's, bit by bit."""
    expected = Method(
        7, spec.Basic.Publish(exchange="logs", routing_key="a.b", mandatory=mandatory)
    ).marshal()
    assert wire.publish_frame(7, b"logs", b"a.b", mandatory) == expected


def test_a_name_that_is_no_text_can_be_published_to() -> None:
    """A broker accepts any bytes as a routing key, so a forwarded message may have them."""
    assert b"\xff\x00" in wire.publish_frame(1, b"", b"\xff\x00")


@pytest.mark.parametrize("name", ["exchange", "routing key"])
def test_a_name_over_255_bytes_is_refused(name: str) -> None:
    """The error says which name it is."""
    exchange, key = (b"x" * 256, b"") if name == "exchange" else (b"", b"x" * 256)
    with pytest.raises(InvalidMessageError, match=f"the {name} has 256 bytes"):
        wire.publish_frame(1, exchange, key)


@pytest.mark.parametrize(
    ("size", "count"), [(0, 0), (1, 1), (4088, 1), (4089, 2), (3 * 4088, 3), (3 * 4088 + 1, 4)]
)
def test_a_body_is_cut_to_the_frame_size(size: int, count: int) -> None:
    """No frame is over the limit, none is empty, and an empty body has none."""
    content = wire.content_frames(PERSISTENT, b"x" * size, channel=3, frame_max=4096)
    header, *bodies = frames(content)
    assert isinstance(header, Header)
    assert (header.channel_number, header.body_size, header.properties.delivery_mode) == (3, size, 2)
    assert [type(body) for body in bodies] == [Body] * count
    assert all(len(body.marshal()) <= 4096 for body in bodies)
    assert wire.body_of(content, size) == b"x" * size


def test_a_frame_size_of_zero_is_no_limit() -> None:
    """AMQP negotiates 0 for "any size"."""
    content = wire.content_frames(PERSISTENT, b"x" * 200_000, channel=1, frame_max=0)
    assert len(frames(content)) == 2


def test_properties_that_fill_the_frame_are_sent_and_one_byte_more_is_refused() -> None:
    """A header frame cannot be cut, and the broker answers a larger one by closing the connection."""
    room = 4096 - 8 - 12
    assert len(wire.content_frames(b"x" * room, b"", channel=1, frame_max=4096)) == 4096
    with pytest.raises(
        InvalidMessageError, match=f"take {room + 1} bytes.*leaves room for {room}; move large headers"
    ):
        wire.content_frames(b"x" * (room + 1), b"", channel=1, frame_max=4096)


def test_acks_nacks_and_commits_are_what_pika_would_send() -> None:
    """Fixed frames, bit by bit."""
    assert wire.ack_frame(2, 2**40, multiple=True) == Method(2, spec.Basic.Ack(2**40, True)).marshal()
    assert wire.ack_frame(2, 1, multiple=False) == Method(2, spec.Basic.Ack(1, False)).marshal()
    for multiple in (True, False):
        for requeue in (True, False):
            expected = Method(2, spec.Basic.Nack(5, multiple, requeue)).marshal()
            assert wire.nack_frame(2, 5, multiple=multiple, requeue=requeue) == expected
    assert wire.commit_frame(9) == Method(9, spec.Tx.Commit()).marshal()


# -- forwarding ------------------------------------------------------------------------------------


def test_a_message_is_forwarded_verbatim_where_nothing_changes() -> None:
    """The same object, not even a copy."""
    message = delivery()
    assert wire.forward_frames(message, channel=1, frame_max=4096) is message.content


def test_a_large_message_is_forwarded_verbatim_too() -> None:
    """Frames that fit are not cut anew."""
    message = delivery(b"x" * 10_000)
    assert wire.forward_frames(message, channel=1, frame_max=4096) is message.content


def test_another_channel_frame_size_or_properties_are_framed_anew() -> None:
    """Only what must change does."""
    message = delivery(b"x" * 10_000)
    assert (
        wire.forward_frames(message, channel=2, frame_max=4096) == delivery(b"x" * 10_000, channel=2).content
    )
    smaller = wire.forward_frames(message, channel=1, frame_max=2048)
    assert smaller == delivery(b"x" * 10_000, frame_max=2048).content
    changed = wire.forward_frames(message, channel=1, frame_max=4096, properties=b"\x00\x00")
    assert changed == delivery(b"x" * 10_000, b"\x00\x00").content


def test_a_delivery_knows_its_channel_and_its_body() -> None:
    """Both are read from the frames when somebody asks."""
    message = delivery(b"x" * 10_000, channel=513)
    assert (message.channel, message.body) == (513, b"x" * 10_000)
    assert delivery(b"").body == b""


@given(st.binary(max_size=300), st.integers(21, 64), st.integers(1, 65535))
def test_whatever_is_framed_comes_back(body: bytes, frame_max: int, channel: int) -> None:
    """Any body, frame size and channel number."""
    content = wire.content_frames(b"\x00", body, channel=channel, frame_max=frame_max)
    assert wire.body_of(content, len(body)) == body
    assert b"".join(frame.marshal() for frame in frames_of(content)) == content


def frames_of(content: bytes) -> list[Body]:
    """
    Take header and body frames apart without looking into the properties.
    """
    found = []
    while content:
        kind, channel, size = struct.unpack_from(">BHI", content)
        frame = Body(channel, content[7 : 7 + size])
        frame.frame_type = kind
        found.append(frame)
        content = content[8 + size :]
    return found


# -- reading methods -------------------------------------------------------------------------------


def payload(method: object) -> bytes:
    """
    Encode a method as it stands in its frame.
    """
    return bytes(Method(1, method).marshal()[7:-1])


def test_reads_what_was_delivered() -> None:
    """Tag, flag and names of basic.deliver."""
    method = payload(spec.Basic.Deliver("ctag", 2**40, True, "logs", "a.b"))
    got = wire.parse_delivery(method, PERSISTENT, 4, b"content")
    assert got == wire.Delivery(2**40, True, b"logs", b"a.b", PERSISTENT, 4, b"content")


def test_reads_what_was_returned() -> None:
    """Why the broker gives a message back, and which one it is."""
    method = payload(spec.Basic.Return(312, "NO_ROUTE", "logs", "a.b"))
    got = wire.parse_return(method, PERSISTENT, b"body")
    assert got == wire.Returned(312, "NO_ROUTE", b"logs", b"a.b", PERSISTENT, b"body")


def test_reads_confirms() -> None:
    """A nack has a second bit that means nothing here."""
    assert wire.parse_confirm(payload(spec.Basic.Ack(9, True))) == (9, True)
    assert wire.parse_confirm(payload(spec.Basic.Nack(9, False, True))) == (9, False)


@pytest.mark.parametrize(
    "method",
    [spec.Basic.Deliver("ctag", 1, False, "logs", "a.b"), spec.Basic.Return(312, "NO_ROUTE", "logs", "a.b")],
)
def test_a_method_that_is_cut_short_is_never_half_read(method: object) -> None:
    """Each prefix raises, so that the connection is closed and nothing is forwarded under a wrong name."""
    deliver, back = (
        partial(wire.parse_delivery, body_size=0, content=b""),
        partial(wire.parse_return, body=b""),
    )
    parse = partial(deliver if isinstance(method, spec.Basic.Deliver) else back, properties=b"")
    whole = payload(method)
    for end in range(4, len(whole)):
        with pytest.raises((IndexError, struct.error)):
            parse(whole[:end])


def test_pika_is_the_version_whose_internals_are_used() -> None:
    """The frame classes above, and more in the connection, come from within pika."""
    assert pika.__version__.startswith("1.4.")
