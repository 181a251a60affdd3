"""The table of an outbox against a model: whatever happens in whatever order, crashes and failing transactions included."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dedup.outbox.enqueue import Outbox
from dedup.outbox.store import Failure, Put, Store

NAMES = st.sampled_from(["orders", "é" * 20, "q" * 255])
BYTES = st.binary(max_size=30)


@define
class Modelled:
    """One row."""

    exchange: str
    routing_key: str
    body: bytes
    sequence: int | None
    failed: bool = False
    maybe_stored: bool = True


class _CrashError(Exception):
    """The process ends here."""


class OutboxMachine(RuleBasedStateMachine):
    """
    One outbox; subclasses say how to open it and how an application connects.
    """

    store: Store
    application: Any

    def open(self) -> Store:
        """Open the outbox."""
        raise NotImplementedError

    def connect(self) -> Any:
        """Connect as an application does."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.application = self.connect()
        Outbox.create(self.application)
        self.application.commit()
        self.store = self.open()
        self.rows: dict[int, Modelled] = {}
        self.newest = self.store.bind("p", "amqp091")
        self.given: set[int] = set()

    def teardown(self) -> None:
        """Leave nothing open."""
        self.store.close()
        self.application.close()

    # -- what may happen ----------------------------------------------------------------------

    @rule(name=NAMES, body=BYTES, commits=st.booleans())
    def enqueue(self, name: str, body: bytes, *, commits: bool) -> None:
        """An application inserts a message, and commits or rolls back."""
        row = Outbox.enqueue(self.application, body, exchange="e", routing_key=name)
        if commits:
            self.application.commit()
            self.rows[row] = Modelled("e", name, body, None)
        else:
            self.application.rollback()

    @rule(bodies=st.lists(BYTES, min_size=1, max_size=4), gap=st.integers(0, 3))
    def put(self, bodies: list[bytes], gap: int) -> None:
        """A publisher keeps messages that have numbers."""
        first = self.newest + 1 + gap
        puts = [Put(first + n, "", "q", b"\x20\x00\x00\x00\x00\x00", body) for n, body in enumerate(bodies)]
        self._write(lambda: self.store.put(puts))
        for one in puts:
            (row,) = self._numbers(one.sequence)
            self.rows[row] = Modelled("", "q", one.body, one.sequence)
            self._give(one.sequence)

    @rule(base=st.integers(0, 200), limit=st.integers(1, 3))
    def claim(self, base: int, limit: int) -> None:
        """A relay numbers what is committed."""
        waiting = sorted(row for row, one in self.rows.items() if one.sequence is None and not one.failed)[
            :limit
        ]
        assert self.store.has_new() == bool(waiting)
        count = self._write(lambda: self.store.claim(base, limit))
        assert count == len(waiting)
        first = max(base, self.newest) + 1
        for place, row in enumerate(waiting):
            self.rows[row].sequence = first + place
            self._give(first + place)

    @precondition(lambda self: self._sendable())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """The broker has confirmed one, and something that is not there."""
        sequence = data.draw(st.sampled_from(self._sendable()))
        self._write(lambda: self.store.delete([sequence, 10**15]))
        self.rows = {row: one for row, one in self.rows.items() if one.sequence != sequence}

    @precondition(lambda self: self._sendable())
    @rule(data=st.data(), maybe=st.booleans())
    def fail(self, data: st.DataObject, *, maybe: bool) -> None:
        """The broker has refused one."""
        sequence = data.draw(st.sampled_from(self._sendable()))
        self._write(lambda: self.store.fail([Failure(sequence, "no\0 queue", maybe), Failure(10**15, "x")]))
        for one in self.rows.values():
            if one.sequence == sequence:
                one.failed, one.maybe_stored = True, maybe

    @precondition(lambda self: any(one.failed for one in self.rows.values()))
    @rule(data=st.data(), how=st.sampled_from(["reopen", "renumber", "discard"]))
    def repair(self, data: st.DataObject, how: str) -> None:
        """An operator decides about one that failed."""
        row = data.draw(st.sampled_from(sorted(row for row, one in self.rows.items() if one.failed)))
        self._write(lambda: getattr(self.store, how)(row))
        if how == "discard":
            del self.rows[row]
            return
        self.rows[row].failed = False
        if how == "renumber":
            self.rows[row].sequence, self.rows[row].maybe_stored = None, True

    @rule(base=st.integers(0, 50))
    def crash_in_a_transaction(self, base: int) -> None:
        """Everything that was done in it is undone."""
        with suppress(_CrashError), self.store.transaction():
            self.store.put([Put(self.newest + 1, "", "lost", b"", b"lost")])
            self.store.claim(base + self.newest + 1)
            self.store.delete(self._sendable())
            raise _CrashError

    @rule()
    def restart(self) -> None:
        """The next process finds what the last one left."""
        self.store.close()
        self.store = self.open()
        assert self.store.bind("p", "amqp091") == self.newest

    # -- what must hold -----------------------------------------------------------------------

    @invariant()
    def the_table_is_the_model(self) -> None:
        """Rows, their order, counts, and the highest number."""
        found, above = [], 0
        while chunk := self.store.read(above, body_bytes_max=100):
            found += chunk
            above = chunk[-1].sequence
        read = [(row.id, row.sequence, row.exchange, row.routing_key, row.body) for row in found]
        wanted = [
            (row, one.sequence, one.exchange, one.routing_key, one.body)
            for row, one in self.rows.items()
            if one.sequence is not None and not one.failed
        ]
        assert read == sorted(wanted, key=lambda row: row[1] or 0)
        totals = self.store.totals()
        assert totals.newest == self.newest
        assert totals.failed == sum(one.failed for one in self.rows.values())
        assert totals.numbered == len(wanted)
        assert totals.rows == len(self.rows)
        assert self.store.newest_numbered() == max((row[1] or 0 for row in wanted), default=0)
        failed = {row.id: row for row in self.store.failed(1000)}
        assert set(failed) == {row for row, one in self.rows.items() if one.failed}
        for row, shown in failed.items():
            assert shown.maybe_stored == self.rows[row].maybe_stored

    # -- means --------------------------------------------------------------------------------

    def _write(self, act: Callable[[], Any]) -> Any:
        with self.store.transaction():
            return act()

    def _give(self, sequence: int) -> None:
        assert sequence not in self.given, "a number was given twice"
        self.given.add(sequence)
        self.newest = max(self.newest, sequence)

    def _sendable(self) -> list[int]:
        return sorted(
            one.sequence for one in self.rows.values() if one.sequence is not None and not one.failed
        )

    def _numbers(self, sequence: int) -> list[int]:
        return [row.id for row in self.store.read(sequence - 1, up_to=sequence, body_bytes_max=100)]
