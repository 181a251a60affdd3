"""The sender machine, rule by rule; tests/simulation explores it as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core import sending
from dedup.core.refusals import REFUSALS_MAX
from dedup.core.sender import Sender
from dedup.core.sending import (
    Confirmed,
    Drop,
    Effect,
    Event,
    Failed,
    Message,
    Notice,
    Open,
    Send,
    SenderSettings,
)
from dedup.errors import (
    ClosedUnconfirmedError,
    FencedError,
    PublishError,
    PublishTimeoutError,
    ReceiptExpiredError,
    ReturnedError,
)


class Bench:
    """A sender with a clock of its own; every effect is kept."""

    def __init__(self, *, is_open: bool = True, **settings: Any) -> None:
        self.sender = Sender(SenderSettings("orders", **settings))
        self.now = 0.0
        self.effects: list[Effect] = []
        self.next = 1
        if is_open:
            self.tell(sending.Tick(), sending.Opened())
            self.effects.clear()

    def tell(self, *events: Event) -> list[Effect]:
        new = [effect for event in events for effect in self.sender.handle(event, self.now)]
        self.effects += new
        return new

    def submit(
        self, count: int = 1, *, exchange: str = "e", key: str = "k", timeout: float | None = None
    ) -> list[Effect]:
        deadline = None if timeout is None else self.now + timeout
        messages = [Message(self.next + n, exchange, key, None, 100, deadline) for n in range(count)]
        self.next += count
        return self.tell(sending.Submitted(messages))

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, waking the sender whenever it asked for it."""
        end = self.now + seconds
        new = []
        while (due := self.sender.wake_at()) is not None and due <= end:
            self.now = max(self.now, due)
            new += self.tell(sending.Tick())
        self.now = end
        return new + self.tell(sending.Tick())

    def ack(self, tag: int, *, multiple: bool = False) -> list[Effect]:
        return self.tell(sending.Confirms([(tag, multiple, True)]))

    def nack(self, tag: int, *, multiple: bool = False) -> list[Effect]:
        return self.tell(sending.Confirms([(tag, multiple, False)]))

    def reopen(self) -> list[Effect]:
        """Wait until a channel is asked for, and open it."""
        while Open() not in self.wait(0.1):
            assert self.now < 1000
        return self.tell(sending.Opened())


def sent(effects: list[Effect]) -> list[tuple[int, int]]:
    """Return (sequence, attempt now) of everything sent."""
    return [
        (m.sequence, m.attempts) for effect in effects if isinstance(effect, Send) for m in effect.messages
    ]


def confirmed(effects: list[Effect]) -> list[int]:
    """Return the sequences reported confirmed."""
    return [m.sequence for effect in effects if isinstance(effect, Confirmed) for m in effect.messages]


def failed(effects: list[Effect]) -> dict[int, type[Exception]]:
    """Return the kind of error by sequence."""
    return {effect.sequence: type(effect.error) for effect in effects if isinstance(effect, Failed)}


def error_of(effects: list[Effect], sequence: int) -> Any:
    """Return the one error of *sequence*."""
    (error,) = [
        effect.error for effect in effects if isinstance(effect, Failed) and effect.sequence == sequence
    ]
    return error


# -- sending and confirms -------------------------------------------------------------------------


def test_it_asks_for_a_channel_first() -> None:
    """Nothing is sent before a channel is open; then everything is, in order."""
    bench = Bench(is_open=False)
    assert bench.submit(2) == [Open()]
    assert sent(bench.tell(sending.Opened())) == [(1, 1), (2, 1)]


def test_an_ack_settles_and_a_batch_is_settled_in_one_piece() -> None:
    """One ack of many reports its messages in one effect, oldest first."""
    bench = Bench()
    bench.submit(3)
    (effect,) = bench.ack(3, multiple=True)
    assert isinstance(effect, Confirmed)
    assert confirmed([effect]) == [1, 2, 3]
    assert bench.sender.unsettled == 0


