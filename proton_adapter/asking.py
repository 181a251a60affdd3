"""Ask the shims how far a publisher has come, over AMQP 1.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dedup.core.identity import ASK_HEADER
from dedup.core.in_band import ask_text
from dedup.inquirer import Asked, Inquirer
from proton_adapter.addresses import target_address
from proton_adapter.conversation import Conversation, request
from proton_adapter.outcomes import NO_ROUTE


class Asking(Inquirer):
    """
    Ask on one connection after the other.
    """

    def __init__(self, publisher_id: str, call: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(publisher_id, call)
        self._conversation: Conversation | None = None

    def hear(self, event: Any) -> bool:
        """
        Deal with an event of proton if it belongs here; say whether it does.
        """
        return self._conversation is not None and self._conversation.hear(event)

    def _forget_link(self) -> None:
        self._conversation = None

    def _ask(self, questions: Sequence[Asked]) -> None:
        if self._conversation is None:
            self._conversation = Conversation(
                self._connection,
                "dedup questions",
                on_answer=self._hear,
                on_refused=self._on_refused,
                on_closed=self._on_closed,
            )
        for asked in questions:
            message = request(
                target_address(asked.exchange, asked.routing_key),
                b"",
                user_id=asked.user_id,
                ttl_s=asked.patience_s,
                correlation_id=asked.id,
                group_id=self._publisher_id,
                properties={ASK_HEADER: ask_text(asked.sequence)},
            )
            self._conversation.ask(asked.id, message)

    def _on_refused(self, tag: str, code: int, text: str) -> None:
        asked = self._asked.get(tag.encode())
        if code == NO_ROUTE:
            self._returned(tag.encode(), code, text)
        elif asked is not None and code:  # else its queue is full: it goes unanswered
            self._refused([asked], code, text)

    def _on_closed(self, code: int, text: str) -> None:
        self._conversation = None
        self._refused([*self._asked.values()], code, text)
