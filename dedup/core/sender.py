"""
The sender: send each message until its fate is known, and name it the same every time.

Theory of operation
-------------------
One sender serves one publisher id. Messages arrive numbered; it sends them in that order on one
channel in confirm mode, and a message stays in its hands until the broker has confirmed it or its
caller was told why not. A channel lives from Opened to Lost, Refused or the sender's own Drop.
What a message goes through:

    WAITING ---------------------> IN_FLIGHT --ack-----------------------> CONFIRMED
                                    |  ^  |
      nack: the same sequence,      |  |  +--return, refusal, deadline---> GIVEN_UP --late ack--> CONFIRMED_LATE
      after a delay        NACKED <-+  |                                     |
                              |        |                                     |
      channel gone: oldest    +--> RESEND <-------RetryAsked-----------------+
      first, before anything new

Invariants, checked by the simulator on this very code:
  - a message is reported confirmed only after an ack for it, and never after a return or a nack;
  - a sequence never changes, and each send of it carries a higher attempt;
  - first sends follow the sequence, but for a fill: a message numbered below one that was sent before
    it was submitted, which goes like a re-send; after a loss the oldest goes first, and nothing new
    before everything that was sent before;
  - at most *unconfirmed_max* messages are unconfirmed, and none is sent that is further than half a
    window above the oldest unconfirmed one: an honest re-send is never below the shim's window.

Faults and what becomes of the messages in flight:

    connection lost, no confirm in time      re-sent: attempt + 1
    nack; also one that contradicts an ack   re-sent after a delay that grows with each nack
    return (no queue took it)                RETURNED: its caller is told; the ack that follows means nothing
    channel closed by the broker (404, ...)  the broker names no message, and its confirms are lost:
                                             all are re-sent, half as many at once, again and again, until
                                             one message is alone on the channel it closes. That one fails;
                                             no innocent one does.
    blocked                                  nothing is sent, confirms are not missed

The same halving follows every loss, and each batch answered in full doubles again: a link that breaks under a full
load gets through with a smaller one. Time comes with the events, randomness too.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from attrs import evolve

from dedup.core import failures, sending
from dedup.core.backoff import delay_s
from dedup.core.confirms import Confirms
from dedup.core.identity import Receipt
from dedup.core.kept import Kept
from dedup.core.link import Link
from dedup.core.refusals import FINAL_CODES, convicts, shares_fate
from dedup.core.sending import Effect, Event, Message, Place, SenderSettings
from dedup.errors import DedupError

#: Stale entries the heap of deadlines may hold beyond its live ones.
_STALE_MAX = 1024


class Sender:
    """
    Decide what one publisher sends, sends again, and reports.
    """

    def __init__(self, settings: SenderSettings) -> None:
        assert 1 <= settings.unconfirmed_max <= settings.window_size // 2, settings
        self._settings = settings
        self._span = settings.window_size // 2
        #: Everything whose caller waits; the queues below hold sequences and may lag behind it.
        self._live: dict[int, Message] = {}
        self._waiting: deque[int] = deque()
        self._resend: list[int] = []
        self._nacked: list[tuple[float, int]] = []
        self._deadlines: list[tuple[float, int]] = []
        #: Sequences that were sent out of turn: the oldest unconfirmed one may be among them.
        self._stragglers: list[int] = []
        self._in_flight: Confirms[Message] = Confirms()
        self._given_up = Kept(settings.kept_max, settings.kept_bytes_max)
        self._newest = self._newest_sent = 0
        self._tag = 0
        #: Publishes that may await a confirm at once; halved by losses, doubled by answered batches.
        self._limit = settings.unconfirmed_max
        self._link = Link(settings)
        self._stopped = False
        #: What ended it, unless its caller did.
        self._cause: DedupError | None = None
        self._effects: list[Effect] = []

    @property
    def unsettled(self) -> int:
        """
        Messages whose callers still wait.
        """
        return len(self._live)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """
        Take one event and return what to do about it, in order.

        Args:
            event: what happened; anything is taken in any state, late news means nothing.
            now: seconds on any clock that does not go back.
        """
        if self._stopped:
            return self._refuse_all(event)
        match event:
            case sending.Confirms():
                self._confirms(event, now)
            case sending.Submitted():
                self._submitted(event.messages)
            case sending.Returned():
                self._returned(event)
            case sending.RetryAsked():
                self._retry(event)
            case sending.Opened():
                self._link.open(now)
            case sending.Lost() if self._link.can_be_lost:
                self._lost(event.reason, event.jitter, now)
            case sending.Refused() if self._link.can_be_lost:
                self._refused(event, now)
            case sending.Blocked():
                self._link.block(event.reason)
            case sending.Unblocked():
                self._link.unblock(now)
            case sending.Stopped():
                return self._stop(event.error)
        self._pass_time(now)
        self._fill(now)
        effects, self._effects = self._effects, []
        return effects

    def wake_at(self) -> float | None:
        """
        Return when a Tick is due, if nothing else happens before; None for never.
        """
        if self._stopped:
            return None
        times = [heap[0][0] for heap in (self._deadlines, self._nacked) if heap]
        times += [time for time in (self._link.wake_at(), self._confirm_limit()) if time is not None]
        return min(times, default=None)

    # -- callers ------------------------------------------------------------------------------

    def _submitted(self, messages: Iterable[Message]) -> None:
        for message in messages:
            assert message.sequence not in self._live, message.sequence
            self._given_up.take(message.sequence)
            self._admit(message)
            if message.sequence > self._newest:
                self._newest = message.sequence
                self._waiting.append(message.sequence)
            elif message.sequence > self._newest_sent:
                insort(self._waiting, message.sequence)
            else:
                self._go_first(message)

    def _go_first(self, message: Message) -> None:
        """
        Send *message*, which lies below what was sent, before anything that was never sent, oldest first.
        """
        assert self._newest_sent - message.sequence <= self._span, (message.sequence, self._newest_sent)
        message.place = Place.RESEND
        heappush(self._resend, message.sequence)
        heappush(self._stragglers, message.sequence)

    def _admit(self, message: Message) -> None:
        self._live[message.sequence] = message
        if message.deadline is not None:
            heappush(self._deadlines, (message.deadline, message.sequence))

    def _retry(self, event: sending.RetryAsked) -> None:
        sequence = event.sequence
        if sequence in self._live:
            return
        kept = self._given_up.take(sequence)
        if kept is not None and kept.place is Place.CONFIRMED_LATE:
            self._effects.append(sending.Confirmed([kept]))
            return
        if kept is None or self._newest_sent - sequence > self._span:
            receipt = self._receipt(kept) if kept else Receipt(self._settings.publisher_id, sequence, 0)
            error = failures.expired(receipt, self._newest_sent, self._span)
            self._effects.append(sending.Failed(sequence, error))
            return
        # A new record: the old one may still await its confirm, or lie in a queue.
        message = evolve(kept, deadline=event.deadline, nacks=0, refusals=0)
        self._admit(message)
        self._go_first(message)

    # -- the broker's answers -----------------------------------------------------------------

    def _confirms(self, event: sending.Confirms, now: float) -> None:
        if not self._link.is_open:
            return
        taken: list[Message] = []
        for tag, multiple, ack in event.confirms:
            if ack:
                taken += self._in_flight.confirm(tag, multiple=multiple)
            else:
                for message in self._in_flight.reject(tag, multiple=multiple):
                    self._nack(message, event, now)
        settled = []
        for message in taken:
            if message.place is Place.IN_FLIGHT:
                message.place = Place.CONFIRMED
                del self._live[message.sequence]
                settled.append(message)
            elif message.place is Place.GIVEN_UP:
                message.place = Place.CONFIRMED_LATE
        if settled:
            self._link.prove()
            self._effects.append(sending.Confirmed(settled))
        if not self._in_flight:
            self._limit = min(self._limit * 2, self._settings.unconfirmed_max)

    def _nack(self, message: Message, event: sending.Confirms, now: float) -> None:
        if message.place is Place.CONFIRMED_LATE:
            message.place = Place.GIVEN_UP
        if message.place is Place.GIVEN_UP or message.place is Place.RETURNED:
            return
        if message.place is Place.CONFIRMED:
            # Its caller was told already: all that can be done is to see that it is stored.
            self._effects.append(sending.Notice("confirm_contradicted", {"sequence": message.sequence}))
            self._live[message.sequence] = message
        message.nacks, message.nack_reason, message.place = message.nacks + 1, event.reason, Place.NACKED
        heappush(self._nacked, (now + delay_s(message.nacks - 1, event.jitter), message.sequence))
        heappush(self._stragglers, message.sequence)

    def _returned(self, event: sending.Returned) -> None:
        message = self._live.get(event.sequence) or self._given_up.get(event.sequence)
        if message is None:
            return
        if message.place is Place.IN_FLIGHT:
            self._give_up(message, failures.returned(message, self._receipt(message), event.code, event.text))
        if message.place is Place.GIVEN_UP:
            message.place = Place.RETURNED

    # -- the channel --------------------------------------------------------------------------

    def _lost(self, reason: str, jitter: float, now: float, *, at_once: bool = False) -> None:
        """
        Take every message back from the channel and ask for the next one, after a pause or *at_once*.
        """
        in_flight = self._in_flight.clear()
        if in_flight:
            self._limit = max(1, min(self._limit, len(in_flight)) // 2)
        returning = [m.sequence for m in in_flight if m.place is Place.IN_FLIGHT]
        returning += [sequence for _, sequence in self._nacked if self._is(sequence, Place.NACKED)]
        for sequence in returning:
            self._live[sequence].place = Place.RESEND
        self._resend += returning
        heapify(self._resend)
        self._nacked, self._tag = [], 0
        self._link.lose(reason, jitter, now, at_once=at_once)

    def _refused(self, event: sending.Refused, now: float) -> None:
        """
        Find the message that the broker closes channels for.
        """
        outstanding = len(self._in_flight)
        alone = self._in_flight.smallest
        at_once = event.code in FINAL_CODES and outstanding > 0
        self._lost(f"{event.code} {event.text}", event.jitter, now, at_once=at_once)
        if alone is None or outstanding > 1:
            return
        culprit = alone[1]
        culprit.refusals += 1
        if culprit.place is Place.RESEND and convicts(culprit, event.code):
            for message in [m for m in self._live.values() if shares_fate(m, culprit, event.code)]:
                error = failures.refused(message, self._receipt(message), event.code, event.text)
                self._give_up(message, error)

    # -- time ---------------------------------------------------------------------------------

    def _pass_time(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, sequence = heappop(self._deadlines)
            message = self._live.get(sequence)
            if message is not None and message.deadline is not None and message.deadline <= now:
                error = failures.timed_out(message, self._receipt(message), self._hindrance(message))
                self._give_up(message, error)
        if len(self._deadlines) > 2 * len(self._live) + _STALE_MAX:
            live = self._live.values()
            self._deadlines = [(m.deadline, m.sequence) for m in live if m.deadline is not None]
            heapify(self._deadlines)
        while self._nacked and self._nacked[0][0] <= now:
            _, sequence = heappop(self._nacked)
            if self._is(sequence, Place.NACKED):
                self._live[sequence].place = Place.RESEND
                heappush(self._resend, sequence)
        limit = self._confirm_limit()
        if limit is not None and limit <= now:
            self._drop(f"no confirm within {self._settings.confirm_timeout_s:g} s", now)
        elif self._link.is_overdue(now):
            self._drop(f"no channel within {self._settings.open_timeout_s:g} s", now)
        elif self._link.ask(now):
            self._effects.append(sending.Open())

    def _confirm_limit(self) -> float | None:
        oldest = self._in_flight.smallest
        if oldest is None or self._link.blocked:
            return None
        return max(oldest[1].sent_at, self._link.listening_since) + self._settings.confirm_timeout_s

    def _drop(self, reason: str, now: float) -> None:
        self._effects.append(sending.Drop(reason))
        self._lost(reason, 0.5, now)

    # -- sending ------------------------------------------------------------------------------

    def _fill(self, now: float) -> None:
        """
        Send what may be sent: the old before the new, within the limits.
        """
        if not self._link.is_open or self._link.blocked:
            return
        if self._limit < self._settings.unconfirmed_max and self._in_flight:
            return
        batch: list[Message] = []
        room = self._limit - len(self._in_flight)
        while self._resend and room > len(batch):
            sequence = heappop(self._resend)
            if self._is(sequence, Place.RESEND):
                self._publish(self._live[sequence], batch, now)
        if not self._resend:
            self._fill_new(batch, room, now)
        if batch:
            self._effects.append(sending.Send(batch))

    def _fill_new(self, batch: list[Message], room: int, now: float) -> None:
        room = min(
            room, len(batch) + self._settings.unconfirmed_max - len(self._in_flight) - len(self._nacked)
        )
        ceiling = 0
        while self._waiting and room > len(batch):
            message = self._live.get(self._waiting[0])
            if message is None or message.place is not Place.WAITING:
                self._waiting.popleft()
                continue
            ceiling = ceiling or self._oldest_sent(message.sequence) + self._span
            if message.sequence > ceiling:
                break
            self._waiting.popleft()
            self._publish(message, batch, now)

    def _publish(self, message: Message, batch: list[Message], now: float) -> None:
        message.place = Place.IN_FLIGHT
        message.attempts += 1
        message.sent_at = now
        message.first_sent_at = message.first_sent_at or now
        self._tag += 1
        self._in_flight.insert(self._tag, message)
        self._newest_sent = max(self._newest_sent, message.sequence)
        batch.append(message)

    def _oldest_sent(self, default: int) -> int:
        """
        Return the lowest sequence that was sent and is not settled; nothing waits for a re-send now.

        Tags follow sequences but for the stragglers, so the smallest tag has it or they do.
        """
        while self._stragglers and self._stragglers[0] not in self._live:
            heappop(self._stragglers)
        oldest = self._in_flight.smallest
        in_flight = oldest[1].sequence if oldest else default
        return min(in_flight, self._stragglers[0]) if self._stragglers else in_flight

    # -- endings ------------------------------------------------------------------------------

    def _give_up(self, message: Message, error: DedupError) -> None:
        """
        Tell the caller and keep the message for a retry, as long as there is room.
        """
        del self._live[message.sequence]
        message.place = Place.GIVEN_UP
        self._given_up.add(message)
        self._effects.append(sending.Failed(message.sequence, error))

    def _hindrance(self, message: Message) -> str:
        if not self._link.is_open:
            return f"not connected ({self._link.loss})"
        if self._link.blocked:
            return f"the broker has blocked the connection ({self._link.blocked})"
        if message.place is Place.WAITING:
            return f"{len(self._live) - len(self._waiting)} messages before it are not confirmed"
        if message.nacks:
            return f"the broker has nacked it {message.nacks} times ({message.nack_reason or 'is a queue full?'})"
        return "the broker is silent about it"

    def _stop(self, cause: DedupError | None) -> list[Effect]:
        self._stopped, self._cause = True, cause
        effects: list[Effect] = [
            sending.Failed(m.sequence, failures.closed(self._receipt(m), cause)) for m in self._live.values()
        ]
        self._live.clear()
        self._given_up.clear()
        return effects

    def _refuse_all(self, event: Event) -> list[Effect]:
        asked: Sequence[Message | sending.RetryAsked] = []
        if isinstance(event, sending.Submitted):
            asked = event.messages
        elif isinstance(event, sending.RetryAsked):
            asked = [event]
        receipts = (Receipt(self._settings.publisher_id, one.sequence, 0) for one in asked)
        return [
            sending.Failed(receipt.sequence, failures.closed(receipt, self._cause)) for receipt in receipts
        ]

    def _receipt(self, message: Message) -> Receipt:
        return Receipt(self._settings.publisher_id, message.sequence, message.attempts)

    def _is(self, sequence: int, place: Place) -> bool:
        message = self._live.get(sequence)
        return message is not None and message.place is place
