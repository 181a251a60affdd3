"""
Read and amend hostile properties by the million: ``python -m tests.hostile.fuzz --count 1000000 --seed 1``.

Every table is held against a second reader, written here for clarity and not for speed, and against pika's decoder where
that takes it. Exits with 1 and the failing index at the first property that does not hold.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections import Counter
from typing import Any, Final, SupportsIndex, overload

import pika
from attrs import define, field

from dedup.amqp091.properties import DELIVERY_MODE, SHIM_HEADERS, USER_ID, Stamp, amend, scan
from dedup.core.identity import SEQUENCE_MAX, UNREADABLE_HEADER, validate_publisher_id
from tests.hostile.mutator import hostile

#: Every refusal that is documented.
FAULTS: Final = frozenset(
    {
        f"{what}-{how}"
        for what in ("sequence", "attempt", "first-sent")
        for how in ("kind", "range", "repeated")
    }
    | {f"publisher-{how}" for how in ("kind", "repeated", "empty", "long", "utf8", "control")}
    | {f"headers-{how}" for how in ("kind", "truncated")}
    | {f"properties-{how}" for how in ("truncated", "trailing", "flags")}
    | {f"ask-{how}" for how in ("kind", "with-sequence")}
)
#: One in this many tables is read through a counter of its bytes.
_COUNTED_EVERY: Final = 16
#: Bytes looked at for one byte there is, and beside that: reads twice, amends twice.
_LOOKS_PER_BYTE, _LOOKS_MORE = 4, 80
#: Bytes that amending may add: the reason, the header of what cannot be read, a delivery mode.
_GROWTH_MAX: Final = 80
_REASON: Final = [("dedup-reason", "x")]
_SIZES: Final = {
    kind: size
    for kinds, size in (("V", 0), ("tbB", 1), ("suU", 2), ("Iif", 4), ("D", 5), ("lLdT", 8))
    for kind in kinds
}


class HostileError(AssertionError):
    """What a table does that it must not."""


@define
class Reader:
    """The second reader: takes bytes from the front, and says when there are too few."""

    raw: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        if self.at + size > len(self.raw):
            raise EOFError
        self.at += size
        return self.raw[self.at - size : self.at]

    def short(self) -> bytes:
        """Return a short string, its length first."""
        return (size := self.take(1)) + self.take(size[0])

    def long(self) -> bytes:
        """Return what follows a length of four bytes, length first."""
        return (size := self.take(4)) + self.take(int.from_bytes(size, "big"))

    def value(self) -> bytes:
        """Return a field value, its kind first; LookupError: no kind."""
        kind = self.take(1)
        if kind in b"SxAF":
            return kind + self.long()
        return kind + self.take(_SIZES[kind.decode("latin-1")])


@define
class Listed:
    """What the second reader finds."""

    #: Encoded properties by flag, without the headers.
    others: dict[int, bytes] = field(factory=dict)
    #: Name and value of each header, encoded, as far as the table can be read.
    entries: list[tuple[bytes, bytes]] = field(factory=list)
    #: What cannot be read: the end of the table, and what follows the list.
    unreadable: bytes = b""
    #: The list can be read to its end.
    whole: bool = True


def listed(raw: bytes) -> Listed:
    """
    Read a property list.

    A table that claims more than there is takes all that is left; any other list that ends too early is unreadable as
    a whole. Of both nobody knows the delivery mode: they are persistent.
    """
    reader, found = Reader(raw), Listed()
    try:
        flags = int.from_bytes(reader.take(2), "big")
        for bit in range(15, 1, -1):
            if not flags >> bit & 1:
                continue
            if bit == 13:
                size = int.from_bytes(reader.take(4), "big")
                found.whole = reader.at + size <= len(raw)
                found.entries, found.unreadable = entries(raw[reader.at : reader.at + size])
                if not found.whole:
                    found.others[DELIVERY_MODE] = b"\x02"
                    return found
                reader.take(size)
            elif bit in (12, 11, 6):
                found.others[1 << bit] = reader.take({12: 1, 11: 1, 6: 8}[bit])
            else:
                found.others[1 << bit] = reader.short()
    except EOFError:
        return Listed({DELIVERY_MODE: b"\x02"}, [], raw, whole=False)
    found.unreadable += raw[reader.at :]
    return found


def entries(table: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers of *table*, and what is left from where it cannot be read."""
    reader, found = Reader(table), list[tuple[bytes, bytes]]()
    good = 0
    try:
        while reader.at < len(table):
            found.append((reader.short()[1:], reader.value()))
            good = reader.at
    except (EOFError, LookupError):
        del found[sum(len(name) + 1 + len(value) <= good for name, value in found) :]
    return found, table[good:]


