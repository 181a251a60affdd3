"""The server helpers keep their word: real processes, killed, frozen and restarted."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest
from attrs import evolve

from dedup.testing.process import ExternalServerError, ServerError, reserve_ports
from dedup.testing.servers import RabbitMQ, Redis

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@contextmanager
def channel(
    server: RabbitMQ, **parameters: str
) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """Open a channel with confirms."""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    connection = pika.BlockingConnection(pika.URLParameters(f"{server.url}?{query}"))
    try:
        opened = connection.channel()
        opened.confirm_delivery()
        yield opened
    finally:
        if connection.is_open:
            connection.close()


def own(server: RabbitMQ) -> RabbitMQ:
    """Skip where the server is not ours to kill."""
    if server.external:
        pytest.skip("needs a private RabbitMQ")
    return server


def is_alive(pid: int) -> bool:
    """Tell whether process *pid* runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read(path: Path) -> bytes:
    """Return what is in *path*, nothing when it is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_rabbitmq_answers_amqp_and_management(rabbitmq: RabbitMQ) -> None:
    """A started node can be used at once, on both of its ports."""
    with channel(rabbitmq) as opened:
        assert opened.is_open
    parts = urlsplit(rabbitmq.management_url)
    request = urllib.request.Request(f"http://{parts.hostname}:{parts.port}/api/overview")
    request.add_header(
        "Authorization", f"Basic {b64encode(f'{parts.username}:{parts.password}'.encode()).decode()}"
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert json.load(response)["rabbitmq_version"] == rabbitmq.version


def test_confirmed_message_survives_kill_and_restart(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """SIGKILL ends the very node, and the next start finds its data on the same port."""
    server = own(rabbitmq)
    url, pid = server.url, server.pid
    with channel(server) as opened:
        opened.queue_declare(queue_name, durable=True)
        opened.basic_publish("", queue_name, b"kept", PERSISTENT)
        server.kill()
        assert not is_alive(pid)
        assert not server.running
        with pytest.raises(pika.exceptions.AMQPError):
            opened.basic_publish("", queue_name, b"too late", PERSISTENT)
    server.start()
    assert (server.url, server.running) == (url, True)
    with channel(server) as opened:
        assert opened.basic_get(queue_name, auto_ack=True)[2] == b"kept"
        opened.queue_delete(queue_name)


def test_clean_restart_drops_transient_messages_and_keeps_persistent_ones(
    rabbitmq: RabbitMQ, queue_name: str
) -> None:
    """A restart is a real one: what RabbitMQ does not promise to keep is gone."""
    server = own(rabbitmq)
    with channel(server) as opened:
        opened.queue_declare(queue_name, durable=True)
        opened.basic_publish("", queue_name, b"transient")
        opened.basic_publish("", queue_name, b"kept", PERSISTENT)
    server.restart()
    with channel(server) as opened:
        assert opened.queue_declare(queue_name, passive=True).method.message_count == 1
        opened.queue_delete(queue_name)


def test_paused_node_keeps_connections_and_answers_nothing(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """A frozen node confirms only after it is resumed."""
    server = own(rabbitmq)
    with channel(server) as opened:
        opened.queue_declare(queue_name)
        server.pause()
        threading.Timer(0.5, server.resume).start()
        started = time.monotonic()
        opened.basic_publish("", queue_name, b"slow")
        assert time.monotonic() - started >= 0.4
        opened.queue_delete(queue_name)


def test_memory_alarm_blocks_publishing_until_cleared(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """Publishers are told that they are blocked, and their messages wait."""
    server = own(rabbitmq)
    blocked: list[object] = []
    with channel(server) as opened:
        opened.queue_declare(queue_name)
        opened.connection.add_on_connection_blocked_callback(lambda *event: blocked.append(event))
        server.set_alarm()
        threading.Timer(0.3, server.clear_alarm).start()
        opened.basic_publish("", queue_name, b"waits")
        opened.connection.process_data_events()
        assert blocked
        opened.queue_delete(queue_name)


def test_rabbitmqctl_speaks_to_this_node_and_its_errors_are_raised(
    rabbitmq: RabbitMQ, queue_name: str
) -> None:
    """The tools see this node's queues; a failing command tells why."""
    server = own(rabbitmq)
    with channel(server) as opened:
        opened.queue_declare(queue_name)
        assert queue_name in server.ctl("list_queues", "--silent", "name")
        opened.queue_delete(queue_name)
    with pytest.raises(ServerError, match="rabbitmqctl delete_queue no-such-queue failed: "):
        server.ctl("delete_queue", "no-such-queue")


