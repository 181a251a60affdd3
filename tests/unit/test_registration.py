"""The registration machine: who may publish, who waits, who is fenced."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from dedup.core import registration as steps
from dedup.core.registration import HELD_GRACE_S, OWN_GRACE_S, Registration
from dedup.core.registry import (
    MESSAGE_BYTES_MAX,
    Act,
    Answer,
    Record,
    Refusal,
    Request,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from dedup.errors import (
    DedupError,
    FencedError,
    PublisherAlreadyRegisteredError,
    RegistryFormatError,
    RegistryUnavailableError,
    TopologyError,
)

MINE = Record(5 << 32, "me", "process 1 on here")
NEWER = Record(6 << 32, "other", "process 2 on there")


class Bench:
    """A registration, and what it asked last."""

    def __init__(self, *, takeover: bool = False) -> None:
        self.machine = Registration("p", "me", "process 1 on here", takeover=takeover)
        self.asked: Request | None = None
        self.now = 0.0

    def tell(self, event: steps.Event) -> list[str]:
        """Return the names of the effects; a question says what it asks for."""
        self.effects = self.machine.handle(event, self.now)
        for effect in self.effects:
            if isinstance(effect, steps.Ask):
                self.asked = effect.request
        return [
            effect.request.act.value if isinstance(effect, steps.Ask) else type(effect).__name__
            for effect in self.effects
        ]

    def answer(self, record: Record = MINE, **facts: Any) -> list[str]:
        """Answer the question of now."""
        assert self.asked
        return self.tell(steps.Answered(evolve(Answer(self.asked.id, record), **facts)))

    @property
    def error(self) -> DedupError:
        """The error of the last effect."""
        effect = self.effects[-1]
        assert isinstance(effect, steps.Retry | steps.End)
        return effect.error


def registered(*, takeover: bool = False) -> Bench:
    """Return one that has its base and publishes."""
    bench = Bench(takeover=takeover)
    assert bench.tell(steps.Connected()) == ["Lock"]
    assert bench.tell(steps.Locked()) == ["register"]
    assert bench.answer() == ["Ready"]
    assert bench.machine.base == 5 << 32
    return bench


def test_lock_then_range_then_ready() -> None:
    """Nothing is published before both are there."""
    bench = registered()
    assert bench.asked
    assert (bench.asked.owner, bench.asked.last) == ("me", 0)


def test_a_second_holder_is_told_who_has_it() -> None:
    """It tries again for a moment, because a killed process' connection takes one to go, and then says who holds it."""
    bench = Bench()
    bench.tell(steps.Connected())
    assert bench.tell(steps.Held("405 locked")) == ["show"]
    assert bench.answer(NEWER) == ["Retry"]
    bench.now = HELD_GRACE_S
    bench.tell(steps.Connected())
    assert bench.tell(steps.Held("405 locked")) == ["show"]
    assert bench.answer(NEWER) == ["End"]
    assert isinstance(bench.error, PublisherAlreadyRegisteredError)
    assert "process 2 on there" in str(bench.error)
    assert "405 locked" in str(bench.error)
    assert bench.error.holder == "process 2 on there"


def test_the_own_registration_is_recognised_by_its_nonce() -> None:
    """Cut off before the answer came: the registry names this owner and its range, so the lost connection has the lock."""
    bench = Bench()
    bench.tell(steps.Connected())
    assert bench.tell(steps.Locked()) == ["register"]
    bench.tell(steps.Disconnected())
    bench.tell(steps.Connected())
    assert bench.tell(steps.Held("405 locked")) == ["show"]
    assert bench.answer(MINE) == ["Ready"]
    assert bench.machine.base == MINE.base
    assert not bench.machine.is_locked


def test_the_own_lost_connection_is_waited_for() -> None:
    """Cut off between lock and base: nobody knows of it, so it is given the time in which the broker notices, and no more."""
    bench = Bench()
    bench.tell(steps.Connected())
    bench.tell(steps.Locked())
    bench.tell(steps.Disconnected())
    for now, answer, effect in (
        (0.0, Record(), "Retry"),
        (OWN_GRACE_S - 1, NEWER, "Retry"),
        (OWN_GRACE_S, NEWER, "End"),
    ):
        bench.now = now
        bench.tell(steps.Connected())
        assert bench.tell(steps.Held("405 locked")) == ["show"]
        assert bench.answer(answer) == [effect]
    assert isinstance(bench.error, PublisherAlreadyRegisteredError)
    assert "its own connection that was lost" in str(bench.error)


