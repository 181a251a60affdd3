"""Let messages that failed be sent again, or forget them: what an operator decides."""

from __future__ import annotations

from collections.abc import Collection

from attrs import frozen

from dedup.core.window import WINDOW_SIZE
from dedup.outbox.store import Failed, Store

#: Failed rows of one repair.
ROWS_MAX = 100_000


@frozen
class Repaired:
    """
    What was done, by row id.
    """

    #: To be sent again under their own numbers.
    reopened: tuple[int, ...] = ()
    #: To be sent under new numbers.
    renumbered: tuple[int, ...] = ()
    #: Left as they are: nobody can tell whether the broker has them, and their numbers are too old to ask.
    refused: tuple[int, ...] = ()


def retry(
    store: Store, ids: Collection[int] | None, *, as_new: bool = False, window_size: int = WINDOW_SIZE
) -> Repaired:
    """
    Let failed rows be sent again, by whoever holds the outbox next.

    A row keeps its number where the shim can still judge it: within half a window of the newest. Behind that, a message
    that was certainly never stored gets a new number, which is as good; another one only when *as_new* says so, because
    it may then be in the queue twice.

    Args:
        ids: Row ids; None for all that failed.
    """
    reopened, renumbered, refused = [], [], []
    with store.transaction():
        newest = store.totals().newest
        for row in _chosen(store, ids):
            if row.sequence is not None and newest - row.sequence <= window_size // 2:
                reopened.append(row.id)
                store.reopen(row.id)
            elif as_new or not row.maybe_stored:
                renumbered.append(row.id)
                store.renumber(row.id)
            else:
                refused.append(row.id)
    return Repaired(tuple(reopened), tuple(renumbered), tuple(refused))


def discard(store: Store, ids: Collection[int] | None) -> tuple[int, ...]:
    """
    Forget failed rows and return which; None for all that failed.
    """
    with store.transaction():
        chosen = _chosen(store, ids)
        for row in chosen:
            store.discard(row.id)
    return tuple(row.id for row in chosen)


def _chosen(store: Store, ids: Collection[int] | None) -> list[Failed]:
    failed = store.failed(ROWS_MAX)
    return failed if ids is None else [row for row in failed if row.id in ids]
