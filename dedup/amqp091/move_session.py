"""
Drive the relay of a move: take from any queue what is wanted, at a rate, so many and until nothing is left.

What is not wanted is held unacknowledged until the session ends and goes back to its place then: to give it back at once
would have it delivered again at once. So a filter sees as many messages as the broker may send ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from attrs import frozen

from dedup.amqp091 import wire
from dedup.amqp091.dead_letters import history_of
from dedup.amqp091.decoding import decode
from dedup.amqp091.forwarding import Parcel
from dedup.amqp091.links import FENCE_EVERY_S, IngressLink, Notice
from dedup.amqp091.properties import MESSAGE_ID, Stamp, amend, header_value, scan, short_text
from dedup.amqp091.session import Session
from dedup.amqp091.wire import Delivery
from dedup.core import steps
from dedup.core.deaths import BROKER_HEADERS
from dedup.core.filters import ALL, Filter, Seen
from dedup.core.identity import DEATHS_HEADER
from dedup.core.message_ids import KEY_PREFIX, KEY_SEQUENCE
from dedup.ports import MoveFacts

#: How often the source is looked at; seconds.
LOOK_EVERY_S: Final = 0.2
#: Looks in a row that find nothing, until the source counts as empty.
_EMPTY_LOOKS: Final = 2
#: How often a rate is paid out; seconds.
_PAY_EVERY_S: Final = 0.02
#: What may be taken at once although a rate is set, in seconds of it.
_BURST_S: Final = 0.1
_DIED_IN: Final = (b"x-first-death-queue", b"x-last-death-queue")
_DIGEST_BYTES: Final = 16
#: How the lengths of so many parts are written before them.
_LENGTHS: Final = {count: b"[%b]" % b", ".join([b"%d"] * count) for count in (5, 7)}
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
        #: Tags that the relay has and has not acknowledged.
        self._passed: deque[int] = deque()
        self._skipped = 0
        self._left = taking.limit
        self._takes_all = not taking.wanted.conditions and taking.limit is None and taking.rate_max is None
        self._allowance = 0.0
        self._paid_s = time.monotonic()
        #: Looks in a row that found nothing.
        self._empty = 0
        super().__init__(*args, **kwargs)

    def ack(self, tag: int) -> None:
        """
        Acknowledge every delivery up to *tag* that was passed on.
        """
        assert self._channel is not None, "an ack before any delivery"
        tags = []
        while self._passed and self._passed[0] <= tag:
            tags.append(self._passed.popleft())
        if not self._skipped:
            self._channel.ack(tag)
        else:
            self._channel.send([wire.ack_frame(self._channel.number, each, multiple=False) for each in tags])

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
        super()._consume(channel, frame)
        self._look(channel)
        if self._taking.rate_max is not None:
            self._pay()

    def _on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        self._empty = 0
        self._waiting.extend(deliveries)
        self._pass_on()

    def _pass_on(self) -> None:
        """
        Give the relay what is wanted, as far as limit and rate go.
        """
        if self._takes_all:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._passed.extend([delivery.tag for delivery in waiting])
            self._tell(steps.Arrived([self._arrival(delivery) for delivery in waiting]))
            return
        rate_max, now_ms = self._taking.rate_max, int(time.time() * 1000)
        arrivals = []
        while self._waiting and self._left != 0 and (rate_max is None or self._allowance >= 1):
            delivery = self._waiting.popleft()
            if not self._is_wanted(delivery, now_ms):
                self._skipped += 1
                continue
            self._passed.append(delivery.tag)
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
            exchange, changed = _to_origin(raw, self._taking.origin)
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


def identity_key(delivery: Delivery, stamp: Stamp) -> str | None:
    """
    Return what stands for a message that has an identity, the same each time it is delivered; None when it has none. Total.

    It is a digest of the stamp, or else of the message id, of how the message came, where it died, and its body. Nothing else of
    the headers: a quorum queue counts deliveries there, and RabbitMQ then writes all of them anew, some of another type.
    """
    raw = delivery.properties
    if stamp.publisher is not None:
        kind, identity = b"stamp", b"%d %b" % (stamp.sequence or 0, stamp.publisher.encode())
    elif (text := short_text(raw, MESSAGE_ID)) is not None:
        kind, identity = b"id", text
    else:
        return None
    # One message that died in two queues is two messages.
    deaths = [header_value(raw, name) or b"" for name in _DIED_IN] if _DIED_IN[0] in raw else []
    parts = (kind, identity, delivery.exchange, delivery.routing_key, *deaths, delivery.body)
    sizes = _LENGTHS[len(parts)] % tuple(map(len, parts))
    return 2 * KEY_PREFIX + blake2b(b"".join((sizes, *parts)), digest_size=_DIGEST_BYTES).hexdigest()


def _to_origin(raw: bytes, find: Callable[[str], bytes]) -> tuple[bytes, bytes | None]:
    """
    Return the exchange that leads to the queue a message died in first, and the properties it goes there with.
    """
    history = history_of(raw)
    exchange = find(history.deaths[-1].queue) if history.deaths else b""
    if not exchange:
        return b"", None
    return exchange, amend(raw, headers=[(DEATHS_HEADER, history.encode())], drop=BROKER_HEADERS)


def seen_of(raw: bytes) -> Seen:
    """
    Return what a filter looks at in encoded properties; total.
    """
    decoded = decode(raw)
    timestamp = decoded.properties.get("timestamp")
    return Seen(decoded.headers, history_of(raw), None if timestamp is None else timestamp * 1000)
