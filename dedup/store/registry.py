"""
The registry's memory in Redis: the newest owner of each publisher id of a virtual host, in two bounded keys.

Both scripts are atomic and may be repeated when their answer was lost. A publisher id that nobody has asked about for
*idle_s* gives way to a new one when there are *publishers_max*; what is handed out after that is above what it had, because
the clock is.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from dedup.core.identity import RANGE_EPOCH_S
from dedup.core.ranges import LEAD_S, base_of, range_of
from dedup.core.registry import Act, Answer, Record, Refusal, Request
from dedup.errors import StateFormatError
from dedup.store.client import KEY_PREFIX, Client

#: Publisher ids remembered at the most.
PUBLISHERS_MAX: Final = 1_000_000
#: Silence after which one may be forgotten; seconds. A publisher is heard of every ten minutes while it runs.
IDLE_S: Final = 30 * 86_400
_RECORD: Final = re.compile(r"(\d+) (\d+) (\w*) (.*)", re.DOTALL)
#: Whoever has to wait longer than this, in seconds, does not register too often: the clock has gone back.
_WAIT_S_MAX: Final = 60
_REFUSALS: Final = {
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
        self.keys = [key, f"{key}:heard"]
        self._max = publishers_max
        self._idle_s = idle_s
        self._client = Client(url, key, "a hash", timeout_s=timeout_s)
        self._register = self._client.script("register")
        self._renew = self._client.script("renew")

    def open(self) -> None:
        """
        Look for missing rights, and take note of a loss of memory now: the first publisher need not wait for it.

        Raises:
            ConfigError: a person has to give this user a right, or correct the login.
            StoreUnavailableError: Redis does not answer.
        """
        self._client.check_rights(self.keys)
        self._client.look(lambda: self._register(self.keys, ["", "", "", 0, LEAD_S, 0, 0]))

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
            found = self._client.ask(lambda: self._renew(self.keys, [*who, last, self._max]))
            return Answer(request.id, self._record(found))
        limits = [LEAD_S, self._max, int(self._idle_s)]
        status, *found = self._client.ask(lambda: self._register(self.keys, [*who, last, *limits]))
        if status in _REFUSALS:
            return Answer(request.id, Record(), *_REFUSALS[status])
        if status == b"later":
            return Answer(request.id, Record(), Refusal.LATER, _why_later(int(found[0])))
        return Answer(request.id, self._record(found[0]))

    def newest(self, count: int) -> list[tuple[str, Record]]:
        """
        Return the publisher ids heard of last, and what is known of each; newest first.
        """
        ids = self._client.look(lambda: self._client.redis.zrange(self.keys[1], 0, count - 1, desc=True))
        records = self._client.look(lambda: self._client.redis.hmget(self.keys[0], ids)) if ids else []
        return [
            (one.decode("utf-8", "replace"), self._record(record or b""))
            for one, record in zip(ids, records, strict=True)
        ]

    def close(self) -> None:
        """
        Give the connection back.
        """
        self._client.close()

    def _record(self, data: bytes) -> Record:
        if not data:
            return Record()
        found = _RECORD.fullmatch(data.decode("utf-8", "replace"))
        if found is None:
            raise StateFormatError(f"{self.keys[0]} in Redis is damaged; move the key away")
        at_s = int(found[2])
        return Record(base_of(int(found[1])), found[3], found[4], at_s + RANGE_EPOCH_S if at_s else 0)


def _why_later(seconds: int) -> str:
    if seconds <= _WAIT_S_MAX:
        return "ranges are handed out faster than the clock runs"
    return (
        f"the newest range is {seconds} s ahead of the clock of Redis, which has gone back as it seems; correct that clock, or use "
        "another publisher id"
    )
