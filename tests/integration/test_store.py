"""
The stores keep the contract of `dedup.ports.Store`: one suite for Redis and for the store in memory.

What only Redis can do wrong follows: foreign values, limits, replicas, passwords, settings.
"""

from __future__ import annotations

import itertools
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import pytest
import redis
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedup.core.message_ids import message_key
from dedup.core.publishers import Changes, Entry, forwarded
from dedup.core.records import Batch, Belief, Leadership, Parts, State
from dedup.core.steps import Save
from dedup.core.window import Window
from dedup.errors import ConfigError, StateFormatError, StoreFencedError, StoreUnavailableError
from dedup.ports import Store
from dedup.store.redis import RedisStore
from dedup.testing.memory import MemoryServer, MemoryStore
from dedup.testing.proxy import TO_CLIENT, FaultProxy
from dedup.testing.servers import Redis

#: Long enough for a slow machine, short enough to wait for in a test.
TIMEOUT_S = 5.0
#: For calls that are meant to run into it.
SHORT_S = 0.2

T = TypeVar("T")

EVENT, LATER = message_key(b"event"), message_key(b"\xff")


def entry(last: int, *, missing: int = 0) -> Entry:
    """Return one publisher."""
    return Entry(Window(last, 1, missing), 5.0)


def save(token: int, batch: int, entries: dict[str, Entry] | None = None) -> Save:
    """Return a write without intent."""
    return Save(token, batch, Changes(entries or {}), None)


STATE = State(
    batch=3,
    writer=7,
    entries={"p": entry(9, missing=0b101), "é {}:%/": entry(2**63 - 1), EVENT: forwarded(5.0, 3)},
    intent=Batch(
        7,
        4,
        False,
        {"p": (10, 11), "q": (1,)},
        Parts([("p", 11), ("q", 1), ("p", 10)], 2, Leadership("rabbit@a", 3, 70)),
    ),
    doubt={"q": frozenset({1, 2, 9})},
    believed=Belief({"p": (7, 8), "é {}:%/": (5,)}, Leadership("rabbit@a", 3, 70)),
    clean=False,
    unknown_uncertain_until_s=1_700_000_000.125,
    message_ids_uncertain_until_s=1_700_000_000.25,
    bodies={("p", 0): bytes(range(256)), ("é {}:%/", 2**57 - 1): b"\xff" * 256},
)


class Backend(ABC):
    """A server to test a store on."""

    name: str

    @abstractmethod
    def store(self, queue: str, vhost: str = "/") -> Store:
        """Return a store of its own connection."""

    @abstractmethod
    def lose_reply(self) -> None:
        """Let the next call have its effect and lose the answer."""

    @abstractmethod
    def restart(self) -> None:
        """Restart with everything that was written."""

    @abstractmethod
    def forget_after(self, write: Callable[[], object]) -> None:
        """Do *write* and go back, in another process, to what was there before."""

    @abstractmethod
    def empty(self) -> None:
        """Lose everything and keep running."""

    @abstractmethod
    @contextmanager
    def down(self) -> Iterator[None]:
        """Answer nobody for a while."""


class MemoryBackend(Backend):
    name = "memory"

    def __init__(self) -> None:
        self.server = MemoryServer()

    def store(self, queue: str, vhost: str = "/") -> Store:
        return MemoryStore(self.server, vhost=vhost, queue=queue)

    def lose_reply(self) -> None:
        self.server.lose_reply()

    def restart(self) -> None:
        self.server.restart()

    def forget_after(self, write: Callable[[], object]) -> None:
        write()
        self.server.restart(lost_writes=1)

    def empty(self) -> None:
        self.server.empty()

    @contextmanager
    def down(self) -> Iterator[None]:
        self.server.down = True
        yield
        self.server.down = False


