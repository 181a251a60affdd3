"""Requests behind the shim: one that is sent twice is handled once, and its answer arrives, in either protocol and across them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

import pika
import pytest
from proton import UNDESCRIBED, Array, Data, Link, Message, Terminus, symbol

from dedup.core import names
from dedup.testing.servers import RabbitMQ
from tests.fault.guarded import Guarded
from tests.looking import channel, drain, until
from tests.proton.looking import connected

Make = Callable[..., Guarded]
#: Publishes a request so many times, as one who has missed the confirm, and returns how to take the answers.
Ask = Callable[[int], Callable[[], list[bytes]]]
_QUEUES = "/queues/"
_ID = "request 1"


class DirectReplyTo:
    """
    The option of a receiver that asks for an address of Direct Reply-To, which RabbitMQ has for AMQP 1.0 from 4.2 on.
    """

    def test(self, link: Any) -> bool:
        """Say that it is for receivers."""
        return bool(link.is_receiver)

    def apply(self, receiver: Any) -> None:
        """Describe the source."""
        receiver.source.dynamic = True
        receiver.source.expiry_policy = Terminus.EXPIRE_WITH_LINK
        wanted = Array(UNDESCRIBED, Data.SYMBOL, symbol("rabbitmq:volatile-queue"))
        receiver.source.capabilities.put_object(wanted)
        receiver.snd_settle_mode = Link.SND_SETTLED


@contextmanager
def _old(broker: RabbitMQ, queue: str) -> Iterator[Ask]:
    """A requester of 0.9.1, with Direct Reply-To."""
    with channel(broker) as opened:
        heard: list[bytes] = []

        def on_answer(_channel: Any, _method: Any, properties: Any, body: bytes) -> None:
            assert properties.correlation_id == _ID
            heard.append(body)

        opened.basic_consume("amq.rabbitmq.reply-to", on_answer, auto_ack=True)

        def ask(times: int) -> Callable[[], list[bytes]]:
            properties = pika.BasicProperties(
                app_id="p",
                headers={"dedup-sequence": 1},
                reply_to="amq.rabbitmq.reply-to",
                correlation_id=_ID,
                delivery_mode=2,
            )
            for _ in range(times):
                opened.basic_publish("", names.ingress(queue), b"request", properties)
            return answers

        def answers() -> list[bytes]:
            until(lambda: opened.connection.process_data_events(0.05) or bool(heard))
            opened.connection.process_data_events(0.3)
            return heard

        yield ask


@contextmanager
def _new(broker: RabbitMQ, queue: str, *, direct: bool) -> Iterator[Ask]:
    """A requester of 1.0, with Direct Reply-To or a queue for its answers."""
    replies = f"{queue}.replies"
    with connected(broker) as connection, channel(broker) as opened:
        if direct:
            receiver = connection.create_receiver(None, credit=10, dynamic=True, options=DirectReplyTo())
        else:
            opened.queue_declare(replies, durable=True)
            receiver = connection.create_receiver(_QUEUES + replies, credit=10)
        address = receiver.link.remote_source.address

        def ask(times: int) -> Callable[[], list[bytes]]:
            sender = connection.create_sender(_QUEUES + names.ingress(queue))
            for _ in range(times):
                request = Message(body=b"request", inferred=True, durable=True, group_id="p")
                request.reply_to, request.correlation_id = address, _ID
                request.properties = {"dedup-sequence": 1}
                sender.send(request)
            return answers

        def answers() -> list[bytes]:
            answer = receiver.receive(timeout=10)
            assert answer.correlation_id == _ID
            if not direct:
                receiver.accept()
            return [bytes(answer.body), *(b"another" for _ in range(receiver.fetcher.has_message))]

        yield ask
        if not direct:
            opened.queue_delete(replies)


def _handle_old(broker: RabbitMQ, queue: str) -> int:
    """Answer every request over 0.9.1 and return how many there were."""
    requests = drain(broker, queue)
    with channel(broker) as opened:
        for _, properties in requests:
            # RabbitMQ 4.0 hands an address of 1.0 on as it is.
            to = unquote(properties.reply_to.removeprefix(_QUEUES))
            answer = pika.BasicProperties(correlation_id=properties.correlation_id)
            opened.basic_publish("", to, b"answer", answer)
    return len(requests)


def _handle_new(broker: RabbitMQ, queue: str) -> int:
    """Answer every request over 1.0 and return how many there were."""
    with channel(broker) as opened:
        count = int(opened.queue_declare(queue, passive=True).method.message_count)
    with connected(broker) as connection:
        receiver = connection.create_receiver(_QUEUES + queue, credit=10)
        for _ in range(count):
            request = receiver.receive(timeout=10)
            receiver.accept()
            to = request.reply_to
            address = to if to.startswith(_QUEUES) else _QUEUES + quote(to, safe="")
            answer = Message(body=b"answer", inferred=True, correlation_id=request.correlation_id)
            connection.create_sender(address).send(answer)
    return count


_HANDLERS = {"old": _handle_old, "new": _handle_new}


@pytest.mark.each_version
@pytest.mark.parametrize("shim", ["amqp091", "amqp10"])
@pytest.mark.parametrize(
    ("asks", "handles"),
    [("old", "old"), ("old", "new"), ("new", "new"), ("new", "old"), ("queue", "new"), ("queue", "old")],
)
def test_a_request_sent_twice_is_handled_once_and_answered(
    make: Make, broker: RabbitMQ, shim: str, asks: str, handles: str
) -> None:
    """Requester, shim and responder of either protocol; the broker translates addresses, the shim leaves them alone."""
    direct = not broker.version.startswith(("4.0", "4.1"))
    if not direct and (asks == "new" or (asks, handles) == ("old", "new")):
        pytest.skip("Direct Reply-To is for AMQP 0.9.1 alone before RabbitMQ 4.2")
    guarded = make()
    asking = (
        _old(broker, guarded.queue) if asks == "old" else _new(broker, guarded.queue, direct=asks == "new")
    )
    with asking as ask:
        answers = ask(2)
        assert guarded.depth(names.ingress(guarded.queue)) == 2
        guarded.run_until_drained(protocol=shim)
        assert _HANDLERS[handles](broker, guarded.queue) == 1
        assert answers() == [b"answer"]


def test_without_the_shim_it_is_handled_twice(make: Make, broker: RabbitMQ) -> None:
    """The control: the same requests, taken from the queue they went to."""
    guarded = make()
    with _old(broker, guarded.queue) as ask:
        answers = ask(2)
        assert _handle_old(broker, names.ingress(guarded.queue)) == 2
        assert answers() == [b"answer", b"answer"]
