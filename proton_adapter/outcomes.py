"""
Translate what AMQP 1.0 answers into what the sender knows: acks, nacks, returns and refusals.

The sender speaks AMQP 0.9.1's reply codes; the same failure then has the same error, code and remedy over both protocols.
What RabbitMQ 4 answers, and when:

    accepted                              the queues have it                                     ack
    released                              no queue is bound for it                               return, 312
    modified, undeliverable here          (not from RabbitMQ)                                    return, 312
    modified                              (not from RabbitMQ)                                    nack
    rejected, by a full queue             4.3 names the queue and the reason, 4.0 says nothing   nack
    rejected, the place is wrong          amqp:not-found and others                              refused, for good
    link detached, session ended          a forged user id, a message too large, permissions     the channel is closed
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from dedup.core.refusals import FINAL_CODES

#: Conditions of AMQP 1.0 (part 2, section 2.8.15; part 3) and the reply codes of 0.9.1 that say the same.
_CODES: Final = {
    "amqp:not-found": 404,
    "amqp:unauthorized-access": 403,
    "amqp:precondition-failed": 406,
    "amqp:link:message-size-exceeded": 311,
    "amqp:invalid-field": 501,
    "amqp:decode-error": 502,
    "amqp:illegal-state": 503,
    "amqp:not-allowed": 530,
    "amqp:not-implemented": 540,
    "amqp:resource-locked": 405,
    "amqp:resource-limit-exceeded": 506,
    "amqp:connection:forced": 320,
}
_ACCESS_REFUSED, _PRECONDITION_FAILED, _INTERNAL_ERROR = 403, 406, 541
#: In "write access to exchange 'x' in vhost '/' refused for user 'u'".
_ACCESS: Final = "access to"
NO_ROUTE: Final = 312

# Outcomes by their descriptor (part 3, section 3.4), which is what proton calls their type.
ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27


@frozen
class Verdict:
    """
    What one outcome means to the sender.
    """

    #: It is stored; False when it is to be sent again. A message that was given back counts as taken, as in 0.9.1.
    ack: bool
    #: 0, or the reply code of a message given back for good.
    code: int = 0
    #: What the broker said.
    text: str = ""


def reply_code(condition: str, text: str = "") -> int:
    """
    Return the reply code of AMQP 0.9.1 for an error *condition* of 1.0; an unknown one counts as an internal error.

    Args:
        condition: its name.
        text: its description. RabbitMQ calls a forged user id unauthorized as well; only a refused access to an exchange is
            true of other messages to that place too, which is what 403 says.
    """
    code = _CODES.get(condition, _INTERNAL_ERROR)
    return _PRECONDITION_FAILED if code == _ACCESS_REFUSED and _ACCESS not in text else code


def judge(outcome: int, condition: str = "", text: str = "", *, undeliverable: bool = False) -> Verdict:
    """
    Say what *outcome* means; total, and nothing but ``accepted`` is a success.

    Args:
        outcome: the descriptor of a delivery's terminal state; 0 when it was settled without one.
        condition: of the error of a rejected one; empty when there is none.
        text: its description.
        undeliverable: of a modified one: it must not be sent here again.
    """
    if outcome == ACCEPTED:
        return Verdict(ack=True)
    if outcome == RELEASED or (outcome == MODIFIED and undeliverable):
        return Verdict(ack=True, code=NO_ROUTE, text=text or "NO_ROUTE")
    if outcome == REJECTED and (code := reply_code(condition, text)) in FINAL_CODES:
        return Verdict(ack=True, code=code, text=f"{condition}: {text}")
    return Verdict(ack=False, text=text or condition)
