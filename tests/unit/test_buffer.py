"""What has no fate yet: who waits for it, for room beside it, and who is told; nothing here needs a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dedup.aio.unwaiting import FullError, NoWaitingRoom
from dedup.core.sending import Message
from dedup.errors import ClosedUnconfirmedError, DedupError, FencedError, PublisherClosedError
from dedup.publisher.buffer import Buffer, Publication, Room

PATIENCE_S = 30.0


def buffer(room: Room | None = None, count_max: int = 2, bytes_max: int = 100) -> Buffer:
    """Make one for two messages of a hundred bytes together."""
    return Buffer("shop-1", count_max, bytes_max, room or Room())


def add(to: Buffer, sequence: int, size: int = 10) -> Publication:
    """Let a message in."""
    future = Publication(sequence, size)
    with to.lock:
        to.add(future)
    return future


def message(sequence: int) -> Message:
    """The message of a number, as the sender tells of it."""
    return Message(sequence, "", "orders", None, 10, attempts=1)


def test_what_is_confirmed_makes_room() -> None:
    """By number and by bytes; what is not in it any more, or never was, changes nothing."""
    held = buffer()
    first, second = add(held, 1, 60), add(held, 2, 30)
    assert held.is_full(1)
    held.confirm([message(1), message(1), message(7)])
    assert first.result(0).sequence == 1
    assert not held.is_full(70)
    assert held.is_full(71)
    assert list(held.pending().values()) == [second]


def test_a_message_too_large_for_it_may_have_it_alone() -> None:
    """Otherwise it would wait for ever."""
    held = buffer()
    assert not held.is_full(1000)
    add(held, 1, 1000)
    assert held.is_full(1)


def _settle(held: Buffer) -> None:
    held.confirm([message(1)])


def _give_up(held: Buffer) -> None:
    held.fail(1, DedupError("refused"))


def _close(held: Buffer) -> None:
    held.close()


def _end(held: Buffer) -> None:
    held.end(None)


@pytest.mark.parametrize("act", [_settle, _give_up, _close, _end])
def test_whoever_waits_for_room_hears_of_it(act: Callable[[Buffer], None]) -> None:
    """Whether there is room now, or will never be."""
    held = buffer(count_max=1)
    add(held, 1)
    waits, over = threading.Event(), threading.Event()

    def is_over() -> bool:
        waits.set()
        return held.is_closed or not held.is_full(1)

    def wait() -> None:
        with held.lock:
            held.room.wait(is_over, None)
        over.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE_S)
    assert not over.is_set()
    act(held)
    assert over.wait(PATIENCE_S)


def test_without_threads_nobody_waits_and_somebody_is_told() -> None:
    """A loop is told where a thread would be woken; what has no time left goes on, to be given up with a receipt."""
    told: list[bool] = []
    held = buffer(NoWaitingRoom(lambda: told.append(True)), count_max=1)
    add(held, 1)
    with pytest.raises(FullError):
        held.room.wait(lambda: False, None)
    held.room.wait(lambda: False, 0.0)
    for count, act in enumerate((_settle, _give_up, _close, _end), start=1):
        act(held)
        assert len(told) == count


def test_the_end_leaves_nobody_waiting() -> None:
    """Futures fail with the cause, and what comes later is refused with it; one that was fenced says so."""
    held, died = buffer(), OSError("gone")
    future = add(held, 1)
    held.check_open()
    held.end(died)
    error = future.exception(0)
    assert isinstance(error, ClosedUnconfirmedError)
    assert error.__cause__ is died
    with pytest.raises(PublisherClosedError) as refused:
        held.check_open()
    assert refused.value.__cause__ is died
    fenced = buffer()
    future = add(fenced, 1)
    fenced.end(FencedError("somebody newer"))
    assert isinstance(future.exception(0), FencedError)
    with pytest.raises(FencedError):
        fenced.check_open()


def test_what_is_closed_lets_nothing_in() -> None:
    """However often it was closed; what is in it stays on its way."""
    held = buffer()
    future = add(held, 1)
    held.close()
    held.close()
    with pytest.raises(PublisherClosedError):
        held.check_open()
    assert not future.done()
