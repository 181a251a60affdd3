"""The judgement of a move: first deliveries go on, redelivered ones are recognised, and what is remembered is bounded."""

from __future__ import annotations

from collections import deque

from attrs import evolve

from dedup.amqp091 import properties
from dedup.amqp091.move_messages import identity_key
from dedup.amqp091.wire import Delivery, content_frames
from dedup.core.message_ids import KEY_SEQUENCE, message_key
from dedup.core.moving import Mover, moving_settings
from dedup.core.publishers import forwarded
from dedup.core.records import State
from dedup.core.steps import Arrival
from dedup.core.window import Verdict

SETTINGS = moving_settings(2, batch_max=10, deadline_s=None)
YEAR_S = 365 * 86_400.0


def arrival(name: str, *, redelivered: bool = False) -> Arrival:
    """A delivery with an identity."""
    return Arrival(1, redelivered, message_key(name.encode()), KEY_SEQUENCE)


def judge(
    mover: Mover, *arrivals: Arrival, now_s: float = 0.0, number: int = 1
) -> list[tuple[Verdict, bool]]:
    """Judge and settle one batch."""
    batch = mover.take(deque(arrivals), now_s)
    batch.remaining, batch.number = (), number
    mover.settle(batch, now_s)
    return [(out.verdict, out.marked) for out in batch.judged]


def test_a_first_delivery_goes_on_whatever_it_looks_like() -> None:
    """Twins too, in one batch or in two; none of them is marked."""
    mover = Mover(SETTINGS, State(), 0.0, suspect=True)
    assert judge(mover, arrival("a"), arrival("a")) == [(Verdict.NEW, False), (Verdict.UNTRACKED, False)]
    assert judge(mover, arrival("a")) == [(Verdict.UNTRACKED, False)]


def test_what_was_forwarded_is_recognised_however_late() -> None:
    """A move may be run again a year after it was killed."""
    mover = Mover(SETTINGS, State(), 0.0, suspect=False)
    judge(mover, arrival("a"))
    again = [arrival("a", redelivered=True), arrival("b", redelivered=True)]
    assert judge(mover, *again, now_s=YEAR_S) == [(Verdict.DUPLICATE, False), (Verdict.NEW, False)]


def test_what_is_remembered_is_bounded() -> None:
    """Four for each delivery that the broker may send ahead, the newest."""
    mover = Mover(evolve(SETTINGS, message_ids_max=8), State(), 0.0, suspect=False)
    for number in range(100):
        judge(mover, arrival(str(number)), now_s=float(number), number=number + 1)
    assert len(mover.publishers.entries()) == 8
    assert judge(mover, arrival("92", redelivered=True)) == [(Verdict.DUPLICATE, False)]
    assert moving_settings(20_000, batch_max=10, deadline_s=None).message_ids_max == 80_000


def test_what_a_move_with_a_larger_prefetch_had_forwarded_is_recognised() -> None:
    """A move that was killed may have had thousands in flight; the one that is run next may be told to go slowly."""
    names = [str(number) for number in range(5_000)]
    before = {message_key(name.encode()): forwarded(0.0, 1 + n // 500) for n, name in enumerate(names)}
    mover = Mover(SETTINGS, State(10, 1, before), 0.0, suspect=True)
    for number, name in enumerate(names):
        again = arrival(name, redelivered=True)
        assert judge(mover, again, arrival(f"new {name}"), number=11 + number) == [
            (Verdict.DUPLICATE, False), (Verdict.NEW, False)
        ]  # fmt: skip


def test_without_an_identity_it_is_marked_while_nobody_can_tell() -> None:
    """Redelivered ones are, after a kill, until the first that is not."""
    mover = Mover(SETTINGS, State(), 0.0, suspect=True)
    nameless = [Arrival(1, redelivered, None, None) for redelivered in (True, False, True)]
    assert [marked for _, marked in judge(mover, *nameless)] == [True, False, False]


def delivery(raw: bytes, body: bytes = b"body") -> Delivery:
    """A message as the broker delivers it."""
    content = content_frames(raw, body, channel=1, frame_max=131_072)
    return Delivery(1, False, b"", b"key", raw, len(body), content)


def test_what_a_quorum_queue_adds_makes_no_other_message_of_it() -> None:
    """Neither its counts nor the header table that it makes for them."""
    plain = properties.join({properties.MESSAGE_ID: b"\x01a", properties.DELIVERY_MODE: b"\x02"})
    counted = properties.amend(plain, headers=[("x-delivery-count", 1)])
    keys = [identity_key(delivery(raw), properties.scan(raw)) for raw in (plain, counted)]
    assert keys[0]
    assert keys[0] == keys[1]


def test_one_message_that_died_in_two_queues_is_two() -> None:
    """Each of them goes back to a queue of its own."""
    raws = [
        properties.fresh([("dedup-sequence", 1), ("x-first-death-queue", queue)], app_id="a")
        for queue in "xy"
    ]
    assert len({identity_key(delivery(raw), properties.scan(raw)) for raw in raws}) == 2


def test_another_identity_or_body_is_another_message() -> None:
    """Each of sequence, publisher, message id and body counts."""
    raws = [
        properties.fresh([("dedup-sequence", 1)], app_id="a"),
        properties.fresh([("dedup-sequence", 2)], app_id="a"),
        properties.fresh([("dedup-sequence", 1)], app_id="b"),
        properties.join({properties.MESSAGE_ID: b"\x01a"}),
        properties.join({properties.MESSAGE_ID: b"\x01b"}),
    ]
    keys = {identity_key(delivery(raw, body), properties.scan(raw)) for raw in raws for body in (b"x", b"y")}
    assert len(keys) == 2 * len(raws)
    nameless = properties.fresh()
    assert identity_key(delivery(nameless), properties.scan(nameless)) is None
