"""Choose something for a message by its queue, its exchange and its headers: the first of a list that fits."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from attrs import frozen

from dedup.errors import ConfigError

_HEADER: Final = "header."
#: A pattern that fits everything, a message that came through no exchange included.
_ANY: Final = "*"


@frozen
class Choice:
    """
    What is chosen for the messages that fit all of its patterns; ``*``, ``?`` and ``[abc]`` in them are as in a shell.
    """

    chosen: str
    queue: str = _ANY
    exchange: str = _ANY
    #: Name and pattern; a header that is not there, or is no text, number or boolean, fits none.
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Choice:
        """
        Read ``CHOSEN [queue=PATTERN] [exchange=PATTERN] [header.NAME=PATTERN ...]``; quotes hold blanks together.

        Raises:
            ConfigError: it is something else.
        """
        try:
            chosen, *conditions = shlex.split(text)
        except ValueError:
            raise ConfigError(
                f"{text!r} chooses nothing: write CHOSEN queue=PATTERN, quotes in pairs"
            ) from None
        names = {"queue": _ANY, "exchange": _ANY}
        headers = []
        for condition in conditions:
            name, separator, pattern = condition.partition("=")
            if separator and name in names:
                names[name] = pattern
            elif separator and name.startswith(_HEADER) and name != _HEADER:
                headers.append((name.removeprefix(_HEADER), pattern))
            else:
                raise ConfigError(
                    f"{text!r}: {condition!r} is none of queue=PATTERN, exchange=PATTERN, header.NAME=PATTERN"
                )
        return cls(chosen, names["queue"], names["exchange"], tuple(headers))

    def fits(self, queue: str, exchange: str, headers: Mapping[str, object]) -> bool:
        """
        Say whether this is for such a message.
        """
        return (
            fnmatchcase(queue, self.queue)
            and fnmatchcase(exchange, self.exchange)
            and all(_fits(headers.get(name), pattern) for name, pattern in self.headers)
        )


def choose(choices: Iterable[Choice], queue: str, exchange: str, headers: Mapping[str, object]) -> str | None:
    """
    Return what the first that fits chooses; None when none does.
    """
    return next((choice.chosen for choice in choices if choice.fits(queue, exchange, headers)), None)


def _fits(value: object, pattern: str) -> bool:
    if isinstance(value, bool):
        return fnmatchcase(str(value).lower(), pattern)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return isinstance(value, str | int | float) and fnmatchcase(str(value), pattern)
