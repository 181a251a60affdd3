"""Turn what a caller may wait into a time of the monotonic clock, and back."""

from __future__ import annotations

import time

from dedup.core import inputs


def deadline_of(timeout: float | None) -> float | None:
    """
    Return when a *timeout* that begins now is over; None: never.

    Raises:
        InvalidMessageError: neither None nor a positive, finite number of seconds.
    """
    seconds = inputs.check_timeout(timeout)
    return None if seconds is None else time.monotonic() + seconds


def left_s(deadline: float | None) -> float | None:
    """
    Return how long it is until then, never below zero; None: for ever.
    """
    return None if deadline is None else max(0.0, deadline - time.monotonic())
