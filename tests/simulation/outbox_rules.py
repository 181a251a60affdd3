"""The rules an outbox must keep, and what has to be known of its world to hold what it does against them."""

from __future__ import annotations

from attrs import Factory, define, frozen

from dedup.core.window import Window
from tests.simulation.outbox_table import Table
from tests.simulation.sender_rules import rule

PUBLISHER = "orders"


@frozen
class Scenario:
    """
    What a world starts with.
    """

    messages: int = 2
    #: A relay sends what an application commits; else a publisher keeps what it sends.
    relayed: bool = False
    window_size: int = 2
    #: Bodies that no queue takes.
    unroutable: frozenset[bytes] = frozenset()


@define
class Known:
    """
    What was promised and what happened, and the rules for it.
    """

    scenario: Scenario
    table: Table
    #: Messages the application has asked for.
    asked: int = 0
    #: Ids of rows whose transactions are open; what was committed before each began.
    open: tuple[int, ...] = ()
    before: dict[bytes, frozenset[bytes]] = Factory(dict)
    #: What this process was asked to keep, by number; those of it that it could not.
    puts: dict[int, bytes] = Factory(dict)
    refused: frozenset[int] = frozenset()
    #: Every body that was ever committed, and its number since it has one.
    committed: frozenset[bytes] = frozenset()
    numbered: dict[bytes, int] = Factory(dict)
    #: Number -> body, of everything that was ever sent.
    names: dict[int, bytes] = Factory(dict)
    #: The channel: asked for, open; None for neither. Publishes the broker has not taken; what it has said.
    channel: str | None = None
    tag: int = 0
    wire: tuple[tuple[int, int, bytes], ...] = ()
    replies: tuple[tuple[str, int, int], ...] = ()
    #: From some moment on no queue took anything; until an operator bound everything (again).
    unbound: bool = False
    bound: bool = False
    #: What the shim knows, and what it has let through.
    window: Window | None = None
    target: tuple[tuple[int, bytes], ...] = ()
    #: Nothing has happened after which a message may overtake another.
    in_order: bool = True
    #: The rule that was broken on the way here.
    broken: str = ""

    def sent(self, sequence: int, body: bytes) -> None:
        """Hold a send against the table."""
        rule(self.channel == "open", "send on an open channel")
        row = next((row for row in self.table.rows.kept if row.sequence == sequence), None)
        rule(
            row is not None and row.body == body,
            "nothing is sent before its row is committed with its number",
        )
        rule(row is None or row.failure is None, "what has failed is not sent")
        rule(self.names.setdefault(sequence, body) == body, "no number names two messages")
        self.tag += 1
        self.wire = (*self.wire, (self.tag, sequence, body))

    def store(self, sequence: int, body: bytes) -> None:
        """Put into the target what the shim takes for new."""
        rule(all(body != other for _, other in self.target), "nothing is doubled")
        if self.in_order:
            rule(
                all(sequence > other for other, _ in self.target),
                "messages arrive in the order of their numbers",
            )
        self.target = (*self.target, (sequence, body))

    def look(self) -> None:
        """Hold the table against what was promised, after a transaction."""
        kept = self.table.rows.kept
        there = {row.body for row in kept}
        arrived = {body for _, body in self.target}
        self.committed |= there
        lost = self.committed - there - arrived
        rule(not lost, "nothing that was kept is lost")
        for row in kept:
            if row.failure is not None:
                refusable = row.body in self.scenario.unroutable or self.unbound
                rule(refusable and "NO_ROUTE" in row.failure, "only what no queue takes fails, and says so")
                rule(
                    bool(row.maybe_stored) or row.body not in arrived,
                    "what may be stored is not called unsent",
                )
            if row.sequence is not None:
                rule(
                    self.numbered.setdefault(row.body, row.sequence) == row.sequence,
                    "a number stays with its row",
                )
        for body, sequence in self.numbered.items():
            late = [b for b in self.before.get(body, ()) if self.numbered.get(b, sequence + 1) > sequence]
            rule(not self.in_order or not late, "transactions that followed each other keep their order")

    def check_promises(self, answered: int) -> None:
        """Hold what callers were told against the table: kept is kept, refused was never there."""
        self.look()
        for sequence, body in self.puts.items():
            if sequence <= answered:
                rule(
                    (body in self.committed) != (sequence in self.refused),
                    "what is answered is kept or refused",
                )

    def unfinished(self) -> str:
        """Say what has not arrived or is still in the table, or nothing."""
        rows = self.table.rows.kept
        failed = {row.body for row in rows if row.failure is not None}
        missing = self.committed - {body for _, body in self.target} - failed
        left = {row.body for row in rows} - failed
        return f"{sorted(missing)} missing, {sorted(left)} in the table" if missing or left else ""
