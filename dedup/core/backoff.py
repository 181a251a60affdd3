"""Say how long to wait before the next try."""

from __future__ import annotations

#: First delay and the cap, in seconds: a restarted broker is found soon, a dead one is not hammered.
DELAY_S_FIRST = 0.1
DELAY_S_MAX = 10.0
#: Doublings after which every cap is long reached; keeps the power small.
_DOUBLINGS_MAX = 62


def delay_s(
    attempt: int, jitter: float, *, first_s: float = DELAY_S_FIRST, max_s: float = DELAY_S_MAX
) -> float:
    """
    Return the delay before try number *attempt*: exponential, capped, spread by *jitter*.

    Half of the delay is fixed, so a retry never follows at once; the other half is
    spread, so that publishers which lost one broker together come back one by one.

    Args:
        attempt: 0 for the first retry, rising by one with each failure.
        jitter: a random number in [0, 1) from the caller; this function has none of its own.
        first_s: delay of attempt 0 before jitter, above 0.
        max_s: cap before jitter, at least *first_s*.
    """
    assert attempt >= 0, attempt
    assert 0 <= jitter < 1, jitter
    assert 0 < first_s <= max_s, (first_s, max_s)
    full = min(max_s, first_s * 2.0 ** min(attempt, _DOUBLINGS_MAX))
    return full * (1 + jitter) / 2