def test_a_second_holder_needs_no_registry_to_be_refused() -> None:
    """The lock alone decides; then nobody can say who has it."""
    bench = Bench()
    bench.tell(steps.Held("405 locked"))
    bench.now = HELD_GRACE_S
    assert bench.tell(steps.Unanswered("none within 2 s")) == ["End"]
    assert "knows nothing of" in str(bench.error)


def test_no_registry_is_an_error_that_says_what_to_start() -> None:
    """Each try fails with it, and the next one begins with the lock again."""
    bench = Bench()
    bench.tell(steps.Connected())
    bench.tell(steps.Locked())
    assert bench.tell(steps.Unanswered("none within 2 s")) == ["Retry"]
    assert isinstance(bench.error, RegistryUnavailableError)
    assert all(
        word in str(bench.error) for word in ("dedup registry", 'registration="local"', "none within 2 s")
    )


@pytest.mark.parametrize("refusal", [Refusal.LATER, Refusal.FULL])
def test_a_refusal_that_may_pass_is_tried_again(refusal: Refusal) -> None:
    """Redis is away, the clock has to move on, or there is no room."""
    bench = Bench()
    bench.tell(steps.Connected())
    bench.tell(steps.Locked())
    assert bench.answer(Record(), refusal=refusal, text="why") == ["Retry"]
    assert "why" in str(bench.error)


def test_a_refusal_that_lasts_ends_it() -> None:
    """Waiting would not mend it."""
    bench = Bench()
    bench.tell(steps.Connected())
    bench.tell(steps.Locked())
    assert bench.answer(Record(), refusal=Refusal.INVALID, text="not bound") == ["End"]


def test_an_answer_about_somebody_else_is_none() -> None:
    """A registry that answers nonsense hands out no base."""
    for record in (NEWER, Record(), evolve(MINE, base=0)):
        bench = Bench()
        bench.tell(steps.Connected())
        bench.tell(steps.Locked())
        assert bench.answer(record) == ["Retry"]
        assert bench.machine.base == 0


def test_late_answers_mean_nothing() -> None:
    """Of a question that was given up, and of one that was never asked."""
    bench = Bench()
    bench.tell(steps.Connected())
    bench.tell(steps.Locked())
    late = bench.asked
    bench.tell(steps.Unanswered("none within 2 s"))
    bench.tell(steps.Connected())
    bench.tell(steps.Locked())
    assert late
    assert bench.tell(steps.Answered(Answer(late.id, MINE))) == []
    assert bench.tell(steps.Unanswered("none within 2 s", late.id)) == []
    assert bench.answer() == ["Ready"]
    assert bench.tell(steps.Answered(Answer(99, NEWER))) == []


def test_a_new_connection_publishes_with_the_lock_alone() -> None:
    """A registry that does not answer stops nobody who has a base."""
    bench = registered()
    bench.tell(steps.Disconnected())
    bench.tell(steps.Connected())
    assert bench.tell(steps.Locked()) == ["Ready", "renew"]
    assert bench.asked
    assert bench.asked.last == 5 << 32
    assert bench.tell(steps.Unanswered("none within 2 s")) == []


def test_the_own_dead_connection_keeps_nobody_waiting() -> None:
    """The registry says that the base is the newest: so it is the lost connection that has the lock."""
    bench = registered()
    bench.tell(steps.Connected())
    assert bench.tell(steps.Held("405 locked")) == ["renew"]
    assert bench.answer(MINE) == ["Ready"]
    assert not bench.machine.is_locked
    assert bench.tell(steps.Nudged()) == ["Lock"]
    assert bench.tell(steps.Locked()) == ["renew"]
    assert bench.machine.is_locked


def test_without_lock_and_registry_nothing_is_published() -> None:
    """Somebody else may hold the id."""
    bench = registered()
    bench.tell(steps.Connected())
    bench.tell(steps.Held("405 locked"))
    assert bench.tell(steps.Unanswered("none within 2 s")) == ["Retry"]
    assert isinstance(bench.error, RegistryUnavailableError)


@pytest.mark.parametrize("locked", [True, False])
def test_whoever_was_taken_over_while_away_is_fenced(locked: bool) -> None:
    """With the lock free again or not: the numbers decide."""
    bench = registered()
    bench.tell(steps.Connected())
    bench.tell(steps.Locked() if locked else steps.Held("405 locked"))
    assert bench.answer(NEWER) == ["End"]
    assert isinstance(bench.error, FencedError)
    assert "process 2 on there" in str(bench.error)


