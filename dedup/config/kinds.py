"""What a setting may be: how each kind is read, and what it is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import attrs
from attrs import frozen

from dedup.core.urls import mask_url
from dedup.errors import ConfigError


@frozen
class Kind:
    """
    What a setting may be.
    """

    #: Takes what a source holds and returns the setting; a ValueError says what it is not.
    parse: Callable[[object], Any]
    #: Stands for the value in the help.
    word: str


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("is not a text")


def _url(value: object) -> str:
    url = _text(value).strip()
    if url and "://" not in url:
        raise ValueError("is not a URL")
    return url


def _management(value: object) -> str:
    return "off" if value == "off" else _url(value)


def _queues(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("is not a list of queue names")
    stripped = tuple(name.strip() for name in names)
    if "" in stripped:
        raise ValueError("has an empty queue name")
    if len({*stripped}) < len(stripped):
        raise ValueError("names a queue twice")
    return stripped


def number(low: float, high: float, of: type[int | float], *, none: bool = False) -> Kind:
    """
    A number within limits; *none*: or None.
    """
    what = "a whole number" if of is int else "a number"

    def parse(value: object) -> int | float | None:
        if none and value is None:
            return None
        found = None
        # Python takes True for 1, and int() cuts 2.5 to 2.
        if isinstance(value, str | int | of) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                found = of(value)
        if found is None or not low <= found <= high:
            raise ValueError(f"is not {what} from {low:,} to {high:,}")
        return found

    return Kind(parse, "NUMBER")


def one_of(*choices: str) -> Kind:
    """
    One of a few words.
    """

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return str(value)

    return Kind(parse, "|".join(choices))


def _address(value: object) -> str:
    address = _text(value)
    host, _, port = address.rpartition(":")
    if address and not (host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError("is not host:port, such as 127.0.0.1:9464 or [::]:9464")
    return address


def _table(value: object) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    if value is not None and not isinstance(value, dict):
        raise ValueError("is not a table")
    return value


def _header(value: object) -> str:
    name = _text(value).strip()
    if len(name.encode()) > 255:
        raise ValueError("is longer than a header's name can be, 255 bytes")
    return name


def rules(read: Callable[[tuple[str, ...]], object]) -> Kind:
    """
    Rules by semicolons; *read* raises a ConfigError at what is none.
    """

    def parse(value: object) -> tuple[str, ...]:
        texts = value.split(";") if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError("is not a list of texts")
        stripped = tuple(text.strip() for text in texts if text.strip())
        try:
            read(stripped)
        except ConfigError as error:
            raise ValueError(f"cannot be used: {error}") from None
        return stripped

    return Kind(parse, "RULE")


def text(word: str) -> Kind:
    """
    Any text; *word* stands for it in the help.
    """
    return Kind(_text, word)


URL: Final = Kind(_url, "URL")
MANAGEMENT: Final = Kind(_management, "URL")
QUEUES: Final = Kind(_queues, "NAME")
HEADER: Final = Kind(_header, "NAME")
ADDRESS: Final = Kind(_address, "HOST:PORT")
TABLE: Final = Kind(_table, "JSON")


def setting(default: Any, kind: Kind, about: str, *, hidden: bool = False) -> Any:
    """
    A setting of a class of settings, checked whoever sets it.

    Args:
        about: What it does, for people.
        hidden: It is a secret as a whole; of other URLs only the password is.
    """
    secret = kind.word == "URL"

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        parsed(attribute, value, where=attribute.name)

    return attrs.field(
        default=default,
        validator=check,
        repr=(lambda value: repr(mask_url(value))) if secret and not hidden else not hidden,
        metadata={"kind": kind, "about": about, "secret": secret},
    )


def parsed(attribute: attrs.Attribute[Any], value: object, *, where: str) -> Any:
    """
    Return the value of a setting from what a source holds; *where* is what to call its place.

    Raises:
        ConfigError: it cannot be that.
    """
    try:
        return attribute.metadata["kind"].parse(value)
    except ValueError as error:
        shown = "what it is set to" if attribute.metadata["secret"] else repr(value)
        raise ConfigError(f"{where}: {shown} {error}") from None
