"""
RabbitMQ for the tests of AMQP 1.0: what ``--rabbitmq`` names; else 4.0, and the newest too where its answers may be others.

Without python-qpid-proton, which needs a compiler, this folder is left out; with CI=true that is a failure.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from dedup.testing.assembly import InstallError
from dedup.testing.servers import RabbitMQ, Redis
from tests.conftest import in_ci, not_available, selected_versions
from tests.fault.guarded import Guarded

if importlib.util.find_spec("proton") is None:
    if in_ci():
        raise RuntimeError("python-qpid-proton is missing; make test says why it could not be built")
    collect_ignore_glob = ["test_*.py"]

#: The newest, whose answers are others here and there.
NEWEST = "4.3"
_EACH = ["4.0", NEWEST]
_EACH_IF_LONG = ["4.0", pytest.param(NEWEST, marks=pytest.mark.long)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what needs a broker once for each version."""
    if "broker" in metafunc.fixturenames:
        versions: Sequence[Any] = selected_versions(metafunc.config)
        chosen = metafunc.config.getoption("--rabbitmq") or versions == ["given"]
        marker = metafunc.definition.get_closest_marker("each_version")
        if not chosen and marker is not None:
            versions = _EACH_IF_LONG if "long" in marker.args else _EACH
        metafunc.parametrize("broker", versions, indirect=True, scope="session")


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[RabbitMQ]:
    """One node of each version for the whole run."""
    version: str = request.param
    if version.startswith("3."):
        pytest.skip(
            "AMQP 1.0 as dedup uses it begins with RabbitMQ 4; 3.x has it as a plugin, without these addresses"
        )
    try:
        server = RabbitMQ(version, plugins=("rabbitmq_management",))
    except InstallError as error:
        not_available(request.config, version, error)
    with server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(broker: RabbitMQ) -> RabbitMQ:
    """The same, by the name under which what all protocols share asks for it."""
    return broker


@pytest.fixture(autouse=True)
def running_broker(request: pytest.FixtureRequest) -> None:
    """Start again what the test before left dead."""
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").ensure_running()


@pytest.fixture
def make(broker: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Callable[..., Guarded]]:
    """Return a maker of guarded queues that are cleaned up."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Guarded(broker, redis_server, queue_name, **options))
