"""The cluster helper keeps its word: real nodes that find each other, die one by one and come back."""

from __future__ import annotations

import time

import pika
import pytest

from dedup.amqp091.management import Management
from dedup.testing.cluster import RabbitMQCluster
from tests.integration.test_leadership import QUEUE_SETTLES_S, tells, wait_for_leader
from tests.integration.test_servers import channel


@pytest.mark.long
def test_a_quorum_queue_survives_its_leader(rabbitmq_cluster: RabbitMQCluster, queue_name: str) -> None:
    """What was confirmed is there after SIGKILL of the leader; another one leads, in another term, and the dead one comes back."""
    cluster = rabbitmq_cluster
    with channel(cluster.nodes[0]) as opened:
        opened.queue_declare(queue_name, durable=True, arguments={"x-queue-type": "quorum"})
        for number in range(10):
            opened.basic_publish("", queue_name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    time.sleep(QUEUE_SETTLES_S)
    api = Management(cluster.management_url, amqp=cluster.url)
    leader = cluster.leader(queue_name)
    before = wait_for_leader(api, queue_name) if tells(leader) else None
    leader.kill()
    successor = cluster.leader(queue_name)
    assert successor.node != leader.node
    with channel(successor) as opened:
        assert opened.queue_declare(queue_name, passive=True).method.message_count == 10
    cluster.heal()
    cluster.wait_in_sync(queue_name)
    if before is not None:
        after = wait_for_leader(api, queue_name)
        assert (before.leader, after.leader) == (leader.node, successor.node), "nobody else was elected"
        assert after.term > before.term
        assert not after.holds_since(before)
    assert {row["Raft State"] for row in cluster.members(queue_name)} == {"leader", "follower"}
    with channel(leader) as opened:
        for number in range(10):
            assert opened.basic_get(queue_name, auto_ack=True)[2] == b"%d" % number
        opened.queue_delete(queue_name)
