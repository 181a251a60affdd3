"""Faults of single nodes of a cluster of three: of the one that leads the target, and of the one that has the ledger."""

from __future__ import annotations

import random
import time
from typing import Self

import pika
import pytest

from dedup.amqp091.inspection import inspect
from dedup.amqp091.management import Management
from dedup.core import names
from dedup.errors import BrokerUnavailableError
from dedup.testing.cluster import RabbitMQCluster
from dedup.testing.servers import Redis
from tests.fault.guarded import BATCH_MAX
from tests.fault.matrix import QUORUM, Cell, Marks, Reach, Shows, row
from tests.fault.scene import Scene

_MESSAGES = 150
#: A quorum queue that loses a member sooner after its declaration may lose what it holds; seconds.
_QUEUE_SETTLES_S = 3.0
#: The kills come within this time of each other, as long as an answer may be on its way; seconds.
_BETWEEN_KILLS_S_MAX = 0.03
#: Long enough for a shim that should wait to do something; seconds.
_WHILE_S = 2.0


class ClusterScene(Scene):
    """
    A scene whose target is led by one node, while ledger and shim are on another one.
    """

    def __init__(
        self, cell: Cell, cluster: RabbitMQCluster, redis: Redis, queue: str, *, control: bool = False
    ) -> None:
        self.chosen = random.Random(queue)
        self.cluster = cluster
        self.leading, with_shim, self.third = self.chosen.sample(cluster.nodes, 3)
        super().__init__(cell, with_shim, redis, queue, control=control)

    def __enter__(self) -> Self:
        self.cluster.heal()
        queue = self.guarded.queue
        connection = pika.BlockingConnection(pika.URLParameters(self.leading.url))
        arguments = {"x-queue-type": self.cell.layout.target}
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)
        connection.close()
        super().__enter__()
        for name in (queue, names.ingress(queue)):
            self.cluster.wait_in_sync(name)
        time.sleep(_QUEUE_SETTLES_S)
        assert self.cluster.leader(queue) is self.leading
        return self

    def go_to_third(self) -> None:
        """Let publishers and forwarders that are started from now on use the third node."""
        self.guarded.rabbitmq = self.third
        self.guarded.amqp_url = self.publisher_url = self.third.url


def leader_and_shim_killed(scene: Scene) -> None:
    """Kill the leader of the target and the shim within milliseconds, in either order, in full flow; go on with another shim."""
    assert isinstance(scene, ClusterScene)
    scene.feed(_MESSAGES)
    # A plain loop does harm in one moment only: before its ack.
    child = scene.start(**({"kill": ("after", "Publish", _MESSAGES // 3)} if scene.control else {}))
    if scene.control:
        child.wait()
        scene.leading.kill()
    else:
        for _ in range(scene.chosen.randint(1, _MESSAGES // BATCH_MAX // 2)):
            child.wait_for("report")
        kills = [scene.leading.kill, child.kill]
        scene.chosen.shuffle(kills)
        kills[0]()
        time.sleep(scene.chosen.choice((0.0, _BETWEEN_KILLS_S_MAX * scene.chosen.random())))
        kills[1]()
        child.wait()
    scene.struck()
    scene.go_to_third()
    queue = scene.guarded.queue
    scene.cluster.leader(queue)
    assert 0 < scene.guarded.depth(queue) < _MESSAGES, "nothing was under way when the kills came"
    # The shim's own look works while a node is down, and finds exact forwarding impossible.
    management = Management(scene.cluster.management_url, amqp=scene.cluster.url)
    seen = inspect(scene.third.url, queue, management=management)
    assert (seen.target_type, seen.exact_possible) == ("quorum", False), seen
    scene.drain()


def ledgers_node_killed(scene: Scene) -> None:
    """Kill the node that has the ledger: messages wait, and are forwarded when it is back."""
    assert isinstance(scene, ClusterScene)
    home = scene.rabbitmq
    scene.feed(_MESSAGES)
    if not scene.control:
        scene.go_to_third()
    child = scene.start()
    child.wait_for("report")
    home.kill()
    scene.struck()
    child.wait_for("dedup.session_ended", "trouble")
    scene.go_to_third()
    scene.feed(20)
    if not scene.control:
        with pytest.raises(BrokerUnavailableError, match="cannot be reached"):
            inspect(scene.third.url, scene.guarded.queue)
        before = scene.guarded.depth(scene.guarded.queue)
        time.sleep(_WHILE_S)
        assert scene.guarded.depth(scene.guarded.queue) == before, "a shim forwards without a ledger"
    scene.cluster.heal()
    scene.drain()


CELLS: list[Cell] = [
    *row(
        "leader-and-shim-killed",
        "in a cluster of three nodes the target's leader and the shim are killed with SIGKILL at the same moment",
        leader_and_shim_killed,
        {QUORUM: Marks.BATCH},
        reach=Reach.CLUSTER,
        quick=(),
    ),
    *row(
        "ledger-node-killed",
        "in a cluster of three nodes the one that has the ledger is killed with SIGKILL, and starts again",
        ledgers_node_killed,
        {QUORUM: Marks.BATCH},
        reach=Reach.CLUSTER,
        shows=frozenset({Shows.FELT, Shows.DOUBLED}),
        quick=(),
    ),
]
