"""
The relay's state in Redis: one hash a guarded queue, written by three scripts.

A write either happens whole or not at all, and repeating one whose answer was lost changes nothing;
so redis-py's own retries are off (version 8 repeats ten times by default) and the caller decides.

Redis may restart with less than it had, and another server may answer at the same address. The
scripts compare the server's run id with the one that was written to: save() then says that Redis is
behind, whatever it holds, and the relay writes everything from memory; claim() tells it to recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from dedup.core.records import NUMBER_MAX, State
from dedup.core.steps import Save
from dedup.core.urls import mask_url
from dedup.errors import ConfigError, DedupError, StateFormatError, StoreFencedError, StoreUnavailableError
from dedup.ports import Claim
from dedup.store.encoding import pack, save_fields, state_fields, state_from, unpack

#: First part of every key.
KEY_PREFIX = "dedup"
#: What to do about rights that are missing.
GRANT = "docs/howto/permissions.md has the rights it needs"


def open_client(url: str, *, timeout_s: float) -> redis.Redis:
    """
    Return a client that sends each command once and, with TLS, checks whose certificate it is shown.

    Raises:
        ConfigError: *url* cannot be used.
    """
    options: dict[str, Any] = {}
    # redis-py before 6 takes any certificate of a known authority, whatever host it names; the URL still decides.
    if url.startswith("rediss:") and parse_qs(urlsplit(url).query).get("ssl_cert_reqs") != ["none"]:
        options["ssl_check_hostname"] = True
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            client_name="dedup",
            protocol=2,
            **options,
        )
    except ValueError as error:
        raise ConfigError(
            f"{mask_url(url)!r} is no Redis URL; use redis://host:6379/0, rediss:// or unix://"
        ) from error


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
        self.url = mask_url(url)
        self._revision = 0
        self._redis = open_client(url, timeout_s=timeout_s)
        self._rights = self._script("rights")
        self._claim = self._script("claim")
        self._save = self._script("save")
        self._replace = self._script("replace")

    def claim(self, token_min: int) -> Claim:
        """
        Raise the token to at least *token_min*, above every token before, and read the state.
        """
        process, lengths, joined = self._call(self._claim, [token_min])
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
        deleted, fields = save_fields(save)
        following = self._revision + 1
        head = [save.token, self._revision, following, len(deleted), *deleted]
        if not self._saved(self._call(self._save, [*head, *_pairs(fields)])):
            return False
        self._revision = following
        return True

    def replace(self, token: int, state: State) -> None:
        """
        Write the whole state over whatever is there.
        """
        following = self._revision + 1
        self._saved(self._call(self._replace, [token, following, *pack(state_fields(state))]))
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
        try:
            info = self._call(lambda **_: self._redis.info("everything"), [])
            refused = self._call(self._rights, [])
        except StoreUnavailableError as error:
            raise self._lasting(error) from error
        if refused:
            commands = ", ".join(command.decode() for command in refused)
            raise ConfigError(f"Redis at {self.url} does not let this user {commands} on {self.key}; {GRANT}")
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys"):
            raise ConfigError(
                f"Redis at {self.url} evicts any key when memory is short (maxmemory-policy {policy}): "
                "it could forget what was forwarded; set maxmemory-policy noeviction"
            )
        if info.get("role") != "master":
            raise ConfigError(f"Redis at {self.url} is a replica and refuses writes; connect to its primary")
        if not info.get("aof_enabled"):
            return [
                f"Redis at {self.url} keeps no append-only file: when it restarts while no shim runs, messages are marked until the window has passed; set appendonly yes"
            ]
        return []

    def close(self) -> None:
        """
        Give the connection back.
        """
        self._redis.close()

    def _lasting(self, error: StoreUnavailableError) -> DedupError:
        """
        Return *error*, or what a person has to mend where waiting does not help.
        """
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, redis.AuthenticationError):
                return ConfigError(
                    f"Redis at {self.url} refused the login; check user and password in the URL"
                )
            if isinstance(cause, redis.exceptions.NoPermissionError):
                return ConfigError(f"Redis at {self.url} refused {self.key}: {cause}; {GRANT}")
            if isinstance(cause, SSLCertVerificationError):
                return ConfigError(
                    f"Redis at {self.url} has a certificate that cannot be verified ({cause.verify_message}); "
                    "see ssl_ca_certs"
                )
            cause = cause.__cause__ or cause.__context__
        return error

    def _script(self, name: str) -> Script:
        return self._redis.register_script(files("dedup.store").joinpath(f"{name}.lua").read_text("utf-8"))

    def _saved(self, answer: bytes) -> bool:
        if answer == b"fenced":
            raise StoreFencedError(f"another shim has taken over {self.key}; this one must stop")
        return answer == b"saved"

    def _call(self, command: Callable[..., Any], args: list[Any]) -> Any:
        """
        Run *command* and turn what redis-py raises into the errors of the port.
        """
        try:
            return command(keys=[self.key], args=args)
        except redis.ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise StateFormatError(
                    f"{self.key} in Redis is not a hash: it belongs to somebody else"
                ) from error
            raise StoreUnavailableError(f"Redis at {self.url} refused: {error}") from error
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailableError(f"Redis at {self.url} cannot be reached: {error}") from error


def _pairs(fields: Mapping[str, str | bytes]) -> list[str | bytes]:
    return [part for pair in fields.items() for part in pair]
