"""
Two hundred hostile messages as data: what is published, byte for byte, and what must become of it.

Each message has a publisher id of its own unless the id is the point, so that none depends on another.
"""

from __future__ import annotations

import struct
from typing import Final

from attrs import evolve, frozen

from dedup.amqp091 import properties as p

#: What becomes of a message: forwarded, refused by the broker itself, or else the reason with which it is in quarantine.
FORWARDED: Final = "forwarded"
REFUSED: Final = "refused"
#: The largest frame of RabbitMQ, and what of it is not the properties: frame, class, weight and body size.
FRAME_MAX, FRAME_REST = 131_072, 20


@frozen
class Case:
    """
    One message.
    """

    name: str
    #: Property flags and list.
    raw: bytes
    expected: str = FORWARDED
    #: Where a broker other than the newest differs: version -> what becomes of the message there.
    elsewhere: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    routing_key: bytes = b"any"

    def expected_on(self, version: str) -> str:
        """Return what must become of it on a version such as 3.10.8."""
        found = (result for prefix, result in self.elsewhere if version.startswith(prefix + "."))
        return next(found, self.expected)


def entry(name: bytes, value: bytes) -> bytes:
    """Return a header, *value* with its kind first."""
    return bytes((len(name),)) + name + value


def long(kind: bytes, content: bytes) -> bytes:
    """Return a value with a length of four bytes."""
    return kind + struct.pack(">I", len(content)) + content


def text(content: bytes) -> bytes:
    """Return a long string."""
    return long(b"S", content)


def short(content: bytes) -> bytes:
    """Return a short string, as most properties are."""
    return bytes((len(content),)) + content


def nested(depth: int, kind: bytes = b"F") -> bytes:
    """Return a value of tables in tables, arrays in arrays, or both in turn (*kind* FA)."""
    value = b"V"
    for level in range(depth):
        if kind[level % len(kind) : level % len(kind) + 1] == b"F":
            value = long(b"F", entry(b"n", value))
        else:
            value = long(b"A", value)
    return value


def sequence(number: int = 7) -> bytes:
    """Return the sequence as the SDK writes it."""
    return entry(b"dedup-sequence", b"l" + struct.pack(">q", number))


def raw(table: bytes, app_id: bytes | None = b"own", **others: bytes) -> bytes:
    """Return properties with headers, persistent; *others* by the name of their flag, encoded."""
    listed = {p.HEADERS: struct.pack(">I", len(table)) + table, p.DELIVERY_MODE: b"\x02"}
    if app_id is not None:
        listed[p.APP_ID] = short(app_id)
    return p.join(listed | {_FLAGS[name]: value for name, value in others.items()})