@pytest.mark.parametrize("tool", ["erl_call", "rabbitmqctl"])
def test_an_expression_comes_to_its_value_or_its_error(
    rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str
) -> None:
    """In the node, the same by Erlang's quick tool and where that is missing."""
    server = own(rabbitmq)
    if tool == "rabbitmqctl":
        nowhere = evolve(server._programs, epmd=tmp_path / "epmd")
        monkeypatch.setattr(server, "_programs", nowhere)
    assert server.evaluate("node().") == server.node
    assert (
        server.evaluate('X = [1, {a, "text"}], {X, <<"%{ok, ok}">>}.') == '{[1,{a,"text"}],<<"%{ok, ok}">>}'
    )
    with pytest.raises(ServerError, match="badarg"):
        server.evaluate("exit(whereis(nobody), kill).")


def test_test_after_a_kill_finds_the_servers_running(rabbitmq: RabbitMQ, redis_server: Redis) -> None:
    """What a test leaves dead or frozen is put right before the next one."""
    own(rabbitmq).pause()
    if not redis_server.external:
        redis_server.kill()
    rabbitmq.ensure_running()
    redis_server.ensure_running()
    assert redis_server.cli("PING") == "PONG"
    with channel(rabbitmq, blocked_connection_timeout="5") as opened:
        assert opened.is_open


def test_failing_start_raises_and_shows_the_log(
    private_rabbitmq: Callable[..., RabbitMQ], tmp_path: Path
) -> None:
    """A node that cannot start says why, and nothing of it runs on."""
    with pytest.raises(ServerError, match=r"RabbitMQ ended while starting; it logged:(.|\n)*listeners.tcp"):
        private_rabbitmq(config={"listeners.tcp.1": "nowhere:port"}, directory=tmp_path)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read(path)]


