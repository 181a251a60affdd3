"""Raw properties are read and amended whatever is in them."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from typing import Any

import pika
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pika.compat import long

from dedup.amqp091.properties import SHIM_HEADERS, Stamp, amend, fresh, in_order, scan
from dedup.core.identity import SEQUENCE_MAX, UNREADABLE_HEADER, validate_publisher_id
from dedup.errors import InvalidIdentityError

UNSTAMPED = Stamp(None, None)


def encode(**properties: Any) -> bytes:
    """Encode with pika."""
    return b"".join(pika.BasicProperties(**properties).encode())


def decode(raw: bytes) -> pika.BasicProperties:
    """Decode with pika."""
    return pika.BasicProperties().decode(raw)


def entry(name: str | bytes, value: bytes) -> bytes:
    """Return a table's entry, *value* with its kind first."""
    key = name.encode() if isinstance(name, str) else name
    return bytes((len(key),)) + key + value


def text(content: str | bytes, kind: bytes = b"S") -> bytes:
    """Return a value with a length of four bytes."""
    data = content.encode() if isinstance(content, str) else content
    return kind + struct.pack(">I", len(data)) + data


def raw_with(*entries: bytes, app_id: bytes | None = b"orders-1") -> bytes:
    """Return properties that hold these headers and an app_id."""
    table = b"".join(entries)
    flags = 1 << 13 | (0 if app_id is None else 1 << 3)
    tail = b"" if app_id is None else bytes((len(app_id),)) + app_id
    return struct.pack(">HI", flags, len(table)) + table + tail


SEVEN = entry("dedup-sequence", b"l" + struct.pack(">q", 7))

# -- the stamp -------------------------------------------------------------------------------------


def test_reads_the_stamp_of_the_sdk() -> None:
    """app_id and an integer header are all that a publisher sets."""
    raw = encode(headers={"dedup-sequence": long(2**33 + 5)}, delivery_mode=2, app_id="orders-1")
    assert scan(raw) == Stamp("orders-1", 2**33 + 5, 1)


def test_reads_a_stamp_among_everything_else_a_message_may_carry() -> None:
    """All fourteen properties and a table of every kind that pika writes do not hide the stamp."""
    raw = encode(
        content_type="application/json",
        content_encoding="gzip",
        headers={
            "a": True,
            "b": [1, "x", {"dedup-sequence": 9}],
            "c": {"dedup-publisher": "other"},
            "d": None,
            "dedup-sequence": 5,
            "dedup-attempt": 3,
            "e": decimal.Decimal("1.5"),
            "f": dt.datetime.now(dt.UTC),
            "g": b"\xff\x00",
        },
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=2**63,
        type="t",
        app_id="orders-1",
        cluster_id="k",
    )
    assert scan(raw) == Stamp("orders-1", 5, 3)


def test_the_publisher_header_goes_before_app_id() -> None:
    """Whoever's app_id is taken names the publisher in a header."""
    raw = encode(headers={"dedup-sequence": 1, "dedup-publisher": "orders-2"}, app_id="a" * 255)
    assert scan(raw) == Stamp("orders-2", 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x00",
        encode(app_id="orders-1"),
        encode(app_id="x" * 255),
        encode(app_id="\x00"),
        encode(app_id=""),
        encode(headers={"dedup-publisher": 5}),
        encode(headers={"dedup-sequence": 5}),
        encode(headers={"dedup-sequence": "five"}),
        encode(headers={"Dedup-Sequence": 5}, app_id="orders-1"),
        encode(headers={"dedup-attempt": "x"}, app_id="orders-1"),
        encode(headers={"nested": {"dedup-sequence": 5}}, app_id="orders-1"),
    ],
)
def test_a_message_without_id_or_without_sequence_is_not_ours_to_judge(raw: bytes) -> None:
    """An app_id alone is common in the wild, whatever it looks like."""
    assert scan(raw) == UNSTAMPED


INTEGERS = {
    b"b": ">b",
    b"B": ">B",
    b"s": ">h",
    b"U": ">h",
    b"u": ">H",
    b"I": ">i",
    b"i": ">I",
    b"l": ">q",
    b"L": ">q",
}


@pytest.mark.parametrize("kind", INTEGERS, ids=bytes.decode)
def test_every_integer_kind_can_number_a_message(kind: bytes) -> None:
    """Clients choose the kind by the size of the number or by the type of their language."""
    assert scan(raw_with(entry("dedup-sequence", kind + struct.pack(INTEGERS[kind], 100)))).sequence == 100


