"""Install the packages of a Node program into the cache, with the Node that is there."""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
from pathlib import Path

from attrs import frozen

from dedup.testing.assembly import InstallError, cache_directory, locked, run


@frozen
class NodeProgram:
    """How to run a program of Node."""

    node: Path
    #: What its environment's NODE_PATH says.
    modules: Path


def ensure_node_modules(directory: Path) -> NodeProgram:
    """
    Return the packages that package.json and package-lock.json of *directory* name, installed where that was not done yet.

    Raises:
        InstallError: there is no Node, or npm cannot install them; the message says why.
    """
    node, npm = _find("node"), _find("npm")
    files = [directory / "package.json", directory / "package-lock.json"]
    contents = [file.read_bytes() for file in files]
    path = cache_directory() / f"node-{hashlib.sha256(b''.join(contents)).hexdigest()[:16]}"
    complete = path / "complete"
    if not complete.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock"), print):
            if not complete.exists():
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir()
                for file, content in zip(files, contents, strict=True):
                    (path / file.name).write_bytes(content)
                run([str(npm), "ci", "--prefix", str(path), "--ignore-scripts", "--no-audit", "--no-fund"])
                complete.touch()
    return NodeProgram(node, path / "node_modules")


def _find(name: str) -> Path:
    """
    Return the program *name*: of the wheel that the extra "dev" brings, else the installed one.
    """
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise InstallError(
            f"{name} is missing: pip install 'dedup[dev]', which brings Node, or install Node 18 or newer."
        )
    return Path(found)
