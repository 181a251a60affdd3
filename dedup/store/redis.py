"""
The relay's state in Redis: one hash a guarded queue, written by three scripts.

A write either happens whole or not at all, and repeating one whose answer was lost changes nothing.

Redis may restart with less than it had, and another server may answer at the same address. The
scripts compare the server's run id with the one that was written to: save() then says that Redis is
behind, whatever it holds, and the relay writes everything from memory; claim() tells it to recovery.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from redis.commands.core import Script

from dedup.core.records import NUMBER_MAX, State
from dedup.core.steps import Save
from dedup.errors import StateFormatError, StoreFencedError
from dedup.ports import Claim
from dedup.store.client import KEY_PREFIX, Client
from dedup.store.encoding import pack, pack_save, state_fields, state_from, unpack


class RedisStore:
    """
    The state of one guarded queue; see :class:`dedup.ports.Store` for the calls.

    Not thread-safe: it belongs to the thread of its relay.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        vhost: Virtual host of the queue.
        queue: Name of the target queue.
        prefix: First part of the key, to keep several brokers apart in one Redis.
        timeout_s: How long one call may take; seconds.
    """

    def __init__(
        self, url: str, *, vhost: str, queue: str, prefix: str = KEY_PREFIX, timeout_s: float = 2.0
    ) -> None:
        # The braces keep all keys of one queue in one slot of a cluster; quoting keeps names apart.
        self.key = f"{prefix}:{{{quote(vhost, safe='')}/{quote(queue, safe='')}}}:relay"
        self._revision = 0
        self._client = Client(url, self.key, "a hash", timeout_s=timeout_s)
        self.url = self._client.url
        self._claim = self._client.script("claim")
        self._save = self._client.script("save")
        self._replace = self._client.script("replace")

    def claim(self, token_min: int) -> Claim:
        """
        Raise the token to at least *token_min*, above every token before, and read the state.
        """
        process, lengths, joined = self._call(self._claim, token_min)
        fields = unpack(lengths, joined)
        try:
            token, self._revision = int(fields[b"token"]), int(fields.get(b"revision", b"0"))
        except ValueError as error:
            raise StateFormatError(f"{self.key} in Redis is damaged ({error}); move the key away") from error
        if token > NUMBER_MAX:
            raise StateFormatError(
                f"token {token} of {self.key} is higher than any clock gives: somebody else has written to the ledger or "
                "to Redis; stop all shims, purge the ledger and move the key away"
            )
        return Claim(token, state_from(fields), fields.get(b"process") != process)

    def save(self, save: Save) -> bool:
        """
        Write what changed; False when Redis is behind and nothing changed.
        """
        following = self._revision + 1
        if not self._saved(self._call(self._save, save.token, self._revision, following, *pack_save(save))):
            return False
        self._revision = following
        return True

    def replace(self, token: int, state: State) -> None:
        """
        Write the whole state over whatever is there.
        """
        following = self._revision + 1
        self._saved(self._call(self._replace, token, following, *pack(state_fields(state))))
        self._revision = following

    def check(self) -> list[str]:
        """
        Look for settings of the server that endanger what it is told to keep, and for rights that are missing.

        Returns:
            Warnings, each with its fix.

        Raises:
            ConfigError: the server may throw the state away at any time, is read-only, or lets this user in not
                at all or not far enough.
            StoreUnavailableError: it cannot be reached.
        """
        self._client.check_rights([self.key])
        info = self._client.check_settings("could forget what was forwarded")
        if not info.get("aof_enabled"):
            return [
                f"Redis at {self.url} keeps no append-only file: when it restarts while no shim runs, messages are marked until the window has passed; set appendonly yes"
            ]
        return []

    def forget(self) -> bool:
        """
        Delete the state, and say whether there was one; only when no shim can write it any more.
        """
        return bool(self._client.look(lambda: self._client.redis.delete(self.key)))

    def close(self) -> None:
        """
        Give the connection back.
        """
        self._client.close()

    def _saved(self, answer: bytes) -> bool:
        if answer == b"fenced":
            raise StoreFencedError(f"another shim has taken over {self.key}; this one must stop")
        return answer == b"saved"

    def _call(self, script: Script, *args: Any) -> Any:
        return self._client.ask(lambda: script(keys=[self.key], args=args))
