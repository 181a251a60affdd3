"""The two connections of a retrying session: one takes dead letters, one publishes and holds the fence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pika.exceptions import ChannelClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.administration import MISSING
from dedup.amqp091.connection import RawChannel
from dedup.amqp091.dead_letters import buried, letter_of, obituary_of, retried
from dedup.amqp091.links import Link, tell_of_alarms
from dedup.amqp091.wire import Delivery, Returned
from dedup.core import names
from dedup.core import retry_steps as steps
from dedup.core.confirms import Confirms
from dedup.core.obituaries import Obituary
from dedup.core.retry_steps import Item, Sent
from dedup.errors import InvalidMessageError
from dedup.ports import DeadLetter

_PRECONDITION_FAILED, _REFUSED = 406, 403
_NAME_BYTES_MAX: Final = 255
#: Queues of the dead that one session makes use of, and may declare: whoever forges histories can name as many as he likes.
DEAD_QUEUES_MAX: Final = 1_000


def fence(session: str) -> str:
    """
    Return the name of the exclusive queue of a session.
    """
    return f"dedup.retry.{session}"


class LetterLink(Link):
    """
    Take dead letters and acknowledge them.
    """

    def __init__(self, parameters: Any, loop: Any, queue: str, *, prefetch: int, **kwargs: Any) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._channel: RawChannel | None = None
        self._consumer = ""
        self._wanted = False
        super().__init__(parameters, loop, None, **kwargs)  # type: ignore[arg-type]  # no relay, no route

    def consume(self) -> None:
        """
        Take what comes.
        """
        self._wanted = True
        if self._channel is not None and not self._consumer:
            self._consumer = self._channel.channel.basic_consume(self._queue, on_message_callback=_nothing)

    def pause(self) -> None:
        """
        Take no more; what has come may still be acknowledged.
        """
        self._wanted = False
        if self._channel is not None and self._consumer:
            self._channel.channel.basic_cancel(self._consumer)
        self._consumer = ""

    def ack(self, tags: Iterable[int]) -> None:
        """
        Acknowledge these deliveries.
        """
        assert self._channel is not None, "an ack before any delivery"
        self._channel.send([wire.ack_frame(self._channel.number, tag, multiple=False) for tag in tags])

    def probe(self) -> None:
        """
        Ask the broker for what it has granted already, behind the acks; the answer is Probed.
        """
        assert self._channel is not None, "a probe before any ack"
        self._channel.channel.basic_qos(prefetch_count=self._prefetch, callback=self._on_probed)

    def _on_probed(self, _: Any) -> None:
        self._tell(steps.Probed())  # type: ignore[arg-type]

    def give_back(self, tags: Iterable[int]) -> None:
        """
        Return these deliveries to their queue.
        """
        assert self._channel is not None, "a return before any delivery"
        self._channel.send([wire.nack_frame(self._channel.number, tag) for tag in tags])

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(partial(self._on_cancelled, self._queue))
        self._channel = self._connection.attach(channel, on_deliveries=self._on_deliveries)
        channel.basic_qos(prefetch_count=self._prefetch, callback=self._on_ready)

    def _on_ready(self, _: Any) -> None:
        if self._wanted:
            self.consume()

    def _on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        self._tell(steps.Arrived([letter_of(delivery) for delivery in deliveries]))  # type: ignore[arg-type]


class _Sending(NamedTuple):
    """
    One item as it was sent.
    """

    routing_key: bytes
    properties: bytes
    body: bytes
    obituary: Obituary | None


class PublishingLink(Link):
    """
    Publish to queues by their names, with confirms, and hold the fence of a session.

    Args:
        session: Its name.
        on_obituary: Told of each that is stored.
        on_dead: Told of a session whose fence is gone.
        notice: Told of alarms.
    """

    def __init__(
        self,
        parameters: Any,
        loop: Any,
        queue: str,
        *,
        session: str,
        on_obituary: Callable[[Obituary], None],
        on_dead: Callable[[str], None],
        notice: Callable[[str, dict[str, Any]], None],
        **kwargs: Any,
    ) -> None:
        self._queue = queue
        self._session = session
        self._on_obituary = on_obituary
        self._on_dead = on_dead
        self._notice = notice
        self._channel: RawChannel | None = None
        self._confirms: Confirms[int] = Confirms()
        self._next_tag = 1
        #: The batch under way: its items as they were sent, and what was said to them.
        self._sending: list[_Sending | None] = []
        self._sent: list[Sent] = []
        self._returned: list[Returned] = []
        #: Queues of the dead that are known to be there.
        self._dead_queues: set[str] = set()
        #: Those of them that could not be declared, and those that are known to be missing all the same.
        self._undeclared: set[str] = set()
        self._missing: set[str] = set()
        self._asking: set[str] = set()
        super().__init__(parameters, loop, None, **kwargs)  # type: ignore[arg-type]  # no relay, no route

    @property
    def publishing(self) -> bool:
        """
        Say whether answers of the broker are awaited.
        """
        return bool(self._sending)

    # -- the fence --------------------------------------------------------------------------------

    def _on_open(self, connection: Any) -> None:
        tell_of_alarms(connection, self._notice)
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.confirm_delivery(_nothing, callback=partial(self._on_confirming, channel))

    def _on_confirming(self, channel: Any, _: Any) -> None:
        self._channel = self._connection.attach(
            channel, on_confirms=self._on_confirms, on_return=self._returned.append
        )
        channel.queue_declare(fence(self._session), exclusive=True, callback=self._on_fence)

    def _on_fence(self, _: Any) -> None:
        self._tell(steps.Started())  # type: ignore[arg-type]

    def look_at(self, sessions: Iterable[str]) -> None:
        """
        Ask the broker for the fences of other sessions; on_dead is told of those that are gone.
        """
        for session in sessions:
            if session not in self._asking:
                self._asking.add(session)
                self._connection.channel(on_open_callback=partial(self._ask_for_fence, session))

    def _ask_for_fence(self, session: str, channel: Any) -> None:
        channel.add_on_close_callback(partial(self._on_asked, session))
        # Locked when it is there, which closes the channel as "not found" does.
        channel.queue_declare(fence(session), passive=True, callback=lambda _: channel.close())

    def _on_asked(self, session: str, _: Any, error: BaseException) -> None:
        self._asking.discard(session)
        # One whose node is down is "not found" too, in other words.
        if isinstance(error, ChannelClosedByBroker) and error.reply_text.startswith(MISSING):
            self._on_dead(session)

    # -- publishing -------------------------------------------------------------------------------

    def publish(self, items: Sequence[Item]) -> None:
        """
        Publish *items*; the answer is Published.
        """
        wanted = {self._dead_queue(item) for item in items if item.reason is not None}
        self._declare(sorted(wanted - self._dead_queues), partial(self._publish, items))

    def _declare(self, queues: list[str], then: Callable[[], None]) -> None:
        """
        Declare queues of the dead that are not known to be there, one after the other.
        """
        if not queues:
            then()
            return
        queue, rest = queues[0], queues[1:]

        def on_closed(_: Any, error: BaseException) -> None:
            # It is there with other arguments, or this user may not declare: what is published then will tell.
            if isinstance(error, ChannelClosedByBroker) and error.reply_code not in (
                _PRECONDITION_FAILED,
                _REFUSED,
            ):
                self._failed(error)
                return
            if self._connection.is_open:
                self._dead_queues.add(queue)
                if isinstance(error, ChannelClosedByBroker):
                    self._undeclared.add(queue)
                self._declare(rest, then)

        def on_channel(channel: Any) -> None:
            channel.add_on_close_callback(on_closed)
            channel.queue_declare(queue, durable=True, callback=lambda _: channel.close())

        self._connection.channel(on_open_callback=on_channel)

    def _publish(self, items: Sequence[Item]) -> None:
        assert self._channel is not None
        self._returned.clear()
        self._sending, self._sent = [], []
        frames: list[bytes] = []
        for index, item in enumerate(items):
            try:
                sending, content = self._framed(item)
            except InvalidMessageError:
                self._sending.append(None)
                self._sent.append(Sent.IMPOSSIBLE)
                continue
            self._sending.append(sending)
            self._sent.append(Sent.STORED)
            self._confirms.insert(self._next_tag, index)
            self._next_tag += 1
            frames += (
                wire.publish_frame(self._channel.number, b"", sending.routing_key, mandatory=True),
                content,
            )
        self._channel.send(frames)
        self._answer_if_done()

    def _framed(self, item: Item) -> tuple[_Sending, bytes]:
        """
        Return how *item* is sent, and the frames of its content.
        """
        letter: DeadLetter = item.payload
        if item.reason is None:
            sending = _Sending(item.queue.encode(), retried(item), letter.body, None)
            return sending, self._content(sending)
        obituary = obituary_of(item, self._queue)
        key = self._dead_queue(item).encode()
        sending = _Sending(key, buried(item, obituary), letter.body, obituary)
        try:
            return sending, self._content(sending)
        except InvalidMessageError:
            sending = sending._replace(properties=buried(item, obituary, bare=True))
            return sending, self._content(sending)

    def _content(self, sending: _Sending) -> bytes:
        assert self._channel is not None
        return wire.content_frames(
            sending.properties,
            sending.body,
            channel=self._channel.number,
            frame_max=self._channel.frame_max,
        )

    def _dead_queue(self, item: Item) -> str:
        """
        Return where the obituary of *item* goes: to the dead of the dead-letter queue where its own cannot be.
        """
        name = names.dead(item.queue or self._queue)
        many = len(self._dead_queues) + len(self._missing) >= DEAD_QUEUES_MAX
        impossible = len(name.encode()) > _NAME_BYTES_MAX or name in self._missing
        if impossible or (many and name not in self._dead_queues):
            return names.dead(self._queue)
        return name

    def _on_confirms(self, confirms: Sequence[tuple[int, bool, bool]]) -> None:
        for tag, multiple, positive in confirms:
            if positive:
                self._confirms.confirm(tag, multiple=multiple)
                continue
            for index in self._confirms.reject(tag, multiple=multiple):
                self._sent[index] = Sent.REFUSED
        self._answer_if_done()

    def _answer_if_done(self) -> None:
        if len(self._confirms) or not self._sending:
            return
        self._mark_returned()
        sending, self._sending = self._sending, []
        for one, sent in zip(sending, self._sent, strict=True):
            if sent is Sent.STORED and one is not None and one.obituary is not None:
                self._on_obituary(one.obituary)
            elif sent is Sent.RETURNED and one is not None and one.obituary is not None:
                self._without_queue(one.routing_key.decode())
        self._tell(steps.Published(tuple(self._sent)))  # type: ignore[arg-type]

    def _without_queue(self, queue: str) -> None:
        """
        Note that a queue of the dead is not there: it is declared anew, or if it cannot be, done without.
        """
        self._dead_queues.discard(queue)
        if queue in self._undeclared and queue != names.dead(self._queue):
            self._missing.add(queue)

    def _mark_returned(self) -> None:
        """
        Note which items the broker gave back; they come back in the order they were sent.
        """
        position = 0
        for returned in self._returned:
            while position < len(self._sending):
                one = self._sending[position]
                position += 1
                if one is not None and (one.routing_key, one.body) == (returned.routing_key, returned.body):
                    self._sent[position - 1] = Sent.RETURNED
                    break
        self._returned.clear()


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback whose work is done on the raw path.
    """
