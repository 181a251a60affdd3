"""What a task awaits: the future of one message, in the loop."""

from __future__ import annotations

import asyncio

from dedup import publisher as threads
from dedup.core.identity import Receipt


class Publication(asyncio.Future[Receipt]):
    """
    The future of one message, in the loop; cancelling it leaves the message on its way.
    """

    def __init__(self, below: threads.Publication, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.below = below

    @property
    def sequence(self) -> int:
        """
        The number of the message.
        """
        return self.below.sequence
