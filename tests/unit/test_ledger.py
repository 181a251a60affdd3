"""Which markers a relay keeps in the ledger, and which it lets go."""

from __future__ import annotations

from dedup.core.ledger import Ledger
from dedup.core.records import Batch, Marker, MarkerKind

TOKEN = 7


def marker(number: int, kind: MarkerKind = MarkerKind.BATCH, token: int = TOKEN) -> Marker:
    """Return a marker of the own token."""
    return Marker(kind, Batch(token, number))


def opened(*markers: Marker | None, keep_s: float = 5.0) -> Ledger:
    """Return a ledger of the relay 7 that holds *markers* at tags 1, 2, ..."""
    ledger = Ledger(keep_s)
    ledger.token = TOKEN
    for tag, held in enumerate(markers, start=1):
        ledger.add(tag, held)
    return ledger


def test_only_a_transient_marker_of_the_own_token_is_ones_own() -> None:
    """It is the sign that the ledger has been read to its end."""
    ledger = opened()
    assert not ledger.add(1, None)
    assert not ledger.add(2, marker(1, token=6))
    assert not ledger.add(3, marker(1, MarkerKind.FOUNDING))
    assert ledger.add(4, marker(1, MarkerKind.FIRST))
    assert ledger.add(5, marker(2))
    assert len(ledger) == 5
    assert [m.batch.number for m in ledger.markers()] == [1, 1, 1, 2]


def test_nothing_goes_before_redis_has_it_for_long_enough() -> None:
    """A marker repairs a Redis that loses its newest writes; afterwards it goes, once."""
    ledger = opened(marker(1), marker(2), marker(3))
    ledger.saved(2, 100.0)
    assert ledger.release(104.9) == ()
    assert ledger.release(105.0) == (1, 2)
    assert ledger.release(105.0) == ()
    assert ledger.release(1e9) == ()


def test_the_newest_own_marker_stays() -> None:
    """As long as it is there, the broker has not restarted: it is never let go."""
    ledger = opened(marker(1), marker(2))
    ledger.saved(2, 0.0)
    assert ledger.release(1e9) == (1,)
    ledger.add(3, marker(3))
    ledger.saved(3, 1e9)
    assert ledger.release(2e9) == (2,)
    assert len(ledger) == 1


def test_the_newest_founding_marker_stays() -> None:
    """It is how a Redis that was emptied is noticed; an older one goes."""
    founding = MarkerKind.FOUNDING
    ledger = opened(marker(0, founding, 5), marker(0, founding), marker(1), marker(2))
    ledger.saved(2, 0.0)
    assert ledger.release(1e9) == (1, 3)
    assert [m.kind for m in ledger.markers()] == [founding, MarkerKind.BATCH]


def test_what_is_no_marker_goes_with_its_surroundings() -> None:
    """Foreign messages prove nothing, but the oldest goes first: nothing is skipped that is not durable."""
    ledger = opened(None, marker(1), None, marker(2), None)
    ledger.saved(1, 0.0)
    assert ledger.release(10.0) == (1, 2, 3)
    ledger.add(6, marker(3))
    ledger.saved(3, 20.0)
    assert ledger.release(30.0) == (4, 5)


def test_a_batch_that_is_not_durable_holds_back_what_follows() -> None:
    """Markers go without a hole, so that recovery can tell a lost batch from a released one."""
    ledger = opened(marker(2), marker(1), marker(3))
    ledger.saved(1, 0.0)
    assert ledger.release(10.0) == ()


def test_markers_of_relays_before_go_like_the_own() -> None:
    """Older tokens are released by batch number too."""
    ledger = opened(marker(1, token=5), marker(2, MarkerKind.FIRST, 6), marker(2, MarkerKind.FIRST))
    ledger.saved(2, 0.0)
    assert ledger.release(5.0) == (1, 2)


def test_a_batch_saved_again_does_not_begin_anew() -> None:
    """The time counts from the first write of a batch: the next intent is written with the same number."""
    ledger = opened(marker(1), marker(2, MarkerKind.FIRST))
    for now_s in (0.0, 4.0, 4.9):
        ledger.saved(1, now_s)
    assert ledger.release(5.0) == (1,)


def test_what_redis_lost_has_to_last_anew() -> None:
    """Markers stay until the state that was written again has been there for long enough."""
    ledger = opened(marker(1), marker(2), marker(2, MarkerKind.FIRST))
    ledger.saved(1, 0.0)
    ledger.saved(2, 4.0)
    ledger.lost()
    assert ledger.release(100.0) == ()
    ledger.saved(2, 100.0)
    assert ledger.release(104.9) == ()
    assert ledger.release(105.0) == (1, 2)


def test_before_anything_is_saved_nothing_goes() -> None:
    """Batch 0 counts as saved only when Redis says so."""
    ledger = opened(marker(0, MarkerKind.FIRST, 5), marker(0, MarkerKind.FIRST))
    assert ledger.release(1e9) == ()
    ledger.saved(0, 0.0)
    assert ledger.release(1e9) == (1,)


def part(number: int, count: int, token: int = TOKEN) -> Marker:
    """Return the marker of a part."""
    return Marker(MarkerKind.PART, Batch(token, number, False), count)


def test_markers_of_own_parts_go_as_soon_as_redis_has_their_batch() -> None:
    """They say nothing of it any more; nothing in front of them holds them back, and there are many."""
    ledger = opened(marker(1, MarkerKind.INTENT), part(1, 1), part(1, 2), marker(2), part(2, 1))
    assert len(ledger) == 5
    ledger.saved(1, 0.0)
    assert ledger.release(0.1) == (2, 3)
    assert ledger.release(0.1) == ()
    ledger.saved(2, 0.2)
    assert ledger.release(0.3) == (5,)
    assert len(ledger) == 2


def test_a_marker_of_an_own_part_is_ones_own_and_witnesses_nothing_later() -> None:
    """It shows that the ledger was read to its end, but it goes: another marker has to be the witness."""
    ledger = opened(marker(0, MarkerKind.FIRST))
    assert ledger.add(2, part(1, 1))
    assert ledger.markers() == [marker(0, MarkerKind.FIRST)]
    ledger.saved(1, 0.0)
    assert ledger.release(1e9) == (2,), "the first marker stays"


def test_markers_of_parts_of_relays_before_stay_to_be_read() -> None:
    """They tell recovery how far a batch got, and go with the batches around them."""
    ledger = opened(marker(1, MarkerKind.INTENT, 5), part(1, 1, 5), marker(1, MarkerKind.FIRST))
    assert [m.kind for m in ledger.markers()] == [MarkerKind.INTENT, MarkerKind.PART, MarkerKind.FIRST]
    ledger.saved(1, 0.0)
    assert ledger.release(4.9) == ()
    assert ledger.release(5.0) == (1, 2)


def test_an_intent_is_kept_as_long_as_the_marker_of_its_batch() -> None:
    """Redis may lose both writes."""
    ledger = opened(marker(1, MarkerKind.INTENT), marker(1), marker(2, MarkerKind.INTENT))
    ledger.saved(1, 0.0)
    assert ledger.release(4.9) == ()
    assert ledger.release(5.0) == (1, 2)


def test_anchors_say_what_redis_has() -> None:
    """One that lasts and one that does not, of the own token."""
    ledger = opened()
    ledger.saved(4, 0.0)
    batch = Batch(TOKEN, 4, False)
    assert ledger.anchors(exact=False) == (
        Marker(MarkerKind.FOUNDING, batch),
        Marker(MarkerKind.FIRST, batch),
    )
