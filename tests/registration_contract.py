"""What registration keeps whatever protocol the publisher speaks, on a real broker: one holder, a take-over, a registry that fails."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pika
import pytest

from dedup import registrar
from dedup.core import names
from dedup.core.identity import NOT_BOUND_TO_USER, RANGE_SIZE, Receipt, UserBinding
from dedup.core.questions import Told
from dedup.core.registry import (
    REGISTRY,
    Act,
    Answer,
    Record,
    Request,
    decode_request,
    encode_answer,
)
from dedup.errors import (
    DedupError,
    FencedError,
    PublisherAlreadyRegisteredError,
    RegistryUnavailableError,
)
from dedup.publisher import Publisher
from dedup.testing.proxy import FaultProxy
from dedup.testing.registry import MemoryRegistry, serving
from dedup.testing.servers import RabbitMQ, Redis
from tests.fault.child import PATIENCE_S
from tests.fault.guarded import Guarded
from tests.holding import holding, is_locked, takes_lock
from tests.looking import channel, over, until

#: What a registry that is broken, or somebody else, may say instead of an answer.
_NO_ANSWERS: Sequence[Callable[[Request], bytes | None]] = (
    lambda _: None,
    lambda _: b"\x00\xff",
    lambda _: b"[]",
    lambda _: b"x" * 1_000_000,
    lambda request: json.dumps({"id": request.id, "base": "many"}).encode(),
    lambda request: encode_answer(Answer(request.id, Record(9 * RANGE_SIZE, "other"))),
    lambda request: encode_answer(Answer(request.id + 1000, Record(9 * RANGE_SIZE, request.owner))),
)


@pytest.mark.usefixtures("without_registry")
class RegistrationContract:
    """
    Whose the id is, and what becomes of the others.
    """

    publisher: ClassVar[type[Publisher]]
    #: Makes a message's properties.
    properties: ClassVar[Any]
    #: The publishers that contend for an id, whatever they speak.
    kinds: ClassVar[Sequence[type[Publisher]]]

    @pytest.fixture
    def holder(self) -> type[Publisher]:
        """The kind that has the id when others want it."""
        return self.publisher

    @pytest.fixture
    def owners(self) -> tuple[type[Publisher], type[Publisher]]:
        """The kind that has the id, and the kind that takes it over."""
        return self.publisher, self.publisher

    @pytest.fixture
    def looks_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Try soon to have the lock that another connection has."""
        monkeypatch.setattr(registrar, "UNLOCKED_EVERY_S", 0.2)

    # -- one holder -------------------------------------------------------------------------------

    @pytest.mark.each_version
    @pytest.mark.usefixtures("registry")
    def test_a_second_publisher_is_refused_and_told_who_holds_the_id(
        self, rabbitmq: RabbitMQ, queue: str, holder: type[Publisher]
    ) -> None:
        """The first one does not notice; when it closes, each kind may have the id."""

        def refuse(kind: type[Publisher]) -> None:
            with pytest.raises(
                PublisherAlreadyRegisteredError, match=rf"process {os.getpid()} on .+, since"
            ) as caught:
                kind(rabbitmq.url, "p")
            assert caught.value.publisher_id == "p"
            assert "exclusive access" in str(caught.value)

        with holder(rabbitmq.url, "p") as first:
            before = first.publish(b"1", routing_key=queue)
            with ThreadPoolExecutor() as pool:
                assert len([*pool.map(refuse, self.kinds)]) == len(self.kinds)
            assert first.publish(b"2", routing_key=queue).sequence == before.sequence + 1
            with self.publisher(rabbitmq.url, "other") as other:
                other.publish(b"3", routing_key=queue)
        last = before.sequence
        for kind in self.kinds:
            with kind(rabbitmq.url, "p") as following:
                sequence = following.publish(b"4", routing_key=queue).sequence
                assert sequence > last + RANGE_SIZE // 2
                last = sequence

    def test_without_registration_both_would_publish(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """The control: nothing refuses the second one."""
        with (
            self.publisher(rabbitmq.url, "p", registration="local") as first,
            self.publisher(rabbitmq.url, "p", registration="local") as second,
        ):
            first.publish(b"1", routing_key=queue)
            second.publish(b"2", routing_key=queue)

    @pytest.mark.each_version
    @pytest.mark.usefixtures("registry")
    def test_kill_9_frees_the_id_at_once(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """The broker sees the connection end, and its exclusive queues end with it: no lease has to run out."""
        with holding(self.publisher, rabbitmq, queue) as holder:
            base = holder.wait_for("registered")["base"]
            holder.kill()
            with self.publisher(rabbitmq.url, "p") as publisher:
                assert publisher.publish(b"next", routing_key=queue).sequence > base + RANGE_SIZE // 2

    @pytest.mark.each_version("long")
    @pytest.mark.usefixtures("registry", "looks_often")
    def test_a_frozen_holder_is_taken_over_and_its_later_messages_are_quarantined(
        self,
        rabbitmq: RabbitMQ,
        redis_server: Redis,
        queue_name: str,
        owners: tuple[type[Publisher], type[Publisher]],
    ) -> None:
        """
        The zombie hears FencedError as soon as it wakes up; what it sent after the new owner's first message is in quarantine.

        Nothing of the new owner is lost or doubled, and nothing that the zombie has confirmed is lost. A receipt for one of the
        zombie's messages comes to the new owner, who holds the lock now; it is told, and nothing of its own is touched.
        """
        old, new = owners
        told: list[Told] = []
        with (
            Guarded(rabbitmq, redis_server, queue_name) as guarded,
            holding(old, rabbitmq, names.ingress(queue_name)) as zombie,
        ):
            shim = guarded.start_shim(batch_max=100)
            shim.wait_for("dedup.recovered")
            zombie.wait_for("registered")
            zombie.wait_for("confirmed")
            zombie.send_signal(signal.SIGSTOP)
            with pytest.raises(PublisherAlreadyRegisteredError):
                new(rabbitmq.url, "p")
            with new(rabbitmq.url, "p", takeover=True, receipts=told.append) as owner:
                first = [owner.submit(b"o%d" % number, queue=queue_name) for number in range(200)]
                owner.flush(PATIENCE_S)
                guarded.wait_drained(shim)
                # Asleep in the middle of a socket's buffer or not: this one comes from the zombie for certain.
                late = first[0].result().sequence - 2 * RANGE_SIZE
                _publish_for_a_receipt(guarded, "late", late)
                zombie.send_signal(signal.SIGCONT)
                assert f"process {os.getpid()}" in zombie.wait_for("fenced")["text"]
                rest = [owner.submit(b"o%d" % number, queue=queue_name) for number in range(200, 400)]
                owner.flush(PATIENCE_S)
                assert [future.result().attempts for future in first + rest] == [1] * 400
                until(lambda: is_locked(owner))  # before, receipts went to the zombie, or to nobody
                _publish_for_a_receipt(guarded, "later", late + 1)
                until(lambda: Told(Receipt("p", late + 1), queue_name, "fenced", "fenced") in told)
                assert {one.receipt.sequence for one in told} <= {late, late + 1}
                assert owner.publish(b"o400", queue=queue_name).attempts == 1
            guarded.wait_drained(shim)
            guarded.stop(shim)
            target, quarantine = guarded.read(), guarded.read(names.quarantine(queue_name))
        assert {body: n for body, n in target.unmarked.items() if body[0] == "o"} == {
            f"o{n}": 1 for n in range(401)
        }
        assert not target.marked
        assert {quarantine.reasons[body] for body in quarantine.unmarked} == {"fenced"}
        assert {"late", "later"} <= set(quarantine.unmarked)
        assert not [body for body in quarantine.unmarked if body[0] == "o"]
        confirmed = {f"z{notice['number']}" for notice in zombie.notices if notice["event"] == "confirmed"}
        assert confirmed <= {*target.unmarked, *quarantine.unmarked}
        assert Counter(target.order).most_common(1)[0][1] == 1

    @pytest.mark.each_version("long")
    @pytest.mark.usefixtures("registry", "looks_often")
    def test_whoever_is_taken_over_hears_it_at_once_and_frees_the_lock(
        self, rabbitmq: RabbitMQ, queue: str, owners: tuple[type[Publisher], type[Publisher]]
    ) -> None:
        """Futures and calls fail with FencedError; the newest owner then gets the lock, and a third is refused."""
        older, newer = owners
        old = older(rabbitmq.url, "p")
        old.publish(b"1", routing_key=queue)
        with newer(rabbitmq.url, "p", takeover=True) as new:
            until(lambda: repr(old).endswith("closed>"))
            with pytest.raises(FencedError, match="newer owner") as caught:
                old.publish(b"2", routing_key=queue)
            assert caught.value.receipt is None
            old.close()
            assert new.publish(b"3", routing_key=queue).attempts == 1
            until(lambda: is_locked(new))
            with pytest.raises(PublisherAlreadyRegisteredError):
                self.publisher(rabbitmq.url, "p")

    @pytest.mark.usefixtures("registry")
    def test_messages_of_a_fenced_publisher_fail_with_their_receipts(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy
    ) -> None:
        """They may be stored or not: the receipt says which they were."""
        old = self.publisher(over(link), "p")
        link.refuse()
        link.cut()
        future = old.submit(b"1", routing_key=queue)
        with channel(rabbitmq) as probe:
            until(lambda: takes_lock(probe))  # before, the new owner would leave the lock to the old one
        with self.publisher(rabbitmq.url, "p", takeover=True) as new:
            assert is_locked(new)
            link.heal()
            error = future.exception(PATIENCE_S)
        assert isinstance(error, FencedError)
        assert error.receipt is not None
        assert error.receipt.publisher_id == "p"
        old.close()

    @pytest.mark.usefixtures("registry")
    def test_many_threads_of_one_process_register_as_many_ids(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """Each has a connection, a lock and an address of its own."""
        ready = threading.Barrier(8)

        def register(number: int) -> int:
            with self.publisher(rabbitmq.url, f"p{number}", connect_timeout_s=PATIENCE_S) as publisher:
                ready.wait(PATIENCE_S)
                return publisher.publish(b"1", routing_key=queue).sequence

        with ThreadPoolExecutor(8) as pool:
            assert len([*pool.map(register, range(8))]) == 8

    # -- connections that come and go -------------------------------------------------------------

    @pytest.mark.each_version
    def test_a_lost_connection_is_made_again_with_the_same_numbers(
        self, queue: str, registry: MemoryRegistry, link: FaultProxy
    ) -> None:
        """No new range is taken; a registry that is away does not matter."""
        with self.publisher(over(link), "p") as own:
            first = own.publish(b"1", routing_key=queue)
            registry.down = True
            for number in range(3):
                link.cut()
                assert own.publish(b"more", routing_key=queue).sequence == first.sequence + number + 1

    @pytest.mark.usefixtures("looks_often")
    def test_a_connection_that_only_the_broker_believes_in_keeps_nobody_waiting(
        self, rabbitmq: RabbitMQ, queue: str, registry: MemoryRegistry, link: FaultProxy
    ) -> None:
        """Another connection has the lock, and the registry knows no newer owner: publishing goes on, and the lock is taken later."""
        with self.publisher(over(link), "p") as own:
            first = own.publish(b"1", routing_key=queue)
            link.refuse()
            link.cut()
            with channel(rabbitmq) as dead:
                until(lambda: takes_lock(dead))
                registry.down = True
                link.heal()
                future = own.submit(b"2", routing_key=queue)
                time.sleep(1.0)
                assert not future.done()  # neither lock nor registry: somebody else may have taken over
                registry.down = False
                assert future.result(PATIENCE_S).sequence == first.sequence + 1
                assert not is_locked(own)
            until(lambda: is_locked(own))

    @pytest.mark.each_version("long")
    @pytest.mark.usefixtures("registry")
    def test_a_refused_message_does_not_touch_the_registration(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """The broker ends the channel, link or session that publishes; id and numbers stay."""
        forged = self.properties(user_id="other")
        with self.publisher(rabbitmq.url, "p") as own:
            first = own.publish(b"1", routing_key=queue)
            with pytest.raises(DedupError, match="404"):
                own.publish(b"2", exchange="nowhere", routing_key=queue)
            with pytest.raises(DedupError, match="user_id"):
                own.publish(b"3", routing_key=queue, properties=forged)
            assert own.publish(b"4", routing_key=queue).sequence == first.sequence + 3
            with pytest.raises(PublisherAlreadyRegisteredError):
                Publisher(rabbitmq.url, "p")

    # -- a registry that fails --------------------------------------------------------------------

    @pytest.mark.each_version("long")
    @pytest.mark.usefixtures("impatient")
    def test_without_a_registry_the_error_names_what_to_start(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """Never there, there and gone, or not led to: the same error; with numbers of its own a publisher needs none."""
        with pytest.raises(RegistryUnavailableError, match="dedup registry") as caught:
            self.publisher(rabbitmq.url, "p", connect_timeout_s=0.7)
        assert "none has ever run" in str(caught.value)
        with serving(rabbitmq.url, MemoryRegistry(time.time)):
            pass
        with pytest.raises(RegistryUnavailableError, match=r"none within 0\.4 s"):
            self.publisher(rabbitmq.url, "p", connect_timeout_s=0.9)
        with channel(rabbitmq) as opened:
            opened.queue_delete(REGISTRY)
        with pytest.raises(RegistryUnavailableError, match="leads to no queue"):
            self.publisher(rabbitmq.url, "p", connect_timeout_s=0.7)
        options: tuple[dict[str, Any], ...] = ({"registration": "local"}, {"base": 5})
        for each in options:
            with self.publisher(rabbitmq.url, "p", **each) as publisher:
                publisher.publish(b"1", routing_key=queue)

    def test_a_registry_that_comes_in_time_is_waited_for(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """Publisher and shim may be started together, in any order."""
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.publisher, rabbitmq.url, "p", connect_timeout_s=PATIENCE_S)
            time.sleep(0.3)
            with serving(rabbitmq.url, MemoryRegistry(time.time)), waiting.result() as publisher:
                publisher.publish(b"1", routing_key=queue)

    @pytest.mark.usefixtures("impatient")
    def test_a_registry_that_goes_stops_nobody_who_has_registered(
        self, rabbitmq: RabbitMQ, queue: str, link: FaultProxy
    ) -> None:
        """Others have to wait; the next one knows what the one before it handed out."""
        memory = MemoryRegistry(time.time)
        with serving(rabbitmq.url, memory):
            own = self.publisher(over(link), "p", connect_timeout_s=PATIENCE_S)
        with own:
            first = own.publish(b"1", routing_key=queue)
            link.cut()
            assert own.publish(b"2", routing_key=queue).sequence == first.sequence + 1
            with pytest.raises(RegistryUnavailableError):
                self.publisher(rabbitmq.url, "q", connect_timeout_s=0.9)
            with serving(rabbitmq.url, memory):
                with pytest.raises(PublisherAlreadyRegisteredError, match=f"process {os.getpid()}"):
                    self.publisher(rabbitmq.url, "p", connect_timeout_s=PATIENCE_S)
                with self.publisher(rabbitmq.url, "q", connect_timeout_s=PATIENCE_S) as other:
                    other.publish(b"3", routing_key=queue)

    @pytest.mark.each_version("long")
    @pytest.mark.usefixtures("impatient")
    def test_every_answer_that_is_none_is_survived(self, rabbitmq: RabbitMQ, queue: str) -> None:
        """Silence, garbage of any size, another's record, an answer to another question: the publisher asks until a right answer comes."""

        def right(request: Request) -> bytes:
            return encode_answer(Answer(request.id, Record(7 * RANGE_SIZE, request.owner)))

        answers = [*_NO_ANSWERS, right]
        asked: list[str] = []
        with ThreadPoolExecutor() as pool, channel(rabbitmq) as opened:
            opened.exchange_declare(REGISTRY, "fanout", durable=True)
            opened.queue_declare(REGISTRY, durable=True)
            opened.queue_bind(REGISTRY, REGISTRY)
            waiting = pool.submit(self.publisher, rabbitmq.url, "p", connect_timeout_s=PATIENCE_S)
            for _, properties, body in opened.consume(REGISTRY, auto_ack=True, inactivity_timeout=PATIENCE_S):
                request = decode_request(body)
                assert request.act is Act.REGISTER
                asked.append(request.owner)
                answer = answers.pop(0)(request)
                if answer is not None:
                    opened.basic_publish("", properties.reply_to, answer)
                if not answers:
                    break
            opened.cancel()
            with waiting.result(PATIENCE_S) as publisher:
                assert publisher.publish(b"1", routing_key=queue).sequence == 7 * RANGE_SIZE + 1
        assert len({*asked}) == 1

    # -- who asks the registry --------------------------------------------------------------------

    @pytest.mark.each_version
    def test_a_bound_publisher_registers_under_its_users_name_only(
        self, rabbitmq: RabbitMQ, queue: str
    ) -> None:
        """The registry asks for the same proof as the shim, and the broker vouches for it."""
        with serving(rabbitmq.url, MemoryRegistry(time.time), binding=UserBinding.PREFIX):
            with self.publisher(rabbitmq.url, "guest:1", user_id="guest") as publisher:
                publisher.publish(b"1", routing_key=queue)
            for publisher_id, user in (("guest:1", None), ("other", "guest")):
                with pytest.raises(DedupError, match=NOT_BOUND_TO_USER):
                    self.publisher(rabbitmq.url, publisher_id, user_id=user)
            with pytest.raises(DedupError, match="user_id property set to 'other'"):
                self.publisher(rabbitmq.url, "other:1", user_id="other")


def _publish_for_a_receipt(guarded: Guarded, body: str, sequence: int) -> None:
    """Publish one message of "p" as a stranger does, and want to be told what became of it."""
    properties = pika.BasicProperties(
        app_id="p", headers={"dedup-sequence": sequence, "dedup-receipt": True}, delivery_mode=2
    )
    with guarded.channel() as opened:
        opened.basic_publish("", names.ingress(guarded.queue), body.encode(), properties)