_FLAGS: Final = {
    "content_type": p.CONTENT_TYPE,
    "content_encoding": p.CONTENT_ENCODING,
    "delivery_mode": p.DELIVERY_MODE,
    "priority": 1 << 11,
    "correlation_id": 1 << 10,
    "reply_to": 1 << 9,
    "expiration": 1 << 8,
    "message_id": 1 << 7,
    "timestamp": p.TIMESTAMP,
    "type": 1 << 5,
    "user_id": p.USER_ID,
    "cluster_id": 1 << 2,
}
_SEQUENCE: Final = b"dedup-sequence"
_ATTEMPT: Final = b"dedup-attempt"
_NAMED: Final = b"dedup-publisher"
_INTEGERS: Final = {
    b"b": ">b",
    b"B": ">B",
    b"s": ">h",
    b"u": ">H",
    b"I": ">i",
    b"i": ">I",
    b"l": ">q",
    b"L": ">Q",
}
_NOT_INTEGERS: Final = {
    "text": text(b"7"),
    "text of nothing": text(b""),
    "bytes": long(b"x", b"\x07"),
    "true": b"t\x01",
    "nothing": b"V",
    "a time": b"T" + struct.pack(">Q", 7),
    "a float": b"f" + struct.pack(">f", 7),
    "a double": b"d" + struct.pack(">d", 7),
    "a decimal": b"D\x00" + struct.pack(">i", 7),
    "a table": long(b"F", sequence()),
    "an array": long(b"A", b"b\x07"),
}
_IDS: Final = {
    "empty": (b"", "publisher-empty"),
    "of 200 bytes": (b"i" * 200, FORWARDED),
    "of 201 bytes": (b"i" * 201, "publisher-long"),
    "of 255 bytes": (b"i" * 255, "publisher-long"),
    "not UTF-8": (b"\xff\xfe", "publisher-utf8"),
    "a surrogate": (b"\xed\xa0\x80", "publisher-utf8"),
    "an overlong slash": (b"\xc0\xaf", "publisher-utf8"),
    "half a character": (b"ab\xf0\x9f", "publisher-utf8"),
    "a zero byte": (b"a\x00b", "publisher-control"),
    "a new line": (b"a\nb", "publisher-control"),
    "an escape": (b"\x1b[2J", "publisher-control"),
    "a delete": (b"a\x7f", "publisher-control"),
    "right to left": ("\u202eabc".encode(), FORWARDED),
    "a line separator": ("a\u2028b".encode(), FORWARDED),
    "spaces": (b"   ", FORWARDED),
    "a Redis key": (b"publisher:x {a}:*", FORWARDED),
    "a field of the state": (b"token", FORWARDED),
    "a format string": (b"%s{0}${jndi:x}", FORWARDED),
    "JSON": (b'"}],"token":9,"x":[{"', FORWARDED),
    "a path": (b"../../etc/passwd", FORWARDED),
    "a metric": (b'x"} 1\\n', FORWARDED),
}
_UNREAD: Final = {
    "minus zero": b"d\x80" + b"\x00" * 7,
    "a denormal": b"d" + struct.pack(">d", 5e-324),
    "milliseconds for seconds": b"T" + struct.pack(">Q", 1_700_000_000_123),
    "the end of time": b"T" + b"\xff" * 8,
    "before time": b"T\x80" + b"\x00" * 7,
    "a decimal of 255 places": b"D\xff" + struct.pack(">i", 1),
    "a negative decimal": b"D\x02" + struct.pack(">i", -1),
    "a boolean of 255": b"t\xff",
    "the largest integer": b"L" + b"\xff" * 8,
    "the smallest integer": b"l\x80" + b"\x00" * 7,
    "binary": long(b"x", bytes(range(256))),
    "text that is no UTF-8": text(b"\xff\xfe\xfd"),
    "text with zeros": text(b"\x00" * 64),
    "an empty table": long(b"F", b""),
    "an empty array": long(b"A", b""),
    "an array of every kind": long(
        b"A", b"V" + b"t\x01" + b"b\x01" + b"d" + bytes(8) + text(b"x") + nested(3)
    ),
    "a table with the stamp": long(b"F", sequence(99) + entry(_NAMED, text(b"other"))),
    "a table with the mark": long(b"F", entry(b"dedup-possible-duplicate", b"t\x01")),
    "tables 100 deep": nested(100),
    "tables 2000 deep": nested(2000),
    "arrays 2000 deep": nested(2000, b"A"),
    "tables and arrays 2000 deep": nested(2000, b"FA"),
    "64 KiB of text": text(b"t" * 65_536),
    "20,000 nothings": long(b"A", b"V" * 20_000),
    "text like a frame": text(b"\x01\x00\x01\x00\x00\x00\x00\xce" * 8),
}
_NAMES: Final = {
    "no name": b"",
    "a name of 255 bytes": b"n" * 255,
    "a name that is no UTF-8": b"\xff\xfe",
    "a name with a zero": b"a\x00b",
    "a name in capitals": b"DEDUP-SEQUENCE",
    "a name with a space": b"dedup-sequence ",
    "a name with a zero behind": b"dedup-sequence\x00",
    "a name that looks alike": "dedup‐sequence".encode(),
    "a name that begins alike": b"dedup-sequence-2",
    "a name of ours that is none": b"dedup-",
}


