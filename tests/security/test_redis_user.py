"""A Redis user with the documented rights is enough for everything, and with one right less the shim says what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from dedup.core.publishers import Changes, Entry
from dedup.core.records import State
from dedup.core.registry import Act, Refusal, Request
from dedup.core.steps import Save
from dedup.core.window import Window
from dedup.errors import ConfigError
from dedup.store.forget import forget
from dedup.store.redis import RedisStore
from dedup.store.registry import RedisRegistry
from dedup.testing.servers import RabbitMQ, Redis
from tests.security.deployed import PATIENCE_S, Deployed

_PAGE = Path(__file__).parents[2] / "docs/howto/permissions.md"
SECRET = "planted-s3cret"


def documented() -> list[str]:
    """Return the rules of the page, without the name and the password."""
    found = re.search(r"^user dedup on >PASSWORD (.+)$", _PAGE.read_text("utf-8"), re.MULTILINE)
    assert found
    return found[1].split()


#: What must be missing for nothing to go wrong: that a database other than 0 is chosen is tested apart.
NEEDED = [rule for rule in documented() if rule.startswith("+") and rule != "+select"]


@pytest.fixture
def admin(redis_server: Redis) -> Iterator[redis.Redis]:
    """The default user, who makes and deletes the other one."""
    if redis_server.external:
        pytest.skip("makes users: needs a private Redis")
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        yield client
        _run(client, "ACL", "DELUSER", "dedup")


def _run(client: Any, *command: str) -> object:
    """Run a command; redis-py has no types for this."""
    return client.execute_command(*command)


def grant(admin: redis.Redis, redis_server: Redis, *, without: str = "", database: int = 0) -> str:
    """Make the user of the page, but for one rule, and return its URL."""
    rules = [rule for rule in documented() if rule != without]
    _run(admin, "ACL", "SETUSER", "dedup", "reset", "on", f">{SECRET}", *rules)
    return f"redis://dedup:{SECRET}@127.0.0.1:{redis_server.port}/{database}"


def _use(url: str) -> None:
    """Do everything that is done with the state, scripts that Redis does not know yet included."""
    with closing(RedisRegistry(url, vhost="/rights")) as registry:
        registry.open()
        assert registry.answer(Request(Act.SHOW, "p", "")).refusal is None
        while (answer := registry.answer(Request(Act.REGISTER, "p", "a"))).refusal is Refusal.LATER:
            pass
        assert registry.answer(Request(Act.RENEW, "p", "a", "", answer.record.base)).record == answer.record
        assert registry.newest(1) == [("p", answer.record)]
    with closing(RedisStore(url, vhost="/", queue="rights")) as store:
        assert store.check() == []
        token = store.claim(1).token
        store.replace(token, State(batch=1, writer=token))
        entries = {"p": Entry(Window(5, 1), 1.0)}
        assert store.save(Save(token, 2, Changes(entries), None))
        assert store.save(Save(token, 3, Changes({}, ("p",)), None))
        assert store.claim(1).state is not None
    assert forget(url, vhost="/", queue="rights")


def _look(url: str) -> None:
    """Do what a shim's process does first."""
    with closing(RedisStore(url, vhost="/", queue="rights")) as store:
        store.check()
    with closing(RedisRegistry(url, vhost="/rights")) as registry:
        registry.open()


@pytest.mark.parametrize("database", [0, 3])
def test_the_documented_rights_are_enough(admin: redis.Redis, redis_server: Redis, database: int) -> None:
    """Look, claim, write, delete, with the scripts to be loaded first, in any database."""
    admin.script_flush()
    _use(grant(admin, redis_server, database=database))


@pytest.mark.parametrize("missing", NEEDED)
def test_with_one_right_less_the_first_look_says_so(
    admin: redis.Redis, redis_server: Redis, missing: str
) -> None:
    """It is a setting to correct: the message names the command and the page, and hides the password."""
    admin.script_flush()
    url = grant(admin, redis_server, without=missing)
    with pytest.raises(ConfigError) as caught:
        _look(url)
    command = missing.removeprefix("+")
    assert re.search(re.escape(command).replace(r"\|", ".?"), str(caught.value), re.IGNORECASE), caught.value
    assert "docs/howto/permissions.md" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_without_select_another_database_is_refused(admin: redis.Redis, redis_server: Redis) -> None:
    """The page says when it is needed."""
    url = grant(admin, redis_server, without="+select", database=3)
    with (
        closing(RedisStore(url, vhost="/", queue="rights")) as store,
        pytest.raises(ConfigError, match="select"),
    ):
        store.check()


def test_it_reaches_no_other_keys_and_no_other_commands(admin: redis.Redis, redis_server: Redis) -> None:
    """Keys of others, settings, users, the keyspace: refused by Redis; a state under another prefix by the first look."""
    url = grant(admin, redis_server)
    admin.set("other", "1")
    with closing(redis.Redis.from_url(url, client_name="dedup")) as client:
        for command in (
            ("GET", "other"),
            ("HGETALL", "other"),
            ("DEL", "other"),
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("SCRIPT", "FLUSH"),
            ("EVAL", "return 1", "0"),
            ("PUBLISH", "c", "m"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                _run(client, *command)
    store = RedisStore(url, vhost="/", queue="rights", prefix="elsewhere")
    with closing(store), pytest.raises(ConfigError, match="elsewhere"):
        store.check()
    admin.delete("other")


def test_a_wrong_password_ends_the_shim_at_start(
    rabbitmq: RabbitMQ, admin: redis.Redis, redis_server: Redis, queue_name: str, tmp_path: Path
) -> None:
    """Waiting does not mend it: exit code 2 and one line that says what to check; neither password is in it."""
    url = grant(admin, redis_server).replace(SECRET, SECRET[::-1])
    with Deployed(rabbitmq, url, queue_name, tmp_path / "log") as queue, queue.shim() as running:
        assert running.process.wait(PATIENCE_S) == 2
        assert "refused the login; check user and password" in running.output
        assert SECRET not in running.output
        assert SECRET[::-1] not in running.output


def test_a_shim_works_with_it(
    rabbitmq: RabbitMQ, admin: redis.Redis, redis_server: Redis, queue_name: str, tmp_path: Path
) -> None:
    """From the first look to the orderly end, twice."""
    url = grant(admin, redis_server)
    with Deployed(rabbitmq, url, queue_name, tmp_path / "log") as queue:
        for _ in range(2):
            queue.publish(b"m", 1)
            events = queue.drain()
            assert not [event for event in events if event["level"] != "info"]
        assert queue.depth(queue_name) == 1
