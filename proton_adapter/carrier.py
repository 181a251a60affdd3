"""
Carry a relay's messages over one AMQP 1.0 connection, in the loop of its session: read the ingress, write target and quarantine.

Both are links of one session, and that closes the only gap a second connection has: the ingress has a single active consumer,
so a shim that takes over is given nothing until the session before is gone, with all it ever sent.

Messages are sent in the order of the batch, each on the link of its address: rewriting the ``to`` of a message would change it.
A link that has no credit holds up all that come behind.
"""

from __future__ import annotations

import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from proton import Delivery, Endpoint, Event, Terminus

from dedup.errors import BrokerUnavailableError
from proton_adapter import outcomes
from proton_adapter.connecting import Attempt
from proton_adapter.connection import Connection
from proton_adapter.failures import explain, told

#: How often heartbeats are looked after; seconds.
_TICK_S: Final = 0.5
#: The broker is said to block when it took nothing for so long of what waits; seconds.
_STUCK_S: Final = 1.0
#: Links of routing keys that are kept open.
_LINKS_MAX: Final = 32
_MESSAGE_TOO_LARGE: Final = 311
_PRECONDITION_FAILED: Final = 406

#: Told of messages that arrived: the number of each, and its encoded sections.
OnMessages = Callable[[Sequence[tuple[int, bytes]]], None]
#: Told of the indexes of those of a batch that were not accepted.
OnSettled = Callable[[list[int]], None]


