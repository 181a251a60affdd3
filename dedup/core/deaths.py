"""
Read what a broker wrote down of a message's deaths, and carry it on past a republish.

A broker keeps one entry for each {queue, reason}, the newest first: ``x-death`` in AMQP 0.9.1, ``x-opt-deaths`` in
AMQP 1.0. RabbitMQ 4 forgets it when a client publishes the message again, 3.10 counts on from it. So whoever publishes a
dead letter again takes the broker's headers out (:data:`BROKER_HEADERS`) and puts ``dedup-deaths`` in, with
:meth:`DeathHistory.encode` as its value: what the broker writes from then on is new, and the sum of both is exact on
every version.

Anybody may write these headers. Reading is total and bounded: whatever they hold gives a history, and a list of faults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from attrs import evolve, frozen

from dedup.core import foreign
from dedup.core.identity import DEATHS_HEADER

#: Where brokers keep it: the annotation of AMQP 1.0 goes before the header of AMQP 0.9.1, which a client may have left there.
SOURCES: Final = ("x-opt-deaths", "x-death")
#: What brokers write about deaths: to be left out when a dead letter is published again.
BROKER_HEADERS: Final = frozenset(
    {
        *SOURCES,
        *(
            f"x-{which}-death-{what}"
            for which in ("first", "last")
            for what in ("queue", "reason", "exchange")
        ),
    }
)
#: A consumer's rejection: the one death that the message did not run into by itself.
REJECTED: Final = "rejected"

#: Entries that are read; a message that has been in more queues has lost its oldest deaths here.
ENTRIES_MAX: Final = 256
#: Routing keys that are read of one entry (each CC of the message is one).
ROUTING_KEYS_MAX: Final = 32
#: Bytes of the header ``dedup-deaths`` at the most: a quarter of the frame that all properties must fit into.
CARRIED_BYTES_MAX: Final = 32 * 1024
_FORMAT: Final = 1
_Read = TypeVar("_Read")


@frozen
class Death:
    """
    How often a message died in one queue for one reason.
    """

    queue: str
    #: rejected, expired, maxlen or delivery_limit; "" when nobody can tell.
    reason: str
    count: int = 1
    #: When it died there first; unix milliseconds (AMQP 0.9.1 tells whole seconds).
    first_ms: int | None = None
    #: When it died there last. AMQP 0.9.1 tells one time, the first: of more than one death the last is not known.
    last_ms: int | None = None
    #: How the message had come to the queue when it died there first.
    exchange: str = ""
    routing_keys: tuple[str, ...] = ()
    #: The time to live it was published with and has lost in dying; milliseconds.
    original_expiration_ms: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """
        Return what there is one entry of.
        """
        return self.queue, self.reason


@frozen
class DeathHistory:
    """
    Every death of a message that is known, the newest first.
    """

    #: One for each {queue, reason}.
    deaths: tuple[Death, ...] = ()
    #: What could not be read, for people; no broker writes such a thing.
    faults: tuple[str, ...] = ()

    @classmethod
    def read(cls, *tables: Mapping[Any, Any] | None) -> DeathHistory:
        """
        Read the headers of a message, or its annotations and application properties; never raises.

        What the broker wrote and what the header ``dedup-deaths`` carries come together, counts summed. Where a broker
        wrote of the first and the last death only (RabbitMQ 3.10 into a stream), there is one of each.
        """
        broker, carried = cls(), cls()
        for name in SOURCES:
            broker = next((cls.of(table[name], name) for table in tables if table and name in table), broker)
            if broker.deaths:
                break
        if not broker.deaths:
            broker = evolve(broker, deaths=_ends([table for table in tables if table]))
        for table in tables:
            if table and DEATHS_HEADER in table:
                carried = cls.decode(table[DEATHS_HEADER])
        return broker.after(carried)

    @classmethod
    def of(cls, entries: object, name: str = "x-death") -> DeathHistory:
        """
        Read the value of ``x-death`` or ``x-opt-deaths``, as any client decodes it; never raises.
        """
        faults = foreign.Faults()
        listed = foreign.items(entries, ENTRIES_MAX, name, faults)
        deaths = [_entry(item, f"{name}[{index}]", faults) for index, item in enumerate(listed)]
        return cls(_summed(death for death in deaths if death), faults.kept())

    @classmethod
    def decode(cls, value: object) -> DeathHistory:
        """
        Read what :meth:`encode` wrote; never raises.
        """
        faults = foreign.Faults()
        text = foreign.text(value, CARRIED_BYTES_MAX, DEATHS_HEADER, faults)
        if text is None:
            return cls((), faults.kept())
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return cls((), (f"{DEATHS_HEADER} is not JSON",))
        if not isinstance(fields, list) or not fields or fields[0] != _FORMAT:
            return cls((), (f"{DEATHS_HEADER} is of another version",))
        rows = fields[1 : 1 + ENTRIES_MAX]
        deaths = [_carried(row, f"{DEATHS_HEADER}[{index}]", faults) for index, row in enumerate(rows)]
        return cls(_summed(death for death in deaths if death), faults.kept())

    def encode(self) -> str:
        """
        Return the value of the header ``dedup-deaths``: at most 32 KiB of text; deaths that do not fit, the oldest, are left out.
        """
        rows: list[str] = []
        size = len(f"[{_FORMAT}]")
        for death in self.deaths[:ENTRIES_MAX]:
            row = json.dumps(_row(death), ensure_ascii=False, separators=(",", ":"))
            size += 1 + len(row.encode())
            if size > CARRIED_BYTES_MAX:
                break
            rows.append(row)
        return f"[{','.join((str(_FORMAT), *rows))}]"

    def after(self, older: DeathHistory) -> DeathHistory:
        """
        Return both as one history: this one is what happened after *older*.
        """
        if not older.deaths and not older.faults:
            return self
        return DeathHistory(
            _summed((*self.deaths, *older.deaths)), (*self.faults, *older.faults)[: foreign.FAULTS_MAX]
        )

    @property
    def newest(self) -> Death | None:
        """
        Return where and why it died last; None when it never did.
        """
        return self.deaths[0] if self.deaths else None

    def count(self, *, queue: str | None = None, reason: str | None = None) -> int:
        """
        Return how often it died, in *queue* or in all, for *reason* or for any.
        """
        return sum(
            death.count
            for death in self.deaths
            if queue in (None, death.queue) and reason in (None, death.reason)
        )

    def cycles_into(self, queue: str) -> bool:
        """
        Say whether it came round to *queue* by itself: it died there before, and nobody has rejected it since or then.

        RabbitMQ drops such a message when it dies once more. A history with faults is no proof of anything: then False.
        """
        if self.faults:
            return False
        for death in self.deaths:
            if death.reason == REJECTED:
                return False
            if death.queue == queue:
                return True
        return False


def _summed(newest_first: Iterable[Death]) -> tuple[Death, ...]:
    """
    Return one entry for each {queue, reason}, at the place of its newest; it keeps the way of its oldest, as brokers do.
    """
    found: dict[tuple[str, str], Death] = {}
    for death in newest_first:
        newer = found.get(death.key)
        found[death.key] = (
            death
            if newer is None
            else evolve(
                death,
                count=min(newer.count + death.count, foreign.NUMBER_MAX),
                first_ms=newer.first_ms if death.first_ms is None else death.first_ms,
                last_ms=newer.last_ms,
            )
        )
    return tuple(found.values())


def _entry(item: object, where: str, faults: foreign.Faults) -> Death | None:
    """
    Read one entry of either protocol; None when it does not even name a queue.
    """
    if not isinstance(item, Mapping):
        faults.add(where, "is not a table")
        return None
    queue = foreign.text(item.get("queue"), foreign.NAME_BYTES_MAX, f"{where}.queue", faults)
    if queue is None:
        return None

    def optional(name: str, read: Callable[[object, str, foreign.Faults], _Read | None]) -> _Read | None:
        return read(item[name], f"{where}.{name}", faults) if item.get(name) is not None else None

    reason = foreign.text(item.get("reason"), foreign.NAME_BYTES_MAX, f"{where}.reason", faults)
    count = foreign.number(item.get("count"), f"{where}.count", faults)
    if count == 0:
        faults.add(f"{where}.count", "is not at least 1")
    first_ms, last_ms = optional("first-time", foreign.number), optional("last-time", foreign.number)
    if first_ms is None:
        first_ms = optional("time", foreign.moment)
    return Death(
        queue,
        reason or "",
        count or 1,
        first_ms,
        first_ms if last_ms is None and count == 1 else last_ms,
        optional("exchange", foreign.name) or "",
        foreign.names(item.get("routing-keys"), ROUTING_KEYS_MAX, f"{where}.routing-keys", faults),
        # 0.9.1 keeps the property, which is text; 1.0 the header's ttl, which is a number.
        optional("ttl", foreign.number)
        if item.get("ttl") is not None
        else optional("original-expiration", foreign.digits),
    )


def _ends(tables: Sequence[Mapping[Any, Any]]) -> tuple[Death, ...]:
    """
    Return the last and the first death, as the headers beside the history have them.
    """
    found: list[Death] = []
    for which in ("last", "first"):
        names = {f"x-{which}-death-{what}": what for what in ("queue", "reason", "exchange")}
        end: dict[str, Any] = {"count": 1}
        for table in tables:
            end |= {what: table[name] for name, what in names.items() if name in table}
        death = _entry(end, which, foreign.Faults()) if "queue" in end else None
        if death is not None and death.key not in [other.key for other in found]:
            found.append(death)
    return tuple(found)


def _row(death: Death) -> list[object]:
    """
    Return a death as the header ``dedup-deaths`` has it: fields in order, those at the end left out that say nothing.
    """
    row: list[object] = [
        death.queue,
        death.reason,
        death.count,
        death.first_ms,
        death.last_ms,
        death.exchange,
        list(death.routing_keys),
        death.original_expiration_ms,
    ]
    while row[-1] in (None, "", []):
        row.pop()
    return row


_FIELDS: Final = (
    "queue",
    "reason",
    "count",
    "first-time",
    "last-time",
    "exchange",
    "routing-keys",
    "ttl",
)


def _carried(row: object, where: str, faults: foreign.Faults) -> Death | None:
    if not isinstance(row, list):
        faults.add(where, "is not a list")
        return None
    death = _entry(dict(zip(_FIELDS, row, strict=False)), where, faults)
    # A sum that began with an unknown time is written without it: what is read must be what was written.
    if death is not None and death.last_ms is not None and (len(row) < 5 or row[4] is None):
        return evolve(death, last_ms=None)
    return death
