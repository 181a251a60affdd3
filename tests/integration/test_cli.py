"""The program ``dedup`` as people and supervisors meet it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

import pika
import pytest

from dedup import __version__
from dedup.amqp091.topology import unguard
from dedup.core import names
from dedup.testing.process import reserve_ports
from dedup.testing.servers import RabbitMQ, Redis
from tests.looking import PATIENCE_S, channel, depth, until
from tests.security.users import PASSWORD as SECRET
from tests.security.users import Users

_PROGRAM = [sys.executable, "-m", "dedup.cli"]


def environment(**variables: str) -> dict[str, str]:
    """Return an environment without settings of whoever runs the tests."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("DEDUP_")}
    return {**ours, **variables}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``dedup`` to its end; no output of it may have the password, which is in every URL of this file."""
    done = subprocess.run(
        [*_PROGRAM, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert SECRET not in done.stdout + done.stderr
    return done


class Process:
    """
    A ``dedup shim`` that runs.

    Its stderr is a file, so that it never waits for a reader.
    """

    def __init__(self, log: Path, *arguments: str, **variables: str) -> None:
        self._log = log
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [*_PROGRAM, "shim", *arguments], env=environment(**variables), stderr=stderr
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert SECRET not in self.log

    @property
    def log(self) -> str:
        """All it has logged."""
        return self._log.read_text()

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it logged in JSON."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def heard(self, event: str, **facts: Any) -> dict[str, Any]:
        """Wait for an event with these facts, and return it."""

        def find() -> dict[str, Any] | None:
            assert self._process.poll() is None or self.events, self.log
            found = (e for e in self.events if e["event"] == event and facts.items() <= e.items())
            return next(found, None)

        try:
            return until(find)
        except AssertionError:
            pytest.fail(f"no {event} {facts} in:\n{self.log}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self._process.wait(PATIENCE_S)

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None


@pytest.fixture(scope="module")
def amqp(rabbitmq: RabbitMQ) -> Iterator[str]:
    """The URL of a user whose password must not be seen."""
    with Users(rabbitmq) as users:
        yield users.add("secretive", configure=".*", write=".*", read=".*", tags="administrator")


@pytest.fixture
def management(rabbitmq: RabbitMQ) -> str:
    """The URL of the management API, without credentials: those of AMQP serve."""
    return rabbitmq.management_url.replace("guest:guest@", "")


@pytest.fixture
def queue(rabbitmq: RabbitMQ, queue_name: str) -> Iterator[str]:
    """A name; whatever is made of it goes away with the test."""
    yield queue_name
    unguard(rabbitmq.url, queue_name, bindings="drop", force=True)
    with channel(rabbitmq.url) as ours:
        ours.queue_delete(queue_name)
        ours.exchange_delete(f"{queue_name}.in")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a shim logs to."""
    return tmp_path / "log"


@pytest.fixture
def shim_arguments(amqp: str, management: str, redis_server: Redis, queue: str) -> list[str]:
    """What a shim of the queue needs, the queue guarded."""
    done = run("queue", "guard", queue, "--declare", "classic", "--amqp", amqp, "--management", management)
    assert done.returncode == 0, done.stderr
    return ["--queue", queue, "--amqp", amqp, "--management", management, "--redis", redis_server.url]


def publish(url: str, queue: str, *sequences: int) -> None:
    """Publish stamped messages, confirmed."""
    with channel(url) as ours:
        for sequence in sequences:
            properties = pika.BasicProperties(
                app_id="p", headers={"dedup-sequence": sequence}, delivery_mode=2
            )
            ours.basic_publish("", queue, str(sequence).encode(), properties, mandatory=True)


def get(address: str, path: str) -> tuple[int, str]:
    """Return status and body."""
    try:
        with urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


# -- help, misuse, errors -------------------------------------------------------------------------