def test_messages_beyond_the_bound_wait() -> None:
    """At most *unconfirmed_max* are in flight; each confirm lets one more go, in order."""
    bench = Bench(unconfirmed_max=2)
    assert sent(bench.submit(4)) == [(1, 1), (2, 1)]
    assert sent(bench.ack(1)) == [(3, 1)]
    assert sent(bench.ack(3, multiple=True)) == [(4, 1)]


def test_nothing_goes_further_than_half_a_window_above_the_oldest() -> None:
    """A message that is nacked again and again holds back those that would push it out of the window."""
    bench = Bench(window_size=8, unconfirmed_max=4)
    bench.submit(12)
    bench.nack(1)
    bench.ack(4, multiple=True)
    assert max(sequence for sequence, _ in sent(bench.effects)) == 5
    bench.wait(1)
    assert sent(bench.effects)[-1] == (1, 2)
    bench.ack(6)
    assert max(sequence for sequence, _ in sent(bench.effects)) == 8


def test_late_and_foreign_confirms_mean_nothing() -> None:
    """Acks of tags unknown, of a closed channel and twice over change nothing."""
    bench = Bench()
    bench.submit()
    assert bench.ack(9) == []
    bench.ack(1)
    assert bench.ack(1) == []
    bench.tell(sending.Lost("cut"))
    assert bench.ack(1) == []


# -- nacks ----------------------------------------------------------------------------------------


def test_a_nack_is_sent_again_after_a_growing_delay() -> None:
    """The same sequence goes out again, later each time, with a higher attempt."""
    bench = Bench()
    bench.submit()
    assert sent(bench.nack(1)) == []
    assert sent(bench.wait(0.04)) == []
    assert sent(bench.wait(0.02)) == [(1, 2)]
    bench.nack(2)
    assert sent(bench.wait(0.09)) == []
    assert sent(bench.wait(0.02)) == [(1, 3)]
    assert confirmed(bench.ack(3)) == [1]


def test_a_nack_in_the_same_read_beats_the_ack() -> None:
    """``ack multiple`` and a contradicting nack behind it: the nacked ones are sent again (pika issue 911)."""
    bench = Bench()
    bench.submit(3)
    effects = bench.tell(sending.Confirms([(3, True, True), (2, True, False)]))
    assert confirmed(effects) == [3]
    assert sent(bench.wait(1)) == [(1, 2), (2, 2)]


def test_a_contradiction_that_comes_late_still_sends_again() -> None:
    """When the caller was told already, the message is stored all the same, and an operator hears of it."""
    bench = Bench()
    bench.submit(2)
    assert confirmed(bench.ack(2, multiple=True)) == [1, 2]
    assert bench.nack(1, multiple=True) == [Notice("confirm_contradicted", {"sequence": 1})]
    assert sent(bench.wait(1)) == [(1, 2)]
    assert confirmed(bench.ack(3)) == [1]


# -- losses ---------------------------------------------------------------------------------------


def test_after_a_loss_the_oldest_goes_first_and_the_new_last() -> None:
    """Everything unconfirmed is sent again in order, attempt + 1, before anything new."""
    bench = Bench(unconfirmed_max=4)
    bench.submit(4)
    bench.nack(2)
    bench.ack(3)
    bench.tell(sending.Lost("cut"))
    bench.submit(1)
    bench.effects.clear()
    bench.reopen()
    tag = 0
    while confirmed(bench.effects) != [1, 2, 4, 5]:
        tag += 1
        bench.ack(tag)
    assert sent(bench.effects) == [(1, 2), (2, 2), (4, 2), (5, 1)]


def test_a_loss_halves_what_goes_out_at_once_and_answers_double_it() -> None:
    """A link that breaks under eight messages is tried with four, two, one; each answered batch doubles again."""
    bench = Bench(unconfirmed_max=8)
    assert len(sent(bench.submit(16))) == 8
    for size in (4, 2, 1):
        bench.tell(sending.Lost("cut"))
        assert len(sent(bench.reopen())) == size
    assert len(sent(bench.ack(0, multiple=True))) == 2
    assert sent(bench.ack(2)) == []
    assert len(sent(bench.ack(3))) == 4