class Carrier:
    """
    One AMQP 1.0 connection of a session of the relay; it never reconnects.

    Args:
        parameters: pika's.
        loop: pika's, which this connection shares with that of the fence.
        name: what the management interface shows.
        on_ready: called when messages may be sent.
        on_failed: called with the first thing that goes wrong.
        on_blocked: told that the broker takes no messages, as during an alarm, and that it does again.
    """

    def __init__(
        self,
        parameters: Any,
        loop: Any,
        name: str,
        *,
        on_ready: Callable[[], None],
        on_failed: Callable[[BaseException], None],
        on_blocked: Callable[[bool], None],
    ) -> None:
        self._loop = loop
        self._name = name
        self._where = f"{'amqps' if parameters.ssl_options else 'amqp'}://{parameters.host}:{parameters.port}"
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._on_blocked = on_blocked
        self._connection: Connection | None = None
        self._session: Any = None
        self._over = False
        self._on_closed: Callable[[], None] | None = None
        self._writes = False
        # The ingress: what was delivered and is not acknowledged, by its number.
        self._receiver: Any = None
        self._prefetch = 0
        #: Messages the broker sent beyond its credit.
        self._excess = 0
        self._on_messages: OnMessages = lambda _: None
        self._number = 0
        self._deliveries: OrderedDict[int, Delivery] = OrderedDict()
        # The target: links by address, the least recently used first, and the batch under way.
        self._senders: OrderedDict[str, Any] = OrderedDict()
        self._queued: deque[tuple[int, str, bytes]] = deque()
        self._sent: dict[int, int] = {}
        self._tag = 0
        self._refused: list[int] = []
        self._on_settled: OnSettled | None = None
        #: How many messages and bytes wait for the broker to take them, and since when so many.
        self._waiting = (0, 0)
        self._waiting_since = 0.0
        self._is_blocked = False
        self._handlers: dict[Any, Callable[[Any], None]] = {
            Event.CONNECTION_REMOTE_OPEN: self._on_open,
            Event.CONNECTION_REMOTE_CLOSE: self._on_connection_closed,
            Event.SESSION_REMOTE_OPEN: self._on_session_open,
            Event.SESSION_REMOTE_CLOSE: self._on_session_closed,
            Event.LINK_REMOTE_CLOSE: self._on_link_closed,
            Event.LINK_REMOTE_DETACH: self._on_link_closed,
            Event.TRANSPORT_ERROR: self._on_transport_over,
        }
        self._attempt = Attempt(parameters, self._on_attempt)

    # -- from outside -----------------------------------------------------------------------------

    def consume(self, address: str, prefetch: int, on_messages: OnMessages) -> None:
        """
        Take messages from *address*, at most *prefetch* ahead of their acknowledgement.
        """
        assert self._session is not None, "not ready"
        self._on_messages = on_messages
        self._receiver = self._session.receiver(f"{self._name} ingress")
        self._receiver.source.address = address
        self._receiver.open()
        self._prefetch = prefetch
        self._grant_credit()
        self._flush()

    def ack(self, number: int) -> None:
        """
        Acknowledge everything up to *number*.
        """
        while self._deliveries and next(iter(self._deliveries)) <= number:
            _, delivery = self._deliveries.popitem(last=False)
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        self._grant_credit()
        self._flush()

    def publish(self, messages: Sequence[tuple[str, bytes]], on_settled: OnSettled) -> None:
        """
        Send *messages*, (address, encoded sections), in this order; one batch at a time.
        """
        assert self._on_settled is None, "one batch at a time"
        self._queued.extend((index, address, data) for index, (address, data) in enumerate(messages))
        self._refused = []
        self._on_settled = on_settled
        self._flush()

    def close(self, on_closed: Callable[[], None]) -> None:
        """
        Close in order: when *on_closed* is called, the broker has taken every acknowledgement.
        """
        self._on_closed = on_closed
        if self._connection is None or self._over:
            on_closed()
            return
        self._connection.endpoint.close()
        self._flush()

    def cut(self) -> None:
        """
        End the connection at once, whatever state it is in.
        """
        self._over = True
        connection, self._connection = self._connection, None
        if connection is not None:
            self._loop.remove_handler(connection.socket.fileno())
            connection.close()

    # -- the connection -----------------------------------------------------------------------------

    def _on_attempt(self, attempt: Attempt, result: socket.socket | OSError) -> None:
        """
        Hand the socket over to the loop; called in a thread of its own.
        """
        try:
            self._loop.add_callback_threadsafe(partial(self._start, attempt.parameters, result))
        except Exception:  # noqa: BLE001 - the loop is closed: nobody wants the socket any more
            if isinstance(result, socket.socket):
                result.close()

    def _start(self, parameters: Any, result: socket.socket | OSError) -> None:
        if self._over:
            if isinstance(result, socket.socket):
                result.close()
            return
        if isinstance(result, OSError):
            self._fail(result)
            return
        self._connection = Connection(result, parameters, self._name)
        self._loop.add_handler(result.fileno(), self._on_ready_to, self._loop.READ)
        self._tick()

    def _tick(self) -> None:
        if not self._over:
            self._loop.call_later(_TICK_S, self._tick)
            self._flush()
            self._watch_credit()

    def _on_ready_to(self, _: int, events: int) -> None:
        if self._connection is None:
            return
        if events & ~self._loop.WRITE:
            self._connection.receive()
        self._flush()

    def _flush(self) -> None:
        """
        Hear what has come, send what may be sent, and see to it that this is done again when there is more.
        """
        connection = self._connection
        if connection is None or self._over:
            return
        if not self._hear(connection):
            return
        self._spend_credit()
        connection.tick(time.monotonic())
        connection.send()
        if not self._hear(connection):
            return
        if connection.is_over:
            self._on_transport_over(None)
            return
        if connection.waits_to_write != self._writes:
            self._writes = not self._writes
            interest = self._loop.READ | (self._loop.WRITE if self._writes else 0)
            self._loop.update_handler(connection.socket.fileno(), interest)
        if connection.has_more:
            connection.has_more = False
            self._loop.add_callback_threadsafe(partial(self._on_ready_to, 0, self._loop.READ))

    def _hear(self, connection: Connection) -> bool:
        """
        Deal with what proton has noticed; the relay is told at the end, for it may ask for more at once.

        False: that was the end.
        """
        arrived: list[tuple[int, bytes]] = []
        for event in connection.events():
            if event.type is Event.DELIVERY:
                if event.link == self._receiver:
                    arrived += self._take(event.delivery)
                else:
                    self._settle(event.delivery)
            elif handler := self._handlers.get(event.type):
                handler(event)
            if self._over:
                return False
        if arrived:
            self._on_messages(arrived)
        if self._on_settled is not None and not self._sent and not self._queued:
            on_settled, self._on_settled = self._on_settled, None
            on_settled(sorted(self._refused))
        return not self._over

    def _on_open(self, _: Any) -> None:
        assert self._connection is not None
        self._session = self._connection.endpoint.session()
        self._session.open()

    def _on_session_open(self, _: Any) -> None:
        self._on_ready()

    # -- the ingress ------------------------------------------------------------------------------

    def _take(self, delivery: Delivery) -> list[tuple[int, bytes]]:
        """
        Return the number and the bytes of a message that has arrived in full.
        """
        if not delivery.readable or delivery.partial:
            return []
        raw = bytes(self._receiver.recv(delivery.pending) or b"")
        self._receiver.advance()
        self._number += 1
        self._deliveries[self._number] = delivery
        return [(self._number, raw)]

    def _grant_credit(self) -> None:
        """
        Let the broker send as many as are neither here nor on their way, up to the prefetch.

        RabbitMQ 4.0 sends a single active consumer a few more than it was granted when it becomes active. proton does not count
        these, so that its count lags behind the broker's from then on, and credit would be taken for less than it is; and credit
        below zero ends the session.
        """
        credit = self._receiver.credit - self._receiver.queued
        excess = self._excess + max(0, -credit)
        room = self._prefetch - len(self._deliveries) - self._receiver.queued
        if room > 0 and room + excess > credit:
            self._excess = excess
            self._receiver.flow(room + excess - credit)

    # -- the target -------------------------------------------------------------------------------

    def _spend_credit(self) -> None:
        while self._queued:
            index, address, data = self._queued[0]
            sender = self._sender(address)
            if sender is None or sender.credit <= 0:
                return
            self._queued.popleft()
            self._tag += 1
            sender.delivery(str(self._tag))
            sender.stream(data)
            sender.advance()
            self._sent[self._tag] = index

    def _watch_credit(self) -> None:
        """
        Tell when the broker has taken nothing for a while of what waits for it, and when it takes again.

        It says nothing of an alarm over AMQP 1.0: it grants no more.
        """
        if self._session is None or self._over:
            return
        now = time.monotonic()
        waiting = len(self._queued), int(self._session.outgoing_bytes)
        if waiting != self._waiting or not any(waiting):
            self._waiting, self._waiting_since = waiting, now
        is_blocked = now - self._waiting_since >= _STUCK_S
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            self._on_blocked(is_blocked)

    def _sender(self, address: str) -> Any:
        """
        Return the link of *address*; None while there is no room for another one.
        """
        if address in self._senders:
            self._senders.move_to_end(address)
            return self._senders[address]
        if len(self._senders) >= _LINKS_MAX:
            if self._sent:
                return None
            self._senders.popitem(last=False)[1].close()
        sender = self._session.sender(f"{self._name} {self._tag} {address}")
        sender.target.type = Terminus.TARGET
        sender.target.address = address
        sender.open()
        self._senders[address] = sender
        return sender

    def _settle(self, delivery: Delivery) -> None:
        if not delivery.updated or not (int(delivery.remote_state) or delivery.settled):
            return
        index = self._sent.pop(int(delivery.tag), None)
        if index is not None and int(delivery.remote_state) != outcomes.ACCEPTED:
            self._refused.append(index)
        delivery.settle()

    # -- losing -----------------------------------------------------------------------------------

    def _on_link_closed(self, event: Any) -> None:
        if event.link.state & Endpoint.LOCAL_ACTIVE:
            self._fail_with(event.link.remote_condition, f"the link to {self._address(event.link)}")
        else:
            event.link.free()

    def _address(self, link: Any) -> str:
        terminus = link.source if link == self._receiver else link.target
        return str(terminus.address)

    def _on_session_closed(self, event: Any) -> None:
        self._fail_with(event.session.remote_condition, "the session")

    def _on_connection_closed(self, event: Any) -> None:
        if self._on_closed is not None:
            self._finish(self._on_closed)
        else:
            self._fail_with(event.connection.remote_condition, "the connection")

    def _on_transport_over(self, _: Any) -> None:
        if self._on_closed is not None:
            self._finish(self._on_closed)
        elif self._connection is not None:
            self._fail(explain(self._connection, self._where))

    def _finish(self, on_closed: Callable[[], None]) -> None:
        self._on_closed, self._over = None, True
        on_closed()

    def _fail_with(self, condition: Any, what: str) -> None:
        code, text = told(condition)
        if code == _MESSAGE_TOO_LARGE:
            code = _PRECONDITION_FAILED  # it fitted before the shim's mark: for the relay a message that is refused
        self._fail(
            BrokerUnavailableError(
                f"{self._where} closed {what}: {code} {text}", reply_code=code, reply_text=text
            )
        )

    def _fail(self, error: BaseException) -> None:
        if not self._over:
            self._over = True
            self._on_failed(error)
