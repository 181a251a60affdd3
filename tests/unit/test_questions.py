"""What a shim says of a publisher is what its window knows: never more, and bounded."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.identity import SEQUENCE_MAX, Receipt
from dedup.core.in_band import (
    RECEIPTS_MAX,
    ask_text,
    decode_answer,
    decode_receipts,
    encode_answer,
    encode_receipts,
    is_receipts,
    read_ask,
)
from dedup.core.questions import STRETCHES_MAX, ResumePoint, Standing, Status, Told, stand
from dedup.core.window import Window, judge
from dedup.errors import QuestionFormatError

SIZE = 8


def window_of(numbers: list[int], size: int = SIZE) -> Window | None:
    """Return what is remembered after *numbers*."""
    window = None
    for number in numbers:
        _, window = judge(window, number, size)
    return window


def numbers_in(standing: Standing) -> set[int]:
    """Return the numbers that are missing."""
    return {n for first, last in standing.missing for n in range(first, last + 1)}


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(2, 20))
def test_missing_is_what_the_window_would_take_as_new(numbers: list[int], size: int) -> None:
    """Each number within the window, one by one; stretches ascend and do not touch."""
    window = window_of(numbers, size)
    assert window is not None
    standing = stand(window, 0, size=size)
    assert standing.last == max(numbers)
    for number in range(1, standing.last + 1):
        status = stand(window, number, size=size).status
        assert (status is Status.TOO_OLD) == (number < standing.base)
        assert (status is Status.NEW) == (number in numbers_in(standing))
        assert (status is Status.SEEN) <= (number in numbers)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(standing.missing))


def test_what_is_not_proven_is_missing_and_uncertain() -> None:
    """In doubt or believed, the window may say what it likes."""
    window = window_of([1, 2, 3, 4])
    standing = stand(window, 3, size=SIZE, unproven=[2, 3, 90])
    assert standing.missing == ((2, 3),)
    assert standing.status is Status.UNCERTAIN
    assert stand(window, 4, size=SIZE, unproven=[3]).status is Status.SEEN


def test_a_lost_state_is_not_hidden() -> None:
    """Nothing known after a loss is not the same as nothing sent; above what the loss can reach all is certain again."""
    assert stand(None, 0, size=SIZE) == Standing()
    assert stand(None, 5, size=SIZE).status is Status.UNKNOWN
    assert stand(None, 5, size=SIZE, lost=True) == Standing(certain=False, status=Status.UNCERTAIN)
    assert not stand(Window(5, 1, 0, uncertain_to=13), 0, size=SIZE).certain
    after = stand(Window(13, 6, 0b100, uncertain_to=13), 10, size=SIZE)
    assert after.certain
    assert after.status is Status.UNCERTAIN
    assert stand(Window(13, 6, 0b100, uncertain_to=12), 14, size=SIZE).status is Status.NEW


def test_many_gaps_are_told_as_fewer_that_cover_them() -> None:
    """What is sent once more than needed is a duplicate; what is not sent would be lost."""
    window = window_of(list(range(1, 8000, 2)), 8192)
    standing = stand(window, 0, size=8192)
    assert len(standing.missing) == STRETCHES_MAX
    assert numbers_in(standing) >= set(range(2, 7999, 2))
    assert decode_answer(encode_answer("q", standing)).standing == standing
    worst = stand(Window(SEQUENCE_MAX, SEQUENCE_MAX - 8191, int("01" * 4095, 2)), SEQUENCE_MAX, size=8192)
    assert len(encode_answer("q" * 255, worst)) < 16 * 1024


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (b"resume", 0),
        (b"status 7", 7),
        (f"status {SEQUENCE_MAX}".encode(), SEQUENCE_MAX),
        (f"status {SEQUENCE_MAX + 1}".encode(), None),
        (b"status 0", None),
        (b"status", None),
        (b"status -1", None),
        (b"status 1 2", None),
        ("status ٧".encode(), None),
        (b"status " + b"9" * 10_000, None),
        (b"Resume", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_a_question_is_read_or_refused(text: bytes, asked: int | None) -> None:
    """Nothing is guessed."""
    assert read_ask(text) == asked


@given(st.integers(0, SEQUENCE_MAX))
def test_what_is_asked_is_read(sequence: int) -> None:
    """Both sides agree."""
    assert read_ask(ask_text(sequence).encode()) == sequence


STANDINGS = st.builds(
    lambda ends, certain, status: Standing(
        ends[-1],
        ends[0],
        tuple((a, b) for a, b in zip(ends[::2], ends[1::2], strict=False)),
        certain,
        status,
    ),
    st.lists(st.integers(1, SEQUENCE_MAX), min_size=1, unique=True).map(sorted),
    st.booleans(),
    st.none() | st.sampled_from(Status),
)


@given(STANDINGS, st.text(max_size=20))
def test_an_answer_comes_back_as_it_was(standing: Standing, queue: str) -> None:
    """Whatever the window is."""
    found = decode_answer(encode_answer(queue, standing))
    assert found.standing == standing


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
NAMES = st.sampled_from(["queue", "last", "base", "missing", "certain", "status", "receipts"])


@given(st.binary(max_size=50) | st.dictionaries(NAMES, JUNK).map(lambda junk: json.dumps(junk).encode()))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """With one error, whoever wrote them."""
    for read in (decode_answer, lambda junk: decode_receipts(junk, "p")):
        try:
            read(data)
        except QuestionFormatError:
            continue


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 60_000,
        b'{"queue":"' + b"x" * 70_000,
        b'{"queue":"q","last":5,"base":1,"missing":[[3,2]],"certain":true,"status":""}',
        b'{"queue":"q","last":5,"base":1,"missing":[],"certain":1,"status":""}',
        b'{"queue":"q","last":true,"base":1,"missing":[],"certain":true,"status":""}',
        b'{"queue":"q","last":5,"base":1,"missing":[],"certain":true,"status":"maybe"}',
    ],
)
def test_an_answer_that_contradicts_itself_is_none(data: bytes) -> None:
    """Large, deep, of the wrong type or out of order."""
    with pytest.raises(QuestionFormatError):
        decode_answer(data)


def test_receipts_are_bounded_and_told_from_the_registrys_word() -> None:
    """The rest of a large batch is left out: a receipt is a hint."""
    body = encode_receipts("orders", [(number, "duplicate", "") for number in range(1, RECEIPTS_MAX + 9)])
    assert is_receipts(body)
    assert not is_receipts(b'{"id":1,"refusal":""}')
    found = decode_receipts(body, "p")
    assert len(found) == RECEIPTS_MAX
    assert found[0] == Told(Receipt("p", 1), "orders", "duplicate")


def test_several_queues_resume_above_the_highest_and_fill_what_each_lacks() -> None:
    """One that lags lacks everything from its last to the highest of all; one that knows nothing lacks everything."""
    point = ResumePoint({"a": Standing(20, 13, ((14, 15),)), "b": Standing(17, 10, ((15, 16), (11, 11)))})
    assert (point.minimum, point.maximum, point.next) == (17, 20, 21)
    assert point.missing == ((11, 11), (14, 16), (18, 20))
    assert [n for n in range(9, 23) if point.lacks(n)] == [11, 14, 15, 16, 18, 19, 20, 21, 22]
    point = ResumePoint({"a": Standing(20, 13), "b": Standing()})
    assert (point.minimum, point.next, point.missing) == (0, 21, ((1, 20),))
    fresh = ResumePoint({"a": Standing()})
    assert (fresh.next, fresh.missing, fresh.lacks(1)) == (1, (), True)


def test_what_is_in_an_outbox_is_on_its_way() -> None:
    """It is not to be published again, whatever the queues lack."""
    point = ResumePoint({"a": Standing(20, 13, ((14, 15),))}, 25)
    assert point.next == 26
    assert [n for n in (14, 20, 25, 26) if point.lacks(n)] == [26]
