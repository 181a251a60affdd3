"""
Talk to the broker and to who answers requests, beside the messages: declare queues, listen to them, ask and be answered.

On a session of its own: what the broker refuses there, for which RabbitMQ 4.0 ends the whole session, ends no link that publishes.

Queues are declared through the management node, a pair of links to ``/management`` that carries requests like those of HTTP.
Answers come by Direct Reply-To, which RabbitMQ has for AMQP 1.0 from 4.2 on; below, to an exclusive queue with a name that nobody can
guess.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import Any, Final

from attrs import frozen
from proton import UNDESCRIBED, Array, Data, Endpoint, Event, Link, Message, Terminus, symbol

from dedup.core.reply_address import REPLY_QUEUES
from proton_adapter import outcomes
from proton_adapter.addresses import queue_address
from proton_adapter.connection import Connection
from proton_adapter.failures import told
from proton_adapter.sections import letter

MANAGEMENT: Final = "/management"
#: Where the management node sends its responses: to the other link of the pair.
_PAIRED: Final = "$me"
#: Statuses of a declaration that was carried out.
DONE: Final = (200, 201)
#: From here on RabbitMQ makes addresses of Direct Reply-To for AMQP 1.0.
_DIRECT_REPLIES: Final = (4, 2)
_REPLY_ARGUMENTS: Final = {"x-queue-type": "classic", "x-max-length": 1_000}
#: Messages the broker may be ahead of this side.
_CREDIT: Final = 100
_HEARD: Final = (
    Event.DELIVERY,
    Event.LINK_REMOTE_OPEN,
    Event.LINK_REMOTE_CLOSE,
    Event.LINK_REMOTE_DETACH,
    Event.SESSION_REMOTE_CLOSE,
)

#: Given the correlation id of a message, and its data.
OnLetter = Callable[[bytes, bytes], None]
#: Told the status of a declaration, as in HTTP, and what the broker says.
OnDeclared = Callable[[int, str], None]


@frozen(eq=False)
class _Listening:
    """
    A link that messages come from.
    """

    link: Any
    on_open: Callable[[], None]
    on_letter: OnLetter


def request(address: str, body: bytes, *, user_id: str | None, ttl_s: float, **properties: Any) -> Message:
    """
    Return a message to *address* that nobody has to keep.

    Args:
        address: version 2.
        body: its data.
        user_id: the broker's user; None: it names none.
        ttl_s: how long it is worth an answer; seconds.
        properties: others of proton's.
    """
    message = Message(address=address, body=body, inferred=True, ttl=ttl_s, **properties)
    if user_id is not None:
        message.user_id = user_id.encode()
    return message


class Conversation:
    """
    One session of a connection that is open; when it has ended, make another one.

    Args:
        connection: open.
        name: what links are called after.
        on_answer: given what comes to the address that requests carry.
        on_refused: told the tag of a request that reached no queue, the reply code (0: none), and why.
        on_closed: told the reply code and the reason when the broker ended the session; last.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        on_answer: OnLetter,
        on_refused: Callable[[str, int, str], None],
        on_closed: Callable[[int, str], None],
    ) -> None:
        self._name = name
        self._on_answer = on_answer
        self._on_refused = on_refused
        self._on_closed = on_closed
        self._session = connection.endpoint.session()
        self._session.open()
        self._listening: dict[str, _Listening] = {}
        #: The pair of links to the management node, made when it is needed, and the declarations that are not answered.
        self._to_management: Any = None
        self._from_management: Any = None
        self._declared: dict[str, OnDeclared] = {}
        self._declarations = 0
        #: Requests that wait for the address of their answers.
        self._waiting: list[tuple[str, Message]] = []
        self._reply_to = ""
        self._requests = self._session.sender(f"{name} requests")
        self._requests.target.type = Terminus.TARGET  # without an address: the anonymous terminus
        self._requests.open()
        if connection.version >= _DIRECT_REPLIES:
            self._listen_directly()
        else:
            self._listen_to_queue()

    # -- from outside -----------------------------------------------------------------------------

    def declare(
        self, queue: str, arguments: dict[str, Any], on_declared: OnDeclared, *, auto_delete: bool = False
    ) -> None:
        """
        Declare *queue* as exclusive to this connection; again on the same connection is no error.
        """
        if self._to_management is None:
            self._open_management()
        self._declarations += 1
        tag = str(self._declarations)
        self._declared[tag] = on_declared
        body = {"durable": False, "exclusive": True, "auto_delete": auto_delete, "arguments": arguments}
        message = Message(id=tag, subject="PUT", address=queue_address(queue), reply_to=_PAIRED, body=body)
        _send(self._to_management, tag, message).settle()

    def listen(self, queue: str, on_open: Callable[[], None], on_letter: OnLetter) -> None:
        """
        Take what comes to *queue*; *on_open* is called when the broker has agreed, at once where it has before.
        """
        if queue in self._listening:
            on_open()
            return
        link = self._receiver(queue)
        link.source.address = queue_address(queue)
        self._start_listening(link, on_open, on_letter)

    def ask(self, tag: str, message: Message) -> None:
        """
        Send *message*, with an address for the answer in it, to where its ``to`` says.
        """
        if not self._reply_to:
            self._waiting.append((tag, message))
            return
        message.reply_to = self._reply_to
        _send(self._requests, tag, message)

    def hear(self, event: Any) -> bool:
        """
        Deal with an event of proton if it is of this session; say whether it is.
        """
        if event.type not in _HEARD or event.session != self._session:
            return False
        if event.type is Event.DELIVERY:
            self._on_delivery(event.delivery)
        elif event.type is Event.LINK_REMOTE_OPEN:
            self._on_link_open(event.link)
        else:
            ended = event.session if event.type is Event.SESSION_REMOTE_CLOSE else event.link
            self._end(*told(ended.remote_condition))
        return True

    # -- what comes -------------------------------------------------------------------------------

    def _on_delivery(self, delivery: Any) -> None:
        link = delivery.link
        if link.is_sender:
            if delivery.updated and link == self._requests:
                self._on_outcome(delivery)
        elif delivery.readable and not delivery.partial:
            raw = bytes(link.recv(delivery.pending) or b"")
            link.advance()
            delivery.settle()
            link.flow(1)
            if link == self._from_management:
                self._on_response(raw)
            elif link.name in self._listening:
                self._listening[link.name].on_letter(*letter(raw))

    def _on_response(self, raw: bytes) -> None:
        response = Message()
        response.decode(raw)
        on_declared = self._declared.pop(str(response.correlation_id), None)
        if on_declared is not None:
            on_declared(int(response.subject), "" if isinstance(response.body, dict) else str(response.body))

    def _on_outcome(self, delivery: Any) -> None:
        outcome = int(delivery.remote_state)
        if outcome:
            condition = delivery.remote.condition if outcome == outcomes.REJECTED else None
            name, text = (condition.name, condition.description or "") if condition else ("", "")
            verdict = outcomes.judge(outcome, name, text)
            if verdict.code or not verdict.ack:
                self._on_refused(str(delivery.tag), verdict.code, verdict.text)
        if outcome or delivery.settled:
            delivery.settle()

    def _on_link_open(self, link: Any) -> None:
        listening = self._listening.get(link.name)
        if listening is not None and not link.state & Endpoint.REMOTE_CLOSED:  # refused: its end follows
            listening.on_open()

    def _end(self, code: int, text: str) -> None:
        self._session.close()
        self._session.free()
        self._on_closed(code, text)

    # -- links ------------------------------------------------------------------------------------

    def _open_management(self) -> None:
        self._to_management = self._session.sender(f"{self._name} management")
        self._from_management = self._session.receiver(f"{self._name} management")
        for link in (self._to_management, self._from_management):
            link.source.address = link.target.address = MANAGEMENT
            link.properties = {symbol("paired"): True}
            link.snd_settle_mode = Link.SND_SETTLED
            link.open()
        self._from_management.flow(_CREDIT)

    def _receiver(self, name: str) -> Any:
        link = self._session.receiver(name)
        link.snd_settle_mode = Link.SND_SETTLED
        return link

    def _start_listening(self, link: Any, on_open: Callable[[], None], on_letter: OnLetter) -> None:
        self._listening[link.name] = _Listening(link, on_open, on_letter)
        link.open()
        link.flow(_CREDIT)

    def _listen_directly(self) -> None:
        link = self._receiver(f"{self._name} answers")
        link.source.dynamic = True
        link.source.expiry_policy = Terminus.EXPIRE_WITH_LINK
        wanted = Array(UNDESCRIBED, Data.SYMBOL, symbol("rabbitmq:volatile-queue"))
        link.source.capabilities.put_object(wanted)
        self._start_listening(
            link, lambda: self._on_address(str(link.remote_source.address)), self._on_answer
        )

    def _listen_to_queue(self) -> None:
        queue = f"{REPLY_QUEUES}{token_hex(16)}"

        def on_declared(status: int, text: str) -> None:
            if status in DONE:
                # By its bare name: RabbitMQ 4.0 hands an address on to readers of AMQP 0.9.1 as it is.
                self.listen(queue, lambda: self._on_address(queue), self._on_answer)
            else:
                self._end(status, text)

        self.declare(queue, _REPLY_ARGUMENTS, on_declared, auto_delete=True)

    def _on_address(self, address: str) -> None:
        self._reply_to = address
        waiting, self._waiting = self._waiting, []
        for tag, message in waiting:
            self.ask(tag, message)


def _send(link: Any, tag: str, message: Message) -> Any:
    """
    Hand *message* to proton, which keeps it until there is credit; return its delivery.
    """
    delivery = link.delivery(tag)
    link.stream(message.encode())
    link.advance()
    return delivery
