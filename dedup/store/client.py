"""
One Redis as a store talks to it: its client and scripts, redis-py's errors as dedup's, and what its settings must be.

Two ways to ask. At the first look a wrong password, a missing right or a certificate that cannot be verified is a
`ConfigError` with what to mend: a process that cannot work should end at once and say so. After that whatever happens is a
`StoreUnavailableError`, with the same words: rights and passwords are changed under a running process and come back, which
then waits and asks again, and has lost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from dedup.core.urls import mask_url
from dedup.errors import ConfigError, DedupError, StateFormatError, StoreUnavailableError

#: First part of every key.
KEY_PREFIX = "dedup"
_GRANT = "docs/howto/permissions.md has the rights it needs"


class Client:
    """
    A client of one store. It sends each command once and, with TLS, checks whose certificate it is shown.

    redis-py's own retries are off (version 8 repeats ten times by default): the caller decides.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        key: The store's key, or what its keys begin with, for messages.
        kind: What is kept there.
        timeout_s: How long one call may take; seconds.

    Raises:
        ConfigError: *url* cannot be used.
    """

    def __init__(self, url: str, key: str, kind: str, *, timeout_s: float) -> None:
        #: Without its password.
        self.url = mask_url(url)
        self._key = key
        self._kind = kind
        options: dict[str, Any] = {}
        # redis-py before 6 takes any certificate of a known authority, whatever host it names; the URL still decides.
        if url.startswith("rediss:") and parse_qs(urlsplit(url).query).get("ssl_cert_reqs") != ["none"]:
            options["ssl_check_hostname"] = True
        try:
            self.redis = redis.Redis.from_url(
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
                f"{self.url!r} is no Redis URL; use redis://host:6379/0, rediss:// or unix://"
            ) from error

    def close(self) -> None:
        """
        Give the connection back.
        """
        self.redis.close()

    def script(self, name: str, head: str = "") -> Script:
        """
        Return a script of this package, with *head* before its text.
        """
        text = files("dedup.store").joinpath(f"{name}.lua").read_text("utf-8")
        return self.redis.register_script(head + text)

    def ask(self, command: Callable[[], Any]) -> Any:
        """
        Run *command* where a process that runs already waits for what does not work.

        Raises:
            StoreUnavailableError: it was not answered, or refused; it may have been carried out.
            StateFormatError: the key belongs to somebody else.
        """
        try:
            return command()
        except (redis.RedisError, OSError) as error:
            raise self._translated(error) from error

    def look(self, command: Callable[[], Any]) -> Any:
        """
        Run *command* at the first look, or for a person who waits for it.

        Raises:
            ConfigError: a person has to mend what the message names.
            StoreUnavailableError, StateFormatError: as of :meth:`ask`.
        """
        try:
            return command()
        except (redis.RedisError, OSError) as error:
            lasting = self._lasting(error)
            raise (ConfigError(lasting) if lasting else self._translated(error)) from error

    def check_rights(self, keys: Sequence[str], script: str = "rights", *arguments: str) -> None:
        """
        See that this user may do with *keys* what the scripts do with them.

        Args:
            script: The one that knows what they do, with its *arguments*.

        Raises:
            ConfigError: not all of it; or as :meth:`look`.
        """
        rights = self.script(script)
        refused = self.look(lambda: rights(keys=keys, args=arguments))
        if refused:
            commands = ", ".join(command.decode() for command in refused)
            raise ConfigError(
                f"Redis at {self.url} does not let this user {commands} on {self._key}; {_GRANT}"
            )

    def check_settings(self, danger: str) -> dict[str, Any]:
        """
        Return what the server says of itself, if it can be written to and keeps what it has.

        Args:
            danger: What it would do otherwise.

        Raises:
            ConfigError: it may throw keys away at any time, or is a replica; or as :meth:`look`.
        """
        info: dict[str, Any] = self.look(lambda: self.redis.info("everything"))
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys"):
            raise ConfigError(
                f"Redis at {self.url} evicts any key when memory is short (maxmemory-policy {policy}): "
                f"it {danger}; set maxmemory-policy noeviction"
            )
        if info.get("role") != "master":
            raise ConfigError(f"Redis at {self.url} is a replica and refuses writes; connect to its primary")
        return info

    def _translated(self, error: redis.RedisError | OSError) -> DedupError:
        if isinstance(error, redis.ResponseError) and "WRONGTYPE" in str(error):
            return StateFormatError(f"{self._key} in Redis is not {self._kind}: it belongs to somebody else")
        lasting = self._lasting(error)
        if lasting:
            return StoreUnavailableError(lasting)
        if isinstance(error, redis.ResponseError):
            return StoreUnavailableError(f"Redis at {self.url} refused: {error}")
        return StoreUnavailableError(f"Redis at {self.url} cannot be reached: {error}")

    def _lasting(self, error: BaseException) -> str:
        """
        Say what a person has to mend where waiting alone does not help; "" where it may.
        """
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, redis.AuthenticationError):
                return f"Redis at {self.url} refused the login; check user and password in the URL"
            if isinstance(cause, redis.exceptions.NoPermissionError):
                return f"Redis at {self.url} refused {self._key}: {cause}; {_GRANT}"
            if isinstance(cause, SSLCertVerificationError):
                return (
                    f"Redis at {self.url} has a certificate that cannot be verified ({cause.verify_message}); "
                    "see ssl_ca_certs"
                )
            cause = cause.__cause__ or cause.__context__
        return ""
