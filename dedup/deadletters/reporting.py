"""Tell of every message that is given up: an event for log and metrics, and a webhook for whom it concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dedup.core.choices import Choice
from dedup.core.obituaries import Obituary, Severity, severity

#: Told of an event and its fields; feeds log and metrics.
Notice = Callable[[str, dict[str, Any]], None]


class Sender(Protocol):
    """
    Where obituaries go beside the log: a webhook.
    """

    def send(self, facts: dict[str, Any]) -> None:
        """
        Take one over; never blocks, never raises.
        """


class Obituaries:
    """
    Report obituaries by severity: all are logged and counted, those that concern somebody go to the webhook.

    Report a message once the broker has it in ``QUEUE.dead``, before its dead letter is acknowledged: killed in between, it is
    reported twice and never not at all.
    """

    def __init__(
        self, rules: Iterable[Choice] = (), *, notice: Notice, webhook: Sender | None = None
    ) -> None:
        self._rules = tuple(rules)
        self._notice = notice
        self._webhook = webhook

    def report(self, obituary: Obituary) -> Severity:
        """
        Tell of one message, and return how urgent it is; never blocks, never raises for a webhook.
        """
        urgency = severity(self._rules, obituary)
        facts = {"severity": urgency.value, **obituary.facts()}
        self._notice("dedup.obituary", facts)
        if self._webhook is not None and urgency is not Severity.SILENT:
            self._webhook.send(facts)
        return urgency