class RedisBackend(Backend):
    name = "redis"

    def __init__(self, server: Redis, link: FaultProxy, stack: ExitStack) -> None:
        self.server, self.link, self.stack = server, link, stack

    def store(self, queue: str, vhost: str = "/") -> RedisStore:
        url = f"redis://127.0.0.1:{self.link.port}/0"
        store = RedisStore(url, vhost=vhost, queue=queue, timeout_s=TIMEOUT_S)
        self.stack.callback(store.close)
        return store

    def lose_reply(self) -> None:
        self.link.cut_after(1, TO_CLIENT)

    def restart(self) -> None:
        self.server.restart()

    def forget_after(self, write: Callable[[], object]) -> None:
        before = self.server.snapshot()
        write()
        self.server.restore(before)

    def empty(self) -> None:
        self.server.cli("FLUSHALL")

    @contextmanager
    def down(self) -> Iterator[None]:
        self.server.kill()
        yield
        self.server.start()


@pytest.fixture(scope="module")
def own_redis(redis_server: Redis) -> Iterator[Redis]:
    """A Redis that may be killed and emptied: never one that was given by URL."""
    if not redis_server.external:
        yield redis_server
        return
    with Redis(appendfsync="always") as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each server that a store can be on."""
    if request.param == "memory":
        yield MemoryBackend()
        return
    server = request.getfixturevalue("own_redis")
    server.ensure_running()
    with ExitStack() as stack:
        link = stack.enter_context(FaultProxy(server.port))
        backend = RedisBackend(server, link, stack)
        _load_scripts(backend)
        yield backend


@pytest.fixture
def queue() -> str:
    """A queue nobody else uses."""
    return uuid.uuid4().hex


def _load_scripts(backend: RedisBackend) -> None:
    """Run each script once, so that the next call is one request and one answer."""
    warm = backend.store(uuid.uuid4().hex)
    warm.replace(1, State())
    warm.save(save(1, 1))
    warm.claim(2)


def claimed(backend: Backend, queue: str, state: State = STATE) -> tuple[Store, int]:
    """Return a store that owns *queue* and has written *state*, and its token."""
    store = backend.store(queue)
    token = store.claim(7).token
    store.replace(token, state)
    return store, token


def again(call: Callable[[], T]) -> T:
    """Repeat *call* as its contract allows: a connection from before a restart fails once."""
    try:
        return call()
    except StoreUnavailableError:
        return call()


def state_of(backend: Backend, queue: str) -> State | None:
    """Return what *queue* has; raises the token."""
    return again(lambda: backend.store(queue).claim(0)).state


# -- the contract ---------------------------------------------------------------------------------


def test_a_queue_never_claimed_has_no_state(backend: Backend, queue: str) -> None:
    """The first claim takes the token it asks for."""
    claim = backend.store(queue).claim(1_000)
    assert (claim.token, claim.state, claim.restarted) == (1_000, None, True)


def test_tokens_only_rise(backend: Backend, queue: str) -> None:
    """Above every token before, and at least what is asked for, whatever the caller's clock says."""
    store = backend.store(queue)
    assert [store.claim(lowest).token for lowest in (5, 0, 5, 100, 7)] == [5, 6, 7, 100, 101]
    assert backend.store(queue).claim(0).token == 102


def test_tokens_are_milliseconds(backend: Backend, queue: str) -> None:
    """Numbers of that size stay exact."""
    store = backend.store(queue)
    assert store.claim(1_763_722_305_123).token == 1_763_722_305_123
    assert store.claim(0).token == 1_763_722_305_124


def test_a_state_is_read_as_it_was_written(backend: Backend, queue: str) -> None:
    """Every field of it."""
    claimed(backend, queue)
    claim = backend.store(queue).claim(0)
    assert claim.state == STATE
    assert not claim.restarted


