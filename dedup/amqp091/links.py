"""The two connections of a session: the one that forwards and holds the fence, the one that takes deliveries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByClient

from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.forwarding import ConfirmedForwarder, ExactForwarder, Forwarder, Parcel
from dedup.amqp091.properties import Stamp, scan
from dedup.amqp091.wire import Delivery
from dedup.core import names, steps
from dedup.core.identity import NOT_BOUND_TO_USER, UserBinding, may_publish_as
from dedup.core.records import decode_marker
from dedup.errors import BrokerUnavailableError

#: How often a standby asks for the fence; seconds.
FENCE_EVERY_S = 0.3
#: How often the target is looked for while messages are forwarded; seconds.
CHECK_EVERY_S = 0.25
_ACCESS_REFUSED = 403

Tell = Callable[[steps.Event], None]
Notice = Callable[[str, dict[str, Any]], None]


class Link:
    """
    One connection of a session; it never reconnects.

    Args:
        on_failed: Told of the first thing that goes wrong, and on which link.
    """

    def __init__(
        self,
        parameters: pika.connection.Parameters,
        loop: IOLoop,
        queue: str,
        *,
        tell: Tell,
        on_failed: Callable[[Link, BaseException], None],
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._tell = tell
        self._failed = partial(on_failed, self)
        self._on_closed: Callable[[], None] | None = None
        self._connection = RawConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_connection_closed,
            on_close_callback=self._on_connection_closed,
            custom_ioloop=loop,
        )

    def close(self, on_closed: Callable[[], None]) -> None:
        """
        Close in order: when *on_closed* is called, the broker has taken everything that was sent.
        """
        self._on_closed = on_closed
        if self._connection.is_open:
            self._connection.close()
        else:
            on_closed()

    def cut(self) -> None:
        """
        End the connection at once, whatever state it is in.
        """
        self._connection.abort()

    def _on_open(self, connection: Any) -> None:
        raise NotImplementedError

    def _on_connection_closed(self, _: Any, error: BaseException) -> None:
        if self._on_closed is not None and isinstance(error, ConnectionClosedByClient):
            self._on_closed()
        else:
            self._failed(error)

    def _on_channel_closed(self, _: Any, error: BaseException) -> None:
        """
        Report what the broker has against a channel; a channel that goes with its connection is told there.
        """
        if isinstance(error, ChannelClosedByBroker):
            self._failed(error)

    def _on_cancelled(self, what: str, _: Any) -> None:
        self._failed(BrokerUnavailableError(f"the broker cancelled the consumer of {what}: was it deleted?"))


class IngressLink(Link):
    """
    Take deliveries of the ingress and acknowledge them.
    """

    def __init__(
        self, *args: Any, prefetch: int, binding: UserBinding = UserBinding.OFF, **kwargs: Any
    ) -> None:
        self._prefetch = prefetch
        self._binding = binding
        self._channel: RawChannel | None = None
        super().__init__(*args, **kwargs)
        name = self._queue.encode()
        #: How a death in the target looks inside an encoded x-death header.
        self._own_death = b"\x05queueS" + len(name).to_bytes(4, "big") + name

    def ack(self, tag: int) -> None:
        """
        Acknowledge every delivery up to *tag*.

        Raises:
            BrokerUnavailableError: the connection is gone; the broker delivers again.
        """
        assert self._channel is not None, "an ack before any delivery"
        self._channel.ack(tag)

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(partial(self._on_cancelled, names.ingress(self._queue)))
        self._channel = self._connection.attach(channel, on_deliveries=self._on_deliveries)
        channel.basic_qos(prefetch_count=self._prefetch, callback=partial(self._consume, channel))

    def _consume(self, channel: Any, _: Any) -> None:
        channel.basic_consume(names.ingress(self._queue), on_message_callback=_nothing)

    def _on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        self._tell(steps.Arrived([self._arrival(delivery) for delivery in deliveries]))

    def _arrival(self, delivery: Delivery) -> steps.Arrival:
        stamp = scan(delivery.properties)
        returning = stamp.deaths is not None and self._own_death in delivery.properties[stamp.deaths]
        return steps.Arrival(
            delivery.tag,
            delivery.redelivered,
            stamp.publisher,
            stamp.sequence,
            stamp.attempt,
            stamp.first_sent_ms,
            stamp.fault or self._unbound(stamp),
            returning,
            delivery.body_size,
            Parcel(delivery, stamp.reserved),
        )

    def _unbound(self, stamp: Stamp) -> str:
        """
        Return what is wrong between a message's publisher and its user; a death history is no excuse: anybody can write one.
        """
        if self._binding is UserBinding.OFF or stamp.publisher is None:
            return ""
        # Escaped and not replaced: a name that is no UTF-8 must not come to equal a publisher id.
        user = None if stamp.user is None else stamp.user.decode(errors="surrogateescape")
        return "" if may_publish_as(stamp.publisher, user, self._binding) else NOT_BOUND_TO_USER


class ForwardingLink(Link):
    """
    Hold the fence and publish: one channel in transaction or confirm mode, with an exclusive consumer on the ledger.
    """

    def __init__(self, *args: Any, exact: bool, notice: Notice, **kwargs: Any) -> None:
        self._exact = exact
        self._notice = notice
        self._forwarder: Forwarder | None = None
        self._standing_by = False
        super().__init__(*args, **kwargs)

    @property
    def holds_fence(self) -> bool:
        """
        Say whether this session owns the queue.
        """
        return self._forwarder is not None

    @property
    def forwarder(self) -> Forwarder:
        """
        Return what publishes; only once the fence is held.
        """
        assert self._forwarder is not None, "nothing is published before the fence is held"
        return self._forwarder

    # -- the fence --------------------------------------------------------------------------------

    def _on_open(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(
            lambda _, frame: self._notice("dedup.blocked", {"reason": str(frame.method.reason)})
        )
        connection.add_on_connection_unblocked_callback(lambda *_: self._notice("dedup.unblocked", {}))
        self._ask_for_fence()

    def _ask_for_fence(self) -> None:
        if self._connection.is_open:
            self._connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_fence_closed)
        take = partial(self._take_fence, channel)
        if self._exact:
            channel.tx_select(callback=take)
        else:
            channel.confirm_delivery(_nothing, callback=take)

    def _take_fence(self, channel: Any, _: Any) -> None:
        raw = self._connection.attach(
            channel,
            on_deliveries=self._on_markers,
            on_confirms=lambda confirms: self.forwarder.on_confirms(confirms),  # noqa: PLW0108 - comes later
            on_return=lambda returned: self.forwarder.on_return(returned),  # noqa: PLW0108
            on_commit=lambda: self.forwarder.on_commit(),  # noqa: PLW0108
        )
        channel.add_on_cancel_callback(partial(self._on_cancelled, names.ledger(self._queue)))
        channel.basic_consume(
            names.ledger(self._queue),
            on_message_callback=_nothing,
            exclusive=True,
            callback=partial(self._on_fence_held, raw),
        )

    def _on_fence_held(self, raw: RawChannel, _: Any) -> None:
        kind = ExactForwarder if self._exact else ConfirmedForwarder
        self._forwarder = kind(raw, self._queue, self._tell)
        self._connection.channel(on_open_callback=self._on_check_channel)
        self._tell(steps.Started())

    def _on_fence_closed(self, channel: Any, error: BaseException) -> None:
        """
        Stand by while somebody else holds the fence; anything else is a failure.
        """
        held_by_other = (
            isinstance(error, ChannelClosedByBroker)
            and self._forwarder is None
            and error.reply_code == _ACCESS_REFUSED
            and "exclusive" in error.reply_text
        )
        if not held_by_other:
            self._on_channel_closed(channel, error)
            return
        if not self._standing_by:
            self._standing_by = True
            self._notice("dedup.standby", {"queue": self._queue})
        self._loop.call_later(FENCE_EVERY_S, self._ask_for_fence)

    def _on_markers(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._tell(steps.MarkerArrived(delivery.tag, decode_marker(delivery.body)))

    # -- looking after the target -----------------------------------------------------------------

    def _on_check_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        self._check_target(channel)

    def _check_target(self, channel: Any) -> None:
        """
        Look for the target again and again: without it everything would end in quarantine.
        """
        if channel.is_open and self._on_closed is None:
            again = partial(self._check_target, channel)
            channel.queue_declare(
                self._queue, passive=True, callback=lambda _: self._loop.call_later(CHECK_EVERY_S, again)
            )


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback whose work is done on the raw path.
    """
