"""
Read the settings of the command line: from dedup.toml, the environment and flags, in rising order.

Every value is checked where it is read, so that a message can name the file, variable or flag it came
from; the values of URLs are never in one.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import frozen

from dedup.amqp091.management import Management
from dedup.core.choices import Choice
from dedup.core.identity import UserBinding
from dedup.core.obituaries import severity_rules
from dedup.core.settings import RelaySettings
from dedup.core.urls import mask_url, readable_on_the_way
from dedup.errors import ConfigError
from dedup.protocols import BUILT_IN
from dedup.shim import ShimSettings
from dedup.store.redis import KEY_PREFIX
from dedup.store.registry import IDLE_S, PUBLISHERS_MAX

#: The file that is read when it is there and no other one is named.
DEFAULT_FILE: Final = Path("dedup.toml")
#: Names another file.
FILE_VARIABLE: Final = "DEDUP_CONFIG"
_RELAY: Final = RelaySettings()
#: Of the setting "untracked": tell messages by their message id.
MESSAGE_ID: Final = "message-id"
#: The same, by the numbers that JMS and other clients of AMQP 1.0 give the messages of a group.
GROUP_SEQUENCE: Final = "group-sequence"


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
    text = _text(value).strip()
    if text and "://" not in text:
        raise ValueError("is not a URL")
    return text


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


def _number(low: float, high: float, of: type[int | float], *, none: bool = False) -> Kind:
    what = "a whole number" if of is int else "a number"

    def parse(value: object) -> int | float | None:
        if none and value is None:
            return None
        number = None
        # Python takes True for 1, and int() cuts 2.5 to 2.
        if isinstance(value, str | int | of) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                number = of(value)
        if number is None or not low <= number <= high:
            raise ValueError(f"is not {what} from {low:,} to {high:,}")
        return number

    return Kind(parse, "NUMBER")


def _one_of(*choices: str) -> Kind:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return str(value)

    return Kind(parse, "|".join(choices))


def _address(value: object) -> str:
    text = _text(value)
    host, _, port = text.rpartition(":")
    if text and not (host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError("is not host:port, such as 127.0.0.1:9464 or [::]:9464")
    return text


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


def _choices(read: Callable[[tuple[str, ...]], object]) -> Kind:
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


def _setting(default: Any, kind: Kind, about: str, *, hidden: bool = False) -> Any:
    secret = kind.word == "URL"

    def check(_: Settings, attribute: attrs.Attribute[Any], value: object) -> None:
        _parsed(attribute, value, where=attribute.name)

    return attrs.field(
        default=default,
        validator=check,
        repr=(lambda value: repr(mask_url(value))) if secret and not hidden else not hidden,
        metadata={"kind": kind, "about": about, "secret": secret},
    )


@frozen(kw_only=True)
class Settings:
    """
    Everything that can be set; ``dedup shim --help`` shows it with the same words.
    """

    amqp: str = _setting(
        "", Kind(_url, "URL"), "AMQP URL, amqp:// or amqps://; several hosts of one cluster by commas."
    )
    redis: str = _setting("", Kind(_url, "URL"), "Redis URL: redis://, rediss:// or unix://.")
    queues: tuple[str, ...] = _setting((), Kind(_queues, "NAME"), "Queues to forward, each guarded before.")
    management: str = _setting(
        "",
        Kind(_management, "URL"),
        'URL of the management API, or "off"; by default port 15672 of the AMQP host.',
    )
    forwarding: str = _setting(
        "auto",
        _one_of("auto", "exact", "confirmed"),
        "exact (transactions), confirmed, or auto: exact where that is sound.",
    )
    protocol: str = _setting(
        BUILT_IN,
        Kind(_text, "NAME"),
        "What ingress and target are spoken to with: amqp091, or amqp10, which dedup[amqp10] brings.",
    )
    window_size: int = _setting(
        _RELAY.window_size, _number(16, 1_048_576, int), "Sequences remembered of each publisher."
    )
    publishers_max: int = _setting(
        _RELAY.publishers_max, _number(1, 10_000_000, int), "Publishers remembered of each queue."
    )
    publisher_idle_s: float = _setting(
        _RELAY.publisher_idle_s,
        _number(1, 10 * 365 * 86_400, float),
        "Seconds after which a silent publisher may be forgotten for a new one.",
    )
    batch_max: int = _setting(_RELAY.batch_max, _number(1, 20_000, int), "Messages of one batch at the most.")
    batch_bytes_max: int = _setting(
        _RELAY.batch_bytes_max, _number(1, 2**31 - 1, int), "Bytes of one batch at the most."
    )
    marker_every: int = _setting(
        _RELAY.marker_every,
        _number(1, 20_000, int),
        "Messages a killed shim may leave marked: a marker follows so many of them.",
    )
    prefetch: int | None = _setting(
        None,
        _number(1, 65_535, int, none=True),
        "Deliveries the broker may send ahead; by default two batches.",
    )
    untracked: str = _setting(
        "forward",
        _one_of("forward", "quarantine", MESSAGE_ID, GROUP_SEQUENCE),
        "What to do with messages without id or sequence; message-id, group-sequence: de-duplicate them by these.",
    )
    message_id_header: str = _setting(
        "",
        Kind(_header, "NAME"),
        "The header to take for the message id, such as x-deduplication-header; by default the property message-id.",
    )
    message_ids_max: int = _setting(
        _RELAY.message_ids_max,
        _number(1_000, 10_000_000, int),
        "Message ids remembered of each queue; the oldest go first.",
    )
    message_id_keep_s: float = _setting(
        _RELAY.message_id_keep_s,
        _number(60, 366 * 86_400, float),
        "Seconds for which a message id is remembered.",
    )
    without_message_id: str = _setting(
        "forward",
        _one_of("forward", "quarantine"),
        "What to do with messages that have no message id either, where untracked is message-id.",
    )
    duplicates: str = _setting(
        "drop", _one_of("drop", "park"), "drop duplicates, or park them in the quarantine."
    )
    check_bodies: str = _setting(
        "off",
        _one_of("off", "on"),
        "on: quarantine what has the sequence of a message and another body, instead of dropping it.",
    )
    bind_publisher_to_user: str = _setting(
        "off",
        _one_of(*(binding.value for binding in UserBinding)),
        "Quarantine messages whose publisher id is not their user's name (same), or does not begin with it and a colon (prefix).",
    )
    audit: str = _setting(
        "off",
        _one_of("off", "events"),
        "events: tell the audit of every arrival, in the queue's own .dedup.audit.",
    )
    registry: str = _setting(
        "on", _one_of("on", "off"), "on: serve the registry of publishers of the virtual host too."
    )
    registrations_max: int = _setting(
        PUBLISHERS_MAX, _number(1, 100_000_000, int), "Publishers that the registry remembers."
    )
    registration_idle_s: int = _setting(
        IDLE_S,
        _number(3600, 10 * 365 * 86_400, int),
        "Seconds after which the registry may forget a publisher it hears nothing of, for a new one.",
    )
    obituary_webhook: str = _setting(
        "",
        Kind(_url, "URL"),
        "Where obituaries are posted as JSON, except silent ones.",
        hidden=True,  # its path is a secret as well
    )
    obituary_severity: tuple[str, ...] = _setting(
        (),
        _choices(severity_rules),
        "page, notify or silent, and for which messages, as in: page queue=orders*. The first that fits decides, else notify.",
    )
    protobuf_descriptors: str = _setting(
        "", Kind(_text, "FILE"), "Descriptor set that shows bodies of dead letters that are protobuf."
    )
    protobuf_types: tuple[str, ...] = _setting(
        (),
        _choices(lambda texts: [Choice.parse(text) for text in texts]),
        "Type of such a body, and for which messages, as in: shop.Order queue=orders. The first that fits decides.",
    )
    retry: Mapping[str, Any] | None = _setting(
        None, Kind(_table, "JSON"), "The table of dedup retry, as JSON; in a file, [retry]."
    )
    redis_prefix: str = _setting(KEY_PREFIX, Kind(_text, "TEXT"), "First part of every key in Redis.")
    listen: str = _setting(
        "", Kind(_address, "HOST:PORT"), "host:port of /metrics, /livez and /readyz; empty: none."
    )
    log_format: str = _setting(
        "auto", _one_of("auto", "console", "json"), "console, json, or auto: console on a terminal."
    )
    log_level: str = _setting(
        "info", _one_of("debug", "info", "warning", "error"), "The least important events to log."
    )

    def require(self, *names: str) -> None:
        """
        Refuse to go on without these.

        Raises:
            ConfigError: one of them is not set; the message says where it can be.
        """
        for name in names:
            if not getattr(self, name):
                raise ConfigError(
                    f"{name} is not set: give {flag(name)}, {variable(name)}, or {name} in {DEFAULT_FILE}"
                )

    def shim(self, queue: str) -> ShimSettings:
        """
        Return what the shim of one queue is told.

        Raises:
            ConfigError: settings that do not fit together.
        """
        self._check_message_ids()
        if self.untracked == GROUP_SEQUENCE and self.protocol == BUILT_IN:
            raise ConfigError(
                f'untracked = "{GROUP_SEQUENCE}" needs protocol = "amqp10": RabbitMQ drops group-sequence on the way to AMQP 0.9.1'
            )
        by_message_id = self.untracked == MESSAGE_ID
        unknown = self.without_message_id if by_message_id else self.untracked
        relay = RelaySettings(
            window_size=self.window_size,
            publishers_max=self.publishers_max,
            publisher_idle_s=self.publisher_idle_s,
            batch_max=self.batch_max,
            batch_bytes_max=self.batch_bytes_max,
            marker_every=self.marker_every,
            quarantine_untracked=unknown == "quarantine",
            by_message_id=by_message_id,
            by_group_sequence=self.untracked == GROUP_SEQUENCE,
            message_id_header=self.message_id_header,
            message_ids_max=self.message_ids_max,
            message_id_keep_s=self.message_id_keep_s,
            park_duplicates=self.duplicates == "park",
            check_bodies=self.check_bodies == "on",
            bind_publisher_to_user=UserBinding(self.bind_publisher_to_user),
            audit=self.audit == "events",
        )
        return ShimSettings(
            self.amqp,
            self.redis,
            queue,
            relay,
            self.forwarding,
            self.prefetch,
            self.redis_prefix,
            self.protocol,
        )

    def _check_message_ids(self) -> None:
        if self.untracked != MESSAGE_ID:
            if self.message_id_header or self.without_message_id != "forward":
                raise ConfigError(
                    f'message_id_header and without_message_id are for untracked = "{MESSAGE_ID}"; set that too, or neither'
                )
            return
        # What a dead shim had in flight comes again among as many new ones, and a batch may be on its way.
        needed = 2 * (self.prefetch or 2 * self.batch_max) + self.batch_max
        if self.message_ids_max < needed:
            raise ConfigError(
                f"message_ids_max is {self.message_ids_max}, and a killed shim may leave messages in flight whose ids must be "
                f"known: {needed} (two prefetch and a batch); raise it, or lower prefetch and batch_max"
            )

    def management_api(self) -> Management | None:
        """
        Return a client of the management API; None when it is off.
        """
        return None if self.management == "off" else Management(self.management, amqp=self.amqp)

    def readable_on_the_way(self) -> list[str]:
        """
        Return the URLs, masked, that lead to another machine without TLS.
        """
        management = self.management_api()
        return readable_on_the_way([self.amqp, self.redis, management.url if management else ""])


#: By name; the metadata has the "kind", "about" for people, and whether it is "secret".
FIELDS: Final[Mapping[str, attrs.Attribute[Any]]] = attrs.fields_dict(Settings)
#: What the shim does not need.
DEAD_LETTER_FIELDS: Final = (
    "retry",
    "obituary_webhook",
    "obituary_severity",
    "protobuf_descriptors",
    "protobuf_types",
)


def flag(name: str) -> str:
    """
    Return the flag of a setting; that of a list takes one of it.
    """
    return "--queue" if name == "queues" else f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """
    Return the environment variable of a setting.
    """
    return f"DEDUP_{name.upper()}"


def load(
    flags: Mapping[str, object],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """
    Read file, environment and flags; the later goes before the earlier.

    Args:
        flags: By setting; None where a flag was not given.
        file: Must be there when given; else the one of DEDUP_CONFIG must, else dedup.toml may.

    Raises:
        ConfigError: a value that cannot be, an unknown name, a file that cannot be read.
    """
    values: dict[str, Any] = {}
    for where, name, value in _sources(flags, file, environ):
        values[name] = _parsed(FIELDS[name], value, where=where)
    return Settings(**values)


def _sources(
    flags: Mapping[str, object], file: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, object]]:
    """
    Yield each value with what to call its place, the weakest first.
    """
    path = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    if path is not None or DEFAULT_FILE.exists():
        path = path or DEFAULT_FILE
        for key, value in _read(path).items():
            yield f"{path}: {key}", _known(key, path), value
    for name, attribute in FIELDS.items():
        # "dedup demo" knows its servers as DEDUP_AMQP_URL and DEDUP_REDIS_URL: these serve here too.
        spellings = [f"{variable(name)}_URL"] if attribute.metadata["secret"] else []
        for spelling in (*spellings, variable(name)):
            if environ.get(spelling):
                yield spelling, name, environ[spelling]
    for name, value in flags.items():
        if value not in (None, ()):
            yield flag(name), name, value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _known(key: str, path: Path) -> str:
    name = key.replace("-", "_")
    if name in FIELDS:
        return name
    near = get_close_matches(name, FIELDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FIELDS)}"
    raise ConfigError(f"{path}: unknown setting {key!r}; {hint}")


def _parsed(attribute: attrs.Attribute[Any], value: object, *, where: str) -> Any:
    try:
        return attribute.metadata["kind"].parse(value)
    except ValueError as error:
        shown = "what it is set to" if attribute.metadata["secret"] else repr(value)
        raise ConfigError(f"{where}: {shown} {error}") from None
