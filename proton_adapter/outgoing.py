"""Send over one link: what waits for credit, what is in flight, and whether the broker takes anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from dedup.core.sending import Message, Place
from proton_adapter import outcomes
from proton_adapter.outcomes import Verdict
from proton_adapter.stamping import encode

#: The broker is said to block when it took nothing for so long; seconds.
_STUCK_S: Final = 1.0


class _InFlight(NamedTuple):
    """
    What was handed to proton and is not answered.
    """

    message: Message
    size: int


class Answer(NamedTuple):
    """
    What became of one message.
    """

    #: The how many-th it was on this link, from one.
    number: int
    message: Message
    verdict: Verdict


class Outgoing:
    """
    The way out of one link that is open; the sender counts its sends from one on each.
    """

    def __init__(self, session: Any, link: Any) -> None:
        self._session = session
        self._link = link
        self._number = 0
        self._queued: deque[tuple[int, Message]] = deque()
        self._in_flight: dict[int, _InFlight] = {}
        self._in_flight_bytes = 0
        #: Since when the broker takes nothing; None while it does, or nothing is to be taken.
        self._stuck_since: float | None = None
        #: The broker takes nothing; as of the last :meth:`watch`.
        self.is_blocked = False

    def queue(self, messages: Sequence[Message]) -> None:
        """
        Take messages, to be sent in this order as credit comes.
        """
        for message in messages:
            self._number += 1
            self._queued.append((self._number, message))

    def spend_credit(self) -> list[int]:
        """
        Send what there is credit for; return which were not sent, because their callers were told in the meantime.
        """
        link, passed_over = self._link, []
        for _ in range(min(link.credit, len(self._queued))):
            number, message = self._queued.popleft()
            if message.place is not Place.IN_FLIGHT:
                passed_over.append(number)
                continue
            data = encode(message)
            link.delivery(str(number))
            link.stream(data)
            link.advance()
            self._in_flight[number] = _InFlight(message, len(data))
            self._in_flight_bytes += len(data)
        return passed_over

    def watch(self, now: float) -> float | None:
        """
        Find out whether the broker blocks; return when to look again, if nothing changes.
        """
        buffered = self._session.outgoing_bytes
        # What left this machine and is not answered has its own time limit; a broker that blocks owes no answer.
        if not (self._queued or buffered) or self._in_flight_bytes > buffered:
            self._stuck_since, self.is_blocked = None, False
            return None
        if self._stuck_since is None:
            self._stuck_since = now
        self.is_blocked = now - self._stuck_since >= _STUCK_S
        return None if self.is_blocked else self._stuck_since + _STUCK_S

    def hear(self, delivery: Any) -> Answer | None:
        """
        Settle a delivery, and return what became of its message; None when that is not known yet, or was before.
        """
        if not delivery.updated:
            return None
        remote, outcome = delivery.remote, int(delivery.remote_state)
        if not outcome and not delivery.settled:
            return None
        number = int(delivery.tag)
        sent = self._in_flight.pop(number, None)
        if sent is None:
            return None
        self._in_flight_bytes -= sent.size
        verdict = outcomes.judge(outcome)
        if outcome in (outcomes.REJECTED, outcomes.MODIFIED):
            condition = remote.condition
            verdict = outcomes.judge(
                outcome,
                condition.name if condition else "",
                (condition.description if condition else "") or "",
                undeliverable=outcome == outcomes.MODIFIED and remote.undeliverable,
            )
        delivery.settle()
        return Answer(number, sent.message, verdict)
