"""Say of a message that is given up what became of it, and who should hear of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from attrs import field, frozen

from dedup.core import names
from dedup.core.choices import Choice, choose
from dedup.core.deaths import BROKER_HEADERS, DeathHistory
from dedup.core.identity import DEATHS_HEADER, OBITUARY_HEADER, REASON_HEADER
from dedup.errors import ConfigError

_FORMAT: Final = 1
_NOTE_BYTES_MAX: Final = 2048
_NUMBER_MAX: Final = 2**63 - 1

#: Headers to take out of a message on its way to the queue of the dead: they are told anew, or come in as a forgery.
REPLACED_HEADERS: Final = BROKER_HEADERS | {DEATHS_HEADER, OBITUARY_HEADER, REASON_HEADER}


class Reason(Enum):
    """
    Why a message was given up.
    """

    #: It has failed as often as it may.
    ATTEMPTS = "attempts-exhausted"
    #: It goes round between queues, and nobody rejects it.
    CYCLE = "cycle"
    #: Nothing tells which queue it died in.
    NO_HISTORY = "no-history"
    #: The queue it died in is not there any more.
    QUEUE_GONE = "queue-gone"
    #: It is over the limits of whatever must hold it until its next attempt.
    TOO_LARGE = "too-large"
    #: The broker does not take it as it is.
    REFUSED = "refused-by-broker"


class Severity(Enum):
    """
    Who should hear of an obituary.
    """

    #: Somebody, now: logged as an error, told to the webhook.
    PAGE = "page"
    #: Somebody, some time: logged as a warning, told to the webhook.
    NOTIFY = "notify"
    #: Nobody: logged as information.
    SILENT = "silent"


@frozen(kw_only=True)
class Obituary:
    """
    What is known of a message that is given up.
    """

    #: The queue it died in; it goes to ``QUEUE.dead``.
    queue: str
    reason: Reason
    history: DeathHistory
    #: How often it was tried.
    attempts: int
    #: When it was given up; unix milliseconds.
    at_ms: int
    #: Of its body, in bytes.
    size: int
    message_id: str | None = None
    publisher_id: str | None = None
    sequence: int | None = None
    #: Its own, for the severity; not told to anybody.
    headers: Mapping[str, object] = field(factory=dict, repr=False)

    @property
    def exchange(self) -> str:
        """
        Return the exchange it was published to; "" for the default one, and when nothing tells.
        """
        return self.history.deaths[-1].exchange if self.history.deaths else ""

    def stamp(self) -> list[tuple[str, str]]:
        """
        Return the headers of the message in ``QUEUE.dead``; :data:`REPLACED_HEADERS` are to be left out of its own.
        """
        note = [_FORMAT, self.queue, self.attempts, self.at_ms]
        return [
            (REASON_HEADER, self.reason.value),
            (DEATHS_HEADER, self.history.encode()),
            (OBITUARY_HEADER, json.dumps(note, ensure_ascii=False, separators=(",", ":"))),
        ]

    def facts(self) -> dict[str, Any]:
        """
        Return it as fields of a log line, or of the JSON a webhook gets; times in unix milliseconds.
        """
        first = [death.first_ms for death in self.history.deaths if death.first_ms is not None]
        last = [death.last_ms for death in self.history.deaths if death.last_ms is not None]
        return {
            "queue": self.queue,
            "reason": self.reason.value,
            "dead_queue": names.dead(self.queue),
            "attempts": self.attempts,
            "deaths": self.history.count(),
            "first_death_ms": min(first, default=None),
            "last_death_ms": max(last, default=None),
            "exchange": self.exchange,
            "message_id": self.message_id,
            "publisher_id": self.publisher_id,
            "sequence": self.sequence,
            "bytes": self.size,
        }


@frozen
class Note:
    """
    What the header ``dedup-obituary`` of a message says.
    """

    queue: str
    attempts: int
    #: When it was given up; unix milliseconds.
    at_ms: int


def read_note(headers: Mapping[str, object]) -> Note | None:
    """
    Return what :meth:`Obituary.stamp` noted; None when there is nothing, or somebody else's; never raises.
    """
    text = headers.get(OBITUARY_HEADER)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if not isinstance(text, str) or len(text) > _NOTE_BYTES_MAX:
        return None
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match note:
        case [1, str(queue), int(attempts), int(at_ms)]:
            known = all(type(number) is int and 0 <= number <= _NUMBER_MAX for number in (attempts, at_ms))
            return Note(queue, attempts, at_ms) if known else None
    return None


def severity_rules(texts: Iterable[str]) -> tuple[Choice, ...]:
    """
    Read rules as ``page queue=orders*`` or ``silent header.tenant=test-*``.

    Raises:
        ConfigError: one of them is no rule, or its severity none of page, notify, silent.
    """
    rules = tuple(Choice.parse(text) for text in texts)
    known = [severity.value for severity in Severity]
    for rule in rules:
        if rule.chosen not in known:
            raise ConfigError(f"{rule.chosen!r} is no severity: choose one of {', '.join(known)}")
    return rules


def severity(rules: Iterable[Choice], obituary: Obituary) -> Severity:
    """
    Return what the first rule that fits says; notify when none does.
    """
    chosen = choose(rules, obituary.queue, obituary.exchange, obituary.headers)
    return Severity.NOTIFY if chosen is None else Severity(chosen)
