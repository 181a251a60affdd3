"""Faults of the whole broker; all scenes on it are struck at once."""

from __future__ import annotations

import signal
import time
from functools import partial

from dedup.testing.servers import RabbitMQ
from tests.fault.child import PATIENCE_S
from tests.fault.matrix import LAYOUTS, WAITED_OUT, Cell, Marks, Reach, Shows, row
from tests.fault.scene import Scene

#: A quorum queue that is younger may come back empty after SIGKILL; seconds.
_QUORUM_SETTLES_S = 3.0
_WHILE_S = 1.0


def restarted(scene: Scene, how: str) -> None:
    """Kill or stop the broker under publisher and shim, and start it again."""
    scene.together(partial(time.sleep, _QUORUM_SETTLES_S))
    child = scene.in_flow(40)
    first = scene.fed + 1
    scene.ask(100)
    with scene.publisher(base=first - 1) as publisher:
        futures = [
            publisher.submit(b"m%d" % number, queue=scene.guarded.queue)
            for number in range(first, scene.fed + 1)
        ]
        child.wait_for("report")
        scene.together(getattr(scene.rabbitmq, how))
        scene.struck()
        child.wait_for("dedup.session_ended", "trouble")
        scene.together(lambda: _start(scene.rabbitmq))
        for number, future in zip(range(first, scene.fed + 1), futures, strict=True):
            future.result(PATIENCE_S)
            scene.oracle.confirm(f"m{number}")
    scene.drain()


def _start(rabbitmq: RabbitMQ) -> None:
    rabbitmq.start()


def alarmed(scene: Scene, alarm: tuple[str, str], end: tuple[str, str]) -> None:
    """Raise an alarm while the forwarder has messages in its hands, which it holds still until then, and end it."""
    # However long it is held still on a busy machine, no heartbeat is missed: the alarm is the only fault.
    scene.guarded.amqp_url += "?heartbeat=60"
    child = scene.in_flow(20)
    scene.guarded.wait_drained(child)
    child.send_signal(signal.SIGSTOP)
    scene.feed(60)
    scene.together(lambda: _ctl(scene.rabbitmq, alarm))
    child.send_signal(signal.SIGCONT)
    # The broker blocks a connection when it publishes, and not before.
    child.wait_for("dedup.blocked", "trouble")
    scene.struck()
    time.sleep(_WHILE_S)
    assert scene.guarded.depth(scene.guarded.queue) < scene.fed, (
        "everything was forwarded in spite of the alarm"
    )
    scene.together(lambda: _ctl(scene.rabbitmq, end))
    scene.feed(20)
    scene.drain()


def _ctl(rabbitmq: RabbitMQ, command: tuple[str, str]) -> None:
    rabbitmq.ctl(*command)


_BATCH = dict.fromkeys(LAYOUTS, Marks.BATCH)

CELLS: list[Cell] = [
    *row(
        "broker-killed",
        "the broker is killed with SIGKILL under publisher and shim, and starts again",
        partial(restarted, how="kill"),
        _BATCH,
        reach=Reach.BROKER,
    ),
    *row(
        "broker-stopped",
        "the broker is stopped in order under publisher and shim, and starts again",
        partial(restarted, how="stop"),
        _BATCH,
        reach=Reach.BROKER,
        quick=(),
    ),
    *row(
        "memory-alarm",
        "the broker has a memory alarm and blocks publishers",
        partial(
            alarmed,
            alarm=("set_vm_memory_high_watermark", "0"),
            end=("set_vm_memory_high_watermark", "0.4"),
        ),
        WAITED_OUT,
        reach=Reach.BROKER,
        shows=frozenset({Shows.FELT, Shows.DOUBLED}),
    ),
    *row(
        "disk-alarm",
        "the broker has a disk alarm and blocks publishers",
        partial(alarmed, alarm=("set_disk_free_limit", "1000000GB"), end=("set_disk_free_limit", "1MB")),
        WAITED_OUT,
        reach=Reach.BROKER,
        shows=frozenset({Shows.FELT, Shows.DOUBLED}),
        quick=(),
    ),
]
