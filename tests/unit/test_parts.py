"""Which markers run between the messages of a confirmed batch, and what they tell when its relay is dead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.parts import Fate, fate, markers_between, order_of, still_led, united
from dedup.core.records import Batch, Leadership, Marker, MarkerKind, Parts, Sequences, by_publisher
from dedup.core.steps import Arrival, Outgoing
from dedup.core.window import Verdict

LEADER = Leadership("rabbit@a", 3, 70)
ORDER = (("p", 4), ("q", 9), ("p", 3), ("p", 5))
FIRST = Marker(MarkerKind.FIRST, Batch(7, 0, False))


def intent(order: Sequence[tuple[str, int]] = ORDER, every: int = 1) -> Batch:
    """Return batch 2 of relay 7, forwarded with confirms."""
    return Batch(7, 2, False, by_publisher(order), Parts(order, every, LEADER))


def part(count: int, token: int = 7, number: int = 2) -> Marker:
    """Return the marker behind the first *count*."""
    return Marker(MarkerKind.PART, Batch(token, number, False), count)


def outgoing(*verdicts: Verdict) -> list[Outgoing]:
    """Return a message for each verdict, with sequences from 1."""
    return [
        Outgoing(Arrival(n, False, None if verdict is Verdict.UNTRACKED else "p", n), verdict)
        for n, verdict in enumerate(verdicts, start=1)
    ]


NEW, UNTRACKED, TOO_OLD = Verdict.NEW, Verdict.UNTRACKED, Verdict.TOO_OLD


# -- markers between messages ---------------------------------------------------------------------


def test_a_transaction_needs_no_markers_in_between() -> None:
    """Its one marker is there or the batch is not."""
    assert markers_between(outgoing(NEW), Batch(7, 2, True, {"p": (1,)})) == []


def test_the_intent_goes_ahead_of_a_confirmed_batch() -> None:
    """Redis may forget it; parts follow only where they prove something."""
    plain = evolve(intent(), parts=None)
    assert markers_between(outgoing(NEW, NEW), plain) == [(0, Marker(MarkerKind.INTENT, plain))]


def test_a_marker_follows_each_message() -> None:
    """It carries a number and nothing else: the intent has the order."""
    batch = intent()
    assert markers_between(outgoing(NEW, NEW), batch) == [
        (0, Marker(MarkerKind.INTENT, batch)),
        (1, part(1)),
        (2, part(2)),
    ]


def test_a_marker_follows_so_many_messages() -> None:
    """What is behind the last of them has none."""
    markers = markers_between(outgoing(*[NEW] * 7), intent(every=3))
    assert [(position, marker.count) for position, marker in markers] == [(0, 0), (3, 3), (6, 6)]


def test_only_what_is_new_counts() -> None:
    """Untracked and quarantined messages stand in between and have no place in the order."""
    sent = outgoing(UNTRACKED, NEW, TOO_OLD, NEW, UNTRACKED, NEW)
    assert [(p, m.count) for p, m in markers_between(sent, intent())] == [(0, 0), (2, 1), (4, 2), (6, 3)]
    assert [(p, m.count) for p, m in markers_between(sent, intent(every=3))] == [(0, 0), (6, 3)]
    assert order_of(sent) == [("p", 2), ("p", 4), ("p", 6)]


# -- what became of it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("markers", "every", "believed", "doubtful"),
    [
        ((), 1, {}, {"p": (4,)}),
        ((part(1),), 1, {"p": (4,)}, {"q": (9,)}),
        ((part(1), part(2)), 1, {"p": (4,), "q": (9,)}, {"p": (3,)}),
        ((part(2), part(1)), 1, {"p": (4,), "q": (9,)}, {"p": (3,)}),
        ((part(4),), 1, {"p": (3, 4, 5), "q": (9,)}, {}),
        ((), 3, {}, {"p": (3, 4), "q": (9,)}),
        ((part(3),), 3, {"p": (3, 4), "q": (9,)}, {"p": (5,)}),
        ((part(99),), 1, {"p": (3, 4, 5), "q": (9,)}, {}),
    ],
    ids=["none", "one", "two", "any order", "all", "none of three", "three", "more than there are"],
)
def test_what_stands_before_a_marker_is_believed_and_the_next_part_doubted(
    markers: tuple[Marker, ...], every: int, believed: Sequences, doubtful: Sequences
) -> None:
    """A dead channel has carried out a prefix: behind a missing marker there is nothing."""
    assert fate(intent(every=every), (FIRST, *markers), LEADER) == Fate(believed, doubtful)


@pytest.mark.parametrize(
    "now",
    [
        None,
        Leadership("rabbit@b", 4, 90),
        Leadership("rabbit@b", 3, 90),
        Leadership("rabbit@a", 5, 90),
        Leadership("rabbit@a", 3, 69),
    ],
    ids=["nobody knows", "another", "another node", "the same again", "declared anew"],
)
def test_without_the_same_leader_everything_is_in_doubt(now: Leadership | None) -> None:
    """What was handed to the one before may be lost, or may be there."""
    assert fate(intent(), (FIRST, part(2)), now) == Fate({}, intent().sequences)


def test_the_same_leader_later_proves_as_much() -> None:
    """Its log has grown, as it does."""
    assert fate(intent(), (part(4),), Leadership("rabbit@a", 3, 700)).believed == intent().sequences


@pytest.mark.parametrize(
    "markers",
    [(), (Marker(MarkerKind.FOUNDING, Batch(7, 0)),), (part(2, token=8),)],
    ids=["none", "persistent", "of another relay"],
)
def test_without_a_marker_of_its_relay_everything_is_in_doubt(markers: tuple[Marker, ...]) -> None:
    """The broker has restarted and forgotten them: that one is missing says nothing."""
    assert fate(intent(), markers, LEADER) == Fate({}, intent().sequences)


def test_markers_of_other_batches_count_for_nothing() -> None:
    """They witness that the broker has not restarted, and no more."""
    assert fate(intent(), (part(4, number=1),), LEADER) == Fate({}, {"p": (4,)})


def test_an_intent_without_parts_is_in_doubt() -> None:
    """Nobody knew who leads when it was forwarded."""
    plain = evolve(intent(), parts=None)
    assert fate(plain, (FIRST, part(2)), LEADER) == Fate({}, plain.sequences)


@given(
    order=st.lists(st.tuples(st.sampled_from("pq"), st.integers(1, 30)), unique=True, max_size=12),
    every=st.integers(1, 5),
    data=st.data(),
)
def test_a_channel_that_dies_anywhere_is_never_misjudged(
    order: list[tuple[str, int]], every: int, data: st.DataObject
) -> None:
    """Whatever was published and whichever markers survive of it: believed is there, and what is there is named."""
    batch = intent(order, every)
    sent = [Outgoing(Arrival(1, False, name, number), NEW) for name, number in order]
    cut = data.draw(st.integers(0, len(sent)))
    marked_last = data.draw(st.booleans(), "whether the marker behind the last message got through too")
    markers = [marker for at, marker in markers_between(sent, batch) if at < cut + marked_last]
    found = fate(batch, [FIRST, *markers], LEADER)
    believed, doubtful = (
        {(name, number) for name, numbers in sequences.items() for number in numbers}
        for sequences in (found.believed, found.doubtful)
    )
    there = set(order[:cut])
    assert believed <= there <= believed | doubtful
    assert len(doubtful) <= every
    assert not believed & doubtful


# -- helpers --------------------------------------------------------------------------------------


def test_nobody_is_known_to_lead_without_two_surveys() -> None:
    """One that failed leaves a gap in which anybody may have led."""
    assert still_led(LEADER, LEADER)
    assert not still_led(None, LEADER)
    assert not still_led(LEADER, None)
    assert not still_led(None, None)


def test_sequences_are_united_each_once() -> None:
    """Of several relays that died one after the other."""
    assert united({"p": (1, 3)}, {}, {"p": (2, 3), "q": (1,)}) == {"p": (1, 2, 3), "q": (1,)}
