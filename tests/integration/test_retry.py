"""Retries on real servers: limits, bad input, the guide and the doctor."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from dedup.cli.commands import dedup
from dedup.core.retry_settings import RetrySettings
from dedup.core.schedule import Backoff
from dedup.errors import StoreLimitError, StoreUnavailableError
from dedup.retry import Retry, RetryServiceSettings
from dedup.store.schedule import RedisSchedule
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import PATIENCE_S
from tests.fault.retried import Retried
from tests.security.test_permissions import documented
from tests.security.users import Users


@pytest.fixture
def retried(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Retried]:
    """A queue whose letters are retried."""
    with Retried(rabbitmq, redis_server, queue_name) as found:
        yield found


def take(retried: Retried, queue: str) -> tuple[Any, bytes]:
    """Wait for the next message of *queue*; return its properties and its body."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            with retried.channel() as channel:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
        except pika.exceptions.ChannelClosedByBroker:
            method = None  # it is declared with its first message
        if method is not None:
            return properties, body
        time.sleep(0.05)
    raise AssertionError(f"nothing comes to {queue}")


def test_what_died_nowhere_goes_to_the_dead(retried: Retried) -> None:
    """Without a history, and with one that nobody can read, it goes to the dead of the dead-letter queue, whole."""
    with retried.channel() as channel:
        channel.basic_publish("", retried.dead_letter_queue, b"plain")
        hostile = pika.BasicProperties(headers={"x-death": [{"queue": 5}, "no table"], "mine": 15})
        channel.basic_publish("", retried.dead_letter_queue, b"hostile", hostile)
    retried.run()
    for body in (b"plain", b"hostile"):
        properties, found = take(retried, f"{retried.dead_letter_queue}.dead")
        assert found == body
        assert properties.headers["dedup-reason"] == "no-history"
    assert properties.headers["mine"] == 15


def test_a_queue_that_is_gone(retried: Retried) -> None:
    """The broker returns the message, and it goes to the dead of its queue."""
    retried.die(["m"])
    with retried.channel() as channel:
        channel.queue_delete(retried.queue)
    retried.run()
    properties, body = take(retried, f"{retried.queue}.dead")
    assert (body, properties.headers["dedup-reason"]) == (b"m", "queue-gone")


def test_out_of_attempts_with_its_history(retried: Retried) -> None:
    """The dead have a count of all deaths, whatever version counts them."""
    child = retried.run(delays_s=(0.05,), attempts_max=2)
    retried.die(["m"])
    with retried.channel() as channel:
        for method, _, _ in channel.consume(retried.queue, inactivity_timeout=0.2):
            if method is not None:
                channel.basic_nack(method.delivery_tag, requeue=False)
            if child.count("obituary"):
                break
    properties, _ = take(retried, f"{retried.queue}.dead")
    assert properties.headers["dedup-reason"] == "attempts-exhausted"
    history = json.loads(properties.headers["dedup-deaths"])
    assert history[1][:3] == [retried.queue, "rejected", 3]
    assert child.wait_for("obituary")["attempts"] == 3


def test_too_large_for_the_schedule(retried: Retried) -> None:
    """It goes past the schedule to the dead; its neighbours are retried."""
    retried.run(message_bytes_max=1000)
    retried.die(["small", "x" * 5000])
    properties, body = take(retried, f"{retried.queue}.dead")
    assert (len(body), properties.headers["dedup-reason"]) == (5000, "too-large")
    assert take(retried, retried.queue)[1] == b"small"


def test_a_full_schedule_leaves_letters_where_they_are(retried: Retried) -> None:
    """What finds no room stays in the dead-letter queue, and goes on when there is some."""
    child = retried.run(messages_max=3, delays_s=(0.6,))
    retried.die([f"m{number}" for number in range(8)])
    child.wait_for("dedup.schedule_full")
    assert retried.schedule().facts().messages <= 3
    child.wait_for("dedup.schedule_has_room")
    came = retried.all_back(child)
    assert came.all() == retried.went
    assert came.marked() == 0


def test_a_queue_that_refuses(retried: Retried) -> None:
    """It is asked again later; what it refused was never there, so nothing is marked."""
    child = retried.run(delays_s=(1.0,))
    retried.die(["m"])
    with retried.channel() as channel:
        channel.queue_delete(retried.queue)
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare(retried.queue, durable=True, arguments=arguments)
        channel.basic_publish("", retried.queue, b"in the way")
        child.wait_for("dedup.retry_refused")
        assert channel.basic_get(retried.queue, auto_ack=True)[2] == b"in the way"
    properties, body = take(retried, retried.queue)
    assert body == b"m"
    assert "dedup-possible-duplicate" not in properties.headers


