"""
Schedule dead letters, and compare with a plain loop that consumes and acknowledges them: ``python -m tests.benchmarks.retry``.

With ``--scheduled 1000000`` the schedule is filled so far first, straight through the scripts, and the figures then show that neither the
service's memory nor its speed depends on how much waits.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import pika

from dedup.amqp091.dead_letters import letter_of
from dedup.amqp091.properties import DELIVERY_MODE, HEADERS, join
from dedup.amqp091.wire import Delivery, content_frames
from dedup.core.retry_settings import RetrySettings
from dedup.core.retry_steps import Entry
from dedup.core.schedule import Backoff
from dedup.store.schedule import RedisSchedule, ScheduleLimits
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import Child, Tell

QUEUE, DEAD_LETTERS = "orders", "orders.dlq"
BODY = b"x" * 200
#: Nothing becomes due while it is measured.
_LATER_S = 86_400.0


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=50_000, help="dead letters of each run")
    parser.add_argument("--scheduled", type=int, default=0, help="messages that wait already")
    parser.add_argument("--rabbitmq", default="4.3", help="version")
    arguments = parser.parse_args()
    with RabbitMQ(arguments.rabbitmq) as rabbitmq, Redis() as redis:
        print(
            f"RabbitMQ {rabbitmq.version}, Redis {redis.version}, {arguments.letters} dead letters of {len(BODY)} bytes"
        )
        fill(redis, arguments.scheduled)
        declare(rabbitmq)
        plain = []
        scheduled = []
        for _ in range(3):
            die(rabbitmq, arguments.letters)
            plain.append(arguments.letters / consume(rabbitmq, arguments.letters))
            die(rabbitmq, arguments.letters)
            scheduled.append(schedule(rabbitmq, redis, arguments.letters))
        print(
            f"plain consume and ack: {max(plain):,.0f}/s (of {', '.join(f'{rate:,.0f}' for rate in plain)})"
        )
        print(
            f"scheduled:             {max(scheduled):,.0f}/s (of {', '.join(f'{rate:,.0f}' for rate in scheduled)})"
        )
        print(f"ratio: {max(scheduled) / max(plain):.2f}")


def declare(rabbitmq: RabbitMQ) -> None:
    """Declare a queue in which everything dies at once, and where it goes."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    channel.queue_declare(DEAD_LETTERS, durable=True)
    arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD_LETTERS}
    channel.queue_declare(QUEUE, durable=True, arguments=arguments)
    connection.close()


def die(rabbitmq: RabbitMQ, letters: int) -> None:
    """Let so many messages die."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    for number in range(letters):
        properties = pika.BasicProperties(
            delivery_mode=2, app_id="bench", headers={"dedup-sequence": number + 1}
        )
        channel.basic_publish("", QUEUE, BODY, properties)
    while channel.queue_declare(DEAD_LETTERS, passive=True).method.message_count < letters:
        time.sleep(0.1)
    connection.close()


def consume(rabbitmq: RabbitMQ, letters: int) -> float:
    """Consume and acknowledge every letter as a simple program does, in groups; return the seconds."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1000)
    began = time.perf_counter()
    for number, (method, _, _) in enumerate(channel.consume(DEAD_LETTERS), 1):
        if number % 500 == 0 or number == letters:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if number == letters:
            break
    took = time.perf_counter() - began
    connection.close()
    return took


def _serve(settings: tuple[str, str], tell: Tell) -> None:
    from dedup.retry import Retry, RetryServiceSettings

    amqp, redis = settings
    retry = RetrySettings(DEAD_LETTERS, Backoff((_LATER_S,)))
    limits = ScheduleLimits(10_000_000, 100 * 1024**3)
    service = Retry(RetryServiceSettings(amqp, redis, retry, limits), notice=tell)
    tell("started", {})
    service.run()


def schedule(rabbitmq: RabbitMQ, redis: Redis, letters: int) -> float:
    """Let a service schedule every letter; return how many a second, from its first to its last."""
    look = RedisSchedule(redis.url, vhost="/", queue=DEAD_LETTERS)
    before = look.facts()
    used = _used_memory(redis)
    redis_cpu_s = _cpu_s(redis.pid)
    child = Child(_serve, (rabbitmq.url, redis.url))
    while look.facts().messages == before.messages:
        time.sleep(0.001)
    first, began = look.facts().messages, time.perf_counter()
    while look.facts().messages < before.messages + letters:
        time.sleep(0.005)
    took = time.perf_counter() - began
    after = look.facts()
    per_message = (_used_memory(redis) - used) / letters
    print(
        f"{before.messages:,} waited before: {(after.messages - first) / took:,.0f}/s, "
        f"{per_message:,.0f} bytes of Redis each ({(after.bytes - before.bytes) / letters:,.0f} of payload), "
        f"service {_resident_mib(child.pid):.0f} MiB; processor time of a letter: "
        f"service {_cpu_s(child.pid) / letters * 1e6:.0f} µs, Redis {(_cpu_s(redis.pid) - redis_cpu_s) / letters * 1e6:.0f} µs"
    )
    child.end()
    return (after.messages - first) / took


def fill(redis: Redis, messages: int) -> None:
    """Fill the schedule without a broker."""
    if not messages:
        return
    store = RedisSchedule(
        redis.url,
        vhost="/",
        queue=DEAD_LETTERS,
        limits=ScheduleLimits(10_000_000, 100 * 1024**3),
        timeout_s=60,
    )
    store.enter("filler")
    began, used = time.perf_counter(), _used_memory(redis)
    raw = join({HEADERS: b"\x00\x00\x00\x00", DELIVERY_MODE: b"\x02"})
    for number in range(0, messages, 500):
        entries = []
        for index in range(number, min(number + 500, messages)):
            body = BODY[:-8] + b"%08d" % index
            content = content_frames(raw, body, channel=1, frame_max=131072)
            letter = letter_of(Delivery(index, False, b"", b"orders.dlq", raw, len(body), content))
            entries.append(Entry(letter, QUEUE, None, 1, _LATER_S))
        store.store("filler", number // 500 + 1, entries)
        store.forget("filler", [entry.letter.digest for entry in entries])
    store.recover("filler")
    each = (_used_memory(redis) - used) / messages
    print(f"filled with {messages:,} in {time.perf_counter() - began:.0f} s: {each:,.0f} bytes of Redis each")


def _used_memory(redis: Redis) -> int:
    return int(
        next(
            line for line in redis.cli("INFO", "memory").splitlines() if line.startswith("used_memory:")
        ).split(":")[1]
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
