"""The table of settings, and what is told to whom of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import frozen

from dedup.amqp091.management import Management
from dedup.config.kinds import (
    ADDRESS,
    HEADER,
    MANAGEMENT,
    QUEUES,
    TABLE,
    URL,
    number,
    one_of,
    rules,
    setting,
    text,
)
from dedup.core.choices import Choice
from dedup.core.identity import UserBinding
from dedup.core.obituaries import severity_rules
from dedup.core.settings import RelaySettings
from dedup.core.urls import readable_on_the_way
from dedup.core.window import WINDOW_SIZE_MAX
from dedup.errors import ConfigError
from dedup.protocols import BUILT_IN
from dedup.shim import ShimSettings
from dedup.store.client import KEY_PREFIX
from dedup.store.registry import IDLE_S, PUBLISHERS_MAX

#: The file that is read when it is there and no other one is named.
DEFAULT_FILE: Final = Path("dedup.toml")
_RELAY: Final = RelaySettings()
#: Of the setting "untracked": tell messages by their message id.
MESSAGE_ID: Final = "message-id"
#: The same, by the numbers that JMS and other clients of AMQP 1.0 give the messages of a group.
GROUP_SEQUENCE: Final = "group-sequence"


@frozen(kw_only=True)
class Settings:
    """
    Everything that can be set; ``dedup shim --help`` shows it with the same words.
    """

    amqp: str = setting("", URL, "AMQP URL, amqp:// or amqps://; several hosts of one cluster by commas.")
    redis: str = setting("", URL, "Redis URL: redis://, rediss:// or unix://.")
    queues: tuple[str, ...] = setting((), QUEUES, "Queues to forward, each guarded before.")
    management: str = setting(
        "",
        MANAGEMENT,
        'URL of the management API, or "off"; by default port 15672 of the AMQP host.',
    )
    to_amqp: str = setting(
        "",
        URL,
        "AMQP URL of the broker that dedup move moves into, as amqp; by default the one it moves out of.",
    )
    to_management: str = setting(
        "",
        MANAGEMENT,
        'URL of that one\'s management API, or "off"; by default port 15672 of its host.',
    )
    forwarding: str = setting(
        "auto",
        one_of("auto", "exact", "confirmed"),
        "exact (transactions), confirmed, or auto: exact where that is sound.",
    )
    protocol: str = setting(
        BUILT_IN,
        text("NAME"),
        "What ingress and target are spoken to with: amqp091, or amqp10, which dedup[amqp10] brings.",
    )
    window_size: int = setting(
        _RELAY.window_size, number(16, WINDOW_SIZE_MAX, int), "Sequences remembered of each publisher."
    )
    publishers_max: int = setting(
        _RELAY.publishers_max, number(1, 10_000_000, int), "Publishers remembered of each queue."
    )
    publisher_idle_s: float = setting(
        _RELAY.publisher_idle_s,
        number(1, 10 * 365 * 86_400, float),
        "Seconds after which a silent publisher may be forgotten for a new one.",
    )
    batch_max: int = setting(_RELAY.batch_max, number(1, 20_000, int), "Messages of one batch at the most.")
    batch_bytes_max: int = setting(
        _RELAY.batch_bytes_max, number(1, 2**31 - 1, int), "Bytes of one batch at the most."
    )
    marker_every: int = setting(
        _RELAY.marker_every,
        number(1, 20_000, int),
        "Messages a killed shim may leave marked: a marker follows so many of them.",
    )
    prefetch: int | None = setting(
        None,
        number(1, 65_535, int, none=True),
        "Deliveries the broker may send ahead; by default two batches.",
    )
    untracked: str = setting(
        "forward",
        one_of("forward", "quarantine", MESSAGE_ID, GROUP_SEQUENCE),
        "What to do with messages without id or sequence; message-id, group-sequence: de-duplicate them by these.",
    )
    message_id_header: str = setting(
        "",
        HEADER,
        "The header to take for the message id, such as x-deduplication-header; by default the property message-id.",
    )
    message_ids_max: int = setting(
        _RELAY.message_ids_max,
        number(1_000, 10_000_000, int),
        "Message ids remembered of each queue; the oldest go first.",
    )
    message_id_keep_s: float = setting(
        _RELAY.message_id_keep_s,
        number(60, 366 * 86_400, float),
        "Seconds for which a message id is remembered.",
    )
    without_message_id: str = setting(
        "forward",
        one_of("forward", "quarantine"),
        "What to do with messages that have no message id either, where untracked is message-id.",
    )
    duplicates: str = setting(
        "drop", one_of("drop", "park"), "drop duplicates, or park them in the quarantine."
    )
    check_bodies: str = setting(
        "off",
        one_of("off", "on"),
        "on: quarantine what has the sequence of a message and another body, instead of dropping it.",
    )
    bind_publisher_to_user: str = setting(
        "off",
        one_of(*(binding.value for binding in UserBinding)),
        "Quarantine messages whose publisher id is not their user's name (same), or does not begin with it and a colon (prefix).",
    )
    audit: str = setting(
        "off",
        one_of("off", "events"),
        "events: tell the audit of every arrival, in the queue's own .dedup.audit.",
    )
    registry: str = setting(
        "on", one_of("on", "off"), "on: serve the registry of publishers of the virtual host too."
    )
    registrations_max: int = setting(
        PUBLISHERS_MAX, number(1, 100_000_000, int), "Publishers that the registry remembers."
    )
    registration_idle_s: int = setting(
        IDLE_S,
        number(3600, 10 * 365 * 86_400, int),
        "Seconds after which the registry may forget a publisher it hears nothing of, for a new one.",
    )
    obituary_webhook: str = setting(
        "",
        URL,
        "Where obituaries are posted as JSON, except silent ones.",
        hidden=True,  # its path is a secret as well
    )
    obituary_severity: tuple[str, ...] = setting(
        (),
        rules(severity_rules),
        "page, notify or silent, and for which messages, as in: page queue=orders*. The first that fits decides, else notify.",
    )
    protobuf_descriptors: str = setting(
        "", text("FILE"), "Descriptor set that shows bodies of dead letters that are protobuf."
    )
    protobuf_types: tuple[str, ...] = setting(
        (),
        rules(lambda texts: [Choice.parse(text) for text in texts]),
        "Type of such a body, and for which messages, as in: shop.Order queue=orders. The first that fits decides.",
    )
    retry: Mapping[str, Any] | None = setting(
        None, TABLE, "The table of dedup retry, as JSON; in a file, [retry]."
    )
    redis_prefix: str = setting(KEY_PREFIX, text("TEXT"), "First part of every key in Redis.")
    listen: str = setting("", ADDRESS, "host:port of /metrics, /livez and /readyz; empty: none.")
    log_format: str = setting(
        "auto", one_of("auto", "console", "json"), "console, json, or auto: console on a terminal."
    )
    log_level: str = setting(
        "info", one_of("debug", "info", "warning", "error"), "The least important events to log."
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
            # Without message ids it is re-entries of dead letters only, which nobody may have thought of.
            message_ids_max=max(self.message_ids_max, self._message_ids_in_flight()),
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
        needed = self._message_ids_in_flight()
        if self.message_ids_max < needed:
            raise ConfigError(
                f"message_ids_max is {self.message_ids_max}, and a killed shim may leave messages in flight whose ids must be "
                f"known: {needed} (two prefetch and a batch); raise it, or lower prefetch and batch_max"
            )

    def _message_ids_in_flight(self) -> int:
        """
        Return how many must be known: what a dead shim had in flight comes again among as many new ones, and a batch may be on its way.
        """
        return 2 * (self.prefetch or 2 * self.batch_max) + self.batch_max

    def management_api(self) -> Management | None:
        """
        Return a client of the management API; None when it is off.
        """
        return None if self.management == "off" else Management(self.management, amqp=self.amqp)

    def to_management_api(self) -> Management | None:
        """
        Return a client of the management API of the broker that is moved into; None when it is off, or there is none.
        """
        if not self.to_amqp or self.to_management == "off":
            return None
        return Management(self.to_management, amqp=self.to_amqp)

    def readable_on_the_way(self) -> list[str]:
        """
        Return the URLs, masked, that lead to another machine without TLS.
        """
        apis = (self.management_api(), self.to_management_api())
        return readable_on_the_way([self.amqp, self.redis, self.to_amqp, *(api.url for api in apis if api)])


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
#: What is for dedup move alone.
MOVE_FIELDS: Final = ("to_amqp", "to_management")


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