def test_losses_wait_longer_and_longer_until_a_confirm() -> None:
    """Pauses between tries double up to the cap; one confirm makes the next loss a first one."""
    bench = Bench(reconnect_delay_s_first=1.0, reconnect_delay_s_max=4.0)
    bench.submit()
    pauses = []
    for _ in range(4):
        bench.tell(sending.Lost("refused"))
        due = bench.sender.wake_at()
        assert due is not None
        pauses.append(due - bench.now)
        bench.wait(due - bench.now)
    assert pauses == [0.5, 1.0, 2.0, 2.0]
    bench.tell(sending.Opened())
    bench.ack(1)
    bench.tell(sending.Lost("cut"))
    assert bench.sender.wake_at() == bench.now + 0.5


def test_silence_drops_the_connection() -> None:
    """A message without a confirm in time makes the connection a dead one; it is sent again on the next."""
    bench = Bench(confirm_timeout_s=5.0)
    bench.submit()
    assert bench.wait(4.9) == []
    assert Drop("no confirm within 5 s") in bench.wait(0.2)
    assert sent(bench.reopen()) == [(1, 2)]


def test_a_channel_that_never_opens_is_dropped() -> None:
    """An Open without an answer does not hang."""
    bench = Bench(is_open=False, open_timeout_s=3.0)
    assert bench.submit() == [Open()]
    effects = bench.wait(4.0)
    assert Drop("no channel within 3 s") in effects
    assert Open() in effects


def test_the_loss_of_what_was_dropped_is_no_news() -> None:
    """A Lost behind an own Drop does not delay the next try."""
    bench = Bench(confirm_timeout_s=5.0)
    bench.submit()
    bench.wait(5.0)
    due = bench.sender.wake_at()
    bench.tell(sending.Lost("abandoned"))
    assert bench.sender.wake_at() == due


# -- blocked --------------------------------------------------------------------------------------


def test_a_blocked_connection_is_neither_used_nor_given_up() -> None:
    """Nothing is sent and no confirm is missed while an alarm lasts; after it the clock of confirms starts again."""
    bench = Bench(confirm_timeout_s=5.0)
    bench.submit()
    bench.tell(sending.Blocked("low on memory"))
    assert bench.submit() == []
    assert bench.wait(100) == []
    assert sent(bench.tell(sending.Unblocked())) == [(2, 1)]
    assert bench.wait(4.9) == []
    assert confirmed(bench.ack(2, multiple=True)) == [1, 2]


def test_a_timeout_says_that_the_broker_blocks() -> None:
    """Who waits for a blocked broker is told so."""
    bench = Bench()
    bench.tell(sending.Blocked("low on memory"))
    bench.submit(timeout=1.0)
    error = error_of(bench.wait(1.0), 1)
    assert "blocked the connection (low on memory)" in str(error)


# -- returns and refusals -------------------------------------------------------------------------


def test_a_return_fails_its_message_and_the_ack_behind_it_means_nothing() -> None:
    """An unroutable message is reported returned, never confirmed, though the broker acks it."""
    bench = Bench()
    bench.submit(2)
    error = error_of(bench.tell(sending.Returned(1, 312, "NO_ROUTE")), 1)
    assert isinstance(error, ReturnedError)
    assert (error.receipt.sequence, error.receipt.attempts) == (1, 1)
    assert confirmed(bench.ack(2, multiple=True)) == [2]


def test_a_message_refused_by_itself_fails_as_one_that_closed_its_channel() -> None:
    """Where the protocol names the message (AMQP 1.0), the error is the same and no channel is lost for it."""
    bench = Bench()
    bench.submit(2)
    error = error_of(bench.tell(sending.Returned(1, 404, "no exchange 'x'")), 1)
    assert type(error) is PublishError
    assert "404 no exchange 'x'" in str(error)
    assert confirmed(bench.ack(2, multiple=True)) == [2]


