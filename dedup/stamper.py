"""Number the messages of any AMQP client, so that its retries are never duplicates."""

from __future__ import annotations

import threading
import time

from dedup.amqp091.publishing import Properties
from dedup.amqp091.stamping import stamped
from dedup.core import inputs
from dedup.core.identity import SEQUENCE_MAX, Receipt, clock_base, validate_publisher_id
from dedup.core.numbering import Numbering, Stamp
from dedup.core.window import WINDOW_SIZE
from dedup.errors import InvalidMessageError

__all__ = ["Stamp", "Stamper"]


class Stamper:
    """
    Give each message of another client its publisher id and number, and stop a client that would outrun the window.

    It never waits and does no input or output, so it serves threads and tasks alike: one for each publisher id, shared by all
    that publish under it. Publishing and confirms stay with the client; say what became of each message with :meth:`confirmed`,
    and :meth:`lost` when a channel is gone.

    Args:
        publisher_id: stable name of this publisher; two publishers alive at once must not share it.
        base: the first number is the one after it: :attr:`newest` of the run before, or what a registration has granted. Taken
            from the clock by default, which puts a later start above all earlier ones.
        window_size: the window of the shim.
        track: False for a client that cannot say what is confirmed: numbers only, and the rules are its own affair.

    Raises:
        InvalidIdentityError: not a publisher id.
        ConfigError: *base* or *window_size* is out of range.
    """

    def __init__(
        self,
        publisher_id: str,
        *,
        base: int | None = None,
        window_size: int = WINDOW_SIZE,
        track: bool = True,
    ) -> None:
        self.publisher_id = validate_publisher_id(publisher_id)
        self._numbering = Numbering(
            self.publisher_id,
            base=clock_base(time.time_ns())
            if base is None
            else inputs.check_count("base", base, 0, SEQUENCE_MAX - 1),
            window_size=inputs.check_window_size(window_size),
        )
        self._track = track
        self._lock = threading.Lock()

    @property
    def newest(self) -> int:
        """
        The highest number given out; as *base* of the next run it lets that one send again what this one had not seen confirmed.
        """
        with self._lock:
            return self._numbering.newest

    @property
    def unconfirmed(self) -> list[Stamp]:
        """
        The stamps of what is neither confirmed nor given up, oldest first.
        """
        with self._lock:
            return self._numbering.unconfirmed()

    def stamp(self, *, sequence: int | None = None) -> Stamp:
        """
        Return the stamp of a new message.

        Args:
            sequence: its own number, such as a row id; above all before it. None takes the next one.

        Raises:
            WindowFullError: it would be more than half a window above the oldest unconfirmed message.
            OutOfTurnError: after :meth:`lost`, while something has not been sent again.
            InvalidMessageError: *sequence* is no number, or not above the newest; or there is none left.
        """
        with self._lock:
            stamp = self._numbering.new(time.time_ns() // 1_000_000, sequence)
            if not self._track:
                self._numbering.settle(stamp)
        return stamp

    def again(self, receipt: Receipt) -> Stamp:
        """
        Return the stamp for sending the same message again: the same number, the next attempt.

        Args:
            receipt: a stamp of the message, or the receipt that was stored of it. The body must be the same too.

        Raises:
            OutOfTurnError: after :meth:`lost`, while an older one has not been sent again.
            ReceiptExpiredError: it is more than half a window below the newest number.
            InvalidMessageError: another publisher's, or never given out.
        """
        with self._lock:
            stamp = self._numbering.again(receipt)
            if not self._track:
                self._numbering.settle(stamp)
        return stamp

    def confirmed(self, receipt: Receipt) -> None:
        """
        Say that the broker has confirmed a message, and has not returned it; saying so twice does nothing.

        Raises:
            InvalidMessageError: another publisher's, or never given out.
        """
        with self._lock:
            self._numbering.settle(receipt)

    def give_up(self, receipt: Receipt) -> None:
        """
        Say that a message will not be sent again: it may be stored or not, and holds nobody back any more.

        Raises:
            InvalidMessageError: another publisher's, or never given out.
        """
        with self._lock:
            self._numbering.settle(receipt)

    def lost(self) -> list[Stamp]:
        """
        Say that the channel is gone, and return what must be sent again, oldest first, before anything new.
        """
        with self._lock:
            return self._numbering.lose()

    def properties(self, stamp: Stamp, properties: Properties | None = None) -> Properties:
        """
        Return *properties* with the stamp in them, for pika; None makes a persistent message.

        The publisher id goes into a header where the properties have an ``app_id`` of their own.

        Raises:
            InvalidMessageError: not a stamp of this publisher, not properties, or a header that belongs to dedup.
        """
        self._check(stamp)
        return stamped(properties, stamp)

    def __repr__(self) -> str:
        return f"<dedup.Stamper {self.publisher_id!r} at {self.newest}>"

    def _check(self, stamp: object) -> None:
        if not isinstance(stamp, Stamp) or stamp.publisher_id != self.publisher_id:
            raise InvalidMessageError(
                f"pass a stamp of {self.publisher_id!r} first, then properties; not {stamp!r}"
            )
