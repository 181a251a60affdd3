"""
Read who leads a quorum queue, and in which term, so that a later reading tells whether that has changed.

Where it is read, and where not
    The management API's ``GET /api/queues/quorum/VHOST/QUEUE/status`` (RabbitMQ 3.13.7 and later; 3.10 answers 400) asks
    each member's node at the moment of the call. State and term are values that the member's Raft server
    writes when they change, a term after it is on disk; nothing in them is collected or cached, and a busy server does not
    delay them. Every other source is worse: ``leader`` of ``GET /api/queues/VHOST/QUEUE`` comes without a term and follows an
    election later; Prometheus' ``raft_term_total`` is written every 5 seconds up to 4.2 (after the first election of a queue it
    said term 0 on 3.10.8 and 4.0.5), and from 4.3 on, as ``raft_term``, it is fresh but knows one node alone. AMQP tells nothing.
    While a member's node is down 4.0.5 answers 500, so nothing is known there; 4.3.6 tells of the others. A reading takes about
    5 ms; a node that hangs makes it wait, 2 seconds on 4.3.6, on 4.0.5 until the request times out.

Why an election cannot hide
    A leader that was deposed and does not know it yet still says "leader" (seen on 4.3.6 when a frozen leader went on: it and its
    successor both said so), so one member proves nothing. But a new leader needs
    a majority that stored the new term before. A reading therefore counts only when more than half of the voters told
    their term, and when the highest of these terms is the leader's own: then no election above it was over when
    the reading began. Membership changes by one voter at a time, and majorities of both sizes meet in one member.
    Terms only rise; a restart of the only node, a killed leader and a transfer of leadership each raise it.

What a reading does not prove
    A queue that was deleted and declared again starts at the first term again. The index of the log's end tells, for it
    only rises within a term, until the new log has become as long as the old one was.
    The same leader and term say that what was sent to this leader in this term *and is committed* will stay. What a dead
    channel sent may still wait uncommitted, and an election *after* the reading loses it: read after a later
    message was confirmed, which enters the log behind everything that was sent to the leader before it.
    A channel may be unaware of an election and send to the old leader: compare only with a reading that was made before
    the channel's first publish to the queue, which looks the leader up, or before a message that has been confirmed.
    Between a channel on one node and a leader on another a broken link loses messages without an election.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from dedup.amqp091.management import Management
from dedup.core import names
from dedup.core.records import Leadership
from dedup.core.steps import Surveyed
from dedup.errors import DedupError


@frozen
class Reading:
    """
    Who leads a quorum queue, and where it has members.
    """

    leadership: Leadership
    #: Nodes with a member of the queue, up or down.
    members: tuple[str, ...]


def read_leadership(
    management: Management,
    vhost: str,
    queue: str,
    *,
    unknown: Callable[[str], None] = lambda _reason: None,
) -> Reading | None:
    """
    Return who leads *queue*; None where that cannot be known now.

    Asks each server of the management API until one answers; takes as long as *management* lets a request take, for each.

    Args:
        unknown: Told why it cannot be known; the reason names no password.
    """
    try:
        rows = management.quorum_status(vhost, queue)
    except DedupError as error:
        unknown(f"{error}; it takes RabbitMQ 3.13.7 or later, and a quorum queue")
        return None
    if rows is None:
        unknown(f"there is no queue {queue!r}")
        return None
    found = conclude(rows)
    if isinstance(found, str):
        unknown(f"queue {queue!r}: {found}")
        return None
    return found


def conclude(rows: Sequence[Mapping[str, Any]]) -> Reading | str:
    """
    Return who leads according to the rows of all members, or why nobody can tell.
    """
    told = [row for row in rows if isinstance(row.get("Term"), int)]
    voters = [row for row in told if row.get("Membership") == "voter"]
    # Whoever did not answer may be a voter.
    if 2 * len(voters) <= len(rows) - len(told) + len(voters):
        return f"only {len(voters)} of its {len(rows)} members told their term"
    highest = max(row["Term"] for row in told)
    leaders = [row for row in voters if row.get("Raft State") == "leader" and row["Term"] == highest]
    if len(leaders) != 1 or not isinstance(leaders[0].get("Last Log Index"), int):
        return f"nobody leads it in term {highest}"
    return Reading(
        Leadership(str(leaders[0]["Node Name"]), highest, leaders[0]["Last Log Index"]),
        tuple(str(row.get("Node Name")) for row in rows),
    )


def survey(
    management: Management, vhost: str, queue: str, unknown: Callable[[str], None], *, ledger: str = ""
) -> Surveyed:
    """
    Answer a relay that asks who leads its target, the quorum queue *queue*.

    Its own node is where the exclusive consumer of the ledger is: the management API tells that up to
    5 seconds late, and until then nothing is local. A queue with one member needs no such look.

    Args:
        unknown: Told why markers of parts would prove nothing; the reason names no password.
        ledger: The relay's; by default that of a guard.
    """
    reading = read_leadership(management, vhost, queue, unknown=unknown)
    if reading is None:
        return Surveyed(None)
    leader = reading.leadership.leader
    if len(reading.members) == 1:
        return Surveyed(reading.leadership)
    try:
        nodes = management.consumer_nodes(vhost, ledger or names.ledger(queue))
    except DedupError as error:
        unknown(f"the node of the own connection cannot be seen: {error}")
        nodes = []
    if nodes and nodes != [leader]:
        unknown(f"queue {queue!r} is led by {leader} and this shim is connected to {', '.join(nodes)}")
    return Surveyed(reading.leadership, local=nodes == [leader])
