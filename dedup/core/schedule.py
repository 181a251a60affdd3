"""Decide what becomes of a dead letter: back to its queue after a delay, or an obituary."""

from __future__ import annotations

from attrs import field, frozen

from dedup.core.backoff import delay_s
from dedup.core.deaths import DeathHistory
from dedup.core.obituaries import Reason
from dedup.errors import ConfigError

#: Seconds before the first, second and third retry, where nothing else is said.
DELAYS_S = (10.0, 100.0, 1000.0)
#: Longest delay; seconds. A year: what is due later than that is a mistake.
DELAY_S_MAX = 365 * 86_400.0
#: Retries of one message at the most, whatever is set.
ATTEMPTS_MAX = 10_000
#: Deaths that nobody brought about: the message was not even looked at.
_UNATTENDED = frozenset({"expired", "maxlen"})


def _checked_delays(_: object, __: object, delays: tuple[float, ...]) -> None:
    if not 0 < len(delays) <= ATTEMPTS_MAX or not all(0 < delay <= DELAY_S_MAX for delay in delays):
        raise ConfigError(
            f"delays are numbers of seconds, above 0 and at most {DELAY_S_MAX:,.0f}; from one to {ATTEMPTS_MAX:,} of them"
        )


def _checked_attempts(_: object, __: object, attempts: int | None) -> None:
    if attempts is not None and not 1 <= attempts <= ATTEMPTS_MAX:
        raise ConfigError(f"attempts are from 1 to {ATTEMPTS_MAX}")


@frozen
class Backoff:
    """
    How long each retry of one queue waits, and how many there are.
    """

    #: Seconds before each retry; the last one serves for all later ones.
    delays_s: tuple[float, ...] = field(default=DELAYS_S, validator=_checked_delays)
    #: Retries until the obituary; None: one for each delay, ten where delays double.
    attempts_max: int | None = field(default=None, validator=_checked_attempts)
    #: Delays double from the first of *delays_s* to the last, with jitter.
    doubling: bool = False

    @property
    def attempts(self) -> int:
        """
        Return how often a message is retried.
        """
        if self.attempts_max is not None:
            return self.attempts_max
        return 10 if self.doubling else len(self.delays_s)

    def delay_s(self, retries: int, jitter: float) -> float:
        """
        Return how long a message waits that was retried so often before; seconds.

        Args:
            jitter: A random number in [0, 1); listed delays are kept to the second and ignore it.
        """
        if self.doubling:
            return delay_s(retries, jitter, first_s=self.delays_s[0], max_s=max(self.delays_s))
        return self.delays_s[min(retries, len(self.delays_s) - 1)]


@frozen
class Retry:
    """
    Back to the tail of the queue it died in.
    """

    queue: str
    delay_s: float
    #: Which retry this is, from 1.
    attempt: int


@frozen
class Bury:
    """
    An obituary.
    """

    #: In which it died; empty when nobody can tell.
    queue: str
    reason: Reason


def decide(
    history: DeathHistory,
    retries: int | None,
    *,
    backoff: Backoff,
    dead_letter_queue: str,
    jitter: float,
) -> Retry | Bury:
    """
    Decide about one dead letter; total.

    A message that nobody looked at, twice in a row in the same queue, goes round by itself and
    would do so for ever. One that a consumer has rejected meanwhile does not: somebody tries.

    Args:
        retries: What the header ``dedup-retry`` says, 0 without one; None: it cannot be read, and the history is counted.
        backoff: Of the queue it died in.
    """
    death = history.newest
    if death is None or not death.queue:
        return Bury("", Reason.NO_HISTORY)
    if death.queue == dead_letter_queue:
        return Bury(death.queue, Reason.CYCLE)
    deaths = history.count(queue=death.queue)
    if retries is None:
        retries = deaths - 1
    if retries >= backoff.attempts:
        return Bury(death.queue, Reason.ATTEMPTS)
    again = history.count(queue=death.queue, reason=death.reason) > 1
    if retries and again and death.reason in _UNATTENDED and history.cycles_into(death.queue):
        return Bury(death.queue, Reason.CYCLE)
    return Retry(death.queue, backoff.delay_s(retries, jitter), retries + 1)
