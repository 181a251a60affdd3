"""
The retrier: keep dead letters until they are due, and send each back to the queue it died in.

Theory of operation
-------------------
Many sessions share one dead-letter queue and one schedule. Each has a *fence*: an exclusive queue on the
very connection it publishes with. The broker deletes it when that connection dies, and not before; the
channel ends a moment later, with what it has in hand. So whoever finds the fence gone, and a sweep later
still gone, knows that nothing more will come of that session.

    in    1 store     the message and its digest, in one step; nothing for a digest that is known
          2 ack       the dead letter
          3 probe     whether the ack has arrived: a request behind it, on its channel
          4 forget    the digest, long after the answer
    out   5 claim     what is due moves from the schedule to this session, in one step
          6 publish   to the queue it died in, through the default exchange, mandatory and confirmed
          7 settle    delete it

What a crash after each step leaves, and what the next session makes of it:

    1     the broker delivers again, the digest is known: a stamped message is the same one and only
          acknowledged; an unstamped one may be a twin, so it is stored once more, marked
    2-4   a digest that nobody asks for; it is dropped after a week
    5, 6  the fence is gone: what was claimed is put back as doubtful, and published marked
    7     nothing

A letter that is delivered while another session's digest of it is there may be a copy; while only this
session's own is there it is a twin, for the broker does not deliver a message again on the channel that
holds it. An ack has no answer, so a probe follows it; the digest outlives that by longer than the broker
needs to write the ack down.

What is too large for the schedule goes past it: its digest is stored without it, then it is published, and
acknowledged only when the confirm is there; marked if the digest was known.

Invariants: no Ack before the letter is stored, known to be, or published with a confirm; no Publish of what
is not claimed or written down; no Settle of what has no confirm; one Store and one Publish at a time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dedup.core import retry_steps as steps
from dedup.core.backoff import delay_s
from dedup.core.digests import Digests
from dedup.core.obituaries import Reason
from dedup.core.retry_settings import Phase, RetrySettings
from dedup.core.retry_steps import Effect, Entry, Event, Item, Kept, Letter, Sent
from dedup.core.schedule import Bury, decide


class Retrier:
    """
    One session of retrying the letters of one dead-letter queue; see the theory of operation above.

    handle() is total: an event that nothing waits for changes nothing.
    """

    def __init__(self, settings: RetrySettings) -> None:
        self.settings = settings
        self.phase = Phase.NEW
        #: Letters that have come and are not stored, with the deliveries' order kept.
        self._waiting: deque[Letter] = deque()
        #: What the schedule is asked to take.
        self._storing: Sequence[Entry] = ()
        self._stores = 0
        #: There is no room; since when letters wait for it.
        self._full = False
        self._full_since_s = 0.0
        #: Letters that go past the schedule.
        self._direct: deque[Item] = deque()
        self._direct_at_s = 0.0
        self._claiming = False
        self._publishing: list[Item] = []
        #: Items of the batch under way with their answers.
        self._done: list[Item] = []
        self._refused: list[Item] = []
        self._settling = False
        #: Batches in a row of which the broker refused something.
        self._refusals = 0
        self._bury_first = settings.bury_first
        self._digests = Digests(settings.keep_s)
        #: Messages that may be published now, and when that was worked out.
        self._allowance = 0.0
        self._allowed_s = 0.0
        self._claim_at_s = self._sweep_at_s = 0.0

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """
        Take note of *event* at *now_s* (seconds of a clock that never goes back) and return what to do, in order.
        """
        effects: list[Effect] = getattr(self, _HANDLERS[type(event)])(event, now_s)
        return effects

    # -- beginning --------------------------------------------------------------------------------

    def _on_started(self, _: steps.Started, now_s: float) -> list[Effect]:
        if self.phase is not Phase.NEW:
            return []
        self.phase = Phase.REGISTERING
        self._allowed_s = now_s
        return [steps.Register()]

    def _on_registered(self, event: steps.Registered, now_s: float) -> list[Effect]:
        if self.phase is not Phase.REGISTERING:
            return []
        self.phase = Phase.WORKING
        self._sweep_at_s = now_s + self.settings.sweep_s
        return [
            steps.Notice("dedup.retrying", {"dead_letter_queue": self.settings.dead_letter_queue}),
            steps.Sweep(),
            *(self._consume() if event.room else self._stop_consuming(now_s)),
            *self._advance(now_s),
        ]

    # -- in ---------------------------------------------------------------------------------------

    def _on_arrived(self, event: steps.Arrived, now_s: float) -> list[Effect]:
        self._waiting.extend(event.letters)
        return self._advance(now_s)

    def _store(self) -> list[Effect]:
        """
        Have the next batch of letters written down.
        """
        if self.phase is not Phase.WORKING or self._storing or self._full or not self._waiting:
            return []
        entries: list[Entry] = []
        size = 0
        twins: Counter[bytes] = Counter()
        for letter in self._waiting:
            size += letter.size
            if entries and (len(entries) == self.settings.batch_max or size > self.settings.batch_bytes_max):
                break
            entries.append(self._entry(letter, twins[letter.digest]))
            twins[letter.digest] += 1
        self._storing = entries
        self._stores += 1
        return [steps.Store(self._stores, entries)]

    def _entry(self, letter: Letter, twins: int) -> Entry:
        death = letter.history.newest
        decision = decide(
            letter.history,
            letter.retries,
            backoff=self.settings.queues.get(death.queue if death else "", self.settings.backoff),
            dead_letter_queue=self.settings.dead_letter_queue,
            jitter=letter.jitter,
        )
        entry = Entry(letter, decision.queue, own=self._digests.count(letter.digest) + twins)
        if isinstance(decision, Bury):
            entry.reason, entry.attempt = decision.reason, letter.retries or 0
        else:
            entry.delay_s, entry.attempt = decision.delay_s, decision.attempt
        if letter.size > self.settings.message_bytes_max:
            entry.direct = True
            if entry.reason is None:
                entry.reason, entry.attempt = Reason.TOO_LARGE, entry.attempt - 1
        return entry

    def _on_stored(self, event: steps.Stored, now_s: float) -> list[Effect]:
        if not self._storing:
            return []
        entries, self._storing = self._storing, ()
        acks: list[int] = []
        counts: Counter[str] = Counter()
        for entry, kept in zip(entries, event.kept, strict=False):
            letter = self._waiting.popleft()
            assert letter is entry.letter
            if entry.direct:
                self._digests.hold(letter.digest)
                place = (entry.queue, entry.reason, entry.attempt, kept is not Kept.NEW)
                self._direct.append(Item("", *place, letter.payload, letter.tag, letter.digest))
                continue
            counts["known" if kept is Kept.KNOWN else "marked" if kept is Kept.DOUBTFUL else "scheduled"] += 1
            self._digests.hold(letter.digest)
            acks.append(letter.tag)
            self._digests.acknowledge([letter.digest])
        effects: list[Effect] = [steps.Ack(acks)] if acks else []
        if counts:
            facts = {key: counts[key] for key in ("scheduled", "marked", "known")}
            effects.append(steps.Notice("dedup.scheduled", facts))
        if len(event.kept) < len(entries):
            effects += self._stop_consuming(now_s)
        return [*effects, *self._advance(now_s)]

    def _consume(self) -> list[Effect]:
        self._full = False
        return [steps.Consume()]

    def _stop_consuming(self, now_s: float) -> list[Effect]:
        self._full = True
        self._full_since_s = now_s
        return [steps.Pause(), steps.Notice("dedup.schedule_full", {"waiting": len(self._waiting)})]

    def _on_looked(self, event: steps.Looked, now_s: float) -> list[Effect]:
        if not (self._full and event.room and self.phase is Phase.WORKING):
            return []
        return [*self._consume(), steps.Notice("dedup.schedule_has_room", {}), *self._advance(now_s)]

    def _give_back(self, now_s: float) -> list[Effect]:
        """
        Return what has waited for room too long, before the broker takes it back and the channel with it.
        """
        if not self._full or not self._waiting or now_s - self._full_since_s < self.settings.hold_s:
            return []
        tags = [letter.tag for letter in self._waiting]
        self._waiting.clear()
        return [steps.GiveBack(tags)]

    def _probe(self) -> list[Effect]:
        return [steps.Probe()] if self._digests.probe() else []

    def _on_probed(self, _: steps.Probed, now_s: float) -> list[Effect]:
        self._digests.probed(now_s)
        return []

    def _forget(self, now_s: float) -> list[Effect]:
        digests = self._digests.forget(now_s, 10 * self.settings.batch_max)
        return [steps.Forget(digests)] if digests else []

    # -- out --------------------------------------------------------------------------------------

    def _send(self, now_s: float) -> list[Effect]:
        """
        Publish what goes past the schedule, else ask for what is due.
        """
        if self._claiming or self._publishing or self._settling:
            return []
        if self._direct and now_s >= self._direct_at_s:
            batch: list[Item] = []
            while self._direct and len(batch) < self.settings.batch_max:
                batch.append(self._direct.popleft())
            return self._publish(batch)
        if self.phase is not Phase.WORKING or now_s < self._claim_at_s:
            return []
        self._allowance += (now_s - self._allowed_s) * self.settings.rate_max
        self._allowed_s = now_s
        # A second's worth at once at the most, but always one.
        self._allowance = min(self._allowance, max(1.0, self.settings.rate_max))
        at_most = min(int(self._allowance), self.settings.batch_max)
        if at_most < 1:
            return []
        self._claiming = True
        return [steps.Claim(at_most, self.settings.batch_bytes_max)]

    def _on_claimed(self, event: steps.Claimed, now_s: float) -> list[Effect]:
        if not self._claiming:
            return []
        self._claiming = False
        if not event.items:
            self._claim_at_s = now_s + self.settings.poll_s
            return self._advance(now_s)
        self._allowance -= len(event.items)
        return self._publish(list(event.items))

    def _publish(self, items: list[Item]) -> list[Effect]:
        if self._bury_first:
            self._bury_first = False
            items[0].reason = Reason.REFUSED
        self._publishing = items
        return [steps.Publish(tuple(items))]

    def _on_published(self, event: steps.Published, now_s: float) -> list[Effect]:
        """
        Sort a batch by what the broker said; what has nowhere to go gets an obituary now.
        """
        if not self._publishing:
            return []
        items, self._publishing = self._publishing, []
        buried: list[Item] = []
        for item, sent in zip(items, event.sent, strict=True):
            if sent is Sent.STORED:
                self._done.append(item)
            elif sent is Sent.REFUSED or (item.reason and sent is Sent.RETURNED):
                self._refused.append(item)
            elif item.reason is Reason.REFUSED:
                self._refused.append(item)  # not even its body alone
            else:
                item.reason = Reason.QUEUE_GONE if sent is Sent.RETURNED else Reason.REFUSED
                item.attempt -= 1
                buried.append(item)
        if buried:
            return self._publish(buried)
        return self._settle(now_s)

    def _settle(self, now_s: float) -> list[Effect]:
        done, refused = self._done, self._refused
        self._done, self._refused = [], []
        effects: list[Effect] = []
        acks = [item.tag for item in done if not item.id]
        if acks:
            effects.append(steps.Ack(acks))
            self._digests.acknowledge(item.digest for item in done if not item.id)
        # They wait here: their dead letters are not acknowledged.
        self._direct.extend(item for item in refused if not item.id)
        self._refusals = self._refusals + 1 if refused else 0
        pause_s = delay_s(
            max(0, self._refusals - 1),
            0.0,
            first_s=self.settings.refused_delay_s_min,
            max_s=self.settings.refused_delay_s_max,
        )
        if refused:
            self._direct_at_s = now_s + pause_s
            effects.append(
                steps.Notice("dedup.retry_refused", {"messages": len(refused), "retry_in_s": pause_s})
            )
        effects += _report(done)
        if not any(item.id for item in (*done, *refused)):
            return [*effects, *self._advance(now_s)]
        self._settling = True
        ids = [item.id for item in done if item.id], [item.id for item in refused if item.id]
        return [*effects, steps.Settle(*ids, pause_s)]

    def _on_settled(self, _: steps.Settled, now_s: float) -> list[Effect]:
        if not self._settling:
            return []
        self._settling = False
        return self._advance(now_s)

    # -- time and the end -------------------------------------------------------------------------

    def _on_tick(self, _: steps.Ticked, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.phase is Phase.WORKING:
            effects += [*self._probe(), *self._forget(now_s)]
            effects += self._give_back(now_s)
            if now_s >= self._sweep_at_s:
                self._sweep_at_s = now_s + self.settings.sweep_s
                effects += [steps.Sweep(), steps.Look()]
        return [*effects, *self._advance(now_s)]

    def _advance(self, now_s: float) -> list[Effect]:
        """
        Begin whatever can be begun, in and out.
        """
        if self.phase not in (Phase.WORKING, Phase.STOPPING):
            return []
        effects = [*self._store(), *self._send(now_s)]
        busy = effects or self._storing or self._claiming or self._publishing or self._settling
        if self.phase is Phase.STOPPING and not busy:
            self.phase = Phase.CLOSING
            effects.append(steps.Close())
        return effects

    def _on_stop(self, _: steps.StopRequested, now_s: float) -> list[Effect]:
        """
        End in order: what is under way is finished, what waits goes back to the broker with the connection.
        """
        if self.phase is Phase.WORKING:
            self.phase = Phase.STOPPING
            return [steps.Pause(), *self._advance(now_s)]
        if self.phase in (Phase.NEW, Phase.REGISTERING):
            self.phase = Phase.CLOSING
            return [steps.Close()]
        return []

    def _on_closed(self, _: steps.Closed, __: float) -> list[Effect]:
        if self.phase is not Phase.CLOSING:
            return []
        self.phase = Phase.ENDED
        return [steps.Unregister(), steps.End()]


#: By name: what a handler is, is looked up when it is needed.
_HANDLERS: Final[Mapping[type, str]] = {
    steps.Started: "_on_started",
    steps.Registered: "_on_registered",
    steps.Arrived: "_on_arrived",
    steps.Stored: "_on_stored",
    steps.Probed: "_on_probed",
    steps.Claimed: "_on_claimed",
    steps.Published: "_on_published",
    steps.Settled: "_on_settled",
    steps.Looked: "_on_looked",
    steps.Ticked: "_on_tick",
    steps.StopRequested: "_on_stop",
    steps.Closed: "_on_closed",
}


def _report(done: Iterable[Item]) -> list[Effect]:
    """
    Tell of what was sent back; the driver, which writes them, tells of obituaries.
    """
    retried = [item for item in done if item.reason is None]
    if not retried:
        return []
    facts = {"messages": len(retried), "marked": sum(item.marked for item in retried)}
    return [steps.Notice("dedup.retried", facts)]
