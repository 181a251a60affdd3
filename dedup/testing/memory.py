"""
A store in memory, for tests of whatever keeps a relay's state.

It passes the same contract suite as the store in Redis, and fails on request::

    server = MemoryServer()
    store = MemoryStore(server, queue="orders")
    server.lose_reply()  # the next call has its effect, and nobody hears of it
    server.restart(lost_writes=1)  # another process, without the newest write
"""

from __future__ import annotations

from collections import deque

from attrs import evolve, frozen

from dedup.core.records import State
from dedup.core.steps import Save
from dedup.errors import StoreFencedError, StoreUnavailableError
from dedup.ports import Claim

#: Writes that a restart can undo at the most.
_HISTORY = 16


@frozen
class _Kept:
    """What the server keeps for one queue."""

    token: int = 0
    revision: int = 0
    state: State | None = None
    #: The process that `replace` wrote to; 0: none did.
    written_to: int = 0


class MemoryServer:
    """The server behind `MemoryStore`: it outlives the stores, and its faults can be switched."""

    def __init__(self) -> None:
        #: No call reaches it while this is set.
        self.down = False
        #: Rises with each restart.
        self.process = 1
        self._queues: dict[tuple[str, str], _Kept] = {}
        self._before: deque[dict[tuple[str, str], _Kept]] = deque(maxlen=_HISTORY)
        self._lose_reply = False

    def lose_reply(self) -> None:
        """Carry the next call out and do not answer it."""
        self._lose_reply = True

    def restart(self, *, lost_writes: int = 0) -> None:
        """Come back as another process, without the newest *lost_writes* writes, at most 16."""
        for _ in range(lost_writes):
            self._queues = self._before.pop()
        self._before.clear()
        self.process += 1

    def empty(self) -> None:
        """Lose everything, as after FLUSHALL; the process goes on."""
        self._queues = {}
        self._before.clear()

    def read(self, queue: tuple[str, str]) -> _Kept:
        """Return what is kept for *queue*."""
        if self.down:
            raise StoreUnavailableError("the store in memory is switched off")
        return self._queues.get(queue, _Kept())

    def write(self, queue: tuple[str, str], kept: _Kept) -> None:
        """Keep *kept* for *queue*."""
        self._before.append(self._queues)
        self._queues = {**self._queues, queue: kept}

    def answer(self) -> None:
        """Answer a call, unless the reply is to be lost."""
        if self._lose_reply:
            self._lose_reply = False
            raise StoreUnavailableError("the reply was lost")


class MemoryStore:
    """The state of one guarded queue; see `dedup.ports.Store` for the calls."""

    def __init__(self, server: MemoryServer, *, vhost: str = "/", queue: str) -> None:
        self._server = server
        self._queue = (vhost, queue)
        self._revision = 0

    def claim(self, token_min: int) -> Claim:
        """Raise the token to at least *token_min*, above every token before, and read the state."""
        kept = self._server.read(self._queue)
        kept = evolve(kept, token=max(kept.token + 1, token_min))
        self._server.write(self._queue, kept)
        self._server.answer()
        self._revision = kept.revision
        return Claim(kept.token, kept.state, kept.written_to != self._server.process)

    def save(self, save: Save) -> bool:
        """Write what changed; False when the server is behind and nothing changed."""
        kept = self._read(save.token)
        following = self._revision + 1
        if kept.token < save.token or kept.written_to != self._server.process:
            saved = False
        elif kept.revision == following:
            saved = True
        elif kept.revision != self._revision or kept.state is None:
            saved = False
        else:
            saved = True
            self._server.write(self._queue, evolve(kept, revision=following, state=_saved(kept.state, save)))
        self._server.answer()
        if saved:
            self._revision = following
        return saved

    def replace(self, token: int, state: State) -> None:
        """Write the whole state over whatever is there."""
        self._read(token)
        following = self._revision + 1
        copy = evolve(state, entries=dict(state.entries), doubt=dict(state.doubt), bodies=dict(state.bodies))
        self._server.write(self._queue, _Kept(token, following, copy, self._server.process))
        self._server.answer()
        self._revision = following

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _read(self, token: int) -> _Kept:
        kept = self._server.read(self._queue)
        if kept.token > token:
            self._server.answer()
            raise StoreFencedError(f"another shim has taken over {self._queue}; this one must stop")
        return kept


def _saved(state: State, save: Save) -> State:
    """Return *state* after *save*."""
    gone, forgotten = frozenset(save.changes.evicted), frozenset(save.changes.forgotten)
    entries = {
        name: entry
        for name, entry in state.entries.items()
        if name not in gone and entry.batch not in forgotten
    }
    bodies = {**state.bodies, **save.changes.bodies}
    return evolve(
        state,
        batch=save.batch,
        writer=save.token,
        entries=entries | dict(save.changes.entries),
        intent=save.intent,
        doubt=state.doubt if save.doubt is None else dict(save.doubt),
        believed=None if save.proven else state.believed,
        clean=save.clean,
        bodies={place: digests for place, digests in bodies.items() if digests},
    )
