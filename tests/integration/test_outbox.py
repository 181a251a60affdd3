"""A publisher of AMQP 0.9.1 with an outbox, on a real broker."""

from __future__ import annotations

from dedup.amqp091.stamping import seal
from dedup.publisher import Properties, Publisher
from tests.outbox_contract import OutboxContract


class TestOutbox(OutboxContract):
    """
    What it has in common with every publisher.
    """

    publisher = Publisher
    protocol = "amqp091"
    named = Properties(headers={"a": 1}, app_id="x")
    priced = Properties(headers={"price": "1.50"}, content_type="text/plain", delivery_mode=2)
    hostile = (
        (b"\xff\xff\xff", "not encoded for AMQP 0.9.1"),
        (b"\x20\x00\xff\xff\xff\xff", "end too early"),
        (b"\x00\x53\x70\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x41", "for 1.0, perhaps"),
        (b"\x80\x00\xffab", "properties-truncated"),
        (seal(None, "orders-1").stamp(7, 1, 0.0), "sequence-repeated"),
        (seal(None, "orders-2").stamp(7, 2, 0.0), "repeated"),
    )
