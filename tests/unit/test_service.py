"""One process keeps several shims running: what passes is waited out, what only a person can mend ends them all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from attrs import evolve
from structlog.testing import capture_logs

from dedup.config import Settings
from dedup.core.steps import Report
from dedup.errors import ConfigError, StoreUnavailableError, TopologyError
from dedup.metrics import Metrics
from dedup.service import workers
from dedup.service.logs import configure
from dedup.service.workers import Make, Service, Worker

SETTINGS = Settings(amqp="amqp://a", redis="redis://a", queues=("good", "bad"), registry="off")


class FakeShim:
    """Runs until stopped, or as *run* says."""

    def __init__(self, run: Callable[[FakeShim], None] | None = None) -> None:
        self.stopped = threading.Event()
        self._run = run

    def run(self) -> None:
        if self._run is None:
            assert self.stopped.wait(10), "nobody stopped this shim"
        else:
            self._run(self)

    def stop(self) -> None:
        self.stopped.set()


def making(**runs: Callable[[FakeShim], None] | None) -> tuple[Make, list[tuple[str, FakeShim]]]:
    """Return a maker of shims and the list of what it made; a queue not named runs until stopped."""
    made: list[tuple[str, FakeShim]] = []

    def make(
        queue: str, _: Callable[[Report], None], notice: Callable[[str, dict[str, Any]], None]
    ) -> FakeShim:
        shim = FakeShim(runs.get(queue))
        made.append((queue, shim))
        notice("dedup.recovered", {"replayed": 0, "doubtful": 0})
        return shim

    return make, made


def failing(error: BaseException) -> Callable[[FakeShim], None]:
    """Return a run that fails."""

    def run(_: FakeShim) -> None:
        raise error

    return run


def test_an_error_for_a_person_stops_the_others_and_names_its_queue() -> None:
    """The other shims are stopped in order, and what is raised says which queue it was."""
    make, made = making(bad=failing(TopologyError("run 'dedup queue guard bad'")))

    with pytest.raises(ConfigError, match=r"^bad: run 'dedup queue guard bad'$"):
        Service(SETTINGS, make).run()

    assert [queue for queue, shim in made if shim.stopped.is_set()] == ["good", "bad"]


def test_a_bug_stops_the_others_and_is_exit_code_1() -> None:
    """What nobody foresaw ends the process too, so that its supervisor starts it anew."""
    make, made = making(bad=failing(KeyError("bug")))

    with pytest.raises(SystemExit) as caught:
        Service(SETTINGS, make).run()

    assert caught.value.code == 1
    assert all(shim.stopped.is_set() for _, shim in made)


def test_servers_that_cannot_be_reached_are_tried_again() -> None:
    """A shim that could not start is made anew, and the other one is left alone."""
    failures = [StoreUnavailableError("down"), StoreUnavailableError("down")]

    def run(_: FakeShim) -> None:
        if failures:
            raise failures.pop()
        assert not good_stopped()
        service.stop()

    def good_stopped() -> bool:
        return any(queue == "good" and shim.stopped.is_set() for queue, shim in made)

    make, made = making(bad=run)
    service = Service(SETTINGS, make)
    service.run()

    assert [queue for queue, _ in made].count("bad") == 3
    assert [queue for queue, _ in made].count("good") == 1


def test_a_stop_during_the_start_is_heard() -> None:
    """stop() between the making of a shim and its run is not lost."""
    make, made = making()

    def make_and_stop(queue: str, *callbacks: Any) -> FakeShim:
        service.stop()
        shim = make(queue, *callbacks)
        assert isinstance(shim, FakeShim)
        return shim

    service = Service(SETTINGS, make_and_stop)
    service.run()

    assert all(shim.stopped.is_set() for _, shim in made)


def test_a_signal_stops_everything_and_handlers_are_given_back() -> None:
    """SIGTERM lets run() return; afterwards signals mean what they meant before."""
    before = signal.getsignal(signal.SIGTERM)

    def run(shim: FakeShim) -> None:
        signal.raise_signal(signal.SIGTERM)  # in this thread: the main one has to notice by itself
        assert shim.stopped.wait(10)

    make, made = making(bad=run)

    Service(SETTINGS, make).run()

    assert all(shim.stopped.is_set() for _, shim in made)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("missing", ["amqp", "redis", "queues"])
def test_what_is_needed(missing: str) -> None:
    """Without broker, Redis or queues there is nothing to run."""
    given: dict[str, Any] = {"amqp": "amqp://a", "redis": "redis://a", "queues": ("q",)}
    del given[missing]

    with pytest.raises(ConfigError, match=f"^{missing} is not set"):
        Service(Settings(**given))


# -- the registry ---------------------------------------------------------------------------------


class FakeRegistry(FakeShim):
    """What `make_registry` returns."""


def with_registry(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[FakeShim], None] | None = None
) -> tuple[FakeRegistry, threading.Event]:
    """Have the service make this registry; the event says that it was made."""
    registry, made = FakeRegistry(run), threading.Event()

    def make(
        _settings: Settings, _metrics: object, _queue: str, _report: object, notice: Any
    ) -> FakeRegistry:
        notice("dedup.registry_serving", {"queue": "dedup.registry"})
        made.set()
        return registry

    monkeypatch.setattr(workers, "make_registry", make)
    return registry, made


def test_the_registry_runs_beside_the_shims_and_ends_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in order, after a shim has ended the process."""
    registry, served = with_registry(monkeypatch)

    def fail(_: FakeShim) -> None:
        assert served.wait(10)
        raise TopologyError("gone")

    make, _ = making(bad=fail)
    with pytest.raises(ConfigError):
        Service(evolve(SETTINGS, registry="on"), make).run()
    assert registry.stopped.is_set()


