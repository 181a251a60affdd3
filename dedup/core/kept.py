"""Keep the messages that were given up, so that their callers may retry them."""

from __future__ import annotations

from dedup.core.sending import Message


class Kept:
    """
    A store of messages by sequence, bounded in number and bytes; the ones given up first leave first.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._messages: dict[int, Message] = {}

    def add(self, message: Message) -> None:
        """
        Keep *message*, at the cost of older ones when there is no room.
        """
        self.take(message.sequence)
        self._messages[message.sequence] = message
        self._bytes += message.size
        while len(self._messages) > self._count_max or self._bytes > self._bytes_max:
            self.take(next(iter(self._messages)))

    def get(self, sequence: int) -> Message | None:
        """
        Return the message of *sequence*; None when it is not here.
        """
        return self._messages.get(sequence)

    def take(self, sequence: int) -> Message | None:
        """
        Return the message of *sequence* and keep it no longer; None when it is not here.
        """
        message = self._messages.pop(sequence, None)
        if message is not None:
            self._bytes -= message.size
        return message

    def clear(self) -> None:
        """
        Keep nothing.
        """
        self._messages.clear()
        self._bytes = 0
