"""
Drive one relay over two connections to one broker: one to forward, one to take and acknowledge.

Theory of operation
-------------------
Everything happens in the thread that calls :meth:`Session.run`. Callbacks of the connections turn
into events of the relay; the relay's effects are performed in order, one at a time. Calls to the
store are made in place; when it cannot answer, the effect stays at the head of the line and is
repeated with backoff while the connections live on.

The *forwarding* connection has one channel that publishes and holds the fence: an exclusive
consumer on the ledger, which the broker gives to one channel at a time. Until it is free this
session is a standby. A second connection takes deliveries and acknowledges them: the broker stops
reading from a connection that publishes while it has an alarm, and acknowledgements must not wait.

Whatever goes wrong with either connection ends the session; both are cut, and the next session
recovers. There is no other way back.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import pika
from attrs import define, frozen
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError, ChannelClosedByBroker, StreamLostError

from dedup.amqp091.connection import RawChannel, RawConnection
from dedup.amqp091.failures import translate
from dedup.amqp091.forwarding import ConfirmedForwarder, ExactForwarder, Forwarder, Framing, Parcel
from dedup.amqp091.properties import scan
from dedup.amqp091.wire import Delivery
from dedup.core import names, steps
from dedup.core.backoff import delay_s
from dedup.core.records import decode_marker
from dedup.core.relay import Phase, Relay
from dedup.errors import (
    BrokerUnavailableError,
    DedupError,
    PartialCommitError,
    StateFormatError,
    StoreFencedError,
    StoreUnavailableError,
    TopologyError,
)
from dedup.ports import Store

#: How often a standby asks for the fence; seconds.
FENCE_EVERY_S = 0.3
#: How often the relay is told that time passes; seconds.
TICK_S = 0.1
#: How often the target is looked for while the session runs; seconds.
CHECK_EVERY_S = 1.0
#: How long an orderly close may take; seconds.
CLOSE_TIMEOUT_S = 5.0
_ACCESS_REFUSED = 403


class Outcome(Enum):
    """
    How a session ended.
    """

    STOPPED = "stopped"
    #: A connection was lost, or the broker took something away; try again.
    LOST = "lost"
    #: Another shim has taken over.
    FENCED = "fenced"
    #: The broker closed the channel for something that was published.
    REFUSED = "refused"
    #: A commit was partial: this target needs confirms.
    PARTIAL = "partial"


@frozen
class Ended:
    """
    How a session ended, and why.
    """

    outcome: Outcome
    reason: str = ""
    #: It had recovered and settled at least one batch.
    progressed: bool = False
    error: BaseException | None = None


@define
class Observer:
    """
    Who is told what a session does; every callable is called in its thread.
    """

    report: Callable[[steps.Report], None] = lambda _: None
    notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None
    #: "before" or "after", and the effect: fault tests end the process here.
    step: Callable[[str, steps.Effect], None] = lambda _when, _effect: None


class Session:
    """
    One session of one relay; run() once.

    Args:
        parameters: pika's, for the one broker both connections go to.
        queue: The guarded queue's own name.
        relay: A new machine.
        store: Its state.
        prefetch: Deliveries the broker may send ahead.
        observer: Who is told.
    """

    def __init__(
        self,
        parameters: pika.connection.Parameters,
        queue: str,
        relay: Relay,
        store: Store,
        *,
        prefetch: int,
        observer: Observer,
    ) -> None:
        self._parameters = parameters
        self._queue = queue
        self._relay = relay
        self._store = store
        self._prefetch = prefetch
        self._observer = observer
        self._loop = IOLoop()
        self._forwarding: RawConnection | None = None
        self._taking: RawConnection | None = None
        self._ingress: RawChannel | None = None
        self._forwarder: Forwarder | None = None
        self._events: deque[steps.Event] = deque()
        self._effects: deque[steps.Effect] = deque()
        self._pumping = False
        self._store_failures = 0
        self._store_waits = False
        self._closing = False
        self._progressed = False
        self._standing_by = False
        self._ended: Ended | None = None
        length = len(queue.encode()).to_bytes(4, "big")
        #: How a death in the target looks inside an encoded x-death header.
        self._own_death = b"\x05queueS" + length + queue.encode()

    # -- from outside -----------------------------------------------------------------------------

    def run(self) -> Ended:
        """
        Forward until something ends it, and say what.
        """
        try:
            self._forwarding = self._connect(self._on_forwarding_open)
            self._loop.call_later(TICK_S, self._tick)
            self._loop.activate_poller()
            while self._ended is None:
                self._loop.poll()
                self._loop.process_timeouts()
            return self._ended
        except (AMQPError, OSError, DedupError) as error:
            return self._ended or self._outcome(error)
        finally:
            self._cut()

    def stop(self) -> None:
        """
        Finish the batch, settle and end; may be called from a signal handler or another thread.
        """
        self._loop.add_callback_threadsafe(self._on_stop)

    def _on_stop(self) -> None:
        if self._forwarder is None:
            self._end(Ended(Outcome.STOPPED))
        else:
            self._tell(steps.StopRequested())

    # -- taking the fence -------------------------------------------------------------------------

    def _connect(self, on_open: Callable[[Any], None]) -> RawConnection:
        return RawConnection(
            self._parameters,
            on_open_callback=on_open,
            on_open_error_callback=self._on_connection_closed,
            on_close_callback=self._on_connection_closed,
            custom_ioloop=self._loop,
        )

    def _on_forwarding_open(self, connection: RawConnection) -> None:
        connection.add_on_connection_blocked_callback(
            lambda _, frame: self._observer.notice("dedup.blocked", {"reason": str(frame.method.reason)})
        )
        connection.add_on_connection_unblocked_callback(
            lambda *_: self._observer.notice("dedup.unblocked", {})
        )
        self._open_fence()

    def _open_fence(self) -> None:
        if self._forwarding is not None and self._forwarding.is_open:
            self._forwarding.channel(on_open_callback=self._on_fence_channel)

    def _on_fence_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_fence_closed)
        if self._relay.settings.exact:
            channel.tx_select(callback=lambda _: self._take_fence(channel))
        else:
            channel.confirm_delivery(lambda _: None, callback=lambda _: self._take_fence(channel))

    def _take_fence(self, channel: Any) -> None:
        assert self._forwarding is not None
        raw = self._forwarding.attach(
            channel,
            on_deliveries=self._on_markers,
            on_confirms=lambda confirms: self._publishing.on_confirms(confirms),
            on_return=lambda returned: self._publishing.on_return(returned),
            on_commit=lambda: self._publishing.on_commit(),
        )
        channel.add_on_cancel_callback(lambda _: self._lose("the ledger was deleted"))
        channel.basic_consume(
            names.ledger(self._queue),
            on_message_callback=lambda *_: None,
            exclusive=True,
            callback=lambda _: self._on_fence_held(raw),
        )

    def _on_fence_held(self, raw: RawChannel) -> None:
        kind = ExactForwarder if self._relay.settings.exact else ConfirmedForwarder
        self._forwarder = kind(raw, Framing(raw, self._queue), self._tell)
        self._standing_by = False
        self._open_check()
        self._tell(steps.Started())

    def _on_fence_closed(self, channel: Any, error: BaseException) -> None:
        """
        Stand by when somebody else holds the fence; anything else ends the session.
        """
        if not isinstance(error, ChannelClosedByBroker):
            return
        if (
            self._forwarder is None
            and error.reply_code == _ACCESS_REFUSED
            and "exclusive" in error.reply_text
        ):
            if not self._standing_by:
                self._standing_by = True
                self._observer.notice("dedup.standby", {"queue": self._queue})
            self._loop.call_later(FENCE_EVERY_S, self._open_fence)
            return
        if "partial tx completion" in error.reply_text:
            self._tell(steps.CommitPartial())
            if self._relay.phase is Phase.FAILING:
                return
        refused = self._forwarder is not None and self._relay.phase is Phase.FORWARDING
        outcome = Outcome.REFUSED if refused else Outcome.LOST
        self._end(
            Ended(outcome, f"{error.reply_code} {error.reply_text}", self._progressed, translate(error))
        )

    @property
    def _publishing(self) -> Forwarder:
        assert self._forwarder is not None, "nothing is published before the fence is held"
        return self._forwarder

    def _on_markers(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._tell(steps.MarkerArrived(delivery.tag, decode_marker(delivery.body)))

    # -- looking after the target -----------------------------------------------------------------

    def _open_check(self) -> None:
        """
        Look for the target again and again: without it everything would end in quarantine.
        """
        if self._forwarding is not None and self._forwarding.is_open:
            self._forwarding.channel(on_open_callback=self._on_check_channel)

    def _on_check_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_check_closed)
        self._check(channel)

    def _check(self, channel: Any) -> None:
        if channel.is_open and not self._closing:
            channel.queue_declare(
                self._queue,
                passive=True,
                callback=lambda _: self._loop.call_later(CHECK_EVERY_S, partial(self._check, channel)),
            )

    def _on_check_closed(self, channel: Any, error: BaseException) -> None:
        if isinstance(error, ChannelClosedByBroker):
            self._end(Ended(Outcome.LOST, str(translate(error)), self._progressed, translate(error)))

    # -- taking deliveries ------------------------------------------------------------------------

    def _on_taking_open(self, connection: RawConnection) -> None:
        connection.channel(on_open_callback=self._on_ingress_channel)

    def _on_ingress_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_ingress_closed)
        channel.add_on_cancel_callback(
            lambda _: self._lose("the ingress was deleted or its consumer cancelled")
        )
        assert self._taking is not None
        self._ingress = self._taking.attach(channel, on_deliveries=self._on_deliveries)
        channel.basic_qos(prefetch_count=self._prefetch, callback=partial(self._on_qos, channel))

    def _on_qos(self, channel: Any, _: Any) -> None:
        channel.basic_consume(names.ingress(self._queue), on_message_callback=lambda *_: None)

    def _on_ingress_closed(self, channel: Any, error: BaseException) -> None:
        if isinstance(error, ChannelClosedByBroker):
            self._end(Ended(Outcome.LOST, str(translate(error)), self._progressed, translate(error)))

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
            stamp.fault or "",
            returning,
            delivery.body_size,
            Parcel(delivery, stamp.reserved),
        )

    # -- the pump ---------------------------------------------------------------------------------

    def _tell(self, event: steps.Event) -> None:
        """
        Tell the relay *event*, and do what there is to do.
        """
        self._events.append(event)
        if not self._pumping:
            self._pump()

    def _pump(self) -> None:
        self._pumping = True
        try:
            while self._ended is None and (self._events or self._effects):
                while self._events:
                    self._effects.extend(self._relay.handle(self._events.popleft(), time.time()))
                if self._store_waits or not self._effects:
                    return
                effect = self._effects[0]
                self._observer.step("before", effect)
                if not self._perform(effect):
                    return
                self._observer.step("after", effect)
                self._effects.popleft()
        except (AMQPError, OSError, DedupError) as error:
            self._end(self._outcome(error))
        finally:
            self._pumping = False

    def _perform(self, effect: steps.Effect) -> bool:
        """
        Perform *effect*; False when the store has to be asked again later.
        """
        match effect:
            case steps.Report():
                self._progressed = True
                self._observer.report(effect)
            case steps.Notice(name, facts):
                self._observer.notice(name, dict(facts))
            case steps.ClaimState() | steps.Save() | steps.Replace():
                return self._ask_store(effect)
            case steps.Anchor():
                self._publishing.anchor(effect)
            case steps.Forward():
                self._publishing.forward(effect)
            case steps.Consume():
                self._taking = self._connect(self._on_taking_open)
            case steps.Ack(tag):
                assert self._ingress is not None
                self._ingress.ack(tag)
            case steps.Close():
                self._close()
            case steps.End(reason):
                self._end(Ended(Outcome.PARTIAL if reason else Outcome.STOPPED, reason, self._progressed))
        return True

    def _ask_store(self, effect: steps.ClaimState | steps.Save | steps.Replace) -> bool:
        try:
            match effect:
                case steps.ClaimState(token_min):
                    claim = self._store.claim(token_min)
                    self._events.append(steps.Claimed(claim.token, claim.state, claim.restarted))
                case steps.Save():
                    self._events.append(steps.Saved() if self._store.save(effect) else steps.StoreBehind())
                case steps.Replace(token, state):
                    self._store.replace(token, state)
                    self._events.append(steps.Saved())
        except StoreUnavailableError as error:
            if self._closing:
                # Not marked clean: the next session is only more careful than it need be.
                raise
            pause_s = delay_s(self._store_failures, random.random(), max_s=5.0)
            if self._store_failures in (0, 10) or self._store_failures % 100 == 0:
                self._observer.notice(
                    "dedup.store_unavailable", {"reason": str(error), "retry_in_s": round(pause_s, 2)}
                )
            self._store_failures += 1
            self._store_waits = True
            self._loop.call_later(pause_s, self._store_again)
            return False
        if self._store_failures:
            self._observer.notice("dedup.store_back", {"failures": self._store_failures})
        self._store_failures = 0
        return True

    def _store_again(self) -> None:
        self._store_waits = False
        if self._ended is None:
            self._pump()

    def _tick(self) -> None:
        if self._ended is None:
            self._loop.call_later(TICK_S, self._tick)
            if self._forwarder is not None:
                self._tell(steps.Ticked())

    # -- the end ----------------------------------------------------------------------------------

    def _close(self) -> None:
        """
        Close in order, so that every acknowledgement is taken: first the source, then the fence.
        """
        self._closing = True
        self._loop.call_later(CLOSE_TIMEOUT_S, partial(self._lose, "the broker did not close in time"))
        if self._taking is not None and self._taking.is_open:
            self._taking.close()
        else:
            self._close_forwarding()

    def _close_forwarding(self) -> None:
        if self._forwarding is not None and self._forwarding.is_open:
            self._forwarding.close()
        else:
            self._tell(steps.Closed())

    def _on_connection_closed(self, connection: RawConnection, error: BaseException) -> None:
        if self._closing:
            in_order = isinstance(error, pika.exceptions.ConnectionClosedByClient)
            if in_order and connection is self._taking:
                self._close_forwarding()
                return
            if in_order and connection is self._forwarding:
                self._tell(steps.Closed())
                return
        self._end(self._outcome(error))

    def _outcome(self, error: BaseException) -> Ended:
        if isinstance(error, StoreFencedError):
            return Ended(Outcome.FENCED, str(error), self._progressed, error)
        host = f"{self._parameters.host}:{self._parameters.port}"
        known = error if isinstance(error, DedupError) else translate(error, where=host)
        outcome = Outcome.PARTIAL if isinstance(known, PartialCommitError) else Outcome.LOST
        return Ended(outcome, str(known), self._progressed, known)

    def _lose(self, reason: str) -> None:
        self._end(Ended(Outcome.LOST, reason, self._progressed, BrokerUnavailableError(reason)))

    def _end(self, ended: Ended) -> None:
        if self._ended is None:
            self._ended = ended

    def _cut(self) -> None:
        """
        Free both connections and the loop, whatever state they are in.
        """
        for connection in (self._taking, self._forwarding):
            if connection is not None and not connection.is_closed:
                if connection.is_open or connection.is_closing:
                    connection._terminate_stream(StreamLostError("the session has ended"))  # noqa: SLF001
                else:
                    connection.close()
        try:
            for _ in range(2):
                self._loop.add_callback_threadsafe(lambda: None)
                self._loop.poll()
                self._loop.process_timeouts()
            self._loop.deactivate_poller()
        except (AMQPError, OSError):
            pass
        self._loop.close()


__all__ = ["Ended", "Observer", "Outcome", "Session", "StateFormatError", "TopologyError"]
