"""
Take, publish and settle messages step by step, each as raw as it came.

For commands that a person waits for: every call returns when the broker has answered. Messages pass beside pika's decoder
(:mod:`dedup.amqp091.connection`), so that a hostile header stops nobody and nothing is rewritten on the way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pika
from pika.adapters.select_connection import IOLoop
from pika.exceptions import ConnectionClosedByClient

from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.failures import translate
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.reader import Confirm
from dedup.amqp091.wire import Delivery, Returned, content_frames, nack_frame, publish_frame
from dedup.core.confirms import Confirms
from dedup.errors import BrokerUnavailableError, ConfigError, UnavailableError

#: A broker that does not answer for so long is given up; seconds.
ANSWER_S_MAX: Final = 30.0
_CLOSE_S_MAX: Final = 5.0
_TICK_S: Final = 0.1


class Conversation:
    """
    One connection, and what waits for its answers.
    """

    def __init__(self, parameters: pika.connection.Parameters) -> None:
        self._where = f"{parameters.host}:{parameters.port}"
        self._failure: BaseException | None = None
        self._closed = False
        self.loop = IOLoop()
        self.loop.activate_poller()
        self.raw = RawConnection(
            parameters,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
            custom_ioloop=self.loop,
        )
        try:
            self.until(lambda: self.raw.is_open)
        except BaseException:
            self.close()
            raise

    def until(self, done: Callable[[], bool], timeout_s: float = ANSWER_S_MAX) -> None:
        """
        Let the connection work until *done* says so.

        Raises:
            BrokerUnavailableError: the connection was lost, or there was no answer in time.
            TopologyError: the broker closed a channel.
        """
        deadline = time.monotonic() + timeout_s
        while not done():
            if self._failure is not None:
                raise translate(self._failure, where=self._where) from self._failure
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(f"{self._where} did not answer for {timeout_s:g} s")
            self.turn()

    def turn(self) -> None:
        """
        Let the connection work for a moment.
        """
        # The poller waits for a socket or the next timer, and without one for seconds.
        timer = self.loop.call_later(_TICK_S, lambda: None)
        self.loop.poll()
        self.loop.process_timeouts()
        self.loop.remove_timeout(timer)

    def fail(self, error: BaseException) -> None:
        """
        Note why nothing will come any more; the first reason counts.
        """
        self._failure = self._failure or error

    def close(self) -> None:
        """
        Say goodbye, in a few seconds at the most; what is not acknowledged goes back to its queue.
        """
        if self.raw.is_open:
            self.raw.close()
            deadline = time.monotonic() + _CLOSE_S_MAX
            while not self._closed and time.monotonic() < deadline:
                self.turn()
        if not self._closed:
            self.raw.abort()
            for _ in range(3):
                self.turn()
        self.loop.deactivate_poller()
        self.loop.close()

    def _on_closed(self, _: Any, error: BaseException) -> None:
        self._closed = True
        if not isinstance(error, ConnectionClosedByClient):
            self.fail(error)


class Line:
    """
    One channel: consume, publish with confirms, settle.

    Args:
        confirmed: Whether it publishes.
    """

    def __init__(self, conversation: Conversation, *, confirmed: bool = False) -> None:
        self._conversation = conversation
        self._waiting: deque[Delivery] = deque()
        self._confirms: Confirms[int] = Confirms()
        self._published = 0
        #: Publishes since the last settle(), by number: routing key and body.
        self._sent: dict[int, tuple[bytes, bytes]] = {}
        self._refused: dict[int, str] = {}
        self._returned: list[Returned] = []
        self._cancelled = False
        self._consumer = ""
        self._channel = self._ask(lambda done: conversation.raw.channel(on_open_callback=done))
        self._channel.add_on_close_callback(lambda _, error: conversation.fail(error))
        self._channel.add_on_cancel_callback(self._on_cancelled)
        self._raw: RawChannel = conversation.raw.attach(
            self._channel,
            on_deliveries=self._waiting.extend,
            on_confirms=self._on_confirms,
            on_return=self._returned.append,
        )
        if confirmed:
            self._ask(lambda done: self._channel.confirm_delivery(_nothing, callback=done))

    def consume(self, queue: str, *, prefetch: int, exclusive: bool = False) -> None:
        """
        Have the messages of *queue* delivered.

        Args:
            prefetch: So many may be unsettled; 0: any number.
            exclusive: Nobody else may consume; refused when somebody does.
        """
        self._ask(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done))
        frame = self._ask(
            lambda done: self._channel.basic_consume(queue, _nothing, exclusive=exclusive, callback=done)
        )
        self._consumer = frame.method.consumer_tag

    def cancel(self) -> None:
        """
        Have no more delivered; what was is still to be settled.
        """
        if self._consumer and not self._cancelled:
            self._ask(lambda done: self._channel.basic_cancel(self._consumer, callback=done))
        self._consumer = ""

    def take(self, idle_s: float) -> Delivery | None:
        """
        Return the next message; None when none comes for so long.

        Raises:
            BrokerUnavailableError: the broker took the queue away.
        """
        deadline = time.monotonic() + idle_s
        self._conversation.until(
            lambda: bool(self._waiting) or self._cancelled or time.monotonic() >= deadline,
            idle_s + ANSWER_S_MAX,
        )
        if self._cancelled and not self._waiting:
            raise BrokerUnavailableError("the broker cancelled the consumer: was the queue deleted?")
        return self._waiting.popleft() if self._waiting else None

    def publish(self, routing_key: str, properties: bytes, body: bytes) -> int:
        """
        Publish through the default exchange, mandatory; return the number of the publish.

        Raises:
            InvalidMessageError: the properties do not fit into one frame; nothing was sent.
        """
        frames = content_frames(properties, body, channel=self._raw.number, frame_max=self._raw.frame_max)
        to = routing_key.encode()
        self._raw.send((publish_frame(self._raw.number, b"", to, mandatory=True), frames))
        self._published += 1
        self._sent[self._published] = (to, body)
        self._confirms.insert(self._published, self._published)
        return self._published

    def settle(self) -> dict[int, str]:
        """
        Wait until everything published is confirmed; return the numbers of what no queue holds, with why.
        """
        self._conversation.until(lambda: not len(self._confirms))
        refused, self._refused = self._refused, {}
        sent = iter(self._sent.items())
        for returned in self._returned:  # in the order they were sent
            content = (returned.routing_key, returned.body)
            number = next((number for number, other in sent if other == content), None)
            if number is None:
                raise BrokerUnavailableError("the broker returned a message that was not sent")
            refused[number] = f"{returned.reply_code} {returned.reply_text}"
        self._sent, self._returned = {}, []
        return refused

    def ack(self, tag: int) -> None:
        """
        Acknowledge one message.
        """
        self._raw.ack(tag, multiple=False)

    def give_back(self, tag: int, *, multiple: bool = False) -> None:
        """
        Put one message back where it was, or all up to it.
        """
        self._raw.send(nack_frame(self._raw.number, tag, multiple=multiple, requeue=True))

    def count(self, queue: str) -> int:
        """
        Return how many messages wait in *queue*; the broker has carried out then what was sent on this channel before.
        """
        frame = self._ask(lambda done: self._channel.queue_declare(queue, passive=True, callback=done))
        return int(frame.method.message_count)

    def _ask(self, ask: Callable[[Callable[[Any], None]], Any]) -> Any:
        """
        Make a request and return its answer.
        """
        answers: list[Any] = []
        ask(answers.append)
        self._conversation.until(lambda: bool(answers))
        return answers[0]

    def _on_confirms(self, confirms: Sequence[Confirm]) -> None:
        for tag, multiple, positive in confirms:
            if positive:
                self._confirms.confirm(tag, multiple=multiple)
            else:
                self._refused |= dict.fromkeys(
                    self._confirms.reject(tag, multiple=multiple), "refused by the queue"
                )

    def _on_cancelled(self, _: Any) -> None:
        self._cancelled = True


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback whose work is done on the raw path.
    """


@contextmanager
def conversation(amqp: str | Iterable[str], *, name: str) -> Iterator[Conversation]:
    """
    Connect to the first host that answers, and close at the end.

    Raises:
        BrokerUnavailableError: none answers.
        ConfigError: the login, the virtual host or the URL is wrong.
    """
    failure: UnavailableError | ConfigError | None = None
    for parameters in connection_parameters(amqp, name=name):
        try:
            opened = Conversation(parameters)
        except (UnavailableError, ConfigError) as error:
            failure = error
            continue
        try:
            yield opened
        finally:
            opened.close()
        return
    assert failure is not None, "no URL is refused before"
    raise failure
