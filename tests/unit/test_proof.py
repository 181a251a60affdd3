"""When markers of parts prove something: who leads is known, reached without a link, and the channel knows it too."""

from __future__ import annotations

from dedup.core.proof import Proof
from dedup.core.records import Leadership, Parts
from dedup.core.steps import Arrival, Outgoing, Surveyed
from dedup.core.window import Verdict

LEADER, LATER, ELECTED = (
    Leadership("rabbit@a", 3, 70),
    Leadership("rabbit@a", 3, 90),
    Leadership("rabbit@b", 4, 91),
)
OUTGOING = [
    Outgoing(Arrival(1, False, "p", 5), Verdict.NEW),
    Outgoing(Arrival(2, False, None, None), Verdict.UNTRACKED),
]


def parts(proof: Proof) -> Parts | None:
    """Return what markers of the next batch rest on."""
    return proof.parts(OUTGOING, 2)


def test_before_a_survey_nothing_is_known() -> None:
    """There are no parts then."""
    assert parts(Proof()) is None


def test_a_survey_before_the_first_message_is_good_for_all() -> None:
    """The channel learns who leads later than we do."""
    proof = Proof()
    proof.surveyed(Surveyed(LEADER), published=False)
    assert parts(proof) == Parts([("p", 5)], 2, LEADER)


def test_the_same_leader_later_is_taken_over() -> None:
    """The newest survey is the one to compare with."""
    proof = Proof()
    proof.surveyed(Surveyed(LEADER), published=False)
    proof.surveyed(Surveyed(LATER), published=True)
    assert parts(proof) == Parts([("p", 5)], 2, LATER)


def test_a_new_leader_is_good_once_it_has_stored_something() -> None:
    """Until then the channel may hand messages to the old one."""
    proof = Proof()
    proof.surveyed(Surveyed(LEADER), published=False)
    proof.surveyed(Surveyed(ELECTED), published=True)
    assert parts(proof) is None
    proof.surveyed(Surveyed(ELECTED), published=True)
    assert parts(proof) is None, "asking twice does not tell the channel"
    proof.stored()
    assert parts(proof) == Parts([("p", 5)], 2, ELECTED)


def test_a_survey_that_fails_leaves_a_gap() -> None:
    """Somebody else may have led meanwhile, so the next one counts from the next message that is stored."""
    proof = Proof()
    proof.surveyed(Surveyed(LEADER), published=False)
    proof.surveyed(Surveyed(None), published=True)
    assert parts(proof) is None
    proof.surveyed(Surveyed(LEADER), published=True)
    assert parts(proof) is None
    proof.stored()
    assert parts(proof) == Parts([("p", 5)], 2, LEADER)


def test_a_session_that_starts_again_starts_anew() -> None:
    """Nothing was published yet: a new leader found then is as good as the first."""
    proof = Proof()
    proof.surveyed(Surveyed(LEADER), published=False)
    proof.surveyed(Surveyed(ELECTED), published=False)
    assert parts(proof) == Parts([("p", 5)], 2, ELECTED)


def test_a_leader_on_another_node_is_not_enough() -> None:
    """The link between nodes may lose messages that a marker speaks of."""
    proof = Proof()
    proof.surveyed(Surveyed(LEADER, local=False), published=False)
    assert parts(proof) is None
    proof.surveyed(Surveyed(LATER), published=True)
    assert parts(proof) == Parts([("p", 5)], 2, LATER)
