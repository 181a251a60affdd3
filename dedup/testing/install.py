"""
Find RabbitMQ and Redis: in a prefix, assembled when need be, or among what is installed.

``python -m dedup.testing.install 4.0`` makes the prefix of one version; see `dedup.testing.assembly`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from attrs import frozen

from dedup.testing.assembly import (
    DEFAULT_VERSION,
    SUITES,
    InstallError,
    cache_directory,
    complete_prefix,
    ensure_prefix,
    redis_version,
    run,
)

#: The scripts of Debian's, Ubuntu's and Fedora's packages; those on the PATH are wrappers that insist on another user.
_PACKAGED = Path("/usr/lib/rabbitmq/bin")
_WHAT_TO_INSTALL = (
    "Give servers with DEDUP_AMQP_URL and DEDUP_REDIS_URL, or install them (Debian, Ubuntu: apt-get install rabbitmq-server "
    "redis-server)."
)


@frozen
class RabbitMQPrograms:
    """Where one RabbitMQ's programs are; *scripts* holds rabbitmq-server, rabbitmqctl and rabbitmq-plugins."""

    version: str
    origin: str
    scripts: Path
    epmd: Path
    search_path: str


@frozen
class RedisPrograms:
    """Where one Redis' programs are."""

    version: str
    origin: str
    server: Path
    cli: Path


def find_rabbitmq(version: str | None = None) -> RabbitMQPrograms:
    """
    Return the programs of RabbitMQ *version*: of a prefix, assembled when need be, else of the installed one.

    Args:
        version: A key of `SUITES`; None takes the default, or any version that is installed.
    Raises:
        InstallError: there is neither; the message says why.
    """
    try:
        prefix = ensure_prefix(version or DEFAULT_VERSION)
    except InstallError as error:
        installed = _installed_rabbitmq()
        if installed is not None and (version is None or installed.version.startswith(f"{version}.")):
            return installed
        found = f" The installed RabbitMQ is {installed.version}." if installed else ""
        raise InstallError(f"{error}{found} {_WHAT_TO_INSTALL}") from error
    return RabbitMQPrograms(
        version=prefix.rabbitmq_version,
        origin=f"assembled in {prefix.path}",
        scripts=prefix.path / "usr/lib/rabbitmq/bin",
        epmd=prefix.path / "usr/bin/epmd",
        search_path=f"{prefix.path}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    )


def find_redis() -> RedisPrograms:
    """
    Return Redis' programs: of a prefix that is there, of the default one, assembled when need be, else the installed ones.

    Raises:
        InstallError: there are none; the message says why.
    """
    ready = (
        complete_prefix(cache_directory() / f"rabbitmq-{version}") for version in (DEFAULT_VERSION, *SUITES)
    )
    prefix = next((found for found in ready if found), None)
    try:
        prefix = prefix or ensure_prefix(DEFAULT_VERSION)
    except InstallError as error:
        server, cli = shutil.which("redis-server"), shutil.which("redis-cli")
        if server is None or cli is None:
            raise InstallError(f"{error} {_WHAT_TO_INSTALL}") from error
        return RedisPrograms(redis_version(Path(server)), "installed", Path(server), Path(cli))
    return RedisPrograms(
        version=prefix.redis_version,
        origin=f"assembled in {prefix.path}",
        server=prefix.path / "usr/bin/redis-server",
        cli=prefix.path / "usr/bin/redis-cli",
    )


def _installed_rabbitmq() -> RabbitMQPrograms | None:
    """Return the RabbitMQ that is installed, if there is one."""
    found = shutil.which("rabbitmq-server")
    if _PACKAGED.is_dir():
        scripts = _PACKAGED
    elif found is not None:
        scripts = Path(found).resolve().parent
    else:
        return None
    epmd = shutil.which("epmd") or next(iter(Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None)
    if epmd is None:
        return None
    version = run([str(scripts / "rabbitmqctl"), "version"]).strip()
    return RabbitMQPrograms(version, "installed", scripts, Path(epmd), os.environ.get("PATH", os.defpath))


def main(versions: list[str]) -> int:
    """Assemble or find every version of *versions*, by default what the tests ask for, and say where each is."""
    if not versions and os.environ.get("DEDUP_AMQP_URL") and os.environ.get("DEDUP_REDIS_URL"):
        print("RabbitMQ and Redis are given by DEDUP_AMQP_URL and DEDUP_REDIS_URL")
        return 0
    selected = [name for name in os.environ.get("DEDUP_TEST_RABBITMQ", "").split(",") if name.strip()]
    problems: dict[str, None] = {}
    wanted: list[str | None] = [*versions] or [name.strip() for name in selected] or [None]
    for version in wanted:
        try:
            rabbitmq = find_rabbitmq(version)
            print(f"RabbitMQ {rabbitmq.version} {rabbitmq.origin}")
        except InstallError as error:
            problems[str(error)] = None
    try:
        redis = find_redis()
        print(f"Redis {redis.version} {redis.origin}")
    except InstallError as error:
        problems[str(error)] = None
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
