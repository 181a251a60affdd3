"""Register a publisher id over AMQP 1.0: the exclusive queue through the management node, the registry by request and answer."""

from __future__ import annotations

from typing import Any, Final

from dedup.core import registration as steps
from dedup.core.registry import REGISTRY, Request, encode_request
from dedup.errors import BrokerUnavailableError
from dedup.registrar import ANSWER_TIMEOUT_S, LOCK_ARGUMENTS, Registrar
from proton_adapter import conversation
from proton_adapter.addresses import target_address
from proton_adapter.conversation import DONE, Conversation
from proton_adapter.outcomes import NO_ROUTE

#: RabbitMQ has one status, 400, for much that it refuses to declare, and says only in words that another connection has the queue.
_HELD_TEXT: Final = "exclusive access"
_NOT_FOUND: Final = 404
#: The broker ended the session for reasons of its own: shut down, or failed. It may do better the next time.
_ITS_OWN: Final = (320, 541)


class Registering(Registrar):
    """
    Hold a publisher id on one connection after the other; see :class:`Registrar` for the arguments that are not here.

    Args:
        user_id: the broker's user, if publishers are bound to users.
    """

    def __init__(self, *args: Any, user_id: str | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._user_id = user_id
        self._conversation: Conversation | None = None

    def hear(self, event: Any) -> bool:
        """
        Deal with an event of proton if it belongs here; say whether it does.
        """
        return self._conversation is not None and self._conversation.hear(event)

    def _forget_link(self) -> None:
        self._conversation = None

    def _talk(self) -> Conversation:
        if self._conversation is None:
            self._conversation = Conversation(
                self._connection,
                "dedup registration",
                on_answer=lambda _, body: self._hear_registry(body),
                on_refused=self._on_refused,
                on_closed=self._on_closed,
            )
        return self._conversation

    def _lock(self) -> None:
        self._talk().declare(self._lock_queue, LOCK_ARGUMENTS, self._on_declared)

    def _on_declared(self, status: int, text: str) -> None:
        if status in DONE:
            self._talk().listen(
                self._lock_queue, lambda: self._tell(steps.Locked()), lambda _, body: self._hear_lock(body)
            )
        elif _HELD_TEXT in text:
            self._tell(steps.Held(f"{status} {text}"))
        else:
            self._tell(steps.Barred(f"{status} {text}"))

    def _request(self, request: Request) -> None:
        address, body = target_address(REGISTRY, ""), encode_request(request)
        message = conversation.request(address, body, user_id=self._user_id, ttl_s=ANSWER_TIMEOUT_S)
        self._talk().ask(str(request.id), message)

    def _on_refused(self, tag: str, code: int, text: str) -> None:
        reasons = {
            NO_ROUTE: f"the exchange {REGISTRY} leads to no queue",
            _NOT_FOUND: "none has ever run on this virtual host",
        }
        self._tell(steps.Unanswered(reasons.get(code, text or "its queue is full"), int(tag)))

    def _on_closed(self, code: int, text: str) -> None:
        self._conversation = None
        if code not in _ITS_OWN:
            self._tell(steps.Barred(f"{code} {text}"))
        elif not self.is_ready:
            self._on_retry(BrokerUnavailableError(f"the broker ended the session that registers: {text}"))
