"""What a protocol brings for publishers and outboxes: how their messages are encoded, kept and sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from dedup.sender_thread import SenderThread


@frozen(kw_only=True)
class Wire:
    """
    One protocol, as publishers and outboxes use it.

    An *envelope* is what it makes of a message's properties; beside what its own thread needs, it tells its *size* with the
    largest stamp and *unstamped*, the bytes to be kept.
    """

    #: As settings call it: ``amqp091``.
    name: str
    #: Drives a sender; called as :class:`dedup.sender_thread.SenderThread` is.
    thread: Callable[..., SenderThread]
    #: (properties, publisher id, user id, wants_receipt=...) -> envelope.
    seal: Callable[..., Any]
    #: properties -> bytes to be kept for a publisher id that is not known yet.
    unstamped: Callable[[Any], bytes]
    #: (bytes that were kept, publisher id, sealed=whether it is in them) -> envelope; nothing stands for no properties.
    unseal: Callable[..., Any]
    #: (envelope, body) -> what the thread sends.
    content: Callable[[Any, bytes], Any]
    #: By how much *size* exceeds the bytes that are kept.
    stamp_bytes_max: int
