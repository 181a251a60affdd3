"""Questions of publishers to shims on a real broker: exact behind a queue of messages, asked again after a kill, never a loop."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pika
import pytest

from dedup.core import names
from dedup.core.identity import Receipt, UserBinding
from dedup.core.questions import Status, Told
from dedup.core.registry import REGISTRY, lock_queue
from dedup.errors import (
    ConfigError,
    InvalidMessageError,
    NoAnswerError,
    PublisherClosedError,
    PublishTimeoutError,
    ResumeUncertainError,
    ReturnedError,
)
from dedup.publisher import Publisher
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import Child, Tell
from tests.fault.guarded import Guarded
from tests.looking import until


@pytest.fixture
def guarded(rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str) -> Iterator[Guarded]:
    """Return a guarded queue without a shim."""
    with ExitStack() as stack:
        yield stack.enter_context(Guarded(rabbitmq, redis_server, queue_name))


def publisher_of(guarded: Guarded, **options: Any) -> Publisher:
    """Return a publisher that is its numbers' own master."""
    return Publisher(guarded.amqp_url, "p", **{"registration": "local", **options})


def started(guarded: Guarded, **options: Any) -> Any:
    """Start a shim and wait until it works."""
    child = guarded.start_shim(**options)
    child.wait_for("dedup.recovered")
    return child


def ask(guarded: Guarded, text: Any = "resume", body: bytes = b"", **properties: Any) -> None:
    """Ask as any client might, with a Direct Reply-To unless *properties* have another address."""
    headers = {"dedup-ask": text, **properties.pop("headers", {})}
    with guarded.channel() as channel:
        if "reply_to" not in properties:
            channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
        properties = {"app_id": "p", "reply_to": "amq.rabbitmq.reply-to", **properties}
        channel.basic_publish(
            "", names.ingress(guarded.queue), body, pika.BasicProperties(headers=headers, **properties)
        )


def test_the_point_to_resume_is_exact_behind_thousands_of_messages(guarded: Guarded) -> None:
    """The question waits behind what is queued, and the answer counts all of it, gaps included."""
    numbers = [number for number in range(1, 3001) if number not in (700, 1500, 1501)]
    guarded.publish([(str(number), number) for number in numbers])
    with publisher_of(guarded) as publisher:
        with pytest.raises(NoAnswerError, match="start 'dedup shim'") as caught:
            publisher.resume_point(queue=guarded.queue, timeout=0.3)
        assert caught.value.queues == ()
        child = guarded.start_shim(batch_max=500)
        point = publisher.resume_point(queue=guarded.queue, queues=[guarded.queue], timeout=60)
        assert (point.minimum, point.maximum, point.next) == (3000, 3000, 3001)
        assert point.missing == ((700, 700), (1500, 1501))
        assert [number for number in range(1, 3003) if point.lacks(number)] == [700, 1500, 1501, 3001, 3002]
        child.stop()
    guarded.assert_each_once(map(str, numbers))


def test_resuming_fills_the_gaps_and_goes_on(guarded: Guarded) -> None:
    """A publisher that begins where the answer says loses and doubles nothing, and may fill a late gap as well."""
    guarded.publish([(str(number), number) for number in (1, 2, 4, 7)])
    child = started(guarded)
    with publisher_of(guarded) as publisher:
        point = publisher.resume_point(queue=guarded.queue)
        for number in range(1, 21):
            if point.lacks(number) and number != 11:
                publisher.submit(str(number).encode(), queue=guarded.queue, sequence=number)
        publisher.publish(b"11", queue=guarded.queue, sequence=11)
        assert publisher.resume_point(queue=guarded.queue).missing == ()
        with pytest.raises(InvalidMessageError, match="pass sequence= with every message"):
            publisher.publish(b"x", queue=guarded.queue)
    guarded.stop(child)
    guarded.assert_each_once([str(number) for number in range(1, 21)])


