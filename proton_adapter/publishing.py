"""
Drive a sender with proton: one thread, one connection, one session with one link to the anonymous terminus.

Each message names where it goes, so one link serves every address and a wrong address is the outcome of its message alone.
The broker gives credit for so many messages; what the sender sends beyond it waits here, in order. When the broker has
answered everything that left this machine and takes nothing more, as during an alarm, the sender hears that it is blocked: no
confirm is missed then, and heartbeats alone decide whether the connection lives.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from proton import Endpoint, Event, Terminus

from dedup.core import sending
from dedup.core.refusals import FINAL_CODES
from dedup.core.sending import Message
from dedup.errors import BrokerUnavailableError, ConfigError
from dedup.sender_thread import SenderThread
from dedup.wire import Wire
from proton_adapter.asking import Asking
from proton_adapter.connecting import Attempt
from proton_adapter.connection import Connection
from proton_adapter.failures import explain, told
from proton_adapter.keeping import unseal
from proton_adapter.outgoing import Answer, Outgoing
from proton_adapter.registering import Registering
from proton_adapter.stamping import STAMP_BYTES_MAX, Content, seal, unstamped
from proton_adapter.timers import Timers

_ANONYMOUS_RELAY: Final = "ANONYMOUS-RELAY"


class PublishingThread(SenderThread):
    """
    Own the AMQP 1.0 connection of one sender, in a thread; see :class:`SenderThread` for the arguments.
    """

    def __init__(self, publisher_id: str, *args: Any, **options: Any) -> None:
        super().__init__(publisher_id, *args, **options)
        self._timers = Timers()
        #: What other threads want done in this one.
        self._calls: deque[Callable[[], None]] = deque()
        #: Asks shims; any thread may.
        self.asking = Asking(publisher_id, self._call)
        self._registering = self._hold_by(Registering, self._timers)
        #: Largest message the broker of now takes, sections included; 0 for no limit, or none known yet.
        self.message_bytes_max = 0
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        #: The try to connect that counts; others are late.
        self._attempt: Attempt | None = None
        self._attempts_done: deque[tuple[Attempt, socket.socket | OSError]] = deque()
        self._is_released = False
        self._connection: Connection | None = None
        self._session: Any = None
        self._link: Any = None
        #: The link when it is open.
        self._outgoing: Outgoing | None = None
        self._handlers: dict[Any, Callable[[Connection, Any], None]] = {
            Event.CONNECTION_REMOTE_OPEN: self._on_connected,
            Event.CONNECTION_REMOTE_CLOSE: self._on_connection_closed,
            Event.SESSION_REMOTE_CLOSE: self._on_session_closed,
            Event.LINK_REMOTE_OPEN: self._on_link_open,
            Event.LINK_REMOTE_CLOSE: self._on_link_closed,
            Event.LINK_REMOTE_DETACH: self._on_link_closed,
            Event.TRANSPORT_ERROR: self._on_transport_error,
        }

    # -- waiting ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._selector.register(self._woken, selectors.EVENT_READ)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it is over
            self._waker.send(b"\0")

    def _call(self, act: Callable[[], None]) -> None:
        self._calls.append(act)
        self._wake()

    def _wait(self, until: float | None) -> None:
        times = [] if until is None else [until]
        timer_in = self._timers.run()
        if timer_in is not None:
            times.append(time.monotonic() + timer_in)
        connection = self._connection
        if connection is not None:
            times += self._flush(connection)
        timeout = max(0.0, min(times) - time.monotonic()) if times else None
        for key, ready in self._selector.select(timeout):
            if key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif connection is not None and ready & selectors.EVENT_READ:
                connection.receive()
        if connection is not None:
            if connection.has_more:
                connection.receive()
            self._hear(connection)
        while self._calls:
            self._calls.popleft()()
        while self._attempts_done:
            self._on_attempt(*self._attempts_done.popleft())

    def _flush(self, connection: Connection) -> list[float]:
        """
        Send what may be sent, and return when to look again whatever happens.
        """
        now, outgoing = time.monotonic(), self._outgoing
        if outgoing is not None and (passed_over := outgoing.spend_credit()):
            # The sender counts them as sent and refused.
            self._events.append(sending.Confirms([(number, False, False) for number in passed_over]))
        tick_at = connection.tick(now)
        connection.send()
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.waits_to_write else 0)
        self._selector.modify(connection.socket, interest)
        stuck_at = None if outgoing is None else self._watch(outgoing, now)
        times = [time for time in (tick_at, stuck_at) if time is not None]
        return [now] if connection.has_more or connection.is_over or self._events else times

    def _hear(self, connection: Connection) -> None:
        confirms: list[tuple[int, bool, bool]] = []
        nacked = ""
        for event in connection.events():
            if connection is not self._connection:
                break
            if event.type is Event.DELIVERY and event.link == self._link:
                answer = None if self._outgoing is None else self._outgoing.hear(event.delivery)
                if answer is not None:
                    nacked = self._on_answer(answer, confirms) or nacked
            elif self.asking.hear(event) or (self._registering is not None and self._registering.hear(event)):
                continue
            elif handler := self._handlers.get(event.type):
                self._tell(confirms, nacked)
                confirms = []
                handler(connection, event)
        self._tell(confirms, nacked)
        if connection is self._connection and connection.is_over:
            self._on_transport_error(connection, None)

    def _tell(self, confirms: list[tuple[int, bool, bool]], nacked: str) -> None:
        if confirms:
            self._events.append(sending.Confirms(confirms, random.random(), nacked))

    # -- sending ------------------------------------------------------------------------------

    def _send(self, messages: Sequence[Message]) -> None:
        if self._outgoing is not None:
            self._outgoing.queue(messages)

    def _watch(self, outgoing: Outgoing, now: float) -> float | None:
        """
        Tell whether the broker takes anything, if that has changed; return when to look again.
        """
        was_blocked = outgoing.is_blocked
        again_at = outgoing.watch(now)
        if outgoing.is_blocked and not was_blocked:
            self._blocked("it gives no credit")
        elif was_blocked and not outgoing.is_blocked:
            self._unblocked()
        return again_at

    def _on_answer(self, answer: Answer, confirms: list[tuple[int, bool, bool]]) -> str:
        """
        Note what became of one message; return why it was nacked.
        """
        verdict = answer.verdict
        if verdict.code:
            self._events.append(sending.Returned(answer.message.sequence, verdict.code, verdict.text))
        confirms.append((answer.number, False, verdict.ack))
        return "" if verdict.ack else verdict.text

    # -- connecting ---------------------------------------------------------------------------

    def _open(self) -> None:
        connection = self._connection
        if connection is not None:
            self._prepare(connection)
            return
        self._attempt = Attempt(self.endpoints.next(), self._on_attempt_done)

    def _on_attempt_done(self, attempt: Attempt, result: socket.socket | OSError) -> None:
        self._attempts_done.append((attempt, result))
        if self._is_released:
            self._drop_attempts()
        self._wake()

    def _on_attempt(self, attempt: Attempt, result: socket.socket | OSError) -> None:
        if attempt is not self._attempt or self._stop_at is not None:
            if isinstance(result, socket.socket):
                result.close()
            return
        self._attempt = None
        if isinstance(result, OSError):
            self._lose(result)
            return
        name = f"dedup publisher {self._publisher_id}"
        self._connection = Connection(result, attempt.parameters, name)
        self._selector.register(result, selectors.EVENT_READ)

    def _on_connected(self, connection: Connection, event: Any) -> None:
        if _ANONYMOUS_RELAY not in (connection.endpoint.remote_offered_capabilities or ()):
            self._abandon()
            self._lose(
                ConfigError(f"{self.endpoints.name()} has no AMQP 1.0 that dedup can use; RabbitMQ 4 has")
            )
            return
        self._prepare(connection)

    def _open_channel(self, connection: Connection) -> None:
        self._leave_channel()
        self._session = connection.endpoint.session()
        self._session.open()
        self._link = self._session.sender(f"dedup {self._publisher_id}")
        self._link.target.type = Terminus.TARGET  # without an address: the anonymous terminus
        self._link.open()

    def _on_link_open(self, connection: Connection, event: Any) -> None:
        if event.link != self._link or event.link.state & Endpoint.REMOTE_CLOSED:
            return  # refused: its end follows
        self._outgoing = Outgoing(self._session, self._link)
        self.message_bytes_max = int(self._link.remote_max_message_size)
        self.asking.begin(connection)
        self._opened()

    # -- losing -------------------------------------------------------------------------------

    def _on_link_closed(self, connection: Connection, event: Any) -> None:
        if event.link == self._link:
            self._lose_channel(event.link.remote_condition)

    def _on_session_closed(self, connection: Connection, event: Any) -> None:
        if event.session == self._session:
            self._lose_channel(event.session.remote_condition)

    def _lose_channel(self, condition: Any) -> None:
        self._leave_channel()
        self._refuse(*told(condition))

    def _leave_channel(self) -> None:
        session, self._session, self._link, self._outgoing = self._session, None, None, None
        if session is not None:
            session.close()
            session.free()

    def _on_connection_closed(self, connection: Connection, event: Any) -> None:
        condition = connection.endpoint.remote_condition
        was_open = self._outgoing is not None
        self._abandon()
        code, text = told(condition)
        if was_open and code in FINAL_CODES:
            self._refuse(code, text)
        else:
            where = self.endpoints.name()
            self._lose(BrokerUnavailableError(f"{where} closed the connection: {text}", reply_code=code))

    def _on_transport_error(self, connection: Connection, event: Any) -> None:
        error = explain(connection, self.endpoints.name())
        self._abandon()
        self._lose(error)

    def _abandon(self) -> None:
        self._attempt = None
        connection, self._connection = self._connection, None
        self._session = self._link = self._outgoing = None
        self.asking.end()
        if self._registering is not None:
            self._registering.end()
        if connection is not None:
            self._selector.unregister(connection.socket)
            connection.close()

    def _close(self) -> None:
        connection = self._connection
        if connection is None or not connection.is_open:
            self._abandon()
        else:
            connection.endpoint.close()

    @property
    def _is_closed(self) -> bool:
        return self._connection is None

    def _release(self) -> None:
        self.asking.close()
        self._abandon()
        self._is_released = True
        self._drop_attempts()
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def _drop_attempts(self) -> None:
        """
        Close sockets that nobody waits for any more.
        """
        while self._attempts_done:
            _, result = self._attempts_done.popleft()
            if isinstance(result, socket.socket):
                result.close()


#: How publishers and outboxes use AMQP 1.0.
AMQP10: Final = Wire(
    name="amqp10",
    thread=PublishingThread,
    seal=seal,
    unstamped=unstamped,
    unseal=unseal,
    content=Content,
    stamp_bytes_max=STAMP_BYTES_MAX,
)
