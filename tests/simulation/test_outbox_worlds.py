"""
The production outbox in small worlds explored whole: killed at every step, its transactions and connections failing.

The mutants are the reason to believe the rest: each takes one safeguard away, and a world must notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dedup.core.sending import Message
from dedup.errors import OutboxError
from dedup.outbox import journal as journal_module
from dedup.outbox import outlet as outlet_module
from dedup.outbox.gate import Gate
from dedup.outbox.journal import Journal
from dedup.outbox.messages import message_of
from dedup.outbox.outlet import hand_on
from dedup.outbox.relay import Relay
from dedup.outbox.store import Failure, Put, Store
from tests.simulation.exploring import explore
from tests.simulation.mutants import replaced
from tests.simulation.outbox_worlds import REST_EVERY, SMALL

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("name", SMALL)
def test_what_is_kept_arrives_once_and_in_order(name: str) -> None:
    """In every state nothing kept is lost, doubled or too old to judge, and from there everything arrives."""
    explored = explore(SMALL[name](), rest_every=REST_EVERY)
    assert not explored.reason, explored
    assert explored.states > 200
    print(f"{name}: {explored.states} states")


_put, _feed, _init, _relay_feed, _store_put, _ask = (
    Journal.put,
    Journal._feed,
    Relay.__init__,
    Relay._feed,
    Store.put,
    Store._ask,
)


def _posts_at_once(self: Journal, message: Message) -> None:
    _put(self, message)
    self._post(message)


def _sends_before_it_commits(patch: pytest.MonkeyPatch) -> None:
    replaced(Journal, "put", _posts_at_once)(patch)
    patch.setattr(journal_module, "hand_on", lambda committed, _gate, _post: committed.clear())


def _forgets_numbers(self: Relay, store: Store, *args: Any, **options: Any) -> None:
    with store.transaction():
        store._do("UPDATE dedup_outbox SET sequence = NULL WHERE failure IS NULL")
    _init(self, store, *args, **options)


def _finds_the_last_first(self: Store, statement: str, *parameters: Any) -> list[Any]:
    rows = _ask(self, statement, *parameters)
    return rows[::-1] if statement.startswith("SELECT id FROM dedup_outbox") else rows


def _puts_without_newest(self: Store, messages: Sequence[Put]) -> None:
    newest = self._state().newest
    _store_put(self, messages)
    self._do("UPDATE dedup_outbox_state SET newest = ?", newest)


def _takes_sent_for_confirmed(self: Relay) -> bool:
    sent = _relay_feed(self)
    self._confirmed += self._gate._rows
    return sent


def _feeds_new_first(self: Journal) -> None:
    had = bool(self._committed)
    hand_on(self._committed, self._gate, self._post)
    if not had:
        _feed(self)


def _lets_everything_out(*_: object) -> bool:
    return True


def _leaves_the_old(*_: object) -> bool:
    return False


def _drops_failures(self: Store, failures: Sequence[Failure]) -> None:
    self.delete([one.sequence for one in failures])


def _takes_all_for_fresh(*args: Any, **_: bool) -> Message:
    return message_of(*args, fresh=True)


def _refuses_silently(self: Journal, puts: list[Message], _error: OutboxError) -> None:
    self._answer_up_to(puts)


MUTANTS: dict[str, tuple[Patch, str, str]] = {
    "sent before it is committed": (
        _sends_before_it_commits,
        "killed twice, a new range of numbers",
        "before its row is committed",
    ),
    "numbers not kept with the row": (
        replaced(Relay, "__init__", _forgets_numbers),
        "relay: killed",
        "a number stays with its row",
    ),
    "numbers against the order of transactions": (
        replaced(Store, "_ask", _finds_the_last_first),
        "relay: killed",
        "transactions that followed each other keep their order",
    ),
    "the highest number not kept": (
        replaced(Store, "put", _puts_without_newest),
        "a transaction fails",
        "no number names two messages",
    ),
    "deleted before the confirm": (
        replaced(Relay, "_feed", _takes_sent_for_confirmed),
        "relay: killed",
        "nothing that was kept is lost",
    ),
    "new before old after a restart": (
        replaced(Journal, "_feed", _feeds_new_first),
        "a transaction fails",
        "in the order of their numbers",
    ),
    "no gate": (
        replaced(Gate, "lets", _lets_everything_out),
        "three messages, a window of two",
        "too old for the window",
    ),
    "no gate between ranges": (
        replaced(Gate, "lets", _lets_everything_out),
        "killed twice, a new range of numbers",
        "too old for the window",
    ),
    "failed rows deleted": (
        replaced(Store, "fail", _drops_failures),
        "no queue takes the first",
        "nothing that was kept is lost",
    ),
    "what was sent before a crash taken for never sent": (
        replaced(outlet_module, "message_of", _takes_all_for_fresh),
        "the queue is unbound",
        "not called unsent",
    ),
    "what a crash left not sent": (
        replaced(Journal, "_has_backlog", _leaves_the_old),
        "killed twice, a new range of numbers",
        "when the faults end everything arrives",
    ),
    "nobody told that it could not be kept": (
        replaced(Journal, "_refuse", _refuses_silently),
        "a transaction fails",
        "kept or refused",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_world_notices_that_a_safeguard_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is a story that ends badly, and its reason is the right one."""
    patch, world, reason = MUTANTS[name]
    patch(monkeypatch)
    # Only what a rule of every state cannot see takes a fair ending to be told: a story should go on to the damage.
    rest_every = REST_EVERY if reason.startswith("when the faults end") else 0
    explored = explore(SMALL[world](), rest_every=rest_every)
    assert reason in explored.reason, explored
    print(f"{name}: {explored}")
