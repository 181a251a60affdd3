"""
The schedule of a dead-letter queue in Redis: what waits, what is under way, and what may have been there before.

Six keys a dead-letter queue and one a session, written by scripts that say what each holds. Time is the server's own,
so sessions on machines whose clocks differ agree on what is due.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final, Literal
from urllib.parse import quote

import redis
from attrs import frozen
from redis.commands.core import Script

from dedup.core.obituaries import Reason
from dedup.core.retry_steps import Entry, Item, Kept
from dedup.core.urls import mask_url
from dedup.errors import ConfigError, StateFormatError, StoreFencedError, StoreUnavailableError
from dedup.ports import DeadLetter, ScheduleFacts
from dedup.store.redis import KEY_PREFIX, open_client

#: How much a dead letter is kept before it is acknowledged: "server": Redis has it; "disk": it is in the append-only
#: file, on disk; "replica": a replica has it as well.
Sync = Literal["server", "disk", "replica"]
#: Digests that nobody has asked for are forgotten after this; seconds.
DIGEST_KEEP_S: Final = 7 * 86_400
#: How long the disk or a replica may take; ms.
_SYNC_TIMEOUT_MS: Final = 2000
_SCRIPTS: Final = ("enter", "store", "forget", "claim", "settle", "recover")
#: Scripts that make room: Redis lets them run when it is out of memory, from version 7 on.
_MAKE_ROOM: Final = frozenset({"enter", "forget", "claim", "settle", "recover"})
_ALLOW: Final = "#!lua flags=allow-oom\n"
_FORMAT: Final = 1
#: Version, attempt, and the sizes of reason, queue, exchange, routing key and properties; the body is the rest.
_HEAD: Final = struct.Struct(">BIBHBBI")


@frozen
class ScheduleLimits:
    """
    How much one schedule holds at the most.
    """

    messages: int = 1_000_000
    bytes: int = 1024**3


class RedisSchedule:
    """
    The schedule of one dead-letter queue, as one session uses it; see :class:`dedup.ports.Schedule` for the calls.

    Not thread-safe: it belongs to the thread of its retrier.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        vhost: Virtual host of the dead-letter queue.
        queue: Its name.
        prefix: First part of every key.
        sync: What a dead letter's acknowledgement waits for.
        timeout_s: How long one call may take; seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        vhost: str,
        queue: str,
        limits: ScheduleLimits = ScheduleLimits(),
        prefix: str = KEY_PREFIX,
        sync: Sync = "server",
        timeout_s: float = 5.0,
    ) -> None:
        # The braces keep all keys of one queue in one slot of a cluster.
        self.key = f"{prefix}:{{{quote(vhost, safe='')}/{quote(queue, safe='')}}}:retry"
        self.url = mask_url(url)
        self._limits = limits
        self._sync = sync
        self._redis = open_client(url, timeout_s=timeout_s)
        self._scripts: dict[str, Script] = {}
        self._base = [
            f"{self.key}:{name}"
            for name in ("facts", "sessions", "due", "messages", "digests", "digest-times", "doubtful")
        ]

    def check(self) -> list[str]:
        """
        Look for settings of the server that endanger what it is told to keep.

        Returns:
            Warnings, each with its fix.

        Raises:
            ConfigError: the server may throw the schedule away at any time, is a replica, or cannot do what *sync* asks for.
            StoreUnavailableError: it cannot be reached.
        """
        info = self._ask(lambda: self._redis.info("everything"))
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys"):
            raise ConfigError(
                f"Redis at {self.url} evicts any key when memory is short (maxmemory-policy {policy}): "
                "it would lose dead letters; set maxmemory-policy noeviction"
            )
        if info.get("role") != "master":
            raise ConfigError(f"Redis at {self.url} is a replica and refuses writes; connect to its primary")
        persisted = bool(info.get("aof_enabled"))
        version = tuple(int(part) for part in str(info.get("redis_version", "0.0")).split(".")[:2])
        if self._sync == "disk" and not (persisted and version >= (7, 2)):
            why = (
                f"it is version {info.get('redis_version')}" if persisted else "it keeps no append-only file"
            )
            raise ConfigError(
                f'sync = "disk" needs Redis 7.2 or newer with appendonly yes; of the one at {self.url}, {why}'
            )
        if self._sync == "replica" and not int(info.get("connected_slaves", 0)):
            raise ConfigError(f'sync = "replica" needs a replica; Redis at {self.url} has none')
        if not persisted:
            return [
                f"Redis at {self.url} keeps no append-only file: when it ends, the dead letters it holds are lost; set appendonly yes"
            ]
        if self._sync == "server":
            text = (
                f"a dead letter is acknowledged when Redis at {self.url} has it, not its disk: a machine that loses power loses the "
                'newest second or two; sync = "disk" waits for that too'
            )
            return [text]
        return []

    # -- one session ------------------------------------------------------------------------------

    def enter(self, session: str) -> None:
        """
        Make *session* known.
        """
        self._run("enter", session)

    def store(self, session: str, number: int, entries: Sequence[Entry]) -> Sequence[Kept]:
        """
        Write down as many as there is room for.
        """
        arguments: list[Any] = [number, self._limits.messages, self._limits.bytes]
        for entry in entries:
            letter = entry.letter
            kind = "p" if entry.direct else "s" if letter.stamped else "u"
            message = b"" if entry.direct else encode_message(entry)
            arguments += (letter.digest, entry.own, kind, int(entry.delay_s * 1000), message)
        answer = self._run("store", session, *arguments)
        if self._sync == "disk":
            self._wait("WAITAOF", 1, 0, _SYNC_TIMEOUT_MS)
        elif self._sync == "replica":
            self._wait("WAIT", 1, _SYNC_TIMEOUT_MS)
        return [Kept(chr(said)) for said in answer]

    def forget(self, session: str, digests: Sequence[bytes]) -> None:
        """
        Forget *digests*.
        """
        self._run("forget", session, DIGEST_KEEP_S, *digests)

    def claim(self, session: str, at_most: int, bytes_at_most: int) -> list[Item]:
        """
        Take what is due, the oldest first.
        """
        flat = self._run("claim", session, at_most, bytes_at_most)
        return [
            decode_message(flat[at].decode(), flat[at + 2], marked=flat[at + 1] == b"1")
            for at in range(0, len(flat), 3)
        ]

    def settle(self, session: str, done: Sequence[str], refused: Sequence[str], delay_s: float) -> None:
        """
        Delete what was published, put back what was refused.
        """
        self._run("settle", session, int(delay_s * 1000), len(done), *done, *refused)

    # -- all sessions -----------------------------------------------------------------------------

    def sessions(self) -> list[str]:
        """
        Return the names of all sessions.
        """
        return [name.decode() for name in self._ask(lambda: self._redis.hkeys(self._base[1]))]

    def recover(self, session: str) -> int:
        """
        Take a session out whose connection is dead, and return how many messages it had claimed.
        """
        return int(self._run("recover", session))

    def facts(self) -> ScheduleFacts:
        """
        Return how full it is, and how late.
        """
        pipe = self._redis.pipeline(transaction=False)
        pipe.hlen(self._base[3])
        pipe.hget(self._base[0], "bytes")
        pipe.zrange(self._base[2], 0, 0, withscores=True)
        pipe.time()
        messages, size, oldest, (seconds, micros) = self._ask(pipe.execute)
        now_ms = seconds * 1000 + micros // 1000
        overdue = int(self._ask(lambda: self._redis.zcount(self._base[2], "-inf", now_ms))) if oldest else 0
        size = int(size or 0)
        room = messages < self._limits.messages * 0.98 and size < self._limits.bytes * 0.98
        late_s = max(0.0, (now_ms - oldest[0][1]) / 1000) if oldest else 0.0
        return ScheduleFacts(messages, size, overdue, late_s, room)

    def close(self) -> None:
        """
        Give the connection back.
        """
        self._redis.close()

    # -- talking ----------------------------------------------------------------------------------

    def _run(self, name: str, session: str, *arguments: Any) -> Any:
        if not self._scripts:
            self._load()
        keys = [*self._base, f"{self.key}:claimed:{session}"]
        answer = self._ask(lambda: self._scripts[name](keys=keys, args=[session, *arguments]))
        if answer == b"fenced":
            raise StoreFencedError(
                f"{self.key} does not know this session any more: it was taken for dead, or Redis was emptied"
            )
        return answer

    def _load(self) -> None:
        version = str(self._ask(lambda: self._redis.info("server")).get("redis_version", "0"))
        modern = int(version.partition(".")[0]) >= 7
        for name in _SCRIPTS:
            text = files("dedup.store").joinpath(f"retry_{name}.lua").read_text("utf-8")
            self._scripts[name] = self._redis.register_script(
                (_ALLOW if modern and name in _MAKE_ROOM else "") + text
            )

    def _wait(self, *command: Any) -> None:
        answer = self._ask(lambda: self._redis.execute_command(*command))  # type: ignore[no-untyped-call]
        if int(answer[0] if isinstance(answer, list) else answer) < 1:
            raise StoreUnavailableError(f"Redis at {self.url} has not written to its {self._sync} in time")

    def _ask(self, command: Callable[[], Any]) -> Any:
        """
        Run *command* and turn what redis-py raises into the errors of the port.
        """
        try:
            return command()
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            raise ConfigError(
                f"Redis at {self.url} refused {self.key}: {error}; docs/howto/permissions.md has the rights it needs"
            ) from error
        except redis.ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise StateFormatError(f"{self.key} in Redis belongs to somebody else") from error
            raise StoreUnavailableError(f"Redis at {self.url} refused: {error}") from error
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailableError(f"Redis at {self.url} cannot be reached: {error}") from error