def test_a_save_changes_what_it_names(backend: Backend, queue: str) -> None:
    """Publishers, ids and bodies are added and forgotten, the intent is overwritten, doubt stays unless it is given."""
    store, token = claimed(backend, queue)
    entries = {"p": entry(12), "r": entry(1), LATER: forwarded(6.0, 4)}
    bodies = {("p", 0): b"\x01" * 256, ("r", 0): b"\x02" * 256, ("é {}:%/", 2**57 - 1): b""}
    changes = Changes(entries, ("é {}:%/",), (3,), bodies)
    assert store.save(Save(token, 4, changes, None))
    assert store.save(Save(token, 4, Changes({}), Batch(token, 5), {"z": frozenset({4})}, clean=True))
    assert state_of(backend, queue) == evolve(
        STATE,
        batch=4,
        writer=token,
        entries=entries,
        intent=Batch(token, 5),
        doubt={"z": frozenset({4})},
        clean=True,
        bodies={("p", 0): b"\x01" * 256, ("r", 0): b"\x02" * 256},
    )


def test_what_is_believed_stays_until_it_is_proven(backend: Backend, queue: str) -> None:
    """A save leaves it as it is, one that says proven clears it, also when it is repeated."""
    store, token = claimed(backend, queue)
    assert store.save(save(token, 4))
    assert state_of_without_claim(backend, queue, token).believed == STATE.believed
    proven = evolve(save(token, 5), proven=True)
    backend.lose_reply()
    with pytest.raises(StoreUnavailableError):
        store.save(proven)
    assert store.save(proven)
    assert state_of_without_claim(backend, queue, token).believed is None
    assert store.save(save(token, 6))
    assert state_of(backend, queue) == evolve(STATE, batch=6, writer=token, intent=None, believed=None)


def test_a_replace_leaves_nothing_of_what_was_there(backend: Backend, queue: str) -> None:
    """Publishers that are not in it are gone."""
    store, token = claimed(backend, queue)
    store.replace(token, State(9, token))
    assert state_of(backend, queue) == State(9, token)


def test_a_repeated_write_changes_nothing(backend: Backend, queue: str) -> None:
    """Writing from memory again is what a relay does when it does not know."""
    store, token = claimed(backend, queue)
    store.replace(token, evolve(STATE, batch=4))
    store.replace(token, evolve(STATE, batch=4))
    assert store.save(save(token, 5))
    assert store.save(save(token, 5))
    assert state_of(backend, queue) == evolve(STATE, batch=5, writer=token, intent=None)


def test_a_save_whose_answer_was_lost_is_repeated_safely(backend: Backend, queue: str) -> None:
    """It happened once; the repetition says so, and the next one follows it."""
    store, token = claimed(backend, queue)
    backend.lose_reply()
    with pytest.raises(StoreUnavailableError):
        store.save(save(token, 4, {"p": entry(10)}))
    assert state_of_without_claim(backend, queue, token).batch == 4
    assert store.save(save(token, 4, {"p": entry(10)}))
    assert store.save(save(token, 5))
    assert state_of(backend, queue) == evolve(
        STATE, batch=5, writer=token, intent=None, entries={**STATE.entries, "p": entry(10)}
    )


def read(client: redis.Redis, key: str) -> dict[bytes, bytes]:
    """Return the fields of the hash at *key*."""
    fields = client.hgetall(key)
    assert isinstance(fields, dict)
    return fields  # type: ignore[return-value]


def state_of_without_claim(backend: Backend, queue: str, token: int) -> State:
    """Return the state of *queue*, read by a side door: a claim would fence the writer with *token*."""
    if isinstance(backend, MemoryBackend):
        state = backend.server.read(("/", queue)).state
    else:
        assert isinstance(backend, RedisBackend)
        from dedup.store.encoding import state_from

        with closing(redis.Redis.from_url(backend.server.url)) as client:
            fields = read(client, backend.store(queue).key)
        assert int(fields[b"token"]) == token
        state = state_from(fields)
    assert state is not None
    return state


