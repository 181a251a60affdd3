"""From session to session: what the shim concludes from how the last one ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import frozen

from dedup import shim as module
from dedup.amqp091.driver import Ended, Outcome
from dedup.amqp091.session import Observer
from dedup.core import steps
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from dedup.core.window import Verdict
from dedup.errors import BrokerUnavailableError, ConfigError, StateFormatError, TopologyError
from dedup.shim import Shim, ShimSettings
from dedup.store.redis import RedisStore


@frozen
class Look:
    """A look at the topology that went well."""

    exact_possible: bool = True
    reason: str = "as the test says"
    warnings: tuple[str, ...] = ()
    may_refuse: bool = True
    target_type: str = "classic"


class Script:
    """Stands in for sessions: each ends as the script says, and its settings are kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: Ended | Callable[[Observer], Ended]) -> None:
        self.ends = list(ends)
        self.settings: list[RelaySettings] = []
        self.stops = 0
        script = self

        class Session:
            can_be_exact = True

            def __init__(self, _route: Any, *, relay: Relay, **rest: Any) -> None:
                script.settings.append(relay.settings)
                self.observer: Observer = rest["observer"]

            def run(self) -> Ended:
                end = script.ends.pop(0)
                return end(self.observer) if callable(end) else end

            def stop(self) -> None:
                script.stops += 1

        monkeypatch.setattr(module, "session_type", lambda _: Session)
        monkeypatch.setattr(RedisStore, "check", lambda _: [])
        monkeypatch.setattr(module, "PAUSE_S_MAX", 0.11)


Told = list[tuple[str, dict[str, Any]]]


def _shim(look: Callable[[], Any] = Look, told: Told | None = None, **options: Any) -> Shim:
    settings = ShimSettings(amqp="amqp://h", redis="redis://h", queue="q", **options)
    heard: Told = [] if told is None else told
    return Shim(settings, inspect=look, notice=lambda name, facts: heard.append((name, facts)))


STOPPED = Ended(Outcome.STOPPED)
LOST = Ended(Outcome.LOST, "cut", progressed=True)
REFUSED = Ended(Outcome.REFUSED, "406")


def _stop(shim: Shim) -> Callable[[Observer], Ended]:
    def end(_: Observer) -> Ended:
        shim.stop()
        return STOPPED

    return end


def _run(monkeypatch: pytest.MonkeyPatch, *ends: Any, **options: Any) -> Script:
    shim = _shim(**options)
    script = Script(monkeypatch, *ends, _stop(shim))
    shim.run()
    return script


def test_a_lost_session_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loss starts a new session with the same settings."""
    script = _run(monkeypatch, LOST, LOST)
    assert len(script.settings) == 3
    assert len(set(script.settings)) == 1


def test_a_refused_message_is_isolated_then_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one refusal batches hold one message, after three the first message is stripped and quarantined."""
    script = _run(monkeypatch, REFUSED, REFUSED, REFUSED)
    assert [(s.batch_max, s.strip_first) for s in script.settings] == [
        (500, False),
        (1, False),
        (1, False),
        (1, True),
    ]


def test_a_careful_session_ends_when_it_is_past_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stripped message settled, the session is asked to stop and the next one runs at full speed."""

    def settle(observer: Observer) -> Ended:
        observer.report(steps.Report({Verdict.NEW: 1}, forwarded=0, quarantined=1))
        return STOPPED

    script = _run(monkeypatch, REFUSED, REFUSED, REFUSED, settle)
    assert script.settings[-1].batch_max == 500
    assert not script.settings[-1].strip_first
    assert script.stops >= 1


def test_a_careful_session_waits_for_the_proof_of_what_stands_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended before that, it would have all of it delivered again, the message that the broker refuses too; so the proof comes at once."""
    stops = {}
    for unproven in (False, True):
        told = steps.Report({Verdict.NEW: 1}, quarantined=1, unproven=unproven)

        def settle(observer: Observer, told: steps.Report = told) -> Ended:
            observer.report(told)
            return STOPPED

        script = _run(monkeypatch, REFUSED, REFUSED, REFUSED, settle)
        stops[unproven] = script.stops
        assert [settings.proof_wait_s for settings in script.settings][:4] == [5.0, 0.0, 0.0, 0.0]
    assert stops[True] == stops[False] - 1


