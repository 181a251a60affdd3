"""What the answers of AMQP 1.0 mean to the sender, and where addresses lead."""

from __future__ import annotations

import pytest

from proton_adapter.addresses import queue_address, target_address
from proton_adapter.outcomes import ACCEPTED, MODIFIED, NO_ROUTE, REJECTED, RELEASED, judge, reply_code


def test_accepted_is_the_only_success() -> None:
    """Whatever else a broker says, or leaves out, the message is sent again or its caller is told."""
    for outcome in range(256):
        verdict = judge(outcome)
        assert (verdict.ack and not verdict.code) == (outcome == ACCEPTED)


@pytest.mark.parametrize(
    ("outcome", "condition", "undeliverable", "ack", "code"),
    [
        (RELEASED, "", False, True, NO_ROUTE),
        (MODIFIED, "", True, True, NO_ROUTE),
        (MODIFIED, "", False, False, 0),
        (REJECTED, "", False, False, 0),
        (REJECTED, "amqp:resource-limit-exceeded", False, False, 0),
        (REJECTED, "something new", False, False, 0),
        (REJECTED, "amqp:not-found", False, True, 404),
        (REJECTED, "amqp:precondition-failed", False, True, 406),
        (0, "", False, False, 0),
    ],
)
def test_each_outcome_has_its_rule(
    outcome: int, condition: str, undeliverable: bool, ack: bool, code: int
) -> None:
    """Nack and try again, give back as unroutable, or refuse for good."""
    verdict = judge(outcome, condition, "why", undeliverable=undeliverable)
    assert (verdict.ack, verdict.code) == (ack, code)
    assert verdict.text or verdict.ack


def test_a_forged_user_is_the_fault_of_its_message() -> None:
    """RabbitMQ calls it unauthorized, as it calls a place that may not be written to; only that is true of others too."""
    text = "user_id property set to 'x' but authenticated user was 'guest'"
    assert reply_code("amqp:unauthorized-access", text) == 406
    text = "write access to exchange 'x' in vhost '/' refused for user 'u'"
    assert reply_code("amqp:unauthorized-access", text) == 403


@pytest.mark.parametrize(
    ("exchange", "routing_key", "address"),
    [
        ("", "orders", "/queues/orders"),
        ("", "a/b %2F", "/queues/a%2Fb%20%252F"),
        ("x", "", "/exchanges/x"),
        ("x/y", "k.ü", "/exchanges/x%2Fy/k.%C3%BC"),
    ],
)
def test_addresses_are_percent_encoded(exchange: str, routing_key: str, address: str) -> None:
    """The second version of RabbitMQ's addresses."""
    assert target_address(exchange, routing_key) == address
    assert exchange or queue_address(routing_key) == address
