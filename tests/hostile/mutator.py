"""
Make hostile properties: any message's raw properties, whole or broken in the ways that break decoders.

The same seed and index give the same bytes, so that a failure is named by two numbers.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
import struct
from collections.abc import Callable
from typing import Final

import pika

from dedup.core.identity import RESERVED_HEADERS

#: Every kind with a size of its own: what is packed behind it.
_FIXED: Final = {
    b"V": 0,
    b"t": 1,
    b"b": 1,
    b"B": 1,
    b"s": 2,
    b"u": 2,
    b"U": 2,
    b"I": 4,
    b"i": 4,
    b"f": 4,
    b"D": 5,
    b"l": 8,
    b"L": 8,
    b"d": 8,
    b"T": 8,
}
_COUNTED: Final = (b"S", b"x")
_NESTED: Final = (b"F", b"A")
#: Numbers at the edges of every integer kind, NaN, infinities, and times that no calendar holds.
_EDGES: Final = tuple(
    struct.pack(">Q", number)
    for number in (0, 1, 2, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 1_700_000_000_123, 10**18)
) + tuple(struct.pack(">d", number) for number in (float("nan"), float("inf"), -0.0, 5e-324))
_NAMES: Final = (
    *(name.encode() for name in sorted(RESERVED_HEADERS)),
    b"x-death",
    b"CC",
    b"BCC",
    b"Dedup-Sequence",
    b"dedup-sequence\x00",
    b"dedup-sequence ",
    "dedup\u2010sequence".encode(),
    b"dedup-",
    b"",
    b"n" * 255,
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"a",
)
_TEXTS: Final = (
    b"",
    b"p",
    b"orders-1",
    b"x" * 200,
    b"x" * 201,
    b"a\nb",
    b"\x00",
    b"\xff",
    "\u00e9\U0001f430".encode(),
    b"7",
)
_SHORTS: Final = (15, 14, 10, 9, 8, 7, 5, 4, 3, 2)
_SIZED: Final = {12: 1, 11: 1, 6: 8}
_DEPTH_MAX: Final = 3
#: One table in this many is huge, and another one nested this deep.
_RARE: Final = 1000
_DEEPEST: Final = 3000


def _real() -> list[bytes]:
    """
    Return properties as clients and brokers write them.
    """
    death = {"queue": "orders", "reason": "rejected", "count": 3, "exchange": "", "routing-keys": ["a", "b"]}
    sets = (
        pika.BasicProperties(app_id="shop-1", headers={"dedup-sequence": 2**40}, delivery_mode=2),
        pika.BasicProperties(
            content_type="application/json",
            content_encoding="gzip",
            headers={
                "dedup-sequence": 7,
                "dedup-publisher": "shop-1",
                "dedup-attempt": 2,
                "x-death": [death, {**death, "time": dt.datetime.fromtimestamp(1, dt.UTC)}],
                "x-first-death-queue": "orders",
                "price": decimal.Decimal("12.50"),
                "nested": {"list": [1, True, None, b"\x00", {"deep": "er"}]},
            },
            delivery_mode=2,
            priority=9,
            correlation_id="c",
            reply_to="amq.rabbitmq.reply-to",
            expiration="60000",
            message_id="m",
            timestamp=1_700_000_000,
            type="t",
            user_id="guest",
            app_id="billing",
            cluster_id="k",
        ),
        pika.BasicProperties(
            app_id="p", headers={"dedup-possible-duplicate": True, "dedup-reason": "forged"}
        ),
        pika.BasicProperties(),
    )
    return [b"".join(properties.encode()) for properties in sets]


_REAL: Final = _real()


def hostile(seed: int, index: int) -> bytes:
    """
    Return raw properties number *index* of *seed*.
    """
    rng = random.Random(seed << 40 | index)
    raw = rng.choice(_REAL) if rng.random() < 0.15 else _properties(rng)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 3))):
        raw = rng.choice(_BREAKERS)(rng, raw)
    return raw


def _properties(rng: random.Random) -> bytes:
    """
    Return a property list; every length in it is right.
    """
    density = rng.random()
    flags, pieces = 0, []
    for bit in range(15, 1, -1):
        if bit not in (13, 3) and rng.random() > density * 0.5:
            continue
        flags |= 1 << bit
        if bit == 13:
            table = _table(rng, 0)
            if not rng.randrange(_RARE):
                table += _entry(b"huge", b"S" + _long(b"h" * rng.randrange(1 << 20)))
            if not rng.randrange(_RARE):
                table += _entry(b"deep", _deep(rng))
            pieces.append(_long(table))
        elif bit in _SIZED:
            pieces.append(rng.randbytes(_SIZED[bit]))
        else:
            pieces.append(_short(_text(rng)[:255]))
    return struct.pack(">H", flags) + b"".join(pieces)


def _table(rng: random.Random, depth: int) -> bytes:
    entries: list[bytes] = []
    for _ in range(rng.choice((0, 1, 2, 3, 5))):
        name = rng.choice(_NAMES) if rng.random() < 0.8 else rng.randbytes(rng.randrange(40))
        entries.append(_entry(name, _value(rng, depth)))
    if entries and rng.random() < 0.1:
        entries.append(rng.choice(entries))
    if not depth and rng.random() < 0.6:
        number = rng.choice(
            (b"l" + rng.choice(_EDGES), b"l" + struct.pack(">q", rng.randrange(1, 1 << 40)), b"b\x07")
        )
        entries.insert(rng.randrange(len(entries) + 1), _entry(b"dedup-sequence", number))
    return b"".join(entries)


def _value(rng: random.Random, depth: int) -> bytes:
    """
    Return one value of any kind, kind byte first.
    """
    choice = rng.random()
    if choice < 0.6:
        kind = rng.choice(tuple(_FIXED))
        size = _FIXED[kind]
        return kind + (rng.choice(_EDGES)[-size:] if size and rng.random() < 0.5 else rng.randbytes(size))
    if choice < 0.85 or depth == _DEPTH_MAX:
        return rng.choice(_COUNTED) + _long(_text(rng))
    if rng.choice(_NESTED) == b"F":
        return b"F" + _long(_table(rng, depth + 1))
    return b"A" + _long(b"".join(_value(rng, depth + 1) for _ in range(rng.randrange(4))))


def _deep(rng: random.Random) -> bytes:
    value = b"V"
    for _ in range(rng.randrange(_DEEPEST)):
        value = b"A" + _long(value) if rng.random() < 0.5 else b"F" + _long(_entry(b"t", value))
    return value


def _text(rng: random.Random) -> bytes:
    return rng.choice(_TEXTS) if rng.random() < 0.8 else rng.randbytes(rng.randrange(60))


# -- ways to break a list -------------------------------------------------------------------------


def _flip(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) or 1)
    return raw[:at] + bytes((raw[at] ^ 1 << rng.randrange(8),)) + raw[at + 1 :] if raw else b"\x00"


def _flip_flag(rng: random.Random, raw: bytes) -> bytes:
    return bytes(byte ^ 1 << rng.randrange(8) for byte in raw[:2]) + raw[2:]


def _cut(rng: random.Random, raw: bytes) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _trail(rng: random.Random, raw: bytes) -> bytes:
    return raw + rng.randbytes(rng.randrange(1, 9))


def _resize(rng: random.Random, raw: bytes) -> bytes:
    """
    Write a wrong length over four bytes that may be one.
    """
    at = rng.randrange(max(1, len(raw) - 3))
    claimed = int.from_bytes(raw[at : at + 4], "big") + rng.choice((-1, 1, 2, -5, 100))
    length = rng.choice((0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, len(raw), claimed % (1 << 32)))
    return raw[:at] + struct.pack(">I", length) + raw[at + 4 :]


def _rekind(rng: random.Random, raw: bytes) -> bytes:
    """
    Write any byte over one, most often one that is a kind.
    """
    at = rng.randrange(len(raw) or 1)
    return raw[:at] + rng.choice((*_FIXED, *_COUNTED, *_NESTED, b"?", b"\x00", b"\xff")) + raw[at + 1 :]


def _insert(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return raw[:at] + rng.choice((rng.randbytes(4), b"\xff\xff\xff\xff", b"F\x00\x00\x00\x00")) + raw[at:]


def _splice(rng: random.Random, raw: bytes) -> bytes:
    other = rng.choice(_REAL)
    return raw[: rng.randrange(len(raw) + 1)] + other[rng.randrange(len(other)) :]


def _noise(rng: random.Random, _: bytes) -> bytes:
    return rng.randbytes(rng.randrange(120))


_BREAKERS: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    _flip,
    _flip,
    _flip_flag,
    _cut,
    _trail,
    _resize,
    _resize,
    _rekind,
    _insert,
    _splice,
    _noise,
)


def _entry(name: bytes, value: bytes) -> bytes:
    return _short(name) + value


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content
