"""What the retrier does, step by step; every order of faults is in the worlds of the simulation."""

from __future__ import annotations

from attrs import evolve

from dedup.core import retry_steps as steps
from dedup.core.deaths import Death, DeathHistory
from dedup.core.obituaries import Reason
from dedup.core.retrier import Retrier
from dedup.core.retry_settings import Phase, RetrySettings
from dedup.core.retry_steps import Effect, Item, Kept, Letter, Sent

SETTINGS = RetrySettings("orders.dlq", batch_max=2, rate_max=10.0)


def working(settings: RetrySettings = SETTINGS, *, room: bool = True) -> Retrier:
    """A retrier that has begun at second 0; its first question for what is due is answered with nothing."""
    retrier = Retrier(settings)
    retrier.handle(steps.Started(), 0.0)
    retrier.handle(steps.Registered(room), 0.0)
    retrier.handle(steps.Claimed([]), 0.0)
    return retrier


def letter(tag: int, size: int = 10) -> Letter:
    """A letter that was rejected once."""
    return Letter(tag, bytes([tag]), True, DeathHistory((Death("orders", "rejected"),)), 0, size)


def of(kind: type, effects: list[Effect]) -> list[Effect]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def test_letters_are_stored_in_batches_and_acknowledged_after() -> None:
    """No ack goes out before the answer, and then for exactly what was stored."""
    retrier = working()
    effects = retrier.handle(steps.Arrived([letter(1), letter(2), letter(3)]), 0.0)
    assert not of(steps.Ack, effects)
    (store,) = of(steps.Store, effects)
    assert isinstance(store, steps.Store)
    assert [entry.letter.tag for entry in store.entries] == [1, 2]
    effects = retrier.handle(steps.Stored([Kept.NEW, Kept.KNOWN]), 0.0)
    assert of(steps.Ack, effects) == [steps.Ack([1, 2])]
    assert len(of(steps.Store, effects)) == 1


def test_a_full_schedule_pauses_and_gives_back_in_time() -> None:
    """What finds no room is held, given back before the broker loses patience, and not acknowledged."""
    retrier = working()
    retrier.handle(steps.Arrived([letter(1), letter(2)]), 0.0)
    effects = retrier.handle(steps.Stored([Kept.NEW]), 0.0)
    assert of(steps.Ack, effects) == [steps.Ack([1])]
    assert of(steps.Pause, effects)
    assert not of(steps.GiveBack, retrier.handle(steps.Ticked(), 599.0))
    assert of(steps.GiveBack, retrier.handle(steps.Ticked(), 600.0)) == [steps.GiveBack([2])]
    assert of(steps.Consume, retrier.handle(steps.Looked(True), 601.0))


def test_what_is_due_after_an_outage_is_rate_limited() -> None:
    """In one second no more is asked for than the rate, however much waits."""
    retrier = working()
    asked = number = 0
    for tenth in range(3, 14):
        effects = retrier.handle(steps.Ticked(), tenth / 10)
        while claims := of(steps.Claim, effects):
            (claim,) = claims
            assert isinstance(claim, steps.Claim)
            items = [Item(f"{number + index}", "orders") for index in range(claim.at_most)]
            asked, number = asked + claim.at_most, number + claim.at_most
            retrier.handle(steps.Claimed(items), tenth / 10)
            retrier.handle(steps.Published([Sent.STORED] * len(items)), tenth / 10)
            effects = retrier.handle(steps.Settled(), tenth / 10)
    assert 9 <= asked <= 14


def test_refusals_wait_longer_and_longer() -> None:
    """A queue that refuses is asked again after a pause that grows; nothing of it is deleted."""
    retrier = working()
    pauses = []
    for second in range(1, 5):
        retrier.handle(steps.Ticked(), float(second))
        retrier.handle(steps.Claimed([Item("1", "orders")]), float(second))
        (settle,) = of(steps.Settle, retrier.handle(steps.Published([Sent.REFUSED]), float(second)))
        assert isinstance(settle, steps.Settle)
        assert (settle.done, settle.refused) == ([], ["1"])
        pauses.append(settle.delay_s)
        retrier.handle(steps.Settled(), float(second))
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]


def test_a_large_letter_whose_obituary_is_refused_does_not_keep_it_from_ending() -> None:
    """It is not acknowledged, others go on, and a stop does not wait for it."""
    retrier = working(evolve(SETTINGS, message_bytes_max=5))
    retrier.handle(steps.Arrived([letter(1)]), 0.0)
    (publish,) = of(steps.Publish, retrier.handle(steps.Stored([Kept.NEW]), 0.0))
    assert isinstance(publish, steps.Publish)
    assert publish.items[0].reason is Reason.TOO_LARGE
    effects = retrier.handle(steps.Published([Sent.REFUSED]), 1.0)
    assert not of(steps.Ack, effects)
    assert of(steps.Claim, effects)
    retrier.handle(steps.Claimed([]), 1.0)
    assert of(steps.Close, retrier.handle(steps.StopRequested(), 1.1))


def test_what_the_broker_closes_channels_for_is_given_up_first() -> None:
    """Told so, the first message gets an obituary instead, and only the first."""
    retrier = working(evolve(SETTINGS, bury_first=True))
    retrier.handle(steps.Ticked(), 1.0)
    (publish,) = of(steps.Publish, retrier.handle(steps.Claimed([Item("1", "a"), Item("2", "a")]), 1.0))
    assert isinstance(publish, steps.Publish)
    assert [item.reason for item in publish.items] == [Reason.REFUSED, None]


def test_it_ends_when_what_is_under_way_is_done() -> None:
    """A stop lets the batch finish, takes nothing new, and leaves no session behind."""
    retrier = working()
    retrier.handle(steps.Ticked(), 1.0)
    retrier.handle(steps.Claimed([Item("1", "orders")]), 1.0)
    assert not of(steps.Close, retrier.handle(steps.StopRequested(), 1.0))
    assert not of(steps.Store, retrier.handle(steps.Arrived([letter(1)]), 1.0))
    retrier.handle(steps.Published([Sent.STORED]), 1.0)
    assert of(steps.Close, retrier.handle(steps.Settled(), 1.0))
    assert retrier.handle(steps.Closed(), 1.0) == [steps.Unregister(), steps.End()]
    assert retrier.phase is Phase.ENDED
