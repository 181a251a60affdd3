"""
Hand out ranges: no two owners of a publisher id ever number their messages from the same base.

A range is named by its base shifted right by 32 bits; with the clock in seconds since 2024 that is the same unit, so the
rule is about seconds alone. A new range is above the one before, above what the publisher says it had last, and not
below the clock. The clock is what makes it monotonic when the registry has forgotten everything; yet two owners in one
second need more than a clock, and so does one that registers more often than once a second:

    no range is further than LEAD_S ahead of the clock      whoever wants one waits
    the registry keeps since when it has forgotten nothing  whoever registered before may have had since + LEAD_S
    what it knows of an older time proves nothing           a new range is then above since + LEAD_S

So nothing that was handed out before a loss can be handed out again after it, as long as the clock of the registry's Redis
does not go back across the loss. A first registration right after a loss waits for the next second.
"""

from __future__ import annotations

from attrs import frozen

from dedup.core.identity import RANGE_SIZE

#: How far ranges may run ahead of the clock, one for each registration within a second; seconds.
LEAD_S = 10


@frozen
class Handed:
    """
    The newest range of a publisher id, as far as the registry knows.
    """

    #: 0: none.
    range: int = 0
    #: When it was handed out, in seconds since 2024.
    at_s: int = 0


def next_range(now_s: int, since_s: int, newest: Handed, last: int = 0) -> int | None:
    """
    Return the next range, above everything handed out before; None: ask again when the clock has moved on.

    Args:
        now_s: the clock, in seconds since 2024.
        since_s: since when the registry has forgotten nothing, at most *now_s*.
        newest: what it knows of the publisher id.
        last: the range of the highest sequence that the publisher knows it has used.
    """
    assert 0 <= since_s <= now_s, (since_s, now_s)
    floor = since_s + LEAD_S + 1 if newest.at_s <= since_s else 0
    following = max(newest.range + 1, last + 1, now_s, floor)
    return following if following <= now_s + LEAD_S else None


def base_of(number: int) -> int:
    """
    Return the base of range *number*.
    """
    return number * RANGE_SIZE


def range_of(sequence: int) -> int:
    """
    Return the range that *sequence* is in.
    """
    return sequence // RANGE_SIZE