def test_a_replace_whose_answer_was_lost_is_repeated_safely(backend: Backend, queue: str) -> None:
    """The writer goes on with the revision that the store has."""
    store, token = claimed(backend, queue)
    backend.lose_reply()
    with pytest.raises(StoreUnavailableError):
        store.replace(token, evolve(STATE, batch=8))
    store.replace(token, evolve(STATE, batch=8))
    assert store.save(save(token, 9))
    assert state_of(backend, queue) == evolve(STATE, batch=9, writer=token, intent=None)


def test_a_claim_whose_answer_was_lost_costs_a_token(backend: Backend, queue: str) -> None:
    """The one that nobody heard of is used up."""
    claimed(backend, queue)
    store = backend.store(queue)
    assert store.claim(0).token == 8
    backend.lose_reply()
    with pytest.raises(StoreUnavailableError):
        store.claim(0)
    claim = store.claim(0)
    assert claim.token == 10
    assert claim.state == STATE
    assert store.save(save(claim.token, 4))


def test_an_older_token_is_fenced_and_changes_nothing(backend: Backend, queue: str) -> None:
    """A relay that was paused and wakes up must not touch what another one owns."""
    loser, token = claimed(backend, queue)
    winner = backend.store(queue)
    claim = winner.claim(0)
    with pytest.raises(StoreFencedError):
        loser.save(save(token, 4))
    with pytest.raises(StoreFencedError):
        loser.replace(token, State())
    assert winner.save(save(claim.token, 4))
    with pytest.raises(StoreFencedError):
        loser.save(save(token, 4))
    assert state_of(backend, queue) == evolve(STATE, batch=4, writer=claim.token, intent=None)


def test_a_store_that_lost_a_write_is_behind(backend: Backend, queue: str) -> None:
    """It says so and changes nothing, until everything is written again."""
    store, token = claimed(backend, queue)
    backend.forget_after(lambda: store.save(save(token, 4)))
    assert not again(lambda: store.save(save(token, 5)))
    assert not store.save(save(token, 5))
    assert state_of_without_claim(backend, queue, token) == STATE
    store.replace(token, evolve(STATE, batch=5))
    assert store.save(save(token, 6))


def test_an_emptied_store_is_behind(backend: Backend, queue: str) -> None:
    """It knows neither token nor state: nothing is written into the void."""
    store, token = claimed(backend, queue)
    backend.empty()
    assert not store.save(save(token, 4))
    claim = backend.store(queue).claim(0)
    assert (claim.token, claim.state, claim.restarted) == (1, None, True)


def test_an_emptied_store_takes_everything_from_memory(backend: Backend, queue: str) -> None:
    """The living relay writes what it knows, under its token."""
    store, token = claimed(backend, queue)
    backend.empty()
    store.replace(token, STATE)
    assert store.save(save(token, 4))
    assert backend.store(queue).claim(0).token == token + 1


def test_a_restart_is_told_even_when_nothing_was_lost(backend: Backend, queue: str) -> None:
    """Nobody can know that from the numbers alone: the process is another one."""
    store, token = claimed(backend, queue)
    backend.restart()
    assert not again(lambda: store.save(save(token, 4)))
    claim = backend.store(queue).claim(0)
    assert (claim.state, claim.restarted) == (STATE, True)
    heir = backend.store(queue)
    token = heir.claim(0).token
    heir.replace(token, STATE)
    assert not backend.store(queue).claim(0).restarted


def test_a_store_that_is_down_says_so(backend: Backend, queue: str) -> None:
    """Every call fails with the one error that is worth repeating, and works again afterwards."""
    store, token = claimed(backend, queue)
    with backend.down():
        calls: list[Callable[[], object]] = [
            lambda: store.claim(0),
            lambda: store.save(save(token, 4)),
            lambda: store.replace(token, STATE),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailableError):
                call()
    again(lambda: store.replace(token, STATE))
    assert store.save(save(token, 4))