def test_a_registry_that_cannot_be_served_stops_no_shim(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator is told why, once, and how to do without."""
    _, served = with_registry(monkeypatch, failing(TopologyError("403 refused")))
    warned = threading.Event()
    tell = Service._on_registry_change

    def on_change(service: Service) -> None:
        tell(service)
        if service._registry.error is not None:
            warned.set()

    monkeypatch.setattr(Service, "_on_registry_change", on_change)
    configure("json", "info")

    def fail_later(_: FakeShim) -> None:
        assert served.wait(10)
        assert warned.wait(10)
        raise TopologyError("the end")

    make, _ = making(bad=fail_later)
    with pytest.raises(ConfigError, match="the end"):
        Service(evolve(SETTINGS, registry="on"), make).run()
    told = capsys.readouterr().err
    assert told.count("does not serve the registry: 403 refused") == 1
    assert 'registry = \\"off\\"' in told


def test_switched_off_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shims alone."""
    _, served = with_registry(monkeypatch)
    make, _ = making(bad=failing(TopologyError("gone")))
    with pytest.raises(ConfigError):
        Service(SETTINGS, make).run()
    assert not served.is_set()


def test_a_registry_alone_needs_no_queue_and_ends_the_process_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is all there is: an error that only a person can mend is the process's own."""
    with_registry(monkeypatch, failing(TopologyError("403 refused")))
    with pytest.raises(ConfigError, match=r"dedup\.registry: 403 refused"):
        Service(evolve(SETTINGS, queues=()), shims=False).run()


@pytest.mark.parametrize(
    ("severity", "level"), [("page", "error"), ("notify", "warning"), ("silent", "info")]
)
def test_an_obituary_is_as_loud_as_it_is_urgent(severity: str, level: str) -> None:
    """It names the queue the message died in, and not the one that is worked on."""
    metrics = Metrics()
    worker = Worker("orders.dlq", making()[0], metrics.of("orders.dlq"), lambda: None)
    with capture_logs() as logs:
        worker._log = structlog.get_logger("dedup").bind(queue="orders.dlq")
        worker.notice("dedup.obituary", {"queue": "orders", "reason": "cycle", "severity": severity})
    assert [(log["log_level"], log["event"], log["queue"]) for log in logs] == [
        (level, "dedup.obituary", "orders")
    ]
