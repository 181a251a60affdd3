"""
Show a body to a person: as JSON, text, hex, base64, or protobuf; bounded, and safe for a terminal.

Nothing in a body is trusted. What is unpacked and what is shown has limits, a decoder that fails leaves the bytes to the
next one, and no character reaches the terminal that could move its cursor or turn text around.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
import zlib
from typing import Final, Protocol

from attrs import frozen

#: Bytes of a body that are looked at, after unpacking too.
BODY_BYTES_MAX: Final = 1 << 20
#: Characters that are shown unless more are asked for.
CHARACTERS_MAX: Final = 4_000
#: Encodings in each other, as "gzip, deflate".
_LAYERS_MAX: Final = 3
#: Parts that one gzip body may have.
_PARTS_MAX: Final = 64
#: Deeper ones of JSON are not indented any further.
_INDENTED_MAX: Final = 32
_HEX_LINE: Final = 16
_BASE64_LINE: Final = 76
#: Texts are decoded as one of these; the rest of Python's codecs are not for strangers.
_CHARSETS: Final = frozenset({"ascii", "utf-8", "utf-16", "utf-32", "iso8859-1", "iso8859-15", "cp1252"})
_CHARSET: Final = re.compile(r"""charset\s*=\s*"?([\w.:-]+)""", re.IGNORECASE)
_KEPT: Final = frozenset("\n\t")

WAYS: Final = ("auto", "json", "text", "hex", "base64", "protobuf")


class Protobuf(Protocol):
    """
    What turns protobuf into text.
    """

    def text(self, name: str, body: bytes) -> str:
        """
        Return the message of type *name* as text; ValueError when it is none.
        """


@frozen
class Shown:
    """
    A body as a person sees it.
    """

    #: Bounded, and without characters that a terminal would obey.
    text: str
    #: "json", "text", "hex", "base64" or "protobuf NAME".
    way: str
    #: What was done or could not be done on the way: unpacked, cut, not what it claims to be.
    notes: tuple[str, ...] = ()


def show(
    body: bytes,
    *,
    way: str = "auto",
    content_type: str = "",
    content_encoding: str = "",
    characters_max: int = CHARACTERS_MAX,
    protobuf: Protobuf | None = None,
    message_type: str | None = None,
) -> Shown:
    """
    Show *body*; never raises.

    Args:
        way: One of :data:`WAYS`; auto goes by the content type, then by what the bytes look like.
        content_encoding: gzip and deflate are unpacked; whatever else stays as it is.
        message_type: Of protobuf, when the body is that.
    """
    notes: list[str] = []
    data = _unpacked(body, content_encoding, notes)
    if len(data) > BODY_BYTES_MAX:
        data = data[:BODY_BYTES_MAX]
        notes.append(f"only the first {BODY_BYTES_MAX:,} bytes are looked at")
    text, used = _decoded(
        data,
        way,
        content_type=content_type,
        protobuf=protobuf,
        message_type=message_type,
        characters_max=characters_max,
        notes=notes,
    )
    if len(text) > characters_max:
        text = text[:characters_max]
        notes.append(f"cut after {characters_max:,} characters")
    return Shown(printable(text), used, tuple(printable(note) for note in notes))