def test_a_lost_connection_between_refusals_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only refusals in a row speak against a message: an outage must never strip one."""
    script = _run(monkeypatch, REFUSED, REFUSED, LOST, REFUSED)
    assert not any(settings.strip_first for settings in script.settings)


def test_after_a_partial_commit_the_shim_uses_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that refused inside a transaction is never trusted with one again, whatever a look says."""
    script = _run(monkeypatch, Ended(Outcome.PARTIAL, "406"), LOST)
    assert [s.exact for s in script.settings] == [True, False, False]
    assert not script.settings[1].trust_exact


def test_markers_of_transactions_are_believed_however_it_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shim before it has left, in transactions, is as true for one that is to use confirms; where they are unsound it is not."""
    for look in (Look(), Look(False, "it may refuse")):
        script = _run(monkeypatch, LOST, look=lambda look=look: look, forwarding="confirmed")
        assert {(s.exact, s.trust_exact) for s in script.settings} == {(False, look.exact_possible)}


def test_exact_on_demand_is_refused_where_it_is_not_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting exact is an error, not a wish, when the target may refuse."""
    Script(monkeypatch)
    shim = _shim(lambda: Look(False, "it is a quorum queue"), forwarding="exact")
    with pytest.raises(TopologyError, match="not sound: it is a quorum queue"):
        shim.run()


def test_a_topology_that_was_right_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is gone after a session is looked for until it is back."""
    looks: list[Any] = [Look(), TopologyError("no target"), BrokerUnavailableError("down"), Look()]

    def look() -> Look:
        answer = looks.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Look)
        return answer

    script = _run(monkeypatch, LOST, look=look)
    assert len(script.settings) == 2


def test_a_topology_that_is_wrong_at_the_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look must succeed: a person is watching."""
    Script(monkeypatch)

    def look() -> Look:
        raise TopologyError("run dedup queue guard q")

    with pytest.raises(TopologyError, match="guard"):
        _shim(look).run()


def test_state_of_another_version_ends_the_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waiting does not mend is raised, not tried again for ever."""
    error = StateFormatError("format 9")
    Script(monkeypatch, Ended(Outcome.LOST, str(error), error=error))
    with pytest.raises(StateFormatError):
        _shim().run()


def test_a_login_refused_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is coming up may refuse what it took before: that must not end a shim."""
    error = ConfigError("does not speak AMQP 0.9.1")
    script = _run(monkeypatch, Ended(Outcome.LOST, str(error), error=error))
    assert len(script.settings) == 2


UNREADABLE = Ended(
    Outcome.LOST,
    "541",
    progressed=True,
    error=BrokerUnavailableError("closed", reply_code=541, reply_text=""),
)


def test_a_message_the_broker_cannot_tell_is_named_with_its_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three internal errors in a row, whatever is settled in between, and not again with each further one."""
    told: Told = []
    _run(monkeypatch, *(UNREADABLE for _ in range(5)), told=told)
    ((facts),) = [facts for name, facts in told if name == "dedup.unreadable"]
    assert facts["sessions"] == 3
    assert "'q.dedup'" in facts["reason"]
    assert "--protocol amqp10" in facts["reason"]
    told.clear()
    _run(monkeypatch, *(UNREADABLE for _ in range(3)), told=told, protocol="amqp10")
    assert [
        "--protocol amqp091" in facts["reason"] for name, facts in told if name == "dedup.unreadable"
    ] == [True]


@pytest.mark.parametrize("ends", [(UNREADABLE, UNREADABLE, LOST, UNREADABLE, UNREADABLE), 4 * (LOST,)])
def test_other_losses_say_nothing_about_messages(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[Ended, ...]
) -> None:
    """A broker that fails now and then, or is away, is no message that cannot be told."""
    told: Told = []
    _run(monkeypatch, *ends, told=told)
    assert "dedup.unreadable" not in [name for name, _ in told]


def test_sessions_that_come_no_further_are_paused_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although each of them settles what stands before the message."""
    waits: list[int] = []

    def delay_s(attempt: int, *_: object, **__: object) -> float:
        waits.append(attempt)
        return 0.0

    monkeypatch.setattr(module, "delay_s", delay_s)
    _run(monkeypatch, *(UNREADABLE for _ in range(4)), LOST)
    assert waits == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "protocol", "warned"),
    [("stream", "amqp091", 1), ("stream", "amqp10", 0), ("classic", "amqp091", 0)],
)
def test_a_stream_behind_the_older_protocol_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, kind: str, protocol: str, warned: int
) -> None:
    """Readers of 0.9.1 would find no death histories there."""
    told: Told = []
    _run(monkeypatch, look=lambda: Look(target_type=kind), told=told, protocol=protocol)
    assert [name for name, _ in told].count("dedup.warning") == warned