def sound(value: bytes) -> bool:
    """Say whether what is nested in a value fills its container and does not reach beyond."""
    waiting = [value]
    while waiting:
        kind, content = waiting[-1][:1], waiting.pop()[5:]
        if kind == b"F":
            found, rest = entries(content)
            if rest:
                return False
            waiting += [inner for _, inner in found]
        elif kind == b"A":
            reader = Reader(content)
            try:
                while reader.at < len(content):
                    waiting.append(reader.value())
            except (EOFError, LookupError):
                return False
    return True


class Counted(bytes):
    """Bytes that count how often one of them is looked at."""

    looks = 0

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes: ...
    def __getitem__(self, key: Any) -> Any:
        """Count, and hand on; what is cut out counts too."""
        Counted.looks += 1
        found = super().__getitem__(key)
        return Counted(found) if isinstance(found, bytes) else found


@define
class Tally:
    """What a run has met, for people and for the test that it met everything."""

    tables: int = 0
    faults: Counter[str] = field(factory=Counter)
    stamped: int = 0
    unstamped: int = 0
    reserved: int = 0
    by_pika: int = 0
    bytes_max: int = 0
    looks_per_byte_max: float = 0.0


def check(raw: bytes, tally: Tally, *, counted: bool = False) -> None:
    """
    Hold everything that is promised about any *raw* properties.

    Raises:
        HostileError: something does not hold; any other exception is one the codec must not raise.
    """
    stamp, amended = scan(raw), amend(raw, headers=_REASON)
    tally.tables += 1
    tally.bytes_max = max(tally.bytes_max, len(raw))
    tally.reserved += stamp.reserved
    tally.faults[stamp.fault or ""] += 1
    tally.stamped += stamp.sequence is not None
    tally.unstamped += stamp.fault is None and stamp.sequence is None
    _check_stamp(raw, stamp)
    _check_amended(raw, stamp, amended)
    _check_bytes_stay(raw, amended)
    if counted:
        _check_work(raw, tally)
    _check_against_pika(raw, stamp, amended, tally)


def _check_stamp(raw: bytes, stamp: Stamp) -> None:
    _hold(stamp.fault is None or stamp.fault in FAULTS, f"undocumented fault {stamp.fault}")
    asked = stamp.ask is not None
    _hold((stamp.publisher is None) == (stamp.sequence is None and not asked), "half a stamp")
    _hold(not asked or (stamp.sequence is None and stamp.fault is None), "a question and a stamp, or a fault")
    _hold(stamp.fault is None or stamp.sequence is None, "a fault and a stamp")
    if stamp.publisher is not None and stamp.sequence is not None:
        validate_publisher_id(stamp.publisher)
        _hold(1 <= stamp.sequence <= SEQUENCE_MAX, f"sequence {stamp.sequence}")
        _hold(1 <= stamp.attempt <= SEQUENCE_MAX, f"attempt {stamp.attempt}")
    if stamp.deaths is not None:
        deaths = raw[stamp.deaths]
        _hold(
            len(deaths) == stamp.deaths.stop - stamp.deaths.start or stamp.fault is not None,
            "deaths beyond the end",
        )


def _check_amended(raw: bytes, before: Stamp, amended: bytes) -> None:
    """Amended properties can be read to their end, say the same, and are not changed by amending them again."""
    after = scan(amended)
    _hold(
        (after.fault or "").split("-")[0] not in ("properties", "headers"),
        f"unreadable once amended: {after.fault}",
    )
    _hold(amend(amended, headers=_REASON) == amended, "amending again changes something")
    _hold(
        amend(amended, headers=_REASON, drop=frozenset(), drop_user_id=False) == amended,
        "a header that was put in moves",
    )
    _hold(len(amended) <= len(raw) + _GROWTH_MAX, f"grew from {len(raw)} to {len(amended)} bytes")
    plain = scan(amend(raw))
    _hold(not plain.reserved, "something reserved is left")
    if before.fault is None:
        same = (before.publisher, before.sequence, before.attempt)
        _hold((after.publisher, after.sequence, after.attempt) == same, "the stamp changed")
        _hold(
            (plain.publisher, plain.sequence, plain.attempt, plain.fault) == (*same, None),
            "the stamp changed",
        )


def _check_bytes_stay(raw: bytes, amended: bytes) -> None:
    """What the second reader finds in the properties is in the amended ones, byte for byte and in order."""
    found, after = listed(raw), listed(amended)
    _hold(after.whole and not after.unreadable, "amended properties have loose ends")
    expected = [(b"dedup-reason", b"S\x00\x00\x00\x01x")]
    if found.unreadable:
        content = struct.pack(">I", len(found.unreadable)) + found.unreadable
        expected.append((UNREADABLE_HEADER.encode(), b"x" + content))
    gone = {name.encode() for name in SHIM_HEADERS}
    expected += [entry for entry in found.entries if entry[0] not in gone]
    _hold(after.entries == expected, "headers differ")
    others = {flag: value for flag, value in found.others.items() if flag != USER_ID}
    _hold(after.others == others, "other properties differ")
    if found.whole and not found.unreadable and not raw[1] & 3:
        _hold(amend(raw, drop=frozenset(), drop_user_id=False) == raw, "amending nothing changes something")


