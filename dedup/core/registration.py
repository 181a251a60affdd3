"""
Hold a publisher id: what a publisher does about its lock and its range, on one connection after the other.

Theory of operation
-------------------
The *lock* is an exclusive queue: the broker refuses a second connection (405) and frees it when the holder's connection is
gone. The *range* comes from the registry and makes the numbers of a newer owner higher, whatever the lock says. The first
connection needs both; a later one needs the lock, or the word of the registry that its base is the newest.

    no base yet                lock taken    ask for a range; READY with the answer
                               lock refused  take over: ask for a range. Else ask who holds it. Itself: its answer was lost
                                             with a connection that may have the lock still: READY with the range it has.
                                             Else RETRY for as long as a killed process' connection may take to go, or its
                                             own, if it has had the lock; then END: already registered
    a base, a new connection   lock taken    READY, and ask whether the base is the newest
                               lock refused  ask first: if it is, the own lost connection has the lock, which the broker may
                                             not know to be dead for minutes: READY. No answer: RETRY
    READY, in doubt            lock held     ask whether the base is the newest
                               not held      try the lock again, and ask
    any answer that the newest base is higher, or another owner's and not lower: END, fenced

So the later registration wins by its numbers, and the lock decides who may make one. A registry that does not answer stops
no publisher that has base and lock. RETRY ends the try; when the next one comes is the sender's business.
"""

from __future__ import annotations

from attrs import evolve, frozen

from dedup.core.registry import Act, Answer, Record, Refusal, Request
from dedup.errors import (
    DedupError,
    FencedError,
    PublisherAlreadyRegisteredError,
    RegistryUnavailableError,
    TopologyError,
)

#: How long a first registration waits for a lock that is held: a killed process' connection goes within milliseconds.
HELD_GRACE_S = 1.0
#: The same for a lock that it has had itself: the broker may take a lost connection for alive until two heartbeats are missed.
OWN_GRACE_S = 75.0
_START = 'start a shim or "dedup registry" on this virtual host, or publish with registration="local"'


# -- events ---------------------------------------------------------------------------------------


@frozen
class Connected:
    """There is a connection."""


@frozen
class Locked:
    """The lock is this connection's."""


@frozen
class Held:
    """The broker refused the lock: another connection has it."""

    text: str


@frozen
class Barred:
    """The broker refused for a reason that is not about who holds the lock: permissions, or a queue of another kind."""

    text: str


@frozen
class Answered:
    """The registry has answered the question of now."""

    answer: Answer


@frozen
class Unanswered:
    """It has not, in time; or it cannot be asked."""

    reason: str
    #: Which question; 0 for the one of now.
    id: int = 0


@frozen
class Told:
    """Whoever registers is told to the lock's queue; anybody can write there, so it is a hint and no more."""

    owner: str


@frozen
class Nudged:
    """It is time to look whether the base is still the newest."""


@frozen
class Disconnected:
    """The connection is gone, and the lock with it."""


Event = Connected | Locked | Held | Barred | Answered | Unanswered | Told | Nudged | Disconnected


# -- effects --------------------------------------------------------------------------------------


@frozen
class Lock:
    """Declare the exclusive queue."""


@frozen
class Ask:
    """Ask the registry; Answered or Unanswered follows."""

    request: Request


@frozen
class Ready:
    """Publishing may begin on the connection of now."""


@frozen
class Retry:
    """The try has failed; begin again with the connection, if it lives, after a pause."""

    error: DedupError


@frozen
class End:
    """Nothing more is published under this id."""

    error: DedupError


Effect = Lock | Ask | Ready | Retry | End


