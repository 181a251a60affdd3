"""How the shim finds what drives it, and what it says when that cannot be used."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
from attrs import evolve

from dedup import protocols
from dedup.amqp091.publishing import AMQP091
from dedup.amqp091.session import Session
from dedup.errors import ConfigError
from dedup.shim import Shim, ShimSettings
from tests.fault.shim_process import Assumed

#: How publishers of another protocol work.
OTHER_WIRE = evolve(AMQP091, name="other")


class NeverExact(Session):
    """A session of another protocol."""

    can_be_exact = False


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other packages bring, whatever is installed here."""
    found = [
        EntryPoint("other", f"{__name__}:NeverExact", protocols.GROUP),
        EntryPoint("broken", "a_package_that_is_not_there:Session", protocols.GROUP),
        EntryPoint("wrong", "collections:OrderedDict", protocols.GROUP),
        EntryPoint("other", f"{__name__}:OTHER_WIRE", protocols.PUBLISHERS),
        EntryPoint("broken", "a_package_that_is_not_there:WIRE", protocols.PUBLISHERS),
        EntryPoint("wrong", "collections:OrderedDict", protocols.PUBLISHERS),
    ]
    monkeypatch.setattr(protocols, "entry_points", lambda group: EntryPoints(found).select(group=group))


def test_the_built_in_protocol_needs_no_entry_point() -> None:
    """It is there in a checkout that was never installed."""
    assert protocols.session_type("amqp091") is Session


def test_the_built_in_publisher_needs_no_entry_point() -> None:
    """Neither does what an outbox is sent with."""
    assert protocols.wire_of("amqp091") is AMQP091
    assert protocols.wire_of("other") is OTHER_WIRE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("amqp11", "there are amqp091, broken, other, wrong"),
        ("broken", r"install dedup\[broken\]"),
        ("wrong", "nothing that publishes"),
    ],
)
def test_a_publisher_that_cannot_be_used_is_said_with_its_remedy(name: str, words: str) -> None:
    """An outbox of AMQP 1.0 where the extra is not installed, above all."""
    with pytest.raises(ConfigError, match=words):
        protocols.wire_of(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("amqp11", "there are amqp091, broken, other, wrong"),
        ("broken", r"install dedup\[broken\]"),
        ("wrong", "no session"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_remedy(name: str, words: str) -> None:
    """It is a setting to correct, said before anything connects."""
    with pytest.raises(ConfigError, match=words):
        protocols.session_type(name)


def _shim(forwarding: str) -> tuple[Shim, list[tuple[str, dict[str, object]]]]:
    told: list[tuple[str, dict[str, object]]] = []
    settings = ShimSettings("amqp://h", "redis://h", "q", forwarding=forwarding, protocol="other")
    return Shim(
        settings,
        inspect=lambda: Assumed(True, "classic", False),
        notice=lambda name, facts: told.append((name, facts)),
    ), told


def test_a_protocol_without_transactions_refuses_to_be_exact() -> None:
    """Nobody is left to believe in a promise that cannot be kept."""
    with pytest.raises(ConfigError, match="forwards with confirms"):
        _shim("exact")


def test_a_protocol_without_transactions_is_confirmed_where_exact_were_possible() -> None:
    """And the log says why."""
    shim, told = _shim("auto")
    assert shim._choose(Assumed(True, "classic", False)) is False
    assert told == [("dedup.forwarding", {"exact": False, "reason": "protocol other has no transactions"})]