@pytest.mark.parametrize(
    "value",
    [
        text("5"),
        text(b"5", b"x"),
        b"t\x01",
        b"V",
        b"T" + struct.pack(">Q", 5),
        b"f" + struct.pack(">f", 5),
        b"d" + struct.pack(">d", float("nan")),
        b"D\x00" + struct.pack(">i", 5),
        b"F" + struct.pack(">I", 0),
        b"A" + struct.pack(">I", 0),
    ],
    ids=lambda value: chr(value[0]),
)
def test_no_other_kind_numbers_a_message(value: bytes) -> None:
    """A guess at what "5" or 5.0 meant could drop a message that is new."""
    assert scan(raw_with(entry("dedup-sequence", value))) == Stamp(None, None, fault="sequence-kind")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"l" + struct.pack(">q", 0), "sequence-range"),
        (b"l" + struct.pack(">q", -1), "sequence-range"),
        (b"b" + struct.pack(">b", -1), "sequence-range"),
        (b"L" + struct.pack(">Q", 2**63), "sequence-range"),
        (b"L" + struct.pack(">Q", 2**64 - 1), "sequence-range"),
        (b"L" + struct.pack(">Q", SEQUENCE_MAX), None),
        (b"l" + struct.pack(">q", 1), None),
    ],
)
def test_a_sequence_is_between_1_and_2_to_the_63_minus_1(value: bytes, fault: str | None) -> None:
    """The ends of the range are in it, their neighbours are not."""
    assert scan(raw_with(entry("dedup-sequence", value))).fault == fault


@pytest.mark.parametrize(
    ("app_id", "fault"),
    [
        (b"", "publisher-empty"),
        (b"x" * 200, None),
        (b"x" * 201, "publisher-long"),
        ("\u00e9".encode() * 100, None),
        (b"\xff\xfe", "publisher-utf8"),
        (b"a\nb", "publisher-control"),
        (b"a\x7f", "publisher-control"),
        (b"\x00", "publisher-control"),
        ("no\u00a0break \u2028".encode(), None),
        ("\U0001f430".encode(), None),
    ],
)
def test_an_id_that_could_not_be_registered_is_a_fault(app_id: bytes, fault: str | None) -> None:
    """Ids end up in logs, metrics and queue names."""
    assert scan(raw_with(SEVEN, app_id=app_id)).fault == fault


@given(st.binary(max_size=255))
def test_scan_takes_the_ids_that_registration_takes(name: bytes) -> None:
    """The fast check on bytes and the one of the core agree."""
    try:
        expected = validate_publisher_id(name.decode())
    except (UnicodeDecodeError, InvalidIdentityError):
        expected = None
    assert scan(raw_with(SEVEN, app_id=name)).publisher == expected


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([SEVEN, SEVEN], "sequence-repeated"),
        (
            [SEVEN, entry("dedup-publisher", text("a")), entry("dedup-publisher", text("b"))],
            "publisher-repeated",
        ),
        ([SEVEN, entry("dedup-attempt", b"b\x01"), entry("dedup-attempt", b"b\x01")], "attempt-repeated"),
        ([SEVEN, entry("dedup-publisher", b"b\x01")], "publisher-kind"),
        ([SEVEN, entry("dedup-publisher", text(b"a", b"x"))], "publisher-kind"),
        ([SEVEN, entry("dedup-attempt", text("2"))], "attempt-kind"),
        ([SEVEN, entry("dedup-attempt", b"b\x00")], "attempt-range"),
        ([SEVEN, entry("z", b"?")], "headers-kind"),
        ([SEVEN, entry("z", b"I\x00")], "headers-truncated"),
        ([SEVEN, b"\xff"], "headers-truncated"),
        ([SEVEN, entry("z", b"F\xff\xff\xff\xff")], "headers-truncated"),
    ],
)
def test_says_what_is_wrong_with_the_headers(entries: list[bytes], fault: str) -> None:
    """The slug ends up as the reason in the quarantine."""
    stamp = scan(raw_with(*entries))
    assert (stamp.publisher, stamp.sequence, stamp.fault) == (None, None, fault)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "properties-truncated"),
        (b"\x20", "properties-truncated"),
        (b"\x20\x00\x00", "properties-truncated"),
        (b"\x80\x00\x05abc", "properties-truncated"),
        (b"\x00\x40\x00\x00", "properties-truncated"),
        (b"\x20\x00\x00\x00\x00\x09", "headers-truncated"),
        (b"\x00\x00\x00", "properties-trailing"),
        (b"\x00\x01", "properties-flags"),
        (b"\x00\x01\x00\x00", "properties-flags"),
    ],
)
def test_says_what_is_wrong_with_the_property_list(raw: bytes, fault: str) -> None:
    """A list that can be read in two ways, or not to its end, is not trusted with a verdict."""
    assert scan(raw).fault == fault


