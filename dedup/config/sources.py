"""
Read the settings from dedup.toml, the environment and flags, in rising order.

Every value is checked where it is read, so that a message can name the file, variable or flag it came
from; the values of URLs are never in one.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from dedup.config.kinds import parsed
from dedup.config.settings import DEFAULT_FILE, FIELDS, Settings, flag, variable
from dedup.errors import ConfigError

#: Names another file.
FILE_VARIABLE: Final = "DEDUP_CONFIG"


def load(
    flags: Mapping[str, object],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """
    Read file, environment and flags; the later goes before the earlier.

    Args:
        flags: By setting; None where a flag was not given.
        file: Must be there when given; else the one of DEDUP_CONFIG must, else dedup.toml may.

    Raises:
        ConfigError: a value that cannot be, an unknown name, a file that cannot be read.
    """
    values: dict[str, Any] = {}
    for where, name, value in _sources(flags, file, environ):
        values[name] = parsed(FIELDS[name], value, where=where)
    return Settings(**values)


def _sources(
    flags: Mapping[str, object], file: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, str, object]]:
    """
    Yield each value with what to call its place, the weakest first.
    """
    path = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    if path is not None or DEFAULT_FILE.exists():
        path = path or DEFAULT_FILE
        for key, value in _read(path).items():
            yield f"{path}: {key}", _known(key, path), value
    for name, attribute in FIELDS.items():
        # "dedup demo" knows its servers as DEDUP_AMQP_URL and DEDUP_REDIS_URL: these serve here too.
        spellings = [f"{variable(name)}_URL"] if attribute.metadata["secret"] else []
        for spelling in (*spellings, variable(name)):
            if environ.get(spelling):
                yield spelling, name, environ[spelling]
    for name, value in flags.items():
        if value not in (None, ()):
            yield flag(name), name, value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _known(key: str, path: Path) -> str:
    name = key.replace("-", "_")
    if name in FIELDS:
        return name
    near = get_close_matches(name, FIELDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FIELDS)}"
    raise ConfigError(f"{path}: unknown setting {key!r}; {hint}")
