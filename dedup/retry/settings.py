"""Read what a retry service is told: the table ``retry`` of the settings, and flags, which go before it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from attrs import frozen

from dedup.core.retry_settings import RetrySettings
from dedup.core.schedule import ATTEMPTS_MAX, DELAY_S_MAX, DELAYS_S, Backoff
from dedup.errors import ConfigError
from dedup.retry.service import RetryServiceSettings
from dedup.store.schedule import ScheduleLimits

_BACKOFF: Final = frozenset({"delays_s", "attempts_max", "doubling"})
_DEFAULTS: Final = RetrySettings("")
_LIMITS: Final = ScheduleLimits()
_SYNCS: Final = ("server", "disk", "replica")
#: Whole numbers, and from where to where they go.
_NUMBERS: Final[Mapping[str, tuple[int, int, int | None]]] = {
    "rate_max": (1, 100_000, int(_DEFAULTS.rate_max)),
    "messages_max": (1, 100_000_000, _LIMITS.messages),
    "bytes_max": (1, 2**40, _LIMITS.bytes),
    "message_bytes_max": (1, 512 * 1024 * 1024, _DEFAULTS.message_bytes_max),
    "batch_max": (1, 20_000, _DEFAULTS.batch_max),
    "prefetch": (1, 65_535, None),
}
#: Every key of the table.
KEYS: Final = ("dead_letter_queues", *sorted(_BACKOFF), "queues", "sync", *_NUMBERS)


@frozen
class RetryTable:
    """
    The table, checked.
    """

    dead_letter_queues: tuple[str, ...]
    backoff: Backoff
    queues: Mapping[str, Backoff]
    sync: Any
    numbers: Mapping[str, int]
    prefetch: int | None

    def service(self, queue: str, *, amqp: str, redis: str, prefix: str) -> RetryServiceSettings:
        """
        Return what the service of one dead-letter queue is told.
        """
        numbers = self.numbers
        return RetryServiceSettings(
            amqp,
            redis,
            RetrySettings(
                queue,
                self.backoff,
                self.queues,
                batch_max=numbers["batch_max"],
                message_bytes_max=numbers["message_bytes_max"],
                rate_max=float(numbers["rate_max"]),
            ),
            ScheduleLimits(numbers["messages_max"], numbers["bytes_max"]),
            self.sync,
            self.prefetch,
            prefix,
        )


def read_table(table: Mapping[str, Any] | None, flags: Mapping[str, Any]) -> RetryTable:
    """
    Check table and flags; a flag that was not given is None or empty.

    Raises:
        ConfigError: a key that does not exist, or a value that cannot be.
    """
    values = {**(table or {}), **{key: value for key, value in flags.items() if value not in (None, ())}}
    _known(values, KEYS, "retry")
    queues = values.get("dead_letter_queues", ())
    if not isinstance(queues, list | tuple) or not all(isinstance(name, str) and name for name in queues):
        raise ConfigError("retry: dead_letter_queues is a list of queue names")
    if not queues:
        raise ConfigError(
            "no dead-letter queue is named: give --dead-letter-queue, or dead_letter_queues in the table retry of dedup.toml"
        )
    sync = values.get("sync", "server")
    if sync not in _SYNCS:
        raise ConfigError(f"retry: sync is one of {', '.join(_SYNCS)}, not {sync!r}")
    own = values.get("queues", {})
    if not isinstance(own, Mapping) or not all(isinstance(single, Mapping) for single in own.values()):
        raise ConfigError("retry: queues is a table of tables, such as [retry.queues.orders]")
    numbers = {
        key: _number(key, values.get(key, default), low, high)
        for key, (low, high, default) in _NUMBERS.items()
        if key in values or default is not None
    }
    prefetch = numbers.pop("prefetch", None)
    shared = {key: values[key] for key in _BACKOFF if key in values}
    return RetryTable(
        tuple(dict.fromkeys(queues)),
        _backoff("retry", shared),
        {name: _backoff(f"retry.queues.{name}", {**shared, **single}) for name, single in own.items()},
        sync,
        numbers,
        prefetch,
    )


def _backoff(where: str, values: Mapping[str, Any]) -> Backoff:
    _known(values, _BACKOFF, where)
    delays = values.get("delays_s", DELAYS_S)
    if not (
        isinstance(delays, list | tuple)
        and 0 < len(delays) <= ATTEMPTS_MAX
        and all(type(delay) in (int, float) and 0 < delay <= DELAY_S_MAX for delay in delays)
    ):
        raise ConfigError(
            f"{where}: delays_s is a list of seconds above 0, at most a year each and {ATTEMPTS_MAX:,} of them, such as [10, 100, 1000]"
        )
    delays_s = tuple(float(delay) for delay in delays)
    attempts = values.get("attempts_max")
    if attempts is not None:
        attempts = _number(f"{where}: attempts_max", attempts, 1, ATTEMPTS_MAX)
    doubling = values.get("doubling", False)
    if not isinstance(doubling, bool):
        raise ConfigError(f"{where}: doubling is true or false")
    return Backoff(delays_s, attempts, doubling)


def _number(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"{name.removeprefix('retry: ')} is a whole number from {low:,} to {high:,}, not {value!r}"
        )
    return value


def _known(values: Mapping[str, Any], keys: Any, where: str) -> None:
    for key in values:
        if key not in keys:
            near = get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(keys))}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
