"""Do the faults of a plan to a running scene, and undo them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define

from dedup.demo.shims import Child, Shims
from dedup.demo.stage import Stage
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from tests.soak.plan import KINDS, Fault, Place
from tests.soak.producers import Producers

#: How long a kill waits for a shim that forwards, every other time; seconds.
_FORWARDING_WAIT_S: Final = 2.0
_FULL: Final = "soak-full"

Facts = dict[str, Any]


class SoakShims(Shims):
    """
    The shims of a soak: they can also be frozen, and be absent for a while.
    """

    def freeze(self) -> Child:
        """
        Stop the shim that forwards with SIGSTOP.
        """
        child = self.forwarding or self._children[0]
        child.process.send_signal(signal.SIGSTOP)
        return child

    def others_forward(self, child: Child) -> bool:
        """
        Say whether a shim other than *child* has taken over.
        """
        return any(other.forwards for other in self._children if other is not child)

    def kill_all(self) -> None:
        """
        Kill all with SIGKILL, and start none.
        """
        self.kills += len(self._children)
        self.end()


@define
class Breaker:
    """
    Begin and end faults.
    """

    scene: Stage
    shims: SoakShims
    producers: Producers
    #: Between the shims and the broker, and between the shims and Redis.
    shim_link: FaultProxy
    store_link: FaultProxy
    #: Redis as it was at the marking fault before.
    _snapshot: Path | None = None
    _store_hurt: bool = False
    _undo: dict[int, Callable[[], Facts | None]] = Factory(dict)

    def __attrs_post_init__(self) -> None:
        self.shims.in_batch = self.in_batch

    def in_batch(self) -> bool:
        """
        Say whether a batch was begun and not settled, as far as Redis can be asked.
        """
        return not self._store_hurt and self.scene.in_batch()

    def begin(self, fault: Fault) -> None:
        """
        Do *fault*; it is in force when this returns.
        """
        match KINDS[fault.kind].place:
            case Place.PUBLISHER_LINK | Place.SHIM_LINK | Place.STORE_LINK as place:
                self._undo[fault.number] = self._break_link(fault, self._link(place))
            case Place.PUBLISHERS:
                publishers = self.producers.kill(fault.number)
                self._undo[fault.number] = lambda: {"publishers": publishers}
            case Place.SHIMS:
                self._undo[fault.number] = self._hurt_shims(fault)
            case Place.STORE:
                self._undo[fault.number] = self._hurt_store(fault)
            case Place.BROKER:
                self._undo[fault.number] = self._hurt_broker(fault)

    def end(self, fault: Fault) -> Facts:
        """
        Undo *fault*, and return what it met.
        """
        return self._undo.pop(fault.number)() or {}

    def _link(self, place: Place) -> FaultProxy:
        links = {Place.PUBLISHER_LINK: self.scene.link, Place.SHIM_LINK: self.shim_link}
        return links.get(place, self.store_link)

    def _break_link(self, fault: Fault, link: FaultProxy) -> Callable[[], Facts | None]:
        connections = link.connections
        match fault.kind.split()[-1]:
            case "reset":
                link.cut()
            case "message" | "broker" | "Redis":
                link.cut_after(fault.bytes_left, TO_SERVER)
            case "shim":
                link.cut_after(fault.bytes_left, TO_CLIENT)
            case "lost":
                link.drop(TO_CLIENT)
            case "silent":
                link.drop(TO_CLIENT)
                link.drop(TO_SERVER)
            case "stalled":
                link.stall(TO_CLIENT if fault.bytes_left % 2 else TO_SERVER)
            case "slow":
                link.delay(0.02)
            case _:
                raise AssertionError(fault.kind)

        def heal() -> Facts:
            link.heal()
            return {"connections": connections}

        return heal

    def _hurt_shims(self, fault: Fault) -> Callable[[], Facts | None]:
        if fault.bytes_left % 2:
            # Every other time; else also a shim that has not recovered yet is hit.
            deadline = time.monotonic() + _FORWARDING_WAIT_S
            while self.shims.forwarding is None and time.monotonic() < deadline:
                time.sleep(0.02)
        if fault.kind == "shim frozen past the take-over":
            frozen = self.shims.freeze()
            return lambda: self._thaw(frozen)
        before = self.shims.kills, self.shims.kills_in_batch
        self.shims.kill(
            standby=fault.kind == "all shims killed", hunt=fault.kind == "shim killed inside a batch"
        )
        met = {"kills": self.shims.kills - before[0], "in_batch": self.shims.kills_in_batch - before[1]}
        return lambda: met

    def _thaw(self, frozen: Child) -> Facts:
        taken_over = self.shims.others_forward(frozen)
        frozen.process.send_signal(signal.SIGCONT)
        return {"taken_over": taken_over}

    def _hurt_store(self, fault: Fault) -> Callable[[], Facts | None]:
        redis = self.scene.redis
        self._store_hurt = True
        match fault.kind:
            case "Redis killed":
                redis.kill()
                return lambda: self._store_well(redis.start)
            case "Redis frozen":
                redis.pause()
                return lambda: self._store_well(redis.resume)
            case "Redis emptied":
                redis.empty()
            case "Redis emptied, all shims killed":
                self.shims.kill_all()
                redis.empty()
                self.shims.start()
            case "Redis rolled back, all shims killed":
                self.shims.kill_all()
                redis.restore(self._snapshot or redis.snapshot())
                self.shims.start()
            case _:
                raise AssertionError(fault.kind)
        self._snapshot = redis.snapshot()
        return lambda: self._store_well(lambda: None)

    def _store_well(self, mend: Callable[[], object]) -> None:
        mend()
        self._store_hurt = False

    def _hurt_broker(self, fault: Fault) -> Callable[[], Facts | None]:
        rabbitmq, queue = self.scene.rabbitmq, self.scene.queue
        match fault.kind:
            case "memory alarm":
                rabbitmq.set_alarm()
                return rabbitmq.clear_alarm
            case "target full":
                full = '{"max-length":0,"overflow":"reject-publish"}'
                rabbitmq.ctl("set_policy", _FULL, f"^{queue}$", full, "--apply-to", "queues")
                return lambda: _without_facts(lambda: rabbitmq.ctl("clear_policy", _FULL))
            case "RabbitMQ killed":
                rabbitmq.kill()
                return lambda: _without_facts(rabbitmq.start)
            case _:
                raise AssertionError(fault.kind)


def _without_facts(mend: Callable[[], object]) -> None:
    mend()
