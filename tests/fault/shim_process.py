"""
A shim as a process of its own, which kills or freezes itself at a named step if it is told to.

Usage: python shim_process.py JSON, an object with
    amqp, redis, queue   as for the shim
    exact                whether to forward in transactions
    batch_max            messages of one batch
    management           the management API; without one nobody knows who leads the target
    target_type          "classic" (the default) or "quorum"
    kill                 [when, effect, n]: before or after performing the n-th effect of this name; or null
    signal               what it sends itself there: SIGKILL by default, or SIGSTOP
    audit                whether to tell the audit of every arrival
    relay                further settings of the relay
    broken               a safeguard that it lacks, of BROKEN
    marker_every         messages between two markers of parts
    tell_acks            whether to tell of each acknowledgement
    protocol             what ingress and target are spoken to with
    proof_wait_s         how long what is only believed waits for another message; short by default

SIGTERM ends it in order. A line of JSON on stdout for every notice.
"""

from __future__ import annotations

import json
import signal
import sys
from functools import partial
from typing import Any

from attrs import frozen

from dedup.amqp091.leadership import survey
from dedup.amqp091.management import Management
from dedup.core import publishers, steps
from dedup.core.settings import RelaySettings
from dedup.core.window import Verdict, Window, judge
from dedup.service.signals import ended_by_signals
from dedup.shim import Shim, ShimSettings
from tests.fault.child import Tell, trap_of

#: In production it is 5 seconds; here nobody publishes the message that is waited for.
PROOF_WAIT_S = 0.5


def _window_ignored(window: Window | None, sequence: int, size: int) -> tuple[Verdict, Window]:
    """Let every copy pass."""
    return Verdict.NEW, judge(window, sequence, size)[1]


def _every_seventh_taken_for_seen(window: Window | None, sequence: int, size: int) -> tuple[Verdict, Window]:
    """Drop messages that never came before."""
    verdict, after = judge(window, sequence, size)
    return (verdict if sequence % 7 else Verdict.DUPLICATE), after


#: What a shim without a safeguard has in the place of the window's judgement.
BROKEN = {"copies pass": _window_ignored, "every seventh is dropped": _every_seventh_taken_for_seen}


@frozen
class Assumed:
    """What the topology is, without a look."""

    exact_possible: bool
    target_type: str
    may_refuse: bool
    reason: str = "the test says so"
    warnings: tuple[str, ...] = ()


def run(settings: dict[str, Any], tell: Tell) -> None:
    """Run one shim as *settings* say, until SIGTERM."""
    trap = trap_of(settings)
    if "broken" in settings:
        publishers.judge = BROKEN[settings["broken"]]  # type: ignore[attr-defined]

    def step(when: str, effect: steps.Effect) -> None:
        if settings.get("tell_acks") and when == "after" and isinstance(effect, steps.Ack):
            tell("acked", {})
        if when == "after" and isinstance(effect, steps.Save) and effect.proven:
            tell("proven", {})
        trap.step(when, type(effect).__name__)

    def report(report: steps.Report) -> None:
        verdicts = {verdict.value: count for verdict, count in report.verdicts.items()}
        counts = {name: getattr(report, name) for name in ("forwarded", "marked", "questions")}
        tell("report", {"verdicts": verdicts, **counts})

    management = settings.get("management")
    leads = (
        partial(survey, Management(management, amqp=settings["amqp"]), "/", settings["queue"])
        if management
        else None
    )
    shim = Shim(
        ShimSettings(
            amqp=settings["amqp"],
            redis=settings["redis"],
            queue=settings["queue"],
            relay=RelaySettings(
                batch_max=settings["batch_max"],
                marker_keep_s=settings.get("marker_keep_s", 5.0),
                proof_wait_s=settings.get("proof_wait_s", PROOF_WAIT_S),
                marker_every=settings.get("marker_every", 1),
                audit=settings.get("audit", False),
                **settings.get("relay", {}),
            ),
            protocol=settings.get("protocol", "amqp091"),
        ),
        inspect=lambda: Assumed(
            settings["exact"], settings.get("target_type", "classic"), management is None
        ),
        survey=leads,
        report=report,
        notice=tell,
        step=step,
    )
    with ended_by_signals(lambda _: shim.stop(), (signal.SIGTERM,)):
        tell("started", {})
        shim.run()


def main(settings: dict[str, Any]) -> None:
    """Run one shim and print what it tells."""
    run(settings, lambda event, facts: print(json.dumps({"event": event, **facts}, default=str), flush=True))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
