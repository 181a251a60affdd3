"""Faults of the shim itself and of its connections to the broker."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from functools import partial

from dedup.testing.proxy import Direction, FaultProxy
from tests.fault.child import Child
from tests.fault.matrix import (
    AMQP10,
    AMQP10_QUORUM,
    CONFIRMED,
    EXACT,
    IN_DOUBT,
    LAYOUTS,
    OVER_091,
    OVER_10,
    QUORUM,
    WAITED_OUT,
    Cell,
    Layout,
    Marks,
    Reach,
    Shows,
    only,
    row,
)
from tests.fault.scene import Scene

#: Every point between two effects, by the effect that comes next or has just been performed.
#: "after Forward": the batch is sent, the broker's answer is still to come.
STEPS = [
    ("before", "ClaimState", 1),
    ("after", "ClaimState", 1),
    ("before", "Replace", 1),
    ("after", "Replace", 1),
    ("after", "Anchor", 1),
    ("after", "Anchor", 2),
    ("after", "Consume", 1),
    ("before", "Save", 1),
    ("after", "Save", 1),
    ("after", "Forward", 1),
    ("before", "Save", 2),
    ("after", "Save", 2),
    ("before", "Ack", 1),
    ("after", "Ack", 1),
    ("after", "Forward", 2),
]
#: Between these the kind of forwarding makes the difference: what `make test` runs too.
_UNSETTLED = {("after", "Forward", 1): [EXACT, QUORUM, AMQP10], ("before", "Save", 2): [EXACT, QUORUM]}
#: Before this one nothing is taken from the ingress.
_FIRST_BATCH = ("before", "Save", 1)
#: Messages that one life may take from the ingress before it comes to its step: two batches.
_PER_LIFE = 8
#: Where a frozen shim may do harm when it wakes up.
_FREEZES = [("before", "Forward", 1), ("after", "Forward", 1), ("before", "Save", 2), ("before", "Ack", 1)]
#: RabbitMQ 4 drops a message of a quorum queue that was delivered this often, unless the queue says otherwise.
_DELIVERY_LIMIT = 20
#: A message that does not come back in this time has been dropped; seconds.
_REDELIVERY_S = 3.0
_CUTS = 5

Step = tuple[str, str, int]


def killed_in_flow(scene: Scene, step: Step) -> None:
    """Kill it at this step, again and again, while the ingress is full."""
    scene.feed(scene.times * _PER_LIFE)
    for _ in range(scene.times):
        _wait_killed(scene.start(kill=step))
        scene.struck()


def killed_on_one_message(scene: Scene, step: Step, times: int | None = None) -> None:
    """Kill it at this step, again and again, over one message; over the next one when that one is settled."""
    scene.feed(1)
    for _ in range(times or scene.times):
        child = scene.start(kill=step, tell_acks=True)
        while child.next_of("acked") is not None:
            scene.feed(1)
        _wait_killed(child)
        scene.struck()


def _wait_killed(child: Child) -> None:
    code = child.wait()
    assert code == -signal.SIGKILL, f"it ended with {code} before it came to this step: {child.notices[-4:]}"


def over_the_delivery_limit(scene: Scene) -> None:
    """Kill it over one message more often than a quorum queue delivers one by default."""
    times = max(scene.times, _DELIVERY_LIMIT + 5)
    if not scene.control:
        killed_on_one_message(scene, ("before", "Save", 1), times)
        return
    # The same ingress as somebody would declare it who knows of no limit.
    scene.declare_plain_ingress()
    scene.feed(1)
    for _ in range(times):
        child = scene.start(kill=("before", "Publish", 1))
        child.wait_for("dedup.recovered")
        deadline = time.monotonic() + _REDELIVERY_S
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if child.poll() is None:
            return
        scene.struck()
    # RabbitMQ 3.10 has no such limit: it has delivered the message every time.
    scene.note()


def frozen_and_taken_over(scene: Scene, step: Step) -> None:
    """Freeze it at this step until another shim owns the queue, then wake it up."""
    scene.feed(30)
    scene.guarded.amqp_url += "?heartbeat=1"
    with scene.silence_noticed():
        first = scene.start(kill=step, signal=signal.SIGSTOP)
        first.wait_until_frozen()
    second = scene.start()
    second.wait_for("report")
    scene.struck()
    first.send_signal(signal.SIGCONT)
    scene.drain()


def side_by_side(scene: Scene) -> None:
    """Start three at once by mistake, and kill none."""
    if scene.control:
        scene.declare_plain_ingress()
    scene.feed(100)
    shims = [scene.start() for _ in range(3)]
    scene.struck()
    if not scene.control:
        for shim in shims:
            shim.wait_for("dedup.recovered", "dedup.standby")
    scene.drain()


def cut(scene: Scene, number: int | None) -> None:
    """Reset one of its connections, or both, again and again."""
    with scene.link() as link:
        child = scene.in_flow(40)
        for _ in range(_CUTS):
            scene.feed(20)
            _until_connected(link, number, child, scene)
            assert link.cut(None if scene.control else number), "there was no connection to cut"
            scene.struck()
            child.wait_for("dedup.session_ended", "trouble")
        scene.drain()


def _until_connected(link: FaultProxy, number: int | None, child: Child, scene: Scene) -> None:
    wanted = 1 if scene.control else 2 if number is None else number + 1
    deadline = time.monotonic() + 20
    while link.connections < wanted:
        assert child.poll() is None, "it has ended"
        assert time.monotonic() < deadline, "it does not connect again"
        time.sleep(0.005)


def half_open(scene: Scene) -> None:
    """Swallow everything on its connections for longer than heartbeats take, the broker's answers first."""
    with scene.link() as link:
        scene.guarded.amqp_url += "?heartbeat=1"
        with scene.silence_noticed():
            child = scene.in_flow(40)
            link.drop(Direction.TO_CLIENT)
        scene.feed(20)
        link.drop(Direction.TO_SERVER)
        scene.struck()
        child.wait_for("dedup.session_ended", "trouble")
        link.heal()
        scene.drain()