def encode_message(entry: Entry) -> bytes:
    """
    Write one message as the schedule keeps it: all its bytes, and where it is to go.
    """
    letter: DeadLetter = entry.letter.payload
    reason = b"" if entry.reason is None else entry.reason.value.encode()
    queue = entry.queue.encode()
    sizes = (len(reason), len(queue), len(letter.exchange), len(letter.routing_key), len(letter.properties))
    head = _HEAD.pack(_FORMAT, entry.attempt, *sizes)
    return b"".join(
        (head, reason, queue, letter.exchange, letter.routing_key, letter.properties, letter.body)
    )


def decode_message(number: str, raw: bytes, *, marked: bool) -> Item:
    """
    Read what :func:`encode_message` wrote.

    Raises:
        StateFormatError: written by another version, or damaged.
    """
    try:
        version, attempt, *sizes = _HEAD.unpack_from(raw)
        if version != _FORMAT:
            raise StateFormatError(
                f"message {number} of the schedule has format {version}: upgrade dedup here too"
            )
        parts, at = [], _HEAD.size
        for size in sizes:
            parts.append(raw[at : at + size])
            at += size
        reason, queue, exchange, routing_key, properties = parts
        if at > len(raw):
            raise ValueError("cut short")
        letter = DeadLetter(exchange, routing_key, properties, raw[at:])
        return Item(
            number, queue.decode(), Reason(reason.decode()) if reason else None, attempt, marked, letter
        )
    except (struct.error, ValueError, TypeError) as error:
        raise StateFormatError(f"message {number} of the schedule is damaged: {error}") from error
