"""Cut a batch that is forwarded with confirms into parts, and tell from their markers what is in the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, frozen

from dedup.core.records import Batch, Leadership, Marker, MarkerKind, Sequences, by_publisher
from dedup.core.steps import Outgoing, Record
from dedup.core.window import Verdict


def order_of(outgoing: Iterable[Outgoing]) -> list[tuple[str, int]]:
    """
    Return publisher id and sequence of what is new in *outgoing*, as published; of a re-entry its key.
    """
    return [
        known_by for out in outgoing if _is_remembered(out) and (known_by := out.arrival.known_by) is not None
    ]


def _is_remembered(out: Outgoing) -> bool:
    return out.verdict is Verdict.NEW or (
        out.verdict is Verdict.RETURNING and out.arrival.reentry is not None
    )


def markers_between(outgoing: Sequence[Outgoing], intent: Batch) -> list[tuple[int, Marker]]:
    """
    Return the markers to publish between *outgoing*: behind how many of them, and which.

    A transaction needs none. With confirms the intent goes ahead, and parts follow where they prove something.
    """
    if intent.exact:
        return []
    markers = [(0, Marker(MarkerKind.INTENT, intent))]
    if intent.parts is None:
        return markers
    batch = evolve(intent, sequences={}, parts=None)
    count = 0
    for position, out in enumerate(outgoing, start=1):
        if _is_remembered(out):
            count += 1
            if count % intent.parts.every == 0:
                markers.append((position, Marker(MarkerKind.PART, batch, count)))
    return markers


def marker_behind(intent: Batch, record: Record | None) -> Marker:
    """
    Return the marker to publish when all of *intent*, and its record, are stored.
    """
    logged = intent.logged if record is None else record.end
    return Marker(MarkerKind.BATCH, evolve(intent, parts=None, logged=logged))


def still_led(before: Leadership | None, now: Leadership | None) -> bool:
    """
    Say whether it is known that nobody else has led the target between two surveys.
    """
    return before is not None and now is not None and now.holds_since(before)


@frozen
class Fate:
    """
    What became of an intent that was forwarded with confirms and not settled.
    """

    #: Published before the newest marker.
    believed: Sequences
    #: May be in the target; the rest is not.
    doubtful: Sequences


def fate(intent: Batch, markers: Iterable[Marker], leadership: Leadership | None) -> Fate:
    """
    Tell from the markers of its relay how far a batch got.

    A channel that dies has carried out an exact prefix of what was sent on it: what stands before a
    marker that is there was published, what stands behind one that is missing was not. That holds while
    the target's leader is the same, and says nothing when no marker of the relay is left: the broker
    has restarted.

    Args:
        leadership: Who leads the target now; None: nobody knows.
    """
    own = [
        marker
        for marker in markers
        if marker.batch.token == intent.token and marker.kind is not MarkerKind.FOUNDING
    ]
    parts = intent.parts
    if parts is None or not own or not still_led(parts.leadership, leadership):
        return Fate({}, intent.sequences)
    count = max(
        (m.count for m in own if m.kind is MarkerKind.PART and m.batch.number == intent.number), default=0
    )
    return Fate(by_publisher(parts.order[:count]), by_publisher(parts.order[count : count + parts.every]))


def united(*several: Sequences) -> Mapping[str, tuple[int, ...]]:
    """
    Return all of *several*, each sequence once.
    """
    found: dict[str, set[int]] = {}
    for sequences in several:
        for name, numbers in sequences.items():
            found.setdefault(name, set()).update(numbers)
    return {name: tuple(sorted(numbers)) for name, numbers in found.items()}
