"""Name a message: who published it and which of that publisher's messages it is."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from attrs import field, frozen

from dedup.errors import InvalidIdentityError

#: Longest publisher id in UTF-8 bytes; an AMQP short string holds 255 and the ledger repeats ids.
PUBLISHER_ID_BYTES_MAX = 200
#: Sequences are signed 64-bit on the wire and start at 1.
SEQUENCE_MAX = 2**63 - 1
#: A range holds 2^32 sequences; its base is a multiple of this.
RANGE_SIZE = 1 << 32
#: 2024-01-01T00:00:00Z as unix seconds: bases count the seconds since then (DESIGN section 4).
RANGE_EPOCH_S = 1_704_067_200

SEQUENCE_HEADER = "dedup-sequence"
PUBLISHER_HEADER = "dedup-publisher"
ATTEMPT_HEADER = "dedup-attempt"
FIRST_SENT_HEADER = "dedup-first-sent"
#: Set by the shim only and stripped when they come in.
MARK_HEADER = "dedup-possible-duplicate"
REASON_HEADER = "dedup-reason"
#: Where the shim keeps bytes of a message's properties that nobody can read, on its way to quarantine.
UNREADABLE_HEADER = "dedup-unreadable"
#: How often the shim has forwarded a message that came back; see :mod:`dedup.core.returns`.
RETURNS_HEADER = "dedup-returns"
#: The death history, carried past a republish; see :mod:`dedup.core.deaths`.
DEATHS_HEADER = "dedup-deaths"
#: What is noted of a message that is given up; see :mod:`dedup.core.obituaries`.
OBITUARY_HEADER = "dedup-obituary"
#: Which run of ``dedup dead release`` has a message in its hands.
RELEASING_HEADER = "dedup-releasing"
#: How often ``dedup retry`` has sent a message back to the queue it died in.
RETRY_HEADER = "dedup-retry"
#: A question to the shims instead of a message; see :mod:`dedup.core.in_band`.
ASK_HEADER = "dedup-ask"
#: The publisher wants to be told what becomes of the message, if it is not plainly forwarded.
RECEIPT_HEADER = "dedup-receipt"
#: Every header name that belongs to dedup; the SDK refuses them in user headers.
RESERVED_HEADERS = frozenset(
    {
        SEQUENCE_HEADER,
        PUBLISHER_HEADER,
        ATTEMPT_HEADER,
        FIRST_SENT_HEADER,
        MARK_HEADER,
        REASON_HEADER,
        UNREADABLE_HEADER,
        RETURNS_HEADER,
        DEATHS_HEADER,
        OBITUARY_HEADER,
        RELEASING_HEADER,
        RETRY_HEADER,
        ASK_HEADER,
        RECEIPT_HEADER,
    }
)

_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
#: Between the user and the rest of a publisher id that is bound to one; a RabbitMQ user's name has none in practice,
#: because HTTP basic authentication ends the name there.
USER_SEPARATOR = ":"
#: The reason of a stamped message whose publisher id is not its user's.
NOT_BOUND_TO_USER = "publisher-not-bound-to-user"


class UserBinding(Enum):
    """
    Which publisher ids a user of the broker may publish under.
    """

    #: Any.
    OFF = "off"
    #: The user's own name.
    SAME = "same"
    #: Those whose part before the first colon is the user's name: ``shop`` and ``shop:1``, not ``shop-1``.
    PREFIX = "prefix"


def may_publish_as(publisher_id: str, user: str | None, binding: UserBinding) -> bool:
    """
    Say whether a message that *user* published may carry *publisher_id*.

    Each id belongs to one user: where it is split does not depend on which users there are.

    Args:
        user: What the broker has compared with the login; None when the message does not say, which proves nothing.
    """
    if binding is UserBinding.OFF:
        return True
    owner = publisher_id.partition(USER_SEPARATOR)[0] if binding is UserBinding.PREFIX else publisher_id
    return owner == user


def fault_of_binding(publisher_id: str | None, user: bytes | None, binding: UserBinding) -> str:
    """
    Return the reason why a message may not carry *publisher_id*, or nothing; one without an id may be anybody's.

    Args:
        user: As it is in the message; None when it does not say.
    """
    if binding is UserBinding.OFF or publisher_id is None:
        return ""
    # Escaped and not replaced: a name that is no UTF-8 must not come to equal a publisher id.
    name = None if user is None else user.decode(errors="surrogateescape")
    return "" if may_publish_as(publisher_id, name, binding) else NOT_BOUND_TO_USER


def validate_publisher_id(value: object) -> str:
    """
    Return *value* when it can name a publisher.

    Raises:
        InvalidIdentityError: not text, empty, over 200 bytes of UTF-8, or with a
            control character (it would end up in queue names and logs).
    """
    if not isinstance(value, str):
        raise InvalidIdentityError(
            f"a publisher id is text, not {type(value).__name__}; pass a str such as 'orders-1'"
        )
    if not value:
        raise InvalidIdentityError("a publisher id must not be empty; pass a stable name such as 'orders-1'")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidIdentityError("a publisher id must be valid Unicode; it has a lone surrogate") from error
    if size > PUBLISHER_ID_BYTES_MAX:
        raise InvalidIdentityError(
            f"a publisher id has at most {PUBLISHER_ID_BYTES_MAX} bytes of UTF-8, this one has {size}"
        )
    if not value.isprintable() and _CONTROL.search(value):
        raise InvalidIdentityError("a publisher id must not contain control characters")
    return value


def validate_sequence(value: object) -> int:
    """
    Return *value* when it can number a message.

    Raises:
        InvalidIdentityError: not an int (a bool is not one), below 1 or above 2^63 - 1.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidIdentityError(f"a sequence is an int, not {type(value).__name__}")
    if not 1 <= value <= SEQUENCE_MAX:
        raise InvalidIdentityError(f"a sequence is between 1 and 2^63 - 1, not {value}")
    return value


def range_base(sequence: int) -> int:
    """
    Return the base of the range that *sequence* belongs to.
    """
    return sequence & -RANGE_SIZE


def unwrap_serial(serial: int, last: int) -> int:
    """
    Return the sequence that a 32-bit *serial* stands for: the one of its kind that is nearest to *last* (RFC 1982).

    A publisher nobody has seen begins in the range above 0, so that what comes a little too late has a number too.

    Args:
        serial: 0 to 2^32 - 1.
        last: highest sequence of this publisher so far; 0: there is none.
    """
    assert 0 <= serial < RANGE_SIZE, serial
    if not last:
        return RANGE_SIZE + serial
    ahead = (serial - last) % RANGE_SIZE
    behind = last + ahead - RANGE_SIZE
    return last + ahead if ahead < RANGE_SIZE // 2 or behind < 1 else behind


def clock_base(unix_ns: int) -> int:
    """
    Return where numbering starts without a registration: the seconds since 2024 as a fixed-point number, 32 bits each.

    A range begins with each second; the fraction keeps two owners in the same second apart, one
    after the other: nobody publishes faster than this clock counts, four messages a nanosecond.
    """
    return max(0, (unix_ns - RANGE_EPOCH_S * 1_000_000_000 << 32) // 1_000_000_000)


@frozen
class Receipt:
    """
    What names one published message; safe to log, to store and to retry with.
    """

    #: Stable name of the publisher.
    publisher_id: str
    #: Number of the message, 1 to 2^63 - 1.
    sequence: int = field(validator=lambda _, __, value: validate_sequence(value) and None)
    #: How often it was sent so far (1: once); 0 while it was not sent yet.
    attempts: int = 1
