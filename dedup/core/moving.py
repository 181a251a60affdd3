"""
Judge what a move takes out of a queue: everything goes on, and nothing goes twice.

A shim asks whether a *publisher* sent a message before. A move asks only whether *it* has forwarded a delivery before it was
killed. What was forwarded and not acknowledged comes back flagged as redelivered, before anything else; what comes for the
first time was never forwarded. So a first delivery goes on whatever it looks like, and a redelivered one is recognised among
the last ones that were forwarded: by its identity (a stamp, or a message id), its body and where it died, and only if it has an identity. Without one, two messages may be alike in every byte and both be meant: what is redelivered then goes on marked,
unless the session before has ended clean.

Two messages with one identity and one body are one message that somebody published twice. Both go on; if
the move is killed while one of them is forwarded and the other one is under way, the other one may be taken for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve

from dedup.core.judge import Judge, Judged
from dedup.core.message_ids import KEY_SEQUENCE
from dedup.core.settings import RelaySettings
from dedup.core.steps import Arrival, Outgoing, Report
from dedup.core.window import Verdict

#: Deliveries that are remembered for each that the broker may send ahead. What can come back are the last ones; but quorum
#: queues give back what was returned twice behind what was returned once.
_REMEMBERED_FOR_EACH: Final = 4
#: Deliveries that are remembered at least: a move that was killed may have been given more at once than this one.
_REMEMBERED_MIN: Final = 20_000
#: What may come back does not grow old: a move may be killed today and run again in a month. Seconds.
_KEEP_S: Final = 10 * 365 * 86_400.0
#: Refusals of one batch until the session ends; the deadline comes first.
_REFUSALS_MAX: Final = 100


class Mover(Judge):
    """
    The policy of a move.
    """

    def _judge(self, arrival: Arrival, now_s: float, taken: set[tuple[str, int]]) -> Outgoing:
        """
        Say what becomes of one delivery.
        """
        if arrival.redelivered or arrival.fault or arrival.publisher is None:
            return super()._judge(arrival, now_s, taken)
        verdict, _ = self.publishers.judge(arrival.publisher, KEY_SEQUENCE, now_s)
        # A twin of one that was forwarded: there is no second place for it in what is remembered, and none is needed.
        known = verdict is Verdict.DUPLICATE
        return Outgoing(arrival, Verdict.UNTRACKED if known else verdict)

    def report(self, batch: Judged, evicted: Sequence[str], waiting: int) -> Report:
        """
        Tell what *batch* did; what a move remembers are no message ids, and to forget them is no loss.
        """
        return evolve(super().report(batch, evicted, waiting), message_ids=0, message_ids_forgotten=0)


def moving_settings(prefetch: int, *, batch_max: int, deadline_s: float | None) -> RelaySettings:
    """
    Return what the relay of a move is told.

    Args:
        prefetch: Deliveries the broker may send ahead.
        batch_max: Messages of one batch at the most.
        deadline_s: What the target refuses for so long is put aside; None: it is waited for. Seconds.
    """
    return RelaySettings(
        batch_max=batch_max,
        moving=True,
        refused_aside_s=deadline_s,
        refusals_max=_REFUSALS_MAX,
        message_ids_max=max(_REMEMBERED_MIN, _REMEMBERED_FOR_EACH * prefetch),
        message_id_keep_s=_KEEP_S,
    )
