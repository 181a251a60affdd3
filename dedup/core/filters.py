"""Say which messages are meant: by their headers, by where and why they died, and by how long ago."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from dedup.core.deaths import DeathHistory
from dedup.errors import ConfigError

#: What a condition may look like, for people.
FORMS: Final = "header:NAME=VALUE, reason=REASON, queue=QUEUE or older-than=90s|15m|12h|7d"
#: Conditions of one filter at the most.
CONDITIONS_MAX: Final = 32
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HEADER: Final = "header:"


@frozen
class Seen:
    """
    What a filter looks at in a message.
    """

    headers: Mapping[str, Any]
    history: DeathHistory
    #: The property timestamp; unix milliseconds. None: it has none.
    timestamp_ms: int | None = None

    @property
    def since_ms(self) -> int | None:
        """
        Return when it died last, or else when it says it was made; unix milliseconds. None: nobody knows.
        """
        newest = self.history.newest
        if newest is None:
            return self.timestamp_ms
        return newest.first_ms if newest.last_ms is None else newest.last_ms


_Condition = Callable[[Seen, int], bool]


@frozen
class Filter:
    """
    Conditions that a message must meet, all of them.
    """

    conditions: tuple[_Condition, ...] = ()

    def matches(self, seen: Seen, now_ms: int) -> bool:
        """
        Say whether a message is meant.

        Args:
            now_ms: Unix milliseconds.
        """
        return all(condition(seen, now_ms) for condition in self.conditions)


#: Everything is meant.
ALL: Final = Filter()


def read_filter(texts: Iterable[str]) -> Filter:
    """
    Return the filter of these conditions.

    ``reason`` and ``queue`` together mean one death: there, for that reason.

    Raises:
        ConfigError: one of them is no condition.
    """
    conditions: list[_Condition] = []
    death: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"{text!r} is no condition: write {FORMS}")
        if name in ("reason", "queue") and name not in death:
            death[name] = value
        elif name == "older-than":
            conditions.append(_older_than(value))
        elif name.startswith(_HEADER) and name != _HEADER:
            conditions.append(_header(name.removeprefix(_HEADER), value))
        else:
            raise ConfigError(f"{text!r} is no condition, or repeats one: write {FORMS}")
    if death:
        conditions.append(_died(**death))
    if len(conditions) > CONDITIONS_MAX:
        raise ConfigError(
            f"a filter has {CONDITIONS_MAX} conditions at the most, this one has {len(conditions)}"
        )
    return Filter(tuple(conditions))


def _header(name: str, value: str) -> _Condition:
    return lambda seen, _: name in seen.headers and _text(seen.headers[name]) == value


def _died(queue: str | None = None, reason: str | None = None) -> _Condition:
    return lambda seen, _: seen.history.count(queue=queue, reason=reason) > 0


def _older_than(text: str) -> _Condition:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise ConfigError(f"older-than={text!r} is no age: write 90s, 15m, 12h or 7d")
    age_ms = int(found[1]) * _UNITS_MS[found[2]]
    return lambda seen, now_ms: seen.since_ms is not None and now_ms - seen.since_ms >= age_ms


def _text(value: object) -> str:
    """
    Return a header's value as people write it.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)