@pytest.mark.parametrize(
    ("raw", "reserved"),
    [
        (encode(headers={"dedup-possible-duplicate": True}), True),
        (encode(headers={"dedup-possible-duplicate": "no"}), True),
        (encode(headers={"dedup-reason": "x"}), True),
        (encode(user_id="guest"), True),
        (encode(headers={"dedup-sequence": 1}, app_id="a"), False),
        (encode(headers={"dedup-reason-2": 1}), False),
    ],
)
def test_tells_when_the_properties_must_be_rewritten(raw: bytes, reserved: bool) -> None:
    """A spoofed mark must not reach the target, a user id must not close the shim's channel."""
    assert scan(raw).reserved is reserved


def test_tells_where_the_death_history_is() -> None:
    """The raw value of x-death is there for whoever wants to decode it."""
    deaths = [{"queue": "orders", "reason": "rejected", "count": 1}]
    raw = encode(headers={"x-death": deaths, "dedup-sequence": 1}, app_id="a")
    stamp = scan(raw)
    assert stamp.deaths is not None
    assert decode(raw_with(entry("copy", raw[stamp.deaths]))).headers == {"copy": deaths}
    assert scan(b"\x00\x00").deaths is None


def test_other_headers_may_be_there_twice() -> None:
    """A repeated name is nobody's business but the stamp's; of two histories the first is the broker's."""
    reason, deaths = (
        entry("dedup-reason", text("x")),
        [entry("x-death", kind + b"\0\0\0\0") for kind in (b"A", b"F")],
    )
    stamp = scan(raw := raw_with(reason, SEVEN, reason, *deaths))
    assert stamp[:6] == ("orders-1", 7, 1, 0, None, True)
    assert raw[stamp.deaths or slice(0)] == b"A\0\0\0\0"


def test_nesting_costs_nothing() -> None:
    """Two thousand nested tables, arrays or both are stepped over, where a recursive decoder dies."""
    for kind in (b"F", b"A"):
        value = b"V"
        for _ in range(2000):
            inner = entry("n", value) if kind == b"F" else value
            value = kind + struct.pack(">I", len(inner)) + inner
        raw = raw_with(entry("deep", value), SEVEN)
        assert scan(raw) == Stamp("orders-1", 7)
        assert scan(amend(raw, headers=[("dedup-reason", "x")])).sequence == 7


def test_values_that_break_decoders_are_stepped_over() -> None:
    """A millisecond epoch, NaN, a name that is not UTF-8 and nonsense inside a nested table do not stop a message."""
    hostile = [
        entry("t", b"T" + struct.pack(">Q", 1_700_000_000_000_000)),
        entry("n", b"d" + struct.pack(">d", float("nan"))),
        entry(b"\xff\xfe", b"V"),
        entry("f", text(b"\x01", b"F")),
        entry("", b"V"),
    ]
    assert scan(raw_with(*hostile, SEVEN)) == Stamp("orders-1", 7)


# -- amending --------------------------------------------------------------------------------------


def test_puts_headers_in_front_and_leaves_the_rest_as_it_is() -> None:
    """What was in the table follows byte for byte."""
    raw = raw_with(entry("f", b"f" + struct.pack(">f", 1.5)), SEVEN)
    mark = entry("dedup-possible-duplicate", b"t\x01") + entry("dedup-reason", text("in-doubt"))
    amended = amend(raw, headers=[("dedup-possible-duplicate", True), ("dedup-reason", "in-doubt")])
    assert amended == raw_with(mark, entry("f", b"f" + struct.pack(">f", 1.5)), SEVEN)


def test_makes_a_table_where_there_is_none() -> None:
    """A message without headers can be marked as well."""
    amended = decode(
        amend(encode(content_type="a/b", delivery_mode=2), headers=[("n", -5), ("s", "x"), ("b", b"\x00")])
    )
    assert amended.headers == {"n": -5, "s": "x", "b": b"\x00"}
    assert (amended.content_type, amended.delivery_mode) == ("a/b", 2)


def test_takes_out_what_only_the_shim_may_set_and_the_user_id() -> None:
    """The defaults are what forwarding needs."""
    spoofed = entry("dedup-reason", text("x"))
    raw = raw_with(SEVEN, spoofed, entry("a", b"V"), spoofed)
    assert amend(raw) == raw_with(SEVEN, entry("a", b"V"))
    assert decode(amend(encode(user_id="guest", app_id="a"))).user_id is None
    assert decode(amend(encode(user_id="guest"), drop_user_id=False)).user_id == "guest"
    assert amend(raw, drop=frozenset()) == raw


