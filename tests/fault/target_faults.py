"""Faults of the queues themselves: a target that refuses, is missing or slow, an ingress that goes away."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from dedup.core import names
from dedup.testing.servers import RabbitMQ
from tests.fault.child import PATIENCE_S
from tests.fault.matrix import AMQP10, CONFIRMED, EXACT, LAYOUTS, WAITED_OUT, Cell, Marks, Shows, row
from tests.fault.scene import Scene

#: What a full queue has room for.
_ROOM = 20
#: Longer than the shim needs to see that its target is gone; seconds.
_WHILE_S = 0.6
_DELAY_S = 0.05


def limit(rabbitmq: RabbitMQ, queue: str, length: int | None) -> None:
    """Have *queue* refuse what is beyond *length*; None: nothing any more."""
    parts = urlsplit(rabbitmq.management_url)
    credentials, _, place = parts.netloc.rpartition("@")
    url = urlunsplit(parts._replace(netloc=place, path=f"/api/policies/%2F/{quote(queue)}"))
    policy = {
        "pattern": f"^{queue}$".replace(".", "\\."),
        "apply-to": "queues",
        "definition": {"max-length": length, "overflow": "reject-publish"},
    }
    request = Request(
        url,
        None if length is None else json.dumps(policy).encode(),
        {
            "Authorization": "Basic " + b64encode(credentials.encode()).decode(),
            "Content-Type": "application/json",
        },
        method="DELETE" if length is None else "PUT",
    )
    with urlopen(request, timeout=30):
        pass


def full(scene: Scene) -> None:
    """Let the target refuse what it has no room for, until a consumer comes."""
    limit(scene.rabbitmq, scene.guarded.queue, _ROOM)
    scene.feed(2 * _ROOM)
    child = scene.start()
    child.wait_for("dedup.refused", "trouble")
    scene.struck()
    deadline = time.monotonic() + PATIENCE_S
    while scene.oracle.unsettled():
        assert time.monotonic() < deadline, f"not forwarded: {sorted(scene.oracle.unsettled())}"
        time.sleep(0.02 if scene.read() else 0.1)
    limit(scene.rabbitmq, scene.guarded.queue, None)


def refuses_from_now_on(scene: Scene) -> None:
    """Have the target refuse in the midst of exact forwarding, and take everything again later."""
    child = scene.in_flow(30)
    scene.guarded.wait_drained(child)
    # Room for ten more: a limit below the depth would make the broker itself drop the oldest.
    limit(scene.rabbitmq, scene.guarded.queue, 30 + 10)
    scene.feed(30)
    child.wait_for("dedup.session_ended", "trouble")
    scene.struck()
    limit(scene.rabbitmq, scene.guarded.queue, None)
    scene.drain()


def deleted(scene: Scene) -> None:
    """Delete the target, let messages come, and declare it again; what was in it had been consumed."""
    child = scene.in_flow(20)
    scene.guarded.wait_drained(child)
    while scene.read() or scene.oracle.unsettled():
        time.sleep(0.05)
    with scene.guarded.channel() as channel:
        channel.queue_delete(scene.guarded.queue)
    scene.struck()
    scene.feed(20)
    time.sleep(_WHILE_S)
    scene.guarded.build()
    scene.drain()


def slow(scene: Scene) -> None:
    """Delay every byte to and from the broker, and see that forwarding slows down."""
    with scene.link() as link:
        child = scene.in_flow(8)
        scene.guarded.wait_drained(child)
        needed_s = []
        for delay_s in (0.0, _DELAY_S):
            link.delay(delay_s)
            started = time.monotonic()
            scene.feed(8)
            scene.guarded.wait_drained(child)
            needed_s.append(time.monotonic() - started)
        scene.struck()
        if needed_s[1] > needed_s[0]:
            scene.note()
        link.heal()


def ingress_deleted(scene: Scene) -> None:
    """Delete the empty ingress, which cancels its consumer, and declare it again."""
    child = scene.in_flow(20)
    scene.guarded.wait_drained(child)
    with scene.guarded.channel() as channel:
        channel.queue_delete(names.ingress(scene.guarded.queue))
    scene.struck()
    child.wait_for("dedup.session_ended", "trouble")
    scene.guarded.build()
    scene.feed(20)
    scene.drain()


_FELT = frozenset({Shows.FELT})
_ALL_BUT_EXACT = [layout for layout in LAYOUTS if not layout.exact]

CELLS: list[Cell] = [
    *row(
        "target-full",
        "the target is full and refuses messages (reject-publish)",
        full,
        dict.fromkeys(_ALL_BUT_EXACT, Marks.NONE),
        ordered=False,
        shows=_FELT,
        quick=[CONFIRMED, AMQP10],
    ),
    *row(
        "target-begins-to-refuse",
        "the target begins to refuse in the midst of a transaction",
        refuses_from_now_on,
        {EXACT: Marks.BATCH},
        ordered=False,
        shows=_FELT,
    ),
    *row(
        "target-deleted",
        "the target is deleted and declared again",
        deleted,
        # What was on its way to it may have gone to quarantine or nowhere.
        {EXACT: Marks.NONE, **dict.fromkeys(_ALL_BUT_EXACT, Marks.BATCH)},
        shows=frozenset({Shows.LOST}),
    ),
    *row("broker-slow", "every byte to and from the broker is late", slow, WAITED_OUT, shows=_FELT),
    *row(
        "ingress-deleted",
        "the broker cancels the shim's consumer: the ingress is deleted and declared again",
        ingress_deleted,
        dict.fromkeys(LAYOUTS, Marks.NONE),
        shows=_FELT,
    ),
]
