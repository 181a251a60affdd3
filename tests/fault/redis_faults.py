"""Faults of Redis and of the way there; the control asks Redis too, with ``SET NX``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dedup.testing.proxy import Direction
from tests.fault.child import PATIENCE_S
from tests.fault.matrix import AMQP10, CONFIRMED, EXACT, Cell, Marks, Reach, Shows, row
from tests.fault.scene import Scene

#: Long enough for a loop to have done something wrong meanwhile; seconds.
_WHILE_S = 0.3
_PAUSE_S = 1.5
_REPLIES_LOST = 3

Act = Callable[[Scene], object]
#: Messages are forwarded, so what the shim has not noticed cannot be called a fault: it must tell of one of these.
_NOTICED = ("dedup.store_unavailable", "dedup.store_behind", "trouble")


def not_there(scene: Scene, begin: Act, end: Act) -> None:
    """Take Redis away while messages flow, until that was noticed, and give it back."""
    child = scene.in_flow(20)
    begin(scene)
    scene.struck()
    scene.feed(20)
    child.wait_for(*_NOTICED)
    time.sleep(_WHILE_S)
    end(scene)
    scene.drain()


def paused(scene: Scene) -> None:
    """Let Redis answer nobody for a while, and see that nothing is forwarded meanwhile."""
    child = scene.in_flow(20)
    deadline = time.monotonic() + PATIENCE_S
    while child.judged < scene.copies:
        assert time.monotonic() < deadline, f"it has reported on {child.judged} of {scene.copies}"
        time.sleep(0.01)
    paused_until = time.monotonic() + _PAUSE_S
    scene.redis.cli("client", "pause", str(int(_PAUSE_S * 1000)))
    before = child.count("report")
    scene.struck()
    scene.feed(20)
    while True:
        reports = child.count("report")
        if time.monotonic() > paused_until:
            break  # what has come by now may have come after the pause
        assert reports == before, "it has forwarded without asking Redis"
        time.sleep(0.02)
    scene.drain()


def forgets(scene: Scene, act: Act) -> None:
    """Let Redis lose what it holds while the shim lives; everything is published once more afterwards."""
    child = scene.in_flow(20)
    scene.guarded.wait_drained(child)
    act(scene)
    scene.struck()
    scene.publish()
    scene.feed(20)
    scene.drain()


def forgets_unseen(scene: Scene, act: Act, **options: Any) -> None:
    """Let Redis lose what it holds while no shim lives; everything is published once more afterwards."""
    scene.feed(20)
    scene.start(**options)
    scene.drain().stop()
    act(scene)
    scene.struck()
    scene.publish()
    scene.drain()


def goes_back(scene: Scene, *, with_shim: bool) -> None:
    """Restore Redis from a copy taken a moment ago, and publish everything once more; *with_shim*: it ends too."""
    child = scene.in_flow(12)
    scene.guarded.wait_drained(child)
    older = scene.redis.snapshot()
    scene.feed(12)
    scene.guarded.wait_drained(child)
    if with_shim:
        child.kill()
        child.wait()
    scene.redis.restore(older)
    scene.struck()
    scene.publish()
    scene.drain()


def dies_with_the_shim(scene: Scene) -> None:
    """Kill Redis and the shim at the same moment, in full flow."""
    scene.feed(60)
    if scene.control:
        # A loop does harm in one moment only: between Redis and the broker.
        child = scene.start(kill=("after", "Claim", 5))
        child.wait()
        scene.redis.kill()
    else:
        child = scene.start()
        child.wait_for("report")
        scene.redis.kill()
        child.kill()
    scene.struck()
    scene.redis.start()
    child.wait()
    scene.publish()
    scene.drain()


def unanswered(scene: Scene) -> None:
    """Swallow replies of Redis and then reset the link: it has done what nobody heard of."""
    with scene.redis_link() as link:
        child = scene.in_flow(20)
        for _ in range(_REPLIES_LOST):
            link.drop(Direction.TO_CLIENT)
            scene.feed(10)
            time.sleep(_WHILE_S / 3)
            link.heal()
            scene.struck()
            scene.guarded.wait_drained(child)
        scene.drain()


def _cli(*arguments: str) -> Act:
    return lambda scene: scene.redis.cli(*arguments)


_OPTIONS: dict[str, Any] = {"reach": Reach.REDIS, "control_asks_redis": True}
_FELT = {**_OPTIONS, "shows": frozenset({Shows.FELT, Shows.LOST, Shows.DOUBLED})}
_FORGOT = {**_OPTIONS, "shows": frozenset({Shows.DOUBLED})}
_NOTHING = dict.fromkeys((EXACT, CONFIRMED, AMQP10), Marks.NONE)
_UNCERTAIN = dict.fromkeys((EXACT, CONFIRMED, AMQP10), Marks.WINDOW)
_LEDGER_TELLS = {EXACT: Marks.NONE, CONFIRMED: Marks.WINDOW, AMQP10: Marks.WINDOW}

#: Name, what, how it begins and how it ends.
_AWAY: list[tuple[str, str, Act, Act]] = [
    ("redis-killed", "Redis is killed and starts again", lambda s: s.redis.kill(), lambda s: s.redis.start()),
    (
        "redis-frozen",
        "Redis is stopped with SIGSTOP, and SIGCONT",
        lambda s: s.redis.pause(),
        lambda s: s.redis.resume(),
    ),
    (
        "redis-read-only",
        "Redis becomes a replica, which refuses writes, and a primary again",
        _cli("replicaof", "127.0.0.1", "1"),
        _cli("replicaof", "no", "one"),
    ),
    (
        "redis-out-of-memory",
        "Redis has no memory left and refuses writes",
        _cli("config", "set", "maxmemory", "1"),
        _cli("config", "set", "maxmemory", "0"),
    ),
]

CELLS: list[Cell] = [
    *(
        cell
        for name, what, begin, end in _AWAY
        for cell in row(name, what, partial(not_there, begin=begin, end=end), _NOTHING, **_FELT)
    ),
    *row("redis-paused", "Redis answers nobody for a while (CLIENT PAUSE)", paused, _NOTHING, **_FELT),
    *row(
        "redis-emptied",
        "Redis is emptied while the shim lives",
        partial(forgets, act=_cli("flushall")),
        _NOTHING,
        **_FORGOT,
    ),
    *row(
        "redis-replaced",
        "an empty Redis takes the place of the other while the shim lives",
        partial(forgets, act=lambda scene: scene.redis.empty()),
        _NOTHING,
        **_FORGOT,
    ),
    *row(
        "redis-emptied-unseen",
        "Redis is emptied while no shim lives",
        partial(forgets_unseen, act=_cli("flushall"), marker_keep_s=0.0),
        _UNCERTAIN,
        **_FORGOT,
    ),
    *row(
        "redis-rolled-back",
        "Redis is restored from an older copy while the shim lives",
        partial(goes_back, with_shim=False),
        _NOTHING,
        **_FORGOT,
    ),
    *row(
        "redis-rolled-back-unseen",
        "Redis is restored from a copy a few seconds old, and the shim is killed",
        partial(goes_back, with_shim=True),
        _LEDGER_TELLS,
        **_FORGOT,
    ),
    *row(
        "redis-and-shim-killed",
        "Redis and the shim are killed at the same moment",
        dies_with_the_shim,
        _LEDGER_TELLS,
        **{**_OPTIONS, "shows": frozenset({Shows.LOST, Shows.DOUBLED, Shows.FELT})},
    ),
    *row(
        "redis-unanswered",
        "replies of Redis are lost after it has done what it was asked",
        unanswered,
        _NOTHING,
        **{**_OPTIONS, "shows": frozenset({Shows.LOST})},
    ),
]