def test_replaces_a_header_of_the_same_name() -> None:
    """A name is never in the table twice by our doing."""
    assert amend(raw_with(SEVEN), headers=[("dedup-sequence", 8)]).count(b"dedup-sequence") == 1


def test_sets_app_id_in_its_place() -> None:
    """Properties are in the order of their flags, wherever the new one belongs."""
    amended = decode(amend(encode(type="t", cluster_id="k"), app_id="orders-1"))
    assert (amended.type, amended.app_id, amended.cluster_id) == ("t", "orders-1", "k")
    assert decode(amend(encode(app_id="old"), app_id="new")).app_id == "new"


def test_a_table_that_cannot_be_read_to_its_end_keeps_its_rest_in_a_header() -> None:
    """Whoever reads the message next can, and nothing of it is gone."""
    raw = raw_with(SEVEN, entry("odd", b"?garbage"))
    amended = decode(amend(raw, headers=[("dedup-reason", "headers-kind")]))
    assert amended.headers == {
        "dedup-reason": "headers-kind",
        UNREADABLE_HEADER: entry("odd", b"?garbage"),
        "dedup-sequence": 7,
    }
    assert amended.app_id == "orders-1"


def test_a_table_that_claims_too_much_takes_all_that_is_left() -> None:
    """The delivery mode may have been behind it, so the message is made persistent."""
    raw = encode(content_type="a/b", headers={"a": 1}, delivery_mode=1)
    broken = raw.replace(struct.pack(">I", 7), struct.pack(">I", 700))
    amended = decode(amend(broken, headers=[("dedup-reason", "headers-truncated")]))
    assert (amended.content_type, amended.delivery_mode) == ("a/b", 2)
    assert amended.headers["dedup-reason"] == "headers-truncated"
    assert amended.headers["a"] == 1


def test_a_list_that_cannot_be_read_is_kept_in_a_header_of_fresh_properties() -> None:
    """The message is persistent, can be read, and nothing of it is gone."""
    amended = decode(amend(b"\xf8\xff\xff", headers=[("dedup-reason", "x")]))
    assert amended.headers == {"dedup-reason": "x", UNREADABLE_HEADER: b"\xf8\xff\xff"}
    assert amended.delivery_mode == 2


def test_fresh_properties_hold_nothing_else() -> None:
    """The last resort for properties that are refused even so."""
    assert decode(fresh([("dedup-reason", "x")], app_id="a")) == pika.BasicProperties(
        headers={"dedup-reason": "x"}, delivery_mode=2, app_id="a"
    )


# -- any table, any bytes --------------------------------------------------------------------------

_names = st.one_of(
    st.sampled_from(
        ["dedup-sequence", "dedup-publisher", "dedup-attempt", "dedup-reason", "x-death", "dedup-"]
    ),
    st.text("abcdéf🐇\n\x00", max_size=20),
)
_scalars = st.one_of(
    st.booleans().map(lambda value: b"t" + bytes((value,))),
    *(
        st.binary(min_size=struct.calcsize(code), max_size=struct.calcsize(code)).map(kind.__add__)
        for kind, code in INTEGERS.items()
    ),
    st.binary(max_size=300).map(text),
    st.binary(max_size=20).map(lambda value: text(value, b"x")),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: b"d" + struct.pack(">d", value)),
    st.binary(min_size=5, max_size=5).map(b"D".__add__),
    st.integers(0, 2**31).map(lambda value: b"T" + struct.pack(">Q", value)),
    st.just(b"V"),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: text(b"".join(items), b"A")),
        st.lists(st.tuples(_names, inner), max_size=4).map(
            lambda items: text(b"".join(entry(*item) for item in items), b"F")
        ),
    ),
    max_leaves=8,
)
_tables = st.lists(st.tuples(_names, _values), max_size=8, unique_by=lambda item: item[0]).map(
    lambda items: b"".join(entry(*item) for item in items)
)
_short = st.text("abcé🐇\n", max_size=40).map(str.encode).map(lambda data: bytes((len(data),)) + data)


