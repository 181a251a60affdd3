"""
The schedule of a dead-letter queue in Redis: what waits, what is under way, and what may have been there before.

Six keys a dead-letter queue and one a session, written by scripts that say what each holds. Time is the server's own,
so sessions on machines whose clocks differ agree on what is due.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

import redis
from attrs import frozen
from redis.commands.core import Script

from dedup.core.obituaries import Reason
from dedup.core.retry_steps import Entry, Item, Kept
from dedup.errors import (
    ConfigError,
    StateFormatError,
    StoreFencedError,
    StoreLimitError,
    StoreUnavailableError,
)
from dedup.ports import DeadLetter, ScheduleFacts
from dedup.store.client import KEY_PREFIX, Client

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
#: The lowest limit of one value that Redis can be given (proto-max-bulk-len), and the one it has by itself; bytes.
_VALUE_BYTES_MIN: Final = 1024**2
_VALUE_BYTES_MAX: Final = 512 * 1024**2
#: So often in a row Redis may cut the connection over a large value, and answer everything else, until that is its size.
_CUTS_MAX: Final = 3
#: What a message may have beside its properties and its body; bytes.
_ADDRESS_BYTES_MAX: Final = 1024
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
        on_lost: Told how many messages are due that Redis has no more: it has evicted them, or somebody has deleted them.
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
        on_lost: Callable[[int], None] = lambda _: None,
    ) -> None:
        # The braces keep all keys of one queue in one slot of a cluster.
        self.key = f"{prefix}:{{{quote(vhost, safe='')}/{quote(queue, safe='')}}}:retry"
        self._limits = limits
        self._sync = sync
        self._on_lost = on_lost
        #: Where the server does not tell it.
        self._value_bytes_max = _VALUE_BYTES_MAX
        #: How often in a row Redis has cut the connection over a large value.
        self._cuts = 0
        self._client = Client(url, self.key, "a schedule", timeout_s=timeout_s)
        self.url = self._client.url
        self._scripts: dict[str, Script] = {}
        self._base = [
            f"{self.key}:{name}"
            for name in ("facts", "sessions", "due", "messages", "digests", "digest-times", "doubtful")
        ]

    def check(self) -> list[str]:
        """
        Look for settings of the server that endanger what it is told to keep, and for rights that are missing.

        Returns:
            Warnings, each with its fix.

        Raises:
            ConfigError: the server may throw the schedule away at any time, is a replica, cannot do what *sync* asks for, or lets
                this user in not at all or not far enough.
            StoreUnavailableError: it cannot be reached.
        """
        self._client.check_rights(self._keys(""), "retry_rights", self._sync)
        info = self._client.check_settings("would lose dead letters")
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

    def message_bytes_max(self) -> int:
        """
        Return how large one message may be for this server; bytes.
        """
        try:
            told = self._client.ask(lambda: self._client.redis.config_get("proto-max-bulk-len"))
        except StoreUnavailableError:  # not to this user, not with this provider, or not now
            told = {}
        return int(told.get("proto-max-bulk-len", self._value_bytes_max)) - _ADDRESS_BYTES_MAX

    def _keys(self, session: str) -> list[str]:
        return [*self._base, f"{self.key}:claimed:{session}"]

    # -- one session ------------------------------------------------------------------------------

    def enter(self, session: str) -> None:
        """
        Make *session* known.
        """
        self._run("enter", session)

    def store(self, session: str, number: int, entries: Sequence[Entry]) -> Sequence[Kept]:
        """
        Write down as many as there is room for; none while Redis is out of memory.

        Raises:
            StoreLimitError: one is larger than this server takes.
        """
        arguments: list[Any] = [number, self._limits.messages, self._limits.bytes]
        largest = 0
        for entry in entries:
            letter = entry.letter
            kind = "p" if entry.direct else "s" if letter.stamped else "u"
            message = b"" if entry.direct else encode_message(entry)
            largest = max(largest, len(message))
            arguments += (letter.digest, entry.own, kind, int(entry.delay_s * 1000), message)
        try:
            answer = self._run("store", session, *arguments)
        except StoreUnavailableError as error:
            if _out_of_memory(error):
                return []
            self._check_size(largest, error)
            raise
        self._cuts = 0
        if self._sync == "disk":
            self._wait("WAITAOF", 1, 0, _SYNC_TIMEOUT_MS)
        elif self._sync == "replica":
            self._wait("WAIT", 1, _SYNC_TIMEOUT_MS)
        return [Kept(chr(said)) for said in answer]

    def _check_size(self, largest: int, error: StoreUnavailableError) -> None:
        """
        See whether Redis has closed the connection on a value that is too large for it, which often is all it says.
        """
        if largest <= _VALUE_BYTES_MIN:
            return
        if "invalid bulk length" in str(error) or self._is_cut_off(error):
            self._value_bytes_max = _VALUE_BYTES_MIN
        limit = self.message_bytes_max()
        if largest > limit:
            raise StoreLimitError(
                f"Redis at {self.url} takes no value over {limit:,} bytes (proto-max-bulk-len), a dead letter has {largest:,}"
            ) from error

    def _is_cut_off(self, error: StoreUnavailableError) -> bool:
        """
        Say whether Redis cuts the connection each time, and answers else: what it said of the reason got lost with the connection.
        """
        cause = error.__cause__
        cut = type(cause) is redis.ConnectionError or isinstance(cause, OSError)
        try:
            self._cuts = self._cuts + 1 if cut and self._client.ask(self._client.redis.ping) else 0
        except StoreUnavailableError:
            self._cuts = 0
        return self._cuts >= _CUTS_MAX

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
        rows = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        lost = [number for number, _, message in rows if message is None]
        if lost:
            self._run("settle", session, 0, len(lost), *lost)
            self._on_lost(len(lost))
        return [
            decode_message(number.decode(), message, marked=doubtful == b"1")
            for number, doubtful, message in rows
            if message is not None
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
        return [name.decode() for name in self._client.ask(lambda: self._client.redis.hkeys(self._base[1]))]

    def recover(self, session: str) -> int:
        """
        Take a session out whose connection is dead, and return how many messages it had claimed.
        """
        return int(self._run("recover", session))

    def facts(self) -> ScheduleFacts:
        """
        Return how full it is, and how late.
        """
        pipe = self._client.redis.pipeline(transaction=False)
        pipe.hlen(self._base[3])
        pipe.hget(self._base[0], "bytes")
        pipe.zrange(self._base[2], 0, 0, withscores=True)
        pipe.time()
        pipe.info("memory")
        messages, size, oldest, (seconds, micros), memory = self._client.ask(pipe.execute)
        now_ms = seconds * 1000 + micros // 1000
        overdue = (
            int(self._client.ask(lambda: self._client.redis.zcount(self._base[2], "-inf", now_ms)))
            if oldest
            else 0
        )
        size = int(size or 0) if messages else 0
        room = messages < self._limits.messages * 0.98 and size < self._limits.bytes * 0.98
        room = room and not 0 < memory.get("maxmemory", 0) <= memory.get("used_memory", 0)
        late_s = max(0.0, (now_ms - oldest[0][1]) / 1000) if oldest else 0.0
        return ScheduleFacts(messages, size, overdue, late_s, room)

    def close(self) -> None:
        """
        Give the connection back.
        """
        self._client.close()

    # -- talking ----------------------------------------------------------------------------------

    def _run(self, name: str, session: str, *arguments: Any) -> Any:
        if not self._scripts:
            self._load()
        keys = self._keys(session)
        answer = self._client.ask(lambda: self._scripts[name](keys=keys, args=[session, *arguments]))
        if answer == b"fenced":
            raise StoreFencedError(
                f"{self.key} does not know this session any more: it was taken for dead, or Redis was emptied"
            )
        return answer

    def _load(self) -> None:
        version = str(self._client.ask(lambda: self._client.redis.info("server")).get("redis_version", "0"))
        modern = int(version.partition(".")[0]) >= 7
        for name in _SCRIPTS:
            head = _ALLOW if modern and name in _MAKE_ROOM else ""
            self._scripts[name] = self._client.script(f"retry_{name}", head)

    def _wait(self, *command: Any) -> None:
        answer = self._client.ask(lambda: self._client.redis.execute_command(*command))  # type: ignore[no-untyped-call]
        if int(answer[0] if isinstance(answer, list) else answer) < 1:
            raise StoreUnavailableError(f"Redis at {self.url} has not written to its {self._sync} in time")


def _out_of_memory(error: StoreUnavailableError) -> bool:
    """
    Say whether Redis has refused a write for want of memory; redis-py takes the code off some of these errors.
    """
    return "OOM" in str(error) or "maxmemory" in str(error)


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