def test_a_timeout_tells_why_the_broker_nacked() -> None:
    """Where the protocol tells it; else the usual reason is asked about."""
    for reason, told in (("queue 'q' exceeded maximum length", "maximum length"), ("", "is a queue full?")):
        bench = Bench()
        bench.submit(timeout=0.05)
        bench.tell(sending.Confirms([(1, False, False)], 0.5, reason))
        assert told in str(error_of(bench.wait(0.05), 1))


def test_the_ack_behind_a_return_does_not_fool_a_retry() -> None:
    """A returned message is sent again when its receipt is retried, also when its caller had gone before the return."""
    for timeout in (None, 1.0):
        bench = Bench()
        bench.submit(timeout=timeout)
        bench.wait(1.0)
        bench.tell(sending.Returned(1, 312, "NO_ROUTE"))
        bench.ack(1)
        effects = bench.tell(sending.RetryAsked(1))
        assert (sent(effects), confirmed(effects)) == ([(1, 2)], [])


def test_one_bad_message_among_many_is_found_and_no_other_fails() -> None:
    """The broker closes the channel for one message and names none: halving finds it, everything else is stored."""
    bench = Bench(unconfirmed_max=64)
    bad = 37
    bench.submit(50)
    stored = _serve(bench, lambda message: message.sequence == bad, 406)
    assert failed(bench.effects) == {bad: PublishError}
    assert stored == set(range(1, 51)) - {bad}
    assert "406" in str(error_of(bench.effects, bad))


def test_messages_to_a_missing_exchange_fail_together_and_others_survive() -> None:
    """A 404 is true of every message sent to that exchange before; the ones to other exchanges are stored."""
    bench = Bench(unconfirmed_max=64)
    for _ in range(10):
        bench.submit(2)
        bench.submit(1, exchange="missing")
    stored = _serve(bench, lambda message: message.exchange == "missing", 404)
    assert set(failed(bench.effects)) == {3 * n for n in range(1, 11)}
    assert stored == {n for n in range(1, 31) if n % 3}


def test_a_refusal_that_may_pass_is_tried_a_few_times() -> None:
    """A broker in trouble (541) closes channels for innocent messages: one fails only after several tries alone."""
    bench = Bench()
    bench.submit()
    for attempt in range(1, REFUSALS_MAX):
        bench.tell(sending.Refused(541, "INTERNAL_ERROR"))
        assert sent(bench.reopen()) == [(1, attempt + 1)]
    assert failed(bench.tell(sending.Refused(541, "INTERNAL_ERROR"))) == {1: PublishError}


def test_a_given_up_message_takes_the_blame_for_its_refusal() -> None:
    """A message whose caller has gone is still on the channel: it is not another one that closes it."""
    bench = Bench()
    bench.submit(timeout=1.0)
    bench.wait(1.0)
    bench.submit()
    bench.tell(sending.Refused(404, "NOT_FOUND"))
    assert failed(bench.effects) == {1: PublishTimeoutError}
    assert sent(bench.reopen()) == [(2, 2)]


def _serve(bench: Bench, refuses: Any, code: int) -> set[int]:
    """Be a broker that takes messages in order and closes the channel at the first it refuses; acks are lost with it."""
    stored: set[int] = set()
    for _ in range(1000):
        effects, bench.effects[:] = list(bench.effects), [e for e in bench.effects if isinstance(e, Failed)]
        if Open() in effects:
            bench.tell(sending.Opened())
        batches = [effect.messages for effect in effects if isinstance(effect, Send)]
        messages = [message for batch in batches for message in batch]
        if not bench.sender.unsettled:
            return stored
        for message in messages:
            if refuses(message):
                bench.tell(sending.Refused(code, "REFUSED"))
                break
            stored.add(message.sequence)
        else:
            if messages:
                bench.ack(0, multiple=True)
    raise AssertionError("the sender does not settle")


# -- timeouts and retries -------------------------------------------------------------------------