def test_version_and_help() -> None:
    """The version is the package's; each command's help has its name and exits with 0."""
    assert run("--version").stdout == f"dedup {__version__}\n"
    for arguments in ((), ("shim",), ("queue",), ("queue", "guard"), ("queue", "unguard"), ("queue", "list")):
        done = run(*arguments, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"Usage: {' '.join(('dedup', *arguments))} [OPTIONS]")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("shim", "--quue", "a"), 2, "No such option"),
        (("queue", "guard"), 2, "Missing argument 'NAME'"),
        (("queue", "guard", "orders", "--type", "stream"), 2, "'stream' is not one of"),
        (("shim",), 2, "^error: amqp is not set: give --amqp, DEDUP_AMQP, or amqp in dedup.toml$"),
        (
            ("shim", "--window-size", "1048577"),
            2,
            "^error: --window-size: '1048577' is not a .* to 1,048,576",
        ),
        (("shim", "--window-size", "5"), 2, "^error: --window-size: '5' is not a whole number from 16"),
        (("shim", "--config", "nowhere.toml"), 2, "^error: nowhere.toml cannot be read: No such file"),
        (
            ("queue", "list", "--amqp", f"http://u:{SECRET}@h"),
            2,
            r"^error: http://u:\*\*\*@h: not an AMQP URL",
        ),
        (("queue", "list", "--amqp", f"amqp://u:{SECRET}/x@h"), 2, r"^error: amqp://u:\*\*\*@h"),
        (
            ("queue", "list", "--amqp", "amqp://h", "--management", "off"),
            2,
            "^error: the list comes from the management API",
        ),
        (("queue", "guard", "amq.x", "--amqp", "amqp://h"), 2, "^error: 'amq.x': names that begin with"),
        (
            ("queue", "guard", "orders", "--amqp", f"amqp://u:{SECRET}@127.0.0.1:1"),
            1,
            r"^error: 127\.0\.0\.1:1 cannot be reached: ",
        ),
    ],
)
def test_misuse_and_failure_are_one_line(arguments: tuple[str, ...], code: int, message: str) -> None:
    """2 for what cannot be, 1 for what did not work; no traceback, nothing on stdout."""
    done = run(*arguments)

    assert (done.returncode, done.stdout) == (code, "")
    assert re.search(message, done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
    if done.stderr.startswith("error: "):
        assert len(done.stderr.splitlines()) == 1


def test_a_wrong_password_is_told_without_it(rabbitmq: RabbitMQ) -> None:
    """The login is what is wrong, and pika's own complaints are not heard."""
    done = run("queue", "guard", "orders", "--amqp", rabbitmq.url.replace(":guest@", f":{SECRET}@"))

    assert done.returncode == 2
    assert re.fullmatch(r"error: \S+ refused the login; check user and password in the URL\n", done.stderr)


def test_without_the_extra_the_fix_is_named() -> None:
    """``pip install dedup`` brings no click; the program says what to install instead of a traceback."""
    code = "import sys; sys.modules['click'] = None; from dedup.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == (
        "error: click is not installed; the command line needs: pip install 'dedup[shim]'\n"
    )


# -- queue ----------------------------------------------------------------------------------------


def test_a_queue_is_guarded_listed_and_freed(
    amqp: str, management: str, redis_server: Redis, queue: str
) -> None:
    """Settings come from the environment too; JSON is for scripts, text for people."""
    variables = {"DEDUP_AMQP": amqp, "DEDUP_MANAGEMENT": management}
    assert run("queue", "guard", queue, **variables).returncode == 1

    done = run("queue", "guard", queue, "--declare", "classic", "--json", **variables)
    assert json.loads(done.stdout) == {
        "queue": queue,
        "ingress": f"{queue}.dedup",
        "quarantine": f"{queue}.quarantine",
        "bindings": [],
        "warnings": [],
    }
    publish(amqp, names.ingress(queue), 1, 2)
    listed = next(
        row for row in json.loads(run("queue", "list", "--json", **variables).stdout) if row["queue"] == queue
    )
    assert (listed["waiting"], listed["exact_possible"], listed["shim"]) == (2, True, False)
    table = run("queue", "list", **variables).stdout
    assert re.search(rf"^{queue} +classic +2 +0 +0 +no +exact$", table, re.MULTILINE)

    refused = run("queue", "unguard", queue, **variables)
    assert refused.returncode == 1
    assert "holds 2 messages" in refused.stderr
    redis_server.cli("hset", f"dedup:{{%2F/{queue}}}:relay", "x", "1")
    freed = run("queue", "unguard", queue, "--force", "--redis", redis_server.url, "--json", **variables)
    assert json.loads(freed.stdout)["state_deleted"] is True
    assert redis_server.cli("exists", f"dedup:{{%2F/{queue}}}:relay") == "0"
    assert queue not in run("queue", "list", **variables).stdout


