"""Bodies as a person sees them: what they are, bounded, and nothing that a terminal would obey."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.deadletters.decoders import BODY_BYTES_MAX, WAYS, printable, show
from dedup.deadletters.protobuf import Descriptors
from dedup.errors import ConfigError


@pytest.mark.parametrize(
    ("body", "content_type", "way", "text"),
    [
        (b'{"b":1,"a":[true,{}],"e":[]}', "application/json", "json", '{\n  "b": 1,\n  "a": [\n    true,\n    {}\n  ],\n  "e": []\n}'),
        (b"[1]", "", "json", "[\n  1\n]"),
        (b'{"a":1,"a":2}', "", "json", '{\n  "a": 1,\n  "a": 2\n}'),
        (b'[1.10000000000000000001, 99e999, "\\u00e9, :\\""]', "", "json", '[\n  1.10000000000000000001,\n  99e999,\n  "\\u00e9, :\\""\n]'),
        ("é".encode(), "", "text", "é"),
        (b'{"a":1}', "text/plain", "text", '{"a":1}'),
        (b"caf\xe9", "text/plain; charset=latin-1", "text", "café"),
        ("née".encode("utf-16"), 'text/plain; charset="utf-16"', "text", "née"),
        (b"\x00\x01", "", "hex", "00000000  00 01                                            .."),
        (b"", "application/json", "text", ""),
    ],
)  # fmt: skip
def test_a_body_is_shown_as_what_it_is(body: bytes, content_type: str, way: str, text: str) -> None:
    """The content type goes first, the bytes second; JSON is laid out, and not one character of it is changed."""
    shown = show(body, content_type=content_type)
    assert (shown.way, shown.text) == (way, text)


@pytest.mark.parametrize(
    ("body", "content_type", "note"),
    [
        (b"{]", "application/json", "not json"),
        (b"NaN", "application/json", "NaN is no JSON"),
        (b"[" * 100_000, "application/json", "nested too deeply"),
        (b"\xff", "text/plain", "not text"),
        (b"x", "text/plain; charset=rot13", "charset 'rot13' is not decoded"),
        (b"x", "text/plain; charset=nothing", "there is no charset 'nothing'"),
    ],
)
def test_a_body_that_is_not_what_it_claims(body: bytes, content_type: str, note: str) -> None:
    """It is said, and the bytes are shown all the same."""
    shown = show(body, content_type=content_type)
    assert any(note in said for said in shown.notes), shown
    assert shown.text


def test_a_way_may_be_asked_for() -> None:
    """Whatever the content type says."""
    body = b'{"a":1}'
    assert show(body, way="text", content_type="application/json").text == '{"a":1}'
    assert show(body, way="base64").text == "eyJhIjoxfQ=="
    assert show(body, way="hex").text == '00000000  7b 22 61 22 3a 31 7d                             {"a":1}'  # fmt: skip
    assert show(b"\xff\x00", way="text").text == "\\xff\\x00"
    assert show(b"no", way="json").way == "text"


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress(b"hello", mtime=0), "gzip"),
        (zlib.compress(b"hello"), "deflate"),
        (zlib.compress(b"hello", wbits=-15), "deflate"),
        (gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0), "x-gzip"),
        (zlib.compress(gzip.compress(b"hello", mtime=0)), "gzip, deflate"),
        (b"hello", "utf-8"),
        (b"hello", "identity"),
    ],
)
def test_a_packed_body_is_unpacked(packed: bytes, encoding: str) -> None:
    """As the content encoding says, in every form that goes by its name."""
    assert show(packed, content_encoding=encoding).text == "hello"


@pytest.mark.parametrize(
    ("packed", "encoding", "note"),
    [
        (b"hello", "gzip", "not gzip, as it claims to be"),
        (gzip.compress(b"hello" * 50, mtime=0)[:-12], "gzip", "the packing ends too early"),
        (gzip.compress(b"hello", mtime=0) + b"rest", "gzip", "something else follows"),
        (b"hello", "br", "encoded as br, which is not unpacked"),
        (b"hello", "gzip,gzip,gzip,gzip", "packed 4 times"),
    ],
)
def test_a_broken_packing_is_told(packed: bytes, encoding: str, note: str) -> None:
    """What there is is shown."""
    shown = show(packed, content_encoding=encoding)
    assert any(note in said for said in shown.notes), shown
    assert shown.text


def test_a_bomb_does_not_go_off() -> None:
    """64 MiB in 64 KiB, packed once or twice, cost what one megabyte costs."""
    machine = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    bomb = b"".join(machine.compress(zeros) for _ in range(64)) + machine.flush()
    for body, encoding in ((bomb, "gzip"), (gzip.compress(bomb, mtime=0), "gzip, gzip")):
        shown = show(body, content_encoding=encoding, characters_max=1000)
        assert len(shown.text) <= 1000
        assert f"only the first {BODY_BYTES_MAX:,} bytes are looked at" in shown.notes
    many = gzip.compress(b"", mtime=0) * 20_000
    assert show(many, content_encoding="gzip").text == ""


def test_deep_json_does_not_grow() -> None:
    """Indenting half a million items nine hundred deep would take a gigabyte."""
    body = b"[" * 900 + b",".join([b"1"] * 500_000) + b"]" * 900
    assert len(show(body).text) <= 4_000


def test_nothing_reaches_the_terminal_that_it_obeys() -> None:
    """No escape sequences, no turned text, no hidden characters."""
    assert printable("a\x1b[2J\x07\u202eb\u200b\x9b\r\n\ud800é💡") == "a\\x1b[2J\\x07\\u202eb\\u200b\\x9b\\r\n\\ud800é💡"  # fmt: skip
    shown = show(b'{"a":"\x7f\xc2\x9b31m"}')
    assert (shown.way, shown.text) == ("json", '{\n  "a": "\\x7f\\x9b31m"\n}')
    assert show(b"\x1b]0;owned\x07", content_type="text/plain").text.isprintable()


@given(
    st.binary(max_size=300) | st.text(max_size=200).map(str.encode) | st.binary(max_size=200).map(gzip.compress),
    st.sampled_from([*WAYS, "?"]),
    st.sampled_from(["", "application/json", "text/plain", "text/x; charset=utf-16", "a/b+json"]) | st.text(max_size=30),
    st.sampled_from(["", "gzip", "deflate", "gzip,deflate"]) | st.text(max_size=20),
)  # fmt: skip
def test_no_body_is_too_broken_to_show(body: bytes, way: str, content_type: str, encoding: str) -> None:
    """No bytes and no claims about them raise, or bring a control character through."""
    shown = show(body, way=way, content_type=content_type, content_encoding=encoding, characters_max=500)
    assert len(shown.text) <= 500 * 10  # escapes are longer than what they stand for
    assert all(character in "\n\t" or character.isprintable() for character in shown.text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=20))  # fmt: skip
def test_json_laid_out_is_the_same_json(value: Any) -> None:
    """Only blanks are added, between tokens."""
    body = json.dumps(value)
    shown = show(body.encode(), content_type="application/json", characters_max=10**6)
    assert shown.way == "json"
    assert json.loads(shown.text) == value


# -- protobuf -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A descriptor set with shop.Order {string id = 1; repeated int32 lines = 2;}."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kind = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="id", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    order.field.add(name="lines", number=2, type=kind.TYPE_INT32, label=kind.LABEL_REPEATED)
    path = tmp_path_factory.mktemp("protobuf") / "shop.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return path


def test_protobuf_is_shown_by_its_descriptors(descriptors: Path) -> None:
    """Fields by name; those that are not described by number."""
    order = b"\x0a\x02A7\x12\x02\x01\x02\x1a\x01x"
    shown = show(order, protobuf=Descriptors(descriptors), message_type="shop.Order")
    assert shown.way == "protobuf shop.Order"
    assert shown.text.split("\n")[:3] == ['id: "A7"', "lines: 1", "lines: 2"]
    assert '3: "x"' in shown.text


def test_what_is_not_that_protobuf_is_said(descriptors: Path) -> None:
    """Then the bytes are shown as they look."""
    known = Descriptors(descriptors)
    shown = show(b"\xff\xff\xff", protobuf=known, message_type="shop.Order")
    assert (shown.way, shown.notes) == ("hex", ("not protobuf: it is no shop.Order",))
    assert (
        "no message type 'shop.Nothing'" in show(b"x", protobuf=known, message_type="shop.Nothing").notes[0]
    )
    assert "no message type is set" in show(b"x", way="protobuf", protobuf=known).notes[0]
    assert "no descriptor set is given" in show(b"x", message_type="shop.Order").notes[0]


def test_json_goes_before_the_type_of_the_queue(descriptors: Path) -> None:
    """A queue may carry both: a message that says it is JSON is."""
    shown = show(b"{}", content_type="application/json", protobuf=Descriptors(descriptors), message_type="shop.Order")  # fmt: skip
    assert shown.way == "json"


@given(st.binary(max_size=100))
def test_no_bytes_break_the_protobuf_decoder(descriptors: Path, body: bytes) -> None:
    """They are a message, or they are not."""
    assert show(body, protobuf=Descriptors(descriptors), message_type="shop.Order").text is not None


def test_a_file_that_is_no_descriptor_set(tmp_path: Path) -> None:
    """The error names it and the fix."""
    pytest.importorskip("google.protobuf")
    (tmp_path / "wrong").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ConfigError, match="protoc --include_imports"):
        Descriptors(tmp_path / "wrong")
    with pytest.raises(ConfigError, match="cannot be read"):
        Descriptors(tmp_path / "missing")
