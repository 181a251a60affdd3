"""
Find out what becomes of each property and type between AMQP 0.9.1 and 1.0, directly and behind shims of both: the table of the docs.

``python -m tests.proton.conformance`` runs it on every RabbitMQ that speaks AMQP 1.0 natively and puts the table into the page.

Every row is one message with one thing in it. What is told of it is the difference to a message with nothing in it, read the same way.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import uuid4

import pika
from attrs import define
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker
from proton import Message, Timeout
from proton.utils import ConnectionClosed

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded
from tests.looking import channel
from tests.proton.conversions import ROWS, Facts, Row, told_new, told_old
from tests.proton.looking import connected, from_the_start, send

PAGE: Final = Path(__file__).parents[2] / "docs/reference/amqp-conversion.md"
VERSIONS: Final = ("4.0", "4.3")
KINDS: Final = ("classic", "quorum", "stream")
#: "": straight into the queue; else behind a shim of this protocol.
WAYS: Final = ("", "amqp091", "amqp10")
_INTERNAL_ERROR: Final = 541
#: A stream may count more messages than it has; seconds.
_SILENCE_S: Final = 3.0
LOST, SAME, FAILS, AS_DIRECT = "lost", "same", "**fails**", "as direct"


@contextmanager
def _raw_kept() -> Iterator[None]:
    """Let pika keep the encoded properties beside what it makes of them: it knows no types and no floats."""
    made = pika.BasicProperties.decode

    def keeping(self: Any, encoded: bytes, offset: int = 0) -> Any:
        self.raw = bytes(encoded[offset:])
        return made(self, encoded, offset)

    with patch.object(pika.BasicProperties, "decode", keeping):
        yield


def read_old(broker: RabbitMQ, queue: str, count: int, kind: str) -> dict[int, Facts]:
    """Read up to *count* messages over 0.9.1; fewer when the broker fails over one of them."""
    found: dict[int, Facts] = {}
    try:
        with _raw_kept(), channel(broker) as opened:
            opened.basic_qos(prefetch_count=1)
            options = {"arguments": {"x-stream-offset": "first"}} if kind == "stream" else {}
            coming = opened.consume(queue, inactivity_timeout=_SILENCE_S, **options)
            for method, properties, body in islice(coming, count):
                if method is None:
                    break
                opened.basic_ack(method.delivery_tag)
                sequence, facts = told_old(properties.raw, body)
                found[sequence] = facts
            opened.cancel()
    except ConnectionClosedByBroker as error:
        if error.reply_code != _INTERNAL_ERROR:
            raise
    return found


def read_new(broker: RabbitMQ, queue: str, count: int, kind: str) -> dict[int, Facts]:
    """Read up to *count* messages over 1.0; fewer when the broker fails over one of them."""
    found: dict[int, Facts] = {}
    options = from_the_start() if kind == "stream" else None
    with suppress(ConnectionClosed, Timeout), connected(broker) as connection:
        receiver = connection.create_receiver(f"/queues/{queue}", credit=1, options=options)
        for _ in range(count):
            sequence, facts = told_new(receiver.receive(timeout=_SILENCE_S))
            receiver.accept()
            found[sequence] = facts
    return found


READ: Final = {"old": read_old, "new": read_new}
#: Between two rows are messages with nothing in them: what a broker fails over takes with it what it was delivering before.
_APART: Final = 6


# -- running it -----------------------------------------------------------------------------------


@define
class Bench:
    """
    Servers to run rows on.
    """

    broker: RabbitMQ
    redis: Redis

    def cells(self, rows: Sequence[Row], writer: str, reader: str, kind: str, way: str) -> dict[str, str]:
        """Return what is told of each row but the first, which has nothing in it."""
        found: dict[str, Facts | None] = {}
        while left := [row for row in rows if row.name not in found]:
            # What the broker fails over stands last: what comes behind it is tried again without it.
            batch = [rows[0], *(row for row in left if row is not rows[0])]
            arrived = self._run(batch, writer, reader, kind, way)
            found |= {batch[number - 1].name: facts for number, facts in arrived.items()}
            if len(arrived) < len(batch):
                first = min({*range(1, len(batch) + 1)} - {*arrived})
                assert first > 1, (
                    f"nothing of {len(batch)} messages arrived: {writer} to {reader}, {kind}, {way}"
                )
                found[batch[first - 1].name] = None
        nothing = found[rows[0].name]
        assert nothing is not None
        return {row.name: _text(row, writer, reader, found[row.name], nothing) for row in rows[1:]}

    def _run(self, rows: Sequence[Row], writer: str, reader: str, kind: str, way: str) -> dict[int, Facts]:
        queue = f"conformance-{uuid4().hex[:12]}"
        options: Any = {"target_type": kind, "exact": kind == "classic"}
        with Guarded(self.broker, self.redis, queue, **options) as guarded:
            into = names.ingress(queue) if way else queue
            messages: list[Any] = []
            for row in rows:
                messages += [rows[0].make(len(messages) + n) for n in range(1, _APART)]
                messages.append(row.make(len(messages) + 1))
            if writer == "old":
                with suppress(AMQPConnectionError):  # a stream fails over a message when it is written
                    guarded.publish_raw(messages, into)
            else:
                send(self.broker, into, *messages)
            count = self._forward(guarded, way, kind) if way else len(messages)
            arrived = READ[reader](self.broker, queue, count, kind)
        return {number // _APART: facts for number, facts in arrived.items() if number % _APART == 0}

    def _forward(self, guarded: Guarded, way: str, kind: str) -> int:
        """Run a shim until everything is forwarded, or it comes no further; return how many messages are there at most."""
        ingress, fails = names.ingress(guarded.queue), False
        while guarded.depth(ingress) and not fails:
            shim = guarded.start_shim(protocol=way, batch_max=1)
            shim.wait_for("dedup.recovered")
            while guarded.depth(ingress) and not fails:
                shim.next_of("report", "dedup.unreadable")
                fails = bool(shim.count("dedup.unreadable"))
            shim.stop()
        # What a stream counts comes late.
        return int(1e6) if kind == "stream" else guarded.depth(guarded.queue)


def _text(row: Row, writer: str, reader: str, facts: Facts | None, nothing: Facts) -> str:
    """Say what became of a row."""
    if facts is None:
        return FAILS
    told = {where: fact for where, fact in facts.items() if nothing.get(where) != fact}
    gone = [where for where in nothing if where not in facts]
    if writer == reader and (told, gone) == _written(row, writer):
        return SAME
    parts = [_fact(where, *fact, row.value) for where, fact in told.items()]
    return ", ".join([*parts, *(f"no {where}" for where in gone)]) or LOST


def _written(row: Row, writer: str) -> tuple[Facts, list[str]]:
    """Return what a message says before it is sent, in the way it is told of one that has arrived."""

    def read(one: Row) -> Facts:
        if writer == "old":
            return told_old(*one.make(1))[1]
        message = Message()
        message.decode(one.make(1).encode())
        return told_new(message)[1]

    facts, nothing = read(row), read(ROWS[writer][0])
    told = {where: fact for where, fact in facts.items() if nothing.get(where) != fact}
    return told, [where for where in nothing if where not in facts]


def _fact(where: str, kind: str, value: Any, written: Any) -> str:
    place, _, name = where.rpartition(" ")
    shown = place if place and name in ("v", "x-v", "x-opt-v") else f"{place} `{name}`" if place else where
    if kind:
        shown += f", {kind}"
    value, written = _comparable(value), _comparable(written)
    if value == written:
        return shown
    if where == "body":
        return f"{shown}: the encoded sections" if str(value).startswith("\0") else shown
    return f"{shown} = {value}"


def _comparable(value: Any) -> Any:
    """Return the value that a type of either client stands for."""
    if isinstance(value, dt.datetime):
        return int(value.timestamp())
    if isinstance(value, bytes | memoryview):
        with suppress(UnicodeDecodeError):
            return bytes(value).decode()
        return bytes(value)
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _comparable(item) for key, item in value.items()}
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return value


# -- the table ------------------------------------------------------------------------------------

_BEGIN, _END = "<!-- begin: python -m tests.proton.conformance -->", "<!-- end -->"
_SIDES: Final = {"old": "0.9.1", "new": "1.0"}
COLUMNS: Final = tuple((way, reader) for way in WAYS for reader in _SIDES)
#: What was seen: (version, kind) -> text.
Seen = Mapping[tuple[str, str], str]


def combined(seen: Seen) -> str:
    """Word what was seen in every place: the most frequent first, and the places where it is something else."""
    first = Counter(seen.values()).most_common(1)[0][0]
    versions, kinds = dict.fromkeys(v for v, _ in seen), dict.fromkeys(k for _, k in seen)
    left = {place: text for place, text in seen.items() if text != first}
    parts = [first]
    groups: list[tuple[str, list[tuple[str, str]]]] = [
        *((version, [(version, kind) for kind in kinds]) for version in versions),
        *((kind, [(version, kind) for version in versions]) for kind in kinds),
        *((f"{version} {kind}", [(version, kind)]) for version, kind in seen),
    ]
    for name, places in groups:
        texts = {left.get(place) for place in places}
        if len(texts) == 1 and (text := texts.pop()) is not None:
            parts.append(f"{name}: {text}")
            for place in places:
                del left[place]
    return "; ".join(parts)


def shown(cell: str, version: str, kind: str) -> str:
    """Return what a cell says of one place."""
    first, *others = cell.split("; ")
    for name in (f"{version} {kind}", kind, version):
        for other in others:
            if other.startswith(f"{name}: "):
                return other.removeprefix(f"{name}: ")
    return first


def tables(seen: Mapping[tuple[str, str], Mapping[tuple[str, str, str, str], str]]) -> str:
    """
    Write the tables.

    Args:
        seen: by place, then by writer, row, way and reader.
    """
    lines: list[str] = []
    for writer, rows in ROWS.items():
        lines += ["", f"### Written over AMQP {_SIDES[writer]}", ""]
        heads = [
            f"{'direct' if not way else 'behind ' + {'amqp091': 'a 0.9.1', 'amqp10': 'a 1.0'}[way] + ' shim'}, read over {_SIDES[reader]}"
            for way, reader in COLUMNS
        ]
        lines += [f"| written | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
        for row in rows[1:]:
            cells = {
                column: combined({place: told[writer, row.name, *column] for place, told in seen.items()})
                for column in COLUMNS
            }
            texts = [
                AS_DIRECT if way and cells[way, reader] == cells["", reader] else cells[way, reader]
                for way, reader in COLUMNS
            ]
            lines.append(f"| {row.name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def page_cells(page: str) -> dict[tuple[str, str, str, str], str]:
    """Read the tables of the page: by writer, row, way and reader."""
    found: dict[tuple[str, str, str, str], str] = {}
    for writer, side in _SIDES.items():
        table = page.partition(f"### Written over AMQP {side}\n")[2].partition("\n###")[0]
        for line in re.findall(r"^\| (.+) \|$", table, re.MULTILINE)[1:]:
            name, *texts = line.split(" | ")
            row = dict(zip(COLUMNS, texts, strict=True))
            for (way, reader), text in row.items():
                found[writer, name, way, reader] = row["", reader] if text == AS_DIRECT else text
    return found


def look(bench: Bench, kind: str, only: Iterable[str] | None = None) -> dict[tuple[str, str, str, str], str]:
    """Run all rows, or *only* those, through every way in queues of one type."""
    found: dict[tuple[str, str, str, str], str] = {}
    for writer, rows in ROWS.items():
        chosen = [row for row in rows if only is None or row.name in {*only, "nothing"}]
        for way, reader in COLUMNS:
            cells = bench.cells(chosen, writer, reader, kind, way)
            found |= {(writer, name, way, reader): text for name, text in cells.items()}
    return found


def main() -> None:
    """Run everything, and write the table into its page."""
    seen = {}
    for version in VERSIONS:
        with RabbitMQ(version, plugins=("rabbitmq_management",)) as broker, Redis() as redis:
            for kind in KINDS:
                seen[version, kind] = look(Bench(broker, redis), kind)
    page = PAGE.read_text("utf-8")
    head, _, rest = page.partition(_BEGIN)
    PAGE.write_text(f"{head}{_BEGIN}\n{tables(seen)}\n\n{_END}{rest.partition(_END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