def test_status_tells_what_became_of_a_message(guarded: Guarded) -> None:
    """New, seen, too old, and unknown while nothing is known of the publisher."""
    child = started(guarded)
    with publisher_of(guarded) as publisher:

        def status(sequence: int) -> Status:
            (found,) = publisher.status(Receipt("p", sequence), queue=guarded.queue).values()
            return found

        assert status(5) is Status.UNKNOWN
        guarded.publish([("a", 20_000), ("b", 20_002)])
        assert [status(number) for number in (20_000, 20_001, 20_002, 20_003, 7)] == [
            Status.SEEN,
            Status.NEW,
            Status.SEEN,
            Status.NEW,
            Status.TOO_OLD,
        ]
        with pytest.raises(InvalidMessageError, match="belongs to publisher 'q'"):
            publisher.status(Receipt("q", 5), queue=guarded.queue)
        with pytest.raises(ReturnedError, match="no queue is bound"):
            publisher.status(Receipt("p", 5), queue="nowhere")
        with pytest.raises(ReturnedError):
            publisher.resume_point(queue="nowhere")
        publisher.publish(b"c", queue=guarded.queue, sequence=20_003)
    with pytest.raises(PublisherClosedError):
        publisher.resume_point(queue=guarded.queue)
    guarded.stop(child)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "confirmed"])
@pytest.mark.parametrize("step", [("before", "Answer", 1), ("after", "Answer", 1), ("before", "Save", 2)])
def test_a_shim_killed_over_a_question_answers_it_in_its_next_life(
    guarded: Guarded, exact: bool, step: tuple[str, str, int]
) -> None:
    """The question comes again with what was not acknowledged, and nothing is lost or doubled over it."""
    guarded.exact = exact
    guarded.publish([(str(number), number) for number in range(1, 11)])
    with publisher_of(guarded) as publisher:
        answers: list[Any] = []
        asking = threading.Thread(
            target=lambda: answers.append(publisher.resume_point(queue=guarded.queue, timeout=60))
        )
        asking.start()
        until(lambda: guarded.depth(names.ingress(guarded.queue)) == 11)
        guarded.run_until_killed(step)
        guarded.run_until_drained()
        asking.join(60)
        assert answers[0].next == 11
        assert not answers[0].missing
    guarded.assert_each_once([str(number) for number in range(1, 11)], marks=not exact)


def test_a_question_survives_a_lost_connection(guarded: Guarded) -> None:
    """The publisher asks again on its next connection."""
    guarded.publish([("a", 1)])
    with publisher_of(guarded) as publisher:
        answers: list[Any] = []
        asking = threading.Thread(
            target=lambda: answers.append(publisher.resume_point(queue=guarded.queue, timeout=60))
        )
        asking.start()
        until(lambda: guarded.depth(names.ingress(guarded.queue)) == 2)
        publisher._thread._loop.add_callback_threadsafe(publisher._thread._connection.abort)
        until(lambda: guarded.depth(names.ingress(guarded.queue)) == 3)
        child = started(guarded)
        asking.join(60)
        assert answers[0].next == 2
    guarded.stop(child)
    guarded.assert_each_once(["a"])


HOSTILE: dict[str, dict[str, Any]] = {
    "ask-reply-to": {"reply_to": "orders"},
    "ask-unknown": {"text": "what" * 1000},
    "ask-kind": {"text": 7},
    "ask-with-body": {"body": b"precious"},
    "ask-with-sequence": {"headers": {"dedup-sequence": 1}},
    "ask-correlation": {"correlation_id": "x" * 255},
    "publisher-long": {"app_id": "p" * 250},
    "publisher-empty": {"app_id": None},
}


#: Behind the prefix of Direct Reply-To; the second one kills the connection that publishes there, on 3.10 and 4.0.
FORGED = ("x", "AAAABBBB.92JWhk3Wh8roWrc2mdaK7g==", "!" * 200, "é", "")


