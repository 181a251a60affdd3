"""What every publisher keeps while links break, a broker is in trouble or its user closes it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from dedup.core.identity import Receipt
from dedup.errors import ClosedUnconfirmedError, PublisherClosedError, PublishError, PublishTimeoutError
from dedup.testing.proxy import TO_CLIENT, TO_SERVER, FaultProxy
from dedup.testing.servers import RabbitMQ
from tests.looking import bodies, channel, check_copies, depth, drain, in_alarm, over, sequences, until
from tests.publisher_contract import PublisherUnderTest

#: More messages than a link of AMQP 1.0 gets credit for.
_MORE_THAN_CREDIT = 600


class PublisherInTrouble(PublisherUnderTest):
    """
    Nothing confirmed is lost, and every message keeps its sequence.
    """

    # -- a link that breaks -----------------------------------------------------------------------

    @pytest.mark.each_version
    def test_lost_confirms_lead_to_the_same_message_again(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The broker stores, its answers never arrive: the connection counts as dead, and copies name the same sequence."""
        with self.open(over(link), confirm_timeout_s=1.0) as publisher:
            publisher.publish(b"before", routing_key=queue)
            link.drop(TO_CLIENT)
            futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(100)]
            until(lambda: depth(rabbitmq, queue) == 101)
            until(lambda: "publisher_connection_dropped" in caplog.text)
            link.heal()
            receipts = [future.result(30) for future in futures]
        assert {receipt.attempts for receipt in receipts} == {2}
        messages = drain(rabbitmq, queue)
        assert len(messages) == 201
        assert {properties.headers.get("dedup-attempt") for _, properties in messages} == {None, 2}
        check_copies(messages, receipts)

    @pytest.mark.parametrize("place", ["greeting", "login"])
    def test_a_link_torn_in_the_handshake_is_tried_again(
        self, queue: str, link: FaultProxy, place: str
    ) -> None:
        """What ends a connection before it is open is not taken for a wrong setting: the next attempt serves."""
        link.cut_after(self.torn_after[place], TO_CLIENT)
        with self.open(over(link)) as publisher:
            assert publisher.publish(b"m", routing_key=queue).attempts == 1

    def test_a_link_cut_again_and_again_loses_nothing(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy
    ) -> None:
        """Resets in the middle of the stream: everything submitted is confirmed and there, first copies in order."""
        with self.open(over(link)) as publisher:
            futures: list[Future[Receipt]] = []
            for cut in range(8):
                count, way = (20_000 + 7919 * cut, TO_SERVER) if cut % 2 else (5_000 + 1319 * cut, TO_CLIENT)
                link.cut_after(count, way)
                futures += [
                    publisher.submit(b"%d" % (cut * 2000 + n), routing_key=queue) for n in range(2000)
                ]
            receipts = [future.result(60) for future in futures]
        assert max(receipt.attempts for receipt in receipts) > 1
        messages = drain(rabbitmq, queue)
        check_copies(messages, receipts)
        assert list(dict.fromkeys(sequences(messages))) == [receipt.sequence for receipt in receipts]

    def test_a_timeout_carries_a_receipt_that_is_safe_to_retry(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy
    ) -> None:
        """The caller is told in time; the retry is the same message, and the publisher does not repeat it by itself."""
        with self.open(over(link)) as publisher:
            link.stall(TO_CLIENT)
            started = time.monotonic()
            with pytest.raises(PublishTimeoutError, match="silent") as caught:
                publisher.publish(b"x", routing_key=queue, timeout=0.5)
            assert 0.5 <= time.monotonic() - started < 20
            assert isinstance(caught.value, TimeoutError)
            link.cut()
            link.heal()
            receipt = publisher.retry(caught.value.receipt, timeout=30)
        assert receipt.sequence == caught.value.receipt.sequence
        check_copies(drain(rabbitmq, queue), [receipt])

    def test_a_late_confirm_makes_the_retry_a_success_without_a_copy(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy
    ) -> None:
        """What turned out to be stored is not sent again."""
        with self.open(over(link)) as publisher:
            link.stall(TO_CLIENT)
            with pytest.raises(PublishTimeoutError) as caught:
                publisher.publish(b"x", routing_key=queue, timeout=0.5)
            link.heal()
            publisher.publish(b"y", routing_key=queue, timeout=30)
            assert publisher.retry(caught.value.receipt, timeout=30).attempts == 1
        assert bodies(drain(rabbitmq, queue)) == [b"x", b"y"]

    def test_a_full_buffer_blocks_and_times_out_with_a_receipt(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy
    ) -> None:
        """Back-pressure: submit waits for room, in bounded time, and even then the receipt is good for a retry."""
        with self.open(over(link), unconfirmed_max=2, waiting_max=1) as publisher:
            link.stall(TO_CLIENT)
            first = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(3)]
            started = time.monotonic()
            late = publisher.submit(b"3", routing_key=queue, timeout=0.5)
            assert time.monotonic() - started > 0.4
            error = late.exception(10)
            assert isinstance(error, PublishTimeoutError)
            assert error.receipt.attempts == 0
            with pytest.raises(PublishTimeoutError, match="3 messages"):
                publisher.flush(timeout=0.1)
            link.heal()
            assert publisher.retry(error.receipt, timeout=30).attempts == 1
            assert [future.result(30).attempts for future in first] == [1, 1, 1]
        assert sorted(bodies(drain(rabbitmq, queue))) == [b"0", b"1", b"2", b"3"]

    # -- closing ----------------------------------------------------------------------------------

    def test_closing_in_time_fails_what_is_unconfirmed(self, queue: str, link: FaultProxy) -> None:
        """Close is bounded, and each message without a confirm says so with its receipt."""
        publisher = self.open(over(link), close_timeout_s=0.5, confirm_timeout_s=60)
        link.stall(TO_CLIENT)
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(3)]
        started = time.monotonic()
        publisher.close()
        assert time.monotonic() - started < 30
        for future in futures:
            error = future.exception(0)
            assert isinstance(error, ClosedUnconfirmedError)
            assert isinstance(error, PublishError)
            assert error.receipt.publisher_id == "orders-1"
        publisher.close()
        with pytest.raises(PublisherClosedError):
            publisher.submit(b"x", routing_key=queue)

    def test_closing_waits_for_confirms(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """What was submitted before close is confirmed by it."""
        with self.open(rabbitmq.url) as publisher:
            futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(5000)]
        assert len([future.result(0) for future in futures]) == len(drain(rabbitmq, queue)) == 5000

    def test_threads_that_close_at_once_wait_all(self, queue: str, link: FaultProxy) -> None:
        """None ends the connection while another still waits for confirms."""
        publisher = self.open(over(link))
        link.delay(0.3, TO_CLIENT)
        futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(100)]
        closing = [threading.Thread(target=publisher.close) for _ in range(4)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        assert [future.result(0).sequence for future in futures] == [future.sequence for future in futures]

    # -- a broker in trouble ----------------------------------------------------------------------

    def test_a_broker_killed_and_restarted_has_everything_confirmed(
        self, rabbitmq: RabbitMQ, queue: str
    ) -> None:
        """A kill -9 under load, a while of nothing, the same broker again: all futures end well, nothing confirmed is missing."""
        with self.open(rabbitmq.url) as publisher:
            futures = [publisher.submit(b"%d" % n, routing_key=queue) for n in range(4000)]
            until(lambda: any(future.done() for future in futures))
            rabbitmq.kill()
            futures += [publisher.submit(b"%d" % n, routing_key=queue) for n in range(4000, 5000)]
            rabbitmq.start()
            receipts = [future.result(60) for future in futures]
        check_copies(drain(rabbitmq, queue), receipts)

    @pytest.mark.each_version("long")
    def test_an_alarm_blocks_and_heartbeats_live(
        self, rabbitmq: RabbitMQ, queue: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """While the broker takes no publishes, callers are told why, the connection stays, and then it all goes through."""
        with self.open(rabbitmq.url + "?heartbeat=2", confirm_timeout_s=3.0) as publisher:
            publisher.publish(b"0", routing_key=queue)
            connected = publisher._thread._connection
            rabbitmq.set_alarm()
            try:
                until(lambda: in_alarm(rabbitmq))
                futures = [
                    publisher.submit(b"%d" % n, routing_key=queue) for n in range(1, _MORE_THAN_CREDIT)
                ]
                until(lambda: "publisher_blocked" in caplog.text)
                # Longer than two heartbeats, and than a confirm may take.
                with pytest.raises(PublishTimeoutError, match="blocked the connection"):
                    publisher.publish(b"late", routing_key=queue, timeout=5)
            finally:
                rabbitmq.clear_alarm()
            receipts = [future.result(30) for future in futures]
            assert publisher._thread._connection is connected
        assert {receipt.attempts for receipt in receipts} == {1}
        assert "publisher_connection_lost" not in caplog.text
        assert "publisher_connection_dropped" not in caplog.text
        assert bodies(drain(rabbitmq, queue)) == [b"%d" % n for n in range(_MORE_THAN_CREDIT)]

    @pytest.mark.each_version("long")
    @pytest.mark.parametrize("kind", ["classic", pytest.param("quorum", marks=pytest.mark.long)])
    def test_a_full_queue_is_tried_again_until_there_is_room(
        self, rabbitmq: RabbitMQ, queue: str, kind: str
    ) -> None:
        """reject-publish refuses: the message is sent again under its sequence until it is taken."""
        full = f"{queue}.full"
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish", "x-queue-type": kind}
        with channel(rabbitmq) as opened:
            opened.queue_declare(full, durable=True, arguments=arguments)
        with self.open(rabbitmq.url) as publisher:
            publisher.publish(b"0", routing_key=full, timeout=10)
            # A queue may take one or two more than its limit.
            more = [publisher.submit(b"more", routing_key=full, timeout=2)]
            while not (error := more[-1].exception(10)):
                more.append(publisher.submit(b"more", routing_key=full, timeout=2))
            assert len(more) <= 4
            assert isinstance(error, PublishTimeoutError)
            assert self.refusal(rabbitmq) in str(error)
            future = publisher.submit(b"last", routing_key=full)
            time.sleep(0.3)
            assert not future.done()
            taken = drain(rabbitmq, full)
            assert future.result(30).attempts > 1
        assert bodies(taken + drain(rabbitmq, full))[-1] == b"last"
        with channel(rabbitmq) as opened:
            opened.queue_delete(full)
