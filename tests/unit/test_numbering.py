"""A foreign client that does what its numbers allow never outruns the window, and one that would is stopped before it publishes."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dedup.core.identity import Receipt
from dedup.core.numbering import Numbering, Stamp
from dedup.core.window import Verdict, Window, judge
from dedup.errors import InvalidMessageError, OutOfTurnError, ReceiptExpiredError, WindowFullError

WINDOW_SIZE = 8


def numbering(base: int = 0, window_size: int = WINDOW_SIZE) -> Numbering:
    """Return the numbers of publisher "p"."""
    return Numbering("p", base=base, window_size=window_size)


# -- one rule at a time ---------------------------------------------------------------------------


def test_numbers_follow_each_other_and_attempts_count() -> None:
    """A re-send has the number, and the time, of the first send, and says which attempt it is."""
    numbers = numbering(base=100)
    first, second = numbers.new(5), numbers.new(6)
    assert first == Stamp("p", 101, 1, 5)
    assert second.headers == {"dedup-sequence": 102}
    assert numbers.again(first) == Stamp("p", 101, 2, 5)
    assert numbers.again(Receipt("p", 101)).headers == {
        "dedup-sequence": 101,
        "dedup-attempt": 3,
        "dedup-first-sent": 5,
    }
    assert (first.app_id, first.headers_alone) == ("p", {"dedup-publisher": "p", "dedup-sequence": 101})


def test_half_a_window_may_be_unconfirmed_and_no_more() -> None:
    """The fifth number above an unconfirmed one is refused, with its name, and given out once that is settled."""
    numbers = numbering()
    oldest = numbers.new(0)
    for _ in range(4):
        numbers.settle(numbers.new(0))
    with pytest.raises(WindowFullError, match="more than 4 above 1,") as caught:
        numbers.new(0)
    assert caught.value.oldest == oldest
    assert numbers.newest == 5
    numbers.settle(oldest)
    assert numbers.new(0).sequence == 6


def test_own_numbers_rise_and_jump_no_further_than_half_a_window() -> None:
    """A row id serves as a number, within the same rules."""
    numbers = numbering()
    assert numbers.new(0, 1000).sequence == 1000
    with pytest.raises(InvalidMessageError, match="not above the newest, 1000"):
        numbers.new(0, 1000)
    with pytest.raises(WindowFullError):
        numbers.new(0, 1005)
    assert numbers.new(0, 1004).sequence == 1004


def test_after_a_loss_the_oldest_goes_first() -> None:
    """New messages and younger ones wait until each older one was sent again; what is settled meanwhile is passed over."""
    numbers = numbering()
    one, two, three = (numbers.new(0) for _ in range(3))
    assert numbers.lose() == [one, two, three]
    for out_of_turn in (partial(numbers.new, 0), partial(numbers.again, two)):
        with pytest.raises(OutOfTurnError, match="sequence 1 goes first") as caught:
            out_of_turn()
        assert not isinstance(caught.value, WindowFullError)
        assert caught.value.oldest == one
    numbers.again(one)
    numbers.settle(two)
    numbers.again(three)
    assert numbers.new(0).sequence == 4


def test_a_second_loss_begins_again() -> None:
    """What was sent again before the second loss is due once more."""
    numbers = numbering()
    one, two = numbers.new(0), numbers.new(0)
    numbers.lose()
    numbers.again(one)
    assert [stamp.sequence for stamp in numbers.lose()] == [1, 2]
    with pytest.raises(OutOfTurnError):
        numbers.again(two)


def test_what_an_earlier_run_left_is_sent_again_from_its_receipts() -> None:
    """With the newest number of the run before as base, stored receipts are taken while they are within half a window."""
    numbers = numbering(base=20)
    assert numbers.again(Receipt("p", 16, 2)) == Stamp("p", 16, 3, 0)
    with pytest.raises(ReceiptExpiredError, match="newest one sent is 20"):
        numbers.again(Receipt("p", 15))
    with pytest.raises(WindowFullError):
        numbers.new(0)


@pytest.mark.parametrize("receipt", [Receipt("q", 1), Receipt("p", 2), 1])
def test_what_was_never_given_out_is_refused(receipt: Receipt) -> None:
    """Another publisher's receipt, a number of the future, or no receipt at all."""
    numbers = numbering()
    numbers.new(0)
    for use in (numbers.again, numbers.settle):
        with pytest.raises(InvalidMessageError):
            use(receipt)


# -- all together ---------------------------------------------------------------------------------


