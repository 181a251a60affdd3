"""
A small world around the production outbox: it is killed at every step, and started again.

Production code here: the journal of a publisher and the relay of a transactional outbox, turn by turn, with their outlet,
gate, store (its SQL runs on real SQLite) and repair; numbering, the sender, and the judgement of the shim. Modelled: the
application, the threads (each turn of one is a step, so turns meet in every order, but no turn is cut in two), what a crash
leaves (committed rows, what the broker has taken), the connection, the broker, and a shim that judges at once what the broker
takes.

A kill in the middle of a transaction is one before it, and one before its rows are handed on is one after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attrs import Factory, define, evolve

from dedup.amqp091.publishing import AMQP091, Content, seal
from dedup.core import sending
from dedup.core.numbers import Numbers
from dedup.core.sender import Sender
from dedup.core.sending import Event, Message, SenderSettings
from dedup.core.window import Verdict, judge
from dedup.errors import OutboxError
from dedup.outbox import repair
from dedup.outbox.journal import Journal
from dedup.outbox.relay import Relay, RelaySettings
from tests.simulation.outbox_rules import PUBLISHER, Known
from tests.simulation.sender_rules import BrokenRuleError, rule
from tests.simulation.sender_world import RANGE, turn_back

_ENVELOPE = seal(None, PUBLISHER)
#: Bytes nobody here runs out of.
_PLENTY = 2**30
#: A pause the sender plans; longer ones mean that the broker is silent.
_SHORT_S = 5.0
#: Turns a fair world gets to finish; far more than any world here needs.
_FAIR_TURNS_MAX = 300


class Still:
    """Stands for a lock, a condition and a thread where the world calls each turn itself."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify(self) -> None:
        """Wake nobody."""

    notify_all = start = notify

    def wait_for(self, holds: Callable[[], bool], _timeout_s: float | None = None) -> bool:
        """Wait for nothing."""
        return bool(holds())


class Thread:
    """The publishing thread that an outbox talks to: a sender, and what was posted to it."""

    def __init__(self, _id: str, _endpoints: Any, sender: Sender, **callbacks: Any) -> None:
        self.sender = sender
        self.on_confirmed, self.on_failed = callbacks["on_confirmed"], callbacks["on_failed"]
        self.posted: list[Message] = []

    def post(self, message: Message) -> None:
        """Take a message, to be seen in a turn of its own."""
        self.posted.append(message)


