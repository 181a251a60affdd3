"""The same faults without de-duplication: they do make duplicates, so a clean run proves something."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.guarded import Guarded

#: The loop everybody writes: take, publish with a confirm, acknowledge; killed before each fifth ack.
_NAIVE = """
import os, signal, sys
import pika

url, source, target = sys.argv[1:]
channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
channel.confirm_delivery()
for count in range(1, 6):
    method, properties, body = channel.basic_get(source)
    if method is None:
        sys.exit(0)
    channel.basic_publish("", target, body, properties, mandatory=True)
    if count == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    channel.basic_ack(method.delivery_tag)
"""


def test_a_forwarder_without_dedup_doubles(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> None:
    """A forwarder without intent, ledger and windows doubles what it had not acknowledged, and every re-send."""
    with Guarded(rabbitmq, redis_server, queue_name) as guarded:
        guarded.publish([(f"m{number}", number) for number in range(1, 21)] + [("m1", 1)])
        kills = 0
        while True:
            command = [sys.executable, "-c", _NAIVE, rabbitmq.url, names.ingress(queue_name), queue_name]
            if subprocess.run(command, check=False).returncode == 0:
                break
            kills += 1
        found: Counter[str] = guarded.read().unmarked
        assert kills >= 4
        doubled = {body for body, count in found.items() if count > 1}
        assert len(doubled) >= kills, "each kill leaves a message that is forwarded again"
        assert "m1" in doubled, "a publisher's re-send is forwarded again"
