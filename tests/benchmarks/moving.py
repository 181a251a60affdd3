"""
Measure how fast ``dedup move`` empties one queue into another, beside RabbitMQ's own shovel.

::

    python -m tests.benchmarks.moving [--messages 50000] [--rounds 5] [--rabbitmq 4.0] [--json]

As the benchmark of forwarding: persistent 200-byte messages with a stamp, classic to classic (exact), one broker, on this machine;
the rate is taken over the middle 80 %, and ratios of one round are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dedup.core import names
from dedup.testing.servers import RabbitMQ, Redis
from tests.benchmarks.forwarding import Bench, Forwarder, run_child


def main() -> None:
    """
    Run the rounds and print rates and the ratio.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0].strip())
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rabbitmq", default="4.0", metavar="VERSION")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        RabbitMQ(options.rabbitmq, plugins=("rabbitmq_management", "rabbitmq_shovel")) as rabbitmq,
        Redis() as redis,
    ):
        bench = Bench(rabbitmq, redis, batch_max=500)

        @contextmanager
        def move(queue: str) -> Iterator[None]:
            urls = [
                "--amqp",
                rabbitmq.url,
                "--redis",
                redis.url,
                "--management",
                str(rabbitmq.management_url),
            ]
            ends = ["--forwarding", "exact", names.ingress(queue), queue]
            yield from run_child([sys.executable, "-m", "dedup.cli", "move", *urls, *ends])

        forwarders: dict[str, Forwarder] = {"move": move, "shovel": bench.shovel}
        rates: dict[str, list[float]] = {name: [] for name in forwarders}
        for number in range(options.rounds):
            for name, forwarder in forwarders.items():
                rates[name].append(bench.run(forwarder, f"bench-{name}-{number}", options.messages))
                print(
                    f"round {number + 1}: {name:7} {rates[name][-1]:9,.0f} messages/s",
                    file=sys.stderr,
                    flush=True,
                )
        bench.connection.close()
    ratio = statistics.median(a / b for a, b in zip(rates["move"], rates["shovel"], strict=True))
    if options.json:
        print(json.dumps({"rates": rates, "to_shovel": ratio}))
        return
    for name, values in rates.items():
        print(f"{name:7} {statistics.median(values):9,.0f} messages/s (median of {options.rounds})")
    print(f"move / shovel: {ratio:.2f} (median of the ratios of each round)")


if __name__ == "__main__":
    main()