def test_bindings_are_moved_and_named(amqp: str, management: str, queue: str) -> None:
    """What was moved is told, one line a binding, and is in the JSON."""
    with channel(amqp) as ours:
        ours.queue_declare(queue, durable=True)
        ours.exchange_declare(f"{queue}.in", "topic", durable=True)
        ours.queue_bind(queue, f"{queue}.in", "a.#")
    variables = {"DEDUP_AMQP": amqp, "DEDUP_MANAGEMENT": management}

    moved = run("queue", "guard", queue, "--bindings", "move", **variables)
    assert f"moved to {queue}.dedup: exchange '{queue}.in', routing key 'a.#'" in moved.stdout
    assert run("queue", "unguard", queue, **variables).returncode == 1
    back = run("queue", "unguard", queue, "--bindings", "move", "--json", **variables)

    assert json.loads(back.stdout)["bindings"] == [
        {"source": f"{queue}.in", "routing_key": "a.#", "arguments": {}}
    ]


# -- shim -----------------------------------------------------------------------------------------


def test_a_shim_forwards_tells_and_stops(amqp: str, shim_arguments: list[str], queue: str, log: Path) -> None:
    """Each message once, metrics and health over HTTP, readiness to systemd, and exit code 0 after SIGTERM."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(PATIENCE_S)
        systemd.bind(str(log.with_name("notify")))
        publish(amqp, names.ingress(queue), 1, 2, 2, 1, 3)
        with Process(
            log,
            *shim_arguments,
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            NOTIFY_SOCKET=str(log.with_name("notify")),
        ) as shim:
            address = shim.heard("dedup.started")["listen"]
            assert systemd.recv(100) == b"READY=1"
            assert shim.heard("dedup.forwarding", queue=queue)["exact"] is True
            until(lambda: depth(amqp, queue) == 3)
            until(lambda: f'dedup_forwarded_total{{queue="{queue}"}} 3.0' in get(address, "/metrics")[1])
            metrics = get(address, "/metrics")[1]
            assert f'dedup_messages_total{{queue="{queue}",verdict="duplicate"}} 2.0' in metrics
            assert get(address, "/livez") == (200, f"{queue}: forwarding\n")
            assert get(address, "/readyz") == (200, f"{queue}: forwarding\n")
            assert get(address, "/")[0] == 404

            shim.signal(signal.SIGTERM)

            assert shim.wait() == 0
            assert systemd.recv(100) == b"STOPPING=1"
            shim.heard("dedup.session_ended", outcome="stopped", level="info")
    assert depth(amqp, queue) == 3


def test_one_shim_serves_several_queues(
    amqp: str, shim_arguments: list[str], queue: str, log: Path, queue_name: str
) -> None:
    """Each queue has its own thread, and Ctrl-C ends them all."""
    other = f"{queue_name}-2"
    run("queue", "guard", other, "--declare", "quorum", "--amqp", amqp)
    try:
        with Process(log, *shim_arguments, "--queue", other, "--log-format", "json") as shim:
            shim.heard("dedup.recovered", queue=queue)
            shim.heard("dedup.recovered", queue=other)
            for name in (queue, other):
                publish(amqp, names.ingress(name), 1, 1)
                until(lambda name=name: depth(amqp, name) == 1)  # type: ignore[misc]
            shim.signal(signal.SIGINT)
            assert shim.wait() == 0
    finally:
        unguard(amqp, other, bindings="drop", force=True)
        with channel(amqp) as ours:
            ours.queue_delete(other)


def test_a_standby_is_ready_and_takes_over(
    amqp: str, shim_arguments: list[str], queue: str, log: Path
) -> None:
    """The second shim waits; when the first one ends, it forwards."""
    options = ["--listen", "127.0.0.1:0", "--log-format", "json"]
    with (
        Process(log, *shim_arguments, *options) as first,
        Process(log.with_name("second"), *shim_arguments, *options) as second,
    ):
        first_or_second = until(lambda: next((p for p in (first, second) if "dedup.standby" in p.log), None))
        standby, active = (second, first) if first_or_second is second else (first, second)
        active.heard("dedup.recovered")
        address = standby.heard("dedup.started")["listen"]
        assert get(address, "/readyz") == (200, f"{queue}: standing by\n")

        active.signal(signal.SIGKILL)

        standby.heard("dedup.recovered")
        publish(amqp, names.ingress(queue), 1)
        until(lambda: depth(amqp, queue) == 1)
        assert get(address, "/readyz") == (200, f"{queue}: forwarding\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "queue '.*' does not exist: .*dedup queue guard"),
        (["--forwarding", "exact", "--management", "off"], "exact|management"),
    ],
)
def test_what_only_a_person_can_mend_ends_the_process(
    amqp: str,
    management: str,
    redis_server: Redis,
    queue: str,
    *,
    options: list[str],
    message: str,
) -> None:
    """A queue that is not guarded, or a mode that cannot be, ends it with code 2 and one clear line at the end."""
    if options:
        run("queue", "guard", queue, "--declare", "classic", "--amqp", amqp)

    done = run(
        "shim",
        *("--queue", queue, "--amqp", amqp, "--management", management, "--redis", redis_server.url),
        *options,
    )

    assert done.returncode == 2
    assert re.fullmatch(rf"error: {queue}: .*({message}).*", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


def test_one_wrong_queue_stops_the_others_in_order(shim_arguments: list[str], log: Path) -> None:
    """The other queue's shim settles before the process ends with code 2."""
    with Process(log, *shim_arguments, "--queue", "nobody-guarded-me", "--log-format", "json") as shim:
        assert shim.wait() == 2
        assert shim.log.splitlines()[-1].startswith("error: nobody-guarded-me: ")
        assert not [e for e in shim.events if e.get("outcome") not in (None, "stopped")]


