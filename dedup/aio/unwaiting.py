"""The publisher of threads, without its waits: it says what it would wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dedup import publisher as threads
from dedup.publisher.buffer import Room
from dedup.publisher.pipeline import Pipeline

#: What is left for a message whose time went by while it waited for room: the sender gives it up, with a receipt; seconds.
NO_TIME_S = 1e-6


class FullError(Exception):
    """Raised when there is no room now."""


class NoWaitingRoom(Room):
    """
    Room that nobody waits for in a thread.

    Args:
        on_room: told that there may be room, or will never be; called in any thread.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        super().__init__()
        self._on_room = on_room

    def wait(self, is_over: Callable[[], bool], deadline: float | None) -> None:
        """
        Say that there is none now; a message whose time is up goes on, to be given up.

        Raises:
            FullError: it has time left.
        """
        if deadline is None or deadline > time.monotonic() + NO_TIME_S:
            raise FullError

    def tell(self) -> None:
        """
        Hand on that there may be room now, or will never be.
        """
        self._on_room()


class Unwaiting(threads.Publisher):
    """
    The publisher below: it raises :class:`FullError` where another one waits for room, and tells *on_room* of it.
    """

    def __init__(self, on_room: Callable[[], None], *arguments: Any, **options: Any) -> None:
        self._on_room = on_room
        super().__init__(*arguments, **options)

    @property
    def pipeline(self) -> Pipeline:
        """
        The way of its messages: what there can be waited for is waited for otherwise.
        """
        return self._pipeline

    def _new_room(self) -> Room:
        return NoWaitingRoom(self._on_room)
