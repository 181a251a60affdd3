"""Know who leads the target, and whether markers of parts would prove anything under it."""

from __future__ import annotations

from collections.abc import Sequence

from dedup.core.parts import order_of, still_led
from dedup.core.records import Leadership, Parts
from dedup.core.steps import Outgoing, Surveyed


class Proof:
    """
    What one session knows of who leads its target.

    A channel learns the leader from the first message it publishes to a queue, so a survey before
    that is good for all of them. One that finds a new leader is good only when a message published
    after it has been stored: until then the channel may send to the old one, which tells nobody.
    """

    def __init__(self) -> None:
        #: By the newest survey; None: nobody knows.
        self.leadership: Leadership | None = None
        self._acquainted = True
        self._local = False

    def surveyed(self, survey: Surveyed, *, published: bool) -> None:
        """
        Take note of a survey; *published* says that the channel was in use before.
        """
        if published:
            self._acquainted = self._acquainted and still_led(self.leadership, survey.leadership)
        self.leadership, self._local = survey.leadership, survey.local

    def stored(self) -> None:
        """
        Take note that the target has taken a message.
        """
        self._acquainted = True

    def parts(self, outgoing: Sequence[Outgoing], every: int) -> Parts | None:
        """
        Return what markers of parts rest on when *outgoing* is published next; None: they would prove nothing.
        """
        if self.leadership is None or not (self._local and self._acquainted):
            return None
        return Parts(order_of(outgoing), every, self.leadership)
