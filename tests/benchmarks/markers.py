"""
Measure what markers of parts cost: the shim drains into a quorum queue with and without them, and beside the shovel.

::

    python -m tests.benchmarks.markers [--messages 20000] [--rounds 5] [--rabbitmq 4.0] [--json]

As the benchmark of forwarding, but into a quorum queue and with confirms. A marker after each message doubles what is
published, and the ledger they go to is a classic queue: so the price is what one transient message costs beside one that a
quorum queue stores. With markers after every tenth message a killed shim leaves up to ten messages marked instead of one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial

from dedup.testing.servers import RabbitMQ, Redis
from tests.benchmarks.forwarding import Bench, Forwarder

#: What the others are compared with.
WITHOUT = "no markers of parts"


def main() -> None:
    """
    Run the rounds and print rates and ratios.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0].strip())
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rabbitmq", default="4.0", metavar="VERSION")
    parser.add_argument("--batch-max", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        RabbitMQ(options.rabbitmq, plugins=("rabbitmq_management", "rabbitmq_shovel")) as rabbitmq,
        Redis() as redis,
    ):
        bench = Bench(rabbitmq, redis, options.batch_max, "quorum")
        marking = partial(bench.shim, management=rabbitmq.management_url)
        forwarders: dict[str, Forwarder] = {
            WITHOUT: bench.shim,
            "one for each message": marking,
            "one for ten messages": partial(marking, marker_every=10),
            "shovel": bench.shovel,
        }
        rates: dict[str, list[float]] = {name: [] for name in forwarders}
        for number in range(options.rounds):
            for index, (name, forwarder) in enumerate(forwarders.items()):
                rate = bench.run(forwarder, f"bench-{index}-{number}", options.messages)
                rates[name].append(rate)
                print(f"round {number + 1}: {name:20} {rate:9,.0f} messages/s", file=sys.stderr, flush=True)
        bench.connection.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, rates[WITHOUT], strict=True))
        for name, values in rates.items()
    }
    if options.json:
        print(json.dumps({"rates": rates, "medians": medians, "to_none": ratios}))
        return
    for name, median in medians.items():
        print(f"{name:20} {median:9,.0f} messages/s (median of {options.rounds}), {ratios[name]:.2f} of none")


if __name__ == "__main__":
    main()
