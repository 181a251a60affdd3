"""
The registry keeps one contract, in Redis and in memory: ranges rise, whatever is repeated, lost or full.

What only Redis can do follows: many processes at once, another server at the same address, foreign values.
"""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import redis as driver
from click.testing import CliRunner

from dedup.cli.commands import dedup
from dedup.core.identity import RANGE_EPOCH_S, RANGE_SIZE
from dedup.core.ranges import LEAD_S, base_of
from dedup.core.registry import Act, Answer, Record, Refusal, Request
from dedup.errors import ConfigError, StateFormatError, StoreUnavailableError
from dedup.store.registry import RedisRegistry
from dedup.testing.registry import MemoryRegistry
from dedup.testing.servers import Redis

_LONG_S = 10_000


class Place(ABC):
    """Where a registry keeps what it knows."""

    @abstractmethod
    def open(self, *, publishers_max: int = 1000, idle_s: float = 3600.0) -> Any:
        """Return a registry, of the same memory each time."""

    @abstractmethod
    def empty(self) -> None:
        """Lose everything."""

    @abstractmethod
    def age(self) -> None:
        """Be as after a long time without a loss."""


class InMemory(Place):
    """The fake."""

    def __init__(self) -> None:
        self._registry: MemoryRegistry | None = None

    def open(self, *, publishers_max: int = 1000, idle_s: float = 3600.0) -> Any:
        """One object is the memory."""
        self._registry = MemoryRegistry(time.time, publishers_max=publishers_max, idle_s=idle_s)
        return self._registry

    def empty(self) -> None:
        """Forget."""
        assert self._registry
        self._registry.empty()

    def age(self) -> None:
        """Move the loss back."""
        assert self._registry
        self._registry.age(_LONG_S)


class InRedis(Place):
    """The real one, in a virtual host of its own."""

    def __init__(self, server: Redis) -> None:
        self._server = server
        self.vhost = uuid.uuid4().hex
        self.keys: list[str] = []

    def open(self, *, publishers_max: int = 1000, idle_s: float = 3600.0) -> Any:
        """Each object has its own connection."""
        registry = RedisRegistry(
            self._server.url, vhost=self.vhost, publishers_max=publishers_max, idle_s=idle_s
        )
        self.keys = registry.keys
        return registry

    def empty(self) -> None:
        """Delete its keys."""
        with closing(driver.Redis.from_url(self._server.url)) as client:
            client.delete(*self.keys)

    def age(self) -> None:
        """Write an older time, of the same process."""
        with closing(driver.Redis.from_url(self._server.url)) as client:
            process = client.info("server")["run_id"]
            client.hset(self.keys[0], "", f"{process} {clock_range() - _LONG_S}")