class Client(RuleBasedStateMachine):
    """A client with one connection that breaks, a shim that judges what arrives; whatever Numbering allows may be done."""

    numbers: Numbering
    allowed_window = WINDOW_SIZE

    def __init__(self) -> None:
        super().__init__()
        self.numbers = numbering(window_size=self.allowed_window)
        #: Published on the connection of now, not arrived.
        self.wire: deque[Stamp] = deque()
        self.arrived: set[int] = set()
        self.window: Window | None = None
        self.verdicts: Counter[tuple[int, Verdict]] = Counter()
        self.order: list[int] = []
        self.due: list[Stamp] = []

    @rule()
    def publish(self) -> None:
        """A new message, refused exactly when a rule forbids it."""
        unconfirmed = self.numbers.unconfirmed()
        full = bool(unconfirmed) and self.numbers.newest + 1 - unconfirmed[0].sequence > WINDOW_SIZE // 2
        try:
            self.wire.append(self.numbers.new(0))
        except WindowFullError:
            assert full
            assert not self.due
        except OutOfTurnError:
            assert self.due
        else:
            assert not full or self.allowed_window != WINDOW_SIZE
            assert not self.due

    @rule(count=strategies.integers(1, 4))
    def arrive(self, count: int) -> None:
        """The oldest on the wire come to the shim."""
        while self.wire and count:
            stamp, count = self.wire.popleft(), count - 1
            verdict, self.window = judge(self.window, stamp.sequence, WINDOW_SIZE)
            self.verdicts[stamp.sequence, verdict] += 1
            self.arrived.add(stamp.sequence)
            if verdict is Verdict.NEW:
                self.order.append(stamp.sequence)

    @precondition(lambda self: self.arrived)
    @rule(data=strategies.data())
    def confirm(self, data: strategies.DataObject) -> None:
        """A confirm reaches the client; those that do not are the point of it all."""
        sequence = data.draw(strategies.sampled_from(sorted(self.arrived)))
        self.numbers.settle(Receipt("p", sequence))
        self.due = [stamp for stamp in self.due if stamp.sequence != sequence]

    @rule(arriving=strategies.integers(0, 8))
    def cut(self, arriving: int) -> None:
        """Some of what is on the wire still arrives, the rest is gone."""
        if arriving:
            self.arrive(arriving)
        self.wire.clear()
        self.due = self.numbers.lose()

    @precondition(lambda self: self.due)
    @rule()
    def send_again(self) -> None:
        """The oldest that is due."""
        self.wire.append(self.numbers.again(self.due.pop(0)))

    @precondition(lambda self: not self.due and self.numbers.unconfirmed())
    @rule(data=strategies.data())
    def answer_a_nack(self, data: strategies.DataObject) -> None:
        """Any unconfirmed one may be sent again on the channel that lives."""
        self.wire.append(self.numbers.again(data.draw(strategies.sampled_from(self.numbers.unconfirmed()))))

    @precondition(lambda self: len(self.due) > 1)
    @rule()
    def overtake(self) -> None:
        """Out of turn is refused."""
        with pytest.raises(OutOfTurnError):
            self.numbers.again(self.due[1])

    @invariant()
    def nothing_is_too_old(self) -> None:
        """No re-send that was allowed is quarantined."""
        assert not [key for key in self.verdicts if key[1] is Verdict.TOO_OLD]

    @invariant()
    def first_copies_come_in_order(self) -> None:
        """What the shim forwards has rising numbers."""
        assert self.order == sorted(self.order)

    def teardown(self) -> None:
        """Once everything was sent again and has arrived, each message was new exactly once."""
        self.cut(0)
        while self.due:
            self.send_again()
        self.arrive(10**6)
        assert self.order == list(range(1, self.numbers.newest + 1))
        self.nothing_is_too_old()


Client.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestClient = Client.TestCase


class Reckless(Client):
    """The same client, allowed four times the window: the control."""

    allowed_window = 4 * WINDOW_SIZE


def test_a_client_that_is_allowed_more_is_quarantined() -> None:
    """The control: without the limit, what was lost long ago is too old when it is sent again."""
    client = Reckless()
    client.publish()
    client.cut(0)
    client.send_again()
    client.wire.clear()
    for _ in range(WINDOW_SIZE):
        client.publish()
    client.arrive(WINDOW_SIZE)
    with pytest.raises(AssertionError):
        client.teardown()
    assert client.verdicts[1, Verdict.TOO_OLD] == 1
