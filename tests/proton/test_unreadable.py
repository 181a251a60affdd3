"""A message that RabbitMQ cannot translate for readers of one protocol: the shim says so, and one of the other goes on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from proton import Message, char

from dedup.core import names
from dedup.testing.servers import RabbitMQ
from tests.fault.guarded import Guarded
from tests.proton.conversions import decimal
from tests.proton.looking import receive, send

Make = Callable[..., Guarded]


def _numbered(sequence: int, **properties: Any) -> Message:
    return Message(
        body=b"%d" % sequence,
        inferred=True,
        durable=True,
        group_id="p",
        properties={"dedup-sequence": sequence, **properties},
    )


@pytest.mark.each_version
@pytest.mark.parametrize("ingress_type", ["classic", pytest.param("quorum", marks=pytest.mark.long)])
def test_a_shim_of_1_0_drains_what_one_of_0_9_1_cannot_read(
    make: Make, broker: RabbitMQ, ingress_type: str
) -> None:
    """
    What stands before the message, itself and what follows are in the target, in order and none twice without a mark.

    A session that the broker ends may leave its batch in doubt, also under exact forwarding: who takes over forwards with confirms.
    """
    guarded = make(ingress_type=ingress_type, exact=ingress_type == "classic")
    guarded.publish([(str(n), n) for n in (1, 2, 2, 3)])
    send(
        broker,
        names.ingress(guarded.queue),
        _numbered(4, uuid=uuid.UUID(int=9)),
        _numbered(5, char=char("€")),
    )
    guarded.publish([(str(n), n) for n in (5, 6, 7)])
    stuck = guarded.start_shim()
    told = stuck.wait_for("dedup.unreadable", timeout_s=60)
    assert told["sessions"] == 3
    assert "--protocol amqp10" in told["reason"]
    taking_over = guarded.start_shim(protocol="amqp10")
    taking_over.wait_for("started")
    stuck.stop()
    taking_over.wait_for("dedup.recovered")
    guarded.wait_drained(taking_over)
    guarded.stop(taking_over, protocol="amqp10")
    assert guarded.depth(names.quarantine(guarded.queue)) == 0
    found = receive(broker, guarded.queue, guarded.depth(guarded.queue))
    assert list(dict.fromkeys(bytes(message.body) for message in found)) == [b"%d" % n for n in range(1, 8)]
    unmarked = [
        bytes(message.body) for message in found if "dedup-possible-duplicate" not in message.properties
    ]
    assert len(unmarked) == len({*unmarked})
    assert len(found) - len(unmarked) <= told["sessions"] * guarded.batch_max


@pytest.mark.each_version
def test_a_shim_of_0_9_1_drains_what_one_of_1_0_cannot_read(make: Make) -> None:
    """
    The other way round: a header that is a decimal. No innocent message is taken for the one that ends the session.

    Both links are on one session, which ends while something is being forwarded.
    """
    guarded = make(exact=False)
    guarded.publish([(str(n), n) for n in range(1, 11)])
    guarded.publish_raw([decimal(11)])
    guarded.publish([(str(n), n) for n in range(12, 15)])
    stuck = guarded.start_shim(protocol="amqp10")
    told = stuck.wait_for("dedup.unreadable", timeout_s=60)
    assert "--protocol amqp091" in told["reason"]
    stuck.stop()
    assert "refused" not in [notice.get("outcome") for notice in stuck.notices]
    guarded.run_until_drained()
    assert guarded.depth(names.quarantine(guarded.queue)) == 0
    found = guarded.read()
    bodies = [str(n) if n != 11 else "body" for n in range(1, 15)]
    assert list(dict.fromkeys(found.order)) == bodies
    assert all(count == 1 for count in found.unmarked.values())
    assert sum(found.marked.values()) <= told["sessions"] * guarded.batch_max


def test_without_such_a_message_nothing_is_said(make: Make, broker: RabbitMQ) -> None:
    """The control: other types of 1.0 pass a shim of 0.9.1."""
    guarded = make()
    send(broker, names.ingress(guarded.queue), _numbered(1, text="t", bytes=b"\x00", none=None, real=1.5))
    told = guarded.run_until_drained()
    assert "dedup.unreadable" not in [notice["event"] for notice in told]
    assert guarded.assert_each_once(["1"]).order == ["1"]
