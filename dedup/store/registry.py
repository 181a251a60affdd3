"""
The registry's memory in Redis: the newest owner of each publisher id of a virtual host, in two bounded keys and a small one.

Both scripts are atomic and may be repeated when their answer was lost. A publisher id that nobody has asked about for
*idle_s* gives way to a new one when there are *publishers_max*; what is handed out after that is above what it had, because
the clock is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

import redis
from redis.commands.core import Script

from dedup.core.identity import RANGE_EPOCH_S
from dedup.core.ranges import LEAD_S, base_of, range_of
from dedup.core.registry import Act, Answer, Record, Refusal, Request
from dedup.core.urls import mask_url
from dedup.errors import ConfigError, StateFormatError, StoreUnavailableError
from dedup.store.redis import GRANT, KEY_PREFIX, open_client

#: Publisher ids remembered at the most.
PUBLISHERS_MAX: Final = 1_000_000
#: Silence after which one may be forgotten; seconds. A publisher is heard of every ten minutes while it runs.
IDLE_S: Final = 30 * 86_400
_RECORD: Final = re.compile(r"(\d+) (\d+) (\w*) (.*)", re.DOTALL)
_REFUSALS: Final = {
    b"later": (Refusal.LATER, "ranges are handed out faster than the clock runs"),
    b"ahead": (
        Refusal.INVALID,
        "its sequences are above any that the clock will give; use another publisher id",
    ),
    b"full": (Refusal.FULL, "the registry has no room for one more publisher id"),
}


class RedisRegistry:
    """
    Carry out requests; not thread-safe.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        vhost: Virtual host whose publishers it serves.
        prefix: First part of the keys.
        publishers_max: Publisher ids remembered at the most.
        idle_s: Silence after which one may be forgotten.
        timeout_s: How long one call may take; seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        vhost: str,
        prefix: str = KEY_PREFIX,
        publishers_max: int = PUBLISHERS_MAX,
        idle_s: float = IDLE_S,
        timeout_s: float = 2.0,
    ) -> None:
        # The braces keep the keys in one slot of a cluster; no guarded queue's key has the same.
        key = f"{prefix}:{{{quote(vhost, safe='')}}}:registry"
        self.keys = [key, f"{key}:heard", f"{key}:since"]
        self.url = mask_url(url)
        self._max = publishers_max
        self._idle_s = idle_s
        self._redis = open_client(url, timeout_s=timeout_s)
        self._register = self._script("register")
        self._renew = self._script("renew")
        self._rights = self._script("rights")

    def open(self) -> None:
        """
        Look for missing rights, and take note of a loss of memory now: the first publisher need not wait for it.

        Raises:
            ConfigError: a person has to give this user a right.
            StoreUnavailableError: Redis does not answer.
        """
        refused = self._call(lambda: self._rights(self.keys))
        if refused:
            commands = ", ".join(command.decode() for command in refused)
            raise ConfigError(
                f"Redis at {self.url} does not let this user {commands} on {self.keys[0]}; {GRANT}"
            )
        self._call(lambda: self._register(self.keys, ["", "", "", 0, LEAD_S, 0, 0]))

    def answer(self, request: Request) -> Answer:
        """
        Carry out one request.

        Raises:
            StoreUnavailableError: Redis does not answer; it may have been carried out.
            StateFormatError: somebody else has written to the keys.
        """
        who = [request.publisher_id, "" if request.act is Act.SHOW else request.owner, request.holder]
        last = range_of(request.last)
        if request.act is not Act.REGISTER:
            found = self._call(lambda: self._renew(self.keys[:2], [*who, last, self._max]))
            return Answer(request.id, self._record(found))
        limits = [LEAD_S, self._max, int(self._idle_s)]
        status, *found = self._call(lambda: self._register(self.keys, [*who, last, *limits]))
        if status in _REFUSALS:
            return Answer(request.id, Record(), *_REFUSALS[status])
        return Answer(request.id, self._record(found[0]))

    def newest(self, count: int) -> list[tuple[str, Record]]:
        """
        Return the publisher ids heard of last, and what is known of each; newest first.
        """
        ids = self._call(lambda: self._redis.zrange(self.keys[1], 0, count - 1, desc=True))
        records = self._call(lambda: self._redis.hmget(self.keys[0], ids)) if ids else []
        return [
            (one.decode("utf-8", "replace"), self._record(record or b""))
            for one, record in zip(ids, records, strict=True)
        ]

    def close(self) -> None:
        """
        Give the connection back.
        """
        self._redis.close()

    def _record(self, data: bytes) -> Record:
        if not data:
            return Record()
        found = _RECORD.fullmatch(data.decode("utf-8", "replace"))
        if found is None:
            raise StateFormatError(f"{self.keys[0]} in Redis is damaged; move the key away")
        at_s = int(found[2])
        return Record(base_of(int(found[1])), found[3], found[4], at_s + RANGE_EPOCH_S if at_s else 0)

    def _script(self, name: str) -> Script:
        return self._redis.register_script(files("dedup.store").joinpath(f"{name}.lua").read_text("utf-8"))

    def _call(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.exceptions.NoPermissionError as error:
            raise ConfigError(f"Redis at {self.url} refused {self.keys[0]}: {error}; {GRANT}") from error
        except redis.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise StateFormatError(f"{self.keys[0]} in Redis belongs to somebody else") from error
            raise StoreUnavailableError(f"Redis at {self.url} refused: {error}") from error
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailableError(f"Redis at {self.url} cannot be reached: {error}") from error
