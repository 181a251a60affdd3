"""
Read and change a message's encoded sections, so that what is not ours passes byte for byte.

A message is a row of sections (AMQP 1.0, part 3, section 3.2), each a described value that states its own length. :func:`scan`
and :func:`amend` are total: any bytes give an answer, in linear time and without recursion (what is nested states its length and
is stepped over; descriptors of descriptors are counted), because any user of the broker can write them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from dedup.core.identity import (
    ASK_HEADER,
    ATTEMPT_HEADER,
    FIRST_SENT_HEADER,
    MARK_HEADER,
    PUBLISHER_HEADER,
    PUBLISHER_ID_BYTES_MAX,
    REASON_HEADER,
    RECEIPT_HEADER,
    SEQUENCE_HEADER,
    SEQUENCE_MAX,
    UNREADABLE_HEADER,
)
from proton_adapter import encoding, walk
from proton_adapter.walk import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    PROPERTIES,
    Section,
)

# Places in the lists of header and properties (part 3, sections 3.2.1 and 3.2.4).
_FIRST_ACQUIRER, _DELIVERY_COUNT = 3, 4
_USER_ID, _REPLY_TO, _CORRELATION_ID, _GROUP_ID, _GROUP_SEQUENCE = 1, 4, 5, 10, 11

_STAMP: Final = {
    SEQUENCE_HEADER.encode(): "sequence",
    PUBLISHER_HEADER.encode(): "publisher",
    ATTEMPT_HEADER.encode(): "attempt",
    FIRST_SENT_HEADER.encode(): "first-sent",
}
#: Application properties that only the shim may set.
_RESERVED: Final = frozenset({MARK_HEADER.encode(), REASON_HEADER.encode()})
_ROUTING_KEY, _DEATHS = b"x-routing-key", b"x-opt-deaths"
#: Values of the application properties that the shim adds.
Added = bool | int | str


class Scanned(NamedTuple):
    """
    What a message's sections say that the shim has to know.

    Publisher and sequence are both set, or neither: then the message is unstamped, or *fault* says what is wrong with it.
    """

    #: In order; empty when they cannot be read.
    sections: tuple[Section, ...] = ()
    publisher: str | None = None
    sequence: int | None = None
    attempt: int = 1
    #: When it was sent first, by the publisher's clock; unix milliseconds, 0: it does not say.
    first_sent_ms: int = 0
    #: Why the sections or the stamp cannot be trusted, as a slug: ``sequence-kind``, ``sections-truncated``, ...
    fault: str = ""
    #: It carries what only the shim may set, or a user id, which the broker would compare with the shim's own.
    reserved: bool = False
    #: The group id and group-sequence of a message without a sequence of ours: a habit of JMS.
    group: tuple[str, int] | None = None
    #: The user id: RabbitMQ lets a message in only if it is the publisher's own, or absent.
    user: bytes | None = None
    redelivered: bool = False
    #: The routing key it came to the ingress with.
    routing_key: bytes = b""
    #: The encoded death history; empty: there is none.
    deaths: bytes = b""
    body_bytes: int = 0
    #: It is no message but a question: the value of ``dedup-ask``, and what an answer needs.
    ask: bytes | None = None
    reply_to: bytes = b""
    correlation: bytes = b""
    wants_receipt: bool = False


def scan(raw: bytes) -> Scanned:
    """
    Read the stamp and what else the shim has to know; total.

    A message without a sequence, or without an id, is unstamped whatever else it holds. ``dedup-publisher`` goes before
    ``group-id``.
    """
    try:
        return _scan(raw)
    except walk.Unreadable as error:
        return Scanned(fault=str(error), reserved=True, body_bytes=len(raw))
    except (IndexError, struct.error):
        return Scanned(fault="sections-truncated", reserved=True, body_bytes=len(raw))


def _scan(raw: bytes) -> Scanned:
    sections = tuple(walk.sections(raw))
    places = {section.code: section for section in sections if section.code not in walk.BODY}
    if len(places) < sum(section.code not in walk.BODY for section in sections):
        raise walk.Unreadable("sections-repeated")
    header = walk.fields(raw, places.get(HEADER))
    properties = walk.fields(raw, places.get(PROPERTIES))
    annotations = dict(walk.entries(raw, places.get(ANNOTATIONS), walk.STRINGS + walk.SYMBOLIC))
    found: dict[bytes, int] = {}
    fault = ""
    for name, value in walk.entries(raw, places.get(APPLICATION_PROPERTIES), walk.STRINGS):
        if name in found and name in _STAMP:
            fault = _STAMP[name] + "-repeated"
        found[name] = value
    user = walk.variable(raw, properties, _USER_ID, walk.BINARIES)
    routing_key = annotations.get(_ROUTING_KEY)
    deaths = annotations.get(_DEATHS)
    told = Scanned(
        sections=sections,
        reserved=user is not None or not _RESERVED.isdisjoint(found),
        user=user,
        redelivered=_is_redelivered(raw, header),
        routing_key=b"" if routing_key is None else walk.content(raw, routing_key, walk.STRINGS) or b"",
        deaths=b"" if deaths is None else raw[deaths : walk.after(raw, deaths)],
        body_bytes=sum(_size(raw, section) for section in sections if section.code in walk.BODY),
    )
    group_id = walk.variable(raw, properties, _GROUP_ID, walk.STRINGS)
    if not fault and ASK_HEADER.encode() in found:
        return _question(raw, told, found, properties, group_id)
    if fault or SEQUENCE_HEADER.encode() not in found:
        return told._replace(fault=fault, group=None if fault else _group(raw, properties, group_id))
    return _stamped(raw, told, found, group_id)


def _stamped(raw: bytes, told: Scanned, found: dict[bytes, int], group_id: bytes | None) -> Scanned:
    """
    Add the stamp to what was *told*, or its fault.
    """
    if group_id is None and PUBLISHER_HEADER.encode() not in found:
        return told
    numbers = {"attempt": 1, "first-sent": 0}
    for name, what in _STAMP.items():
        if name in found and what != "publisher":
            value = walk.integer(raw, found[name])
            if value is None:
                return told._replace(fault=f"{what}-kind")
            if not 1 <= value <= SEQUENCE_MAX:
                return told._replace(fault=f"{what}-range")
            numbers[what] = value
    publisher, fault = _publisher(raw, found, group_id)
    if publisher is None:
        return told._replace(fault=fault)
    receipt = found.get(RECEIPT_HEADER.encode())
    return told._replace(
        wants_receipt=receipt is not None and walk.boolean(raw, receipt),
        publisher=publisher,
        sequence=numbers["sequence"],
        attempt=numbers["attempt"],
        first_sent_ms=numbers["first-sent"],
    )


def _question(
    raw: bytes, told: Scanned, found: dict[bytes, int], properties: Sequence[int], group_id: bytes | None
) -> Scanned:
    """
    Add a question to what was *told*, or what is wrong with it.
    """
    if SEQUENCE_HEADER.encode() in found:
        return told._replace(fault="ask-with-sequence")
    ask = walk.content(raw, found[ASK_HEADER.encode()], walk.STRINGS)
    if ask is None:
        return told._replace(fault="ask-kind")
    publisher, fault = _publisher(raw, found, group_id)
    if publisher is None:
        return told._replace(fault=fault)
    return told._replace(
        publisher=publisher,
        ask=ask,
        reply_to=walk.variable(raw, properties, _REPLY_TO, walk.STRINGS) or b"",
        correlation=walk.variable(raw, properties, _CORRELATION_ID, walk.STRINGS + walk.BINARIES) or b"",
    )


def _publisher(raw: bytes, found: dict[bytes, int], group_id: bytes | None) -> tuple[str | None, str]:
    """
    Return the publisher id, or what is wrong with it.
    """
    named = found.get(PUBLISHER_HEADER.encode())
    name = group_id or b"" if named is None else walk.content(raw, named, walk.STRINGS)
    return (None, "publisher-kind") if name is None else _read_publisher(name)


def _group(raw: bytes, properties: Sequence[int], group_id: bytes | None) -> tuple[str, int] | None:
    """
    Return group id and group-sequence; 0 is no number: clients write it for messages that were given none.
    """
    number = walk.integer(raw, properties[_GROUP_SEQUENCE]) if len(properties) > _GROUP_SEQUENCE else None
    name = None if group_id is None else _read_publisher(group_id)[0]
    return (name, number) if name is not None and number else None


def _read_publisher(name: bytes) -> tuple[str | None, str]:
    """
    Read a publisher id as :func:`dedup.core.identity.validate_publisher_id` would, with a slug for an error.
    """
    if not name:
        return None, "publisher-empty"
    if len(name) > PUBLISHER_ID_BYTES_MAX:
        return None, "publisher-long"
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None, "publisher-utf8"
    if any(character < " " or character == "\x7f" for character in text):
        return None, "publisher-control"
    return text, ""


def _size(raw: bytes, section: Section) -> int:
    """
    Return the bytes of a body: what is in a section of data, and whole values otherwise.
    """
    data = walk.content(raw, section.value, walk.BINARIES) if section.code == DATA else None
    return section.end - section.value if data is None else len(data)


def _is_redelivered(raw: bytes, header: Sequence[int]) -> bool:
    """
    Say whether somebody may have had it before; RabbitMQ tells by ``first-acquirer``, whose default is false.
    """
    first = len(header) > _FIRST_ACQUIRER and walk.boolean(raw, header[_FIRST_ACQUIRER])
    count = walk.integer(raw, header[_DELIVERY_COUNT]) if len(header) > _DELIVERY_COUNT else 0
    return not first or bool(count)


def letter(raw: bytes) -> tuple[bytes, bytes]:
    """
    Return the correlation id of a message, if it is text, and its data; each empty where there is none, or it cannot be read.
    """
    try:
        found = tuple(walk.sections(raw))
        properties = walk.fields(raw, next((one for one in found if one.code == PROPERTIES), None))
        correlation = walk.variable(raw, properties, _CORRELATION_ID, walk.STRINGS)
        data = [walk.content(raw, one.value, walk.BINARIES) for one in found if one.code == DATA]
    except (walk.Unreadable, IndexError, struct.error):
        return b"", b""
    return correlation or b"", b"".join(part or b"" for part in data)


# -- changing -------------------------------------------------------------------------------------


def amend(raw: bytes, scanned: Scanned, added: Sequence[tuple[str, Added]] = ()) -> bytes:
    """
    Put *added* into the application properties; take those that only the shim may set, and the user id, out.

    Everything else stays byte for byte. Total: sections that cannot be read become the body of a message of its own, in
    which an application property says so.
    """
    entries, count = _encoded(added)
    if not scanned.sections:
        more = encoding.text(UNREADABLE_HEADER) + encoding.boolean(True)
        return _fresh(entries + more, count + 2) + encoding.section(DATA, encoding.binary(raw))
    parts: list[bytes] = []
    placed = False
    for section in scanned.sections:
        if not placed and section.code >= APPLICATION_PROPERTIES:
            placed = True
            old, old_count = b"", 0
            if section.code == APPLICATION_PROPERTIES:
                old, old_count = _filtered(raw, section, {name.encode() for name, _ in added})
            if entries or old:
                value = encoding.compound_map(entries + old, count + old_count)
                parts.append(encoding.section(APPLICATION_PROPERTIES, value))
            if section.code == APPLICATION_PROPERTIES:
                continue
        if section.code == PROPERTIES and scanned.user is not None:
            parts.append(_without_user(raw, section))
        else:
            parts.append(raw[section.start : section.end])
    if not placed and entries:
        parts.append(encoding.section(APPLICATION_PROPERTIES, encoding.compound_map(entries, count)))
    return b"".join(parts)


def strip(raw: bytes, scanned: Scanned, added: Sequence[tuple[str, Added]] = ()) -> bytes:
    """
    Return the body alone, durable, with *added* as its application properties: the broker refused what else there was.
    """
    if not scanned.sections:
        return amend(raw, scanned, added)
    return _fresh(*_encoded(added)) + body(raw, scanned)


def body(raw: bytes, scanned: Scanned) -> bytes:
    """
    Return the sections of the body, or everything when they cannot be told apart.
    """
    if not scanned.sections:
        return raw
    return b"".join(
        raw[section.start : section.end] for section in scanned.sections if section.code in walk.BODY
    )


def _fresh(entries: bytes, count: int) -> bytes:
    header = encoding.section(HEADER, encoding.compound_list(encoding.boolean(True), 1))
    return header + encoding.section(APPLICATION_PROPERTIES, encoding.compound_map(entries, count))


def _encoded(added: Sequence[tuple[str, Added]]) -> tuple[bytes, int]:
    parts = []
    for name, value in added:
        parts += [
            encoding.text(name),
            _value(value),
        ]
    return b"".join(parts), len(parts)


def _value(value: Added) -> bytes:
    if isinstance(value, bool):
        return encoding.boolean(value)
    return encoding.long(value) if isinstance(value, int) else encoding.text(value)


def _filtered(raw: bytes, section: Section, replaced: set[bytes]) -> tuple[bytes, int]:
    """
    Return the entries of the application properties that stay, as they are, and how many keys and values they are.
    """
    gone = _RESERVED | replaced
    kept, count, key = [], 0, walk.items(raw, section.value)[0]
    for name, value in walk.entries(raw, section, walk.STRINGS):
        end = walk.after(raw, value)
        if name not in gone:
            kept.append(raw[key:end])
            count += 2
        key = end
    return b"".join(kept), count


def _without_user(raw: bytes, section: Section) -> bytes:
    at, end, count = walk.items(raw, section.value)
    user = walk.after(raw, at)
    rest = raw[at:user] + encoding.NULL + raw[walk.after(raw, user) : end]
    return encoding.section(PROPERTIES, encoding.compound_list(rest, count))
