"""Which publishes await a confirm."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dedup.core.confirms import Confirms


def _awaiting(*items: str) -> Confirms[str]:
    confirms: Confirms[str] = Confirms()
    for tag, item in enumerate(items, 1):
        confirms.insert(tag, item)
    return confirms


def test_a_confirm_names_its_item_once() -> None:
    """An ack returns its item; the same ack again returns nothing."""
    confirms = _awaiting("a", "b")
    assert confirms.confirm(2) == ["b"]
    assert confirms.confirm(2) == []
    assert (len(confirms), confirms.smallest) == (1, (1, "a"))


def test_multiple_takes_everything_up_to_its_tag() -> None:
    """One ack of many settles the tags below it that are still awaited, oldest first."""
    confirms = _awaiting("a", "b", "c", "d")
    confirms.confirm(2)
    assert confirms.confirm(3, multiple=True) == ["a", "c"]
    assert (len(confirms), confirms.smallest) == (1, (4, "d"))


def test_tag_zero_with_multiple_means_all() -> None:
    """AMQP's tag 0 with multiple speaks of everything outstanding."""
    assert _awaiting("a", "b").confirm(0, multiple=True) == ["a", "b"]
    assert _awaiting("a", "b").reject(0, multiple=True) == ["a", "b"]


def test_a_tag_never_sent_means_nothing() -> None:
    """Whatever else a broker names changes nothing."""
    confirms = _awaiting("a")
    assert confirms.confirm(7) == confirms.confirm(0) == confirms.reject(7) == confirms.reject(0) == []
    assert len(confirms) == 1


def test_tags_may_skip() -> None:
    """Publishes that nobody tracks leave holes that name nothing."""
    confirms: Confirms[str] = Confirms()
    confirms.insert(3, "c")
    confirms.insert(5, "e")
    assert confirms.smallest == (3, "c")
    assert confirms.confirm(4) == []
    assert confirms.confirm(5, multiple=True) == ["c", "e"]


def test_a_nack_of_many_leaves_alone_what_was_acknowledged() -> None:
    """A nack up to an outstanding tag refuses the outstanding ones only: acks before it hold."""
    confirms = _awaiting("a", "b", "c")
    confirms.confirm(2)
    assert confirms.reject(3, multiple=True) == ["a", "c"]


def test_a_contradicting_nack_wins() -> None:
    """After ``ack multiple 4``, ``nack multiple 3`` returns 1 to 3 once more (pika issue 911)."""
    confirms = _awaiting("a", "b", "c", "d")
    assert confirms.confirm(4, multiple=True) == ["a", "b", "c", "d"]
    assert confirms.reject(3, multiple=True) == ["a", "b", "c"]
    assert confirms.reject(3, multiple=True) == []
    assert confirms.reject(4) == ["d"]


def test_a_contradicting_nack_also_takes_what_is_outstanding() -> None:
    """A nack of many that names a settled tag reopens it and refuses nothing above it."""
    confirms = _awaiting("a", "b", "c")
    confirms.confirm(2, multiple=True)
    assert confirms.reject(2, multiple=True) == ["a", "b"]
    assert confirms.smallest == (3, "c")


def test_clear_returns_what_is_awaited_and_starts_over() -> None:
    """After the channel is gone its items come back oldest first, and tags start at 1."""
    confirms = _awaiting("a", "b", "c")
    confirms.confirm(3, multiple=False)
    assert confirms.clear() == ["a", "b"]
    assert (len(confirms), confirms.smallest) == (0, None)
    confirms.insert(1, "d")
    assert confirms.confirm(1) == ["d"]


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(1, 3), st.just(False)),
        st.tuples(st.sampled_from(["confirm", "reject"]), st.integers(0, 40), st.booleans()),
    ),
    max_size=60,
)


@given(_STEPS)
def test_it_agrees_with_a_dict(steps: list[tuple[str, int, bool]]) -> None:
    """Any order of inserts, acks and nacks settles what a plain dict of tags would, contradictions aside."""
    confirms: Confirms[int] = Confirms()
    oracle: dict[int, int] = {}
    newest = 0
    for step, number, multiple in steps:
        if step == "insert":
            newest += number
            confirms.insert(newest, newest)
            oracle[newest] = newest
        else:
            if multiple:
                expected = [tag for tag in oracle if number == 0 or tag <= number]
            else:
                expected = [number] if number in oracle else []
            contradicts = step == "reject" and number not in oracle and number <= newest
            settled = (
                confirms.confirm(number, multiple=multiple)
                if step == "confirm"
                else confirms.reject(number, multiple=multiple)
            )
            assert settled == expected or (contradicts and set(expected) <= set(settled))
            for tag in expected:
                del oracle[tag]
        assert len(confirms) == len(oracle)
        assert confirms.smallest == (next(iter(oracle.items())) if oracle else None)
