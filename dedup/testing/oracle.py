"""
Know what was sent, and say what became of it.

The oracle believes nobody: it is told what each publisher asked for, what was confirmed, what reached the broker and what was
read from the queues in the end, and compares. It fails on a loss *and* on an unmarked duplicate, so a run that forwards
nothing and a run that forwards everything both fail.

::

    oracle = Oracle()
    oracle.ask("p", "m1")
    oracle.confirm("m1")
    oracle.deliver("m1")
    assert oracle.account().ok
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import Factory, define, frozen

#: How many messages an account names for each thing that went wrong.
EXAMPLES_MAX = 3


@frozen
class Account:
    """
    What became of the messages of one run.
    """

    #: Messages that publishers asked to publish.
    messages: int
    #: Of these, how many were confirmed to their publishers.
    confirmed: int
    #: Copies that reached the broker, first ones and repeated ones; 0 when nobody watched.
    copies: int
    #: Copies read from the target, marked ones included.
    forwarded: int
    #: Copies that reached the broker and neither the target nor the quarantine.
    dropped: int
    #: Copies read from the target with ``dedup-possible-duplicate``.
    marked: int
    #: Copies read from the quarantine.
    quarantined: int
    #: Messages that were confirmed or had reached the broker, and are in neither queue.
    lost: int
    #: Unmarked copies read from the target after another copy of the same message.
    duplicates: int
    #: Copies of messages that nobody had asked for.
    unexpected: int
    #: Messages read from the target after a later one of the same publisher.
    disordered: int
    #: Some messages by name for each thing that went wrong.
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """
        Whether the promise was kept: nothing lost, doubled, invented or overtaken.
        """
        return not (self.lost or self.duplicates or self.unexpected or self.disordered)


@define
class Oracle:
    """
    What is known of one run. Messages are named by a text that is unique in the run, such as their body.

    Threads may tell it things at the same time; ask for the account when they have finished.
    """

    #: Message -> publisher, in the order of asking.
    asked: dict[str, str] = Factory(dict)
    confirmed: set[str] = Factory(set)
    #: Copies in the order in which they reached the broker.
    arrived: list[str] = Factory(list)
    #: Copies read from the target, in order.
    delivered: list[str] = Factory(list)
    quarantined: list[str] = Factory(list)
    marked: int = 0
    #: Unmarked copies of what had been delivered before.
    duplicates: list[str] = Factory(list)
    _seen: set[str] = Factory(set)

    def ask(self, publisher: str, message: str) -> None:
        """
        Note that *publisher* is about to publish *message*, after what it asked for before.
        """
        assert message not in self.asked, f"{message!r} names two messages"
        self.asked[message] = publisher

    def confirm(self, message: str) -> None:
        """
        Note that its publisher was told that the broker has it.
        """
        self.confirmed.add(message)

    def arrive(self, message: str) -> None:
        """
        Note one copy that reached the broker.
        """
        self.arrived.append(message)

    def deliver(self, message: str, *, marked: bool = False) -> None:
        """
        Note one copy read from the target.
        """
        self.delivered.append(message)
        if marked:
            self.marked += 1
        elif message in self._seen:
            self.duplicates.append(message)
        self._seen.add(message)

    def quarantine(self, message: str) -> None:
        """
        Note one copy read from the quarantine.
        """
        self.quarantined.append(message)

    def unsettled(self) -> set[str]:
        """
        Return what must be in the target or the quarantine and was not read there yet.
        """
        return {*self.confirmed, *self.arrived} - self._seen - {*self.quarantined}

    def account(self) -> Account:
        """
        Compare; everything must have been read.
        """
        read = Counter(self.delivered) + Counter(self.quarantined)
        arrived = Counter(self.arrived)
        wrong = {
            "lost": sorted(self.unsettled()),
            "twice": self.duplicates,
            "unexpected": [copy for copy in (arrived | read).elements() if copy not in self.asked],
            "out of order": list(self._overtaken()),
        }
        return Account(
            messages=len(self.asked),
            confirmed=len(self.confirmed),
            copies=len(self.arrived),
            forwarded=len(self.delivered),
            dropped=(arrived - read).total(),
            marked=self.marked,
            quarantined=len(self.quarantined),
            lost=len(wrong["lost"]),
            duplicates=len(wrong["twice"]),
            unexpected=len(wrong["unexpected"]),
            disordered=len(wrong["out of order"]),
            examples=tuple(
                f"{what}: {message}"
                for what, messages in wrong.items()
                for message in messages[:EXAMPLES_MAX]
            ),
        )

    def _overtaken(self) -> Iterator[str]:
        """
        Yield the messages whose first copy left after a later message of their publisher.

        The order to keep is the one of first arrivals, or of asking where nobody watched the arrivals.
        """
        place = {message: place for place, message in enumerate(dict.fromkeys(self.arrived or self.asked))}
        newest: dict[str, int] = {}
        for message in dict.fromkeys(self.delivered):
            if message in place and message in self.asked:
                publisher = self.asked[message]
                if place[message] < newest.get(publisher, -1):
                    yield message
                else:
                    newest[publisher] = place[message]
