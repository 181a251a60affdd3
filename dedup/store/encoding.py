"""Write the relay's state as the fields of one Redis hash, and read it back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain

from dedup.core.bodies import CHUNK_BYTES
from dedup.core.identity import SEQUENCE_MAX, validate_publisher_id
from dedup.core.message_ids import is_message_key, validate_name
from dedup.core.publishers import Entry, forwarded
from dedup.core.records import (
    Position,
    State,
    decode_batch,
    decode_belief,
    decode_doubt,
    encode_batch,
    encode_belief,
    encode_doubt,
    natural,
    position_from,
)
from dedup.core.steps import Save
from dedup.core.window import WINDOW_SIZE_MAX, Window
from dedup.errors import DedupError, StateFormatError

#: Version of this layout; another one is refused, never guessed.
FORMAT = "1"
#: Publishers have fields of their own; the prefix keeps any id apart from the fields below.
PUBLISHER_PREFIX = "publisher:"
#: Of the keys of the message ids that were forwarded with one batch: then its number.
FORWARDED_PREFIX = "forwarded:"
#: Of the digests of the bodies of one publisher: then the number of the chunk, a colon and the publisher id.
BODIES_PREFIX = "bodies:"
#: Between keys: no key has it.
_KEYS_APART = "\n"
#: A bitmap in hexadecimal is never longer than the largest window needs.
_MISSING_DIGITS_MAX = WINDOW_SIZE_MAX // 4


def save_fields(save: Save) -> tuple[list[str], dict[str, str | bytes]]:
    """
    Return the fields to delete and the fields to set for *save*.
    """
    fields: dict[str, str | bytes] = {
        "batch": str(save.batch),
        "writer": str(save.token),
        "intent": encode_batch(save.intent),
        "clean": str(int(save.clean)),
        "logged": encode_position(save.logged),
    }
    if save.doubt is not None:
        fields["doubt"] = encode_doubt(save.doubt)
    if save.proven:
        fields["believed"] = b""
    fields.update(_entry_fields(save.changes.entries))
    deleted = [PUBLISHER_PREFIX + name for name in save.changes.evicted]
    deleted += [f"{FORWARDED_PREFIX}{batch}" for batch in save.changes.forgotten]
    for place, digests in save.changes.bodies.items():
        if digests:
            fields[_bodies_field(place)] = digests
        else:
            deleted.append(_bodies_field(place))
    return deleted, fields


def state_fields(state: State) -> Iterator[tuple[str, str | bytes]]:
    """
    Yield every field of *state* with its value, one at a time as there may be many; token and revision are the store's own.
    """
    head: dict[str, str | bytes] = {
        "format": FORMAT,
        "batch": str(state.batch),
        "writer": str(state.writer),
        "intent": encode_batch(state.intent),
        "doubt": encode_doubt(state.doubt),
        "believed": encode_belief(state.believed),
        "clean": str(int(state.clean)),
        "unknown_uncertain_until_s": repr(state.unknown_uncertain_until_s),
        "logged": encode_position(state.logged),
        "message_ids_uncertain_until_s": repr(state.message_ids_uncertain_until_s),
    }
    yield from head.items()
    yield from _entry_fields(state.entries)
    for place, digests in state.bodies.items():
        yield _bodies_field(place), digests


def state_from(fields: Mapping[bytes, bytes]) -> State | None:
    """
    Return the state in *fields*; None when there is none yet, only a token.

    Raises:
        StateFormatError: another version wrote it, or it is damaged.
    """
    version = fields.get(b"format")
    if version is None:
        if any(name.startswith(PUBLISHER_PREFIX.encode()) for name in fields):
            raise StateFormatError(
                "the state in Redis has publishers and no format: it is damaged; move the key away"
            )
        return None
    if version != FORMAT.encode():
        raise StateFormatError(
            f"the state in Redis has format {version.decode('ascii', 'replace')!r}, this version reads {FORMAT!r}; "
            "run the version that wrote it, or move the key away"
        )
    try:
        return State(
            batch=int(fields[b"batch"]),
            writer=int(fields[b"writer"]),
            entries=dict(_entries(fields)),
            intent=decode_batch(fields[b"intent"]),
            doubt=decode_doubt(fields[b"doubt"]),
            believed=decode_belief(fields[b"believed"]),
            clean=fields[b"clean"] == b"1",
            unknown_uncertain_until_s=float(fields[b"unknown_uncertain_until_s"]),
            logged=position_from(map(int, fields[b"logged"].split())),
            # A state of before there were any has none.
            message_ids_uncertain_until_s=float(fields.get(b"message_ids_uncertain_until_s", b"0")),
            bodies=dict(_bodies(fields)),
        )
    except StateFormatError:
        raise
    except (KeyError, ValueError, DedupError) as error:
        raise StateFormatError(f"the state in Redis is damaged ({error!r}); move the key away") from error


def pack(fields: Iterable[tuple[str, str | bytes]]) -> tuple[bytes, bytes]:
    """
    Return *fields* for a script in two arguments: the length of each name and value in turn, and all of them in one piece.
    """
    return _packed(part for pair in fields for part in pair)


def pack_save(save: Save) -> tuple[int, bytes, bytes]:
    """
    Return *save* for a script in three arguments: how many names of fields to delete come first, then as pack() does.
    """
    deleted, fields = save_fields(save)
    return len(deleted), *_packed(chain(deleted, chain.from_iterable(fields.items())))


def unpack(lengths: bytes, joined: bytes) -> dict[bytes, bytes]:
    """
    Return what pack() packed.
    """
    begin = 0
    ends = accumulate(map(int, lengths.split()))
    parts = (joined[begin : (begin := end)] for end in ends)
    return dict(zip(parts, parts, strict=True))


def encode_position(position: Position) -> str:
    """
    Return a row of the audit: token, offset.
    """
    return f"{position.token} {position.offset}"


def encode_entry(entry: Entry) -> str:
    """
    Return one publisher: last, start, missing (hexadecimal), uncertain to, seen (unix seconds).
    """
    window = entry.window
    return f"{window.last} {window.start} {window.missing:x} {window.uncertain_to} {entry.seen_s:.3f}"


def decode_entry(data: bytes) -> Entry:
    """
    Return the publisher that encode_entry wrote.

    Raises:
        ValueError: the bytes are something else.
    """
    last, start, missing, uncertain_to, seen_s = data.split(b" ")
    if len(missing) > _MISSING_DIGITS_MAX:
        raise ValueError("a bitmap longer than any window")
    window = Window(int(last), int(start), int(missing, 16), int(uncertain_to))
    if not (1 <= window.last <= SEQUENCE_MAX and 1 <= window.start <= window.last and window.missing >= 0):
        raise ValueError(f"no window: {data!r}")
    return Entry(window, float(seen_s))


def _bodies_field(place: tuple[str, int]) -> str:
    publisher, number = place
    return f"{BODIES_PREFIX}{number}:{publisher}"


def _entry_fields(entries: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
    """
    Yield the field and value of each publisher, and of the message ids of each batch.
    """
    batches: dict[int, list[str]] = {}
    for name, entry in entries.items():
        if not is_message_key(name):
            yield PUBLISHER_PREFIX + name, encode_entry(entry)
        elif (keys := batches.get(entry.batch)) is not None:
            keys.append(name)
        else:
            # In whole seconds that forget none early.
            batches[entry.batch] = [str(math.ceil(entry.seen_s)), name]
    for batch, keys in batches.items():
        yield f"{FORWARDED_PREFIX}{batch}", _KEYS_APART.join(keys)


def _packed(parts: Iterable[str | bytes]) -> tuple[bytes, bytes]:
    encoded = [part if isinstance(part, bytes) else part.encode() for part in parts]
    return " ".join([str(len(part)) for part in encoded]).encode(), b"".join(encoded)


def _entries(fields: Mapping[bytes, bytes]) -> Iterator[tuple[str, Entry]]:
    publisher, together = PUBLISHER_PREFIX.encode(), FORWARDED_PREFIX.encode()
    batches: list[tuple[int, bytes]] = []
    for name, value in fields.items():
        if name.startswith(publisher):
            yield validate_publisher_id(name[len(publisher) :].decode("utf-8")), decode_entry(value)
        elif name.startswith(together):
            batches.append((natural(int(name[len(together) :])), value))
    # A key that was forwarded anew after its time stands with both batches: the newer one counts.
    for batch, value in sorted(batches):
        at_s, *keys = value.decode("utf-8").split(_KEYS_APART)
        entry = forwarded(float(int(at_s)), batch)
        for key in keys:
            if not is_message_key(key):
                raise ValueError(f"no key of a message id: {key!r}")
            yield validate_name(key), entry


def _bodies(fields: Mapping[bytes, bytes]) -> Iterator[tuple[tuple[str, int], bytes]]:
    prefix = BODIES_PREFIX.encode()
    for name, value in fields.items():
        if name.startswith(prefix):
            number, _, publisher = name[len(prefix) :].partition(b":")
            if len(value) != CHUNK_BYTES:
                raise ValueError(f"{len(value)} bytes of digests")
            yield (validate_publisher_id(publisher.decode("utf-8")), int(number)), value
