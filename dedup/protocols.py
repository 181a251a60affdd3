"""Find what speaks a protocol, for the shim's relay and for publishers: built in, or brought by another package."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from dedup.amqp091.publishing import AMQP091
from dedup.amqp091.session import Session
from dedup.errors import ConfigError
from dedup.wire import Wire

#: The protocol that is always there.
BUILT_IN: Final = AMQP091.name
#: Entry points of this group name a subclass of Session each.
GROUP: Final = "dedup.protocols"
#: Entry points of this group name a Wire each.
PUBLISHERS: Final = "dedup.publishers"


def session_type(protocol: str) -> type[Session]:
    """
    Return what runs one session of a relay over *protocol*.

    Raises:
        ConfigError: there is no such protocol, or what it needs is not installed.
    """
    if protocol == BUILT_IN:
        return Session
    loaded: type[Session] = _load(GROUP, protocol)
    if not issubclass(loaded, Session):
        raise ConfigError(f"protocol {protocol!r} is {loaded!r}, which is no session of a relay")
    return loaded


def wire_of(protocol: str) -> Wire:
    """
    Return what publishes over *protocol*; errors are those of :func:`session_type`.
    """
    if protocol == BUILT_IN:
        return AMQP091
    loaded = _load(PUBLISHERS, protocol)
    if not isinstance(loaded, Wire):
        raise ConfigError(f"protocol {protocol!r} is {loaded!r}, which is nothing that publishes")
    return loaded


def _load(group: str, protocol: str) -> Any:
    found = entry_points(group=group)
    if protocol not in found.names:
        known = ", ".join(sorted({BUILT_IN, *found.names}))
        raise ConfigError(f"there is no protocol {protocol!r}; there are {known}")
    try:
        return found[protocol].load()
    except ImportError as error:
        raise ConfigError(
            f"protocol {protocol!r} cannot be used: {error}; install dedup[{protocol}], which needs a C compiler and Python's "
            "headers (Debian, Ubuntu: apt-get install gcc python3-dev)"
        ) from error
