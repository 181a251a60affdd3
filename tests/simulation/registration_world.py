"""
A world around production registrations: owners of one publisher id, a broker with one lock, and a registry that may forget.

What is modelled is what the protocol leans on. The lock has one holder, and stays with a dead connection until the broker
notices. What was on its way when a connection is cut may still arrive, and nothing after it. Requests lie in a queue: they
may be carried out long after whoever asked has given up. The registry is the one in memory, which passes the contract suite
of the one in Redis.
"""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from attrs import Factory, define, evolve, field, frozen

from dedup.core import registration as steps
from dedup.core.identity import RANGE_EPOCH_S
from dedup.core.ranges import range_of
from dedup.core.registration import Event, Registration
from dedup.core.registry import Act, Answer, Request
from dedup.errors import FencedError
from dedup.testing.registry import MemoryRegistry

PUBLISHER = "shop"
#: What holds the lock when it is no connection that its owner still has.
GHOST = "'s lost connection"
#: How long an owner waits for its own; far shorter than in production, so that a world comes to rest; seconds.
OWN_GRACE_S = 2.0


T = TypeVar("T")


@frozen
class Faults:
    """How many of each fault may happen, and of what else is bounded to keep a world small."""

    cuts: int = 0
    kills: int = 0
    freezes: int = 0
    #: Requests that are lost, and answers.
    losses: int = 0
    #: Times that an owner gives a question up, of which the answer still comes.
    silences: int = 0
    #: Requests that are carried out twice: a registry is killed before its ack.
    repeats: int = 0
    emptied: int = 0
    looks: int = 0
    ticks: int = 0


@define(slots=False)
class Clock:
    """The clock of everybody, in seconds since 2024."""

    now_s: int = 1000

    def __call__(self) -> float:
        return float(self.now_s + RANGE_EPOCH_S)


@define(slots=False)
class Link:
    """A connection as its owner sees it, with what is on its way to there."""

    cut: bool = False
    #: The lock was asked for, and the broker has not answered.
    locking: bool = False
    #: The lock was this connection's, at some time.
    granted: bool = False
    lock_reply: Event | None = None
    answers: list[Answer] = Factory(list)
    #: Who has registered, in the order of the hints.
    hints: list[str] = Factory(list)


@define(slots=False)
class Asked:
    """A request in the registry's queue."""

    owner: str
    request: Request
    #: There is still a connection that the answer can go to.
    reply: bool = True


@define(slots=False)
class Owner:
    """One process that wants the publisher id."""

    name: str
    takeover: bool = False
    machine: Registration = field(init=False)
    link: Link | None = None
    ready: bool = False
    #: A connection of its own has had the lock.
    had_lock: bool = False
    frozen: bool = False
    #: The try has failed; the next one comes after a pause.
    paused: bool = False
    #: Why it is no more: the name of an error, or "killed".
    ended: str = ""
    #: The question that its answer is awaited of.
    question: Request | None = None

    def __attrs_post_init__(self) -> None:
        self.machine = Registration(
            PUBLISHER, self.name, f"process {self.name}", takeover=self.takeover, own_grace_s=OWN_GRACE_S
        )

    def copy(self) -> Owner:
        """Return another owner that is the same: a registration remembers nothing but values."""
        owner = _twin(self)
        owner.machine = _twin(self.machine)
        if self.link is not None:
            owner.link = _twin(self.link)
            owner.link.answers, owner.link.hints = [*self.link.answers], [*self.link.hints]
        return owner


