"""
A registry in memory, and one served in a thread, for tests of whatever registers publishers.

It passes the same contract suite as the one in Redis::

    with serving(rabbitmq.url, MemoryRegistry(time.time)):
        publisher = Publisher(rabbitmq.url, "shop-1")
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define

from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.registry import Registry, RegistryServer
from dedup.core.identity import RANGE_EPOCH_S, UserBinding
from dedup.core.ranges import LEAD_S, Handed, base_of, next_range, range_of
from dedup.core.registry import Act, Answer, Record, Refusal, Request
from dedup.errors import StoreUnavailableError

_READY_S_MAX = 30.0


@define
class _Known:
    record: Record
    handed: Handed
    heard_s: int


class MemoryRegistry:
    """
    Carry out requests.

    Args:
        clock: Unix seconds.
        publishers_max: Publisher ids remembered at the most.
        idle_s: Silence after which one may be forgotten.
    """

    def __init__(
        self, clock: Callable[[], float], *, publishers_max: int = 1000, idle_s: float = 3600.0
    ) -> None:
        #: No call reaches it while this is set.
        self.down = False
        self._clock = clock
        self._max = publishers_max
        self._idle_s = idle_s
        self._known: dict[str, _Known] = {}
        self._since_s: int | None = None

    def open(self) -> None:
        """Take note of a loss of memory now."""
        self._since(self._now())

    def age(self, seconds: int) -> None:
        """Have forgotten nothing for so long."""
        self._since_s = self._now() - seconds

    def empty(self) -> None:
        """Forget everything."""
        self._known, self._since_s = {}, None

    def answer(self, request: Request) -> Answer:
        """Carry out one request."""
        if self.down:
            raise StoreUnavailableError("the registry in memory is switched off")
        now = self._now()
        known = self._known.get(request.publisher_id)
        if request.act is Act.REGISTER:
            return self._register(request, known, now)
        if request.act is Act.RENEW:
            number = range_of(request.last)
            newest = known.handed.range if known else 0
            if newest < number and (known or len(self._known) < self._max):
                known = self._write(request, Handed(number, 0), now)
            elif known and newest == number:
                known.heard_s = now
        return Answer(request.id, known.record if known else Record())

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _register(self, request: Request, known: _Known | None, now: int) -> Answer:
        since, last = self._since(now), range_of(request.last)
        if known and known.record.owner == request.owner and known.handed.range > last:
            known.heard_s = now
            return Answer(request.id, known.record)
        if last > now + LEAD_S:
            return Answer(request.id, refusal=Refusal.INVALID, text="its sequences are too high")
        if known is None and len(self._known) >= self._max and not self._make_room(now):
            return Answer(request.id, refusal=Refusal.FULL, text="no room")
        following = next_range(now, since, known.handed if known else Handed(), last)
        if following is None:
            return Answer(request.id, refusal=Refusal.LATER, text="the clock has to move on")
        return Answer(request.id, self._write(request, Handed(following, now), now).record)

    def _write(self, request: Request, handed: Handed, now: int) -> _Known:
        at_s = handed.at_s + RANGE_EPOCH_S if handed.at_s else 0
        record = Record(base_of(handed.range), request.owner, request.holder, at_s)
        self._known[request.publisher_id] = known = _Known(record, handed, now)
        return known

    def _make_room(self, now: int) -> bool:
        oldest = min(self._known, key=lambda name: self._known[name].heard_s)
        if self._known[oldest].heard_s > now - self._idle_s:
            return False
        del self._known[oldest]
        return True

    def _since(self, now: int) -> int:
        if self._since_s is None or self._since_s > now:
            self._since_s = now
        return self._since_s

    def _now(self) -> int:
        return int(self._clock()) - RANGE_EPOCH_S


@contextmanager
def serving(
    amqp: str, registry: Registry, *, binding: UserBinding = UserBinding.OFF
) -> Iterator[RegistryServer]:
    """
    Serve *registry* in a thread as long as the context is open.
    """
    ready = threading.Event()
    server = RegistryServer(
        connection_parameters(amqp, name="dedup registry"),
        registry,
        binding=binding,
        notice=lambda name, _: ready.set() if name == "dedup.registry_serving" else None,
    )
    thread = threading.Thread(target=server.run, name="registry", daemon=True)
    thread.start()
    try:
        assert ready.wait(_READY_S_MAX), "no broker to serve the registry on"
        yield server
    finally:
        server.stop()
        thread.join()
