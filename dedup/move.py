"""Move the messages of one queue into another: run sessions of a relay that forwards everything, until nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from attrs import define, evolve, field, frozen

from dedup.amqp091.driver import Ended, Outcome
from dedup.amqp091.inspection import Inspection
from dedup.amqp091.leadership import survey
from dedup.amqp091.management import Management
from dedup.amqp091.move_across import AcrossSession
from dedup.amqp091.move_brokers import Brokers
from dedup.amqp091.move_session import Done, MoveSession, Taking
from dedup.amqp091.move_topology import Origins, build, look, take_down
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.session import Session
from dedup.core import names, steps
from dedup.core.ahead import AHEAD_BYTES_MAX
from dedup.core.filters import ALL, Filter
from dedup.core.moving import moving_settings
from dedup.core.settings import RelaySettings
from dedup.core.window import Verdict
from dedup.errors import ConfigError
from dedup.ports import MoveFacts
from dedup.shim import HEARTBEAT_S, Shim, ShimSettings
from dedup.store.client import KEY_PREFIX
from dedup.store.forget import forget
from dedup.store.redis import RedisStore

#: Messages of one batch: one is forwarded while the next two arrive.
BATCH_MAX: Final = 1_000
#: Deliveries the broker may send ahead: without a filter, and with one, which sees no more than that. Fewer when they are
#: large: see :mod:`dedup.core.ahead`.
PREFETCH: Final = 3_000
#: The same where consumers must not be replaced: their number is not bounded by their bytes there.
PREFETCH_FIXED: Final = 1_000
PREFETCH_FILTERED: Final = 20_000
#: How much of a rate the broker may send ahead: well below its 30 minute ack timeout. Seconds.
AHEAD_S: Final = 60.0
#: A channel cannot hold more.
PREFETCH_MAX: Final = 65_535


@frozen
class MoveSettings:
    """
    What one move is told to do.
    """

    #: ``amqp://`` or ``amqps://``; several hosts of one cluster separated by commas.
    amqp: str = field(repr=False)
    #: ``redis://``, ``rediss://`` or ``unix://``.
    redis: str = field(repr=False)
    source: str
    #: Empty: each message goes back to the queue it died in first.
    target: str
    wanted: Filter = ALL
    #: Messages at the most; None: no end.
    limit: int | None = None
    #: Messages a second at the most; None: as fast as it goes.
    rate_max: float | None = None
    #: Go on when the source is empty.
    forever: bool = False
    #: Put what the target refuses for so long into the trash; None: wait for it. Seconds.
    deadline_s: float | None = 30.0
    #: Leave exchanges, ledger and state where they are at the end.
    keep_topology: bool = False
    #: "auto": exact where that is known to be sound; "exact"; "confirmed".
    forwarding: str = "auto"
    batch_max: int = BATCH_MAX
    #: Deliveries the broker may send ahead at the most; None: as many as suit.
    prefetch: int | None = None
    #: Bytes of deliveries held at the most, unless messages grow larger all at once.
    ahead_bytes_max: int = AHEAD_BYTES_MAX
    redis_prefix: str = KEY_PREFIX
    #: The broker of the target, as *amqp*; empty: it is the source's. Forwarding is confirmed then.
    to_amqp: str = field(default="", repr=False)


@define
class Moved:
    """
    What a move has done so far.
    """

    moved: int = 0
    #: Those of them that are marked: a killed move may have forwarded them already.
    marked: int = 0
    #: Put into the trash with a reason.
    trashed: int = 0
    #: Delivered again and dropped: a killed move had forwarded them.
    recognised: int = 0
    #: Not wanted, and back in their places.
    skipped: int = 0
    #: Ready messages in the source when it was looked at last.
    backlog: int = 0
    #: Why it ended by itself; None: it did not.
    done: Done | None = None


class Move(Shim):
    """
    One move; the shim's sessions over another way.

    Args:
        settings: What to do.
        management: Of the source's broker: sees whether forwarding can be exact; None: it is confirmed.
        to_management: The same of the target's, where that is another one.
        on_progress: Told a few times a second what was done so far.
        on_look: Told a few times a second what is seen of the source.
        report, notice, step: As of the shim.
    """

    def __init__(
        self,
        settings: MoveSettings,
        *,
        management: Management | None = None,
        to_management: Management | None = None,
        on_progress: Callable[[Moved], None] = lambda _: None,
        on_look: Callable[[MoveFacts], None] = lambda _: None,
        report: Callable[[steps.Report], None] = lambda _: None,
        notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None,
        step: Callable[[str, steps.Effect], None] = lambda _when, _effect: None,
    ) -> None:
        self.move = settings
        self.moved = Moved()
        self._brokers = Brokers(settings.amqp, settings.to_amqp)
        self._route = names.moving(settings.source, settings.target)
        self._management = management
        self._to_management = to_management if settings.to_amqp else management
        self._on_progress = on_progress
        self._on_look = on_look
        self._told = report
        self._moving: MoveSession | None = None
        #: As it was seen last; empty when it could not be seen.
        self._source_type = ""
        prefetch = min(settings.prefetch or _prefetch(settings), PREFETCH_MAX)
        relay = moving_settings(prefetch, batch_max=settings.batch_max, deadline_s=settings.deadline_s)
        shim = ShimSettings(
            self._brokers.into,
            settings.redis,
            self._route.queue,
            relay,
            settings.forwarding,
            prefetch,
            settings.redis_prefix,
        )
        super().__init__(shim, inspect=self._look, report=self._count, notice=notice, step=step)
        self._sources = connection_parameters(
            settings.amqp, name=f"dedup move {settings.source}", heartbeat_s=HEARTBEAT_S
        )
        #: Of the source: what is remembered is the same whichever broker the target is in.
        self._vhost = str(self._sources[0].virtual_host)
        self._origins = Origins(self._brokers, self._route)

    def run(self) -> None:
        """
        Move until nothing is left, or stop(); what is built for it is taken away when it ended by itself.

        Raises:
            As the shim's, and TopologyError when somebody else takes from the source.
        """
        self._set_out()
        build(self._brokers, self._route)
        super().run()
        if self.moved.done is not None and not self.move.keep_topology:
            take_down(self._brokers, self._route, self._origins.found)
            forget(self.move.redis, vhost=self._vhost, queue=self._route.queue, prefix=self.move.redis_prefix)

    def _set_out(self) -> None:
        """
        Find out whether there are two brokers, and lay the way.
        """
        move = self.move
        self._brokers = self._brokers.settled(move.source)
        self._route = self._brokers.route(move.source, move.target)
        self._origins = Origins(self._brokers, self._route)
        if self._brokers.across:
            if move.forwarding == "exact":
                raise ConfigError(
                    "from one broker into another forwarding is confirmed: use forwarding auto or confirmed"
                )
            self.settings = evolve(self.settings, queue=self._route.queue, forwarding="confirmed")
            self.store.close()
            self.store = RedisStore(
                move.redis, vhost=self._vhost, queue=self._route.queue, prefix=move.redis_prefix
            )
        if self._to_management is not None and move.target:
            vhost = str(self._parameters[0].virtual_host)
            self._survey = partial(survey, self._to_management, vhost, move.target, ledger=self._route.ledger)

    def _look(self) -> Inspection:
        found = look(self._brokers, self._route, self._management, self._to_management)
        self._source_type = found.source_type
        return found

    def _relay_settings(self, exact: bool) -> RelaySettings:
        return evolve(super()._relay_settings(exact), source_witnessed=not self._brokers.across)

    def _make_session(self, exact: bool) -> Session:
        limit = self.move.limit
        left = None if limit is None else max(0, limit - self._count_all())
        taking = Taking(
            self.move.wanted,
            left,
            self.move.rate_max,
            self.move.forever,
            None if self.move.target else self._origins.find,
            self.move.ahead_bytes_max if self._adapts() else None,
        )
        options = {**self._session_options(exact), "taking": taking, "on_look": self._see}
        if not (self._adapts() or self.move.prefetch or self.move.wanted.conditions):
            options["prefetch"] = min(options["prefetch"], PREFETCH_FIXED)
        if self._brokers.across:
            source = self._sources[self._failures % len(self._sources)]
            self._moving = AcrossSession(self._route, source=source, **options)
        else:
            self._moving = MoveSession(self._route, **options)
        return self._moving

    def _adapts(self) -> bool:
        """
        Say whether one consumer of the source may follow another: a quorum queue gives the next one messages ahead of the last one's.
        """
        return self._source_type == "classic"

    def _after(self, ended: Ended) -> bool:
        assert self._moving is not None
        done = self._moving.done if ended.outcome is Outcome.STOPPED else None
        # What a killed move had forwarded was taken and not moved: the limit is not reached by that.
        if done is not Done.LIMIT or self._count_all() >= (self.move.limit or 0):
            self.moved.done = done
        if self.moved.done is not None:
            self._stopping.set()
        return super()._after(ended)

    def _count_all(self) -> int:
        return self.moved.moved + self.moved.trashed

    def _see(self, look: MoveFacts) -> None:
        self.moved.backlog, self.moved.skipped = look.backlog, look.skipped
        self._on_progress(self.moved)
        self._on_look(look)

    def _count(self, report: steps.Report) -> None:
        moved = self.moved
        moved.moved += report.forwarded
        moved.marked += report.marked
        moved.trashed += report.quarantined
        moved.recognised += report.verdicts.get(Verdict.DUPLICATE, 0)
        self._told(report)
        self._on_progress(moved)


def _prefetch(settings: MoveSettings) -> int:
    if settings.wanted.conditions:
        return PREFETCH_FILTERED
    ahead = max(PREFETCH, 3 * settings.batch_max)
    return ahead if settings.rate_max is None else max(1, min(ahead, int(settings.rate_max * AHEAD_S)))
