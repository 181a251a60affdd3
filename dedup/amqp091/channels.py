"""
Register a publisher id on a plain pika channel, for programs that number their messages themselves.

The channel holds the id as long as its connection lives. RabbitMQ closes the channel that asks for an id which another
connection holds (405); a second id on a channel that has one is refused here, and closes it too.
"""

from __future__ import annotations

import time
from typing import Any, Final
from weakref import WeakKeyDictionary

from pika.exceptions import AMQPError, ChannelClosedByBroker

from dedup.amqp091.failures import translate
from dedup.amqp091.registering import request_properties
from dedup.core import registration as steps
from dedup.core.identity import validate_publisher_id
from dedup.core.registration import Registration
from dedup.core.registry import REGISTRY, Request, decode_answer, encode_request, lock_queue
from dedup.core.reply_address import REPLY_TO
from dedup.errors import ConfigError, DedupError, RegistryFormatError
from dedup.registrar import ANSWER_TIMEOUT_S, LOCK_ARGUMENTS, new_registration

_HELD, _NOT_FOUND = 405, 404
#: The pause between two tries to get an answer; seconds.
_PAUSE_S: Final = 0.2


class RegisteredChannel:
    """
    What a channel has registered: the base of its numbers, and whether it is still the newest owner.

    Not thread-safe, as pika's connections are not.
    """

    def __init__(
        self,
        channel: Any,
        registration: Registration,
        publisher_id: str,
        *,
        user_id: str | None,
        takeover: bool,
    ) -> None:
        self.publisher_id = publisher_id
        self._channel = channel
        self._takeover = takeover
        self._registration = registration
        self._user_id = user_id

    @property
    def base(self) -> int:
        """
        Return the base: the first sequence is the one after it.
        """
        return self._registration.base

    def check(self) -> None:
        """
        Ask the registry whether this owner is still the newest; without an answer it may be.

        Raises:
            FencedError: a newer one has registered the id.
        """
        self._pump([*self._registration.handle(steps.Nudged(), time.monotonic())])

    def _begin(self, deadline: float) -> None:
        """
        Take lock and range, or raise why not.
        """
        while True:
            error = self._pump([*self._registration.handle(steps.Connected(), time.monotonic())])
            if error is None:
                return
            if time.monotonic() >= deadline:
                raise error
            time.sleep(_PAUSE_S)

    def _pump(self, effects: list[steps.Effect]) -> DedupError | None:
        """
        Perform effects and what follows from them; return why to try again.
        """
        while effects:
            effect = effects.pop(0)
            match effect:
                case steps.Lock():
                    event: steps.Event = self._lock()
                case steps.Ask(request):
                    event = self._ask(request)
                case steps.End(error):
                    raise error
                case steps.Retry(error):
                    return error
                case steps.Ready():
                    continue
            effects += self._registration.handle(event, time.monotonic())
        return None

    def _lock(self) -> steps.Event:
        """
        Declare the exclusive queue; where a refusal is no reason to stop, on a channel of its own that is closed for it.
        """
        channel = self._channel.connection.channel() if self._takeover else self._channel
        try:
            channel.queue_declare(lock_queue(self.publisher_id), exclusive=True, arguments=LOCK_ARGUMENTS)
        except ChannelClosedByBroker as error:
            text = f"{error.reply_code} {error.reply_text}"
            return steps.Held(text) if error.reply_code == _HELD else steps.Barred(text)
        if self._takeover:
            channel.close()
        return steps.Locked()

    def _ask(self, request: Request) -> steps.Event:
        """
        Ask on a channel of its own: confirms and tags of the other one are not disturbed.
        """
        connection = self._channel.connection
        answers: list[bytes] = []
        try:
            channel = connection.channel()
            channel.basic_consume(REPLY_TO, lambda *delivery: answers.append(delivery[3]), auto_ack=True)
            channel.basic_publish(
                REGISTRY, "", encode_request(request), request_properties(self._user_id), mandatory=True
            )
            channel.basic_qos(
                prefetch_count=1
            )  # its answer comes behind what the broker has against the request
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
            while not answers and time.monotonic() < deadline:
                connection.process_data_events(time_limit=_PAUSE_S)
            channel.close()
            if answers:
                return steps.Answered(decode_answer(answers[0]))
        except RegistryFormatError as error:
            return steps.Unanswered(f"not understood: {error}")
        except ChannelClosedByBroker as error:
            text = f"{error.reply_code} {error.reply_text}"
            return steps.Unanswered(text) if error.reply_code == _NOT_FOUND else steps.Barred(text)
        return steps.Unanswered(f"none within {ANSWER_TIMEOUT_S:g} s")


_REGISTERED: WeakKeyDictionary[Any, RegisteredChannel] = WeakKeyDictionary()


def register(
    channel: Any,
    publisher_id: str,
    *,
    takeover: bool = False,
    last: int = 0,
    user_id: str | None = None,
    timeout_s: float = 10.0,
) -> RegisteredChannel:
    """
    Register *publisher_id* on *channel*; again for the same id, return what it has.

    Args:
        channel: an open ``BlockingChannel``.
        publisher_id: stable name of the publisher.
        takeover: do not wait for whoever holds the id; that one is fenced.
        last: the highest sequence that is known to have been used under this id.
        user_id: the broker's user, where publishers are bound to users.
        timeout_s: how long to wait for a registry.

    Raises:
        PublisherAlreadyRegisteredError: another connection holds the id; the broker has closed the channel.
        ConfigError: the channel has registered another id already; it is closed.
        RegistryUnavailableError: no registry answered in time.
        BrokerUnavailableError: the connection is gone.
    """
    validate_publisher_id(publisher_id)
    known = _REGISTERED.get(channel)
    if known is not None:
        if known.publisher_id == publisher_id:
            return known
        channel.close()
        raise ConfigError(
            f"this channel has registered {known.publisher_id!r} and cannot have {publisher_id!r} too; it is closed, open "
            "one channel for each publisher id"
        )
    registration = new_registration(publisher_id, takeover=takeover, last=last, held_grace_s=0.0)
    registered = RegisteredChannel(channel, registration, publisher_id, user_id=user_id, takeover=takeover)
    try:
        registered._begin(time.monotonic() + timeout_s)  # noqa: SLF001 - nobody else may begin
    except AMQPError as error:
        raise translate(error) from error
    _REGISTERED[channel] = registered
    return registered
