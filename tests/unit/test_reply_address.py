"""An address that is answered to is known by its form: what brokers make passes, what kills a connection does not."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.reply_address import is_reply_address

PREFIX = b"amq.rabbitmq.reply-to."
KEY = b".92JWhk3Wh8roWrc2mdaK7g=="
#: As RabbitMQ 4.0, 3.10 and 4.3 have made them.
MADE = (
    b"g1h2AAxyZXBseUAxNzAwMjAAAALPAAAAAGsB/BE=.92JWhk3Wh8roWrc2mdaK7g==",
    b"g1h2AA5yZXBseUA2MzYwODY3NgAAAx0AAAAAawH8IA==.rdXJIyJxO0BGKsmhQWLtYw==",
    b"g1h2AA9yZXBseUAxMjI5ODQzODgAAAP3AAAAAGsB/Dk=.6GpQtaOuc0x2Rq9WM5ciqA==",
)


@pytest.mark.parametrize("address", MADE)
def test_what_a_broker_made_is_one(address: bytes) -> None:
    """Three versions; without the prefix it is a queue like any other."""
    assert is_reply_address(PREFIX + address)
    assert not is_reply_address(address)


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"x",
        b".",
        MADE[0].partition(b".")[0],
        MADE[0] + b".z",
        MADE[0].partition(b".")[0] + b".!!!",
        b"AAAABBBB" + KEY,
        *(
            b64encode(term) + KEY
            for term in (
                b"\x83junk",
                b"\x83w\x02ok",
                b"\x83Xw\x0bfoo@bar.baz" + b"\0\0\0\x05" * 3,
                b"\x83Xw\x09reply@abc" + b"\0\0\0\x05" * 3,
                b"\x83Xw\x0breply@1234" + b"\0\0\0\x05" * 3,
                b"\x83Xv\x01\x0areply@1234" + b"\0\0\0\x05" * 3,
                b"\x83Xw\x0areply@1234" + b"\0\0\0\x05" * 3 + b"zz",
            )
        ),
    ],
)
def test_what_is_made_up_is_none(forged: bytes) -> None:
    """Most of these close the connection that publishes there, on some broker."""
    assert not is_reply_address(PREFIX + forged)


def test_a_short_atom_is_as_good() -> None:
    """How an older Erlang writes the node."""
    process = b"\x83Xw\x0areply@1234" + b"\0\0\0\x05" * 3
    assert is_reply_address(PREFIX + b64encode(process) + KEY)


def test_a_reply_queue_has_a_name_that_nobody_guesses() -> None:
    """Publishers of AMQP 1.0 draw it at random; what is shorter, longer or spelled in another way is any queue."""
    drawn = b"dedup.replies.0123456789abcdef0123456789abcdef"
    assert is_reply_address(drawn)
    for other in (drawn[:-1], drawn + b"0", drawn + b"\n", drawn.upper(), b"/queues/" + drawn, b"x" + drawn):
        assert not is_reply_address(other)


@given(st.binary(max_size=100))
def test_any_bytes_get_an_answer(junk: bytes) -> None:
    """And no junk passes."""
    assert not is_reply_address(junk)
    assert not is_reply_address(PREFIX + junk)
    assert not is_reply_address(PREFIX + b64encode(junk) + KEY)