@pytest.fixture(params=["memory", "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each in turn."""
    if request.param == "memory":
        yield InMemory()
        return
    where = InRedis(request.getfixturevalue("redis_server"))
    yield where
    if where.keys:
        where.empty()


def asked(registry: Any, owner: str = "a", publisher_id: str = "p", **facts: Any) -> Answer:
    """Register; wait where the clock has to move on."""
    request = Request(Act.REGISTER, publisher_id, owner, f"holder {owner}", **facts)
    end = time.monotonic() + 5
    while True:
        answer: Answer = registry.answer(request)
        if answer.refusal is not Refusal.LATER or time.monotonic() > end:
            return answer
        time.sleep(0.02)


def base(registry: Any, owner: str = "a", publisher_id: str = "p") -> int:
    """Register and return the base."""
    answer = asked(registry, owner, publisher_id)
    assert answer.refusal is None, answer
    return answer.record.base


def clock_range() -> int:
    """Return the range of this second."""
    return int(time.time()) - RANGE_EPOCH_S


def test_a_first_range_follows_the_clock(place: Place) -> None:
    """It is a multiple, not below the clock and at most the lead above it; holder and time are kept."""
    with closing(place.open()) as registry:
        before = clock_range()
        answer = asked(registry, id=7)
    assert answer.id == 7
    assert answer.record.base % RANGE_SIZE == 0
    assert before <= answer.record.base // RANGE_SIZE <= clock_range() + LEAD_S
    assert (answer.record.owner, answer.record.holder) == ("a", "holder a")
    assert before <= answer.record.at_s - RANGE_EPOCH_S <= clock_range()


def test_owners_in_turn_rise(place: Place) -> None:
    """Each is above the one before; asking again as the same owner gives the same; another id is on its own."""
    with closing(place.open()) as registry:
        place.age()
        first, again = base(registry), base(registry)
        second = base(registry, "b")
        assert first == again < second
        assert base(registry, "a") > second
        assert base(registry, "a", "é {}:% /'\"") > 0


def test_more_than_one_a_second_waits_when_the_lead_is_used_up(place: Place) -> None:
    """Ranges never run away from the clock."""
    with closing(place.open()) as registry:
        place.age()
        bases = [base(registry, "first")]
        for number in range(2 * LEAD_S):
            answer = registry.answer(Request(Act.REGISTER, "p", f"o{number}"))
            if answer.refusal is not None:
                assert answer.refusal is Refusal.LATER
                break
            bases.append(answer.record.base)
        else:
            pytest.fail("nobody had to wait")
        assert bases == sorted({*bases})
        assert bases[-1] // RANGE_SIZE <= clock_range() + LEAD_S


def test_emptied_between_two_registrations_it_goes_on_rising(place: Place) -> None:
    """In the same second, with the whole lead handed out before."""
    with closing(place.open()) as registry:
        place.age()
        base(registry, "first")
        highest = 0
        number = 0
        while (answer := registry.answer(Request(Act.REGISTER, "p", f"o{number}"))).refusal is None:
            highest = answer.record.base
            number += 1
        for owner in "xy":
            place.empty()
            following = base(registry, owner)
            assert following > highest
            highest = following


def test_what_the_publisher_remembers_counts(place: Place) -> None:
    """Also for an owner that has asked before; too far ahead of the clock is refused, for good."""
    with closing(place.open()) as registry:
        place.age()
        own = (clock_range() + 5) * RANGE_SIZE + 17
        first = asked(registry, last=own).record.base
        assert first > own
        assert asked(registry, last=first + 1).record.base > first
        for last in ((clock_range() + LEAD_S + 60) * RANGE_SIZE, 2**63 - 1):
            assert asked(registry, "b", last=last).refusal is Refusal.INVALID
        assert registry.answer(Request(Act.SHOW, "p", "")).record.owner == "a"


def test_renewing_tells_the_newest_and_repairs_what_was_lost(place: Place) -> None:
    """The newest owner hears of itself, an older one of the newer; after a loss the first that asks is written down."""

    def renew(owner: str, own: int) -> Record:
        answer: Answer = registry.answer(Request(Act.RENEW, "p", owner, f"holder {owner}", own))
        return answer.record

    with closing(place.open()) as registry:
        place.age()
        first = base(registry, "a")
        assert renew("a", first).owner == "a"
        second = base(registry, "b")
        assert (renew("a", first).base, renew("a", first).owner) == (second, "b")
        assert renew("b", second).base == second
        place.empty()
        assert renew("a", first) == Record(first, "a", "holder a", 0)
        assert renew("b", second) == Record(second, "b", "holder b", 0)
        assert renew("a", first).owner == "b"
        assert base(registry, "c") > second


def test_showing_changes_nothing(place: Place) -> None:
    """Of an id that is there, and of one that is not."""
    with closing(place.open()) as registry:
        assert registry.answer(Request(Act.SHOW, "p", "", id=3)) == Answer(3)
        record = asked(registry).record
        for _ in range(2):
            assert registry.answer(Request(Act.SHOW, "p", "zz", "zz", 2**62)).record == record


def test_it_is_bounded(place: Place) -> None:
    """One more than there is room for is refused, unless somebody was silent for long enough; those within go on."""
    with closing(place.open(publishers_max=2)) as registry:
        place.age()
        base(registry, "a", "p1")
        base(registry, "a", "p2")
        assert asked(registry, "a", "p3").refusal is Refusal.FULL
        assert registry.answer(Request(Act.RENEW, "p3", "a", "", 5 * RANGE_SIZE)).record == Record()
        assert base(registry, "b", "p1") > 0


def test_the_one_silent_longest_gives_way(place: Place) -> None:
    """And when it comes back it is above what it had, because the clock is."""
    with closing(place.open(publishers_max=2, idle_s=0)) as registry:
        place.age()
        base(registry, "a", "p1")
        base(registry, "a", "p2")
        assert base(registry, "a", "p3") > 0
        gone = [name for name in ("p1", "p2") if not registry.answer(Request(Act.SHOW, name, "")).record.base]
        assert len(gone) == 1


# -- only Redis -----------------------------------------------------------------------------------


@pytest.fixture
def in_redis(redis_server: Redis) -> Iterator[InRedis]:
    """A virtual host of its own in the shared server."""
    where = InRedis(redis_server)
    yield where
    redis_server.ensure_running()
    if where.keys:
        where.empty()


def test_many_processes_at_once_hand_out_each_range_once(in_redis: InRedis) -> None:
    """Eight connections, one id: all bases differ, and the registry knows the highest."""

    def take(number: int) -> int:
        with closing(in_redis.open()) as registry:
            return base(registry, f"o{number}")

    with closing(in_redis.open()) as registry:
        in_redis.age()
        with ThreadPoolExecutor(8) as pool:
            bases = list(pool.map(take, range(8)))
        assert len({*bases}) == 8
        assert registry.answer(Request(Act.SHOW, "p", "")).record.base == max(bases)


def test_a_server_that_lost_its_last_writes_repeats_nothing(in_redis: InRedis, redis_server: Redis) -> None:
    """Another run id is a loss, whatever the record says: a copy restored in the same second hands out nothing twice."""
    with closing(in_redis.open()) as registry, closing(driver.Redis.from_url(redis_server.url)) as client:
        in_redis.age()
        base(registry, "old")
        kept = client.dump(registry.keys[0]) or b""
        handed = [base(registry, f"o{number}") for number in range(5)]
        client.restore(registry.keys[0], 0, kept, replace=True)
        client.hset(registry.keys[0], "", f"{'f' * 40} {clock_range()}")
        assert base(registry, "new") > max(handed)


def test_a_clock_that_went_back_is_told(in_redis: InRedis, redis_server: Redis) -> None:
    """A range from the future stays the newest: nothing is handed out below it, and the refusal says what is wrong."""
    with closing(in_redis.open()) as registry, closing(driver.Redis.from_url(redis_server.url)) as client:
        base(registry)
        ahead = clock_range() + 86_400
        client.hset(registry.keys[0], "p", f"{ahead} {ahead} a holder")
        client.hset(registry.keys[0], "", f"{client.info('server')['run_id']} {ahead}")
        answer = registry.answer(Request(Act.REGISTER, "p", "b", "holder b"))
        assert answer.refusal is Refusal.LATER
        assert "the clock of Redis, which has gone back" in answer.text
        assert registry.answer(Request(Act.SHOW, "p", "")).record.base == base_of(ahead)
        assert base(registry, publisher_id="another") < base_of(ahead)


def test_losing_one_key_repeats_nothing(in_redis: InRedis, redis_server: Redis) -> None:
    """Redis may evict a single key, and a person may delete one: whichever it is, the next range is above all before."""
    with closing(in_redis.open()) as registry, closing(driver.Redis.from_url(redis_server.url)) as client:
        in_redis.age()
        handed = [base(registry, "first")]
        for turn, key in enumerate(registry.keys * 2):
            client.delete(key)
            handed.append(base(registry, f"o{turn}"))
        assert handed == sorted({*handed})


def test_a_restart_is_noticed(in_redis: InRedis, private_redis: Any) -> None:
    """The run id changes with the process: the next range keeps its distance from everything before."""
    del in_redis
    server = private_redis()
    place = InRedis(server)
    with closing(place.open()) as registry:
        first = base(registry, "a")
    server.kill()
    server.ensure_running()
    with closing(place.open()) as registry:
        assert base(registry, "b") >= first + RANGE_SIZE
        since = driver.Redis.from_url(server.url).hget(registry.keys[0], "")
        assert since is not None


def test_foreign_values_are_not_touched(in_redis: InRedis, redis_server: Redis) -> None:
    """A key of another kind, and a record that is none."""
    with closing(in_redis.open()) as registry, closing(driver.Redis.from_url(redis_server.url)) as client:
        client.set(registry.keys[0], "mine")
        with pytest.raises(StateFormatError):
            asked(registry)
        assert client.get(registry.keys[0]) == b"mine"
        client.delete(registry.keys[0])
        client.hset(registry.keys[0], "p", "nonsense")
        with pytest.raises(StateFormatError):
            registry.answer(Request(Act.SHOW, "p", ""))


def test_a_dead_server_is_an_error_worth_trying_again(in_redis: InRedis, private_redis: Any) -> None:
    """It says which one; the newest list is empty before anybody has registered."""
    with closing(in_redis.open()) as registry:
        assert registry.newest(10) == []
        base(registry, "a", "p1")
        assert [(name, record.owner) for name, record in registry.newest(10)] == [("p1", "a")]
    server = private_redis()
    with closing(RedisRegistry(server.url, vhost="v", timeout_s=0.5)) as registry:
        registry.open()
        server.kill()
        with pytest.raises(StoreUnavailableError, match=str(server.port)):
            asked(registry)
    with pytest.raises(ConfigError):
        RedisRegistry("http://nowhere", vhost="v")


def test_the_registry_can_be_looked_into(in_redis: InRedis, redis_server: Redis) -> None:
    """``dedup publishers`` shows who registered what, for people and for scripts; the broker is not asked."""
    url = f"amqp://localhost:1/{in_redis.vhost}"

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(
            dedup,
            ["publishers", *arguments, "--amqp", url, "--redis", redis_server.url],
            catch_exceptions=False,
        )
        assert result.exit_code == 0, result.output
        return result.output

    with closing(in_redis.open()) as registry:
        assert "no publisher has registered here" in run("list")
        assert "p1 has not registered here" in run("show", "p1")
        first, second = base(registry, "a", "p1"), base(registry, "b", "p2")
    assert run("show", "p1").startswith(f"p1  base {first}  20")
    assert {line.split()[0] for line in run("list").splitlines()} == {"p1", "p2"}
    assert len(run("list", "--count", "1").splitlines()) == 1
    shown = json.loads(run("show", "p2", "--json"))
    assert (shown["base"], shown["holder"]) == (second, "holder b")
    assert {one["publisher_id"] for one in json.loads(run("list", "--json"))} == {"p1", "p2"}
