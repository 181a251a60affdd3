"""One guarded queue, or a plain loop in its place, that a fault strikes: feed it, start and stop it, and account for every message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from dedup.core import names
from dedup.publisher import Publisher
from dedup.testing.oracle import Oracle
from dedup.testing.proxy import FaultProxy
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import PATIENCE_S, Child
from tests.fault.guarded import Guarded
from tests.fault.matrix import OVER_10, Cell, Outcome
from tests.fault.naive import NaiveProcess
from tests.fault.publisher_process import publisher_type

#: Notices of a shim or a plain loop that something has gone wrong.
TROUBLE = (
    "trouble",
    "dedup.session_ended",
    "dedup.store_unavailable",
    "dedup.store_behind",
    "dedup.rolled_back",
    "dedup.refused",
    "dedup.unavailable",
    "dedup.target_missing",
)
#: What is not in the target after so long, although the ingress seems empty, is lost; seconds.
_MISSED_S = 15.0
_LOOK_AGAIN_S = 0.5
#: How long the broker bears the silence of a client of AMQP 1.0, as it is and where it is to notice; seconds.
_SILENCE_S = (60, 2)


class Scene:
    """
    One run of one cell; a context manager.

    Args:
        cell: What is to be shown.
        rabbitmq, redis: Running servers.
        queue: A name nobody else uses.
        times: How often faults strike that strike again and again.
        control: A plain loop stands in the shim's place.
        together: Shared with the other scenes on the same broker.
    """

    def __init__(
        self,
        cell: Cell,
        rabbitmq: RabbitMQ,
        redis: Redis,
        queue: str,
        *,
        times: int = 1,
        control: bool = False,
        together: threading.Barrier | None = None,
    ) -> None:
        self.cell = cell
        self.rabbitmq = rabbitmq
        self.redis = redis
        self.times = times
        self.control = control
        layout = cell.layout
        self.guarded = Guarded(
            rabbitmq,
            redis,
            queue,
            exact=layout.exact,
            target_type=layout.target,
            ingress_type=layout.ingress,
        )
        self.publisher_url = rabbitmq.url
        self.oracle = Oracle()
        #: How often the fault has struck.
        self.faults = 0
        #: Messages fed so far; they are m1, m2, ...
        self.fed = 0
        #: How often they were published in all, as far as the publishers know.
        self.copies = 0
        self._felt = 0
        self._barrier = together or threading.Barrier(1)
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self.guarded.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()
        self.guarded.__exit__()

    def run(self) -> Outcome:
        """Let the fault strike, wait until everything is through, and compare what came out with what went in."""
        try:
            self.cell.inject(self)
            self.settle()
        except BaseException:
            self._barrier.abort()
            raise
        account = self.oracle.account()
        return Outcome(
            faults=self.faults,
            messages=account.messages,
            lost=account.lost,
            duplicates=account.duplicates,
            marked=account.marked,
            disordered=account.disordered,
            unexpected=account.unexpected,
            quarantined=account.quarantined,
            felt=self._felt + sum(child.count(*TROUBLE) for child in self._children),
            examples=account.examples,
        )

    # -- the fault --------------------------------------------------------------------------------

    def struck(self, times: int = 1) -> None:
        """Count strikes."""
        self.faults += times

    def note(self) -> None:
        """Note that the fault was felt where no forwarder tells of it."""
        self._felt += 1

    def together(self, act: Callable[[], None]) -> None:
        """Do *act* once for all scenes on this broker, when every one of them has come here."""
        if self._barrier.wait(PATIENCE_S) == 0:
            act()
        self._barrier.wait(PATIENCE_S)

    @contextmanager
    def link(self) -> Iterator[FaultProxy]:
        """Put a link that breaks on request between forwarders that are started from now on and the broker."""
        with FaultProxy(self.rabbitmq.port) as proxy:
            self.guarded.amqp_url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/%2F"
            yield proxy
            # Those that live go on over the direct way, so that the link may end.
            for child in self.living():
                child.stop()
            self.guarded.amqp_url = self.rabbitmq.url

    @contextmanager
    def redis_link(self) -> Iterator[FaultProxy]:
        """The same between forwarders and Redis."""
        with FaultProxy(self.redis.port) as proxy:
            self.guarded.redis_url = f"redis://127.0.0.1:{proxy.port}/0"
            yield proxy
            for child in self.living():
                child.stop()
            self.guarded.redis_url = self.redis.url

    @contextmanager
    def silence_noticed(self) -> Iterator[None]:
        """
        Have the broker notice soon when a client that connects from now on falls silent.

        A client of AMQP 0.9.1 says itself how soon; of AMQP 1.0 the broker decides it, for all clients alike.
        """
        if self.cell.layout not in OVER_10:
            yield
            return
        as_it_is, soon = (partial(self._bear_silence, silence_s) for silence_s in _SILENCE_S)
        self.together(soon)
        try:
            yield
        except BaseException:
            as_it_is()
            raise
        self.together(as_it_is)

    def _bear_silence(self, silence_s: int) -> None:
        self.rabbitmq.evaluate(f"application:set_env(rabbit, heartbeat, {silence_s}).")

    def declare_plain_ingress(self) -> None:
        """Declare the ingress anew as somebody would who knows of no shim: without any arguments but its type."""
        ingress = names.ingress(self.guarded.queue)
        with self.guarded.channel() as channel:
            channel.queue_delete(ingress)
            channel.queue_declare(ingress, durable=True, arguments={"x-queue-type": self.cell.layout.ingress})

    # -- what goes in -----------------------------------------------------------------------------

    def feed(self, count: int) -> None:
        """
        Publish *count* new messages, and all of them a second time where somebody is there to drop those.

        The second copies are the publisher's retries: the shim must drop them whatever happens to it meanwhile.
        """
        first = self.fed + 1
        self.ask(count)
        self.publish(first)
        if not self.control or self.cell.control_asks_redis:
            self.publish(first)

    def ask(self, count: int) -> None:
        """Name *count* new messages that somebody is going to publish."""
        for number in range(self.fed + 1, self.fed + count + 1):
            self.oracle.ask("p", f"m{number}")
        self.fed += count

    def publish(self, first: int = 1) -> None:
        """Publish the messages from m*first* to the newest, whether published before or not, until all are confirmed."""
        with self.publisher(base=first - 1, confirm_timeout_s=3.0) as publisher:
            numbers = range(first, self.fed + 1)
            futures = [publisher.submit(b"m%d" % n, queue=self.guarded.queue) for n in numbers]
            for number, future in zip(numbers, futures, strict=True):
                future.result(PATIENCE_S)
                self.oracle.confirm(f"m{number}")
                self.copies += 1

    def publisher(self, url: str | None = None, **options: Any) -> Publisher:
        """Return a publisher of the layout's protocol."""
        return publisher_type(self.cell.layout.protocol)(url or self.publisher_url, "p", **options)

    # -- forwarders -------------------------------------------------------------------------------

    def start(self, **options: Any) -> Child:
        """
        Start a shim, or the plain loop of a control, with options of `shim_process`.

        A loop has fewer steps: whatever step is named, it is struck between its publish and its ack.
        """
        child: Child
        if self.control:
            if options.get("kill", ("", "Publish", 0))[1] not in ("Claim", "Publish"):
                options["kill"] = ("after", "Publish", 1)
            child = NaiveProcess(
                {
                    "amqp": self.guarded.amqp_url,
                    "redis": self.guarded.redis_url if self.cell.control_asks_redis else None,
                    "source": names.ingress(self.guarded.queue),
                    "target": self.guarded.queue,
                    "kill": options.get("kill"),
                    **({"signal": options["signal"]} if "signal" in options else {}),
                }
            )
        else:
            child = self.guarded.start_shim(protocol=self.cell.layout.protocol, **options)
        self._children.append(child)
        return child

    def in_flow(self, messages: int = 60) -> Child:
        """Feed, start, and return when forwarding has begun."""
        self.feed(messages)
        child = self.start()
        child.wait_for("report")
        return child

    def living(self) -> list[Child]:
        """Return the forwarders that have not ended."""
        return [child for child in self._children if child.poll() is None]

    def drain(self) -> Child:
        """Wait until the ingress is empty; return a forwarder that lives."""
        child = (self.living() or [self.start()])[-1]
        self.guarded.wait_drained(child)
        return child

    def settle(self) -> None:
        """
        Wait until everything is through, end all forwarders in order, and read what came out.

        A quorum queue that has no leader at the moment says that it is empty. So what is missing is waited for before it is lost.
        """
        deadline = time.monotonic() + PATIENCE_S
        lost_at = time.monotonic() + (0.0 if self.control else _MISSED_S)
        while True:
            self.drain()
            for child in self.living():
                child.stop()
            # What was delivered and not acknowledged is back in the ingress now.
            if not self.guarded.depth(names.ingress(self.guarded.queue)):
                self.read()
                if not self.oracle.unsettled() or time.monotonic() > lost_at:
                    return
                time.sleep(_LOOK_AGAIN_S)
            assert time.monotonic() < deadline, "the ingress does not drain"

    # -- what comes out ---------------------------------------------------------------------------

    def read(self) -> int:
        """Take everything out of target and quarantine, tell the oracle, and return how many there were."""
        found = self.guarded.read()
        for body, marked in found.copies:
            self.oracle.deliver(body, marked=marked)
        parked = self.guarded.read(names.quarantine(self.guarded.queue))
        for body, _ in parked.copies:
            self.oracle.quarantine(body)
        return len(found.copies) + len(parked.copies)
