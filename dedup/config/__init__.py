"""The settings of the command line."""

from dedup.config.settings import (
    DEAD_LETTER_FIELDS,
    DEFAULT_FILE,
    FIELDS,
    MOVE_FIELDS,
    Settings,
    flag,
    variable,
)
from dedup.config.sources import FILE_VARIABLE, load

__all__ = [
    "DEAD_LETTER_FIELDS",
    "DEFAULT_FILE",
    "FIELDS",
    "FILE_VARIABLE",
    "MOVE_FIELDS",
    "Settings",
    "flag",
    "load",
    "variable",
]