def test_queues_do_not_touch_each_other(backend: Backend, queue: str) -> None:
    """Same queue name in another virtual host, and names that would run into one another."""
    names = [
        (vhost, f"{queue}{tail}")
        for vhost in ("/", "", "a", "a/b")
        for tail in ("", "/b", "}", "{x}", ":relay")
    ]
    for number, (vhost, name) in enumerate(names):
        store = backend.store(name, vhost)
        store.replace(store.claim(0).token, State(batch=number))
    for number, (vhost, name) in enumerate(names):
        claim = backend.store(name, vhost).claim(0)
        assert claim.state is not None
        assert (claim.state.batch, claim.token) == (number, 2)


def test_ten_thousand_publishers(backend: Backend, queue: str) -> None:
    """As many as a relay keeps, in one write and in one read."""
    entries = {f"publisher-{number}": entry(number + 1, missing=number) for number in range(10_000)}
    store, token = claimed(backend, queue, State(entries=entries))
    assert store.save(save(token, 1, {name: entry(20_000) for name in entries}))
    state = state_of(backend, queue)
    assert state is not None
    assert len(state.entries) == 10_000
    assert set(state.entries.values()) == {entry(20_000)}


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    names=st.lists(
        NAMES | st.sampled_from(["token", "format", "publisher:", "a:b", "1", "-"]), unique=True, max_size=6
    )
)
def test_any_publisher_id_is_kept_apart(backend: Backend, names: list[str]) -> None:
    """Whatever UTF-8 a publisher calls itself, it gets its own window back, and fields stay fields."""
    queue = uuid.uuid4().hex
    entries = {name: entry(number) for number, name in enumerate(names, start=1)}
    store, token = claimed(backend, queue, State(entries=entries))
    assert state_of_without_claim(backend, queue, token).entries == entries
    assert store.save(Save(token, 1, Changes({}, tuple(names[:1])), None))
    assert state_of_without_claim(backend, queue, token).entries == {n: entries[n] for n in names[1:]}


# -- what only Redis can do -----------------------------------------------------------------------


@pytest.fixture
def client(own_redis: Redis) -> Iterator[redis.Redis]:
    """A client to prepare what a store will find."""
    own_redis.ensure_running()
    with closing(redis.Redis.from_url(own_redis.url)) as client:
        yield client


@contextmanager
def opened(url: str, queue: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[RedisStore]:
    """Open the store of *queue*."""
    with closing(RedisStore(url, vhost="/", queue=queue, timeout_s=timeout_s)) as store:
        yield store


def test_somebody_elses_value_is_left_alone(own_redis: Redis, client: redis.Redis, queue: str) -> None:
    """A key of another type belongs to somebody: no call touches it."""
    with opened(own_redis.url, queue) as store:
        client.set(store.key, b"precious")
        for call in (
            lambda: store.claim(0),
            lambda: store.save(save(1, 1)),
            lambda: store.replace(1, State()),
        ):
            with pytest.raises(StateFormatError, match="is not a hash: it belongs to somebody else"):
                call()
        assert client.get(store.key) == b"precious"


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "2"},
        {"batch": "many"},
        {"intent": "{"},
        {"doubt": "7"},
        {"publisher:p": "x"},
        {"publisher:": "1 1 0 0 0"},
    ],
)
def test_a_state_of_another_version_or_damaged_is_refused(
    own_redis: Redis, client: redis.Redis, queue: str, fields: dict[str, str]
) -> None:
    """It is not guessed at, and stays as it is for whoever can read it."""
    with opened(own_redis.url, queue) as store:
        store.replace(store.claim(0).token, STATE)
        for name, value in fields.items():
            client.hset(store.key, name, value)
        before = read(client, store.key)
        with pytest.raises(StateFormatError):
            store.claim(0)
        assert read(client, store.key) == before | {b"token": b"2"}


def test_scripts_are_loaded_again_after_a_flush(own_redis: Redis, client: redis.Redis, queue: str) -> None:
    """NOSCRIPT is the one error that is answered by trying again."""
    with opened(own_redis.url, queue) as store:
        token = store.claim(0).token
        store.replace(token, STATE)
        client.script_flush()
        assert store.save(save(token, 4))