@define(slots=False)
class World:
    """Everything there is."""

    faults: Faults
    owners: dict[str, Owner]
    clock: Clock = Factory(Clock)
    registry: MemoryRegistry = field(init=False)
    #: Who has the lock; nobody: "".
    lock: str = ""
    requests: list[Asked] = Factory(list)
    #: Each range that was handed out and to whom, in order.
    handed: list[tuple[int, str]] = Factory(list)
    #: Owner -> range that it began to publish from.
    published: dict[str, int] = Factory(dict)
    #: The registry has lost its memory.
    forgot: bool = False
    broken: str = ""

    def __attrs_post_init__(self) -> None:
        self.registry = MemoryRegistry(self.clock)
        self.registry.age(100)

    def copy(self) -> World:
        """Return another world that is the same; what never changes is shared."""
        world = _twin(self)
        world.clock, world.registry = _twin(self.clock), _twin(self.registry)
        known = {name: copy(one) for name, one in vars(self.registry)["_known"].items()}
        vars(world.registry).update(_clock=world.clock, _known=known)
        world.owners = {name: owner.copy() for name, owner in self.owners.items()}
        world.requests = [_twin(asked) for asked in self.requests]
        world.handed, world.published = [*self.handed], {**self.published}
        return world

    def fail(self, fault: str) -> None:
        """Use up one fault."""
        self.faults = evolve(self.faults, **{fault: getattr(self.faults, fault) - 1})

    def breaks(self, rule: str) -> None:
        """Take note of the first rule that is broken."""
        self.broken = self.broken or rule

    # -- owners -----------------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        """Begin on a new connection."""
        self.owners[name].link = Link()
        self.begin(name)

    def begin(self, name: str) -> None:
        """Try to hold the publisher id on the connection of now."""
        owner = self.owners[name]
        owner.paused, owner.question = False, None
        self.tell(owner, steps.Connected())

    def see_loss(self, name: str) -> None:
        """Let an owner see that its connection is gone."""
        owner = self.owners[name]
        self._drop(owner)
        owner.ready = owner.paused = False
        owner.question = None
        self.tell(owner, steps.Disconnected())

    def hear_of_lock(self, name: str) -> None:
        """Let an owner hear what the broker says of the lock."""
        owner = self.owners[name]
        assert owner.link is not None
        assert owner.link.lock_reply is not None
        event, owner.link.lock_reply = owner.link.lock_reply, None
        self.tell(owner, event)

    def hear(self, name: str) -> None:
        """Let an owner hear the next answer of the registry."""
        owner = self.owners[name]
        assert owner.link is not None
        answer = owner.link.answers.pop(0)
        asked = owner.question
        awaited = asked is not None and asked.id == answer.id
        if awaited:
            owner.question = None
        record = answer.record
        newer = asked is not None and asked.act is Act.RENEW and record.base > owner.machine.base
        self.tell(owner, steps.Answered(answer), awaited=awaited)
        if awaited and newer and record.owner != name and owner.ended != FencedError.__name__:
            self.breaks(f"{name} was told of a newer owner and goes on")

    def hear_nothing(self, name: str) -> None:
        """Let an owner give its question up."""
        owner = self.owners[name]
        assert owner.question is not None
        asked, owner.question = owner.question, None
        self.tell(owner, steps.Unanswered("none in time", asked.id))

    def hear_hint(self, name: str) -> None:
        """Let an owner hear that somebody has registered."""
        link = self.owners[name].link
        assert link is not None
        self.tell(self.owners[name], steps.Told(link.hints.pop(0)))

    def look(self, name: str) -> None:
        """Let an owner ask whether it is still the newest."""
        self.tell(self.owners[name], steps.Nudged())

    def kill(self, name: str) -> None:
        """End a process; the broker does not know yet."""
        owner = self.owners[name]
        self._drop(owner)
        owner.ready, owner.ended = False, "killed"

    def freeze(self, name: str) -> None:
        """Stop a process for a while."""
        self.owners[name].frozen = True

    def wake(self, name: str) -> None:
        """Let it go on."""
        self.owners[name].frozen = False

    def tell(self, owner: Owner, event: Event, *, awaited: bool = False) -> None:
        """Let an owner hear something, perhaps the answer it awaited, and perform what it decides."""
        for effect in owner.machine.handle(event, float(self.clock.now_s)):
            link = owner.link
            assert link is not None, "it decides something without a connection"
            match effect:
                case steps.Lock():
                    link.locking = not link.cut
                case steps.Ask(request):
                    owner.question = request
                    if not link.cut:
                        self.requests.append(Asked(owner.name, request))
                case steps.Ready():
                    owner.ready = True
                    said = isinstance(event, steps.Answered) and event.answer.record.owner == owner.name
                    self._judge_ready(owner, link, said=said and awaited)
                case steps.Retry():
                    owner.paused = True
                case steps.End(error):
                    self._end(owner, type(error).__name__)
                    break

    def _end(self, owner: Owner, error: str) -> None:
        newest = max((number for number, name in self.handed if name != owner.name), default=0)
        if error == FencedError.__name__ and newest < range_of(owner.machine.base):
            self.breaks(f"{owner.name} is fenced and none is newer")
        orderly = owner.link is not None and not owner.link.cut
        self._drop(owner)
        owner.ready, owner.ended = False, error
        if orderly and self.lock == owner.name + GHOST:
            self.lock = ""

    def _judge_ready(self, owner: Owner, link: Link, *, said: bool) -> None:
        """Whoever begins has a base; the first time from the registry, later with its word or the lock."""
        first = owner.name not in self.published
        self.published[owner.name] = range_of(owner.machine.base)
        if not owner.machine.base:
            self.breaks(f"{owner.name} publishes and has no base")
        elif first and not said:
            self.breaks(f"{owner.name} believes the answer to a question that it had given up")
        elif first and not (owner.had_lock or owner.takeover):
            self.breaks(f"{owner.name} publishes without the lock")
        elif not first and not (link.granted or said):
            self.breaks(f"{owner.name} publishes with neither the lock nor the registry's word")

    def _drop(self, owner: Owner) -> None:
        owner.link = None
        for asked in self.requests:
            if asked.owner == owner.name:
                asked.reply = False
        if self.lock == owner.name:
            self.lock += GHOST

    # -- the broker -------------------------------------------------------------------------------

    def answer_lock(self, name: str) -> None:
        """Give the lock to an owner, or refuse it."""
        link = self.owners[name].link
        assert link is not None
        link.locking = False
        if self.lock in ("", name):
            self.lock, link.granted, link.lock_reply = name, True, steps.Locked()
            self.owners[name].had_lock = True
        else:
            link.lock_reply = steps.Held("405 locked")

    def cut(self, name: str) -> None:
        """Let nothing travel on a connection any more; neither end knows."""
        link = self.owners[name].link
        assert link is not None
        link.cut, link.locking = True, False
        for asked in self.requests:
            if asked.owner == name:
                asked.reply = False

    def notice(self) -> None:
        """See that the connection that has the lock is dead."""
        self.lock = ""

    def give_up(self, name: str) -> None:
        """Close a connection, of which its owner hears when it wakes up."""
        self.cut(name)
        if self.lock == name:
            self.notice()

    # -- the registry -----------------------------------------------------------------------------

    def carry_out(self, index: int, *, heard: bool = True, again: bool = False) -> None:
        """Carry out a request; it stays in the queue if it will be carried out *again*."""
        asked = self.requests[index]
        answer = self.registry.answer(asked.request)
        if not again:
            del self.requests[index]
        if asked.request.act is Act.REGISTER and answer.refusal is None:
            self._judge_handed(range_of(answer.record.base), asked.owner)
            self._hint(asked.owner)
        link = self.owners[asked.owner].link
        if heard and asked.reply and link is not None:
            link.answers.append(answer)

    def _judge_handed(self, number: int, name: str) -> None:
        if (number, name) in self.handed:
            return
        newest = max((one for one, _ in self.handed), default=0)
        if number <= newest:
            self.breaks(f"{name} registers after another and its range is not higher")
        self.handed.append((number, name))

    def _hint(self, registered: str) -> None:
        holder = self.owners.get(self.lock)
        if holder is not None and holder.link is not None and not holder.link.cut:
            holder.link.hints.append(registered)

    def lose(self, index: int) -> None:
        """Lose a request."""
        del self.requests[index]

    def empty(self) -> None:
        """Let Redis forget everything."""
        self.registry.empty()
        self.forgot = True

    def tick(self) -> None:
        """Let a second pass."""
        self.clock.now_s += 1


def _twin(thing: T) -> T:
    """Copy what has a dictionary, without the detours of copy()."""
    other = object.__new__(type(thing))
    vars(other).update(vars(thing))
    return other
