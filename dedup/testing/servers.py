"""
Private RabbitMQ and Redis servers for tests and demos: started in seconds, killed and restarted at will.

::

    with RabbitMQ("4.0") as rabbitmq, Redis(appendfsync="always") as redis:
        publish_to(rabbitmq.url)
        rabbitmq.kill()  # SIGKILL, now
        rabbitmq.start()  # the same ports and data

Every server is a child process on loopback ports outside the range of outgoing connections, with its data in a temporary
directory; it ends with the ``with`` block, and with this process however that dies. Programs come from `dedup.testing.install`.

A trap of RabbitMQ that crash tests must know: a *quorum* queue that was declared less than about a second before SIGKILL
comes back empty or dead, confirmed messages included. Wait three seconds after declaring.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from dedup.testing.epmd import NameServer
from dedup.testing.install import RabbitMQPrograms, RedisPrograms, find_rabbitmq, find_redis
from dedup.testing.process import Server, ServerError, address, spawn

_AMQP_0_9_1 = b"AMQP\x00\x00\x09\x01"
#: In Connection.Start's server properties: the key, type long string, four bytes of length, the text.
_VERSION_PROPERTY = re.compile(rb"\x07versionS.{4}([0-9]+\.[0-9]+\.[0-9]+)", re.DOTALL)
#: What erl_call adds to the output of an expression that came to its end.
_EVALUATED = "{ok, ok}"
#: Two schedulers that sleep instead of spinning, and nothing reachable from outside.
_ERLANG_ARGUMENTS = (
    "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
)


class RabbitMQ(Server):
    """
    One RabbitMQ node.

    Args:
        version: "3.10", "4.0" or "4.3"; None takes the default, or whichever is installed.
        plugins: Enabled at start. Management costs about half a second; AMQP 1.0 on 3.10 needs "rabbitmq_amqp1_0".
        config: Settings of rabbitmq.conf, added to or in place of the helper's own.
        erlang_arguments: For the Erlang virtual machine; two schedulers that do not spin by default.
        directory: Keeps data, log and configuration; a temporary one that is removed at the end by default.
        url: An external server, used as it is; the other arguments then mean nothing.
        name_server: What the nodes of a cluster share; one of its own by default.
    """

    name = "RabbitMQ"

    def __init__(
        self,
        version: str | None = None,
        *,
        plugins: Sequence[str] = ("rabbitmq_management",),
        config: Mapping[str, str] | None = None,
        erlang_arguments: str = _ERLANG_ARGUMENTS,
        directory: Path | None = None,
        url: str | None = None,
        name_server: NameServer | None = None,
    ) -> None:
        self.version = ""
        self._given_url = url
        self._programs: RabbitMQPrograms
        if url is None:
            self._programs = find_rabbitmq(version)
            self.version = self._programs.version
        super().__init__(url, 6, directory)
        self._plugins = tuple(plugins)
        self._config = dict(config or {})
        self._erlang_arguments = erlang_arguments
        self._shares_name_server = name_server is not None
        self._name_server: NameServer
        if url is None:
            self._name_server = name_server or NameServer(
                self._programs.epmd, self._block.ports[5], self.directory
            )

    @classmethod
    def from_environment(
        cls, version: str | None = None, *, environ: Mapping[str, str] = os.environ, **options: Any
    ) -> Self:
        """Return the server that DEDUP_AMQP_URL of *environ* names, else a private one, not started, with *options*."""
        if url := environ.get("DEDUP_AMQP_URL"):
            return cls(url=url)
        return cls(version, **options)

    @property
    def url(self) -> str:
        """AMQP URL with user, password and virtual host."""
        return self._given_url or f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def port(self) -> int:
        """AMQP port, for 0.9.1 and 1.0."""
        return address(self._given_url)[1] if self._given_url else self._block.ports[0]

    @property
    def management_url(self) -> str:
        """URL of the management API with user and password; of an external server on its host's port 15672."""
        if self._given_url is None:
            return f"http://guest:guest@127.0.0.1:{self._block.ports[1]}"
        parts = urlsplit(self._given_url)
        return f"http://{parts.username or 'guest'}:{parts.password or 'guest'}@{parts.hostname or '127.0.0.1'}:15672"

    @property
    def prometheus_url(self) -> str:
        """URL of the metrics endpoint; plugin "rabbitmq_prometheus"."""
        self._own("asked for its metrics port")
        return f"http://127.0.0.1:{self._block.ports[2]}/metrics"

    @property
    def stream_port(self) -> int:
        """Port of the stream protocol; plugin "rabbitmq_stream"."""
        self._own("asked for its stream port")
        return self._block.ports[3]

    def ctl(self, *arguments: str, tool: str = "rabbitmqctl", timeout_s: float = 60.0) -> str:
        """
        Return what rabbitmqctl, or another *tool* of its directory, prints; a call takes about 0.7 s.

        Raises:
            ServerError: it failed or took longer than *timeout_s*.
        """
        self._own("controlled")
        result = self._run(self._programs.scripts / tool, *arguments, timeout_s=timeout_s)
        if result.returncode:
            complaint = result.stderr.strip() or result.stdout.strip()
            raise ServerError(f"{tool} {' '.join(arguments)} failed: {complaint}")
        return result.stdout

    def evaluate(self, expression: str) -> str:
        """
        Return the value of an Erlang *expression*, evaluated in the node: in milliseconds where Erlang has its erl_call.

        Raises:
            ServerError: it failed.
        """
        self._own("controlled")
        program = self._programs.epmd.with_name("erl_call")
        if program.exists():
            told = f'io:format("~tp", [begin {expression.strip().removesuffix(".")}\nend]).\n'
            result = self._run(program, "-sname", self.node, "-fetch_stdout", "-e", text=told)
            if result.stdout.endswith(_EVALUATED):
                return result.stdout.removesuffix(_EVALUATED)
            if not result.returncode:
                raise ServerError(f"{expression} failed: {result.stdout.strip()}")
        # No erl_call, or an old one; or the node cannot be reached, and rabbitmqctl says why.
        return self.ctl("eval", expression).strip()

    def _run(
        self, program: Path, *arguments: str, text: str = "", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the node's own tools to its end, with *text* as input."""
        try:
            return subprocess.run(
                [str(program), *arguments],
                env=self._environment(),
                input=text,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ServerError(
                f"{program.name} {' '.join(arguments)} took longer than {timeout_s:g} s"
            ) from error

    def set_alarm(self) -> None:
        """Raise the memory alarm: publishing connections are blocked until `clear_alarm`."""
        self.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.0).")

    def clear_alarm(self) -> None:
        """End the memory alarm."""
        self.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.4).")

    def enable_plugins(self, *names: str) -> None:
        """Enable plugins in the running node, and at each later start."""
        self.ctl("enable", *names, tool="rabbitmq-plugins")
        self._plugins = tuple(dict.fromkeys((*self._plugins, *names)))

    @property
    def _logs(self) -> Sequence[Path]:
        return [self.directory / "log" / f"{self.node}.log", self.directory / "console.log"]

    @property
    def node(self) -> str:
        """Name of the Erlang node."""
        self._own("asked for its node")
        return f"dedup{self._block.ports[0]}@localhost"

    def _environment(self) -> dict[str, str]:
        """Return the whole environment of node and tools: nothing of the machine's own RabbitMQ is read or touched."""
        ports, directory = self._block.ports, self.directory
        return {
            "ERL_CRASH_DUMP": str(directory / "erl_crash.dump"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._name_server.port),
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "PATH": self._programs.search_path,
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
            "RABBITMQ_DIST_PORT": str(ports[4]),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": self._erlang_arguments,
            # makes the start script replace itself by Erlang: the process started here is the node, by one process id
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _settings(self) -> dict[str, str]:
        """Return rabbitmq.conf; ports of plugins that are not enabled wait for `enable_plugins`."""
        ports = self._block.ports
        return {
            "listeners.tcp.1": f"127.0.0.1:{ports[0]}",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": str(ports[1]),
            "prometheus.tcp.ip": "127.0.0.1",
            "prometheus.tcp.port": str(ports[2]),
            "stream.listeners.tcp.1": f"127.0.0.1:{ports[3]}",
            "log.console": "false",
            "disk_free_limit.absolute": "1MB",
        } | self._config

    def _launch(self) -> subprocess.Popen[bytes]:
        directory, environment = self.directory, self._environment()
        (directory / "log").mkdir(exist_ok=True)
        (directory / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        settings = "".join(f"{key} = {value}\n" for key, value in self._settings().items())
        (directory / "rabbitmq.conf").write_text(settings)
        self._name_server.start()
        server = [str(self._programs.scripts / "rabbitmq-server")]
        return spawn(server, environment=environment, output=directory / "console.log")

    def _is_ready(self) -> bool:
        """Tell whether the node answers AMQP's greeting, whose listener opens last in its boot, and management's requests."""
        with socket.create_connection(address(self.url), timeout=5) as connection:
            if self.url.startswith("amqps:"):
                return True  # the greeting is behind TLS, whose certificates only the client knows
            connection.sendall(_AMQP_0_9_1)
            greeting = connection.recv(8192)
        told = _VERSION_PROPERTY.search(greeting)
        self.version = told.group(1).decode() if told else self.version
        ready = greeting[:1] == b"\x01"
        if ready and not self.external and "rabbitmq_management" in self._plugins:
            return self._management_answers()  # 4.3 answers 500 a little longer
        return ready

    def _management_answers(self) -> bool:
        credentials = {"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"}
        with closing(HTTPConnection("127.0.0.1", self._block.ports[1], timeout=5)) as connection:
            connection.request("GET", "/api/overview", headers=credentials)
            return connection.getresponse().status == 200

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        if not (self.external or self._shares_name_server):
            self._name_server.end()


class Redis(Server):
    """
    One Redis with an append-only file and no snapshots.

    Args:
        appendfsync: "always", "everysec" (may lose the last second when the machine dies, not when Redis does) or "no".
        config: Settings of redis.conf, added to or in place of the helper's own.
        directory: Keeps the data; a temporary one that is removed at the end by default.
        url: An external server, used as it is; the other arguments then mean nothing.
    """

    name = "Redis"

    def __init__(
        self,
        *,
        appendfsync: str = "everysec",
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        url: str | None = None,
    ) -> None:
        self.version = ""
        self._given_url = url
        self._programs: RedisPrograms
        if url is None:
            self._programs = find_redis()
            self.version = self._programs.version
        super().__init__(url, 1, directory)
        self._config = {"appendfsync": appendfsync, **(config or {})}

    @classmethod
    def from_environment(cls, *, environ: Mapping[str, str] = os.environ, **options: Any) -> Self:
        """Return the server that DEDUP_REDIS_URL of *environ* names, else a private one, not started, with *options*."""
        if url := environ.get("DEDUP_REDIS_URL"):
            return cls(url=url)
        return cls(**options)

    @property
    def url(self) -> str:
        """Redis URL of database 0."""
        return self._given_url or f"redis://127.0.0.1:{self.port}/0"

    @property
    def port(self) -> int:
        """Redis port."""
        return address(self._given_url)[1] if self._given_url else self._block.ports[0]

    def cli(self, *arguments: str) -> str:
        """
        Return what redis-cli prints for *arguments*, raw.

        Raises:
            ServerError: redis-cli is missing, or Redis cannot be reached or answers with an error.
        """
        program = shutil.which("redis-cli") if self.external else str(self._programs.cli)
        if program is None:
            raise ServerError("redis-cli is missing: apt-get install redis-tools")
        command = [program, "-u", self.url, "-e", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if result.returncode:
            complaint = (result.stderr or result.stdout).strip()
            raise ServerError(f"redis-cli {' '.join(arguments)} failed: {complaint}")
        return result.stdout.removesuffix("\n")

    def empty(self) -> None:
        """Lose everything, as a Redis whose disk was replaced: killed, its data removed, started again."""
        self.kill()
        shutil.rmtree(self._data)
        self.start()

    def snapshot(self) -> Path:
        """Return a copy of the data as it is on disk now, for `restore`."""
        self._own("copied")
        number = len(list(self.directory.glob("snapshot-*")))
        return Path(shutil.copytree(self._data, self.directory / f"snapshot-{number}"))

    def restore(self, snapshot: Path) -> None:
        """Roll back to *snapshot*: killed, its data replaced by the copy, started again."""
        self.kill()
        shutil.rmtree(self._data)
        shutil.copytree(snapshot, self._data)
        self.start()

    @property
    def _logs(self) -> Sequence[Path]:
        return [self.directory / "redis.log"]

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _launch(self) -> subprocess.Popen[bytes]:
        self._data.mkdir(exist_ok=True)
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._data),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
        } | self._config
        arguments = [text for key, value in settings.items() for text in (f"--{key}", value)]
        command = [str(self._programs.server), *arguments]
        return spawn(command, environment={"LANG": "C.UTF-8"}, output=self.directory / "redis.log")

    def _is_ready(self) -> bool:
        """Tell whether it answers PING; it says -LOADING while it reads its file, -NOAUTH when it wants a password first."""
        with socket.create_connection(address(self.url), timeout=5) as connection:
            if self.url.startswith("rediss:"):
                return True
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