def test_a_redis_out_of_memory_is_unavailable_and_unchanged(
    own_redis: Redis, client: redis.Redis, queue: str
) -> None:
    """Every script makes its first write or none: no half of one is left behind."""
    with opened(own_redis.url, queue) as store:
        token = store.claim(0).token
        store.replace(token, STATE)
        before = read(client, store.key)
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreUnavailableError, match=r"refused: .*(OOM|maxmemory)"):
                store.save(save(token, 4, {"p": entry(99)}))
            with pytest.raises(StoreUnavailableError):
                store.claim(0)
            assert read(client, store.key) == before
        finally:
            client.config_set("maxmemory", 0)
        assert store.save(save(token, 4))


def test_a_replace_is_whole_even_out_of_memory(own_redis: Redis, client: redis.Redis, queue: str) -> None:
    """It deletes before it writes: Redis must not stop it in between."""
    with opened(own_redis.url, queue) as store:
        token = store.claim(0).token
        store.replace(token, STATE)
        client.config_set("maxmemory", 1)
        try:
            store.replace(token, evolve(STATE, batch=8))
        except StoreUnavailableError:
            expected = STATE
        else:
            expected = evolve(STATE, batch=8)
        finally:
            client.config_set("maxmemory", 0)
        assert store.claim(0).state == expected


def test_a_paused_redis_is_unavailable(own_redis: Redis, queue: str) -> None:
    """A server that hangs is not waited for longer than the timeout."""
    with opened(own_redis.url, queue, timeout_s=SHORT_S) as store:
        token = store.claim(0).token
        own_redis.pause()
        try:
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                store.replace(token, STATE)
        finally:
            own_redis.resume()
        again(lambda: store.replace(token, STATE))


def test_a_reply_that_comes_late_is_not_taken_for_the_next_one(own_redis: Redis, queue: str) -> None:
    """After a timeout the connection is dropped with whatever may still come on it (CVE-2023-28858)."""
    with (
        FaultProxy(own_redis.port) as link,
        opened(f"redis://127.0.0.1:{link.port}", queue, timeout_s=SHORT_S) as store,
    ):
        token = store.claim(0).token
        link.stall(TO_CLIENT)
        with pytest.raises(StoreUnavailableError):
            store.replace(token, STATE)
        link.heal()
        assert again(lambda: store.claim(0)).state == STATE


@pytest.mark.parametrize(
    "error",
    [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script",
        "MASTERDOWN Link with MASTER is down",
        "READONLY You can't write against a read only replica.",
        "NOPERM this user has no permissions",
        "CLUSTERDOWN The cluster is down",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR something nobody has thought of",
    ],
)
def test_whatever_redis_says_instead_is_no_answer(queue: str, error: str) -> None:
    """No verdict is drawn from an error: the call can be repeated."""
    with answering(error) as port, opened(f"redis://:hush@127.0.0.1:{port}/0", queue) as store:
        for call in (
            lambda: store.claim(0),
            lambda: store.save(save(1, 1)),
            lambda: store.replace(1, State()),
        ):
            with pytest.raises(StoreUnavailableError) as caught:
                call()
            assert "hush" not in str(caught.value)


@contextmanager
def answering(error: str) -> Iterator[int]:
    """Serve every command on a port with *error*, except those that open a connection."""

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as commands:
            for line in commands:
                if not line.startswith(b"*"):
                    continue
                parts = [(commands.readline(), commands.readline())[1].strip() for _ in range(int(line[1:]))]
                opening = parts[0].upper() in (b"CLIENT", b"AUTH", b"HELLO", b"SELECT")
                connection.sendall(b"+OK\r\n" if opening else f"-{error}\r\n".encode())

    def accept() -> None:
        for _ in itertools.count():
            try:
                connection, _address = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        yield port
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
    for thread in threads:
        thread.join()


