"""
A shim as a process of its own, which kills itself with SIGKILL at a named step if it is told to.

Usage: python shim_process.py JSON, an object with
    amqp, redis, queue   as for the shim
    exact                whether to forward in transactions
    batch_max            messages of one batch
    kill                 [when, effect, n]: before or after performing the n-th effect of this name; or null

SIGTERM ends it in order. A line of JSON on stdout for every notice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from typing import Any

from attrs import frozen

from dedup.core import steps
from dedup.core.settings import RelaySettings
from dedup.shim import Shim, ShimSettings


@frozen
class Assumed:
    """What the topology is, without a look."""

    exact_possible: bool
    reason: str = "the test says so"
    warnings: tuple[str, ...] = ()


def main(options: dict[str, Any]) -> None:
    """Run one shim as *options* say."""
    seen: Counter[tuple[str, str]] = Counter()
    kill = tuple(options["kill"][:2]) if options["kill"] else None
    nth = options["kill"][2] if options["kill"] else 0

    def step(when: str, effect: steps.Effect) -> None:
        here = (when, type(effect).__name__)
        seen[here] += 1
        if here == kill and seen[here] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def notice(name: str, facts: dict[str, Any]) -> None:
        print(json.dumps({"event": name, **facts}, default=str), flush=True)

    def report(report: steps.Report) -> None:
        verdicts = {verdict.value: count for verdict, count in report.verdicts.items()}
        notice("report", {**verdicts, "forwarded": report.forwarded, "marked": report.marked})

    shim = Shim(
        ShimSettings(
            amqp=options["amqp"],
            redis=options["redis"],
            queue=options["queue"],
            relay=RelaySettings(
                batch_max=options["batch_max"], marker_keep_s=options.get("marker_keep_s", 5.0)
            ),
        ),
        inspect=lambda: Assumed(options["exact"]),
        report=report,
        notice=notice,
        step=step,
    )
    signal.signal(signal.SIGTERM, lambda *_: shim.stop())
    shim.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
