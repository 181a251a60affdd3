"""Keep the state of the one channel a sender has, and when to ask for the next."""

from __future__ import annotations

from dedup.core.backoff import delay_s
from dedup.core.sending import SenderSettings


class Link:
    """
    A channel that is waited for, asked for, or open.

    Losses in a row, without a confirm between them and without a channel that lasted, raise the pause before the
    next one is asked for.
    """

    def __init__(self, settings: SenderSettings) -> None:
        self._settings = settings
        self.is_open = False
        #: Why the broker takes no publishes for now; empty when it does.
        self.blocked = ""
        #: Why there is no channel.
        self.loss = "no connection was tried yet"
        #: No confirm is missed before this: when the channel opened or the broker unblocked it.
        self.listening_since = 0.0
        self._opened_at = 0.0
        self._losses = 0
        #: When to ask for a channel; None while one is asked for or open.
        self._ask_at: float | None = 0.0
        self._asked_at = 0.0

    @property
    def can_be_lost(self) -> bool:
        """
        Whether there is a channel, or one asked for, whose loss would be news.
        """
        return self._ask_at is None

    def wake_at(self) -> float | None:
        """
        Return when a channel is to be asked for, or is overdue; None while one is open.
        """
        if self.is_open:
            return None
        if self._ask_at is not None:
            return self._ask_at
        return self._asked_at + self._settings.open_timeout_s

    def ask(self, now: float) -> bool:
        """
        Say whether to ask for a channel now; it is asked for once.
        """
        if self._ask_at is None or now < self._ask_at:
            return False
        self._ask_at, self._asked_at = None, now
        return True

    def is_overdue(self, now: float) -> bool:
        """
        Say whether a channel was asked for and did not come.
        """
        due = self.wake_at()
        return self._ask_at is None and due is not None and due <= now

    def open(self, now: float) -> None:
        """
        Note that the channel asked for is there.
        """
        if self._ask_at is None and not self.is_open:
            self.is_open = True
            self._opened_at = self.listening_since = now

    def block(self, reason: str) -> None:
        """
        Note that the broker takes no publishes.
        """
        if self.is_open:
            self.blocked = reason or "no reason given"

    def unblock(self, now: float) -> None:
        """
        Note that the broker takes publishes again; confirms are awaited from now on.
        """
        self.blocked, self.listening_since = "", now

    def prove(self) -> None:
        """
        Note a confirm: losses before it count no more.
        """
        self._losses = 0

    def lose(self, reason: str, jitter: float, now: float, *, at_once: bool = False) -> None:
        """
        Note that the channel is gone; ask for the next after a pause, or *at_once*.
        """
        settings = self._settings
        if self.is_open and now - self._opened_at >= settings.reconnect_delay_s_max:
            self._losses = 0
        self.is_open, self.blocked, self.loss = False, "", reason
        self._ask_at = now
        if not at_once:
            self._ask_at += delay_s(
                self._losses,
                jitter,
                first_s=settings.reconnect_delay_s_first,
                max_s=settings.reconnect_delay_s_max,
            )
            self._losses += 1