def _stamps() -> list[Case]:
    """Sequences, attempts and ids of every form."""
    cases = []
    for kind, code in _INTEGERS.items():
        letter, top = kind.decode(), (1 << (8 * struct.calcsize(code) - code[1].islower())) - 1
        for number in (1, 0, top, *((-1,) if code[1].islower() else ())):
            legal = 1 <= number < 2**63
            value = kind + struct.pack(code, number)
            cases.append(
                Case(
                    f"sequence {number} as {letter}",
                    raw(entry(_SEQUENCE, value)),
                    FORWARDED if legal else "sequence-range",
                )
            )
    for what, value in _NOT_INTEGERS.items():
        cases.append(Case(f"sequence is {what}", raw(entry(_SEQUENCE, value)), "sequence-kind"))
        cases.append(Case(f"attempt is {what}", raw(sequence() + entry(_ATTEMPT, value)), "attempt-kind"))
    for number in (0, -1, -(2**63)):
        attempt = entry(_ATTEMPT, b"l" + struct.pack(">q", number))
        cases.append(Case(f"attempt {number}", raw(sequence() + attempt), "attempt-range"))
    for what, (name, expected) in _IDS.items():
        cases.append(Case(f"app_id is {what}", raw(sequence(), name), expected))
        cases.append(
            Case(f"dedup-publisher is {what}", raw(sequence(8) + entry(_NAMED, text(name))), expected)
        )
    cases += [
        Case(f"dedup-publisher is {what}, not text", raw(sequence() + entry(_NAMED, value)), "publisher-kind")
        for what, value in (
            ("a number", b"b\x01"),
            ("binary", long(b"x", b"own")),
            ("nothing", b"V"),
            ("a table", long(b"F", b"")),
        )
    ]
    return cases


def _headers() -> list[Case]:
    """Headers that are not ours to read, repeated ones, and ours where only the shim may set them."""
    cases = [
        Case(f"a header is {what}", raw(sequence() + entry(b"z", value))) for what, value in _UNREAD.items()
    ]
    cases += [
        Case(f"a header has {what}", raw(sequence() + entry(name, b"V"))) for what, name in _NAMES.items()
    ]
    for name, value in (
        (b"dedup-possible-duplicate", b"t\x01"),
        (b"dedup-possible-duplicate", b"t\x00"),
        (b"dedup-possible-duplicate", text(b"yes")),
        (b"dedup-possible-duplicate", nested(500)),
        (b"dedup-reason", text(b"too-old")),
        (b"dedup-reason", b"V"),
        (b"dedup-unreadable", long(b"x", b"\x00")),
    ):
        cases.append(Case(f"a forged {name.decode()}, {value[:6]!r}", raw(sequence() + entry(name, value))))
    mark = entry(b"dedup-possible-duplicate", b"t\x01")
    return [
        *cases,
        Case("forged marks before and behind", raw(mark + sequence() + mark)),
        Case("a forged mark without a stamp", raw(mark, None)),
        # RabbitMQ 4 keeps one of several headers of a name.
        Case("a sequence twice", raw(sequence(1) + sequence(2)), elsewhere=(("3.10", "sequence-repeated"),)),
        Case("a sequence twice, the same", raw(2 * sequence(1)), elsewhere=(("3.10", "sequence-repeated"),)),
        Case(
            "an attempt twice",
            raw(sequence() + 2 * entry(_ATTEMPT, b"b\x02")),
            elsewhere=(("3.10", "attempt-repeated"),),
        ),
        Case(
            "a publisher twice",
            raw(sequence() + 2 * entry(_NAMED, text(b"own"))),
            elsewhere=(("3.10", "publisher-repeated"),),
        ),
        Case("another header twice", raw(sequence() + 2 * entry(b"z", b"b\x01"))),
        Case("5000 headers", raw(sequence() + b"".join(entry(b"h%d" % n, b"V") for n in range(5000)))),
        Case("5000 headers of one name", raw(sequence() + 5000 * entry(b"h", b"V"))),
        Case("headers as large as a frame", raw(_filled(sequence()))),
        Case("headers as large as a frame, to be changed", raw(_filled(sequence() + mark))),
        Case("headers eight bytes larger than a frame", raw(_filled(sequence(), 8))),
        Case(
            "headers eight bytes larger than a frame, with a fault",
            raw(_filled(sequence(0), 8)),
            "properties-too-large",
        ),
        Case("headers as large as a frame, with a fault", raw(_filled(sequence(0))), "properties-too-large"),
        Case("only an id", raw(b"")),
        Case("only a sequence", raw(sequence(), None)),
        Case("no headers at all", p.join({p.APP_ID: short(b"own")})),
        Case("no properties", b"\x00\x00"),
        Case("a flag without meaning", b"\x00\x02"),
    ]