def printable(text: str) -> str:
    r"""
    Escape whatever a terminal might obey or a reader could not see, as ``\x1b`` or ``\u202e``; line ends and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in _KEPT or character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def _decoded(
    data: bytes,
    way: str,
    *,
    content_type: str,
    protobuf: Protobuf | None,
    message_type: str | None,
    characters_max: int,
    notes: list[str],
) -> tuple[str, str]:
    """
    Return the text and how it was made; the last resort is hex.
    """
    for candidate in _candidates(way, content_type, message_type):
        try:
            if candidate == "json":
                return _json(data, content_type, characters_max), "json"
            if candidate == "protobuf":
                return _protobuf(data, protobuf, message_type)
            if candidate == "text":
                return _text(data, content_type, strict=way == "auto"), "text"
        except ValueError as error:
            # By itself, "looks like JSON" that is none needs no word.
            if way == candidate or candidate in content_type or candidate == "protobuf":
                notes.append(f"not {candidate}: {error}")
            continue
        break
    if way == "base64":
        return _base64(data, characters_max), "base64"
    return _hex(data, characters_max), "hex"


def _candidates(way: str, content_type: str, message_type: str | None) -> tuple[str, ...]:
    if way in ("hex", "base64"):
        return (way,)
    if way != "auto":
        return (way, "text") if way == "json" else (way,)
    kind = content_type.partition(";")[0].strip().lower()
    if message_type is not None and not kind.endswith("json") and not kind.startswith("text/"):
        return ("protobuf", "text")
    return ("text",) if kind.startswith("text/") else ("json", "text")


# -- unpacking ------------------------------------------------------------------------------------


def _unpacked(body: bytes, content_encoding: str, notes: list[str]) -> bytes:
    """
    Return what is in the packing, so much at the most; the body itself where it cannot be unpacked.
    """
    layers = [layer.strip().lower() for layer in content_encoding.split(",") if layer.strip()]
    if len(layers) > _LAYERS_MAX:
        notes.append(f"packed {len(layers)} times: left as it is")
        return body
    for layer in reversed(layers):
        if layer in ("gzip", "x-gzip", "deflate"):
            try:
                body = _inflated(body, notes)
            except zlib.error:
                notes.append(f"not {layer}, as it claims to be")
                return body
            notes.append(f"unpacked from {layer}")
        elif layer not in ("identity", "utf-8", "utf8"):  # clients do put a charset here
            notes.append(f"encoded as {layer}, which is not unpacked")
            return body
    return body


def _inflated(body: bytes, notes: list[str]) -> bytes:
    """
    Inflate gzip, zlib, or deflate without a head; never more than one byte over the limit.
    """
    try:
        return _inflated_as(zlib.MAX_WBITS | 32, body, notes)
    except zlib.error:
        return _inflated_as(-zlib.MAX_WBITS, body, notes)


def _inflated_as(wbits: int, body: bytes, notes: list[str]) -> bytes:
    data = b""
    for _ in range(_PARTS_MAX):
        if not body or len(data) > BODY_BYTES_MAX:
            break
        machine = zlib.decompressobj(wbits)
        try:
            data += machine.decompress(body, BODY_BYTES_MAX + 1 - len(data))
        except zlib.error:
            if not data:
                raise
            notes.append("something else follows what was packed")
            return data
        if not machine.eof:
            if len(data) <= BODY_BYTES_MAX:
                notes.append("the packing ends too early")
            break
        body = machine.unused_data  # gzip may hold several parts
    return data


# -- ways to show ---------------------------------------------------------------------------------


def _json(data: bytes, content_type: str, characters_max: int) -> str:
    """
    Lay JSON out, every name, number and text as it is written; ValueError when it is none.
    """
    text = _text(data, content_type, strict=True)
    if not text.strip():
        raise ValueError("it is empty")
    try:
        json.loads(text, parse_constant=_refuse, parse_int=len, parse_float=len)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _laid_out(text, characters_max)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_JSON_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def _laid_out(text: str, characters_max: int) -> str:
    """
    Put valid JSON on lines, indented, until there are enough; a parser would lose repeated names and digits of numbers.
    """
    pieces: list[str] = []
    size = depth = 0
    before = ""
    for found in _JSON_WORD.finditer(text):
        word = found[0]
        closes = word in ("]", "}")
        depth -= closes
        empty = closes and before in ("[", "{")
        if not empty and (closes or before in ("[", "{", ",")):
            pieces.append("\n" + "  " * min(depth, _INDENTED_MAX))
        pieces.append(": " if word == ":" else word)
        size += len(pieces[-1])
        if size > characters_max:
            break
        depth += word in ("[", "{")
        before = word
    return "".join(pieces)


def _text(data: bytes, content_type: str, *, strict: bool) -> str:
    """
    Decode as the content type says, or UTF-8; with *strict* a ValueError when it is rather not text.
    """
    named = _CHARSET.search(content_type)
    charset = "utf-8"
    if named:
        try:
            charset = codecs.lookup(named[1]).name
        except LookupError:
            raise ValueError(f"there is no charset {named[1]!r}") from None
        if charset not in _CHARSETS:
            raise ValueError(f"charset {named[1]!r} is not decoded")
    text = data.decode(charset, "strict" if strict else "backslashreplace")
    if strict and any(character < " " and character not in "\t\n\r\x1b" for character in text):
        raise ValueError("it holds control characters")
    return text.removeprefix("\ufeff")


def _hex(data: bytes, characters_max: int) -> str:
    """
    Show offset, bytes and characters, sixteen a line.
    """
    lines = []
    for at in range(0, min(len(data), characters_max), _HEX_LINE):
        line = data[at : at + _HEX_LINE]
        seen = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        lines.append(f"{at:08x}  {line.hex(' '):<{_HEX_LINE * 3 - 1}}  {seen}")
    return "\n".join(lines)


def _base64(data: bytes, characters_max: int) -> str:
    encoded = base64.b64encode(data[:characters_max]).decode("ascii")
    return "\n".join(encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE))


def _protobuf(data: bytes, protobuf: Protobuf | None, message_type: str | None) -> tuple[str, str]:
    if message_type is None:
        raise ValueError("no message type is set for it (protobuf_types)")
    if protobuf is None:
        raise ValueError("no descriptor set is given (protobuf_descriptors)")
    return protobuf.text(message_type, data), f"protobuf {message_type}"
