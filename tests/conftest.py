"""
Servers, names and marks for every test.

RabbitMQ is 4.0 unless ``--rabbitmq 3.10,4.3`` or DEDUP_TEST_RABBITMQ names others; each test that asks for `rabbitmq` then
runs once a version. DEDUP_AMQP_URL, DEDUP_REDIS_URL and DEDUP_POSTGRES_URL name servers to use instead of private ones. The
summary tells which servers were used; one that cannot be had skips its tests, with the reason there too. With CI=true the
absence of the default version, of Redis or of PostgreSQL is a failure.

What is marked `long` is left out, and counted as deselected, unless ``--all`` or CI=true asks for everything.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog
from hypothesis import settings

from dedup import registrar
from dedup.core.registry import REGISTRY
from dedup.testing.assembly import DEFAULT_VERSION, SUITES, InstallError
from dedup.testing.cluster import RabbitMQCluster
from dedup.testing.postgres import Postgres
from dedup.testing.proxy import FaultProxy
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ, Redis
from tests.looking import channel

# Before they are imported: what fails in them is told in detail, as in a test.
pytest.register_assert_rewrite(
    "tests.publisher_contract",
    "tests.publisher_trouble",
    "tests.registration_contract",
    "tests.outbox_contract",
    "tests.fault.outbox_kills",
)

_TESTS = Path(__file__).parent
_PLUGINS = ("rabbitmq_management", "rabbitmq_prometheus", "rabbitmq_shovel")
_OTHERS = ("PostgreSQL", "Redis")
_LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGXFSZ)
#: How long a test of a folder takes, about and on average.
_SECONDS = {
    "audit": 3.0,
    "docs": 0.3,
    "fault": 2.0,
    "hostile": 0.5,
    "integration": 1.0,
    "proton": 1.0,
    "security": 0.7,
    "simulation": 1.0,
    "soak": 0.5,
}
_given = pytest.StashKey[Mapping[str, str]]()
_used = pytest.StashKey[Any]()
_missing = pytest.StashKey[dict[str, str]]()

# A test that takes long on a busy machine is not wrong.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run choose its RabbitMQ versions, and everything."""
    parser.addoption("--all", action="store_true", help="what is marked long too; so does CI=true")
    parser.addoption("--rabbitmq", metavar="VERSIONS", help=f"comma-separated, of {', '.join(SUITES)}")


def pytest_configure(config: pytest.Config) -> None:
    """Take dedup's own settings out of the environment: no test may depend on what somebody has exported."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # it would begin with many tests, not with long ones
    config.stash[_used] = set()
    config.stash[_missing] = {}
    given = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("DEDUP_") and name != "DEDUP_CACHE"
    }
    config.stash[_given] = given
    if not getattr(config.option, "numprocesses", None):
        # The one that only hands tests out leaves them to the workers, which inherit its environment.
        for name in given:
            del os.environ[name]
    selected_versions(config)  # a wrong one is an error at once


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its folder, leave long ones out, and keep what shares a costly fixture with one worker."""
    if not _wants_everything(config):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        group, folder = _group(item), _folder(item)
        item.add_marker(pytest.mark.xdist_group(group))
        if folder in ("integration", "fault"):
            item.add_marker(folder)
        seconds[group] += _SECONDS.get(folder, 0.05)
    if hasattr(config, "workerinput"):
        # Longest first: one that begins last would keep everybody waiting for one worker.
        items.sort(key=lambda item: (-seconds[_group(item)], _group(item)))


def _wants_everything(config: pytest.Config) -> bool:
    return bool(config.getoption("--all")) or in_ci()


def _folder(item: pytest.Item) -> str:
    """Return the folder of tests that a test is in; empty: none of them."""
    return item.path.relative_to(_TESTS).parts[0] if item.path.is_relative_to(_TESTS) else ""