def test_a_timeout_gives_the_message_up_with_its_receipt() -> None:
    """When its time is up a message is not sent again, and the error names what was waited for."""
    bench = Bench()
    bench.submit(timeout=2.0)
    error = error_of(bench.wait(2.0), 1)
    assert isinstance(error, PublishTimeoutError)
    assert isinstance(error, TimeoutError)
    assert (error.receipt.sequence, error.receipt.attempts) == (1, 1)
    assert "silent" in str(error)
    assert "may be stored or not" in str(error)
    bench.tell(sending.Lost("cut"))
    assert sent(bench.reopen()) == []


def test_a_message_never_sent_says_so() -> None:
    """Without a connection the error tells why, and that nothing was sent."""
    bench = Bench(is_open=False)
    bench.submit(timeout=1.0)
    bench.tell(sending.Lost("connection refused"))
    error = error_of(bench.wait(1.0), 1)
    assert "connection refused" in str(error)
    assert "was not sent" in str(error)
    assert error.receipt.attempts == 0


def test_a_retry_sends_the_same_sequence_with_a_higher_attempt() -> None:
    """A receipt is all it takes."""
    bench = Bench()
    bench.submit(timeout=1.0)
    bench.wait(1.0)
    assert sent(bench.tell(sending.RetryAsked(1))) == [(1, 2)]
    assert confirmed(bench.ack(2)) == [1]


def test_a_retry_after_a_late_confirm_succeeds_at_once() -> None:
    """What was confirmed after its caller had gone is not sent again."""
    bench = Bench()
    bench.submit(timeout=1.0)
    bench.wait(1.0)
    assert bench.ack(1) == []
    effects = bench.tell(sending.RetryAsked(1))
    assert (sent(effects), confirmed(effects)) == ([], [1])


def test_a_retry_goes_before_anything_new() -> None:
    """A retried message overtakes what has not been sent yet."""
    bench = Bench(unconfirmed_max=1)
    bench.submit(timeout=1.0)
    bench.wait(1.0)
    bench.submit(2)
    bench.tell(sending.RetryAsked(1))
    assert sent(bench.ack(1)) == [(1, 2)]
    assert sent(bench.ack(2)) == [(2, 1)]


@pytest.mark.parametrize("behind", [4, 5])
def test_a_receipt_expires_half_a_window_behind_the_newest(behind: int) -> None:
    """Half of the window of 8 is 4: at that distance a retry is taken, beyond it never."""
    bench = Bench(window_size=8, unconfirmed_max=4)
    bench.submit()
    bench.tell(sending.Returned(1, 312, "NO_ROUTE"))
    bench.ack(1)
    for tag in range(2, 2 + behind):
        bench.submit()
        bench.ack(tag)
    effects = bench.tell(sending.RetryAsked(1))
    assert (failed(effects) == {1: ReceiptExpiredError}) == (behind == 5)


def test_what_was_confirmed_late_never_expires() -> None:
    """Nothing is sent for it, so nothing can be mistaken for new."""
    bench = Bench(window_size=8, unconfirmed_max=4)
    bench.submit(timeout=1.0)
    bench.wait(1.0)
    for tag in range(1, 9):
        bench.ack(tag)
        bench.submit()
    assert confirmed(bench.tell(sending.RetryAsked(1))) == [1]


def test_what_was_given_up_in_flight_still_holds_back_the_new() -> None:
    """Until its confirm, or the end of its channel, it may arrive: nothing overtakes it by more than half a window."""
    bench = Bench(window_size=8, unconfirmed_max=4)
    bench.submit(timeout=1.0)
    bench.wait(1.0)
    for tag in range(2, 20):
        bench.submit()
        bench.ack(tag)
    assert max(sequence for sequence, _ in sent(bench.effects)) == 5


def test_what_is_kept_for_retries_is_bounded() -> None:
    """The ones given up first leave first, by number and by bytes."""
    by_number, by_bytes = Bench(kept_max=2), Bench(kept_bytes_max=250)
    for bench in (by_number, by_bytes):
        bench.submit(3, timeout=1.0)
        bench.wait(1.0)
        assert failed(bench.tell(sending.RetryAsked(1))) == {1: ReceiptExpiredError}
        assert sent(bench.tell(sending.RetryAsked(2))) == [(2, 2)]


