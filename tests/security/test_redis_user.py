"""A Redis user with the documented rights is enough for everything, and with one right less the shim says what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis

from dedup.core.deaths import Death, DeathHistory
from dedup.core.publishers import Changes
from dedup.core.publishers import Entry as Known
from dedup.core.records import State
from dedup.core.registry import Act, Refusal, Request
from dedup.core.retry_steps import Entry, Letter
from dedup.core.steps import Save
from dedup.core.window import Window
from dedup.errors import ConfigError, StoreUnavailableError
from dedup.ports import DeadLetter
from dedup.store.forget import forget
from dedup.store.redis import RedisStore
from dedup.store.registry import RedisRegistry
from dedup.store.schedule import RedisSchedule
from dedup.testing.servers import RabbitMQ, Redis
from tests.looking import PATIENCE_S
from tests.security.deployed import Deployed

_PAGE = Path(__file__).parents[2] / "docs/howto/permissions.md"
SECRET = "planted-s3cret"


def documented(user: str = "dedup") -> list[str]:
    """Return the rules of the page, without the name and the password."""
    found = re.search(rf"^user {user} on >PASSWORD (.+)$", _PAGE.read_text("utf-8"), re.MULTILINE)
    assert found
    return found[1].split()


#: What must be missing for nothing to go wrong: that a database other than 0 is chosen is tested apart.
NEEDED = [rule for rule in documented() if rule.startswith("+") and rule != "+select"]


#: The same of `dedup retry`, which asks for one setting if it may.
RETRY_NEEDED = [
    rule
    for rule in documented("retry")
    if rule.startswith("+") and rule not in ("+select", "+config|get", "+wait")
]


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


def grant(
    admin: redis.Redis, redis_server: Redis, *, user: str = "dedup", without: str = "", database: int = 0
) -> str:
    """Make a user of the page, but for one rule, and return its URL."""
    rules = [rule for rule in documented(user) if rule != without]
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
        entries = {"p": Known(Window(5, 1), 1.0)}
        assert store.save(Save(token, 2, Changes(entries), None))
        assert store.save(Save(token, 3, Changes({}, ("p",)), None))
        assert store.claim(1).state is not None
    assert forget(url, vhost="/", queue="rights")


def _retry(url: str) -> None:
    """Do everything that is done with a schedule."""
    history = DeathHistory((Death("orders", "rejected"),))
    letter = Letter(1, b"digest", True, history, 0, 10, payload=DeadLetter(b"", b"", b"", b"body"))
    schedule = RedisSchedule(url, vhost="/", queue="rights", sync="disk")
    with closing(schedule):
        assert schedule.check() == []
        for session in ("a", "b"):
            schedule.enter(session)
            assert len(schedule.store(session, 1, [Entry(letter, "orders")])) == 1
        assert schedule.message_bytes_max() > 0
        [item] = schedule.claim("a", 10, 1000)
        schedule.settle("a", [], [item.id], 0.0)
        assert schedule.recover("b") == 0
        [item] = schedule.claim("a", 10, 1000)
        assert schedule.recover("a") == 1
        schedule.enter("a")
        [item] = schedule.claim("a", 10, 1000)
        assert item.marked
        schedule.settle("a", [item.id], [], 0.0)
        schedule.forget("a", [b"digest"])
        assert schedule.facts().messages == 0
        assert schedule.sessions() == ["a"]
        schedule.recover("a")


@pytest.mark.parametrize("database", [0, 3])
def test_the_documented_rights_are_enough_to_retry(
    admin: redis.Redis, redis_server: Redis, database: int
) -> None:
    """Schedule, wait for the disk, claim, settle, recover, with the scripts to be loaded first."""
    admin.script_flush()
    url = grant(admin, redis_server, user="retry", database=database)
    _retry(url)
    grant(admin, redis_server, user="retry", without="+config|get", database=database)
    _retry(url)


@pytest.mark.parametrize("missing", RETRY_NEEDED)
def test_with_one_right_less_a_retry_names_it(admin: redis.Redis, redis_server: Redis, missing: str) -> None:
    """Each right of the page is needed, and whoever lacks it is told."""
    admin.script_flush()
    url = grant(admin, redis_server, user="retry", without=missing)
    with pytest.raises(ConfigError) as caught:
        _retry(url)
    command = missing.removeprefix("+")
    assert re.search(re.escape(command).replace(r"\|", ".?"), str(caught.value), re.IGNORECASE), caught.value
    assert "docs/howto/permissions.md" in str(caught.value)
    assert SECRET not in str(caught.value)


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


def test_the_first_look_tells_of_a_wrong_password(admin: redis.Redis, redis_server: Redis) -> None:
    """Whoever looks: waiting does not mend it."""
    url = grant(admin, redis_server).replace(SECRET, SECRET[::-1])
    with (
        closing(RedisStore(url, vhost="/", queue="rights")) as store,
        closing(RedisRegistry(url, vhost="/rights")) as registry,
        closing(RedisSchedule(url, vhost="/", queue="rights")) as schedule,
    ):
        for look in (store.check, registry.open, schedule.check, lambda: registry.newest(1)):
            with pytest.raises(ConfigError, match="refused the login; check user and password"):
                look()
    with pytest.raises(ConfigError, match="refused the login"):
        forget(url, vhost="/", queue="rights")


def test_a_right_that_is_taken_away_is_waited_for(admin: redis.Redis, redis_server: Redis) -> None:
    """What runs does not end for that: it hears what is missing, may ask again, and goes on when the right is back."""
    url = grant(admin, redis_server)
    with (
        closing(RedisStore(url, vhost="/", queue="rights")) as store,
        closing(RedisRegistry(url, vhost="/rights")) as registry,
        closing(RedisSchedule(url, vhost="/", queue="rights")) as schedule,
    ):
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.claim(1),
            lambda: registry.answer(Request(Act.SHOW, "p", "")),
            schedule.sessions,
        )
        for rights, missing in (("+hkeys", False), ("-hkeys -evalsha", True), ("+hkeys +evalsha", False)):
            _run(admin, "ACL", "SETUSER", "dedup", *rights.split())
            for call in calls:
                with (
                    pytest.raises(StoreUnavailableError, match=r"(evalsha|hkeys).*docs/howto/permissions\.md")
                    if missing
                    else nullcontext()
                ):
                    call()


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
