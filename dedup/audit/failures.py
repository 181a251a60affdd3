"""Say in a sentence what Spark says in a page: which file is wrong, and what to do about it."""

from __future__ import annotations

import re
from typing import Final

from dedup.audit.storage import FOREIGN

_SENTENCES: Final = (
    (
        re.compile(rf"{FOREIGN}(\S+)"),
        "{0} is no part of an event log: it has rows and no arrivals; move it out of the folder",
    ),
    (
        re.compile(
            r"FAILED_READ_FILE\.PARQUET_COLUMN_DATA_TYPE_MISMATCH\].*?file (\S+)\. .*?column \[(\w+)\]",
            re.DOTALL,
        ),
        "{0} is no part of an event log: its column {1} is of another type; move it out of the folder",
    ),
    (
        re.compile(r"FAILED_READ_FILE[\w.]*\].*?file (\S+?)\.\s", re.DOTALL),
        "cannot read {0}: it is torn, or no Parquet; restore it, or move it away: its records then count as missing",
    ),
    (
        re.compile(r"No FileSystem for scheme \"?(\w+)|fs\.(s3a)\.S3AFileSystem not found"),
        "Spark cannot read {0}:// here: it needs a package for that (s3a: --packages org.apache.hadoop:hadoop-aws:<version>)",
    ),
)


def sentence(error: BaseException) -> str | None:
    """
    Return what is wrong and what to do, or None when Spark's own words are the best there are.
    """
    told = str(error)
    for pattern, text in _SENTENCES:
        found = pattern.search(told)
        if found:
            return text.format(*(group for group in found.groups() if group))
    return None
