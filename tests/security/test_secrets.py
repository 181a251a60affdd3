"""A planted password is in no log, error, repr, metric or output, whatever goes wrong."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from dedup import DedupError, Publisher
from dedup.amqp091.management import Management
from dedup.amqp091.topology import guard
from dedup.config import Settings, load
from dedup.shim import ShimSettings
from dedup.store.forget import forget
from dedup.store.redis import RedisStore
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ, Redis
from tests.looking import until
from tests.security.deployed import Deployed, dedup
from tests.security.users import PASSWORD, Users

#: Nobody listens on port 1.
DEAD = "127.0.0.1:1"
#: As in a URL, where "@" and "/" are escaped, and as it is.
SECRETS = (PASSWORD, "pl@nted/secret", "pl%40nted%2Fsecret")


def _hides(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


@pytest.fixture
def users(rabbitmq: RabbitMQ) -> Iterator[Users]:
    """An administrator whose password must not be seen."""
    with Users(rabbitmq) as made:
        made.add("admin", configure=".*", write=".*", read=".*", tags="administrator")
        yield made


def test_a_shim_at_work_tells_no_password(
    users: Users,
    rabbitmq: RabbitMQ,
    private_redis: Callable[..., Redis],
    queue_name: str,
    tmp_path: Path,
) -> None:
    """At the most talkative level, with Redis lost and found, metrics and health asked for: nothing of it in any output."""
    redis = private_redis(config={"requirepass": PASSWORD})
    ports = reserve_ports(1)
    listen = f"127.0.0.1:{ports.ports[0]}"
    url = f"redis://:{PASSWORD}@127.0.0.1:{redis.port}/0"
    with Deployed(rabbitmq, url, queue_name, tmp_path / "log") as queue:
        settings = {
            "amqp": users.url("admin"),
            "listen": listen,
            "log_level": "debug",
            "management": f"http://x:{PASSWORD}@{DEAD}",
        }
        with queue.shim(**settings) as running:
            running.heard("dedup.recovered")
            queue.publish(b"m", 1)
            until(lambda: queue.depth(queue_name))
            redis.kill()
            queue.publish(b"n", 2)
            running.heard("dedup.store_unavailable")
            pages = [
                urlopen(f"http://{listen}/{page}", timeout=10).read().decode()
                for page in ("metrics", "livez")
            ]
            command = Path(f"/proc/{running.process.pid}/cmdline").read_text()
            redis.start()
            until(lambda: queue.depth(queue_name) == 2)
            running.stop()
            assert len(running.output) > 1000
            assert _hides(running.output + command + "".join(pages))
    ports.release()


@pytest.mark.parametrize("secret", SECRETS[0::2])
def test_commands_that_fail_tell_no_password(users: Users, rabbitmq: RabbitMQ, secret: str) -> None:
    """Wrong logins, dead servers, URLs that are none, from flags, environment and file; as text and as JSON."""
    good, login = users.url("admin"), f"u:{secret}@"
    alive = rabbitmq.url.rpartition("@")[2]
    runs = [
        (("queue", "list", "--json"), {"amqp": f"amqp://{login}{alive}", "management": "off"}),
        (("queue", "list", "--json"), {"amqp": f"amqp://{login}{alive}"}),
        (("queue", "guard", "q", "--json"), {"amqp": f"amqp://{login}{DEAD}"}),
        (("queue", "list", "--json"), {"amqp": good, "management": f"http://{login}{DEAD}"}),
        (
            ("queue", "unguard", "q", "--json", "--bindings", "drop"),
            {"amqp": good, "redis": f"redis://{login}{DEAD}"},
        ),
        (("queue", "guard", "q", "--json"), {"amqp": f"amqp://{login}{DEAD}:port/"}),
        (("queue", "guard", "q", "--json"), {"amqp": f"http://{login}{DEAD}"}),
        (("shim",), {"amqp": f"amqp://{login}{alive}", "redis": f"ftp://{login}{DEAD}", "queues": "q"}),
        (("shim",), {"amqp": f"{login}{DEAD}", "redis": "redis://localhost", "queues": "q"}),
        (("shim", "--window-size", "0"), {"amqp": f"amqp://{login}{DEAD}"}),
    ]
    for arguments, settings in runs:
        done = dedup(*arguments, **settings)
        assert done.returncode, (arguments, done.stdout)
        assert done.stderr.splitlines()[-1].startswith("error: "), done.stderr
        assert _hides(done.stdout + done.stderr), (arguments, done.stdout + done.stderr)


def test_json_tells_no_password(
    users: Users, rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, tmp_path: Path
) -> None:
    """What scripts read is complete, and without it."""
    with Deployed(rabbitmq, redis_server.url, queue_name, tmp_path / "log"):
        done = dedup("queue", "list", "--json", amqp=users.url("admin"), management=rabbitmq.management_url)
    assert queue_name in [listed["queue"] for listed in json.loads(done.stdout)]
    assert _hides(done.stdout + done.stderr)


def _attempts() -> Iterator[Callable[[], object]]:
    """Yield what fails, in the library."""
    for secret in SECRETS[0::2]:
        amqp, redis = f"amqp://u:{secret}@{DEAD}/%2F", f"redis://u:{secret}@{DEAD}/0"
        options = f"cacertfile=/none&ssl_options={{'password':'{secret}'}}"
        yield partial(Publisher, amqp, "p", connect_timeout_s=0.2)
        yield partial(Publisher, f"amqps://u:{secret}@h/?{options}", "p")
        yield partial(guard, amqp, "q")
        yield Management(f"http://u:{secret}@{DEAD}", amqp=amqp).nodes
        yield RedisStore(redis, vhost="/", queue="q").check
        yield partial(forget, redis, vhost="/", queue="q")
        yield partial(load, {"amqp": secret}, environ={})
        yield partial(load, {}, environ={"DEDUP_REDIS": secret})


def test_errors_and_their_tracebacks_tell_no_password() -> None:
    """The error, what it came from, and the lines of code, as a log prints them."""
    for attempt in _attempts():
        with pytest.raises(DedupError) as caught:
            attempt()
        told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert _hides(told), told


def test_reprs_tell_no_password() -> None:
    """Objects end up in logs and debuggers; what holds a URL shows it masked or not at all."""
    amqp, redis = f"amqp://u:{PASSWORD}@{DEAD}", f"redis://u:{PASSWORD}@{DEAD}"
    made = (
        Settings(amqp=amqp, redis=redis, management=f"http://u:{PASSWORD}@{DEAD}"),
        ShimSettings(amqp, redis, "q"),
        Management(f"http://u:{PASSWORD}@{DEAD}", amqp=amqp),
        RedisStore(redis, vhost="/", queue="q"),
    )
    for one in made:
        assert _hides(repr(one) + str(one)), repr(one)
    parts = [one for one in gc.get_objects() if str(type(one).__module__).startswith("dedup.")]
    assert all(_hides(repr(one)) for one in parts)
    assert PASSWORD in made[1].amqp, "the control: it is there to be told"