def test_it_comes_back_as_it_was_and_only_there(retried: Retried) -> None:
    """Properties pass as they are; a CC header and a user id, which would lead elsewhere or be refused, do not."""
    copied = f"{retried.queue}.copied"
    properties = pika.BasicProperties(
        delivery_mode=2,
        content_type="text/x",
        priority=3,
        message_id="id",
        user_id="guest",
        headers={"CC": [copied], "number": 125, "table": {"deep": [1, "two"]}},
    )
    with retried.channel() as channel:
        channel.queue_declare(copied, durable=True)
        channel.basic_publish("", retried.queue, b"m", properties)
        channel.basic_get(copied, auto_ack=True)
        method, _, _ = channel.basic_get(retried.queue)
        channel.basic_nack(method.delivery_tag, requeue=False)
    retried.run()
    found, body = take(retried, retried.queue)
    assert body == b"m"
    assert (found.content_type, found.priority, found.message_id, found.delivery_mode) == (
        "text/x",
        3,
        "id",
        2,
    )
    assert (found.headers["number"], found.headers["table"]) == (125, {"deep": [1, "two"]})
    assert "CC" not in found.headers
    with retried.channel() as channel:
        assert channel.basic_get(copied)[0] is None
        channel.queue_delete(copied)


def test_redis_is_out_of_memory(rabbitmq: RabbitMQ, queue_name: str, tmp_path: Path) -> None:
    """Letters wait in their queue, what is due goes out all the same, and then the letters come in."""
    with Redis(directory=tmp_path) as redis, Retried(rabbitmq, redis, queue_name) as retried:
        retried.die(["first"])
        child = retried.run(delays_s=(2.0,))
        child.wait_for("dedup.scheduled")
        redis.cli("CONFIG", "SET", "maxmemory", "1")
        retried.die(["second"])
        child.wait_for("dedup.schedule_full")
        assert take(retried, retried.queue)[1] == b"first"
        assert not child.count("dedup.schedule_has_room")
        redis.cli("CONFIG", "SET", "maxmemory", "0")
        child.wait_for("dedup.schedule_has_room")
        properties, body = take(retried, retried.queue)
        child.stop()
        assert body == b"second"
        assert "dedup-possible-duplicate" not in properties.headers


