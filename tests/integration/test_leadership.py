"""Who leads a quorum queue, read from real servers before and after what may change it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pika
import pytest

from dedup.amqp091.leadership import read_leadership
from dedup.amqp091.management import Management
from dedup.core.records import Leadership
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ
from tests.integration.test_servers import channel, own

#: "4.0.5" as (4, 0, 5); from this on the members of a queue can be asked.
TOLD_SINCE = (3, 13, 7)
#: A quorum queue that is killed sooner after its declaration comes back empty, or not at all; seconds.
QUEUE_SETTLES_S = 3.0

Change = Callable[[RabbitMQ, str], None]


def management(server: RabbitMQ, url: str = "") -> Management:
    """Return a client of the server's management API."""
    return Management(url or server.management_url, amqp=server.url)


def declare(server: RabbitMQ, queue: str, messages: int) -> None:
    """Declare a quorum queue and publish *messages*, confirmed."""
    with channel(server) as opened:
        opened.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        for number in range(messages):
            opened.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))


def read(server: RabbitMQ, queue: str) -> Leadership:
    """Return who leads *queue* now."""
    reasons: list[str] = []
    found = read_leadership(management(server), "/", queue, unknown=reasons.append)
    assert found is not None, reasons
    return found.leadership


def tells(server: RabbitMQ) -> bool:
    """Say whether RabbitMQ is new enough."""
    return tuple(int(part) for part in server.version.split(".")[:3]) >= TOLD_SINCE


def told(server: RabbitMQ) -> RabbitMQ:
    """Skip where RabbitMQ is too old to tell."""
    if not tells(server):
        pytest.skip(f"RabbitMQ {server.version} does not tell who leads a queue")
    return server


def publish_more(server: RabbitMQ, queue: str) -> None:
    """Let the queue grow."""
    declare(server, queue, 5)


def kill(server: RabbitMQ, _queue: str) -> None:
    """SIGKILL and start again."""
    time.sleep(QUEUE_SETTLES_S)
    own(server).kill()
    server.start()


def kill_member(server: RabbitMQ, queue: str) -> None:
    """Kill the queue's member, and nothing else; its supervisor starts it again."""
    name = f"'%2F_{queue}'"
    own(server).evaluate(f"begin exit(whereis({name}), kill), timer:sleep(200) end.")


def declare_anew(server: RabbitMQ, queue: str) -> None:
    """Delete the queue with its messages and declare it again."""
    with channel(server) as opened:
        opened.queue_delete(queue)
    declare(server, queue, 1)


def wait_for_leader(api: Management, queue: str) -> Leadership:
    """Read until somebody leads and the members tell so."""
    reasons: list[str] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := read_leadership(api, "/", queue, unknown=reasons.append):
            return found.leadership
        time.sleep(0.1)
    raise AssertionError(reasons[-1])


@pytest.mark.parametrize(
    ("change", "holds"), [(publish_more, True), (kill_member, False), (kill, False), (declare_anew, False)]
)
def test_leadership_changes_with_every_election(
    rabbitmq: RabbitMQ, queue_name: str, change: Change, *, holds: bool
) -> None:
    """What may lose messages that were never confirmed does not look as if nothing had happened."""
    server = told(rabbitmq)
    declare(server, queue_name, 3)
    before = read(server, queue_name)
    assert read(server, queue_name) == before
    change(server, queue_name)
    after = wait_for_leader(management(server), queue_name)
    assert after.holds_since(before) is holds, (before, after)
    with channel(server) as opened:
        opened.queue_delete(queue_name)


def test_what_cannot_be_known_is_told_and_not_raised(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """No queue, no server, no access, no quorum queue: None, with a reason that has no password in it."""
    reasons: list[str] = []
    ports = reserve_ports(1)
    nowhere = f"http://guest:s3cret@127.0.0.1:{ports.ports[0]}"
    denied = management(rabbitmq).url.replace("//", "//guest:s3cret@", 1)
    for url in ("", nowhere, denied):
        found = read_leadership(management(rabbitmq, url), "/", queue_name, unknown=reasons.append)
        assert found is None
    ports.release()
    assert len(reasons) == 3
    assert "s3cret" not in "".join(reasons)


def test_what_is_too_old_to_tell_is_unknown(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """RabbitMQ 3.10, where markers prove nothing, gives no leadership to compare with."""
    if tells(rabbitmq):
        pytest.skip(f"RabbitMQ {rabbitmq.version} tells who leads a queue")
    declare(rabbitmq, queue_name, 1)
    reasons: list[str] = []
    assert read_leadership(management(rabbitmq), "/", queue_name, unknown=reasons.append) is None
    assert "3.13.7" in reasons[0]