def test_what_is_no_question_is_quarantined_and_hurts_nobody(guarded: Guarded) -> None:
    """Each with its reason; a reply address that is forged costs no session, and messages behind pass."""
    for case in HOSTILE.values():
        ask(guarded, **case)
    for address in FORGED:
        ask(guarded, reply_to=f"amq.rabbitmq.reply-to.{address}")
    ask(guarded, "status 9223372036854775807")
    ask(guarded, "status 9223372036854775808")
    guarded.publish([("behind", 1)])
    notices = guarded.run_until_drained()
    assert not [notice for notice in notices if notice["event"] == "dedup.session_ended" and notice["reason"]]
    guarded.assert_each_once(["behind"])
    with guarded.channel() as channel:
        reasons = []
        while True:
            method, properties, _ = channel.basic_get(names.quarantine(guarded.queue), auto_ack=True)
            if method is None:
                break
            reasons.append(properties.headers["dedup-reason"])
    assert sorted(reasons) == sorted([*HOSTILE, *["ask-reply-to"] * len(FORGED), "ask-unknown"])
    assert sum(notice.get("questions", 0) for notice in notices) == 1


def test_a_question_is_nobodys_but_its_users(guarded: Guarded) -> None:
    """Where ids are bound to users, only the user may ask; the publisher says who it is."""
    child = started(guarded, relay={"bind_publisher_to_user": UserBinding.SAME})
    with Publisher(guarded.amqp_url, "guest", registration="local", user_id="guest") as publisher:
        assert publisher.resume_point(queue=guarded.queue).next == 1
    ask(guarded, app_id="guest")
    guarded.wait_drained(child)
    guarded.stop(child)
    assert guarded.depth(names.quarantine(guarded.queue)) == 1


def test_a_shim_that_lost_its_state_says_that_it_cannot_tell(guarded: Guarded) -> None:
    """A resume from nothing would double everything without a mark, so it is an error."""
    child = started(guarded, marker_keep_s=0.0)
    guarded.publish([(str(number), number) for number in range(1, 4)])
    guarded.wait_drained(child)
    for number in (1, 2):  # what p sent leaves the ledger, which knows the newest batches
        guarded.publish([(f"q{number}", number)], publisher="q")
        guarded.wait_drained(child)
    guarded.stop(child)
    guarded.redis.cli("flushall")
    child = started(guarded)
    with publisher_of(guarded) as publisher:
        with pytest.raises(ResumeUncertainError, match="have lost what they knew") as caught:
            publisher.resume_point(queue=guarded.queue)
        assert not caught.value.point.queues[guarded.queue].certain
        found = publisher.status(Receipt("p", 2), queue=guarded.queue)
        assert found == {guarded.queue: Status.UNCERTAIN}
    guarded.stop(child)


def test_each_of_several_queues_gets_each_line_once(
    rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str
) -> None:
    """Behind a fanout one shim is dead and one queue lacks lines: the answer of both says what to send."""
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(Guarded(rabbitmq, redis_server, f"{queue_name}-{n}")) for n in (1, 2)
        )
        channel = stack.enter_context(first.channel())
        channel.exchange_declare(queue_name, "fanout", auto_delete=True)
        for guarded in (first, second):
            channel.queue_bind(names.ingress(guarded.queue), queue_name)
        lines = [str(number) for number in range(1, 31)]
        first.publish([(line, int(line)) for line in lines[:20] if line != "7"])
        second.publish([(line, int(line)) for line in lines[:12] if line != "3"])
        started(first)
        lagging = started(second)
        lagging.kill()
        lagging.wait()
        queues = [first.queue, second.queue]
        with publisher_of(first) as publisher:
            with pytest.raises(NoAnswerError, match=second.queue) as caught:
                publisher.resume_point(exchange=queue_name, queues=queues, timeout=1.5)
            assert caught.value.queues == (second.queue,)
            started(second)
            point = publisher.resume_point(exchange=queue_name, queues=queues, timeout=60)
            assert (point.minimum, point.maximum, point.next) == (12, 20, 21)
            assert point.missing == ((3, 3), (7, 7), (13, 20))
            for line in lines:
                if point.lacks(int(line)):
                    publisher.submit(line.encode(), exchange=queue_name, sequence=int(line))
            point = publisher.resume_point(exchange=queue_name, queues=queues, timeout=60)
            assert (point.minimum, point.missing, point.next) == (30, (), 31)
        for guarded in (first, second):
            guarded.stop(guarded._children[-1])
            guarded.assert_each_once(lines)


