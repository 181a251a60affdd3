"""Find what drives the shim's relay over a protocol: built in, or brought by another package."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

from dedup.amqp091.session import Session
from dedup.errors import ConfigError

#: The protocol that is always there.
BUILT_IN: Final = "amqp091"
#: Entry points of this group name a subclass of Session each.
GROUP: Final = "dedup.protocols"


def session_type(protocol: str) -> type[Session]:
    """
    Return what runs one session of a relay over *protocol*.

    Raises:
        ConfigError: there is no such protocol, or what it needs is not installed.
    """
    if protocol == BUILT_IN:
        return Session
    found = entry_points(group=GROUP)
    if protocol not in found.names:
        known = ", ".join(sorted({BUILT_IN, *found.names}))
        raise ConfigError(f"there is no protocol {protocol!r}; there are {known}")
    try:
        loaded: type[Session] = found[protocol].load()
    except ImportError as error:
        raise ConfigError(
            f"protocol {protocol!r} cannot be used: {error}; install dedup[{protocol}], which needs a C compiler and Python's "
            "headers (Debian, Ubuntu: apt-get install gcc python3-dev)"
        ) from error
    if not issubclass(loaded, Session):
        raise ConfigError(f"protocol {protocol!r} is {loaded!r}, which is no session of a relay")
    return loaded
