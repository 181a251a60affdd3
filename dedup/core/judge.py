"""Judge a batch of arrivals: what goes to the target, what to quarantine, what is dropped, what is marked."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from attrs import define, evolve

from dedup.core.bodies import Bodies
from dedup.core.parts import order_of
from dedup.core.publishers import Changes, Publishers
from dedup.core.questions import Question, Standing, stand
from dedup.core.records import Batch, Position, Sequences, State, by_publisher
from dedup.core.settings import RelaySettings
from dedup.core.steps import Arrival, Outgoing, Receipts, Report, Save
from dedup.core.window import Verdict

#: The reason of a message that closes the channel it is published on.
REFUSED_BY_BROKER = "refused-by-broker"
#: The reason of a message that the target has refused for too long.
REFUSED_BY_TARGET = "refused-by-target"
#: The reason of a message that is too old for the range of its publisher's newest: an older owner of the id sent it.
FENCED = "fenced"
#: The reason of a message whose sequence another message had, with another body.
CONFLICT = "conflict"


@define
class Judged:
    """
    One batch, from judgement until it is settled.
    """

    #: What is sent out, in order; dropped duplicates are not in it.
    outgoing: list[Outgoing]
    #: Every arrival but questions, in order.
    judged: Sequence[Outgoing]
    at_s: float
    #: Tag of its last delivery.
    last_tag: int
    verdicts: Mapping[Verdict, int]
    #: What is new in it.
    sequences: Sequences
    #: The part of *outgoing* that is not stored yet.
    remaining: Sequence[Outgoing]
    #: Questions among its deliveries, in order.
    questions: Sequence[Arrival] = ()
    #: Its number, from when it is intended.
    number: int = 0
    #: How often the target refused some of it.
    refusals: int = 0

    def refuse(self, indexes: Sequence[int]) -> None:
        """
        Take note that these of the *remaining* were refused and the others stored.
        """
        self.remaining = [self.remaining[index] for index in indexes]
        self.refusals += 1

    def put_aside(self) -> None:
        """
        Send what remains to quarantine from now on.
        """
        self.refusals = 0
        for out in self.remaining:
            out.reason = REFUSED_BY_TARGET

    def stored(self) -> list[Outgoing]:
        """
        Return what of *outgoing* is stored.
        """
        remaining = {id(out) for out in self.remaining}
        return [out for out in self.outgoing if id(out) not in remaining]

    def receipts(self) -> list[Receipts]:
        """
        Return what publishers that want it are to be told: one piece for each.
        """
        told: dict[str, list[tuple[int, str, str]]] = {}
        for out in self.judged:
            arrival = out.arrival
            if not arrival.wants_receipt or (out.verdict is not Verdict.DUPLICATE and not out.reason):
                continue
            if arrival.reentry is not None and out.verdict is Verdict.DUPLICATE:
                # Its publisher has sent it once, and may have settled it long ago.
                continue
            assert arrival.publisher is not None
            assert arrival.sequence is not None
            told.setdefault(arrival.publisher, []).append((arrival.sequence, *_fate(out)))
        return [Receipts(publisher, rows) for publisher, rows in told.items()]

    @property
    def quarantined(self) -> int:
        """
        Return how many go to quarantine.
        """
        return sum(1 for out in self.outgoing if out.reason)

    @property
    def conflicts(self) -> int:
        """
        Return how many have the sequence of another message.
        """
        return sum(1 for out in self.outgoing if out.reason == CONFLICT)

    @property
    def marked(self) -> int:
        """
        Return how many carry the mark.
        """
        return sum(1 for out in self.outgoing if out.marked)


class Judge:
    """
    The policy of the shim: publishers, what is in doubt, and what recovery made suspect.
    """

    def __init__(self, settings: RelaySettings, state: State, now_s: float, *, suspect: bool) -> None:
        #: What the broker flags as redelivered may be a copy the relay before has forwarded.
        #: Returned deliveries come first, so it ends with the first fresh one.
        self.suspect = suspect
        self.publishers = Publishers(
            state.entries,
            size=settings.window_size,
            publishers_max=settings.publishers_max,
            idle_s=settings.publisher_idle_s,
            unknown_uncertain=now_s < state.unknown_uncertain_until_s,
            message_ids_max=settings.message_ids_max,
            message_id_keep_s=settings.message_id_keep_s,
            message_ids_uncertain_until_s=state.message_ids_uncertain_until_s,
        )
        self._bodies = Bodies(state.bodies, settings.window_size)
        self.doubt = dict(state.doubt)
        #: In the windows, and not proven yet; see recovery.py.
        self.believed = state.believed
        #: The newest arrival that is a duplicate only if what is believed is true.
        self.spare: Arrival | None = None
        #: Tag of the oldest such arrival; 0: none has come.
        self._held_tag = 0
        #: What was believed has been proven since it was saved.
        self.proven = False
        #: The doubt has changed since it was saved.
        self.doubt_changed = False
        self._settings = settings
        #: When the spare is forwarded marked, for want of another message to prove the rest with.
        self._proof_due_s = now_s + settings.proof_wait_s
        self._unknown_until_s = state.unknown_uncertain_until_s
        self._message_ids_until_s = state.message_ids_uncertain_until_s
        self._strip_next = settings.strip_first

    def take(self, waiting: deque[Arrival], now_s: float) -> Judged:
        """
        Take the next batch from *waiting* (not empty) and judge it into the draft.
        """
        settings = self._settings
        judged: list[Outgoing] = []
        questions: list[Arrival] = []
        verdicts: Counter[Verdict] = Counter()
        #: What of the doubt goes out with this batch: a second copy of it is a duplicate.
        taken: set[tuple[str, int]] = set()
        count = size = tag = 0
        while waiting and count < settings.batch_max:
            arrival = waiting[0]
            size += arrival.size
            if count and size > settings.batch_bytes_max:
                break
            waiting.popleft()
            count += 1
            tag = arrival.tag
            self.suspect = self.suspect and arrival.redelivered
            if arrival.question is not None and not arrival.fault:
                questions.append(arrival)
                continue
            out = self._judge(arrival, now_s, taken)
            verdicts[out.verdict] += 1
            judged.append(out)
        outgoing = [out for out in judged if out.verdict is not Verdict.DUPLICATE or out.reason]
        if outgoing and self._strip_next:
            self._strip_next = False
            outgoing[0].reason, outgoing[0].stripped = REFUSED_BY_BROKER, True
        sequences = by_publisher(order_of(outgoing))
        return Judged(
            outgoing, judged, now_s, tag, verdicts, sequences, remaining=outgoing, questions=questions
        )

    def settle(self, batch: Judged, now_s: float) -> Changes:
        """
        Take *batch* as stored, except what remains of it; what was refused is as if never judged.
        """
        sequences = batch.sequences
        if batch.remaining:
            sequences = by_publisher(order_of(batch.stored()))
            self.publishers.abandon()
            for name, numbers in sequences.items():
                for number in numbers:
                    self.publishers.judge(name, number, now_s, redelivered=True)
        for name in sequences.keys() & self.doubt.keys():
            self.doubt_changed = True
            rest = self.doubt.pop(name).difference(sequences[name])
            if rest:
                self.doubt[name] = rest
        changes = self.publishers.settle(now_s, batch.number)
        if not self._settings.check_bodies:
            return changes
        return evolve(changes, bodies=self._bodies.settle(sequences, changes.evicted))

    def report(self, batch: Judged, evicted: Sequence[str], waiting: int) -> Report:
        """
        Tell what *batch* did, while *waiting* deliveries wait for the next one.
        """
        ids = self.publishers.message_ids
        early, ids.forgotten_early = ids.forgotten_early, 0
        return Report(
            batch.verdicts,
            forwarded=len(batch.outgoing) - batch.quarantined,
            quarantined=batch.quarantined,
            marked=batch.marked,
            evicted=evicted,
            publishers=len(self.publishers),
            waiting=waiting,
            message_ids=len(ids),
            message_ids_forgotten=early,
            conflicts=batch.conflicts,
            questions=len(batch.questions),
            unproven=self.spare is not None,
        )

    def doubt_all(self, batch: Judged) -> None:
        """
        Take everything new in *batch* as in doubt: nobody knows what was stored.
        """
        self.publishers.abandon()
        self._bodies.abandon()
        self._add_doubt(batch.sequences)

    def disbelieve(self, now_s: float) -> Arrival | None:
        """
        Take the spare as in doubt and return it, to be forwarded marked; None while that has time.

        What is in doubt already is on its way, and its confirm proves the rest as well.
        """
        arrival = self.spare
        if arrival is None or self.doubt or now_s < self._proof_due_s:
            return None
        self.spare = None
        assert arrival.known_by is not None
        name, number = arrival.known_by
        self._add_doubt({name: (number,)})
        return arrival

    def prove(self) -> None:
        """
        Take what was believed as in the target.
        """
        self.believed = self.spare = None
        self._held_tag = 0
        self.proven = True

    def ackable(self, tag: int) -> int:
        """
        Return up to which tag deliveries may be acknowledged when everything up to *tag* is settled.

        What is believed may be lost yet: its deliveries wait, and what came behind them.
        """
        return min(tag, self._held_tag - 1) if self._held_tag else tag

    def stand(self, question: Question) -> Standing:
        """
        Return how far the publisher of *question* has come: what is settled, and nothing of the draft.
        """
        name = question.publisher
        unproven = set(self.doubt.get(name, ()))
        if self.believed is not None:
            unproven.update(self.believed.sequences.get(name, ()))
        return stand(
            self.publishers.settled(name),
            question.sequence,
            size=self._settings.window_size,
            unproven=unproven,
            lost=self.publishers.unknown_uncertain,
        )

    def saved(self) -> None:
        """
        Take note that doubt and proof are in Redis.
        """
        self.doubt_changed = self.proven = False

    def _add_doubt(self, sequences: Sequences) -> None:
        self.doubt_changed = True
        for name, numbers in sequences.items():
            self.doubt[name] = self.doubt.get(name, frozenset()).union(numbers)

    def save(self, token: int, number: int, changes: Changes, intent: Batch | None, logged: Position) -> Save:
        """
        Return what Redis should be told of *changes*.
        """
        doubt = dict(self.doubt) if self.doubt_changed else None
        return Save(token, number, changes, intent, doubt, proven=self.proven, logged=logged)

    def state(
        self, writer: int, number: int, intent: Batch | None, logged: Position, *, clean: bool
    ) -> State:
        """
        Return everything that Redis should hold, the draft left out.
        """
        return State(
            number,
            writer,
            self.publishers.entries(),
            intent,
            dict(self.doubt),
            self.believed,
            clean,
            self._unknown_until_s,
            logged,
            self._message_ids_until_s,
            self._bodies.chunks(),
        )

    def _judge(self, arrival: Arrival, now_s: float, taken: set[tuple[str, int]]) -> Outgoing:
        """
        Say what becomes of one arrival.
        """
        suspect, known_by = self.suspect, arrival.known_by
        if arrival.fault:
            return Outgoing(arrival, Verdict.MALFORMED, arrival.fault, suspect)
        if arrival.returning and arrival.reentry is None:
            return Outgoing(arrival, Verdict.RETURNING, "", suspect)
        if known_by is None:
            reason = Verdict.UNTRACKED.value if self._settings.quarantine_untracked else ""
            return Outgoing(arrival, Verdict.UNTRACKED, reason, suspect)
        name, number = known_by
        depth = self.publishers.depth(name, number) if self._settings.audit else None
        verdict, uncertain = self.publishers.judge(name, number, now_s, redelivered=arrival.redelivered)
        if number in self.doubt.get(name, ()) and (name, number) not in taken:
            taken.add((name, number))
            uncertain = True
            # Windows may have what was believed too early.
            verdict = Verdict.NEW if verdict is Verdict.DUPLICATE else verdict
        if arrival.reentry is not None and (out := self._let_back(arrival, verdict, uncertain)) is not None:
            return out
        if verdict is Verdict.NEW:
            if arrival.digest and self._settings.check_bodies:
                self._bodies.note(name, number, arrival.digest)
            return Outgoing(arrival, verdict, "", uncertain, depth=depth)
        if verdict is Verdict.DUPLICATE and self._bodies.differs(name, number, arrival.digest):
            return Outgoing(arrival, verdict, CONFLICT, suspect, depth=depth)
        if verdict is Verdict.DUPLICATE:
            if self.believed is not None and number in self.believed.sequences.get(name, ()):
                self.spare = arrival
                self._held_tag = self._held_tag or arrival.tag
            return Outgoing(
                arrival, verdict, verdict.value if self._settings.park_duplicates else "", depth=depth
            )
        fenced = verdict is Verdict.TOO_OLD and self.publishers.has_newer_range(name, number)
        return Outgoing(arrival, verdict, FENCED if fenced else verdict.value, suspect, depth=depth)

    def _let_back(self, arrival: Arrival, verdict: Verdict, uncertain: bool) -> Outgoing | None:
        """
        Forward a message that comes back, unless it is a copy of one that was forwarded; marked where nobody can tell.
        """
        assert arrival.reentry is not None
        key, died_s = arrival.reentry.key, arrival.reentry.died_s
        if verdict is Verdict.DUPLICATE and not died_s > self.publishers.message_ids.forwarded_s(key):
            return None
        return Outgoing(arrival, Verdict.RETURNING, "", uncertain or verdict is Verdict.DUPLICATE)


def _fate(out: Outgoing) -> tuple[str, str]:
    """
    Return what a receipt says of a message that was not plainly forwarded, and why.
    """
    if out.verdict is Verdict.DUPLICATE and out.reason in ("", Verdict.DUPLICATE.value):
        return "duplicate", ""
    return "fenced" if out.reason == FENCED else "quarantined", out.reason
