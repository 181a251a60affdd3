"""
Register a publisher id: perform what a :class:`dedup.core.registration.Registration` decides.

On a channel of its own: what the broker refuses there closes no channel that publishes.
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.encoding import encode
from dedup.core import registration as steps
from dedup.core.questions import is_receipts
from dedup.core.registration import HELD_GRACE_S, Registration
from dedup.core.registry import REGISTRY, Request, decode_answer, encode_request, lock_queue
from dedup.errors import BrokerUnavailableError, DedupError, RegistryFormatError

#: How long a registry may take to answer; seconds. Requests live no longer than that.
ANSWER_TIMEOUT_S: Final = 2.0
#: How often an owner asks whether it is still the newest, on average; seconds. A newer one tells it at once, as a rule.
RENEW_EVERY_S: Final = 600.0
#: The same, as long as another connection has the lock, for which a newer one's word would be.
UNLOCKED_EVERY_S: Final = 5.0
#: Where answers come: RabbitMQ puts the channel's own address in its place.
REPLY_TO: Final = "amq.rabbitmq.reply-to"
#: Of the exclusive queue; what is in it are hints and receipts, and a holder that does not read must cost little.
LOCK_ARGUMENTS: Final = {"x-queue-type": "classic", "x-max-length": 1_000}
_HELD, _NOT_FOUND = 405, 404


def describe_holder() -> str:
    """
    Say who this process is, for whoever finds its publisher id taken.
    """
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"process {os.getpid()} on {socket.gethostname()}, since {since}"


def new_registration(
    publisher_id: str, *, takeover: bool = False, last: int = 0, held_grace_s: float = HELD_GRACE_S
) -> Registration:
    """
    Return the registration of a new owner: nobody else has its nonce.
    """
    return Registration(
        publisher_id,
        uuid.uuid4().hex,
        describe_holder(),
        takeover=takeover,
        last=last,
        held_grace_s=held_grace_s,
    )


def request_properties(user_id: str | None) -> BasicProperties:
    """
    Return the properties of every request.
    """
    expiration = str(int(ANSWER_TIMEOUT_S * 1000))
    return BasicProperties(reply_to=REPLY_TO, expiration=expiration, delivery_mode=1, user_id=user_id)


class Registering:
    """
    Hold a publisher id on one connection after the other; everything is called in the connection's thread.

    Args:
        publisher_id: valid.
        registration: the machine.
        loop: of the connections.
        user_id: the broker's user, if publishers are bound to users.
        on_ready: told that the connection may publish.
        on_retry: told why this try failed; begin() again after a pause.
        on_end: told why nothing more may be published.
        on_receipts: given the message in which a shim tells what became of messages.
    """

    def __init__(
        self,
        publisher_id: str,
        registration: Registration,
        loop: Any,
        *,
        user_id: str | None,
        on_ready: Callable[[RawConnection], None],
        on_retry: Callable[[DedupError], None],
        on_end: Callable[[DedupError], None],
        on_receipts: Callable[[bytes], None] | None = None,
    ) -> None:
        self._lock_queue = lock_queue(publisher_id)
        self._registration = registration
        self._loop = loop
        self._properties = encode(request_properties(user_id))
        self._on_ready = on_ready
        self._on_retry = on_retry
        self._on_end = on_end
        self._on_receipts = on_receipts or _nothing
        self._connection: RawConnection | None = None
        self._channel: RawChannel | None = None
        #: The channel that consumes from the lock's queue.
        self._consuming: RawChannel | None = None
        #: The lock was asked for on the channel of now, and not answered.
        self._locking = False
        self._timers: list[Any] = []
        #: This connection may publish.
        self.is_ready = False

    def begin(self, connection: RawConnection) -> None:
        """
        Try to hold the id on *connection*, new or not.
        """
        self._connection = connection
        self._tell(steps.Connected())

    def end(self) -> None:
        """
        Take note that the connection is gone.
        """
        self._connection = self._channel = None
        self.is_ready = self._locking = False
        self._forget_timers()
        self._tell(steps.Disconnected())

    # -- the machine --------------------------------------------------------------------------

    def _tell(self, event: steps.Event) -> None:
        for effect in self._registration.handle(event, time.monotonic()):
            match effect:
                case steps.Lock():
                    self._on_channel(self._lock)
                case steps.Ask(request):
                    self._on_channel(partial(self._ask, request))
                case steps.Ready():
                    self._ready()
                case steps.Retry(error):
                    self._on_retry(error)
                case steps.End(error):
                    self._on_end(error)

    def _ready(self) -> None:
        assert self._connection is not None
        self.is_ready = True
        self._look_again()
        self._on_ready(self._connection)

    def _look_again(self) -> None:
        """
        Have the registry asked now and then, each owner at times of its own.
        """
        every_s = RENEW_EVERY_S if self._registration.is_locked else UNLOCKED_EVERY_S
        self._later(every_s * random.uniform(0.75, 1.25), self._on_time_to_look)

    def _on_time_to_look(self) -> None:
        self._look_again()
        self._tell(steps.Nudged())

    # -- the channel --------------------------------------------------------------------------

    def _on_channel(self, act: Callable[[RawChannel], None]) -> None:
        """
        Do something on the channel, which is opened first where there is none.
        """
        if self._channel is not None and self._channel.is_open:
            act(self._channel)
        elif self._connection is not None and self._connection.is_open:
            self._connection.channel(on_open_callback=partial(self._on_channel_open, self._connection, act))

    def _on_channel_open(
        self, connection: RawConnection, act: Callable[[RawChannel], None], channel: Any
    ) -> None:
        if connection is not self._connection:
            return
        channel.add_on_close_callback(partial(self._on_channel_closed, connection))
        self._channel = raw = connection.attach(
            channel, on_deliveries=self._on_deliveries, on_return=partial(self._on_returned, channel)
        )
        channel.basic_consume(REPLY_TO, _nothing, auto_ack=True, callback=lambda _: act(raw))

    def _lock(self, raw: RawChannel) -> None:
        self._locking = True
        raw.channel.queue_declare(
            self._lock_queue, exclusive=True, arguments=LOCK_ARGUMENTS, callback=partial(self._on_lock, raw)
        )

    def _on_lock(self, raw: RawChannel, _: Any) -> None:
        if raw is self._consuming:  # a try before this one had the lock, and no answer
            self._on_locked(raw, None)
            return
        raw.channel.basic_consume(
            self._lock_queue, _nothing, auto_ack=True, callback=partial(self._on_locked, raw)
        )

    def _on_locked(self, raw: RawChannel, _: Any) -> None:
        if raw is self._channel:
            self._consuming = raw
            self._locking = False
            self._tell(steps.Locked())

    def _ask(self, request: Request, raw: RawChannel) -> None:
        frames = (
            wire.publish_frame(raw.number, REGISTRY.encode(), b"", mandatory=True),
            wire.content_frames(
                self._properties, encode_request(request), channel=raw.number, frame_max=raw.frame_max
            ),
        )
        try:
            raw.send(b"".join(frames))
        except BrokerUnavailableError:
            return  # the callback that says so is on its way
        self._later(ANSWER_TIMEOUT_S, partial(self._on_silence, request.id))

    def _on_silence(self, asked: int) -> None:
        self._tell(steps.Unanswered(f"none within {ANSWER_TIMEOUT_S:g} s", asked))

    def _on_returned(self, channel: Any, _: wire.Returned) -> None:
        if self._channel is not None and self._channel.channel is channel:
            self._tell(steps.Unanswered(f"the exchange {REGISTRY} leads to no queue"))

    def _on_deliveries(self, deliveries: list[wire.Delivery]) -> None:
        for delivery in deliveries:
            own = delivery.routing_key == self._lock_queue.encode()
            if own and is_receipts(delivery.body):
                self._on_receipts(delivery.body)
                continue
            try:
                answer = decode_answer(delivery.body)
            except RegistryFormatError as error:
                if not own:  # there anybody can write
                    self._tell(steps.Unanswered(f"not understood: {error}"))
                continue
            if own:
                self._tell(steps.Told(answer.record.owner))
            else:
                self._tell(steps.Answered(answer))

    def _on_channel_closed(self, connection: RawConnection, channel: Any, reason: BaseException) -> None:
        """
        Tell what the broker has refused; a channel that goes with its connection says nothing.
        """
        raw = self._channel
        if connection is not self._connection or raw is None or raw.channel is not channel:
            return
        self._channel = None
        locking, self._locking = self._locking, False
        code = reason.reply_code if isinstance(reason, ChannelClosedByBroker) else 0
        text = f"{code} {reason.reply_text}" if isinstance(reason, ChannelClosedByBroker) else str(reason)
        if not connection.is_open:
            return
        if locking:
            self._tell(steps.Held(text) if code == _HELD else steps.Barred(text))
        elif code == _NOT_FOUND:
            self._tell(steps.Unanswered("none has ever run on this virtual host"))
        else:
            self._tell(steps.Barred(text))

    # -- time ---------------------------------------------------------------------------------

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        connection = self._connection
        timer: list[Any] = []

        def run() -> None:
            self._timers.remove(timer[0])
            if connection is self._connection:
                act()

        timer.append(self._loop.call_later(seconds, run))
        self._timers.append(timer[0])

    def _forget_timers(self) -> None:
        for timer in self._timers:
            self._loop.remove_timeout(timer)
        self._timers.clear()


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback: its being called is all that is wanted.
    """