def _ship_everywhere(settings: dict[str, Any], tell: Tell) -> None:
    """Ship numbered lines to several queues, from where they stand."""
    exchange, queues = settings["exchange"], settings["queues"]
    with Publisher(settings["amqp"], "p", registration="local") as publisher:
        point = publisher.resume_point(exchange=exchange, queues=queues, timeout=60)
        tell("resuming", {"next": point.next, "missing": point.missing})
        for number in range(1, settings["lines"] + 1):
            if point.lacks(number):
                publisher.submit(str(number).encode(), exchange=exchange, sequence=number)
        publisher.flush(60)


@pytest.mark.parametrize(
    "exact", [True, pytest.param(False, marks=pytest.mark.long)], ids=["exact", "confirmed"]
)
def test_publisher_and_shims_are_killed_and_each_queue_has_each_line_once(
    rabbitmq: RabbitMQ, redis_server: Redis, queue_name: str, exact: bool
) -> None:
    """Whoever ships is killed again and again, each time with one of the shims, and resumes from both answers."""
    lines = 3000
    chance = random.Random(11)
    with ExitStack() as stack:
        both = [
            stack.enter_context(Guarded(rabbitmq, redis_server, f"{queue_name}-{n}", exact=exact))
            for n in (1, 2)
        ]
        channel = stack.enter_context(both[0].channel())
        channel.exchange_declare(queue_name, "fanout", auto_delete=True)
        for guarded in both:
            channel.queue_bind(names.ingress(guarded.queue), queue_name)
        settings = {
            "amqp": rabbitmq.url,
            "exchange": queue_name,
            "queues": [guarded.queue for guarded in both],
            "lines": lines,
        }
        shims = [started(guarded, batch_max=50) for guarded in both]
        resumed = []
        for kill in range(6):
            child = Child(_ship_everywhere, settings)
            resumed.append(child.wait_for("resuming")["next"])
            time.sleep(chance.uniform(0, 0.06))
            child.end()
            shims[kill % 2].kill()
            shims[kill % 2].wait()
            shims[kill % 2] = both[kill % 2].start_shim(batch_max=50)
        assert Child(_ship_everywhere, settings).wait() == 0
        assert len({next_ for next_ in resumed if 1 < next_ <= lines}) >= 2, resumed
        for guarded, shim in zip(both, shims, strict=True):
            guarded.wait_drained(shim)
            guarded.stop(shim)
            guarded.assert_each_once([str(number) for number in range(1, lines + 1)], marks=not exact)
            assert not guarded.depth(names.quarantine(guarded.queue))
    print(f"resumed at {resumed}")


