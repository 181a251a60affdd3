"""What the members of a quorum queue tell is believed only when an election cannot hide behind it."""

from __future__ import annotations

from typing import Any

import pytest

from dedup.amqp091.leadership import Reading, conclude
from dedup.core.records import Leadership


def row(node: str, state: str, term: int | str, membership: str = "voter", index: int = 7) -> dict[str, Any]:
    """Return what one member tells."""
    return {
        "Node Name": node,
        "Raft State": state,
        "Membership": membership if isinstance(term, int) else "",
        "Last Log Index": index,
        "Term": term,
    }


DOWN = row("c", "noconnection", "")

CASES = {
    "all agree": ([row("a", "leader", 3), row("b", "follower", 3), row("c", "follower", 3)], "a"),
    "one is down": ([row("a", "leader", 3), row("b", "follower", 3), DOWN], "a"),
    "a follower is behind": ([row("a", "leader", 3), row("b", "follower", 2), row("c", "follower", 3)], "a"),
    "a deposed leader is behind": ([row("a", "leader", 2), row("b", "leader", 3), DOWN], "b"),
    "only one": ([row("a", "leader", 1)], "a"),
    "the leader is deposed and does not know": ([row("a", "leader", 2), row("b", "follower", 3), DOWN], None),
    "only the leader answers": ([row("a", "leader", 3), row("b", "nodedown", ""), DOWN], None),
    "one of two": ([row("a", "leader", 3), DOWN], None),
    "an election is under way": ([row("a", "candidate", 4), row("b", "follower", 3), DOWN], None),
    "who cannot vote does not count": (
        [row("a", "leader", 3), row("b", "follower", 3, "promotable"), DOWN],
        None,
    ),
    "who cannot vote is not missed": (
        [row("a", "leader", 3), row("b", "follower", 3), row("d", "follower", 3, "non_voter"), DOWN],
        "a",
    ),
    "who cannot vote knows of a newer term": (
        [row("a", "leader", 3), row("b", "follower", 3), row("d", "follower", 4, "non_voter")],
        None,
    ),
    "nobody": ([], None),
    "something else": ([{"status": "failed"}], None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_reading_counts_only_with_a_majority_behind_the_highest_term(case: str) -> None:
    """A new leader needs a majority in its term, so a majority in an older one rules it out."""
    rows, leader = CASES[case]
    found = conclude(rows)
    assert (found.leadership.leader if isinstance(found, Reading) else None) == leader, found


@pytest.mark.parametrize(
    ("later", "holds"),
    [
        (Leadership("a", 3, 9), True),
        (Leadership("a", 3, 7), True),
        (Leadership("b", 3, 9), False),
        (Leadership("a", 4, 9), False),
        (Leadership("a", 3, 6), False),
    ],
)
def test_leadership_holds_with_the_same_leader_and_term_and_a_log_no_shorter(
    later: Leadership, *, holds: bool
) -> None:
    """A log that became shorter within a term is that of another queue of the same name."""
    assert later.holds_since(Leadership("a", 3, 7)) is holds