def _group(item: pytest.Item) -> str:
    """Return what one worker has to run as a whole: a file, or all tests of one Spark or of one broker of AMQP 1.0."""
    folder, callspec = _folder(item), getattr(item, "callspec", None)
    if folder == "audit":
        return "audit"
    if folder == "proton" and callspec is not None and "broker" in callspec.params:
        return f"proton {callspec.params['broker']}"
    return str(item.path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs a RabbitMQ once for each selected version."""
    if "rabbitmq_version" in metafunc.fixturenames:
        metafunc.parametrize(
            "rabbitmq_version", selected_versions(metafunc.config), indirect=True, scope="session"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let the one that hands tests out know which servers a worker had."""
    if (told := getattr(session.config, "workeroutput", None)) is not None:
        told["used"] = sorted(session.config.stash[_used])
        told["missing"] = session.config.stash[_missing]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear which servers a worker had; one that crashed says nothing."""
    told = getattr(node, "workeroutput", {})
    node.config.stash[_used].update(told.get("used", ()))
    node.config.stash[_missing].update(told.get("missing", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which servers could not be had: a skip must not pass for a success."""
    for name in sorted(config.stash[_used]):
        terminalreporter.write_line(f"used {name}")
    for name, reason in config.stash[_missing].items():
        terminalreporter.write_line(f"{name}: not available because: {reason}", red=True, bold=True)


def selected_versions(config: pytest.Config) -> list[str]:
    """Return the RabbitMQ versions of this run; a server given by URL is the only one."""
    given = config.stash[_given]
    if given.get("DEDUP_AMQP_URL"):
        return ["given"]
    chosen = config.getoption("--rabbitmq") or given.get("DEDUP_TEST_RABBITMQ") or DEFAULT_VERSION
    versions = [version.strip() for version in chosen.split(",") if version.strip()]
    if unknown := set(versions) - set(SUITES):
        raise pytest.UsageError(f"RabbitMQ {', '.join(sorted(unknown))} is not one of {', '.join(SUITES)}")
    return versions


def in_ci() -> bool:
    """Tell whether this run decides whether a change lands."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def not_available(config: pytest.Config, version: str, error: InstallError) -> NoReturn:
    """Skip the test that wanted RabbitMQ *version*, "Redis" or "PostgreSQL", or fail it where CI must have that server."""
    name = version if version in _OTHERS else f"RabbitMQ {version}"
    config.stash[_missing][name] = str(error)
    if in_ci() and version in (*_OTHERS, DEFAULT_VERSION):
        raise pytest.fail.Exception(f"{name}: {error}", pytrace=False) from None
    raise pytest.skip.Exception(f"{name}: {error}") from None


@pytest.fixture(scope="session")
def rabbitmq_version(request: pytest.FixtureRequest) -> str | None:
    """The version to test with, as `RabbitMQ` takes it; None lets any installed broker do where no version was asked for."""
    version: str = request.param
    config, given = request.config, request.config.stash[_given]
    asked = in_ci() or config.getoption("--rabbitmq") or "DEDUP_TEST_RABBITMQ" in given
    return version if asked and version in SUITES else None


@pytest.fixture(scope="session")
def rabbitmq(request: pytest.FixtureRequest, rabbitmq_version: str | None) -> Iterator[RabbitMQ]:
    """One node for the whole run, with management, metrics and shovel; a test may kill it, the next one finds it running."""
    config = request.config
    try:
        server = RabbitMQ.from_environment(rabbitmq_version, environ=config.stash[_given], plugins=_PLUGINS)
    except InstallError as error:
        not_available(config, rabbitmq_version or DEFAULT_VERSION, error)
    with server:
        config.stash[_used].add(f"RabbitMQ {server.version}")
        yield server


@pytest.fixture(scope="session")
def rabbitmq_cluster(
    request: pytest.FixtureRequest, rabbitmq_version: str | None
) -> Iterator[RabbitMQCluster]:
    """Three nodes for the whole run, slow to start; a test may kill some, the next one finds them running."""
    if "DEDUP_AMQP_URL" in request.config.stash[_given]:
        pytest.skip("needs a private cluster")
    try:
        cluster = RabbitMQCluster(rabbitmq_version)
    except InstallError as error:
        not_available(request.config, rabbitmq_version or DEFAULT_VERSION, error)
    with cluster:
        request.config.stash[_used].add(f"a cluster of RabbitMQ {cluster.version}")
        yield cluster


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """One Redis for the whole run that fsyncs every write; a test may kill it, the next one finds it running."""
    try:
        server = Redis.from_environment(environ=request.config.stash[_given], appendfsync="always")
    except InstallError as error:
        not_available(request.config, "Redis", error)
    with server:
        request.config.stash[_used].add(f"Redis {server.version}".strip())
        yield server


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """One PostgreSQL for the whole run; a test may kill it, the next one finds it running."""
    try:
        server = Postgres.from_environment(environ=request.config.stash[_given])
    except InstallError as error:
        not_available(request.config, "PostgreSQL", error)
    with server:
        request.config.stash[_used].add(f"PostgreSQL {server.version}".strip())
        yield server


@pytest.fixture(autouse=True)
def running_servers(request: pytest.FixtureRequest) -> None:
    """Start again what the test before left frozen or dead."""
    for name in ("postgres", "rabbitmq", "redis_server"):
        if name in request.fixturenames:
            request.getfixturevalue(name).ensure_running()
    if "rabbitmq_cluster" in request.fixturenames:
        request.getfixturevalue("rabbitmq_cluster").heal()


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Leave logging as it was: a command that runs inside the tests' process sets levels for good, and later tests look at logs."""
    root = logging.getLogger()
    loggers = [root, *(made for made in root.manager.loggerDict.values() if isinstance(made, logging.Logger))]
    before, handlers = {made: made.level for made in loggers}, root.handlers[:]
    yield
    root.handlers[:] = handlers
    for made in (root, *root.manager.loggerDict.values()):
        if isinstance(made, logging.Logger):
            made.setLevel(before.get(made, logging.NOTSET))
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def untouched_process() -> Iterator[None]:
    """Leave the process as it was: commands run inside it too, and what they set for good would reach later tests."""
    environment, folder, path = dict(os.environ), Path.cwd(), sys.path[:]
    limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for name in (environment.keys() | os.environ.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in environment:
            del os.environ[name]
        elif os.environ.get(name) != environment[name]:
            os.environ[name] = environment[name]
    os.chdir(folder)
    sys.path[:] = path
    for limit, before in limits.items():
        resource.setrlimit(limit, before)
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def private_rabbitmq(
    request: pytest.FixtureRequest, rabbitmq_version: str | None
) -> Iterator[Callable[..., RabbitMQ]]:
    """Start nodes of a test's own, ended with it: ``private_rabbitmq(plugins=...)``, ``private_rabbitmq("3.10")``."""
    with ExitStack() as stack:

        def start(version: str | None = rabbitmq_version, **options: Any) -> RabbitMQ:
            try:
                return stack.enter_context(RabbitMQ(version, **options))
            except InstallError as error:
                not_available(request.config, version or DEFAULT_VERSION, error)

        yield start


@pytest.fixture
def private_redis(request: pytest.FixtureRequest) -> Iterator[Callable[..., Redis]]:
    """Start Redis servers of a test's own, ended with it: ``private_redis(appendfsync="no")``."""
    with ExitStack() as stack:

        def start(**options: Any) -> Redis:
            try:
                return stack.enter_context(Redis(**options))
            except InstallError as error:
                not_available(request.config, "Redis", error)

        yield start


@pytest.fixture(scope="module")
def spare_redis() -> Iterator[Redis]:
    """A Redis of one module: its tests kill it, empty it and have it refuse."""
    with Redis() as server:
        yield server


@pytest.fixture
def own_redis(spare_redis: Redis) -> Redis:
    """The spare Redis, running and empty whatever the test before did to it."""
    if spare_redis.running:
        spare_redis.resume()
    spare_redis.empty()
    return spare_redis


@pytest.fixture
def queue_name(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test or run uses and that tells whose it is."""
    return f"{re.sub('[^a-z0-9]+', '-', request.node.name.lower())[:60].strip('-')}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def queue(rabbitmq: RabbitMQ, queue_name: str) -> Iterator[str]:
    """A durable classic queue that is deleted at the end."""
    with channel(rabbitmq) as opened:
        opened.queue_declare(queue_name, durable=True)
    yield queue_name
    rabbitmq.ensure_running()
    with channel(rabbitmq) as opened:
        opened.queue_delete(queue_name)


@pytest.fixture
def link(rabbitmq: RabbitMQ) -> Iterator[FaultProxy]:
    """A link to the broker that breaks on request."""
    with FaultProxy(rabbitmq.port) as proxy:
        yield proxy


@pytest.fixture
def without_registry(rabbitmq: RabbitMQ) -> Iterator[None]:
    """Nothing of a registry is on the broker, before and after."""

    def forget() -> None:
        with channel(rabbitmq) as opened:
            opened.exchange_delete(REGISTRY)
            opened.queue_delete(REGISTRY)

    forget()
    yield
    rabbitmq.ensure_running()
    forget()


@pytest.fixture
def registry(rabbitmq: RabbitMQ, without_registry: None) -> Iterator[MemoryRegistry]:
    """A registry that is served, and has forgotten nothing for long."""
    del without_registry
    memory = MemoryRegistry(time.time)
    memory.age(10_000)
    with serving(rabbitmq.url, memory):
        yield memory


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for a registry's answer that does not come, nor before the next try."""
    monkeypatch.setattr(registrar, "ANSWER_TIMEOUT_S", 0.4)
    monkeypatch.setattr("dedup.core.link.delay_s", lambda *_, **__: 0.05)
