"""
Assemble RabbitMQ and Redis from Debian's packages without root.

A *prefix* is a directory that holds RabbitMQ, its Erlang, Redis and every library they need; nothing else on the machine
changes. apt-get downloads the packages from the Debian mirror this machine already uses and checks their signatures;
dpkg-deb unpacks them; patchelf, itself one of them, points each program at the prefix's own libc, so a suite newer than the
machine runs too.

A prefix is assembled where it will stay, under a lock, and its stamp is written last: whoever finds the stamp may use the
prefix, and an assembly that was interrupted is done again. The second time costs one ``stat``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from dedup.errors import DedupError

#: RabbitMQ's minor version and the Debian suite that carries it; sid moves, so 4.3 may be gone one day.
SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "sid"}
DEFAULT_VERSION = "4.0"

#: Raise it when the way a prefix is made changes: prefixes of an older recipe are made again.
_RECIPE = 1
_WANTED = ("rabbitmq-server", "redis-server", "patchelf", "libsctp1")
_PROGRAMS = ("erlang-", "rabbitmq-server_", "redis-", "patchelf_")
_LIBRARIES = ("lib", "zlib1g_")
#: Libraries only of packages that are left out: maintainer scripts, Python, login.
_LEFT_OUT = (
    "libperl",
    "libpython",
    "libpam",
    "libdb5",
    "libsemanage",
    "libsystemd-shared",
    "libsqlite3",
    "libkrb5",
)
_DEBIAN_NAMES = frozenset(
    "bullseye bookworm trixie forky duke sid oldstable stable testing unstable".split()  # noqa: SIM905 (a list of names)
)
_KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")

Report = Callable[[str], None]


class InstallError(DedupError):
    """Raised when a server can neither be assembled nor found; the message says why and what to install."""


@frozen
class Prefix:
    """A directory that holds one RabbitMQ, its Erlang and a Redis."""

    path: Path
    rabbitmq_version: str
    redis_version: str


def ensure_prefix(version: str = DEFAULT_VERSION, *, report: Report | None = None) -> Prefix:
    """
    Return the prefix of RabbitMQ *version*; assemble it first when it is not there, which takes 10 to 20 seconds.

    Args:
        version: A key of `SUITES`.
        report: Told each step; one progress line on standard error by default.
    Raises:
        InstallError: it cannot be assembled here; the message says why.
    """
    if version not in SUITES:
        raise InstallError(f"RabbitMQ {version} is not one of {', '.join(SUITES)}.")
    path = cache_directory() / f"rabbitmq-{version}"
    prefix = complete_prefix(path)
    if prefix:
        return prefix
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(f"{path.suffix}.lock"), report or _report):
            return complete_prefix(path) or _assembled(version, path, report or _report)
    except OSError as error:
        raise InstallError(f"RabbitMQ {version} cannot be assembled in {path}: {error}.") from error


def cache_directory() -> Path:
    """Return the absolute directory of all prefixes: RabbitMQ stores paths, so a relative one would break a restart."""
    if explicit := os.environ.get("DEDUP_CACHE"):
        return Path(explicit).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "dedup"


def complete_prefix(path: Path) -> Prefix | None:
    """Return the prefix at *path* when its stamp is there, by this recipe and for this very path."""
    try:
        stamp = json.loads((path / "complete.json").read_text())
    except (OSError, ValueError):
        return None
    if stamp.get("recipe") != _RECIPE or stamp.get("path") != str(path):
        return None
    return Prefix(path, stamp["rabbitmq"], stamp["redis"])


@contextmanager
def locked(path: Path, report: Report) -> Iterator[None]:
    """
    Hold *path* as a lock between processes; the kernel frees it when its holders die.

    What `run` starts holds it too: a dpkg-deb whose parent was killed finishes before somebody else begins anew.
    """
    with path.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that assembles it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _assembled(version: str, path: Path, report: Report) -> Prefix:
    """Assemble RabbitMQ *version* at *path*, over whatever an interrupted assembly left there; the caller holds the lock."""
    started = time.monotonic()
    for program in ("apt-get", "dpkg-deb", "dpkg"):
        if shutil.which(program) is None:
            raise InstallError(
                f"RabbitMQ {version} is assembled from Debian's packages and {program} is missing here."
            )
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        report(f"RabbitMQ {version}: downloading from Debian {SUITES[version]}")
        packages = _downloaded(SUITES[version], path / "apt")
        report(f"RabbitMQ {version}: unpacking {len(packages)} packages")
        _in_parallel([["dpkg-deb", "--extract", str(package), str(path)] for package in packages])
        for name in ("apt", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(path / name, ignore_errors=True)
        report(f"RabbitMQ {version}: relocating")
        _relocate(path)
        prefix = Prefix(path, _rabbitmq_version(path), redis_version(path / "usr/bin/redis-server"))
        if not prefix.rabbitmq_version.startswith(f"{version}."):
            raise InstallError(
                f"RabbitMQ {version} is gone: Debian {SUITES[version]} has {prefix.rabbitmq_version} now."
            )
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    stamp = {
        "recipe": _RECIPE,
        "path": str(path),
        "rabbitmq": prefix.rabbitmq_version,
        "redis": prefix.redis_version,
    }
    (path / "complete.json").write_text(json.dumps(stamp))
    report(
        f"RabbitMQ {prefix.rabbitmq_version} and Redis {prefix.redis_version} ready after "
        f"{time.monotonic() - started:.0f} s in {path}\n"
    )
    return prefix


def _downloaded(suite: str, work: Path) -> list[Path]:
    """Download what RabbitMQ and Redis of *suite* need into *work*, from the first of this machine's mirrors that has it."""
    keyrings = [Path("/usr/share/keyrings") / name for name in _KEYRINGS]
    keyring = next((path for path in keyrings if path.exists()), None)
    if keyring is None:
        raise InstallError("Debian's keyring is missing: apt-get install debian-archive-keyring.")
    mirrors = _mirrors()
    if not mirrors:
        raise InstallError("apt on this machine knows no Debian mirror to assemble RabbitMQ from.")
    problems = []
    for mirror in mirrors:
        shutil.rmtree(work, ignore_errors=True)
        for name in ("lists/partial", "cache/archives/partial"):
            (work / name).mkdir(parents=True)
        # No package counts as installed, so all that is needed is downloaded, libc included.
        (work / "status").touch()
        (work / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} {suite} main\n")
        try:
            run([*_apt(work), "update"])
            run([*_apt(work), "--yes", "--download-only", "install", *_WANTED])
        except InstallError as error:
            problems.append(f"{_without_credentials(mirror)}: {error}")
            continue
        packages = sorted((work / "cache/archives").glob("*.deb"))
        return [package for package in packages if _is_part(package.name)]
    raise InstallError(f"No Debian mirror of this machine gave suite {suite}: {' '.join(problems)}")