def test_a_take_over_waits_for_no_lock() -> None:
    """And gets it later, when the fenced one has gone."""
    bench = Bench(takeover=True)
    bench.tell(steps.Connected())
    assert bench.tell(steps.Held("405 locked")) == ["register"]
    assert bench.answer() == ["Ready"]
    assert bench.tell(steps.Nudged()) == ["Lock"]
    assert bench.tell(steps.Held("405 locked")) == ["renew"]
    assert bench.answer() == []


def test_a_hint_is_checked_and_never_believed() -> None:
    """Anybody can write to the lock's queue; the own registration is no news, and a hint during a question is asked again."""
    bench = registered()
    assert bench.tell(steps.Told("me")) == []
    assert bench.tell(steps.Told("other")) == ["renew"]
    assert bench.tell(steps.Told("other")) == []
    assert bench.answer(MINE) == ["renew"]
    assert bench.answer(NEWER) == ["End"]
    assert Bench().tell(steps.Told("other")) == []


def test_a_registry_that_forgot_fences_nobody() -> None:
    """No record and an older one are no news."""
    for record in (Record(), Record(4 << 32, "other")):
        bench = registered()
        bench.tell(steps.Nudged())
        assert bench.answer(record) == []
    bench.tell(steps.Nudged())
    assert bench.answer(Record(5 << 32, "other")) == ["End"]


def test_a_higher_range_of_its_own_ends_it_too() -> None:
    """A request it had given up was carried out late, behind another owner's: its numbers are below those, for ever."""
    bench = registered()
    bench.tell(steps.Nudged())
    assert bench.answer(Record(6 << 32, "me")) == ["End"]
    assert isinstance(bench.error, FencedError)


def test_missing_permissions_end_a_first_registration_only() -> None:
    """Who publishes already tries again; who publishes now goes on."""
    bench = Bench()
    bench.tell(steps.Connected())
    assert bench.tell(steps.Barred("403 refused")) == ["End"]
    assert isinstance(bench.error, TopologyError)
    assert "permissions.md" in str(bench.error)
    bench = registered()
    assert bench.tell(steps.Barred("403 refused")) == []
    bench.tell(steps.Connected())
    assert bench.tell(steps.Barred("403 refused")) == ["Retry"]


# -- on the wire ----------------------------------------------------------------------------------


@given(
    st.builds(
        Request,
        st.sampled_from(Act),
        st.text(
            st.characters(min_codepoint=0x20, exclude_characters="\x7f", codec="utf-8"),
            min_size=1,
            max_size=50,
        ),
        st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
        st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=200),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**53),
    )
)
def test_a_request_comes_back_as_it_was(request: Request) -> None:
    """Whatever the id is."""
    assert decode_request(encode_request(request)) == request


def test_an_answer_comes_back_as_it_was() -> None:
    """With a record and with a refusal."""
    for answer in (
        Answer(7, evolve(MINE, at_s=1_800_000_000)),
        Answer(8, refusal=Refusal.FULL, text="no room"),
    ):
        assert decode_answer(encode_answer(answer)) == answer


_GOOD = json.loads(encode_request(Request(Act.REGISTER, "p", "me", "here")))


@pytest.mark.parametrize(
    "wrong",
    [
        {"publisher_id": "x" * 201},
        {"publisher_id": ""},
        {"publisher_id": 7},
        {"publisher_id": "a\nb"},
        {"publisher_id": "\ud800"},
        {"act": "drop"},
        {"act": []},
        {"owner": ""},
        {"owner": "two words"},
        {"owner": "x" * 65},
        {"owner": None},
        {"holder": "x" * 201},
        {"last": -1},
        {"last": 2**63},
        {"last": 1.5},
        {"last": True},
        {"last": "1"},
        {"id": 2**54},
    ],
    ids=repr,
)
def test_a_wrong_request_is_refused(wrong: dict[str, object]) -> None:
    """Each field is checked; the message says which."""
    with pytest.raises(RegistryFormatError):
        decode_request(json.dumps({**_GOOD, **wrong}).encode())


@given(
    st.binary(max_size=MESSAGE_BYTES_MAX + 10)
    | st.recursive(
        st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """Nothing else is raised, by request or answer."""
    for decode in (decode_request, decode_answer):
        try:
            decode(data)
        except RegistryFormatError:
            continue


def test_deep_and_huge_messages_are_refused() -> None:
    """Neither recursion nor numbers without end."""
    for data in (b"[" * 4000, b'{"id":' + b"9" * 4000 + b"}", b" " * (MESSAGE_BYTES_MAX + 1)):
        with pytest.raises(RegistryFormatError):
            decode_answer(data)
