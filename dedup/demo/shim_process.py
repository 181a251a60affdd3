"""Run one shim as a process: ``python -m dedup.demo.shim_process AMQP REDIS MANAGEMENT QUEUE``; SIGTERM ends it in order."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial
from typing import Any

from dedup.amqp091.inspection import inspect
from dedup.amqp091.management import Management
from dedup.shim import Shim, ShimSettings


def main(amqp: str, redis: str, management: str, queue: str) -> None:
    """
    Forward until SIGTERM.
    """

    def notice(name: str, facts: dict[str, Any]) -> None:
        print(json.dumps({"event": name, **facts}, default=str), flush=True)

    look = partial(inspect, amqp, queue, management=Management(management, amqp=amqp))
    shim = Shim(ShimSettings(amqp=amqp, redis=redis, queue=queue), inspect=look, notice=notice)
    signal.signal(signal.SIGTERM, lambda *_: shim.stop())
    shim.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