def _mirrors() -> list[str]:
    """Return the Debian mirrors of this machine's apt configuration, likely ones first, whatever format they are written in."""
    listing = run(["apt-get", "-o", "Debug::NoLocking=1", "update", "--print-uris"])
    entries = re.findall(r"^'([^']+?)/*/dists/([^/']+)/main/binary-[^']*'", listing, re.MULTILINE)
    found = dict.fromkeys(
        uri for uri, suite in entries if suite in _DEBIAN_NAMES and not uri.startswith("cdrom:")
    )
    return sorted(found, key=lambda uri: not uri.endswith("/debian"))


def _apt(work: Path) -> list[str]:
    """Return apt-get's call with state, sources and cache in *work*; proxies and credentials stay the machine's own."""
    architecture = run(["dpkg", "--print-architecture"]).strip()
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": work,
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Log": work,
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",  # the cache may be where apt's own user cannot write
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Debug::NoLocking": "1",
    }
    return ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]


def _is_part(name: str) -> bool:
    """Tell whether package file *name* belongs into a prefix: programs and libraries, not what maintainer scripts need."""
    return name.startswith(_PROGRAMS) or (name.startswith(_LIBRARIES) and not name.startswith(_LEFT_OUT))


def _relocate(path: Path) -> None:
    """Make the programs in *path* use the loader and libraries of *path*, and the scripts their directories."""
    loader = _one(path, "ld-linux*.so.*")
    libraries = sorted({str(_one(path, name).parent) for name in ("libc.so.6", "libstdc++.so.6")})
    patchelf = [str(loader), "--library-path", ":".join(libraries), str(path / "usr/bin/patchelf")]
    calls = []
    for file in _elf_files([path / "usr/lib/erlang", path / "usr/bin"]):
        interpreter = [] if file.suffix == ".so" else ["--set-interpreter", str(loader)]
        if file.name != "patchelf":
            calls.append(
                [*patchelf, *interpreter, "--force-rpath", "--set-rpath", ":".join(libraries), str(file)]
            )
    _in_parallel(calls)
    erlang = path / "usr/lib/erlang"
    for script in [erlang / "bin/erl", erlang / "bin/start", *erlang.glob("erts-*/bin/erl")]:
        if script.exists():
            script.write_text(script.read_text().replace("/usr/lib/erlang", str(erlang)))
    for script in path.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-defaults"):
        script.write_text(re.sub(r"(?m)^SYS_PREFIX=.*", f"SYS_PREFIX={path}", script.read_text()))


def _one(path: Path, pattern: str) -> Path:
    """Return the one real file below *path* that matches; symbolic links may point outside, at the machine's own."""
    for found in path.rglob(pattern):
        if found.is_file() and not found.is_symlink():
            return found
        if found.is_symlink() and found.resolve().is_relative_to(path):
            return found.resolve()
    raise InstallError(f"Debian's packages brought no {pattern}.")


def _elf_files(directories: Iterable[Path]) -> Iterator[Path]:
    """Yield the real ELF files below *directories*."""
    for directory in directories:
        for file in directory.rglob("*"):
            if file.is_file() and not file.is_symlink():
                with file.open("rb") as opened:
                    if opened.read(4) == b"\x7fELF":
                        yield file


def _rabbitmq_version(path: Path) -> str:
    """Return the version of the RabbitMQ in *path*, after its Erlang has shown that it runs."""
    erl = path / "usr/bin/erl"
    run([str(erl), "-noinput", "-eval", "crypto:start(), halt()."])
    return _one_of(path.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")).name.partition("-")[2]


def _one_of(paths: Iterator[Path]) -> Path:
    found = next(paths, None)
    if found is None:
        raise InstallError("Debian's packages brought no RabbitMQ.")
    return found


def redis_version(server: Path) -> str:
    """Return the version that *server* says it is."""
    match = re.search(r"v=([0-9.]+)", run([str(server), "--version"]))
    return match.group(1) if match else "unknown"


def run(command: list[str]) -> str:
    """Return what *command* prints; an InstallError carries the last lines it complained with."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        close_fds=False,  # the lock goes along
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode:
        complaint = " ".join((result.stderr or result.stdout).split("\n")[-5:]).strip()
        raise InstallError(
            f"{Path(command[0]).name} failed ({result.returncode}): {_without_credentials(complaint)}"
        )
    return result.stdout


def _in_parallel(commands: list[list[str]]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(run, commands):
            pass


def _without_credentials(text: str) -> str:
    """Mask user and password of every URL in *text*."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)


def _report(text: str) -> None:
    """Show *text* on standard error, over the step before when that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    else:
        sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
    sys.stderr.flush()
