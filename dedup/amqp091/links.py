"""The two connections of a session: the one that forwards and holds the fence, the one that takes deliveries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByClient

from dedup.amqp091.answering import answered, question_in, receipts
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.forwarding import ConfirmedForwarder, ExactForwarder, Forwarder
from dedup.amqp091.framing import Parcel
from dedup.amqp091.identifying import key_of, return_of
from dedup.amqp091.properties import Stamp, scan
from dedup.amqp091.wire import Delivery
from dedup.core import steps
from dedup.core.bodies import DIGEST_BYTES
from dedup.core.identity import fault_of_binding
from dedup.core.message_ids import KEY_SEQUENCE
from dedup.core.names import Route
from dedup.core.records import decode_marker
from dedup.core.settings import RelaySettings
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
        route: Route,
        *,
        tell: Tell,
        on_failed: Callable[[Link, BaseException], None],
    ) -> None:
        #: What an error says of where it came from.
        self.where = f"{parameters.host}:{parameters.port}"
        self._loop = loop
        self._route = route
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

    def __init__(self, *args: Any, prefetch: int, settings: RelaySettings, **kwargs: Any) -> None:
        self._prefetch = prefetch
        self._settings = settings
        self._channel: RawChannel | None = None
        super().__init__(*args, **kwargs)
        name = self._route.target.encode()
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
        channel.add_on_cancel_callback(partial(self._on_cancelled, self._route.source))
        self._channel = self._connection.attach(channel, on_deliveries=self._on_deliveries)
        channel.basic_qos(prefetch_count=self._prefetch, callback=partial(self._consume, channel))

    def _consume(self, channel: Any, _: Any) -> None:
        channel.basic_consume(self._route.source, on_message_callback=_nothing)

    def _on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        self._tell(steps.Arrived([self._arrival(delivery) for delivery in deliveries]))

    def _arrival(self, delivery: Delivery) -> steps.Arrival:
        stamp = scan(delivery.properties)
        returning = stamp.deaths is not None and self._own_death in delivery.properties[stamp.deaths]
        publisher, sequence = stamp.publisher, stamp.sequence
        if (key := self._key(stamp, delivery)) is not None:
            publisher, sequence = key, KEY_SEQUENCE
        question, fault = question_in(stamp, delivery) if stamp.ask is not None else (None, stamp.fault)
        # A death history is no excuse: anybody can write one.
        fault = fault or fault_of_binding(stamp.publisher, stamp.user, self._settings.bind_publisher_to_user)
        arrival = steps.Arrival(
            delivery.tag,
            delivery.redelivered,
            publisher,
            sequence,
            stamp.attempt,
            stamp.first_sent_ms,
            fault,
            returning,
            delivery.body_size,
            Parcel(delivery, stamp.reserved),
            self._digest(stamp, delivery),
            question,
            stamp.wants_receipt,
        )
        if returning and not fault and (known_by := arrival.known_by) is not None:
            self._count_return(arrival, delivery, known_by)
        return arrival

    def _count_return(self, arrival: steps.Arrival, delivery: Delivery, known_by: tuple[str, int]) -> None:
        """
        Say what tells copies of this way back from the next one, and let the message go on with one more.
        """
        found = return_of(delivery.properties, known_by, self._route.target)
        if found is not None:
            arrival.reentry, changed = found
            arrival.payload = Parcel(delivery, reserved=False, changed=changed)

    def _key(self, stamp: Stamp, delivery: Delivery) -> str | None:
        """
        Return the key of the message id of a message without a stamp; None when it has none, or nobody asks.
        """
        if stamp.publisher is not None or stamp.fault or not self._settings.by_message_id:
            return None
        return key_of(delivery.properties, self._settings.message_id_header)

    def _digest(self, stamp: Stamp, delivery: Delivery) -> bytes:
        """
        Return the digest of the body of a stamped message; empty when bodies are not compared.
        """
        if stamp.publisher is None or not self._settings.check_bodies:
            return b""
        return blake2b(delivery.body, digest_size=DIGEST_BYTES).digest()


class ForwardingLink(Link):
    """
    Hold the fence and publish: one channel in transaction or confirm mode, with an exclusive consumer on the ledger.
    """

    def __init__(self, *args: Any, exact: bool, notice: Notice, **kwargs: Any) -> None:
        self._exact = exact
        self._notice = notice
        self._forwarder: Forwarder | None = None
        self._standing_by = False
        self._blocked = False
        #: Looks for the target, and tells publishers what they want to know: nothing waits for what it does.
        self._check_channel: Any = None
        super().__init__(*args, **kwargs)
        #: What comes from there into the ledger found no other queue.
        self._leading = frozenset(name.encode() for name in self._route.leading)
        self._leading_each = self._route.each.encode()

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

    def inform(self, effect: steps.Answer | steps.Receipts) -> None:
        """
        Tell a publisher something; nobody waits for it, and while the broker reads nothing it is left out.
        """
        channel = self._check_channel
        if channel is None or not channel.is_open or self._blocked:
            return
        if isinstance(effect, steps.Answer):
            message = answered(self._route.queue, effect)
        else:
            message = receipts(self._route.queue, effect)
        channel.basic_publish("", message.routing_key, message.body, message.properties)

    # -- the fence --------------------------------------------------------------------------------

    def _on_open(self, connection: Any) -> None:
        tell_of_alarms(connection, self._on_alarm)
        self._ask_for_fence()

    def _on_alarm(self, event: str, fields: dict[str, Any]) -> None:
        self._blocked = event == "dedup.blocked"
        self._notice(event, fields)

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
            on_deliveries=self._on_ledger,
            on_confirms=lambda confirms: self.forwarder.on_confirms(confirms),  # noqa: PLW0108 - comes later
            on_return=lambda returned: self.forwarder.on_return(returned),  # noqa: PLW0108
            on_commit=lambda: self.forwarder.on_commit(),  # noqa: PLW0108
        )
        channel.add_on_cancel_callback(partial(self._on_cancelled, self._route.ledger))
        channel.basic_consume(
            self._route.ledger,
            on_message_callback=_nothing,
            exclusive=True,
            callback=partial(self._on_fence_held, raw),
        )

    def _on_fence_held(self, raw: RawChannel, _: Any) -> None:
        self._begin(self._make_forwarder(raw))

    def _make_forwarder(self, raw: RawChannel) -> Forwarder:
        kind = ExactForwarder if self._exact else ConfirmedForwarder
        return kind(raw, self._route, self._tell)

    def _begin(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
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
            self._notice("dedup.standby", {"queue": self._route.queue})
        self._loop.call_later(FENCE_EVERY_S, self._ask_for_fence)

    def _on_ledger(self, deliveries: Sequence[Delivery]) -> None:
        # The first come before the forwarder is there.
        read = decode_marker if self._forwarder is None else self._forwarder.marker_in
        for delivery in deliveries:
            if self._leads(delivery.exchange):
                self._tell(steps.StrayArrived(delivery.tag, delivery))
            else:
                self._tell(steps.MarkerArrived(delivery.tag, read(delivery.body)))

    def _leads(self, exchange: bytes) -> bool:
        """
        Say whether messages are published to *exchange*.
        """
        each = self._leading_each
        return exchange in self._leading or (bool(each) and exchange.startswith(each))

    # -- looking after the target -----------------------------------------------------------------

    def _on_check_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        self._check_channel = channel
        self._check_target(channel)

    def _check_target(self, channel: Any) -> None:
        """
        Look for the target again and again: without it everything would end in quarantine.
        """
        if self._route.target and channel.is_open and self._on_closed is None:
            again = partial(self._check_target, channel)
            channel.queue_declare(
                self._route.target,
                passive=True,
                callback=lambda _: self._loop.call_later(CHECK_EVERY_S, again),
            )


def tell_of_alarms(connection: Any, notice: Notice) -> None:
    """
    Have *notice* told when the broker blocks *connection*, and when it takes messages again.
    """
    connection.add_on_connection_blocked_callback(
        lambda _, frame: notice("dedup.blocked", {"reason": str(frame.method.reason)})
    )
    connection.add_on_connection_unblocked_callback(lambda *_: notice("dedup.unblocked", {}))


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback whose work is done on the raw path.
    """