@st.composite
def well_formed(draw: st.DrawFn) -> bytes:
    """
    Draw any property list with any table in it.
    """
    flags, pieces = 0, []
    for bit in range(15, 1, -1):
        if draw(st.booleans()):
            flags |= 1 << bit
            if bit == 13:
                table = draw(_tables)
                pieces.append(struct.pack(">I", len(table)) + table)
            else:
                size = {12: 1, 11: 1, 6: 8}.get(bit)
                pieces.append(draw(st.binary(min_size=size, max_size=size) if size else _short))
    return struct.pack(">H", flags) + b"".join(pieces)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """
    Draw a property list with a few bytes changed, taken out or put in.
    """
    raw = bytearray(draw(well_formed()))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        end = draw(st.integers(at, min(len(raw), at + 8)))
        raw[at:end] = draw(
            st.one_of(st.binary(max_size=6), st.sampled_from([b"\xff\xff\xff\xff", b"\x00", b"F"]))
        )
    return bytes(raw)


@given(well_formed())
def test_scan_agrees_with_pika_on_well_formed_properties(raw: bytes) -> None:
    """Where pika can decode, what it finds is what scan finds."""
    known = decode(raw)
    headers = known.headers or {}
    stamp = scan(raw)
    sequence = headers.get("dedup-sequence")
    named = headers.get("dedup-publisher", known.app_id)
    assert stamp.reserved == (known.user_id is not None or not SHIM_HEADERS.isdisjoint(headers))
    assert (stamp.deaths is not None) == ("x-death" in headers)
    if stamp.fault is None and stamp.sequence is not None:
        assert (stamp.sequence, stamp.publisher) == (sequence, named)
        assert stamp.attempt == headers.get("dedup-attempt", 1)
    elif stamp.fault is None:
        assert "dedup-sequence" not in headers or named is None
    else:
        assert stamp.fault.split("-")[0] in {"sequence", "publisher", "attempt"}


@given(well_formed())
def test_amending_nothing_changes_nothing(raw: bytes) -> None:
    """Every byte of a well-formed list comes back in its place."""
    assert amend(raw, drop=frozenset(), drop_user_id=False) == raw


@given(
    well_formed(),
    st.sampled_from([(), (("dedup-reason", "x"),), (("dedup-possible-duplicate", True), ("n", 5))]),
)
def test_amending_changes_what_it_should_and_nothing_else(
    raw: bytes, headers: tuple[tuple[str, Any], ...]
) -> None:
    """Seen through pika: ours first, then theirs in order, and all other properties."""
    before, after = decode(raw), decode(amend(raw, headers=headers, app_id="me"))
    names = SHIM_HEADERS | {name for name, _ in headers}
    rest = {name: value for name, value in (before.headers or {}).items() if name not in names}
    assert list((after.headers or {}).items()) == [*headers, *rest.items()]
    before.headers, before.user_id, before.app_id = after.headers, None, "me"
    assert after == before


def test_order_is_by_name_and_nothing_else_moves() -> None:
    """Headers of one name keep their order, and what cannot be read stays at the end."""
    b1, b2, a = entry("b", b"t\x01"), entry("b", b"t\x00"), entry("a", text("b"))
    assert in_order(raw_with(b1, a, b2)) == raw_with(a, b1, b2)
    assert in_order(raw_with(b1, b"\x05rest", a)) == raw_with(b1, b"\x05rest", a)


@given(well_formed())
def test_ordering_changes_the_order_of_headers_and_nothing_else(raw: bytes) -> None:
    """Seen through pika: the same properties, whatever is ordered again stays as it is."""
    ordered = in_order(raw)
    assert decode(ordered) == decode(raw)
    assert list(decode(ordered).headers or ()) == sorted(decode(raw).headers or (), key=str.encode)
    assert in_order(ordered) == ordered


@settings(max_examples=500)
@given(st.one_of(mutated(), st.binary(max_size=80)))
@example(b"")
@example(b"\xff\xff")
@example(b"\x20\x00\xff\xff\xff\xff")
def test_any_bytes_get_an_answer_and_can_be_made_readable(raw: bytes) -> None:
    """Nothing raises; after amending the list can be read to its end, and amending again changes nothing."""
    stamp = scan(raw)
    assert stamp.fault is None or (stamp.publisher, stamp.sequence) == (None, None)
    assert (stamp.publisher is None) == (stamp.sequence is None)
    amended = amend(raw, headers=[("dedup-reason", "x")], app_id="me")
    again = scan(amended)
    assert again.reserved
    assert (again.fault or "").split("-")[0] not in {"properties", "headers"}
    assert amend(amended, headers=[("dedup-reason", "x")], app_id="me") == amended
    assert in_order(amended) == in_order(
        amend(in_order(amended), headers=[("dedup-reason", "x")], app_id="me")
    )
    assert in_order(raw)
