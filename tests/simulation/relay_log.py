"""Keep what a relay of a small world tells the audit, and say what an audit would make of it."""

from __future__ import annotations

from collections.abc import Callable

from dedup.core.steps import Outgoing, Record
from dedup.core.window import Verdict
from tests.simulation.relay_state import Log, World

#: One more "forwarded" than this makes no difference.
_FORWARDED_MAX = 2


def told(log: Log, record: Record, named: Callable[[str, int], int]) -> Log:
    """
    Return *log* with *record*; a row that is there already is not there twice.

    Args:
        named: The message of a publisher id and a sequence.
    """
    ends = dict(log.ends)
    end = ends.get(record.token, 0)
    hole = log.hole
    if record.offset > end + 1:
        hole = f"rows {end + 1} to {record.offset - 1} of token {record.token} are missing"
    if ends.get(record.before.token, 0) < record.before.offset:
        hole = f"there is no row {record.before}, which came before {record.offset}"
    ends[record.token] = max(end, record.end.offset)
    excused = {*log.excused, *(named(*one) for one in record.recovered)}
    forwarded, dropped = list(log.forwarded), {*log.dropped}
    first = record.offset + len(record.recovered)
    for out in record.rows[max(0, end + 1 - first) :]:
        m = out.arrival.payload
        if _is_dropped(out):
            dropped.add(m)
        elif out.marked:
            excused.add(m)
        elif not out.reason and forwarded.count(m) < _FORWARDED_MAX:
            forwarded.append(m)
    return Log(
        tuple(sorted(ends.items())),
        tuple(sorted(forwarded)),
        tuple(sorted(excused)),
        tuple(sorted(dropped)),
        hole,
    )


def wrong(world: World, m: int) -> str:
    """
    Say what an audit would say of message *m* that is not so, or nothing.
    """
    log = world.log
    if m in log.dropped and m not in log.forwarded and m not in log.excused:
        return f"the log says that message {m} was dropped and never forwarded"
    if log.forwarded.count(m) > 1 and world.target.count((m, False)) <= 1:
        return f"the log says that message {m} came through twice"
    return ""


def missing(world: World, m: int) -> str:
    """
    Say that message *m* is in the target and the log does not know, or nothing.
    """
    known = m in world.log.forwarded or m in world.log.excused
    there = any(message == m for message, _ in world.target)
    return f"message {m} is in the target, and the log does not say so" if there and not known else ""


def _is_dropped(out: Outgoing) -> bool:
    return out.verdict is Verdict.DUPLICATE and not out.reason