def test_a_wrong_password_is_unavailable_and_stays_secret(
    private_redis: Callable[..., Redis], queue: str
) -> None:
    """The error names the server and hides the password."""
    server = private_redis(config={"requirepass": "open sesame"})
    for url in (f"redis://:hush@127.0.0.1:{server.port}/0", server.url):
        with opened(url, queue) as store, pytest.raises(StoreUnavailableError) as caught:
            store.claim(0)
        assert f"127.0.0.1:{server.port}" in str(caught.value)
        assert "hush" not in f"{caught.value} {store.url}"
    with opened(f"redis://:open%20sesame@127.0.0.1:{server.port}/0", queue) as store:
        assert store.claim(5).token == 5


def test_nobody_there_is_unavailable(queue: str) -> None:
    """A port that nobody listens on, a name that nobody has."""
    with FaultProxy(1) as link:
        link.refuse()
        for address in (f"127.0.0.1:{link.port}", "no-such-host.invalid:6379"):
            with opened(f"redis://:hush@{address}/0", queue) as store:
                with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
                    store.claim(0)
                assert "hush" not in str(caught.value)


def test_a_url_that_is_none_is_a_configuration_error() -> None:
    """It names the forms that can be used and hides what may be a password."""
    with pytest.raises(ConfigError, match="use redis://host:6379/0") as caught:
        RedisStore("http://:hush@localhost", vhost="/", queue="q")
    assert "hush" not in str(caught.value)


@given(
    first=st.tuples(st.text(max_size=6), st.text(max_size=6)),
    second=st.tuples(st.text(max_size=6), st.text(max_size=6)),
)
def test_keys_of_different_queues_differ(first: tuple[str, str], second: tuple[str, str]) -> None:
    """Quoting keeps virtual host and name apart; one pair of braces keeps a queue in one slot of a cluster."""
    keys = []
    for vhost, name in (first, second):
        if any("\ud800" <= character <= "\udfff" for character in vhost + name):
            return
        store = RedisStore("redis://localhost", vhost=vhost, queue=name)
        assert (store.key.count("{"), store.key.count("}")) == (1, 1)
        keys.append(store.key)
    assert (keys[0] == keys[1]) == (first == second)


# -- settings of the server -----------------------------------------------------------------------


def test_a_server_that_keeps_everything_is_welcome(own_redis: Redis, queue: str) -> None:
    """Append-only file, no eviction, a primary: nothing to say."""
    with opened(own_redis.url, queue) as store:
        assert store.check() == []


def test_a_server_that_may_evict_is_refused(own_redis: Redis, client: redis.Redis, queue: str) -> None:
    """It could forget what was forwarded at any moment; policies for keys that expire do not concern ours."""
    with opened(own_redis.url, queue) as store:
        try:
            for policy in ("allkeys-lru", "allkeys-lfu", "allkeys-random"):
                client.config_set("maxmemory-policy", policy)
                with pytest.raises(ConfigError, match=f"{policy}.*set maxmemory-policy noeviction"):
                    store.check()
            client.config_set("maxmemory-policy", "volatile-lru")
            assert store.check() == []
        finally:
            client.config_set("maxmemory-policy", "noeviction")


def test_a_server_without_a_file_is_warned_about(own_redis: Redis, client: redis.Redis, queue: str) -> None:
    """It works, and a restart costs marks."""
    with opened(own_redis.url, queue) as store:
        client.config_set("appendonly", "no")
        try:
            (warning,) = store.check()
        finally:
            client.config_set("appendonly", "yes")
        assert warning.endswith("set appendonly yes")


def test_a_replica_is_refused(own_redis: Redis, private_redis: Callable[..., Redis], queue: str) -> None:
    """It takes no writes, and check() says so before the first one fails."""
    replica = private_redis(config={"replicaof": f"127.0.0.1 {own_redis.port}"})
    with opened(replica.url, queue) as store:
        with pytest.raises(ConfigError, match="is a replica and refuses writes; connect to its primary"):
            store.check()
        with pytest.raises(StoreUnavailableError):
            store.claim(0)
