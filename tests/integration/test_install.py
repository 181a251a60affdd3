"""Servers are found or assembled as promised, from this machine's own packages, and refused with one clear sentence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dedup.testing import assembly, install
from dedup.testing.assembly import DEFAULT_VERSION, InstallError, ensure_prefix
from dedup.testing.install import find_rabbitmq, find_redis

COMMAND = [sys.executable, "-m", "dedup.testing.install"]


@pytest.fixture
def prefix() -> assembly.Prefix:
    """Return the default prefix; skip where it cannot be assembled."""
    try:
        return ensure_prefix()
    except InstallError as error:
        pytest.skip(str(error))


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let prefixes go to an empty directory."""
    monkeypatch.setenv("DEDUP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def apt_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the directory that apt reads its sources from during this test."""
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get")
    sources = tmp_path / "sources.list.d"
    sources.mkdir()
    configuration = tmp_path / "apt.conf"
    configuration.write_text(f'Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "{sources}";')
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    return sources


def test_assembled_prefix_is_found_without_any_tool(
    prefix: assembly.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time needs neither apt-get nor the network: the stamp is enough."""
    monkeypatch.setenv("PATH", "")
    assert ensure_prefix() == prefix
    assert find_rabbitmq(DEFAULT_VERSION).version == prefix.rabbitmq_version
    assert find_redis().server.exists()


def test_prefix_needs_no_library_of_the_machine(prefix: assembly.Prefix) -> None:
    """Every library that Redis and Erlang load lies in the prefix, so a suite newer than the machine runs."""
    (loader,) = [path for path in prefix.path.rglob("ld-linux*.so.*") if not path.is_symlink()]
    erlang = next(prefix.path.glob("usr/lib/erlang/erts-*/bin/beam.smp"))
    crypto = next(prefix.path.glob("usr/lib/erlang/lib/crypto-*/priv/lib/crypto.so"))
    for program in (prefix.path / "usr/bin/redis-server", prefix.path / "usr/bin/redis-cli", erlang, crypto):
        listing = subprocess.run(
            [loader, "--list", program], capture_output=True, text=True, check=True
        ).stdout
        libraries = [line.partition("=>")[2].split()[0] for line in listing.splitlines() if "=>" in line]
        assert libraries
        assert not [path for path in libraries if not path.startswith(str(prefix.path))]


def test_moved_prefix_is_not_trusted(prefix: assembly.Prefix, empty_cache: Path) -> None:
    """Programs know their own path, so a copied stamp, or one of another recipe, counts for nothing."""
    copy = empty_cache / prefix.path.name
    copy.mkdir(parents=True)
    stamp = json.loads((prefix.path / "complete.json").read_text())
    (copy / "complete.json").write_text(json.dumps(stamp))
    assert assembly.complete_prefix(copy) is None
    (copy / "complete.json").write_text(json.dumps({**stamp, "path": str(copy)}))
    assert assembly.complete_prefix(copy) is not None
    (copy / "complete.json").write_text(json.dumps({**stamp, "path": str(copy), "recipe": -1}))
    assert assembly.complete_prefix(copy) is None


@pytest.mark.long
@pytest.mark.usefixtures("prefix")
def test_interrupted_assembly_is_done_again_once_by_two_processes(empty_cache: Path) -> None:
    """After SIGKILL in the middle two processes that start at once end with one whole prefix, assembled by one of them."""
    with subprocess.Popen([*COMMAND, DEFAULT_VERSION], stderr=subprocess.PIPE, text=True) as killed:
        assert killed.stderr is not None
        if not any("unpacking" in line for line in killed.stderr) and "CI" not in os.environ:
            pytest.skip("needs the network: Debian's mirror did not answer")
        killed.send_signal(signal.SIGKILL)
    assert not (empty_cache / f"rabbitmq-{DEFAULT_VERSION}/complete.json").exists()
    both = [
        subprocess.Popen([*COMMAND, DEFAULT_VERSION], stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sum(text.count("downloading") for text in told) == 1
    redis = find_redis()
    assert redis.server.is_relative_to(empty_cache)
    assert (
        redis.version
        in subprocess.run([redis.server, "--version"], capture_output=True, text=True, check=True).stdout
    )


def test_unknown_version_is_refused() -> None:
    """A version without a suite names those that have one."""
    with pytest.raises(InstallError, match=r"RabbitMQ 2\.8 is not one of 3\.10, 4\.0, 4\.3"):
        ensure_prefix("2.8")


@pytest.mark.usefixtures("empty_cache")
def test_missing_tools_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be assembled and nothing is installed, one message says why and what to do."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(install, "_PACKAGED", Path("/nonexistent"))
    expected = (
        r"apt-get is missing here\. .*DEDUP_AMQP_URL and DEDUP_REDIS_URL, or install them .*rabbitmq-server"
    )
    with pytest.raises(InstallError, match=expected):
        find_rabbitmq()
    with pytest.raises(InstallError, match=expected):
        find_redis()


@pytest.mark.usefixtures("empty_cache", "apt_configuration")
def test_machine_without_a_debian_mirror_says_so() -> None:
    """No mirror is ever made up: apt must know one."""
    with pytest.raises(InstallError, match="apt on this machine knows no Debian mirror"):
        ensure_prefix()


@pytest.mark.usefixtures("empty_cache")
def test_failing_mirror_is_named_without_its_password(apt_configuration: Path) -> None:
    """A mirror that does not answer is an error that names it; credentials in its address stay secret."""
    (apt_configuration / "one.list").write_text("deb http://me:secret@127.0.0.1:9/debian trixie main\n")
    with pytest.raises(InstallError, match=r"http://\*\*\*@127\.0\.0\.1:9/debian: apt-get failed") as raised:
        ensure_prefix()
    assert "secret" not in str(raised.value)


def test_mirrors_come_from_both_formats_of_apt(apt_configuration: Path) -> None:
    """Debian's mirrors are found in .list and .sources files; other archives and other components are not Debian's."""
    (apt_configuration / "a.list").write_text(
        "deb http://one.example/archive trixie main\n"
        "deb http://tool.example/apt bookworm stable\n"
        "deb http://ubuntu.example/ubuntu noble main\n"
        "deb-src http://source.example/debian trixie main\n"
    )
    (apt_configuration / "b.sources").write_text(
        "Types: deb\nURIs: http://two.example/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib\n"
    )
    assert assembly._mirrors() == ["http://two.example/debian", "http://one.example/archive"]


@pytest.mark.long
@pytest.mark.usefixtures("apt_configuration")
def test_installed_servers_are_the_fallback(
    prefix: assembly.Prefix, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed is used where nothing can be assembled, unless another version was asked for."""
    programs = f"{prefix.path}/usr/lib/rabbitmq/bin:{prefix.path}/usr/bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(empty_cache))
    monkeypatch.setattr(install, "_PACKAGED", Path("/nonexistent"))
    rabbitmq = find_rabbitmq()
    assert (rabbitmq.origin, rabbitmq.version) == ("installed", prefix.rabbitmq_version)
    assert find_rabbitmq(DEFAULT_VERSION).version == prefix.rabbitmq_version
    assert find_redis().origin == "installed"
    with pytest.raises(InstallError, match=f"The installed RabbitMQ is {prefix.rabbitmq_version}"):
        find_rabbitmq("3.10")


def test_command_says_where_the_servers_are(prefix: assembly.Prefix) -> None:
    """The command that make calls prints what was found; servers given by URL need nothing."""
    ready = subprocess.run([*COMMAND, DEFAULT_VERSION], capture_output=True, text=True, check=True)
    assert f"RabbitMQ {prefix.rabbitmq_version} assembled in {prefix.path}" in ready.stdout
    given = {**os.environ, "DEDUP_AMQP_URL": "amqp://x", "DEDUP_REDIS_URL": "redis://x", "PATH": ""}
    told = subprocess.run(COMMAND, capture_output=True, text=True, check=True, env=given).stdout
    assert told == "RabbitMQ and Redis are given by DEDUP_AMQP_URL and DEDUP_REDIS_URL\n"
