"""Judge what a closed channel says about the message that closed it, and about others."""

from __future__ import annotations

from dedup.core.sending import Message

#: Replies that speak of the message and not of the broker: content too large, access refused, not
#: found, precondition failed, frame and syntax errors, not allowed, not implemented.
FINAL_CODES = frozenset({311, 403, 404, 406, 501, 502, 503, 505, 530, 540})
#: Closures for any other reply that a message may cause while alone on its channel.
REFUSALS_MAX = 5
_ACCESS_REFUSED, _NOT_FOUND = 403, 404


def convicts(culprit: Message, code: int) -> bool:
    """
    Say whether *culprit*, alone on a channel closed with *code*, is to fail rather than to try again.
    """
    return code in FINAL_CODES or culprit.refusals >= REFUSALS_MAX


def shares_fate(message: Message, culprit: Message, code: int) -> bool:
    """
    Say whether what closed the channel for *culprit* is true of *message* too.

    A missing exchange is missing for every message sent to it before, a closed one for
    every message with the same routing key. What was not sent yet may find it mended.
    """
    if message is culprit:
        return True
    if not message.attempts or message.exchange != culprit.exchange:
        return False
    return code == _NOT_FOUND or (code == _ACCESS_REFUSED and message.routing_key == culprit.routing_key)