def test_receipts_tell_of_duplicates_and_of_what_is_quarantined(guarded: Guarded) -> None:
    """Each with its number, its queue and the reason; what is plainly forwarded is not told."""
    memory = MemoryRegistry(time.time)
    told: list[Told] = []
    child = started(guarded)
    with (
        serving(guarded.amqp_url, memory),
        Publisher(guarded.amqp_url, "p", receipts=told.append) as publisher,
    ):
        publisher.publish(b"a", queue=guarded.queue, sequence=20_000)
        publisher.publish(b"again", queue=guarded.queue, sequence=20_000)
        publisher.resume_point(queue=guarded.queue)
        with guarded.channel() as channel:  # what else somebody writes there means nothing
            for body in (b"junk", b'{"queue":1}', b'{"queue":"q","receipts":[[0,"duplicate",""]]}'):
                channel.basic_publish("", lock_queue("p"), body)
            headers = {"dedup-sequence": 3, "dedup-receipt": True}
            properties = pika.BasicProperties(app_id="p", headers=headers)
            channel.basic_publish("", names.ingress(guarded.queue), b"old", properties)
        until(lambda: len(told) >= 2)
    guarded.stop(child)
    found = [(one.receipt.sequence, one.queue, one.what, one.reason) for one in told]
    assert found == [
        (20_000, guarded.queue, "duplicate", ""),
        (3, guarded.queue, "quarantined", "too-old"),
    ]


def test_receipts_need_the_queue_of_a_registered_publisher(rabbitmq: RabbitMQ) -> None:
    """Nothing else could bring them."""
    with pytest.raises(ConfigError, match="receipts come to the queue of a registered publisher"):
        Publisher(rabbitmq.url, "p", registration="local", receipts=lambda _: None)


def test_an_outbox_keeps_numbers_of_the_callers_own(guarded: Guarded, tmp_path: Any) -> None:
    """They ascend; what a killed process left in the outbox is on its way and is not asked for again."""
    with publisher_of(guarded, outbox=tmp_path / "o.db") as publisher:
        for number in (1, 2, 5):
            publisher.keep(str(number).encode(), queue=guarded.queue, sequence=number)
        with pytest.raises(InvalidMessageError, match="not above 5, the highest that the outbox has had"):
            publisher.submit(b"4", queue=guarded.queue, sequence=4)
        publisher.flush(30)
    with publisher_of(guarded, outbox=tmp_path / "o.db") as publisher:
        child = started(guarded)
        point = publisher.resume_point(queue=guarded.queue)
        assert point.next == 6
        assert [number for number in range(1, 8) if point.lacks(number)] == [6, 7]
        publisher.publish(b"6", queue=guarded.queue, sequence=6)
        with pytest.raises(InvalidMessageError, match="pass sequence= with every message"):
            publisher.publish(b"x", queue=guarded.queue)
    guarded.stop(child)
    guarded.assert_each_once(["1", "2", "5", "6"])


def test_a_question_waits_for_what_was_submitted_before(guarded: Guarded) -> None:
    """Else the answer would say less than its publisher knows."""
    with publisher_of(guarded) as publisher:
        publisher.submit(b"lost", queue="nowhere", sequence=1)
        with guarded.channel() as channel:
            channel.queue_declare(
                guarded.queue + ".full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
            )
            publisher.submit(b"a", routing_key=guarded.queue + ".full", sequence=2)
            publisher.submit(b"b", routing_key=guarded.queue + ".full", sequence=3)
            with pytest.raises(PublishTimeoutError, match="1 messages are not confirmed"):
                publisher.resume_point(queue=guarded.queue, timeout=1)
            channel.queue_delete(guarded.queue + ".full")


def test_a_forged_address_does_not_end_the_registry(rabbitmq: RabbitMQ) -> None:
    """The broker would close the connection that answers there, and deliver the request again to the next one."""
    request = {"id": 1, "act": "show", "publisher_id": "p", "owner": "a"}
    with (
        serving(rabbitmq.url, MemoryRegistry(time.time)),
        closing(pika.BlockingConnection(pika.URLParameters(rabbitmq.url))) as connection,
    ):
        for address in FORGED:
            properties = pika.BasicProperties(reply_to=f"amq.rabbitmq.reply-to.{address}")
            connection.channel().basic_publish(REGISTRY, "", json.dumps(request).encode(), properties)
        with Publisher(rabbitmq.url, f"p-{time.time_ns()}") as publisher:
            assert publisher.publisher_id