class Registration:
    """
    Decide how one owner holds one publisher id.

    Args:
        publisher_id: valid.
        owner: a nonce of letters and digits; no two owners have the same.
        holder: who that is, for people: host, process, since when.
        takeover: do not wait for the lock: be the newest owner at once.
        last: the highest sequence that is known to have been used under this id; 0 for none.
        held_grace_s: how long a first registration waits for a lock that is held.
        own_grace_s: the same for a lock that it has had itself.
    """

    def __init__(
        self,
        publisher_id: str,
        owner: str,
        holder: str,
        *,
        takeover: bool = False,
        last: int = 0,
        held_grace_s: float = HELD_GRACE_S,
        own_grace_s: float = OWN_GRACE_S,
    ) -> None:
        #: The first sequence is the one after it; 0: not registered yet.
        self.base = 0
        self._request = Request(Act.REGISTER, publisher_id, owner, holder, last)
        self._takeover = takeover
        self._held_grace_s = held_grace_s
        self._own_grace_s = own_grace_s
        self._locked = self._ready = False
        #: A connection of its own has had the lock.
        self._had_lock = False
        #: When the lock was refused first.
        self._held_at: float | None = None
        #: What the broker said about it.
        self._held = ""
        #: The question of now; None: none is open.
        self._asked: Act | None = None
        self._asked_count = 0
        #: A hint came while a question was open, whose answer may be older.
        self._told = False

    @property
    def is_locked(self) -> bool:
        """
        Whether the connection of now has the lock.
        """
        return self._locked

    def handle(self, event: Event, now: float) -> list[Effect]:
        """
        Take one event and return what to do, in order; late news means nothing.

        Args:
            event: what happened.
            now: seconds on any clock that does not go back.
        """
        match event:
            case Connected():
                self._locked = self._ready = False
                self._asked = None
                return [Lock()]
            case Disconnected():
                self._locked = self._ready = False
                self._asked = None
                return []
            case Locked():
                self._locked = self._had_lock = True
                self._held_at = None
                return self._go_on()
            case Held():
                return self._refused(event.text, now)
            case Barred():
                return self._barred(event.text)
            case Told() if self._ready and event.owner != self._request.owner:
                self._told = self._asked is not None
                return [] if self._told else [self._ask(Act.RENEW)]
            case Nudged() if self._ready:
                return [self._ask(Act.RENEW)] if self._locked else [Lock()]
            case Answered() if self._asked is not None and event.answer.id == self._asked_count:
                act, self._asked = self._asked, None
                return self._heard(act, event.answer, now)
            case Unanswered() if self._asked is not None and event.id in (0, self._asked_count):
                act, self._asked = self._asked, None
                return self._unheard(act, event.reason, now)
        return []

    def _go_on(self) -> list[Effect]:
        if not self.base:
            return [self._ask(Act.REGISTER)]
        effects: list[Effect] = [] if self._ready else [Ready()]
        self._ready = True
        return [*effects, self._ask(Act.RENEW)]

    def _refused(self, text: str, now: float) -> list[Effect]:
        self._held = text
        if self._held_at is None:
            self._held_at = now
        if self._takeover and not self.base:
            return [self._ask(Act.REGISTER)]
        return [self._ask(Act.RENEW if self.base else Act.SHOW)]

    def _barred(self, text: str) -> list[Effect]:
        error = TopologyError(
            f"publisher {self._request.publisher_id!r} cannot be registered: {text}; docs/howto/permissions.md has the "
            'rights it needs, registration="local" needs none'
        )
        self._asked = None
        if self._ready:
            return []
        return [Retry(error) if self.base else End(error)]

    def _heard(self, act: Act, answer: Answer, now: float) -> list[Effect]:
        if answer.refusal is Refusal.INVALID and act is Act.REGISTER:
            return [End(DedupError(f"the registry refused {self._request.publisher_id!r}: {answer.text}"))]
        if answer.refusal is not None:
            return self._unheard(act, f"it cannot now: {answer.text or answer.refusal.value}", now)
        record = answer.record
        if act is Act.SHOW:
            return self._held_by(record, now)
        if act is Act.REGISTER:
            if not record.base or record.owner != self._request.owner:
                return self._unheard(act, "its answer is about another owner", now)
            return self._begin(record)
        # A higher one of its own: a question it had given up was carried out late, behind whoever came meanwhile.
        if record.base > self.base or (record.base == self.base and record.owner != self._request.owner):
            return [End(self._fenced(record))]
        effects: list[Effect] = [] if self._ready else [Ready()]
        self._ready = True
        return effects + self._ask_again()

    def _begin(self, record: Record) -> list[Effect]:
        self.base = record.base
        self._ready = True
        return [Ready()]

    def _unheard(self, act: Act, reason: str, now: float) -> list[Effect]:
        if act is Act.REGISTER:
            return [Retry(RegistryUnavailableError(f"no registry answers ({reason}); {_START}"))]
        if act is Act.SHOW:
            return self._held_by(Record(), now)
        if self._ready:
            return self._ask_again()
        name = self._request.publisher_id
        return [
            Retry(
                RegistryUnavailableError(
                    f"publisher id {name!r} is held, by the lost connection as it seems, and no registry says so ({reason}); "
                    f"{_START}"
                )
            )
        ]

    def _ask_again(self) -> list[Effect]:
        """
        Ask once more if a hint came meanwhile.
        """
        told, self._told = self._told, False
        return [self._ask(Act.RENEW)] if told else []

    def _held_by(self, record: Record, now: float) -> list[Effect]:
        assert self._held_at is not None
        if record.owner == self._request.owner:
            return self._begin(record)
        grace_s = self._own_grace_s if self._had_lock else self._held_grace_s
        error = self._already(record)
        return [End(error) if now - self._held_at >= grace_s else Retry(error)]

    def _ask(self, act: Act) -> Ask:
        self._asked = act
        self._asked_count += 1
        last = self.base if act is Act.RENEW else self._request.last
        return Ask(evolve(self._request, act=act, last=last, id=self._asked_count))

    def _already(self, record: Record) -> PublisherAlreadyRegisteredError:
        name, holder = self._request.publisher_id, record.holder
        by = f"by {holder}" if holder else "by a connection that the registry knows nothing of"
        if self._had_lock:
            by += ", or this is its own connection that was lost, until the broker notices"
        return PublisherAlreadyRegisteredError(
            f"publisher id {name!r} is registered already {by}; stop that publisher, use another id, or pass takeover=True "
            f"(the broker: {self._held})",
            publisher_id=name,
            holder=holder,
        )

    def _fenced(self, record: Record) -> FencedError:
        name = self._request.publisher_id
        return FencedError(
            f"publisher id {name!r} has a newer owner: {record.holder or 'unknown'}; messages of this one that come behind its "
            'first one end in quarantine with the reason "fenced"; make a new publisher, under another id if both stay'
        )
