"""
Drive the relay of a move: take from any queue what is wanted, at a rate, so many and until nothing is left.

What is not wanted is held unacknowledged until the session ends and goes back to its place then: to give it back at once
would have it delivered again at once. So a filter sees as many messages as the broker may send ahead.

How many that are follows from how large they are, and a consumer cannot be given more or fewer than it began with. So one
consumer follows another, on one channel: what the one before was given stays with the channel, in its order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

from attrs import frozen
from pika import spec
from pika.frame import Method

from dedup.amqp091 import wire
from dedup.amqp091.framing import Parcel
from dedup.amqp091.links import FENCE_EVERY_S, IngressLink, Notice
from dedup.amqp091.move_messages import identity_key, seen_of, to_origin
from dedup.amqp091.properties import amend, scan
from dedup.amqp091.session import Session
from dedup.amqp091.wire import Delivery
from dedup.core import steps
from dedup.core.ahead import AHEAD_BYTES_MAX, Ahead
from dedup.core.filters import ALL, Filter
from dedup.core.message_ids import KEY_SEQUENCE
from dedup.ports import MoveFacts

#: How often the source is looked at; seconds.
LOOK_EVERY_S: Final = 0.2
#: Looks in a row that find nothing, until the source counts as empty.
_EMPTY_LOOKS: Final = 2
#: How often a rate is paid out; seconds.
_PAY_EVERY_S: Final = 0.02
#: What may be taken at once although a rate is set, in seconds of it.
_BURST_S: Final = 0.1
#: Why a message cannot go back to where it died.
NO_ORIGIN: Final = "no-origin"
_NOTHING: Final = frozenset[str]()


class Done(Enum):
    """
    Why there is nothing more to do.
    """

    #: The source is empty, or holds nothing more that is wanted.
    EMPTY = "empty"
    #: As many as were asked for.
    LIMIT = "limit"
    #: All that can be looked at at once is not wanted.
    HELD = "held"


@frozen
class Taking:
    """
    What is taken out of the source.
    """

    wanted: Filter = ALL
    #: Messages at the most; None: no end.
    limit: int | None = None
    #: Messages a second at the most; None: as fast as it goes.
    rate_max: float | None = None
    #: Go on when the source is empty.
    forever: bool = False
    #: Finds the exchange that leads to the queue of this name, or empty bytes when there is none; None: everything goes to
    #: the target.
    origin: Callable[[str], bytes] | None = None
    #: Bytes of what is held at the most, see :mod:`dedup.core.ahead`; None: the broker is asked once, for the whole prefetch.
    ahead_bytes_max: int | None = AHEAD_BYTES_MAX


class MoveSource(IngressLink):
    """
    Take deliveries of the source, and acknowledge those that are settled.

    Args:
        taking: What is taken.
        on_look: Told what is seen, a few times a second.
        on_done: Told once that nothing more will be taken.
        notice: Told that somebody else takes from the source.
    """

    def __init__(
        self,
        *args: Any,
        taking: Taking,
        on_look: Callable[[MoveFacts], None],
        on_done: Callable[[Done], None],
        notice: Notice,
        **kwargs: Any,
    ) -> None:
        self._taking = taking
        self._notice = notice
        self._standing_by = False
        self._on_look = on_look
        self._on_done = on_done
        #: Delivered, and not looked at yet.
        self._waiting: deque[Delivery] = deque()
        #: Tags that the relay has and has not acknowledged, and how large each is.
        self._passed: deque[tuple[int, int]] = deque()
        self._skipped = 0
        self._left = taking.limit
        self._takes_all = not taking.wanted.conditions and taking.limit is None and taking.rate_max is None
        self._allowance = 0.0
        self._paid_s = time.monotonic()
        #: Looks in a row that found nothing.
        self._empty = 0
        super().__init__(*args, **kwargs)
        self._ahead = Ahead(self._prefetch, self._taking.ahead_bytes_max)
        #: Number of the consumer; 0: there is none yet.
        self._consumer = 0
        #: The next one is on its way.
        self._replacing = False

    def ack(self, tag: int) -> None:
        """
        Acknowledge every delivery up to *tag* that was passed on.
        """
        assert self._channel is not None, "an ack before any delivery"
        settled = []
        while self._passed and self._passed[0][0] <= tag:
            settled.append(self._passed.popleft())
        self._ahead.settled(sum([size for _, size in settled]))
        if not self._skipped:
            self._channel.ack(tag)
        else:
            frames = [wire.ack_frame(self._channel.number, each, multiple=False) for each, _ in settled]
            self._channel.send(frames)

    def _is_open(self) -> bool:
        return self._channel is not None and self._channel.is_open and self._on_closed is None

    # -- what comes -------------------------------------------------------------------------------

    def _consume(self, channel: Any, _: Any) -> None:
        """
        Ask who else takes from the source: what a session before had in its hands must have come back.

        Its connection may outlive it in the broker, and what comes back later than the first fresh delivery looks like new.
        """
        if channel.is_open and self._on_closed is None:
            channel.queue_declare(self._route.source, passive=True, callback=partial(self._asked, channel))

    def _asked(self, channel: Any, frame: Any) -> None:
        if frame.method.consumer_count:
            if not self._standing_by:
                self._standing_by = True
                self._notice("dedup.standby", {"queue": self._route.source})
            self._loop.call_later(FENCE_EVERY_S, partial(self._consume, channel, frame))
            return
        self._ask_for(self._ahead.count)
        self._look(channel)
        if self._taking.rate_max is not None:
            self._pay()

    def _ask_for(self, count: int) -> None:
        """
        Have a consumer that is given *count* follow the present one.
        """
        assert self._channel is not None, "no consumer before the channel"
        self._replacing = True
        self._ahead.replace(count)
        self._channel.channel.basic_qos(prefetch_count=count, callback=self._on_granted)

    def _on_granted(self, _: Any) -> None:
        """
        Replace the consumer in one write: whoever looks for consumers of the source must not find none while this session lives.
        """
        if self._channel is None or not self._is_open():
            return
        methods = []
        if self._consumer:
            methods.append(spec.Basic.Cancel(_consumer_tag(self._consumer), nowait=True))
        self._consumer += 1
        methods.append(
            spec.Basic.Consume(
                queue=self._route.source, consumer_tag=_consumer_tag(self._consumer), nowait=True
            )
        )
        self._channel.send([Method(self._channel.number, method).marshal() for method in methods])
        self._replacing = False

    def _adapt(self) -> None:
        """
        Ask for more or fewer deliveries where that suits better.
        """
        if self._consumer and not self._replacing and self._is_open() and (count := self._ahead.next()):
            self._ask_for(count)

    def _on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        self._empty = 0
        self._waiting.extend(deliveries)
        self._ahead.came(len(deliveries), sum([len(delivery.content) for delivery in deliveries]))
        self._pass_on()
        self._adapt()

    def _pass_on(self) -> None:
        """
        Give the relay what is wanted, as far as limit and rate go.
        """
        if self._takes_all:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._passed.extend([(delivery.tag, len(delivery.content)) for delivery in waiting])
            self._tell(steps.Arrived([self._arrival(delivery) for delivery in waiting]))
            return
        rate_max, now_ms = self._taking.rate_max, int(time.time() * 1000)
        arrivals = []
        while self._waiting and self._left != 0 and (rate_max is None or self._allowance >= 1):
            delivery = self._waiting.popleft()
            if not self._is_wanted(delivery, now_ms):
                self._skipped += 1
                self._ahead.skipped(len(delivery.content))
                continue
            self._passed.append((delivery.tag, len(delivery.content)))
            arrivals.append(self._arrival(delivery))
            if self._left is not None:
                self._left -= 1
            if rate_max is not None:
                self._allowance -= 1
        if arrivals:
            self._tell(steps.Arrived(arrivals))

    def _is_wanted(self, delivery: Delivery, now_ms: int) -> bool:
        wanted = self._taking.wanted
        return not wanted.conditions or wanted.matches(seen_of(delivery.properties), now_ms)

    def _arrival(self, delivery: Delivery) -> steps.Arrival:
        raw = delivery.properties
        stamp = scan(raw)
        key = identity_key(delivery, stamp)
        fault, exchange, changed = "", b"", None
        if self._taking.origin is not None:
            exchange, changed = to_origin(raw, self._taking.origin)
            fault = "" if exchange else NO_ORIGIN
        if changed is None and stamp.user is not None:
            # The broker would refuse somebody else's; everything else goes as it is.
            changed = amend(raw, drop=_NOTHING)
        return steps.Arrival(
            delivery.tag,
            delivery.redelivered,
            key,
            None if key is None else KEY_SEQUENCE,
            fault=fault,
            size=delivery.body_size,
            payload=Parcel(delivery, reserved=False, changed=changed, drop=_NOTHING, exchange=exchange),
        )

    # -- when it ends -----------------------------------------------------------------------------

    def _look(self, channel: Any) -> None:
        if channel.is_open and self._on_closed is None:
            channel.queue_declare(self._route.source, passive=True, callback=partial(self._seen, channel))

    def _seen(self, channel: Any, frame: Any) -> None:
        self._adapt()
        ready = int(frame.method.message_count)
        self._on_look(MoveFacts(ready + len(self._waiting), len(self._passed), self._skipped))
        done = self._done(ready)
        self._empty = self._empty + 1 if done is not None else 0
        if done is not None and (self._empty >= _EMPTY_LOOKS or done is Done.LIMIT):
            self._on_done(done)
        else:
            self._loop.call_later(LOOK_EVERY_S, partial(self._look, channel))

    def _done(self, ready: int) -> Done | None:
        if self._passed or self._taking.forever:
            return None
        if self._left == 0:
            return Done.LIMIT
        if self._waiting:
            return None
        if self._skipped >= self._prefetch:
            return Done.HELD
        return None if ready else Done.EMPTY

    def _pay(self) -> None:
        rate_max = self._taking.rate_max
        assert rate_max is not None
        now_s = time.monotonic()
        burst = max(1.0, rate_max * _BURST_S)
        self._allowance = min(burst, self._allowance + rate_max * (now_s - self._paid_s))
        self._paid_s = now_s
        self._pass_on()
        if self._on_closed is None and not self._connection.is_closed:
            self._loop.call_later(_PAY_EVERY_S, self._pay)


class MoveSession(Session):
    """
    One session of a move.

    Args:
        taking: What is taken.
        on_look: Told what is seen of the source, a few times a second.
    """

    def __init__(
        self, *args: Any, taking: Taking, on_look: Callable[[MoveFacts], None], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._source_parameters = self._parameters
        self._taking = taking
        self._on_look = on_look
        #: Why it stopped by itself; None: it did not.
        self.done: Done | None = None

    def _open_ingress(self) -> MoveSource:
        return MoveSource(
            self._source_parameters,
            self._loop,
            self._route,
            tell=self._tell,
            on_failed=self._on_failed,
            prefetch=self._prefetch,
            settings=self._relay.settings,
            taking=self._taking,
            on_look=self._on_look,
            on_done=self._on_done,
            notice=self._observer.notice,
        )

    def _on_done(self, done: Done) -> None:
        self.done = done
        self._on_stop()


def _consumer_tag(number: int) -> str:
    return f"move-{number}"