def test_a_replica_is_waited_for(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """Without one the letter is not acknowledged; with it again everything comes, once."""
    with (
        Redis() as redis,
        Redis(config={"replicaof": f"127.0.0.1 {redis.port}"}) as replica,
        Retried(rabbitmq, redis, queue_name) as retried,
    ):
        deadline = time.monotonic() + PATIENCE_S
        while "state=online" not in redis.cli("INFO", "replication"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child = retried.run(sync="replica")
        retried.die(["first"])
        child.wait_for("dedup.scheduled")
        replica.kill()
        retried.die(["second"])
        assert "replica" in child.wait_for("dedup.store_unavailable")["reason"]
        assert child.count("dedup.scheduled") == 1
        replica.start()
        came = retried.all_back(child)
        assert (came.all(), came.marked()) == (retried.went, 0)


@pytest.mark.parametrize("told", [True, False], ids=["which it tells", "which it does not tell"])
def test_a_letter_over_the_limits_of_redis(
    rabbitmq: RabbitMQ, queue_name: str, tmp_path: Path, *, told: bool
) -> None:
    """Lowered while it runs: what is too large for it goes to the dead, its neighbours are retried."""
    with Redis(directory=tmp_path) as redis, Retried(rabbitmq, redis, queue_name) as retried:
        redis.cli("ACL", "SETUSER", "retry", "on", ">secret", "~*", "+@all", *([] if told else ["-config"]))
        child = retried.run(redis=redis.url.replace("//", "//retry:secret@"), message_bytes_max=16 * 1024**2)
        child.wait_for("dedup.retrying")
        redis.cli("CONFIG", "SET", "proto-max-bulk-len", "1mb")
        retried.die(["small", "x" * 1_200_000])
        properties, body = take(retried, f"{retried.queue}.dead")
        assert (len(body), properties.headers["dedup-reason"]) == (1_200_000, "too-large")
        assert take(retried, retried.queue)[1] == b"small"
        child.stop()


@pytest.mark.parametrize("told", [True, False], ids=["which it tells", "which it does not tell"])
def test_a_connection_that_is_cut_over_each_large_letter(tmp_path: Path, *, told: bool) -> None:
    """What Redis says of the reason gets lost with it: where nobody tells its limit, the third time in a row does."""
    with Redis(directory=tmp_path) as redis:
        redis.cli("ACL", "SETUSER", "retry", "on", ">secret", "~*", "+@all", *([] if told else ["-config"]))
        url = redis.url.replace("//", "//retry:secret@")
        schedule = RedisSchedule(url, vhost="/", queue="orders.dlq")
        cut, refused = StoreUnavailableError("cut"), StoreUnavailableError("refused")
        cut.__cause__, refused.__cause__ = RedisConnectionError("reset by peer"), ResponseError("READONLY")
        for error in (cut, cut, refused, cut, cut):
            schedule._check_size(2_000_000, error)
        schedule._check_size(1_000_000, cut)  # every Redis takes that
        if told:
            schedule._check_size(2_000_000, cut)
        else:
            with pytest.raises(StoreLimitError, match="takes no value over"):
                schedule._check_size(2_000_000, cut)
        schedule.close()


def test_messages_that_redis_has_lost_do_not_stop_the_others(
    rabbitmq: RabbitMQ, queue_name: str, tmp_path: Path
) -> None:
    """Evicted, or deleted by somebody: it is told how many, and the schedule has room again."""
    with Redis(directory=tmp_path) as redis, Retried(rabbitmq, redis, queue_name) as retried:
        retried.die(["lost", "gone"])
        child = retried.run(delays_s=(2.0,))
        child.wait_for("dedup.scheduled")
        redis.cli("DEL", f"{retried.schedule().key}:messages")
        assert child.wait_for("dedup.schedule_damaged")["lost"] >= 1
        retried.die(["kept"])
        assert take(retried, retried.queue)[1] == b"kept"
        child.stop()
        facts = retried.schedule().facts()
        assert (facts.messages, facts.bytes, facts.overdue) == (0, 0, 0)


def test_a_queue_of_the_dead_that_cannot_be(retried: Retried) -> None:
    """Forged or not: where nobody may declare it, the dead of the dead-letter queue take the message."""
    properties = pika.BasicProperties(
        headers={"x-death": [{"queue": "amq.of-the-broker", "reason": "rejected"}]}
    )
    with retried.channel() as channel:
        channel.basic_publish("", retried.dead_letter_queue, b"m", properties)
    retried.run()
    found, body = take(retried, f"{retried.dead_letter_queue}.dead")
    assert (body, found.headers["dedup-reason"]) == (b"m", "queue-gone")
    assert json.loads(found.headers["dedup-obituary"])[1] == "amq.of-the-broker"


def test_forged_histories_do_not_fill_the_broker_with_queues(
    retried: Retried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many queues of the dead the rest of them share one."""
    monkeypatch.setattr("dedup.amqp091.retry_links.DEAD_QUEUES_MAX", 2)
    forged = [f"{retried.queue}-{number}" for number in range(6)]
    with retried.channel() as channel:
        for queue in forged:
            properties = pika.BasicProperties(headers={"x-death": [{"queue": queue, "reason": "rejected"}]})
            channel.basic_publish("", retried.dead_letter_queue, queue.encode(), properties)
    settings = RetrySettings(retried.dead_letter_queue, Backoff((0.05,)), batch_max=1)
    service = Retry(RetryServiceSettings(retried.rabbitmq.url, retried.redis.url, settings))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        shared = {take(retried, f"{retried.dead_letter_queue}.dead")[1] for _ in range(4)}
        own = {take(retried, f"{queue}.dead")[1] for queue in forged if queue.encode() not in shared}
    finally:
        service.stop()
        thread.join(PATIENCE_S)
    assert shared | own == {queue.encode() for queue in forged}
    with retried.channel() as channel:
        for queue in forged:
            channel.queue_delete(f"{queue}.dead")


def test_a_session_is_taken_over_when_its_fence_is_gone_for_a_sweep(retried: Retried) -> None:
    """The broker ends a dead connection's channels a moment after its fence: what one has in hand may come till then."""
    retried.schedule().enter("of-the-dead")
    child = retried.run(sweep_s=1.0)
    child.wait_for("dedup.retrying")
    began = time.monotonic()
    assert child.wait_for("dedup.retry_recovered")["session"] == "of-the-dead"
    assert time.monotonic() - began > 0.5
    assert retried.schedule().sessions() != ["of-the-dead"]


def test_the_schedule_can_be_kept_on_disk_only_where_there_is_one(
    rabbitmq: RabbitMQ, queue_name: str, tmp_path: Path
) -> None:
    """Asked to wait for the disk, a Redis without an append-only file is refused at the start."""
    with Redis(directory=tmp_path, config={"appendonly": "no"}) as redis:
        result = run("retry", rabbitmq, redis, "--dead-letter-queue", queue_name, "--sync", "disk")
    assert result.exit_code == 2
    assert "append-only" in result.output


def test_the_permissions_that_are_documented_are_enough(retried: Retried) -> None:
    """With exactly what the page says it sends back and gives up, and another service finds its fence."""
    rights = documented(retried.queue, "sales")["retry"]
    with Users(retried.rabbitmq) as users:
        url = users.add("retry", **rights)
        first = retried.run(amqp=url, kill=("after", "Publish", 1), attempts_max=1)
        retried.die(["m"])
        first.wait()
        second = retried.run(amqp=url, attempts_max=1)
        assert take(retried, retried.queue)[1] == b"m"
        retried.die(["n"])
        assert take(retried, retried.queue)[1] in (b"m", b"n")
        with retried.channel() as channel:
            channel.basic_publish("", retried.dead_letter_queue, b"lost")
        assert take(retried, f"{retried.dead_letter_queue}.dead")[1] == b"lost"
        second.stop()


def run(command: str, rabbitmq: RabbitMQ, redis: Redis | None, *arguments: str) -> Any:
    """Run a command of dedup."""
    where = ["--amqp", rabbitmq.url, *(["--redis", redis.url] if redis else [])]
    environment = {"DEDUP_MANAGEMENT": rabbitmq.management_url}
    return CliRunner().invoke(dedup, [*command.split(), *arguments, *where], env=environment)


def test_the_guide_leads_to_a_queue_that_dead_letters(rabbitmq: RabbitMQ, queue_name: str) -> None:
    """It proposes a policy, and says so no more where there is one."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue_name, durable=True)
        told = run("retry guide", rabbitmq, None, queue_name).output
        assert "rabbitmqctl set_policy" in told
        assert f"{queue_name}.dlq" in told
        channel.queue_delete(queue_name)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "elsewhere"}
        channel.queue_declare(queue_name, durable=True, arguments=arguments)
        told = json.loads(run("retry guide", rabbitmq, None, queue_name, "--json").output)
        assert told["dead_letter_queue"] == "elsewhere"
        assert not [step for step in told["steps"] if "set_policy" in step["command"]]
        channel.queue_delete(queue_name)
    missing = run("retry guide", rabbitmq, None, queue_name)
    assert missing.exit_code == 1
    assert "does not exist" in missing.output


def test_the_doctor_finds_dead_letters_that_go_nowhere(
    rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str
) -> None:
    """A dead-letter queue that is missing is an error, one that nobody takes from a warning."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue_name}.dlq"}
        channel.queue_declare(queue_name, durable=True, arguments=arguments)
        before = run("doctor", rabbitmq, redis_server, "--json")
        channel.queue_declare(f"{queue_name}.dlq", durable=True)
        after = run("doctor", rabbitmq, redis_server, "--json")
        channel.queue_delete(queue_name)
        channel.queue_delete(f"{queue_name}.dlq")
    about = f"queue {queue_name}.dlq"
    assert before.exit_code == 2
    assert [found["level"] for found in json.loads(before.output) if found["about"] == about] == ["error"]
    levels = {found["level"] for found in json.loads(after.output) if found["about"] == about}
    assert levels == {"warning"}


def test_the_doctor_finds_queues_that_nobody_takes_from(
    rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an idle classic queue, and of a quorum queue and a busy one, of which the broker does not say since when."""
    monkeypatch.setattr("dedup.cli.doctor.IDLE_S", 10)
    kinds = {"idle": "classic", "busy": "classic", "quorum": "quorum", "consumed": "quorum"}
    queues = {f"{queue_name}-{name}": kind for name, kind in kinds.items()}

    def levels() -> dict[str, str]:
        found = json.loads(run("doctor", rabbitmq, redis_server, "--json").output)
        about = {one["about"].removeprefix("queue "): one["level"] for one in found}
        return {name.removeprefix(f"{queue_name}-"): about.get(name, "") for name in queues}

    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        for name, kind in queues.items():
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
            channel.basic_publish("", name, b"m", pika.BasicProperties(delivery_mode=2))
        first = levels()
        assert "warning" not in first.values()
        deadline = time.monotonic() + 2 * PATIENCE_S
        wanted = {"idle": "warning", "busy": "warning", "quorum": "warning", "consumed": "note"}
        while (found := levels()) != wanted:
            assert time.monotonic() < deadline, found
            channel.basic_publish("", f"{queue_name}-busy", b"m", pika.BasicProperties(delivery_mode=2))
            method, _, _ = channel.basic_get(f"{queue_name}-consumed")
            channel.basic_nack(method.delivery_tag)
            time.sleep(1.0)
        for name in queues:
            channel.queue_delete(name)


def test_the_doctor_tells_what_it_cannot_reach(rabbitmq: RabbitMQ) -> None:
    """A server that is away is a finding, not the end."""
    result = CliRunner().invoke(
        dedup,
        ["doctor", "--json", "--amqp", rabbitmq.url, "--redis", "redis://127.0.0.1:1"],
        env={"DEDUP_MANAGEMENT": rabbitmq.management_url},
    )
    assert result.exit_code == 2
    assert "redis" in {found["about"] for found in json.loads(result.output) if found["level"] == "error"}
