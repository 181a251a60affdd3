"""Faults of the publisher and of its connection: the SDK publishes again, and the shim drops what came twice."""

from __future__ import annotations

import signal
import time
from concurrent.futures import Future
from functools import partial

from dedup.core import names
from dedup.core.identity import Receipt
from dedup.publisher import Publisher
from dedup.testing.proxy import Direction, FaultProxy
from tests.fault.child import PATIENCE_S
from tests.fault.contradiction import ContradictingLink
from tests.fault.matrix import AMQP10, AMQP10_QUORUM, EXACT, QUORUM, Cell, Marks, Shows, row
from tests.fault.publisher_process import PublisherProcess
from tests.fault.scene import Scene
from tests.fault.target_faults import limit

#: Messages of one life, or of one cut.
_SOME = 20
_TIMES = 3
#: A full ingress refuses for so long; seconds.
_REFUSING_S = 0.5
#: Of the SDK: "before Send": nothing has left; "before Confirmed": it is stored, the application does not know.
STEPS = [("before", "Send", 1), ("after", "Send", 1), ("before", "Confirmed", 1), ("after", "Confirmed", 1)]


def killed(scene: Scene, step: tuple[str, str, int]) -> None:
    """Kill it at this step, again and again; each life goes on behind the last row that was noted as confirmed."""
    scene.start()
    noted = 0
    for life in range(scene.times + 1):
        if noted == scene.fed:
            scene.ask(_SOME)
        kill = step if life < scene.times else None
        settings = {
            "amqp": scene.publisher_url,
            "protocol": scene.cell.layout.protocol,
            "queue": scene.guarded.queue,
            "first": noted + 1,
            "last": scene.fed,
        }
        child = PublisherProcess({**settings, "kill": kill})
        code = child.wait()
        assert code == (-signal.SIGKILL if kill else 0), child.notices
        for notice in child.notices:
            noted = notice["row"]
            scene.oracle.confirm(f"m{noted}")
        if kill:
            scene.struck()
            scene.note()


def confirms_lost(scene: Scene) -> None:
    """Let messages through and swallow their confirms."""
    with FaultProxy(scene.rabbitmq.port) as link, _publisher(scene, link) as publisher:
        for _ in range(_TIMES):
            link.drop(Direction.TO_CLIENT)
            arrived = link.forwarded(Direction.TO_SERVER)
            futures = _submit(scene, publisher)
            while link.forwarded(Direction.TO_SERVER) == arrived:
                time.sleep(0.01)
            time.sleep(0.1)  # for the broker to store them
            scene.struck()
            link.heal()
            _confirm(scene, futures)


def cut(scene: Scene) -> None:
    """Reset its connection while it publishes, again and again."""
    with FaultProxy(scene.rabbitmq.port) as link, _publisher(scene, link) as publisher:
        for _ in range(_TIMES):
            # A confirm of many is 21 bytes: the reset comes with the first ones.
            link.cut_after(1, Direction.TO_CLIENT)
            futures = _submit(scene, publisher)
            _confirm(scene, futures)
            scene.struck()


def half_open(scene: Scene) -> None:
    """Swallow everything on its connection until heartbeats are missed, the confirms first."""
    with FaultProxy(scene.rabbitmq.port) as link, _publisher(scene, link, "?heartbeat=1") as publisher:
        link.drop(Direction.TO_CLIENT)
        futures = _submit(scene, publisher)
        time.sleep(0.1)
        link.drop(Direction.TO_SERVER)
        deadline = time.monotonic() + PATIENCE_S
        while _is_connected(publisher):
            assert time.monotonic() < deadline, "the publisher does not see that its link is dead"
            time.sleep(0.02)
        scene.struck()
        link.heal()
        _confirm(scene, futures)


def contradicted(scene: Scene) -> None:
    """Nack what is acked, before or after."""
    with ContradictingLink(scene.rabbitmq.url, contradictions=6) as link:
        with scene.publisher(link.url, base=0) as publisher:
            while link.contradicted < 6:
                _confirm(scene, _submit(scene, publisher))
        scene.struck(link.contradicted)


def nacked_in_the_middle(scene: Scene) -> None:
    """Let a full ingress refuse some of its messages and take later ones."""
    ingress = names.ingress(scene.guarded.queue)
    limit(scene.rabbitmq, ingress, _SOME // 2)
    with scene.publisher(base=0) as publisher:
        futures = _submit(scene, publisher)
        deadline = time.monotonic() + PATIENCE_S
        while scene.guarded.depth(ingress) < _SOME // 2:
            assert time.monotonic() < deadline, "the ingress does not fill"
            time.sleep(0.02)
        futures += _submit(scene, publisher)
        time.sleep(_REFUSING_S)
        scene.start()
        receipts = _confirm(scene, futures)
        again = sum(receipt.attempts > 1 for receipt in receipts)
        scene.struck(again)
        if again:
            scene.note()
    limit(scene.rabbitmq, ingress, None)


def _publisher(scene: Scene, link: FaultProxy, query: str = "") -> Publisher:
    return scene.publisher(f"amqp://guest:guest@127.0.0.1:{link.port}/%2F{query}", base=scene.fed)


def _is_connected(publisher: Publisher) -> bool:
    """Tell whether it has a channel, or a link of AMQP 1.0, to publish on."""
    thread = publisher._thread
    return getattr(thread, "_channel", None) is not None or getattr(thread, "_is_open", False)


def _submit(scene: Scene, publisher: Publisher) -> list[Future[Receipt]]:
    first = scene.fed + 1
    scene.ask(_SOME)
    return [publisher.submit(b"m%d" % n, queue=scene.guarded.queue) for n in range(first, scene.fed + 1)]


def _confirm(scene: Scene, futures: list[Future[Receipt]]) -> list[Receipt]:
    receipts = [future.result(PATIENCE_S) for future in futures]
    for receipt in receipts:
        scene.oracle.confirm(f"m{receipt.sequence}")
    return receipts


_ANY = {EXACT: Marks.NONE, AMQP10: Marks.NONE}

CELLS: list[Cell] = [
    *(
        cell
        for step in STEPS
        for cell in row(
            "publisher-killed",
            "the publisher is killed with SIGKILL at a step, again and again, and resumes from its own rows",
            partial(killed, step=step),
            _ANY,
            detail="-".join(map(str, step)),
            # What was handed to the connection may have left or not.
            shows=frozenset({Shows.DOUBLED} if "Confirmed" in step else {Shows.FELT}),
        )
    ),
    *row("confirms-lost", "the broker stores messages and their confirms are lost", confirms_lost, _ANY),
    *row(
        "confirms-contradicted",
        "the broker nacks what it acks, before or after",
        contradicted,
        {EXACT: Marks.NONE},
    ),
    *row("publisher-cut-off", "the publisher's connection is reset, three times", cut, _ANY),
    *row(
        "publisher-half-open",
        "the publisher's link swallows everything until heartbeats are missed",
        half_open,
        _ANY,
    ),
    *row(
        "nack-in-the-middle",
        "a full ingress refuses messages and takes later ones",
        nacked_in_the_middle,
        dict.fromkeys((EXACT, QUORUM, AMQP10, AMQP10_QUORUM), Marks.NONE),
        ordered=False,
        shows=frozenset({Shows.FELT}),
    ),
]