def test_a_retry_of_something_unknown_is_refused() -> None:
    """A sequence never given up is not sent."""
    assert failed(Bench().tell(sending.RetryAsked(77))) == {77: ReceiptExpiredError}


def test_old_deadlines_do_not_pile_up() -> None:
    """Deadlines of settled messages are forgotten long before they come."""
    bench = Bench()
    for tag in range(1, 5000):
        bench.submit(timeout=3600.0)
        bench.ack(tag)
    assert len(bench.sender._deadlines) < 2000


# -- the end --------------------------------------------------------------------------------------


def test_stopping_fails_what_is_unconfirmed() -> None:
    """Nothing is silently forgotten at the end, and nothing is taken after it."""
    bench = Bench()
    bench.submit(2)
    bench.ack(1)
    assert failed(bench.tell(sending.Stopped())) == {2: ClosedUnconfirmedError}
    assert failed(bench.submit()) == {3: ClosedUnconfirmedError}
    assert failed(bench.tell(sending.RetryAsked(2))) == {2: ClosedUnconfirmedError}
    assert bench.tell(sending.Opened(), sending.Tick()) == []


def test_a_fenced_sender_says_so_of_every_message() -> None:
    """Of those on their way, of those that come later, and of retries; each error has its receipt."""
    bench = Bench()
    bench.submit(2)
    cause = FencedError("a newer owner")
    effects = bench.tell(sending.Stopped(cause))
    assert failed(effects) == {1: FencedError, 2: FencedError}
    assert failed(bench.submit()) == {3: FencedError}
    assert failed(bench.tell(sending.RetryAsked(2))) == {2: FencedError}
    told = [effect.error for effect in effects if isinstance(effect, sending.Failed)]
    assert [error.__cause__ for error in told] == [cause, cause]
    assert [error.receipt.sequence for error in told if isinstance(error, FencedError) and error.receipt] == [
        1,
        2,
    ]
    assert bench.sender.wake_at() is None


_EVENTS = st.one_of(
    st.integers(1, 5),
    st.builds(sending.RetryAsked, st.integers(1, 20)),
    st.just(sending.Opened()),
    st.builds(sending.Lost, st.text(max_size=3), st.floats(0, 1, exclude_max=True)),
    st.builds(sending.Refused, st.sampled_from([0, 320, 403, 404, 406, 541]), st.just("no")),
    st.builds(
        sending.Confirms, st.lists(st.tuples(st.integers(-1, 30), st.booleans(), st.booleans()), max_size=4)
    ),
    st.builds(sending.Returned, st.integers(0, 20), st.just(312), st.just("NO_ROUTE")),
    st.just(sending.Blocked("alarm")),
    st.just(sending.Unblocked()),
    st.floats(0, 50),
)


@given(st.lists(_EVENTS, max_size=60))
def test_it_takes_any_event_at_any_time(steps: list[Any]) -> None:
    """Total: whatever the driver says in whatever order, nothing raises and the rules of sending hold."""
    bench = Bench(is_open=False, window_size=16, unconfirmed_max=5, confirm_timeout_s=7.0, open_timeout_s=3.0)
    attempts: dict[int, int] = {}
    for step in steps:
        if isinstance(step, int):
            effects = bench.submit(step, timeout=20.0 if step % 2 else None)
        elif isinstance(step, float):
            effects = bench.wait(step)
        else:
            effects = bench.tell(step)
        for message in (m for effect in effects if isinstance(effect, Send) for m in effect.messages):
            assert message.attempts <= bench.next * 100
        for sequence, attempt in sent(effects):
            assert attempt >= attempts.get(sequence, 0)
            attempts[sequence] = attempt
        assert len(bench.sender._in_flight) <= 5
    unsettled = bench.sender.unsettled
    assert len(failed(bench.tell(sending.Stopped()))) == unsettled