@define
class World(Known):
    """
    Application, table, process, connection, broker and shim at one moment.
    """

    #: None: the process is dead.
    thread: Thread | None = None
    journal: Journal | None = None
    relay: Relay | None = None
    numbers: Numbers | None = None
    #: Numbers of the registration of now lie above this.
    base: int = RANGE
    faults: Counter[str] = Factory(Counter)

    # -- choices ------------------------------------------------------------------------------

    def choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """
        Yield everything that can happen next, by name.
        """
        if self.scenario.relayed:
            yield from self._application_choices()
        if self.thread is None:
            yield from self._dead_choices()
            return
        if self.faults["kill"]:
            yield "KILL", lambda world: world.spend("kill").kill()
        if self.faults["stop"]:
            yield "stop in order", lambda world: world.spend("stop").stop()
        if not self.scenario.relayed and self.asked < self.scenario.messages:
            yield f"keep m{self.asked + 1}", World.keep
        if self._has_turn():
            yield "a turn of the outbox", World.turn
            if self.journal is not None and self.faults["disk"]:
                yield "a turn whose transaction fails", lambda world: world.spend("disk").turn(fails=True)
        if self.thread.posted:
            yield "the sender takes what was posted", World.take
        yield from self._channel_choices(self.thread.sender)

    def _application_choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        if self.asked < self.scenario.messages:
            yield f"m{self.asked + 1} is enqueued", World.enqueue
        for row_id in self.open:
            yield f"m{row_id} is committed", partial(World.commit, row_id=row_id)
            if self.faults["rollback"]:
                yield f"m{row_id} is rolled back", partial(World.roll_back, row_id=row_id)

    def _dead_choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        yield "start", World.start
        if self.faults["range"]:
            yield "start with a new range of numbers", lambda world: world.spend("range").renew().start()
        if self.faults["retry"] and any(row.failure is not None for row in self.table.rows.kept):
            yield (
                "the queue is bound again, and what failed is retried",
                lambda world: world.spend("retry").retry(),
            )

    def _channel_choices(self, sender: Sender) -> Iterator[tuple[str, Callable[[World], None]]]:
        if self.channel == "asked":
            yield "open", World.open_channel
        elif self.channel == "open":
            if self.wire:
                yield "the broker takes one", World.serve
                if self.faults["nack"]:
                    yield "the broker nacks one", lambda world: world.spend("nack").nack()
                if self.faults["unbind"]:
                    yield "the queue is unbound", lambda world: world.spend("unbind").unbind()
            if self.replies:
                yield "hear the broker", World.hear
            if self.faults["cut"]:
                yield "the connection is lost", lambda world: world.spend("cut").lose()
        due = sender.wake_at()
        if due is not None and due < _SHORT_S:
            yield "time", World.pass_time

    def _has_turn(self) -> bool:
        journal = self.journal
        if journal is None:
            return True
        return bool(journal._puts or journal._settled or journal._failures or journal._has_backlog())

    def spend(self, fault: str) -> World:
        self.faults[fault] -= 1
        return self

    # -- the application ----------------------------------------------------------------------

    def keep(self) -> None:
        """Keep one message, as a publisher with an outbox does."""
        assert self.numbers is not None
        assert self.journal is not None
        self.asked += 1
        body = b"m%d" % self.asked
        sequence = self.numbers.take(None)
        self.puts[sequence] = body
        message = Message(sequence, "", "orders", Content(_ENVELOPE, body), len(body) + _ENVELOPE.size)
        self.journal.put(message)

    def enqueue(self) -> None:
        """Begin a transaction whose row has its id."""
        self.asked += 1
        self.before[b"m%d" % self.asked] = frozenset(self.committed)
        self.open = (*self.open, self.asked)

    def commit(self, row_id: int) -> None:
        self.open = tuple(other for other in self.open if other != row_id)
        self.table.insert(row_id, b"m%d" % row_id)
        self.look()

    def roll_back(self, row_id: int) -> None:
        self.spend("rollback")
        self.open = tuple(other for other in self.open if other != row_id)

    # -- the process --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with what the table holds."""
        self.puts, self.refused = {}, frozenset()
        size = self.scenario.window_size
        if self.scenario.relayed:
            settings = RelaySettings(window_size=size, register=False)
            wire = evolve(AMQP091, thread=Thread)  # type: ignore[arg-type]
            relay = Relay(self.table, wire, "amqp://localhost", PUBLISHER, settings, progress=_ignore)
            relay._news, relay._base = Still(), self.base  # type: ignore[assignment]
            self.relay, self.thread = relay, relay._thread  # type: ignore[assignment]
        else:
            self._start_journal(size)
        self.look()
        self.tell(sending.Tick())

    def _start_journal(self, size: int) -> None:
        self.journal = journal = Journal(
            self.table,
            AMQP091,
            PUBLISHER,
            span=size // 2,
            rows_max=_PLENTY,
            bytes_max=_PLENTY,
            buffer_bytes_max=_PLENTY,
            body_bytes_max=_PLENTY,
            on_failed=self.refuse,
            on_room=_ignore,
        )
        journal._lock = journal._work = journal._answer = journal._thread = Still()  # type: ignore[assignment]
        self.numbers = Numbers(size // 2, newest=journal.newest, fills=False)
        self.numbers.begin(self.base)
        sender = Sender(SenderSettings(PUBLISHER, window_size=size, unconfirmed_max=size // 2))
        self.thread = Thread("", None, sender, on_confirmed=journal.settle, on_failed=journal.fail)
        journal.start(self.thread.post)

    def refuse(self, sequence: int, error: Exception) -> None:
        """Hear that a message could not be kept."""
        rule(isinstance(error, OutboxError), "only the outbox refuses to keep")
        self.refused |= {sequence}

    def turn(self, *, fails: bool = False) -> None:
        """Write what has happened, hand on what may be sent."""
        self.table.fails = fails
        if self.journal is not None:
            self.journal._turn()
            self.check_promises(self.journal._answered)
        else:
            assert self.relay is not None
            self.relay._turn()
        self.table.fails = False
        self.look()

    def take(self) -> None:
        assert self.thread is not None
        posted, self.thread.posted = self.thread.posted, []
        self.tell(sending.Submitted(posted))

    def kill(self) -> None:
        """End the process and its connection; what is committed and what the broker has taken is left."""
        self.thread = self.journal = self.relay = self.numbers = None
        self.forget_channel()

    def stop(self) -> None:
        """End as a publisher's close and a relay that is asked to stop do."""
        if self.relay is not None:
            self.relay._turn(claim=False)
        else:
            assert self.journal is not None
            self.tell(sending.Stopped())
            journal = self.journal
            while journal._puts or journal._settled or journal._failures:
                journal._turn(last=True)
            self.check_promises(journal._answered)
        self.look()
        self.kill()

    def renew(self) -> World:
        self.base += RANGE
        return self

    def retry(self) -> None:
        """Do what an operator does when the reason is gone."""
        self.bound, self.in_order = True, False
        done = repair.retry(self.table, None, window_size=self.scenario.window_size)
        for row in self.table.rows.kept:
            if row.id in done.renumbered:
                self.numbered.pop(row.body, None)
        self.look()

    # -- connection and broker ----------------------------------------------------------------

    def open_channel(self) -> None:
        self.channel = "open"
        self.tell(sending.Opened())

    def lose(self) -> None:
        self.forget_channel()
        self.tell(sending.Lost("cut"))

    def forget_channel(self) -> None:
        self.channel, self.tag, self.wire, self.replies = None, 0, (), ()

    def serve(self) -> None:
        """Take the next publish: the shim judges it, the confirm is on its way."""
        (tag, sequence, body), self.wire = self.wire[0], self.wire[1:]
        if not self.bound and (self.unbound or body in self.scenario.unroutable):
            self.replies = (*self.replies, ("return", tag, sequence))
        else:
            verdict, self.window = judge(self.window, sequence, self.scenario.window_size)
            rule(verdict is not Verdict.TOO_OLD, "nothing is too old for the window")
            if verdict is Verdict.NEW:
                self.store(sequence, body)
        self.replies = (*self.replies, ("ack", tag, sequence))

    def nack(self) -> None:
        (tag, sequence, _), self.wire = self.wire[0], self.wire[1:]
        self.replies = (*self.replies, ("nack", tag, sequence))
        self.in_order = False

    def unbind(self) -> None:
        self.unbound, self.bound = True, False

    def hear(self) -> None:
        """Hear the oldest answer; a return comes with the ack behind it."""
        while self.replies:
            (kind, tag, sequence), self.replies = self.replies[0], self.replies[1:]
            if kind != "return":
                self.tell(sending.Confirms([(tag, False, kind == "ack")]))
                return
            self.tell(sending.Returned(sequence, 312, "NO_ROUTE"))

    def pass_time(self) -> None:
        assert self.thread is not None
        self.tell(sending.Tick(), passed_s=max(0.0, self.thread.sender.wake_at() or 0.0))

    def tell(self, event: Event, passed_s: float = 0.0) -> None:
        """Hand *event* to the sender, and do what it says."""
        assert self.thread is not None
        sender = self.thread.sender
        effects = sender.handle(event, passed_s)
        turn_back(sender, passed_s)
        for effect in effects:
            match effect:
                case sending.Open():
                    self.channel = "asked"
                case sending.Drop():
                    self.forget_channel()
                case sending.Send():
                    for message in effect.messages:
                        message.first_sent_at = 0.0
                        self.sent(message.sequence, message.content.body)
                case sending.Confirmed():
                    self.thread.on_confirmed(effect.messages)
                case sending.Failed():
                    self.thread.on_failed(effect.sequence, effect.error)


def finish(world: World) -> None:
    """
    Let the faults end: everything that was kept must arrive, and the table must be empty but for what failed.
    """
    for _ in range(_FAIR_TURNS_MAX):
        if world.thread is None:
            world.start()
        elif world.open:
            world.commit(world.open[0])
        else:
            before = world.table.rows, len(world.thread.posted)
            if world._has_turn():
                world.turn()
            if (world.table.rows, len(world.thread.posted)) == before and not _move(world):
                break
    if left := world.unfinished():
        raise BrokenRuleError(f"when the faults end everything arrives and the table empties: {left}")


def _move(world: World) -> bool:
    """
    Let sender and broker do one thing; return whether there was one.
    """
    assert world.thread is not None
    if world.thread.posted:
        world.take()
    elif world.channel == "asked":
        world.open_channel()
    elif world.replies:
        world.hear()
    elif world.wire:
        world.serve()
    elif world.thread.sender.wake_at() is not None:
        world.pass_time()
    else:
        return False
    return True


def _ignore(*_: object) -> None:
    """Need nothing."""
