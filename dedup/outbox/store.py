"""
Read and write the rows of an outbox, in SQLite or PostgreSQL.

What a row goes through, each arrow one transaction:

    enqueued, no number --claim--> numbered --(sent, confirmed)--> deleted
    put by a publisher, numbered ----^    +--(the broker refuses it)--> failed --retry--> numbered, or no number

A number is in its row before the message is sent. So whoever dies at any point, the next one finds each message that
may have been sent under the number it was sent with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

from attrs import field, frozen

from dedup.core.identity import SEQUENCE_MAX
from dedup.errors import OutboxError
from dedup.outbox.dialects import Dialect
from dedup.outbox.formats import TITLES, agree, protocol_of

#: Rows and bytes read at once.
_CHUNK_ROWS = 1000
_CHUNK_BYTES = 16 * 1024 * 1024
#: The longest reason that is kept; characters.
_REASON_MAX = 1000


@frozen
class Row:
    """
    One message as it is kept; hostile as far as somebody else may have written the table.
    """

    id: int
    sequence: int
    exchange: Any
    routing_key: Any
    properties: Any
    #: None when it is larger than what was asked for.
    body: Any
    body_size: int
    #: The publisher id is in the properties.
    sealed: bool = field(converter=bool)


@frozen
class Put:
    """
    A message to be kept under its number; its properties are sealed.
    """

    sequence: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


@frozen
class Failure:
    """
    A message that is not sent any more.
    """

    sequence: int
    reason: str
    #: Whether the broker may have it all the same.
    maybe_stored: bool = True


@frozen
class Failed:
    """
    A failed row, as it is shown.
    """

    id: int
    sequence: int | None
    exchange: str
    routing_key: str
    bytes: int
    created_at: float
    reason: str
    maybe_stored: bool = field(converter=bool)


@frozen
class Totals:
    """
    What an outbox holds.
    """

    #: What the rows' properties are encoded for.
    protocol: str
    publisher_id: str | None
    #: The highest number given so far.
    newest: int
    #: Rows without a number, with one, and failed ones.
    unnumbered: int
    numbered: int
    failed: int
    #: Bytes of bodies and properties of all of them.
    bytes: int
    #: When the oldest that is not failed was enqueued; unix seconds.
    oldest_at: float | None

    @property
    def rows(self) -> int:
        """
        All rows.
        """
        return self.unnumbered + self.numbered + self.failed


class _State(NamedTuple):
    """
    What `dedup_outbox_state` says.
    """

    protocol: str
    publisher_id: str | None
    newest: int


class Store(ABC):
    """
    The tables of one outbox over one connection; not thread-safe. Everything that writes belongs inside `transaction`.

    Every method raises OutboxUnavailableError when the database cannot do it now, and OutboxError when it never will.
    """

    dialect: Dialect
    #: Of whoever works on it; None for one who only looks.
    _protocol: str | None = None

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """
        Begin; commit durably at the end of the block, or change nothing when it raises.
        """

    @abstractmethod
    def close(self) -> None:
        """
        End the connection, and free the lock; safe to repeat.
        """

    @abstractmethod
    def _run(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        """
        Execute one statement and return its rows; errors are dedup's.
        """

    @abstractmethod
    def _run_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """
        Execute one statement for each of *rows*; errors are dedup's.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """
        What it is called in messages; no password in it.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- whose it is --------------------------------------------------------------------------

    @property
    def protocol(self) -> str:
        """
        What the rows' properties are encoded for.
        """
        return self._state().protocol

    def bind(self, publisher_id: str, protocol: str) -> int:
        """
        Take the outbox for *publisher_id*, for good, and return the highest number given so far.

        Raises:
            OutboxError: it belongs to another one, or keeps messages of another protocol, or is of an unknown version.
        """
        with self.transaction():
            agree(lambda statement, parameters: self._ask(statement, *parameters), protocol, self.name)
            owner, newest = self._state()[1:]
            if owner is None:
                self._do("UPDATE dedup_outbox_state SET publisher_id = ?", publisher_id)
            elif owner != publisher_id:
                raise OutboxError(
                    f"the outbox {self.name} belongs to publisher {owner!r}, this is {publisher_id!r}: its messages would get a "
                    "second identity; use that id, or an outbox of its own"
                )
        self._protocol = protocol
        return newest

    def _state(self) -> _State:
        rows = self._ask("SELECT version, publisher_id, newest FROM dedup_outbox_state")
        version, owner, newest = rows[0] if len(rows) == 1 else ("none", None, 0)
        protocol = protocol_of(version, self.name)
        if self._protocol is not None and self._protocol != protocol:
            raise OutboxError(
                f"the outbox {self.name} is of {TITLES[protocol]} now, and was of {TITLES[self._protocol]}: somebody has changed it "
                "while it was empty; start again"
            )
        if not (owner is None or isinstance(owner, str)) or not isinstance(newest, int):
            raise OutboxError(
                f"the outbox {self.name} was written by something else: its state says {owner!r}, {newest!r}"
            )
        return _State(protocol, owner, newest)

    # -- in -----------------------------------------------------------------------------------

    def put(self, messages: Sequence[Put]) -> None:
        """
        Keep messages that have their numbers; these rise and are above all that were given before.
        """
        self._many(
            "INSERT INTO dedup_outbox (sequence, exchange, routing_key, properties, body, sealed) VALUES (?, ?, ?, ?, ?, 1)",
            [(one.sequence, one.exchange, one.routing_key, one.properties, one.body) for one in messages],
        )
        self._do("UPDATE dedup_outbox_state SET newest = ?", messages[-1].sequence)

    def claim(self, base: int, rows_max: int = _CHUNK_ROWS) -> int:
        """
        Give the next numbers to enqueued rows, and return how many.

        Only rows whose transaction is committed are seen. One that is committed later may have a lower id, because ids
        are handed out earlier; it has no number then, is found the next time, and gets a higher one: nothing is passed
        over. Rows of transactions that followed each other keep their order.

        Args:
            base: No number is at or below it.
        """
        found = self._ask(
            "SELECT id FROM dedup_outbox WHERE sequence IS NULL AND failure IS NULL ORDER BY id LIMIT ?",
            rows_max,
        )
        if not found:
            return 0
        first = max(base, self._state().newest) + 1
        last = first + len(found) - 1
        if last > SEQUENCE_MAX:
            raise OutboxError(f"the outbox {self.name} has used every number up to 2^63 - 1")
        numbered = [(first + place, row[0]) for place, row in enumerate(found)]
        self._many("UPDATE dedup_outbox SET sequence = ? WHERE id = ?", numbered)
        self._do("UPDATE dedup_outbox_state SET newest = ?", last)
        return len(found)

    def has_new(self) -> bool:
        """
        Say whether there are rows to number; reads only.
        """
        return bool(
            self._ask("SELECT 1 FROM dedup_outbox WHERE sequence IS NULL AND failure IS NULL LIMIT 1")
        )

    # -- out ----------------------------------------------------------------------------------

    def read(self, above: int, *, body_bytes_max: int, up_to: int = SEQUENCE_MAX) -> list[Row]:
        """
        Return numbered rows above one number, lowest first: so many as are good to hold at once, none when there is none.
        """
        sizes = self._ask(
            "SELECT sequence, length(body) + length(properties) FROM dedup_outbox "
            "WHERE sequence > ? AND sequence <= ? AND failure IS NULL ORDER BY sequence LIMIT ?",
            above,
            up_to,
            _CHUNK_ROWS,
        )
        if not sizes:
            return []
        room, last = _CHUNK_BYTES, above
        for sequence, size in sizes:
            room -= min(size or 0, body_bytes_max)
            if room < 0 and last != above:
                break
            last = sequence
        return [
            Row(*row)
            for row in self._ask(
                "SELECT id, sequence, exchange, routing_key, properties, "
                "CASE WHEN length(body) <= ? THEN body END, length(body), sealed FROM dedup_outbox "
                "WHERE sequence > ? AND sequence <= ? AND failure IS NULL ORDER BY sequence",
                body_bytes_max,
                above,
                last,
            )
        ]

    def delete(self, sequences: Iterable[int]) -> None:
        """
        Forget messages that the broker has.
        """
        self._many("DELETE FROM dedup_outbox WHERE sequence = ?", [(one,) for one in sequences])

    def fail(self, failures: Iterable[Failure]) -> None:
        """
        Keep messages that are not sent any more, with the reason.
        """
        self._many(
            "UPDATE dedup_outbox SET failure = ?, maybe_stored = ? WHERE sequence = ?",
            [
                (
                    one.reason.replace("\0", "\N{REPLACEMENT CHARACTER}")[:_REASON_MAX],
                    int(one.maybe_stored),
                    one.sequence,
                )
                for one in failures
            ],
        )

    # -- what failed --------------------------------------------------------------------------

    def failed(self, rows_max: int) -> list[Failed]:
        """
        Return failed rows, the oldest first.
        """
        rows = self._ask(
            "SELECT id, sequence, exchange, routing_key, length(body) + length(properties), created_at, failure, maybe_stored "
            "FROM dedup_outbox WHERE failure IS NOT NULL ORDER BY id LIMIT ?",
            rows_max,
        )
        return [Failed(*row) for row in rows]

    def reopen(self, row_id: int) -> None:
        """
        Let a failed row be sent again under its own number.
        """
        self._do("UPDATE dedup_outbox SET failure = NULL WHERE id = ?", row_id)

    def renumber(self, row_id: int) -> None:
        """
        Let a failed row be sent under a new number: as a new message.
        """
        self._do(
            "UPDATE dedup_outbox SET failure = NULL, sequence = NULL, maybe_stored = 1 WHERE id = ?", row_id
        )

    def discard(self, row_id: int) -> None:
        """
        Forget a failed row.
        """
        self._do("DELETE FROM dedup_outbox WHERE id = ? AND failure IS NOT NULL", row_id)

    # -- how much -----------------------------------------------------------------------------

    def totals(self) -> Totals:
        """
        Count.
        """
        protocol, owner, newest = self._state()
        row = self._ask(
            "SELECT COUNT(*), COUNT(failure), SUM(CASE WHEN sequence IS NULL AND failure IS NULL THEN 1 ELSE 0 END), "
            "SUM(length(body) + length(properties)), MIN(CASE WHEN failure IS NULL THEN created_at END) FROM dedup_outbox"
        )[0]
        rows, failed, unnumbered = int(row[0]), int(row[1]), int(row[2] or 0)
        numbered = rows - failed - unnumbered
        return Totals(protocol, owner, newest, unnumbered, numbered, failed, int(row[3] or 0), row[4])

    def newest_numbered(self) -> int:
        """
        Return the highest number of a row that is to be sent; 0 when there is none.
        """
        return int(
            self._ask(
                "SELECT COALESCE(MAX(sequence), 0) FROM dedup_outbox WHERE sequence IS NOT NULL AND failure IS NULL"
            )[0][0]
        )

    # -- SQL ----------------------------------------------------------------------------------

    def _ask(self, statement: str, *parameters: Any) -> list[Any]:
        return self._run(self.dialect.spell(statement), parameters)

    def _do(self, statement: str, *parameters: Any) -> None:
        self._run(self.dialect.spell(statement), parameters)

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._run_many(self.dialect.spell(statement), rows)
