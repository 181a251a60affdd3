"""What every publisher keeps whatever protocol it speaks, on a real broker, over a link that breaks."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest

from dedup.core import names
from dedup.core.identity import Receipt
from dedup.core.window import WINDOW_SIZE_MAX
from dedup.errors import (
    BrokerUnavailableError,
    ClosedUnconfirmedError,
    ConfigError,
    DedupError,
    InvalidMessageError,
    PublisherClosedError,
    PublishError,
    ReturnedError,
)
from dedup.publisher import Publisher
from dedup.testing.proxy import TO_CLIENT, FaultProxy
from dedup.testing.servers import RabbitMQ
from tests.looking import bodies, channel, check_copies, drain, over, sequences

_DEAD_URL = "amqp://guest:secret@127.0.0.1:1/%2F"
#: More messages than a link of AMQP 1.0 gets credit for.
_MORE_THAN_CREDIT = 600


class PublisherUnderTest:
    """
    The publisher of one protocol, and what is its own.
    """

    publisher: ClassVar[type[Publisher]]
    #: Makes a message's properties.
    properties: ClassVar[Any]
    #: Bodies at which the protocol begins to write them in another way.
    odd_bodies: ClassVar[Sequence[bytes]]
    #: How many bytes of the broker's handshake the client gets before the link is torn.
    torn_after: ClassVar[Mapping[str, int]]
    #: What no message of this protocol may have.
    bad_properties: ClassVar[Sequence[Any]]
    #: Whether the broker names the message it refuses, so that nothing else has to be sent again.
    refusals_are_named: ClassVar[bool]

    def open(self, url: str | Sequence[str], **options: Any) -> Publisher:
        """Return a publisher without registration."""
        if "base" not in options:
            options["registration"] = "local"
        return self.publisher(url, "orders-1", **options)

    def refusal(self, rabbitmq: RabbitMQ) -> str:
        """Return what is told of a message for which a queue has no room."""
        raise NotImplementedError


class PublisherContract(PublisherUnderTest):
    """
    What arrives, what is refused, and how.
    """

    # -- what arrives -----------------------------------------------------------------------------

    def test_a_guarded_queue_is_published_to_by_its_own_name(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """``queue="orders"`` leads to the queue in front of it."""
        ingress = names.ingress(queue)
        with channel(rabbitmq) as opened:
            opened.queue_declare(ingress, durable=True)
        with self.open(rabbitmq.url) as publisher:
            publisher.publish(b"x", queue=queue)
        assert bodies(drain(rabbitmq, ingress)) == [b"x"]
        with channel(rabbitmq) as opened:
            opened.queue_delete(ingress)

    def test_pipelined_messages_arrive_in_the_order_of_their_submits(
        self, rabbitmq: RabbitMQ, queue: str
    ) -> None:
        """Thousands in flight, each confirmed under its own sequence."""
        with self.open(rabbitmq.url) as publisher:
            futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(10_000)]
            publisher.flush()
            receipts = [future.result(0) for future in futures]
        messages = drain(rabbitmq, queue)
        assert bodies(messages) == [b"%d" % n for n in range(10_000)]
        assert sequences(messages) == [receipt.sequence for receipt in receipts]

    def test_bodies_of_any_size_arrive_whole(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """Empty, where they are written in another way, and many frames."""
        given = [b"", *self.odd_bodies, os.urandom(5_000_000)]
        with self.open(rabbitmq.url) as publisher:
            for body in given:
                publisher.publish(body, routing_key=queue)
        assert bodies(drain(rabbitmq, queue)) == given

    def test_threads_may_share_a_publisher(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """No sequence is used twice, and each thread's messages keep their order."""
        receipts: list[Receipt] = []
        with self.open(rabbitmq.url, unconfirmed_max=100, waiting_max=50) as publisher:

            def work(name: int) -> None:
                futures = [publisher.submit(b"%d %d" % (name, n), routing_key=queue) for n in range(500)]
                receipts.extend(future.result(60) for future in futures)
                receipts.append(publisher.publish(b"%d 500" % name, routing_key=queue, timeout=60))

            threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        messages = drain(rabbitmq, queue)
        assert len(receipts) == len({receipt.sequence for receipt in receipts}) == len(messages) == 8 * 501
        assert sequences(messages) == sorted(sequences(messages))
        for name in range(8):
            mine = [body for body in bodies(messages) if body.startswith(b"%d " % name)]
            assert mine == [b"%d %d" % (name, n) for n in range(501)]

    # -- messages nobody takes --------------------------------------------------------------------

    @pytest.mark.each_version
    def test_an_unroutable_message_is_an_error_and_can_be_retried(
        self, rabbitmq: RabbitMQ, queue: str
    ) -> None:
        """That the broker has dealt with it is no success; the caller learns the truth, mends the topology and retries."""
        missing = f"{queue}.later"
        with self.open(rabbitmq.url) as publisher:
            with pytest.raises(ReturnedError, match=missing) as caught:
                publisher.publish(b"x", routing_key=missing)
            with channel(rabbitmq) as opened:
                opened.queue_declare(missing, durable=True)
            assert publisher.retry(caught.value.receipt, timeout=10).attempts == 2
        assert bodies(drain(rabbitmq, missing)) == [b"x"]
        with channel(rabbitmq) as opened:
            opened.queue_delete(missing)

    @pytest.mark.each_version
    def test_a_missing_exchange_fails_its_messages_and_no_others(
        self, rabbitmq: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Exactly the right ones fail, even where the broker closes the channel and names no message."""
        with self.open(rabbitmq.url) as publisher:
            futures = []
            for n in range(1000):
                exchange, key = (f"{queue}.nowhere", "k") if n % 100 == 50 else ("", queue)
                futures.append(publisher.submit(b"%d" % n, exchange=exchange, routing_key=key))
            errors = {n: future.exception(60) for n, future in enumerate(futures)}
        bad = {n for n, error in errors.items() if error is not None}
        assert bad == set(range(50, 1000, 100))
        assert all(type(errors[n]) is PublishError and "404" in str(errors[n]) for n in bad)
        assert "connection_lost" not in caplog.text
        stored = bodies(drain(rabbitmq, queue))
        if self.refusals_are_named:
            assert len(stored) == 990
        assert list(dict.fromkeys(stored)) == [b"%d" % n for n in range(1000) if n not in bad]

    @pytest.mark.each_version
    def test_a_message_the_broker_refuses_fails_alone(
        self, rabbitmq: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A forged user id among many messages ends the channel, session or link without a name: that one fails, precisely."""
        forged = self.properties(user_id="somebody-else")
        with self.open(rabbitmq.url) as publisher:
            futures = [
                publisher.submit(b"%d" % n, routing_key=queue, properties=forged if n == 500 else None)
                for n in range(1000)
            ]
            errors = [future.exception(60) for future in futures]
            assert publisher.publish(b"after", routing_key=queue).attempts == 1
        assert [n for n, error in enumerate(errors) if error is not None] == [500]
        assert type(errors[500]) is PublishError
        assert "406" in str(errors[500])
        assert "connection_lost" not in caplog.text
        wanted = {b"after"} | {b"%d" % n for n in range(1000) if n != 500}
        assert set(bodies(drain(rabbitmq, queue))) == wanted

    def test_bad_input_uses_no_sequence_and_sends_nothing(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """What is refused at once leaves no hole: the next message has the next sequence."""
        bad: list[dict[str, Any]] = [
            {"body": "text"},
            {"body": bytes(1001)},
            {"exchange": "e" * 256},
            {"timeout": 0},
            {"queue": "orders"},
            *({"properties": properties} for properties in self.bad_properties),
        ]
        with self.open(rabbitmq.url, base=0, body_bytes_max=1000) as publisher:
            for arguments in bad:
                with pytest.raises(InvalidMessageError):
                    publisher.submit(**{"body": b"x", "routing_key": queue, **arguments})
            with pytest.raises(InvalidMessageError, match="belongs"):
                publisher.retry(Receipt("orders-2", 1))
            assert publisher.publish(b"good", routing_key=queue).sequence == 1
        assert bodies(drain(rabbitmq, queue)) == [b"good"]

    # -- opening ----------------------------------------------------------------------------------

    def test_no_window_is_larger_than_a_shim_may_have(self) -> None:
        """It is refused before anybody is asked."""
        with pytest.raises(
            ConfigError, match=f"window_size is at least 2 and at most {WINDOW_SIZE_MAX}, not"
        ):
            self.open(_DEAD_URL, window_size=WINDOW_SIZE_MAX + 1)

    def test_a_dead_first_host_is_passed_over(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """Hosts are tried in turn."""
        with self.open([_DEAD_URL, rabbitmq.url]) as publisher:
            publisher.publish(b"x", routing_key=queue, timeout=10)
        assert len(drain(rabbitmq, queue)) == 1

    def test_a_lost_host_is_replaced_by_the_next(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy
    ) -> None:
        """When the connection breaks and its host refuses, the other one is used."""
        with self.open(f"{over(link)},{rabbitmq.url}") as publisher:
            receipts = [publisher.publish(b"0", routing_key=queue)]
            link.refuse()
            link.cut()
            receipts.append(publisher.publish(b"1", routing_key=queue, timeout=20))
        check_copies(drain(rabbitmq, queue), receipts)

    def test_no_broker_is_a_clear_error_without_the_password(self) -> None:
        """Nobody answers: the constructor says so in bounded time and shows no secret."""
        started = time.monotonic()
        with pytest.raises(BrokerUnavailableError, match=r"within 0\.5 s: amqp://127\.0\.0\.1:1") as caught:
            self.open(_DEAD_URL, connect_timeout_s=0.5)
        assert time.monotonic() - started < 20
        assert "secret" not in str(caught.value) + repr(caught.value)

    def test_a_refused_login_is_an_error_at_once(self, rabbitmq: RabbitMQ) -> None:
        """A wrong password does not get better by waiting; and it is never somebody else's login instead."""
        url = f"amqp://guest:wrong@127.0.0.1:{rabbitmq.port}/%2F"
        started = time.monotonic()
        with pytest.raises(ConfigError, match="login") as caught:
            self.open(url, connect_timeout_s=90)
        assert time.monotonic() - started < 60
        assert "wrong" not in str(caught.value)

    # -- misuse -----------------------------------------------------------------------------------

    def test_waiting_in_a_callback_is_refused_and_submitting_is_not(
        self, rabbitmq: RabbitMQ, queue: str
    ) -> None:
        """A callback runs in the thread that would have to do the work."""
        with self.open(rabbitmq.url) as publisher:
            outcome: Future[Any] = Future()

            def callback(_: Future[Receipt]) -> None:
                try:
                    publisher.publish(b"y", routing_key=queue)
                except DedupError as error:
                    outcome.set_result((str(error), publisher.submit(b"z", routing_key=queue)))

            future = publisher.submit(b"x", routing_key=queue)
            assert not future.cancel()
            future.add_done_callback(callback)
            text, chained = outcome.result(10)
            assert "callback" in text
            assert chained.result(10).attempts == 1
        assert bodies(drain(rabbitmq, queue)) == [b"x", b"z"]

    def test_a_fork_cannot_use_its_parent_publisher(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """The child is told so, its exit harms nothing, and the parent goes on."""
        with self.open(rabbitmq.url) as publisher:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                try:
                    publisher.submit(b"child", routing_key=queue)
                except PublisherClosedError as error:
                    publisher.close()
                    os._exit(0 if "process" in str(error) else 2)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            publisher.publish(b"parent", routing_key=queue, timeout=10)
        assert bodies(drain(rabbitmq, queue)) == [b"parent"]

    def test_a_dying_thread_leaves_nobody_waiting(
        self, queue: str, link: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bug in the thread that owns the connection ends as errors in the callers, not as silence."""
        publisher = self.open(over(link))
        link.stall(TO_CLIENT)
        future = publisher.submit(b"x", routing_key=queue)

        def broken(*_: Any) -> Any:
            raise RuntimeError("bug")

        monkeypatch.setattr(publisher._thread._sender, "handle", broken)
        link.heal()
        error = future.exception(10)
        assert isinstance(error, ClosedUnconfirmedError)
        assert isinstance(error.__cause__, RuntimeError)
        with pytest.raises(PublisherClosedError) as caught:
            publisher.publish(b"y", routing_key=queue)
        assert isinstance(caught.value.__cause__, RuntimeError)
        publisher.close()
