"""
Drive a sender with pika: one thread, one connection, one channel in confirm mode.

The thread turns events of the socket and of the callers into events of the machine, once per turn of the loop: what
came in one read and what was submitted meanwhile is one batch, and what the machine sends is one write. Callbacks only
queue; everything is decided in :meth:`PublishingThread._turn`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from pika import BasicProperties as Properties
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from dedup.amqp091 import wire
from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.endpoints import Endpoints
from dedup.amqp091.properties import scan
from dedup.amqp091.stamping import Content, publish_frames, seal
from dedup.core import sending
from dedup.core.refusals import FINAL_CODES
from dedup.core.sender import Sender
from dedup.core.sending import Effect, Event, Message
from dedup.errors import BrokerUnavailableError, DedupError, InvalidMessageError

__all__ = ["Content", "Endpoints", "Properties", "PublishingThread", "seal"]

_LOG = logging.getLogger("dedup.publisher")
#: Time a broker gets to answer an orderly close; seconds.
CLOSE_TIMEOUT_S = 1.0
_CLOSING_TURNS = 5
#: The reply the sender hears for a message that cannot be framed for the broker of now.
_CANNOT_FRAME = 501


class PublishingThread:
    """
    Own the connection of one sender, in a thread.

    Args:
        publisher_id: named in every log line.
        endpoints: where to connect.
        sender: the machine; nobody else touches it.
        on_confirmed: told of messages the broker has; called in the thread.
        on_failed: told of a sequence and its error; called in the thread.
        on_end: called once, last, with what the thread died of or None.
    """

    def __init__(
        self,
        publisher_id: str,
        endpoints: Endpoints,
        sender: Sender,
        *,
        on_confirmed: Callable[[Sequence[Message]], None],
        on_failed: Callable[[int, DedupError], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self.endpoints = endpoints
        #: Done when the first channel is open, or failed when none can be.
        self.first_opened: Future[None] = Future()
        #: Largest frame of the broker of now; of the settings before the first connection.
        self.frame_max = int(endpoints.parameters[0].frame_max)
        self._publisher_id = publisher_id
        self._sender = sender
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._on_end = on_end
        self._loop = IOLoop()
        self._posted: deque[Message | Event] = deque()
        #: A wake-up is under way: whoever posts next need not send another.
        self._awake = False
        self._events: deque[Event] = deque()
        #: What failed in this turn, for one line in the log.
        self._failures: list[sending.Failed] = []
        self._connection: RawConnection | None = None
        self._channel: RawChannel | None = None
        self._timer_at: float | None = None
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="dedup-publisher", daemon=True)

    # -- any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """
        Begin to connect.
        """
        self._thread.start()

    def post(self, item: Message | Event) -> None:
        """
        Hand over a new message or an event; messages go out in the order of their posts.
        """
        self._posted.append(item)
        if not self._awake:
            self._awake = True
            self._loop.add_callback_threadsafe(_nothing)

    def stop(self) -> None:
        """
        Fail what is unconfirmed, close the connection and wait for the end, in bounded time.
        """
        self.post(sending.Stopped())
        self._thread.join(2 * CLOSE_TIMEOUT_S)

    @property
    def is_current(self) -> bool:
        """
        Whether the caller runs in this thread: it must not wait for it.
        """
        return threading.current_thread() is self._thread

    # -- the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            self._loop.activate_poller()
            self._turn()
            while not self._is_over():
                self._loop.poll()
                self._loop.process_timeouts()
                self._turn()
        except BaseException as error:  # noqa: BLE001 - whatever it is, callers must not hang
            _LOG.exception("publisher_thread_died publisher_id=%r", self._publisher_id)
            cause = error
        finally:
            if not self.first_opened.done():
                self.first_opened.set_exception(cause or BrokerUnavailableError(self.endpoints.describe()))
            self._on_end(cause)
            self._release()

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return (
            self._connection is None or bool(self._connection.is_closed) or time.monotonic() >= self._stop_at
        )

    def _release(self) -> None:
        """
        Free sockets and descriptors, whatever state pika is in.
        """
        try:
            self._abandon()
            for _ in range(_CLOSING_TURNS):  # pika closes a socket by way of callbacks that ask for callbacks
                self._loop.add_callback_threadsafe(_nothing)
                self._loop.poll()
                self._loop.process_timeouts()
            self._loop.deactivate_poller()
            self._loop.close()
        except Exception:  # noqa: BLE001 - the thread is ending; nobody waits for it
            _LOG.warning("publisher_release_failed publisher_id=%r", self._publisher_id, exc_info=True)

    def _turn(self) -> None:
        """
        Tell the machine everything that happened, and do what it says.
        """
        now = time.monotonic()
        self._take_posted()
        self._events.append(sending.Tick())
        while self._events:
            for effect in self._sender.handle(self._events.popleft(), now):
                self._perform(effect)
        if self._failures:
            failures, self._failures = self._failures, []
            first = failures[0]
            self._log(
                logging.WARNING,
                "messages_failed",
                count=len(failures),
                sequence=first.sequence,
                error=str(first.error),
            )
        wake_at = self._sender.wake_at()
        if wake_at is not None and (self._timer_at is None or wake_at < self._timer_at):
            self._timer_at = wake_at
            self._loop.call_later(max(0.0, wake_at - now), partial(self._on_timer, wake_at))

    def _on_timer(self, due: float) -> None:
        if self._timer_at == due:
            self._timer_at = None

    def _take_posted(self) -> None:
        self._awake = False
        messages: list[Message] = []
        while self._posted:
            item = self._posted.popleft()
            if isinstance(item, Message):
                messages.append(item)
                continue
            if messages:
                self._events.append(sending.Submitted(messages))
                messages = []
            self._events.append(item)
            if isinstance(item, sending.Stopped):
                self._close()
        if messages:
            self._events.append(sending.Submitted(messages))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case sending.Send():
                self._send(effect.messages)
            case sending.Confirmed():
                self._on_confirmed(effect.messages)
            case sending.Failed():
                self._failures.append(effect)
                self._on_failed(effect.sequence, effect.error)
            case sending.Open():
                self._open()
            case sending.Drop():
                self._log(logging.WARNING, "connection_dropped", reason=effect.reason)
                self._abandon()
            case sending.Notice():
                self._log(logging.WARNING, effect.name, **effect.facts)

    def _send(self, messages: Sequence[Message]) -> None:
        channel = self._channel
        if channel is None:
            return
        frames: list[bytes] = []
        try:
            for message in messages:
                frames += publish_frames(message, channel=channel.number, frame_max=channel.frame_max)
            channel.send(frames)
        except InvalidMessageError as error:
            # Checked when it was submitted, but this broker takes smaller frames. Nothing was sent.
            self._channel = None
            channel.channel.close()
            self._events.append(sending.Refused(_CANNOT_FRAME, str(error), random.random()))
        except BrokerUnavailableError:
            self._log(logging.DEBUG, "send_on_closed_channel")  # the callback that says so is on its way

    # -- the connection -----------------------------------------------------------------------

    def _open(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._open_channel(self._connection)
            return
        self._abandon()
        parameters = self.endpoints.next()
        try:
            self._connection = RawConnection(
                parameters,
                on_open_callback=self._on_connected,
                on_open_error_callback=self._on_closed,
                on_close_callback=self._on_closed,
                custom_ioloop=self._loop,
            )
        except (AMQPError, OSError, ValueError) as error:
            self._lose(error)

    def _open_channel(self, connection: RawConnection) -> None:
        connection.channel(on_open_callback=partial(self._on_channel_open, connection))

    def _on_connected(self, connection: RawConnection) -> None:
        if connection is not self._connection:
            connection.abort()
            return
        connection.add_on_connection_blocked_callback(partial(self._on_blocked, connection))
        connection.add_on_connection_unblocked_callback(partial(self._on_unblocked, connection))
        self._open_channel(connection)

    def _on_channel_open(self, connection: RawConnection, channel: Any) -> None:
        if connection is not self._connection:
            return
        channel.add_on_close_callback(partial(self._on_channel_closed, connection))
        channel.confirm_delivery(_nothing, callback=partial(self._on_confirm_mode, connection, channel))

    def _on_confirm_mode(self, connection: RawConnection, channel: Any, _frame: Any) -> None:
        if connection is not self._connection or not channel.is_open:
            return
        self._channel = raw = connection.attach(
            channel,
            on_confirms=partial(self._on_confirms, channel),
            on_return=partial(self._on_return, channel),
        )
        self.frame_max = raw.frame_max or self.frame_max
        self.endpoints.failures.clear()
        self._log(logging.INFO, "connected")
        self._events.append(sending.Opened())
        if not self.first_opened.done():
            self.first_opened.set_result(None)

    def _on_confirms(self, channel: Any, confirms: Sequence[tuple[int, bool, bool]]) -> None:
        if self._is_current(channel):
            self._events.append(sending.Confirms(confirms, random.random()))

    def _on_return(self, channel: Any, returned: wire.Returned) -> None:
        sequence = scan(returned.properties).sequence
        if self._is_current(channel) and sequence is not None:
            self._events.append(sending.Returned(sequence, returned.reply_code, returned.reply_text))

    def _on_blocked(self, connection: RawConnection, _: Any, frame: Any) -> None:
        if connection is self._connection:
            self._log(logging.WARNING, "blocked", reason=frame.method.reason)
            self._events.append(sending.Blocked(str(frame.method.reason)))

    def _on_unblocked(self, connection: RawConnection, _: Any, _frame: Any) -> None:
        if connection is self._connection:
            self._log(logging.INFO, "unblocked")
            self._events.append(sending.Unblocked())

    def _on_channel_closed(self, connection: RawConnection, channel: Any, reason: BaseException) -> None:
        """
        Tell why the broker closed the channel; when it went down with its connection, that one tells.
        """
        if connection is not self._connection or not isinstance(reason, ChannelClosedByBroker):
            return
        if self._channel is None or self._is_current(channel):
            self._channel = None
            self._refuse(reason.reply_code, reason.reply_text)

    def _on_closed(self, connection: RawConnection, error: BaseException) -> None:
        """
        Tell why a connection ended or could not be made.
        """
        if connection is not self._connection:
            return
        was_open = self._channel is not None
        self._connection = self._channel = None
        if was_open and isinstance(error, ConnectionClosedByBroker) and error.reply_code in FINAL_CODES:
            self._refuse(error.reply_code, error.reply_text)
        else:
            self._lose(error)

    def _refuse(self, code: int, text: str) -> None:
        self._log(logging.WARNING, "refused", code=code, reason=text)
        self._events.append(sending.Refused(code, text, random.random()))

    def _lose(self, error: BaseException) -> None:
        reason = self.endpoints.fail(error)
        if self._stop_at is None:
            self._log(logging.WARNING, "connection_lost", reason=reason)
        self._events.append(sending.Lost(reason, random.random()))
        hopeless = self.endpoints.hopeless()
        if hopeless and not self.first_opened.done():
            self.first_opened.set_exception(hopeless)

    def _abandon(self) -> None:
        """
        Have nothing more to do with the connection there is.
        """
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.abort()

    def _close(self) -> None:
        """
        End the connection in order, in bounded time.
        """
        self._stop_at = time.monotonic() + CLOSE_TIMEOUT_S
        self._loop.call_later(CLOSE_TIMEOUT_S, _nothing)
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        else:
            self._abandon()

    def _log(self, level: int, event: str, **facts: Any) -> None:
        if _LOG.isEnabledFor(level):
            fields = "".join(f" {name}={value!r}" for name, value in facts.items())
            host = self.endpoints.name()
            _LOG.log(level, "publisher_%s publisher_id=%r host=%s%s", event, self._publisher_id, host, fields)

    def _is_current(self, channel: Any) -> bool:
        return self._channel is not None and self._channel.channel is channel


def _nothing(*_: Any) -> None:
    """
    Take the place of a callback: its being called is all that is wanted.
    """
