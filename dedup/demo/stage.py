"""Set the stage: servers, a guarded queue, the link that fails, and a second look at everything that arrives."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from attrs import frozen

from dedup.amqp091.administration import Administration, administration
from dedup.amqp091.inspection import Inspection, inspect
from dedup.amqp091.management import Management
from dedup.amqp091.topology import guard, unguard
from dedup.core import names
from dedup.store.forget import forget
from dedup.store.redis import RedisStore
from dedup.testing.process import address
from dedup.testing.proxy import FaultProxy
from dedup.testing.servers import RabbitMQ, Redis


@frozen
class Stage:
    """
    Where a run takes place.
    """

    rabbitmq: RabbitMQ
    redis: Redis
    #: Between the publishers and RabbitMQ.
    link: FaultProxy
    #: The queue that consumers read.
    queue: str
    #: Where publishers publish: a fanout exchange to the ingress and to *witness*.
    exchange: str
    #: Holds a copy of everything that reached the broker.
    witness: str
    #: None in the control run, which has no shim.
    inspection: Inspection | None
    #: Where the shim keeps its state.
    redis_key: str

    @property
    def publisher_url(self) -> str:
        """
        Return the broker's URL through the link.
        """
        return through(self.link, self.rabbitmq.url)

    def shim_settings(self, *, audit: bool) -> dict[str, str]:
        """
        Return the variables of the environment that tell a shim what to do.
        """
        return {
            "DEDUP_AMQP": self.rabbitmq.url,
            "DEDUP_REDIS": self.redis.url,
            "DEDUP_MANAGEMENT": self.rabbitmq.management_url,
            "DEDUP_QUEUES": self.queue,
            "DEDUP_AUDIT": "events" if audit else "off",
            "DEDUP_LOG_FORMAT": "json",
            "DEDUP_LOG_LEVEL": "info",
        }

    def in_batch(self) -> bool:
        """
        Say whether Redis holds an intent: a batch that was begun and is not settled.
        """
        return bool(self.redis.cli("HGET", self.redis_key, "intent"))

    def waiting(self) -> int:
        """
        Return how many messages are ready in the ingress.
        """
        with administration(self.rabbitmq.url) as broker:
            counted = broker.count(names.ingress(self.queue))
        return counted.messages if counted else 0


def through(link: FaultProxy, url: str) -> str:
    """
    Return *url*, or the first of several, with the address of *link* in place of the server's.
    """
    parts = urlsplit(url.partition(",")[0].strip())
    credentials = parts.netloc.rpartition("@")[0]
    at = "@" if credentials else ""
    return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{link.port}"))


@contextmanager
def stage(directory: Path, version: str | None, *, with_dedup: bool) -> Iterator[Stage]:
    """
    Start what is needed, and leave nothing behind.

    Args:
        directory: Of the servers' data and logs.
        version: Of RabbitMQ; None takes the default.
        with_dedup: Guard the queue; otherwise publishers reach it directly.
    """
    with ExitStack() as stack:
        rabbitmq = stack.enter_context(RabbitMQ.from_environment(version, directory=directory / "rabbitmq"))
        redis = stack.enter_context(Redis.from_environment(directory=directory / "redis"))
        host, port = address(rabbitmq.url)
        link = stack.enter_context(FaultProxy(port, host))
        queue = f"orders-{uuid.uuid4().hex[:8]}" if rabbitmq.external or redis.external else "orders"
        broker = stack.enter_context(administration(rabbitmq.url))
        stack.callback(_clear, broker, rabbitmq, redis, queue)
        _build(broker, rabbitmq.url, queue, with_dedup=with_dedup)
        inspection = None
        if with_dedup:
            management = Management(rabbitmq.management_url, amqp=rabbitmq.url)
            inspection = inspect(rabbitmq.url, queue, management=management)
        scene = Stage(
            rabbitmq=rabbitmq,
            redis=redis,
            link=link,
            queue=queue,
            exchange=_exchange(queue),
            witness=_witness(queue),
            inspection=inspection,
            redis_key=_redis_key(redis, broker, queue),
        )
        scene.in_batch()  # if it cannot tell, then now and not at the first kill
        yield scene


def _exchange(queue: str) -> str:
    return f"{queue}.shop"


def _witness(queue: str) -> str:
    return f"{queue}.witness"


def _redis_key(redis: Redis, broker: Administration, queue: str) -> str:
    store = RedisStore(redis.url, vhost=broker.vhost, queue=queue)
    store.close()
    return store.key


def _build(broker: Administration, url: str, queue: str, *, with_dedup: bool) -> None:
    broker.declare_queue(queue, {"x-queue-type": "classic"})
    broker.declare_queue(_witness(queue), {"x-queue-type": "classic"})
    broker.declare_exchange(_exchange(queue), {})
    if with_dedup:
        guard(url, queue)
    else:
        broker.declare_queue(names.quarantine(queue), {"x-queue-type": "classic"})
    broker.bind(names.ingress(queue) if with_dedup else queue, _exchange(queue))
    broker.bind(_witness(queue), _exchange(queue))


def _clear(broker: Administration, rabbitmq: RabbitMQ, redis: Redis, queue: str) -> None:
    """
    Remove what was made on servers that stay; private ones are removed as a whole.
    """
    if rabbitmq.external:
        broker.delete_exchange(_exchange(queue))
        unguard(rabbitmq.url, queue, bindings="drop", force=True)
        broker.delete_queue(_witness(queue))
        broker.delete_queue(queue)
    if redis.external:
        forget(redis.url, vhost=broker.vhost, queue=queue)
