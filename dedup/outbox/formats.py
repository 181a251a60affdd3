"""Which protocol the rows of an outbox are encoded for: its version says so, and only an empty outbox may change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dedup.errors import OutboxError

#: Protocol -> the version of an outbox whose rows are encoded for it. The tables are the same; a dedup that does not know a
#: version leaves the outbox alone.
VERSIONS: Final = {"amqp091": 1, "amqp10": 2}
#: What people call them.
TITLES: Final = {"amqp091": "AMQP 0.9.1", "amqp10": "AMQP 1.0"}

#: Executes one statement, with ``?`` for parameters, and returns its rows.
Run = Callable[[str, tuple[Any, ...]], list[Any]]


def protocol_of(version: object, name: str) -> str:
    """
    Return the protocol of the outbox called *name*.

    Raises:
        OutboxError: nobody knows this version.
    """
    for protocol, known in VERSIONS.items():
        if version == known:
            return protocol
    numbers = " and ".join(map(str, VERSIONS.values()))
    raise OutboxError(
        f"the outbox {name} is of version {version}, this dedup knows {numbers}; nothing was changed"
    )


def agree(run: Run, protocol: str, name: str) -> None:
    """
    See to it that an outbox is of *protocol*: one that is empty becomes so; to be called in a transaction.

    Raises:
        OutboxError: it keeps messages of another protocol, which this one must not send.
    """
    versions = run("SELECT version FROM dedup_outbox_state", ())
    found = protocol_of(versions[0][0] if len(versions) == 1 else "none", name)
    if found == protocol:
        return
    rows = run("SELECT COUNT(*) FROM dedup_outbox", ())[0][0]
    if rows:
        raise OutboxError(
            f"the outbox {name} keeps messages of {TITLES[found]} ({rows}), this is {TITLES[protocol]}: send them first with 'dedup "
            "outbox flush', which knows the protocol, and retry or discard what failed; an empty outbox may change its protocol"
        )
    run("UPDATE dedup_outbox_state SET version = ?", (VERSIONS[protocol],))