def _check_work(raw: bytes, tally: Tally) -> None:
    """The bytes that are looked at are a small multiple of those there are, whatever they say."""
    Counted.looks = 0
    scan(Counted(raw))
    amend(Counted(raw), headers=_REASON)
    looks = Counted.looks
    tally.looks_per_byte_max = max(tally.looks_per_byte_max, looks / max(64, len(raw)))
    _hold(looks <= _LOOKS_PER_BYTE * len(raw) + _LOOKS_MORE, f"{looks} looks at {len(raw)} bytes")


def _check_against_pika(raw: bytes, stamp: Stamp, amended: bytes, tally: Tally) -> None:
    """Where pika can decode, it finds the same stamp before, and the same of everything else after."""
    found = listed(raw)
    names = [name for name, _ in found.entries]
    if not found.whole or found.unreadable or len({*names}) < len(names):
        return  # pika reads on where a list has ended, and keeps one of two headers of the same name
    if raw[1] & 1:
        return  # pika takes what follows for more flags; RabbitMQ and amend read on as if it were not set
    if not all(sound(value) for _, value in found.entries):
        return  # pika lets what is nested reach beyond its container, and takes that from what follows
    try:
        before, after = (pika.BasicProperties().decode(data) for data in (raw, amended))
    except Exception:  # noqa: BLE001 - which one depends on the bytes, and that pika raises is why there is a codec
        return
    tally.by_pika += 1
    headers = before.headers or {}
    if stamp.sequence is not None:
        named = headers.get("dedup-publisher", before.app_id)
        _hold(
            (stamp.publisher, stamp.sequence) == (named, headers["dedup-sequence"]),
            "pika finds another stamp",
        )
        _hold(stamp.attempt == headers.get("dedup-attempt", 1), "pika finds another attempt")
        _hold(stamp.first_sent_ms == headers.get("dedup-first-sent", 0), "pika finds another time")
        _hold(stamp.wants_receipt == (headers.get("dedup-receipt") is True), "pika finds another wish")
    elif stamp.ask is not None:
        named = headers.get("dedup-publisher", before.app_id)
        asked_for = headers["dedup-ask"]
        said = asked_for.encode() if isinstance(asked_for, str) else asked_for
        _hold((stamp.publisher, stamp.ask) == (named, said), "pika finds another question")
    elif stamp.fault is None:
        unstamped = "dedup-sequence" not in headers or (
            "dedup-publisher" not in headers and before.app_id is None
        )
        _hold(unstamped, "pika finds a stamp")
    kept = {name: value for name, value in headers.items() if name not in SHIM_HEADERS}
    _hold(repr(after.headers) == repr({"dedup-reason": "x"} | kept), "pika finds other headers once amended")
    before.headers = after.headers
    before.user_id = None
    _hold(repr(vars(before)) == repr(vars(after)), "pika finds other properties once amended")


def _hold(condition: bool, what: str) -> None:
    if not condition:
        raise HostileError(what)


def run(count: int, seed: int, *, first: int = 0, progress_every: int = 0) -> Tally:
    """
    Check *count* tables of *seed* from index *first* on.

    Raises:
        HostileError: one of them; the message names its index.
    """
    tally = Tally()
    began = time.monotonic()
    for index in range(first, first + count):
        raw = hostile(seed, index)
        try:
            check(raw, tally, counted=index % _COUNTED_EVERY == 0)
        except Exception as error:
            shown = raw if len(raw) < 400 else raw[:400] + b"..."
            raise HostileError(f"--seed {seed} --first {index} --count 1: {error!r}; {shown!r}") from error
        if progress_every and not (index + 1 - first) % progress_every:
            done = index + 1 - first
            print(f"{done:>9,} of {count:,}  {done / (time.monotonic() - began):,.0f}/s", flush=True)
    return tally


def main() -> int:
    """Run from the command line; 0: everything holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index to begin with, to repeat a failure")
    options = parser.parse_args()
    try:
        tally = run(options.count, options.seed, first=options.first, progress_every=100_000)
    except HostileError as error:
        print(f"FAILED {error}", file=sys.stderr)
        return 1
    print(
        f"{tally.tables:,} tables up to {tally.bytes_max:,} bytes: {tally.stamped:,} stamped, {tally.unstamped:,} unstamped, "
        f"{tally.tables - tally.faults['']:,} refused in {len(tally.faults) - 1} ways, {tally.reserved:,} with something "
        f"reserved; {tally.by_pika:,} read by pika too; at most {tally.looks_per_byte_max:.2f} looks a byte"
    )
    for fault, number in sorted(tally.faults.items()):
        print(f"  {fault or 'no fault':<22} {number:>9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