def _filled(table: bytes, more: int = 0) -> bytes:
    """Return headers that leave no byte of the largest frame free, or need *more*, with an app_id of three bytes."""
    others = len(raw(table + entry(b"z", text(b""))))
    return table + entry(b"z", text(b"z" * (FRAME_MAX - FRAME_REST - others + more)))


def _properties() -> list[Case]:
    """Other properties at their edges, and the routing headers of RabbitMQ."""
    longest = short(b"\xff" * 255)
    texts = (
        "content_type",
        "content_encoding",
        "correlation_id",
        "reply_to",
        "message_id",
        "type",
        "cluster_id",
    )
    cases = [
        Case(f"{name} of 255 bytes that are no UTF-8", raw(sequence(), **{name: longest})) for name in texts
    ]
    cases += [Case(f"{name} is empty", raw(sequence(), **{name: b"\x00"})) for name in texts]
    cases += [
        Case(
            f"delivery mode {mode}",
            raw(sequence(), delivery_mode=bytes((mode,))),
            elsewhere=(("3.10", REFUSED),),
        )
        for mode in (0, 3, 255)
    ]
    cases.append(Case("delivery mode 1", raw(sequence(), delivery_mode=b"\x01")))
    cases += [Case(f"priority {value}", raw(sequence(), priority=bytes((value,)))) for value in (0, 255)]
    cases += [
        Case(f"timestamp {value:#x}", raw(sequence(), timestamp=struct.pack(">Q", value)))
        for value in (0, 1_700_000_000_123, 2**63, 2**64 - 1)
    ]
    deaths = long(b"A", long(b"F", entry(b"queue", text(b"elsewhere")) + entry(b"reason", text(b"rejected"))))
    for what, value in {
        "a history of another queue": deaths,
        "a text": text(b"\x05queueS\x00\x00\x00\x05other"),
        "a number": b"b\x01",
        "nothing": b"V",
        "a table": long(b"F", b""),
        "an array of numbers": long(b"A", b"b\x01b\x02"),
        "an array of empty tables": long(b"A", 3 * long(b"F", b"")),
        "2000 deep": nested(2000, b"A"),
    }.items():
        cases.append(Case(f"x-death is {what}", raw(sequence() + entry(b"x-death", value))))
    key = long(b"A", text(b"nowhere"))
    return [
        *cases,
        Case("CC to another key", raw(sequence() + entry(b"CC", key))),
        Case("BCC to another key", raw(sequence() + entry(b"BCC", key))),
        Case("CC to 1000 keys", raw(sequence() + entry(b"CC", long(b"A", 1000 * text(b"nowhere"))))),
        Case("CC that is no array", raw(sequence() + entry(b"CC", text(b"orders"))), REFUSED),
        Case("BCC that is no array", raw(sequence() + entry(b"BCC", b"V")), REFUSED),
        Case("expiration of a year", raw(sequence(), expiration=short(b"31536000000"))),
        Case("expiration that is no number", raw(sequence(), expiration=short(b"soon")), REFUSED),
        Case("expiration below zero", raw(sequence(), expiration=short(b"-1")), REFUSED),
        Case("expiration of a thousand digits", raw(sequence(), expiration=short(b"9" * 255)), REFUSED),
        Case("the true user", raw(sequence(), user_id=short(b"guest"))),
        Case("a false user", raw(sequence(), user_id=short(b"admin")), REFUSED),
        Case("a user without a name", raw(sequence(), user_id=b"\x00"), REFUSED),
    ]


