"""Write the relay's state as the fields of one Redis hash, and read it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dedup.core.identity import SEQUENCE_MAX, validate_publisher_id
from dedup.core.publishers import Entry
from dedup.core.records import (
    Position,
    State,
    decode_batch,
    decode_belief,
    decode_doubt,
    encode_batch,
    encode_belief,
    encode_doubt,
    position_from,
)
from dedup.core.steps import Save
from dedup.core.window import Window
from dedup.errors import DedupError, StateFormatError

#: Version of this layout; another one is refused, never guessed.
FORMAT = "1"
#: Publishers have fields of their own; the prefix keeps any id apart from the fields below.
PUBLISHER_PREFIX = "publisher:"
#: A bitmap in hexadecimal is never longer than the largest window needs.
_MISSING_DIGITS_MAX = 1 << 20


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
    for name, entry in save.changes.entries.items():
        fields[PUBLISHER_PREFIX + name] = encode_entry(entry)
    return [PUBLISHER_PREFIX + name for name in save.changes.evicted], fields


def state_fields(state: State) -> dict[str, str | bytes]:
    """
    Return every field of *state*; token and revision are the store's own.
    """
    fields: dict[str, str | bytes] = {
        "format": FORMAT,
        "batch": str(state.batch),
        "writer": str(state.writer),
        "intent": encode_batch(state.intent),
        "doubt": encode_doubt(state.doubt),
        "believed": encode_belief(state.believed),
        "clean": str(int(state.clean)),
        "unknown_uncertain_until_s": repr(state.unknown_uncertain_until_s),
        "logged": encode_position(state.logged),
    }
    for name, entry in state.entries.items():
        fields[PUBLISHER_PREFIX + name] = encode_entry(entry)
    return fields


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
        )
    except StateFormatError:
        raise
    except (KeyError, ValueError, DedupError) as error:
        raise StateFormatError(f"the state in Redis is damaged ({error!r}); move the key away") from error


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
    last, start, missing, uncertain_to, seen_s = data.decode("ascii").split(" ")
    if len(missing) > _MISSING_DIGITS_MAX:
        raise ValueError("a bitmap longer than any window")
    window = Window(int(last), int(start), int(missing, 16), int(uncertain_to))
    if not (1 <= window.last <= SEQUENCE_MAX and 1 <= window.start <= window.last and window.missing >= 0):
        raise ValueError(f"no window: {data!r}")
    return Entry(window, float(seen_s))


def _entries(fields: Mapping[bytes, bytes]) -> Iterator[tuple[str, Entry]]:
    prefix = PUBLISHER_PREFIX.encode()
    for name, value in fields.items():
        if name.startswith(prefix):
            yield validate_publisher_id(name[len(prefix) :].decode("utf-8")), decode_entry(value)
