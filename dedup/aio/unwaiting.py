"""The publisher of threads, without its waits: it says what it would wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dedup import publisher as threads

#: What is left for a message whose time went by while it waited for room: the sender gives it up, with a receipt; seconds.
NO_TIME_S = 1e-6


class FullError(Exception):
    """Raised when there is no room now."""


class Unwaiting(threads.Publisher):
    """
    The publisher below: it says that it is full where another one waits.

    Args:
        on_room: told when room was made otherwise than by a message that is settled, and when there will be none; called
            in any thread.
    """

    def __init__(self, on_room: Callable[[], None], *arguments: Any, **options: Any) -> None:
        self._on_room = on_room
        super().__init__(*arguments, **options)

    @property
    def has_outbox(self) -> bool:
        """
        Whether a message stays on its way when its time is up.
        """
        return self._journal is not None

    def check_outbox(self) -> None:
        """
        Refuse what only an outbox can do.

        Raises:
            ConfigError: there is none.
        """
        self._check_outbox()

    def wait_kept(self, publication: threads.Publication, deadline: float | None) -> None:
        """
        Wait, in a thread, until a message is in the outbox; as :meth:`keep`.
        """
        self._wait_kept(publication, deadline)

    def _tell_of_room(self) -> None:
        super()._tell_of_room()
        self._on_room()

    def _on_end(self, cause: BaseException | None) -> None:
        super()._on_end(cause)
        self._on_room()

    def _wait_for_room(self, size: int, deadline: float | None) -> None:
        if deadline is None or deadline > time.monotonic() + NO_TIME_S:
            raise FullError