def test_an_address_in_use_is_a_setting_that_cannot_be(shim_arguments: list[str]) -> None:
    """The endpoint's address is named, before anything is forwarded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("shim", *shim_arguments, "--listen", address)

    assert done.returncode == 2
    assert done.stderr == f"error: listen: {address} cannot be listened on: Address already in use\n"


def test_servers_that_are_not_there_are_waited_for(shim_arguments: list[str], queue: str, log: Path) -> None:
    """Without Redis the shim keeps trying with pauses, is alive and not ready, and stops when told to."""
    ports = reserve_ports(1)
    with Process(
        log,
        *shim_arguments,
        *("--redis", f"redis://:{SECRET}@127.0.0.1:{ports.ports[0]}"),
        *("--listen", "127.0.0.1:0", "--log-format", "json"),
    ) as shim:
        told = shim.heard("dedup.unavailable", level="warning")
        assert "redis://:***@127.0.0.1" in told["reason"]
        address = shim.heard("dedup.started")["listen"]
        until(lambda: len([e for e in shim.events if e["event"] == "dedup.unavailable"]) > 2 or None)
        assert get(address, "/readyz") == (503, f"{queue}: waiting for its servers\n")
        assert get(address, "/livez")[0] == 200

        shim.signal(signal.SIGTERM)
        assert shim.wait() == 0
    ports.release()


def test_the_second_signal_ends_it_at_once(
    amqp: str, shim_arguments: list[str], redis_server: Redis, queue: str, log: Path
) -> None:
    """A shim that waits for Redis in the middle of a batch waits on after the first SIGTERM, and not after the second."""
    with Process(log, *shim_arguments, "--listen", "127.0.0.1:0", "--log-format", "json") as shim:
        shim.heard("dedup.recovered")
        redis_server.kill()
        publish(amqp, names.ingress(queue), 1)
        shim.heard("dedup.store_unavailable")
        assert get(shim.heard("dedup.started")["listen"], "/readyz")[0] == 503

        shim.signal(signal.SIGTERM)
        shim.heard("dedup.stopping", signal="SIGTERM")
        time.sleep(1)
        assert shim.running

        started = time.monotonic()
        shim.signal(signal.SIGTERM)
        assert shim.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - started < 1


def test_settings_come_from_the_file_and_people_get_a_console(shim_arguments: list[str], log: Path) -> None:
    """A dedup.toml is all it takes; the console format is text."""
    flags = dict(zip(shim_arguments[::2], shim_arguments[1::2], strict=True))
    settings = {"queues": [flags.pop("--queue")], "log_format": "console"}
    settings |= {flag.removeprefix("--"): value for flag, value in flags.items()}
    file = log.with_name("ours.toml")
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    with Process(log, "--config", str(file)) as shim:
        until(lambda: "dedup.recovered" in shim.log or None)
        assert shim.events == []
        shim.signal(signal.SIGTERM)
        assert shim.wait() == 0


def test_the_drivers_own_words_are_not_heard(amqp: str, shim_arguments: list[str], log: Path) -> None:
    """An unreachable broker is one event a try, and pika's chatter about it is not in the log."""
    elsewhere = [a.replace(re.findall(r":(\d+)/", amqp)[0], "1") if a == amqp else a for a in shim_arguments]
    with Process(log, *elsewhere, "--log-format", "json") as shim:
        shim.heard("dedup.unavailable")
        until(lambda: len(shim.events) > 3 or None)
        shim.signal(signal.SIGTERM)
        assert shim.wait() == 0
        assert {event["event"].partition(".")[0] for event in shim.events} == {"dedup"}
        assert not re.search("AMQPConn|pika|Traceback", shim.log)