def test_servers_end_with_their_parent_even_when_it_is_killed(
    rabbitmq_version: str | None, tmp_path: Path
) -> None:
    """SIGKILL of the program that started them leaves no server behind, and no name server."""
    program = (
        "import sys; from dedup.testing.servers import RabbitMQ, Redis\n"
        "from pathlib import Path\n"
        f"rabbitmq = RabbitMQ({rabbitmq_version!r}, plugins=(), directory=Path({str(tmp_path)!r})).start()\n"
        f"redis = Redis(directory=Path({str(tmp_path / 'redis')!r})).start()\n"
        "print(rabbitmq.pid, redis.pid, rabbitmq._name_server.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if is_alive(pid)]


def test_server_outlives_the_thread_that_started_it(private_redis: Callable[..., Redis]) -> None:
    """The kernel ties a child to its parent thread; a helper thread that ends must not take its server along."""
    started: list[Redis] = []
    thread = threading.Thread(target=lambda: started.append(private_redis()))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert started[0].cli("PING") == "PONG"


def test_redis_keeps_its_data_over_kill_and_loses_it_when_emptied(
    private_redis: Callable[..., Redis],
) -> None:
    """With appendfsync always a killed Redis comes back whole; an emptied one is another, empty run."""
    server = private_redis(appendfsync="always")
    server.cli("SET", "key", "value")
    server.kill()
    with pytest.raises(ServerError, match="redis-cli GET key failed"):
        server.cli("GET", "key")
    server.start()
    assert server.cli("GET", "key") == "value"
    runs = [line for line in server.cli("INFO", "server").splitlines() if line.startswith("run_id")]
    server.empty()
    assert server.cli("GET", "key") == ""
    assert runs != [line for line in server.cli("INFO", "server").splitlines() if line.startswith("run_id")]


def test_redis_rolls_back_to_a_snapshot(private_redis: Callable[..., Redis]) -> None:
    """A restored snapshot forgets every later write."""
    server = private_redis(appendfsync="always")
    server.cli("SET", "key", "old")
    snapshot = server.snapshot()
    server.cli("SET", "key", "new")
    server.restore(snapshot)
    assert server.cli("GET", "key") == "old"


def test_redis_settings_are_applied(private_redis: Callable[..., Redis]) -> None:
    """Settings of the caller win over the helper's."""
    server = private_redis(appendfsync="no", config={"maxmemory-policy": "allkeys-lru"})
    assert server.cli("CONFIG", "GET", "appendfsync").split() == ["appendfsync", "no"]
    assert server.cli("CONFIG", "GET", "maxmemory-policy").split() == ["maxmemory-policy", "allkeys-lru"]


def test_paused_redis_answers_after_it_is_resumed(private_redis: Callable[..., Redis]) -> None:
    """A frozen Redis is slow, not gone."""
    server = private_redis()
    server.pause()
    threading.Timer(0.3, server.resume).start()
    started = time.monotonic()
    assert server.cli("PING") == "PONG"
    assert time.monotonic() - started >= 0.2


def test_closed_server_leaves_nothing_behind(private_redis: Callable[..., Redis]) -> None:
    """Closing ends the process, removes the data and frees the ports; twice is fine."""
    server = private_redis()
    pid = server.pid
    server.close()
    assert not is_alive(pid)
    assert not server.directory.exists()
    server.close()
    with pytest.raises(ServerError, match="Redis is not running"):
        _ = server.pid


def test_external_server_is_used_and_never_killed(private_redis: Callable[..., Redis]) -> None:
    """A server given by URL can be talked to; whatever would end or empty it is refused."""
    private = private_redis()
    with Redis.from_environment(environ={"DEDUP_REDIS_URL": private.url}) as external:
        assert external.external
        assert external.url == private.url
        for act in (
            external.kill,
            external.stop,
            external.restart,
            external.pause,
            external.empty,
            external.snapshot,
        ):
            with pytest.raises(ExternalServerError, match="given by URL"):
                act()
    assert private.cli("PING") == "PONG"


def test_external_rabbitmq_tells_its_version(rabbitmq: RabbitMQ) -> None:
    """The greeting names the version of a server that was given by URL; its node cannot be controlled."""
    with RabbitMQ.from_environment("3.10", environ={"DEDUP_AMQP_URL": rabbitmq.url}) as external:
        assert external.version == rabbitmq.version
        with pytest.raises(ExternalServerError):
            external.ctl("status")


def test_unreachable_external_server_is_named_without_its_password() -> None:
    """The error tells what could not be reached and keeps the password to itself."""
    nobody = reserve_ports(1)
    server = RabbitMQ(url=f"amqp://me:secret@127.0.0.1:{nobody.ports[0]}/")
    server.start_timeout_s = 0.1
    with pytest.raises(ServerError, match=r"RabbitMQ did not answer within 0\.1 s") as raised:
        server.start()
    assert f"127.0.0.1:{nobody.ports[0]}" in str(raised.value)
    assert "secret" not in str(raised.value)
    nobody.release()


def test_reserved_ports_are_apart_and_outside_of_the_ephemeral_range() -> None:
    """No two servers share a port, and no outgoing connection can take one while its server is down."""
    blocks = [reserve_ports(3) for _ in range(10)]
    ports = [port for block in blocks for port in block.ports]
    for block in blocks:
        block.release()
    assert len(set(ports)) == 30
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if low > 20000:
        assert not [port for port in ports if low <= port <= high]


def test_released_ports_are_handed_out_again_unless_somebody_listens() -> None:
    """A reservation ends when it is released; a port in use is passed over."""
    first = reserve_ports(1)
    first.release()
    second = reserve_ports(1)
    second.release()
    assert second.ports == first.ports
    with socket.create_server(("127.0.0.1", first.ports[0])):
        third = reserve_ports(1)
        third.release()
    assert third.ports != first.ports
