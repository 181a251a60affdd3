"""
A private RabbitMQ cluster, whose nodes can be killed and started again one by one.

::

    with RabbitMQCluster("4.0") as cluster:
        publish_to(cluster.url)
        cluster.leader("orders").kill()  # SIGKILL, now
        cluster.heal()  # whoever is down starts again and rejoins

The nodes share one name server and one cookie; apart from that each is a `RabbitMQ` like any other.
"""

from __future__ import annotations

import atexit
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dedup.amqp091.management import Management
from dedup.errors import DedupError
from dedup.testing.epmd import NameServer
from dedup.testing.install import find_rabbitmq
from dedup.testing.process import ServerError, Startable, reserve_ports
from dedup.testing.servers import RabbitMQ

#: Until nodes have found each other, or a queue its leader; seconds.
_PATIENCE_S = 60.0


class RabbitMQCluster(Startable):
    """
    Nodes that form a cluster at their first start; entering the context starts them, leaving ends them.

    Args:
        version: "3.10", "4.0" or "4.3"; None takes the default, or whichever is installed.
        size: How many nodes.
        plugins: Enabled in each node.
        config: Settings of each rabbitmq.conf, added to or in place of the helper's own.
    """

    def __init__(
        self,
        version: str | None = None,
        *,
        size: int = 3,
        plugins: Sequence[str] = ("rabbitmq_management",),
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes: list[RabbitMQ] = []
        programs = find_rabbitmq(version)
        self._directory = Path(tempfile.mkdtemp(prefix="dedup-cluster-"))
        self._ports = reserve_ports(1)
        self._name_server = NameServer(programs.epmd, self._ports.ports[0], self._directory)
        atexit.register(self.close)
        cookie = secrets.token_hex(16)
        for number in range(1, size + 1):
            directory = self._directory / f"node{number}"
            _place_cookie(directory, cookie)
            member = _Member(
                version,
                plugins=plugins,
                config=config,
                directory=directory,
                name_server=self._name_server,
            )
            member.peers = self.nodes
            self.nodes.append(member)

    @property
    def version(self) -> str:
        """Full version of the nodes."""
        return self.nodes[0].version

    @property
    def url(self) -> str:
        """AMQP URLs of all nodes, separated by commas."""
        return ",".join(node.url for node in self.nodes)

    @property
    def management_url(self) -> str:
        """URLs of the management API of all nodes, separated by commas."""
        return ",".join(node.management_url for node in self.nodes)

    @property
    def running(self) -> list[RabbitMQ]:
        """The nodes that run."""
        return [node for node in self.nodes if node.running]

    def start(self) -> Self:
        """
        Start every node that is down, at the same time, and return once all of them see each other.

        Raises:
            ServerError: a node did not start, or they did not find each other.
        """
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.start(), self.nodes))
        names = {node.node for node in self.nodes}
        _wait_until(lambda: _seen_by(self.nodes[0]) == names, f"these do not find each other: {names}")
        return self

    def heal(self) -> None:
        """Resume or start again whoever is frozen or down, all at the same time."""
        for node in self.running:
            node.resume()
        if len(self.running) < len(self.nodes):
            self.start()

    def leader(self, queue: str) -> RabbitMQ:
        """
        Return the node that leads a quorum queue of the virtual host "/", after an election if one is under way.

        Raises:
            ServerError: nobody leads it.
        """
        found: list[RabbitMQ] = []

        def is_led() -> bool:
            names = [row["Node Name"] for row in self.members(queue) if row["Raft State"] == "leader"]
            found[:] = [node for node in self.running if [node.node] == names]
            return bool(found)

        _wait_until(is_led, f"nobody leads queue {queue!r}")
        return found[0]

    def members(self, queue: str) -> list[dict[str, Any]]:
        """Return what the nodes hold about a quorum queue of the virtual host "/": one row of quorum_status for each member."""
        node = self.running[0]
        # The management API tells in milliseconds, the command in seconds. 3.10 does not tell, nor 4.0 while a member is down.
        with suppress(DedupError, ServerError):
            told = Management(node.management_url, amqp=node.url).quorum_status("/", queue)
            if told is not None:
                return told
        output = node.ctl("quorum_status", queue, "--formatter=json", tool="rabbitmq-queues")
        rows: list[dict[str, Any]] = json.loads(output)
        return rows

    def wait_in_sync(self, queue: str) -> None:
        """
        Wait until every member of a quorum queue has what its leader has: then any one of them may be killed.

        Raises:
            ServerError: it did not come to that.
        """

        def is_in_sync() -> bool:
            rows = self.members(queue)
            states = sorted(row["Raft State"] for row in rows)
            commits = {row["Commit Index"] for row in rows}
            return states == ["follower"] * (len(rows) - 1) + ["leader"] and len(commits) == 1

        _wait_until(is_in_sync, f"the members of queue {queue!r} do not get in sync")

    def close(self) -> None:
        """End all nodes at once and remove their data; safe to repeat."""
        atexit.unregister(self.close)
        for node in self.nodes:
            node.close()
        self._name_server.end()
        self._ports.release()
        shutil.rmtree(self._directory, ignore_errors=True)


class _Member(RabbitMQ):
    """
    A node that joins its peers when it starts without data.
    """

    #: All nodes of the cluster, this one too.
    peers: Sequence[RabbitMQ] = ()
    #: Nodes that start at the same time share the processors, and wait for each other.
    start_timeout_s = 120.0

    def _settings(self) -> dict[str, str]:
        nodes = {
            f"cluster_formation.classic_config.nodes.{number}": peer.node
            for number, peer in enumerate(self.peers, 1)
        }
        return {"cluster_formation.peer_discovery_backend": "classic_config"} | nodes | super()._settings()


def _place_cookie(directory: Path, cookie: str) -> None:
    """Give a node's directory the secret by which nodes and tools know each other."""
    directory.mkdir()
    file = directory / ".erlang.cookie"
    file.write_text(cookie)
    file.chmod(0o400)


def _seen_by(node: RabbitMQ) -> set[str]:
    status = json.loads(node.ctl("cluster_status", "--formatter=json"))
    return set(status["running_nodes"])


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"{complaint} after {_PATIENCE_S:g} s")
        time.sleep(0.1)