def _broken() -> list[Case]:
    """Lists that end too early, too late, or lie about a length: RabbitMQ refuses what it cannot parse."""
    good = raw(sequence())
    table = sequence() + entry(b"z", b"?garbage")
    return [
        Case("flags cut short", b"\xf8", REFUSED),
        Case("no flags", b"", REFUSED),
        Case("one byte too few", good[:-1], REFUSED),
        Case("one byte too many", good + b"\x00", REFUSED),
        Case("headers longer than the list", b"\x20\x00\xff\xff\xff\xff" + sequence(), REFUSED),
        Case("a name longer than the headers", raw(b"\xff" + sequence()), REFUSED),
        Case("a value longer than the headers", raw(entry(b"z", b"S\xff\xff\xff\xff")), REFUSED),
        Case("a nested table that lies", raw(sequence() + entry(b"z", long(b"F", b"\x09a"))), REFUSED),
        Case(
            "a nested array that reaches out",
            raw(sequence() + entry(b"z", long(b"A", b"S\x00\x00\x00\x09a"))),
            REFUSED,
        ),
        Case(
            "NaN, which Erlang has no value for",
            raw(sequence() + entry(b"z", b"d\x7f\xf8" + bytes(6))),
            REFUSED,
        ),
        Case("infinity", raw(sequence() + entry(b"z", b"d\x7f\xf0" + bytes(6))), REFUSED),
        Case("a float NaN", raw(sequence() + entry(b"z", b"f\x7f\xc0\x00\x00")), REFUSED),
        Case("a kind that is none", raw(table), REFUSED),
        Case("a kind of other clients, U", raw(sequence() + entry(b"z", b"U\x00\x01")), REFUSED),
        Case("every flag, nothing behind", b"\xff\xfc", REFUSED),
        Case("more flags follow", b"\x00\x01\x00\x00", REFUSED),
        Case("headers nine bytes larger than a frame", raw(_filled(sequence(), 9)), REFUSED),
    ]


def _methods() -> list[Case]:
    """Bodies and routing keys that something on the way could take for its own."""
    good = raw(sequence())
    return [
        Case("a body like frames", good, body=b"\x01\x00\x01\x00\x00\x00\x04\x00\x5a\x00\x14\xce" * 50),
        Case(
            "a body like a marker",
            good,
            body=b'{"kind":"batch","token":9,"batch":9,"exact":true,"sequences":{}}',
        ),
        Case("a body of one frame", good, body=b"f" * (FRAME_MAX - 8)),
        Case("a body of a frame and a byte", good, body=b"g" * (FRAME_MAX - 7)),
        Case("a body of a megabyte", good, body=b"\xce" * (1 << 20)),
        Case("no routing key", good, routing_key=b""),
        Case("a routing key of 255 bytes", good, routing_key=b"k" * 255),
        Case("a routing key that is no UTF-8", good, routing_key=b"\xff\xfe"),
        Case("a routing key with zeros", good, routing_key=b"a\x00b"),
        Case("a routing key like a pattern", good, routing_key=b"#.*.{}$"),
        Case("a routing key like the ledger", good, routing_key=b"orders.dedup.ledger"),
        Case("the largest sequence", raw(sequence(2**63 - 1), b"jumper")),
        Case("one below the largest sequence", raw(sequence(2**63 - 2), b"jumper")),
        Case("a sequence far below", raw(sequence(1), b"jumper"), "fenced"),
    ]


def catalogue() -> list[Case]:
    """Return every case, its own publisher id and a body that names it filled in."""
    cases = [*_stamps(), *_headers(), *_properties(), *_broken(), *_methods()]
    return [
        evolve(
            case,
            raw=case.raw.replace(short(b"own"), b"\x03%03d" % number),
            body=case.body or f"{number}: {case.name}".encode(),
        )
        for number, case in enumerate(cases)
    ]
