"""How much a publisher may hold, and how long it may wait."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen

from dedup.core import inputs
from dedup.core.sending import SenderSettings


def _seconds(_: object, attribute: Attribute[float], value: Any) -> None:
    inputs.check_seconds(attribute.name, value)


def _count(_: object, attribute: Attribute[int], value: Any) -> None:
    inputs.check_count(attribute.name, value, 1)


@frozen(kw_only=True)
class Limits:
    """
    The limits of one publisher, under the names of its arguments.

    Raises:
        ConfigError: one of them is not what it should be.
    """

    window_size: int = field()
    unconfirmed_max: int | None = field()
    confirm_timeout_s: float = field(validator=_seconds)
    connect_timeout_s: float = field(validator=_seconds)
    close_timeout_s: float = field(validator=_seconds)
    waiting_max: int = field(validator=_count)
    buffer_bytes_max: int = field(validator=_count)
    body_bytes_max: int = field(validator=_count)
    outbox_rows_max: int = field(validator=_count)
    outbox_bytes_max: int = field(validator=_count)

    @window_size.validator
    def _check_window_size(self, _: object, value: Any) -> None:
        inputs.check_window_size(value)

    @unconfirmed_max.validator
    def _check_unconfirmed_max(self, _: object, value: Any) -> None:
        if value is not None:
            inputs.check_count("unconfirmed_max", value, 1, self.span)

    @property
    def span(self) -> int:
        """
        Half of the window: the largest distance of a re-send, and the most that can be unconfirmed.
        """
        return self.window_size // 2

    @property
    def pending_max(self) -> int:
        """
        Messages without a fate, sent or waiting to be.
        """
        return (self.unconfirmed_max or self.span) + self.waiting_max

    def of_sender(self, publisher_id: str) -> SenderSettings:
        """
        Return what of them is for the sender to keep.
        """
        return SenderSettings(
            publisher_id=publisher_id,
            window_size=self.window_size,
            unconfirmed_max=self.unconfirmed_max or self.span,
            confirm_timeout_s=self.confirm_timeout_s,
            kept_max=self.span + self.waiting_max,
            kept_bytes_max=self.buffer_bytes_max,
        )
