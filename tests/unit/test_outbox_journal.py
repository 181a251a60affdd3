"""The journal of a publisher: durable before it is sent, near the oldest row whatever is confirmed when, and errors that say so."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedup.amqp091.publishing import AMQP091, Content, seal
from dedup.core.identity import Receipt
from dedup.core.sending import Message
from dedup.errors import (
    ClosedUnconfirmedError,
    DedupError,
    OutboxError,
    OutboxUnavailableError,
    ReturnedError,
)
from dedup.outbox import gate
from dedup.outbox.journal import Journal
from dedup.outbox.sqlite import SQLiteStore
from tests.looking import until

SPAN = 8


class Sender:
    """What stands for the publishing thread: it notes what it is given, and how far the oldest row is behind then."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.sent: list[Message] = []
        self.failed: dict[int, DedupError] = {}
        self.farthest = 0
        self._reader = SQLiteStore.look(file)

    def post(self, message: Message) -> None:
        """Take one, which must be in the file, and note its distance from the oldest row."""
        rows = self._reader.read(0, body_bytes_max=1000)
        assert message.sequence in [row.sequence for row in rows], "it is not durable yet"
        self.farthest = max(self.farthest, message.sequence - rows[0].sequence)
        self.sent.append(message)


def message(sequence: int, body: bytes = b"x") -> Message:
    """Return a message."""
    content = Content(seal(None, "p"), body)
    return Message(sequence, "", "q", content, len(body) + content.envelope.size)


def open_journal(file: Path, sender: Sender | None = None, **options: Any) -> Journal:
    """Return a journal with small limits."""
    settings: dict[str, Any] = {
        "span": SPAN,
        "rows_max": 1000,
        "bytes_max": 2**20,
        "buffer_bytes_max": 2**20,
        "body_bytes_max": 1000,
        "on_failed": (lambda *_: None) if sender is None else sender.failed.__setitem__,
        "on_room": lambda: None,
    }
    return Journal.open(file, AMQP091, "p", **{**settings, **options})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that is an outbox already."""
    path = tmp_path / "orders.db"
    open_journal(path).close(1)
    return path


def _publish(file: Path, chance: random.Random) -> int:
    """Publish, confirm at random, refuse some, end in between; return how far a row was behind a message that was sent."""
    farthest, newest = 0, 0
    for life in range(4):
        sender = Sender(file)
        journal = open_journal(file, sender)
        newest = max(newest, journal.newest) + (1 << 32)
        journal.start(sender.post)
        taken: set[int] = set()
        for _ in range(60):
            newest += 1
            journal.put(message(newest))
            unsettled = [one for one in list(sender.sent) if one.sequence not in taken]
            for one in chance.sample(unsettled, min(len(unsettled), chance.randint(0, 3))):
                taken.add(one.sequence)
                if chance.random() < 0.9:
                    journal.settle([one])
                else:
                    error = ReturnedError("no queue", receipt=Receipt("p", one.sequence, 1))
                    journal.fail(one.sequence, error)
            time.sleep(chance.choice([0, 0, 0.002]))
        if life == 3:
            until(partial(_settle_all, journal, sender, taken))
        journal.close(10)
        assert [one.sequence for one in sender.sent] == sorted(one.sequence for one in sender.sent)
        farthest = max(farthest, sender.farthest)
    return farthest


def _settle_all(journal: Journal, sender: Sender, taken: set[int]) -> bool:
    for one in list(sender.sent):
        if one.sequence not in taken:
            taken.add(one.sequence)
            journal.settle([one])
    with SQLiteStore.look(sender.file) as store:
        return store.totals().numbered == 0


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_confirmed_when_rows_are_near_what_is_sent(file: Path, seed: int) -> None:
    """Over four lives with a range each: every row that a crash would send again is within the span of all that was sent."""
    assert 0 < _publish(file, random.Random(seed)) <= SPAN
    with SQLiteStore.look(file) as store:
        totals = store.totals()
    assert totals.numbered == 0
    assert totals.failed > 0


def test_without_the_gate_rows_fall_behind(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is confirmed and not yet deleted would be sent again from below the window."""
    monkeypatch.setattr(gate.Gate, "lets", lambda *_: True)
    assert _publish(file, random.Random(0)) > SPAN


def test_many_submits_share_a_transaction(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: what comes while one is written is written together."""
    commits = []
    transaction = SQLiteStore.transaction

    def counted(store: SQLiteStore) -> Any:
        commits.append(threading.get_ident())
        time.sleep(0.01)
        return transaction(store)

    monkeypatch.setattr(SQLiteStore, "transaction", counted)
    sender = Sender(file)
    with closing(_Closing(open_journal(file, sender, span=4096))) as held:
        held.journal.start(sender.post)
        commits.clear()
        for n in range(1, 501):
            held.journal.put(message(n))
        assert held.journal.wait_kept(500, 10)
        assert len(commits) < 50


class _Closing:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def close(self) -> None:
        self.journal.close(10)


def test_a_write_that_fails_is_answered_and_the_next_is_not_harmed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk full: those messages fail, were never sent and leave nothing; confirmed ones are deleted when there is room."""
    sender = Sender(file)
    journal = open_journal(file, sender)
    journal.start(sender.post)
    journal.put(message(1))
    until(lambda: sender.sent)
    put, delete = SQLiteStore.put, SQLiteStore.delete

    def full(*_: Any) -> None:
        raise OutboxUnavailableError("the disk is full")

    monkeypatch.setattr(SQLiteStore, "put", full)
    monkeypatch.setattr(SQLiteStore, "delete", full)
    journal.settle(sender.sent[:1])
    journal.put(message(2))
    assert journal.wait_kept(2, 10)
    assert isinstance(sender.failed[2], OutboxUnavailableError)
    monkeypatch.setattr(SQLiteStore, "put", put)
    monkeypatch.setattr(SQLiteStore, "delete", delete)
    journal.put(message(3))
    assert journal.wait_kept(3, 10)
    journal.close(10)
    with SQLiteStore.look(file) as store:
        assert [row.sequence for row in store.read(0, body_bytes_max=10)] == [3]
    assert [one.sequence for one in sender.sent] == [1, 3]


def test_what_a_closing_publisher_gives_up_stays(file: Path) -> None:
    """It is sent at the next start; what the broker refused is not."""
    sender = Sender(file)
    journal = open_journal(file, sender)
    journal.start(sender.post)
    for n in (1, 2):
        journal.put(message(n))
    until(lambda: len(sender.sent) == 2)
    journal.fail(1, ClosedUnconfirmedError("closed", receipt=Receipt("p", 1, 1)))
    journal.fail(2, ReturnedError("returned", receipt=Receipt("p", 2, 2)))
    journal.close(10)
    again = Sender(file)
    journal = open_journal(file, again)
    journal.start(again.post)
    until(lambda: again.sent)
    journal.close(10)
    assert [(one.sequence, one.attempts) for one in again.sent] == [(1, 1)]
    with SQLiteStore.look(file) as store:
        assert [(row.sequence, row.maybe_stored) for row in store.failed(10)] == [(2, True)]


def test_a_journal_that_dies_leaves_nobody_waiting(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not handed on fails, and so does what comes later."""
    sender = Sender(file)
    journal = open_journal(file, sender)

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(SQLiteStore, "put", broken)
    journal.start(sender.post)
    journal.put(message(1))
    assert journal.wait_kept(1, 10)
    until(lambda: sender.failed)
    with pytest.raises(OutboxError, match="broken"):
        journal.is_full(1)
    journal.close(10)