def unanswered(scene: Scene) -> None:
    """Swallow the broker's answers and then reset the link: it has stored what nobody heard of."""
    with scene.link() as link:
        child = scene.in_flow(40)
        for _ in range(_CUTS):
            link.drop(Direction.TO_CLIENT)
            scene.feed(20)
            link.heal()
            link.cut()
            scene.struck()
            child.wait_for("dedup.session_ended", "trouble")
            child.wait_for("dedup.recovered")
        scene.drain()


def _kills() -> list[Cell]:
    cells = []
    for step in STEPS:
        detail = "-".join(map(str, step))
        for layout in LAYOUTS:
            cells += row(
                "shim-killed",
                "the shim is killed with SIGKILL at a step, again and again, in full flow",
                partial(killed_in_flow, step=step),
                {layout: IN_DOUBT[layout]},
                detail=detail,
                quick=_UNSETTLED.get(step, [EXACT]),
            )
            cells += row(
                "shim-killed-on-one-message",
                "the same, all kills in a row over one message",
                partial(killed_on_one_message, step=step),
                {layout: IN_DOUBT[layout]},
                detail=detail,
                quick=[EXACT] if step in STEPS[STEPS.index(_FIRST_BATCH) :] else (),
            )
    return cells


def _silent(
    fault: str,
    what: str,
    inject: Callable[[Scene], None],
    *,
    over_10: Collection[Layout] = OVER_10,
    detail: str = "",
    quick: Collection[Layout] | None = None,
) -> list[Cell]:
    """Return the cells of a fault that ends when the broker misses a client; over AMQP 1.0 a setting of the broker says when."""
    return [
        *row(fault, what, inject, only(IN_DOUBT, OVER_091), detail=detail, quick=quick),
        *row(
            fault, what, inject, only(IN_DOUBT, over_10), detail=detail, quick=quick or (), reach=Reach.BROKER
        ),
    ]


CELLS: list[Cell] = [
    *_kills(),
    *row(
        "delivery-limit",
        "the shim is killed over one message more often than a quorum queue delivers one by default",
        over_the_delivery_limit,
        {QUORUM: Marks.NONE, AMQP10_QUORUM: Marks.NONE},
        shows=frozenset({Shows.LOST, Shows.FELT}),
    ),
    *(
        cell
        for step in _FREEZES
        for cell in _silent(
            "shim-frozen",
            "the shim is stopped with SIGSTOP, another one takes over, SIGCONT",
            partial(frozen_and_taken_over, step=step),
            # All its steps are run at once, which is as much as a small machine can do.
            over_10=[AMQP10],
            detail="-".join(map(str, step)),
            quick=[EXACT, QUORUM] if step == ("after", "Forward", 1) else (),
        )
    ),
    *row(
        "shims-side-by-side",
        "three shims are started for one queue",
        side_by_side,
        WAITED_OUT,
        shows=frozenset({Shows.DISORDERED, Shows.DOUBLED}),
    ),
    *(
        cell
        for number, which in ((0, "forwarding"), (1, "ingress"), (None, "both"))
        for cell in row(
            "shim-cut-off",
            "a connection of the shim to the broker is reset, five times",
            partial(cut, number=number),
            IN_DOUBT,
            detail=which,
            quick=[EXACT, QUORUM, AMQP10] if which == "both" else (),
        )
    ),
    *_silent("shim-half-open", "the shim's link swallows everything until heartbeats are missed", half_open),
    *row(
        "broker-unanswered",
        "the broker's answers to the shim are lost and the link is reset",
        unanswered,
        IN_DOUBT,
        quick=[EXACT, CONFIRMED],
    ),
]
